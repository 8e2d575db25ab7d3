"""Build the site: stage the pages that the repository has, write those that are generated, call Sphinx.

``python site/build.py`` writes ``site/_build``; warnings are errors. The sources stay where they are: ``docs/``, ``notebooks/``,
``README.md`` and the docstrings. They are staged under ``site/.work/source`` in the folders they have in the repository, so that
their links lead to each other. In the environment, ``SITE_URL`` is the address of the published site (sitemap, social card, 404) and
``REPOSITORY`` that of the repository, which the home page says how to clone.
"""

import json
import os
import re
import shutil
import sys
from functools import partial
from html import escape
from importlib import import_module
from pathlib import Path

import equations
import finish
import graph
import reference
from sphinx.cmd.build import main as sphinx

SITE = Path(__file__).resolve().parent
ROOT = SITE.parent
URL = os.environ.get("SITE_URL", "http://localhost:8000/")
REPOSITORY = os.environ.get("REPOSITORY", "")
WORK, OUT = SITE / ".work", SITE / "_build"
SOURCE = WORK / "source"
EXPLORER = SITE / "explorer/index.html"
INDEX = {
    None: "index.md",
    "#how-to": "use.md",
    "#the-course": "learn.md",
    "#reports": "reports.md",
}  # docs/index.md's sections
MATHJAX = "tex-svg-full.js"  # one file with all of TeX's packages and no fonts to fetch


def section(text: str, title: str) -> str:
    """What stands under a heading of the second level, without the heading."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, flags=re.M | re.S)
    if found is None:
        raise ValueError(f"docs/index.md or README.md has no section {title!r}")
    return found[1].strip()


def stage() -> dict[str, str]:
    """Text of every page by its path, with links that lead to pages of the site."""
    pages = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for pattern in ("docs/**/*.md", "notebooks/*.ipynb", "*.md")
        for path in sorted(ROOT.glob(pattern))
    }
    index, readme = pages.pop("docs/index.md"), pages["README.md"]
    moved = re.sub(r"\]\((howto|course|reports)/", r"](docs/\1/", index)
    howto, reports = section(moved, "How to"), section(moved, "Reports")
    blocks = {
        "HOWTO": as_lists(howto),
        "HOWTOS": "\n".join(re.findall(r"\((docs/howto/\w+)\.md\)", howto)),
        "REPORTS": reports,
        "REPORTED": re.sub(
            r"\[(.*?)\]\((.*?)\)", r"\1 <\2>", "\n".join(re.findall(r"^\| (\[.*?\)) \|", reports, flags=re.M))
        ),
        "COURSE": section(moved, "The course"),
        "NOTEBOOKS": re.sub(
            r"^\| \[(\d+)\](\(.*?\)) \| (.*) \|$", r"| \1 | [\3]\2 |", section(readme, "The course"), flags=re.M
        ),
        "CLONE": clone(),
        "PICTURE": picture(),
        "EXPLORER": explorer(),
    }
    for path in sorted((SITE / "pages").glob("*.md")):
        pages[path.name] = re.sub(r"^<!-- ([A-Z]+) -->$", lambda found: blocks[found[1]], path.read_text(), flags=re.M)
    for path, text in pages.items():
        text = re.sub(
            r"^(```python\n.*?)\n+^```$", r"\1\n```", text, flags=re.M | re.S
        )  # a doctest ends with an empty line
        text = _on_the_site(text, "../" * path.count("/"))
        pages[path] = re.sub(r"^```mermaid\n(.*?)^```$", partial(_drawn, text), text, flags=re.M | re.S)
    for notebook in {notebook for notebook, *_ in views()}:
        path = f"notebooks/{notebook}.ipynb"
        pages[path] = with_views(pages[path], [(view, title) for name, view, title in views() if name == notebook])
    names = reference.pages()
    pages |= names
    pages["equations.md"] = _on_the_site(
        equations.page(readme, pages["docs/mathematics.md"], ROOT / "tests", names), ""
    )
    return pages


def _on_the_site(text: str, up: str) -> str:
    """The text of a page with links that name the page they lead to, and docs/index.md's, which is no page, to those of its sections."""
    link = r"\]\((?:\.\./)*(?:docs/)?index\.md(#[\w-]+)?\)"
    text = re.sub(link, lambda found: f"]({up}{INDEX[found[1]]})", text)
    return re.sub(r"(?<!!)\[[\w./]+\.md\](\([\w./]+\.md\))", r"[]\1", text)


def as_lists(text: str) -> str:
    """Paragraphs of a topic and its links as sections with a list."""

    def listed(found: re.Match) -> str:
        links = [f"- [{link[1].upper()}{link[2:]}" for link in found[2].split(" ·\n")]
        return "\n".join([f"## {found[1]}", "", *links])

    return re.sub(r"^([A-Z][^:\n]*):\n(\[.*?)(?=\n\n|\Z)", listed, text, flags=re.M | re.S)


def clone() -> str:
    """How a reader gets the repository, where the environment says its address."""
    name = REPOSITORY.rstrip("/").rpartition("/")[2]
    return (
        f"```\ngit clone {REPOSITORY}\ncd {name}\n```\n\nThen, there:"
        if REPOSITORY
        else "In the folder of the repository:"
    )


def _drawn(page: str, found: re.Match) -> str:
    """A graph whose node n00 leads where the page's [00] does."""
    links = {f"n{name}": f"{to}.html" for name, to in re.findall(r"^\[(\d+)\]: (\S+)\.ipynb$", page, flags=re.M)}
    return graph.svg(found[1], links)


def explorer() -> str:
    """The explorer in a frame, or a line that says where it will be."""
    if not EXPLORER.exists():
        return "The explorer is not part of this build."
    return (
        '<iframe class="explorer whole" src="explorer/index.html" title="The explorer"></iframe>\n\n'
        'It is one file that works by itself: <a href="explorer/index.html">open it alone</a>, or save it.'
    )


def picture() -> str:
    """The picture of the home page: the explorer's first view, or the README's figure where there is no explorer."""
    if EXPLORER.exists():
        return '<iframe class="explorer" src="explorer/index.html?picture" title="The explorer: attention is a posterior"></iframe>'
    found = re.search(r"^!\[.*?\]\(.*?\)\n\n\*.*?\*$", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    if found is None:
        raise ValueError("README.md has no figure with a caption")
    return found[0]


def views() -> list[tuple[str, str, str]]:
    """Notebook, identifier and title of every view of the explorer, as its file says."""
    if not EXPLORER.exists():
        return []
    texts = [
        path.read_text().partition("export default")[2] for path in sorted((SITE / "explorer/src/views").glob("*.js"))
    ]
    fields = [[re.search(rf'\b{name}: "(.*?)"', text) for name in ("notebook", "id", "title")] for text in texts]
    if not all(map(all, fields)):
        raise ValueError("a view of the explorer does not say its notebook, id and title")
    return [tuple(found[1] for found in view) for view in fields]


def with_views(text: str, found: list[tuple[str, str]]) -> str:
    """A notebook with views of the explorer, folded, below its first cell: readers without a kernel can move these."""
    notebook = json.loads(text)
    for view, title in found:
        frame = f'<iframe class="explorer" loading="lazy" src="../explorer/index.html?view#{view}" title="The explorer: {escape(title)}"></iframe>'
        notebook["cells"][0]["source"] += [
            f"\n\n<details><summary>Touch it: {escape(title)}</summary>{frame}</details>"
        ]
    return json.dumps(notebook)


def copy_explorer() -> None:
    """Copy the explorer, which finds the notebooks beside it."""
    (OUT / "explorer").mkdir()
    text = EXPLORER.read_text()
    inside, beside = (
        'data-notebooks="../../notebooks/" data-suffix=".ipynb"',
        'data-notebooks="../notebooks/" data-suffix=".html"',
    )
    if inside not in text:
        raise ValueError(f"site/explorer/index.html does not say where the notebooks are: {inside}")
    (OUT / "explorer/index.html").write_text(text.replace(inside, beside, 1))


def files(pages: dict[str, str]) -> set[str]:
    """Pictures and other files of the repository that pages show or link to; a reader can download the latter."""
    found = set()
    for path, text in pages.items():
        for link in re.findall(r"\]\(([^):#\s]+)\)", text) if path.endswith(".md") else ():
            target = os.path.normpath(os.path.join(os.path.dirname(path), link))
            if target not in pages and (ROOT / target).is_file():
                found.add(target)
    return found


def write(pages: dict[str, str]) -> None:
    """Write the staged pages that changed and the files they show, and remove what is gone."""
    linked = files(pages)
    for path in SOURCE.rglob("*"):
        if path.is_file() and path.relative_to(SOURCE).as_posix() not in {*pages, *linked}:
            path.unlink()
    for path in {*pages, *linked}:
        (SOURCE / path).parent.mkdir(parents=True, exist_ok=True)
    for path, text in pages.items():
        if not (SOURCE / path).exists() or (SOURCE / path).read_text() != text:
            (SOURCE / path).write_text(text)
    for path in linked:
        shutil.copy2(ROOT / path, SOURCE / path)


def main(arguments: list[str]) -> int:
    """Stage, call Sphinx and add what it does not make; the exit status is Sphinx's.

    Nothing is kept from the build before: a page that Sphinx remembers from a build that failed gives no warning again.
    """
    for name in ("html", "doctrees", "jupyter_execute"):
        shutil.rmtree(WORK / name, ignore_errors=True)
    write(stage())
    options = "-b html -W --keep-going -n -q -j auto".split()
    status = sphinx(
        [*options, "-d", str(WORK / "doctrees"), "-c", str(SITE), *arguments, str(SOURCE), str(WORK / "html")]
    )
    if status == 0:
        shutil.rmtree(OUT, ignore_errors=True)
        shutil.copytree(WORK / "html", OUT, ignore=shutil.ignore_patterns(".buildinfo"))
        bundle = Path(import_module("sphinx-mathjax-offline").__file__).parent / "static/mathjax" / MATHJAX
        shutil.copy2(bundle, OUT / "_static/mathjax.js")
        if EXPLORER.exists():
            copy_explorer()
        finish.finish(OUT, URL)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
