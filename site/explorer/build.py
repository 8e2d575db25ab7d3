"""Write ``site/explorer/index.html``, one file without dependencies, and the copy that the wheel carries.

``python site/explorer/build.py`` writes both; ``--check`` says whether they are up to date. Modules of ``src/`` are put in the
order of their imports, each inside a function of its own; every file of ``src/views`` is a view. A file of ``src/pages`` is a view
with a page of its own, which reads a script beside it (`BESIDE`); `site/build.py` writes both.
"""

import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SOURCE = FOLDER / "src"
BESIDE = {
    "trained_head": "weights",
    "one_click": "photograph",
}  # scripts that pages read, written by the files of these names
WRITTEN = (FOLDER / "index.html", FOLDER.parents[1] / "probtx_pyro" / "cli" / "_explorer.html")

IMPORT = re.compile(r'^import\s+(?:(\w+)|\{([^}]*)\})\s+from\s+"([^"]+)";\n', re.MULTILINE)
DECLARED = re.compile(r"^export\s+((?:async\s+)?function\*?|const|let|class)\s+(\w+)", re.MULTILINE)


def imported(text: str, path: Path) -> list[tuple[re.Match, Path]]:
    """Return the imports of a module with the files they name."""
    return [(found, (path.parent / found[3]).resolve()) for found in IMPORT.finditer(text)]


def in_order(first: list[Path]) -> list[Path]:
    """Return modules so that each comes after those that it imports."""
    order: list[Path] = []

    def visit(path: Path, above: tuple[Path, ...]) -> None:
        if path in above:
            raise ValueError(f"modules import each other in a circle: {' -> '.join(p.name for p in (*above, path))}")
        if path in order:
            return
        for _, other in imported(path.read_text(encoding="utf-8"), path):
            visit(other, (*above, path))
        order.append(path)

    for path in first:
        visit(path, ())
    return order


def name_of(path: Path) -> str:
    """Return the name of a module inside the page, such as ``math/mixture``."""
    return path.relative_to(SOURCE).with_suffix("").as_posix()


def enclosed(path: Path) -> str:
    """Return a module as an entry of ``modules``: its text inside a function that returns what it exports."""
    text = path.read_text(encoding="utf-8")

    def bound(found: re.Match) -> str:
        source = f'modules["{name_of((path.parent / found[3]).resolve())}"]'
        if found[1]:
            return f"const {found[1]} = {source}.default;\n"
        names = ", ".join(re.sub(r"\s+as\s+", ": ", part.strip()) for part in found[2].split(",") if part.strip())
        return f"const {{ {names} }} = {source};\n"

    exports = DECLARED.findall(text)
    body = DECLARED.sub(r"\1 \2", IMPORT.sub(bound, text))
    returned = [name for _, name in exports]
    body, whole = re.subn(r"^export default ", "const theDefault = ", body, flags=re.MULTILINE)
    if whole:
        returned.append("default: theDefault")
    left = re.search(r"^(import\s*[{*\"']|import \w+ from [\"']|export\b).*", body, re.MULTILINE)
    if left:
        raise ValueError(f"{path}: the builder does not know {left[0]!r}; import and export as the other modules do")
    return f'modules["{name_of(path)}"] = (() => {{\n{body}\nreturn {{ {", ".join(returned)} }};\n}})();\n'


def page(alone: str | None = None) -> str:
    """Return the text of the explorer's page, or of that of the view ``alone`` of ``src/pages``."""
    views = sorted((SOURCE / "views").glob("*.js")) if alone is None else [SOURCE / "pages" / f"{alone}.js"]
    order = in_order([*views, SOURCE / "frame.js"])
    listed = ", ".join(f'modules["{name_of(path)}"].default' for path in views)
    script = '"use strict";\nconst modules = {};\n' + "\n".join(map(enclosed, order))
    script += f'\nmodules["frame"].start([{listed}], modules);\n'
    if "</script" in script:
        raise ValueError("a module holds the end tag of a script; write it in two pieces")
    template = (SOURCE / "page.html").read_text(encoding="utf-8")
    style = (SOURCE / "style.css").read_text(encoding="utf-8")
    for mark, text in (("/* STYLE */", style), ("/* SCRIPT */", script)):
        if template.count(mark) != 1:
            raise ValueError(f"page.html must hold {mark} once")
        template = template.replace(mark, text)
    if alone is None:
        return template
    policy = "script-src 'unsafe-inline'"
    beside = template.replace(policy, f"{policy} 'self' file:", 1)  # a page that is opened as a file has no self
    head, _, script = beside.rpartition("<script>")
    return f'{head}<script src="{BESIDE[alone]}.js"></script>\n<script>{script}'


def main(words: list[str]) -> int:
    """Write the page, or with ``--check`` compare it with what is written."""
    text = page()
    if words == ["--check"]:
        stale = [path for path in WRITTEN if not path.exists() or path.read_text(encoding="utf-8") != text]
        for path in stale:
            print(f"{path} is not up to date; run python site/explorer/build.py", file=sys.stderr)
        return int(bool(stale))
    for path in WRITTEN:
        path.write_text(text, encoding="utf-8")
        print(f"{path}: {len(text.encode()) / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
