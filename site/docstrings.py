"""What Sphinx needs to read this package's docstrings: fields of results, signs of formulas, names in single backticks."""

import ast
import re
from itertools import pairwise
from pathlib import Path

from sphinx.util.nodes import make_refnode

ROOT = Path(__file__).resolve().parent.parent / "probtx_pyro"
LITERAL = re.compile(r"(``.+?``|`[^`]+`|(?<![\w*])\*\w(?:[^*\n]*\w)?\*(?![\w*]))")
FIELD = re.compile(r"^(\w+(?:, \w+)*): +(\S.*)$")


def escaped(line: str) -> str:
    """A line with the signs of formulas, ``*batch``, ``|z|`` and ``name_``, kept from being markup."""
    parts = LITERAL.split(line)
    parts[::2] = [re.sub(r"(?<=\w)_(?!\w)", r"\\_", re.sub(r"([*|])", r"\\\1", part)) for part in parts[::2]]
    return "".join(parts)


def prose(lines: list[str]) -> list[bool]:
    """Which lines are prose, not a table, a doctest or a literal block."""
    out, table, doctest, literal = [], False, False, None
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if BORDER.fullmatch(line):
            ends = table and (number + 1 == len(lines) or not lines[number + 1].strip())
            table = not ends
            out.append(False)
            continue
        doctest = bool(line.strip()) and (doctest or line.lstrip().startswith(">>>"))
        if literal is not None and line.strip() and indent <= literal:
            literal = None
        out.append(not (table or doctest or literal is not None))
        if literal is None and line.rstrip().endswith("::"):
            literal = indent
    return out


def with_formulas(lines: list[str]) -> list[str]:
    """Lines with a ``::`` before each indented block, which is a formula."""
    out: list[str] = []
    before = 0  # indentation of the last line that was not empty
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if line.strip():
            if indent > before and number and not lines[number - 1].strip() and not out[-2].rstrip().endswith("::"):
                out += [" " * before + "::", ""]
            before = indent
        out.append(line)
    return out


def with_fields(lines: list[str], names: set[str]) -> list[str]:
    """Paragraphs ``name: what it is. other: what that is.`` of a result's docstring as a definition list."""
    out: list[str] = []
    one = "|".join(sorted(map(re.escape, names), key=len, reverse=True)) or "(?!)"
    begins = re.compile(rf"(?:^|(?<=[.;)] ))((?:{one})(?:, (?:{one}))*): +")
    fields = False
    for number, line in enumerate(lines):
        found = FIELD.match(line)
        first = bool(found) and set(found[1].split(", ")) <= names
        goes_on = (
            fields and bool(line.strip()) and not found and (line.startswith(" ") or bool(lines[number - 1].strip()))
        )
        if first or goes_on:
            fields = True
            before, *parts = begins.split(line.strip())
            out += [f"    {before.strip()}"] if before.strip() else []
            for name, text in zip(parts[::2], parts[1::2], strict=True):
                out += ["", ", ".join(f"``{each}``" for each in name.split(", "))]
                out += [f"    {text.strip()}"] if text.strip() else []
        else:
            out += [""] if fields and line.strip() else []
            fields = fields and not line.strip()
            out.append(line)
    return out


BORDER = re.compile(r"\s*=+( +=+)+")


def with_tables(lines: list[str]) -> list[str]:
    """Lines with simple tables whose columns stand a little farther apart: some cells reach into the space between two."""
    out, borders, starts, widths = [], 0, [0], [0]
    for line in lines:
        if BORDER.fullmatch(line):
            borders += 1
            columns = [found.span() for found in re.finditer("=+", line)]
            starts, widths = [start for start, _ in columns], [end - start + 5 for start, end in columns]
            out.append("  ".join("=" * len(found) + "===" for found in line.split()))
            out[-1] = " " * starts[0] + out[-1]
        elif borders % 3 and line.strip():
            ends = [*starts[1:], None]
            cells = [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
            out.append(
                (" " * starts[0] + "".join(cell.ljust(wide) for cell, wide in zip(cells, widths, strict=True))).rstrip()
            )
        else:
            out.append(line)
    return out


def with_emphasis(lines: list[str]) -> list[str]:
    """Lines in which an emphasis that goes on in the next line ends, and begins there anew."""
    out = list(lines)
    for number, (line, following) in enumerate(pairwise(lines)):
        goes_on = re.match(r"(\s*)([^*]*\w\*(?![\w*]).*)", following)
        if re.search(r"(?<![\w*\\])\*\w[^*]*$", line) and goes_on:
            out[number] = f"{out[number]}*"
            out[number + 1] = f"{goes_on[1]}*{goes_on[2]}"
    return out


def signature(app, what, name, obj, options, signature, annotation):
    """Sphinx calls this with every signature: one with ``<factory>`` or ``<function f at 0x1>`` is none that it can read."""
    if signature:
        signature = re.sub(r"<(?:function|class) '?([\w.]+)[^<>]*>", r"\1", signature.replace("<factory>", "..."))
    return signature, annotation


def process(app, what, name, obj, options, lines):
    """Sphinx calls this with every docstring, before numpydoc does."""
    if what == "class":
        fields = {field for owner in obj.__mro__ for field in getattr(owner, "__annotations__", {})}
        fields |= {
            field for owner in obj.__mro__ for field, value in vars(owner).items() if isinstance(value, property)
        }
        lines[:] = with_fields(lines, fields)
    lines[:] = with_tables(with_formulas(with_emphasis(lines)))
    lines[:] = [escaped(line) if plain else line for line, plain in zip(lines, prose(lines), strict=True)]


def identifiers() -> set[str]:
    """Every name that the package's files define: modules, functions, classes, arguments, variables, attributes."""
    found = set()
    for path in ROOT.rglob("*.py"):
        found |= {path.stem, path.parent.name}
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name) | ast.arg(arg=name):
                    found.add(name)
                case ast.Attribute(attr=name):
                    found.add(name)
    return found


def resolve(app, env, node, contnode):
    """A link from a name as the docstrings write it, ``models.bayesian`` or ``nuts``; plain code for what is not public.

    A name that the package does not have at all stays unresolved, and Sphinx warns.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].removeprefix("~").removeprefix(".")
    objects = env.domains["py"].objects
    module = node.get("py:module") or ""
    names = [name for name in objects if name == f"probtx_pyro.{target}" or name.endswith(f".{target}")]
    names.sort(key=lambda name: (not name.startswith(module), name.count("."), name))
    if names:
        entry = objects[names[0]]
        return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, contnode, names[0])
    if not hasattr(app, "probtx_names"):
        app.probtx_names = identifiers()
    return contnode if target.rpartition(".")[2] in app.probtx_names else None
