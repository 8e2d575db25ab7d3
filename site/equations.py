"""The equation index: equation, function, test. Read from the README, from docs/mathematics.md and from the tests themselves."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

from mdit_py_plugins.anchors.index import slugify

SHOWN = 2  # tests named for each function


class Test(NamedTuple):
    """A test: where it stands, the names in its body, and whether it compares with an oracle."""

    where: str
    names: set[str]
    oracle: bool


def names_in(tree: ast.AST) -> set[str]:
    """Identifiers and attributes that a piece of code has."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return found | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def tests_in(folder: Path) -> list[Test]:
    """Every test function of a folder; what it calls in its own file counts as its own."""
    found = []
    for path in sorted(folder.rglob("test_*.py")):
        functions = {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        names = {name: names_in(node) for name, node in functions.items()}
        for name in functions:
            if name.startswith("test_"):
                own = names[name].union(*(names[called] for called in names[name] & set(functions)))
                where = f"{path.relative_to(folder.parent).as_posix()}::{name}"
                found.append(Test(where, own, any("oracle" in word or "by_hand" in word for word in own)))
    return found


def tests_of(function: str, tests: list[Test]) -> list[Test]:
    """The tests that call a function: first those named after it, those of its class, those with an oracle, the shortest."""
    *_, owner, name = function.split(".")
    stem = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", owner).lower()
    wanted = {name} if owner.islower() else {name, owner}
    calling = [test for test in tests if wanted <= test.names] or [test for test in tests if name in test.names]
    words = [word for word in name.split("_") if len(word) > 3] or [name]

    def rank(test: Test) -> tuple:
        title = test.where.partition("::")[2]
        return (
            not all(word in title for word in words),
            stem not in test.where,
            not test.oracle,
            len(test.names),
            test.where,
        )

    return sorted(calling, key=rank)


def link(function: str) -> str:
    """The last two parts of a function's name as a link to its page."""
    return f"{{py:obj}}`{'.'.join(function.split('.')[-2:])} <probtx_pyro.{function}>`"


def sentence(test: Test) -> str:
    """The name of a test, which is a sentence, and its file."""
    file, _, name = test.where.partition("::")
    return f"{name.removeprefix('test_').replace('_', ' ')} (`{Path(file).name}`)"


def functions_of(cell: str) -> list[str]:
    """The names in a cell; ``.model`` is a method of the class before it."""
    found: list[str] = []
    for name in re.findall(r"`([\w.]+)`", cell):
        found.append(found[-1].rpartition(".")[0] + name if name.startswith(".") else name)
    return found


def sources(readme: str, tests: list[Test]) -> str:
    """The table of the sources' equations."""
    table = re.search(r"^\| equation \|.*?\n\| ---.*?\n(.*?)\n\n", readme, flags=re.M | re.S)
    if table is None:
        raise ValueError("README.md has no table of equations")
    rows = "| equation | what it is | function | tests that call it |\n| --- | --- | --- | --- |\n"
    for row in table[1].splitlines():
        equation, meaning, cell = (part.strip() for part in row.strip("|").split("|"))
        functions = functions_of(cell)
        calling = [tests_of(function, tests) for function in functions]
        for function, found in zip(functions, calling, strict=True):
            if not found and cell != "`models.laplace_log_prior` and its like":
                raise ValueError(f"no test calls {function}, which README.md names for {equation}")
        first = calling[0]
        shown = "<br>".join(map(sentence, first[:SHOWN]))
        more = f"<br>and {len(first) - SHOWN} more" if len(first) > SHOWN else ""
        rows += f"| {equation} | {meaning} | {'<br>'.join(map(link, functions))} | {shown}{more} |\n"
    return rows


def formulas(mathematics: str, names: str) -> str:
    """The table of the numbered formulas of docs/mathematics.md: their section and the functions named under it."""
    rows = "| formulas | section | functions |\n| --- | --- | --- |\n"
    for title, text in re.findall(r"^##+ (\d.*?)\n(.*?)(?=^##|\Z)", mathematics, flags=re.M | re.S):
        tags = re.findall(r"\\tag\{([\d.]+)\}", text)
        code = re.search(r"^\*Code:\*(.*?)(?:\n\n|\Z)", text, flags=re.M | re.S)
        if tags and code:
            functions = [
                name
                for name in dict.fromkeys(functions_of(code[1]))
                if f"probtx_pyro.{name}" in names or name.count(".") == 2
            ]
            numbers = ", ".join(f"({tag})" for tag in tags)
            rows += f"| {numbers} | [{title}](docs/mathematics.md#{slugify(title)}) | {'<br>'.join(map(link, functions))} |\n"
    return rows


def page(readme: str, mathematics: str, folder: Path, reference: dict[str, str]) -> str:
    """The page, from the texts of the README and of docs/mathematics.md, the folder of tests and the pages of the reference."""
    sources_text = re.search(r"^PT is Movellan.*?(?=\n\n\|)", readme, flags=re.M | re.S)
    if sources_text is None:
        raise ValueError("README.md does not say what PT, MGK, CRF, EF and KM are")
    names = "\n".join(reference.values())
    return (
        "# Equation index\n\nFrom an equation to the function that computes it, and to tests that call the function, those named after it first. "
        "The page is generated from the README, from [the mathematics](docs/mathematics.md) and from the tests.\n\n"
        f"## Equations of the sources\n\n{sources_text[0]}\n\n{sources(readme, tests_in(folder))}\n"
        f"## Formulas of this documentation\n\n{formulas(mathematics, names)}"
    )
