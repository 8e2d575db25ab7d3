"""Links, anchors, citations, names and formulas of the pages hold; and each checker sees a mistake."""

import ast
import importlib
import io
import json
import re
import tokenize
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MATHEMATICS = (DOCS / "mathematics.md").read_text()
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "contrib/README")),
    *sorted(DOCS.rglob("*.md")),
]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SOURCES = [
    path
    for folder in ("probtx_pyro", "contrib", "tests", "benchmarks", "docs", "notebooks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path != Path(__file__)  # it holds the mistakes that the checkers must see
]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef
FRAGMENT = re.compile(r"(?:What|Whether|Where|How|Of|By|In|From|To|For|With|As|Like) ")
PACKAGES = r"models|inference|ops|nn|results(?!\.json)|inspection|plots|metrics|train"

# a number such as 2.5 after "mathematics" or "equation", or in brackets, is a section or equation of a numbered document;
# PT has no numbered sections
NUMBERED = re.compile(
    r"\bmathematics\b(?!\.md)[^.\n]{0,20}?\b[1-9]\.\d{1,2}\b|\b[Ee]quations? \(?[1-9]\.\d|\([1-9]\.[1-9]\d?[),]"
    r"|\bPT section \d"
)


def name_of(path):
    return str(path.relative_to(ROOT))


def prose(path):
    """Markdown of a page, or of a notebook's cells, without fenced code."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def links(text):
    """Relative targets of links and pictures."""
    found = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`|^\$\$.*?\$\$", "", text, flags=re.M | re.S))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(text):
    """The anchors that GitHub gives the headings of a page."""
    found = []
    for heading in re.findall(r"^#{1,6} +(.+?) *$", text, flags=re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.append(slug if slug not in found else f"{slug}-{found.count(slug)}")
    return found


def broken(path, text):
    """Relative links of a page that lead nowhere, or out of the repository."""
    wrong = []
    for target in links(text):
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if not there.exists() or not there.is_relative_to(ROOT) or (anchor and anchor not in anchors(prose(there))):
            wrong.append(target)
    return wrong


def remarks(source):
    """Docstrings and comments of a source, those of neighbouring lines together."""
    lines, found = [], []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            lines.append((token.start[0], token.string))
    for number, line in lines:
        found.append(f"{found.pop()}\n{line}" if found and (number - 1) in dict(lines) else line)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            found.append("\n".join(line for line in text.splitlines() if not line.lstrip().startswith((">>>", "..."))))
    return found


def outside(text):
    """Numbered citations of a document that is not named, or that docs/mathematics.md does not have."""
    sections = set(re.findall(r"^#+ (\d(?:\.\d+)?)\.? ", MATHEMATICS, flags=re.M))
    equations = set(re.findall(r"\\tag\{([\d.]+)\}", MATHEMATICS))
    if "docs/mathematics.md" not in text:
        return [found.group() for found in NUMBERED.finditer(text)]
    cited = re.findall(r"docs/mathematics\.md,\s+sections? (\d(?:\.\d+)?)", text)
    numbers = re.findall(r"\(([1-9]\.\d{1,2})\)", text)
    return [number for number in cited if number not in sections] + [x for x in numbers if x not in equations]


def absent(text):
    """Files that a text names from the root of the repository, and that are not there."""
    folders = "docs|tests|benchmarks|notebooks|contrib|probtx_pyro"
    named = re.findall(rf"(?<![\w/.])((?:{folders})/[\w./-]*\w\.(?:py|md|ipynb|json|png))\b", text)
    return [file for file in named if not (ROOT / file).exists()]


def fragments(source):
    """First lines of docstrings that begin with neither a verb nor a noun."""
    found = (ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED))
    return [text.partition("\n")[0] for text in found if text and FRAGMENT.match(text)]


def citations(source):
    """The numbered citations of `outside` in a source."""
    if not NUMBERED.search(source) and "docs/mathematics.md" not in source:
        return []
    return [cited for remark in remarks(source) for cited in outside(remark)]


def math(text):
    """Formulas of a page: ``$$...$$``, then ``$...$``."""
    text = re.sub(r"`[^`\n]*`", "", text)
    blocks = re.findall(r"\$\$(.*?)\$\$", text, flags=re.S)
    return blocks, re.findall(r"\$([^$]+)\$", re.sub(r"\$\$.*?\$\$", "", text, flags=re.S))


def unsafe(formula, inline):
    """What GitHub's Markdown would eat or read as something else before it sees the formula."""
    found = re.findall(r"\\[^A-Za-z]|[*|<>&]|\\operatorname|^(?:[-+#] |=)", formula, flags=re.M)
    pairs = [("{", "}"), (r"\\left\b", r"\\right\b")]
    if any(len(re.findall(opening, formula)) != len(re.findall(closing, formula)) for opening, closing in pairs):
        found.append("brackets")
    return found + (re.findall(r"[})\]]_", formula) if inline else [])


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=name_of)
def test_relative_links_and_anchors_resolve(path):
    assert broken(path, prose(path)) == []


def test_no_docstring_cites_a_document_outside_the_repository():
    wrong = {name_of(path): cited for path in SOURCES if (cited := citations(path.read_text()))}
    assert wrong == {}


def test_docstrings_begin_with_a_verb_or_a_noun():
    package = (path for path in SOURCES if path.relative_to(ROOT).parts[0] in ("probtx_pyro", "contrib"))
    assert {name_of(path): found for path in package if (found := fragments(path.read_text()))} == {}


@pytest.mark.parametrize(
    "path", [path for path in [*PAGES, *NOTEBOOKS] if path != DOCS / "mathematics.md"], ids=name_of
)
def test_no_page_cites_a_document_outside_the_repository(path):
    text = re.sub(r"\[[^\]]*\]\([^)]*mathematics\.md[^)]*\)", "", prose(path))
    assert re.findall(r"\bmathematics\b(?!\.md)[^.\n]{0,20}?\b[1-9]\.\d{1,2}\b", text) == []


def test_files_that_are_named_exist():
    """Paths from the root of the repository, as a reader would open them."""
    wrong = {name_of(path): gone for path in [*PAGES, *SOURCES] if (gone := absent(path.read_text()))}
    assert wrong == {}


@pytest.mark.parametrize("path", [DOCS / "mathematics.md", *sorted((DOCS / "howto").glob("*.md"))], ids=name_of)
def test_names_of_the_library_exist(path):
    missing = []
    for package, rest in re.findall(rf"`({PACKAGES})\.([\w.]*\w)", prose(path)):
        found = importlib.import_module(f"probtx_pyro.{package}")
        for name in rest.split("."):
            found = getattr(found, name, None) or getattr(found, "__annotations__", {}).get(name)
        if found is None:
            missing.append(f"{package}.{rest}")
    assert missing == []


def test_numbers_of_equations_are_unique_and_cited_ones_exist():
    tags = re.findall(r"\\tag\{([\d.]+)\}", MATHEMATICS)
    assert len(tags) == len(set(tags)) > 40
    assert set(re.findall(r"\((\d\.\d{1,2})\)", re.sub(r"\$\$.*?\$\$", "", MATHEMATICS, flags=re.S))) <= set(tags)


def test_equations_stand_in_the_section_of_their_number():
    place = None
    for section, tag in re.findall(r"^#+ (\d)|\\tag\{(\d)", MATHEMATICS, flags=re.M):
        place = section or place
        assert not tag or tag == place


@pytest.mark.parametrize("path", [path for path in PAGES if "$$" in path.read_text()], ids=name_of)
def test_formulas_survive_markdown(path):
    blocks, inline = math(prose(path))
    assert blocks and inline
    wrong = {formula: unsafe(formula, False) for formula in blocks} | {
        formula: unsafe(formula, True) for formula in inline
    }
    assert {formula: found for formula, found in wrong.items() if found} == {}


def test_the_map_of_the_docs_has_every_page():
    mapped = {(DOCS / target.partition("#")[0]).resolve() for target in links((DOCS / "index.md").read_text())}
    assert {name_of(path) for path in DOCS.rglob("*.md") if path.name != "index.md"} - {
        name_of(path) for path in mapped if path.is_relative_to(ROOT)
    } == set()


def test_one_version_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[1] == version


def test_pages_show_the_calls_that_are():
    """Words of calls that are gone; with a page of reports that tells of them."""
    gone = r"MixturePriors|by_gibbs|by_nuts|by_variational|\bFORMULATIONS\b|IsotropicMixture|fit\.mixture\b|nn\.log_prior\b"
    told = {"docs/reports/open_house.md"}
    assert {name_of(path) for path in PAGES if re.search(gone, path.read_text())} == told


@pytest.mark.parametrize("path", sorted((DOCS / "reports").glob("*.md")), ids=name_of)
def test_a_report_begins_with_what_when_and_where(path):
    start = path.read_text().split("\n## ")[0]
    assert re.match(r"# Report: .+\n\nWhat this page measures: ", start)
    assert re.search(r"^- Dates?: .*20\d\d", start, flags=re.M) and re.search(r"^- Machines?: ", start, flags=re.M)


def test_the_checkers_see_mistakes():
    page = DOCS / "index.md"
    assert broken(page, "[a](howto/none.md) [b](errata.md#none) [c](errata.md#errata) [d](https://x.org) [e](../../x)") == [
        "howto/none.md", "errata.md#none", "../../x",
    ]  # fmt: skip
    assert anchors("# A `b` (c), d-e\n## Twice\n## Twice\n") == ["a-b-c-d-e", "twice", "twice-1"]
    assert remarks('"""One."""\n# two (2.5, PT 38)\n# three\nx = 1  # four\n') == [
        "# two (2.5, PT 38)\n# three\n# four",
        "One.",
    ]
    assert fragments('"""A page."""\ndef f():\n    """Whether it is.\n\n    So."""\n') == ["Whether it is."]
    for text in (
        "mathematics 5.2",
        "the mathematics, 2.4",
        "equation 2.1, the log density",
        "(2.5, PT 38)",
        "Equation (2.1)",
    ):
        assert outside(text)
    assert outside("docs/mathematics.md, section 9.9, (2.99)") == ["9.9", "2.99"]
    assert not outside("docs/mathematics.md, section 2.4, (2.12)") and not outside("PT eq. 29; takes 2.5 s (0.1 s)")
    assert absent("see `tests/none.py`, docs/index.md and /tmp/tests/none.py") == ["tests/none.py"]
    for formula in (r"a \, b", "a < b", "x^{2}_j", r"\frac{1}{2", r"\left( x", "a\n+ b"):
        assert unsafe(formula, inline=True)
    assert not unsafe(r"\frac{1}{2} w_{ij} \mid x \leftarrow y", inline=True)
