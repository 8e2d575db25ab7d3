"""What the site makes of docstrings, graphs and the README's table."""

import importlib
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="sphinx is missing: pip install -e '.[site]'")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def module():
    """Import a file of the folder site, which is no package."""
    sys.path.insert(0, str(ROOT / "site"))
    yield importlib.import_module
    sys.path.remove(str(ROOT / "site"))


@pytest.mark.parametrize(
    ("line", "escaped"),
    [
        ("shape (*batch, Q)", r"shape (\*batch, Q)"),
        ("the largest |z| of ``|z|``", r"the largest \|z\| of ``|z|``"),
        ("*Probabilistic Transformers*, 2020", "*Probabilistic Transformers*, 2020"),
        ("n_features_in_ is a number", r"n_features_in\_ is a number"),
        ("see `nuts` and ``x_``", "see `nuts` and ``x_``"),
    ],
)
def test_signs_of_formulas_are_no_markup(module, line, escaped):
    assert module("docstrings").escaped(line) == escaped


def test_fields_become_definitions(module):
    lines = ["A result.", "", "mean, sd: of each,", "    over the draws.", "kind: a word", "Afterwards: more."]
    assert module("docstrings").with_fields(lines, {"mean", "sd", "kind"}) == [
        *("A result.", "", "", "``mean``, ``sd``", "    of each,", "    over the draws."),
        *("", "``kind``", "    a word", "", "Afterwards: more."),
    ]


def test_fields_that_run_on_in_a_paragraph_become_definitions(module):
    lines = ["A result.", "", "mean: (...). sd: of it, where", "each sd: counts; kind: a word.", "", "Then more."]
    assert module("docstrings").with_fields(lines, {"mean", "sd", "kind"}) == [
        *("A result.", "", "", "``mean``", "    (...).", "", "``sd``", "    of it, where", "    each sd: counts;"),
        *("", "``kind``", "    a word.", "", "", "Then more."),
    ]


def test_an_emphasis_may_run_over_the_end_of_a_line(module):
    lines = ["  see *A long", "  title* of (*batch, Q)", "  and (*batch, Q)"]
    assert module("docstrings").with_emphasis(lines) == ["  see *A long*", "  *title* of (*batch, Q)", lines[2]]


def test_signatures_have_no_addresses(module):
    given = "(x: dict = <factory>, f: Callable = <function softmax at 0x7f3a>)"
    assert module("docstrings").signature(None, "class", "C", None, {}, given, "int") == (
        "(x: dict = ..., f: Callable = softmax)",
        "int",
    )


def test_tables_and_doctests_are_left_alone(module):
    lines = [
        "=== ===",
        "|a| *b*",
        "=== ===",
        "",
        "prose",
        ">>> 2 * 3 | 4",
        "6",
        "",
        "literal::",
        "",
        "  |x|",
        "",
        "prose",
    ]
    plain = [3, 4, 7, 8, 9, 11, 12]
    found = [number for number, prose in enumerate(module("docstrings").prose(lines)) if prose]
    assert [number for number in found if lines[number]] == [number for number in plain if lines[number]]


def test_a_wide_cell_moves_the_next_column(module):
    lines = ["==== ====", "a    b", "==== ====", "long word", "==== ====", "after"]
    table = module("docstrings").with_tables(lines)
    assert table[3].split() == ["long", "word"]
    assert table[3].index("word") == table[0].index(" =") + 1 == table[1].index("b")
    assert table[-1] == "after"


def test_a_graph_has_what_leads_to_a_node_above_it(module):
    graph = module("graph")
    labels, edges = graph.parse('graph TD\n  a["one"] --> b["two"]\n  a --> c\n  b --> c["three"]\n')
    assert labels == {"a": "one", "b": "two", "c": "three"}
    assert edges == [("a", "b"), ("a", "c"), ("b", "c")]
    assert graph.layers(labels, edges) == [["a"], ["b"], ["c"]]
    assert "two needs one; three needs one; three needs two" in graph.svg(
        'graph TD\n  a["one"] --> b["two"]\n  a --> c["three"]\n  b --> c\n'
    )


def behind(svg):
    """Points of an edge that lie inside of a box: 21 of each curve, and the ends of the line after it."""
    number = r"(-?[\d.]+)"
    boxes = [
        [float(x) for x in box]
        for box in re.findall(rf'<rect x="{number}" y="{number}" width="{number}" height="{number}"', svg)
    ]
    found = []
    for edge in re.findall(r'class="edge"[^>]* d="([^"]+)"', svg):
        *curve, down = [
            float(x) for x in re.match(rf"M{8 * (number + '[ CV]?')}(?:V?{number})?$", edge).groups(None) if x
        ] + [None] * ("V" not in edge)
        ends = list(zip(curve[::2], curve[1::2], strict=True))
        steps = [i / 20 for i in range(21)]
        weights = [((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3) for t in steps]
        points = [
            tuple(sum(w * x for w, x in zip(row, axis, strict=True)) for axis in zip(*ends, strict=True))
            for row in weights
        ]
        points += [(ends[-1][0], ends[-1][1] + t * (down - ends[-1][1])) for t in steps] if down else []
        found += [
            (x, y)
            for x, y in points
            for left, top, wide, high in boxes
            if left < x < left + wide and top < y < top + high
        ]
    return found


SYLLABUS = (ROOT / "docs/course/syllabus.md").read_text()
GRAPH = re.search(r"^```mermaid\n(.*?)^```$", SYLLABUS, flags=re.M | re.S)[1]


@pytest.mark.parametrize("text", [GRAPH, "graph TD\n a --> b\n b --> c\n c --> d\n a --> d\n a --> c\n"])
def test_no_edge_of_a_graph_runs_behind_a_box(module, text):
    graph = module("graph")
    svg = graph.svg(text)
    assert svg.count('marker-end="url(#arrow)"') >= len({target for _, target in graph.parse(text)[1]})
    assert behind(svg) == []


def test_an_edge_behind_a_box_is_seen():
    box = '<rect x="0" y="50" width="20" height="20" rx="6"/>'
    assert behind(f'<path class="edge" d="M10 0C10 24 10 76 10 100"/>{box}')
    assert behind(f'<path class="edge" d="M10 0C10 8 10 8 10 10V90"/>{box}')


def test_boxes_of_a_graph_are_links_where_their_address_is_known(module):
    svg = module("graph").svg('graph TD\n  a["one"] --> b["two"]\n', {"a": "one.html"})
    assert re.findall(r'<a href="(.*?)">\n<rect .*\n<text .*>(.*)</text>\n</a>', svg) == [("one.html", "one")]
    page = module("build")._drawn(SYLLABUS, re.search("(?s)```mermaid\n(.*?)```", SYLLABUS))
    assert set(re.findall(r'<a href="(.*?)">', page)) == {
        f"../../notebooks/{path.stem}.html" for path in (ROOT / "notebooks").glob("*.ipynb")
    }


@pytest.mark.slow
def test_the_tests_of_a_function_call_it(module):
    equations = module("equations")
    tests = equations.tests_in(ROOT / "tests")
    found = equations.tests_of("models.GaussianMixture.map_outputs", tests)
    assert found and all("map_outputs" in test.names for test in found)
    assert equations.tests_of("models.GaussianMixture.no_such_method", tests) == []


def test_a_name_without_a_docstring_is_refused(module, tmp_path, monkeypatch):
    reference = module("reference")
    (tmp_path / "sample.py").write_text('__all__ = ["A", "B"]\nA = 1\n"""The first."""\nB = 2\n')
    monkeypatch.syspath_prepend(tmp_path)
    sample = importlib.import_module("sample")
    assert reference.remark(sample, "A") == "The first."
    with pytest.raises(ValueError, match="B is public; write a docstring"):
        reference.remark(sample, "B")
