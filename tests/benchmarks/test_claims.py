"""Every claim of README and of the how-tos' first paragraphs has its row, and each row its claim and its file."""

import pytest

from benchmarks import claims, reports
from benchmarks.claims import NO_CLAIMS, STATEMENTS, Cell, claims_in, figure, lines, pages, paragraphs
from benchmarks.timing import RESULTS


def without_a_row(found):
    known = [(of.page, of.words) for of in STATEMENTS] + list(NO_CLAIMS)
    return [(page, x) for page, each in found.items() for x in each if not any(page == p and words in x for p, words in known)]  # fmt: skip


def test_a_claim_has_a_row():
    assert without_a_row(pages()) == []


def test_a_claim_without_a_row_is_seen():
    assert without_a_row({"README.md": ["It is 3.5 times as fast."]}) == [("README.md", "It is 3.5 times as fast.")]


def test_no_row_outlives_its_sentence():
    found = pages()
    for page, words in NO_CLAIMS:
        assert sum(words in x for x in found[page]) == 1, words
    assert lines()  # raises for a claim that its page does not make


@pytest.mark.parametrize("of", STATEMENTS, ids=lambda of: of.words)
def test_a_claim_names_what_there_is(of):
    """Figures and a file of results, or a test."""
    if of.cells:
        assert all((RESULTS / name).exists() for name in of.file.split(", "))
    else:
        assert of.file.startswith("tests/") and (claims.ROOT / of.file).is_file()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It opens a page. It is faster than `x`.", ["It is faster than `x`."]),
        ("Of 100 pictures, all come back; nothing else.", ["Of 100 pictures, all come back;"]),
        ("With Python 3.11, of 2022, [arXiv 2010.15583](x), `a 5`, section 2.4 and UTF-8.", []),
        ("A cat sat.\n\n```\n5 better\n```\n\n| 5 | better |\n\n# 5 better\n", []),
    ],
)
def test_what_is_a_claim(text, expected):
    assert [x for part in paragraphs(text) for x in claims_in(part)] == expected


def test_a_figure_is_a_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "REPORTS", tmp_path)
    table = "| a | b | c |\n| --- | --- | --- |\n| x | y | 1 |\n| x | z | 2 |\n\n| d | e |\n| --- | --- |\n| u | 3 |"
    (tmp_path / "page.md").write_text(f"<!-- table: t -->\n{table}\n{reports.END}\n")
    (tmp_path / "head.md").write_text(
        f"<!-- table: t -->\n|  | b | c |\n| --- | --- | --- |\n| x | 1 \\| 2 |  |\n{reports.END}\n"
    )
    assert figure(Cell("head.md", "t", ("x",), "b")) == "1 \\| 2" and figure(Cell("head.md", "t", ("x",), "c")) == ""
    assert figure(Cell("page.md", "t", ("x", "z"), "c")) == "2" and figure(Cell("page.md", "t", ("u",), "e")) == "3"
    for cell in (
        Cell("page.md", "t", ("x",), "c"),
        Cell("page.md", "t", ("x", "z"), "e"),
        Cell("page.md", "s", ("u",), "e"),
    ):
        with pytest.raises(ValueError, match="say which table, row and column"):
            figure(cell)


KEPT = {
    "no adaptation": "the model",
    "100 queries": "layer 20 adapted, priors worth 100 queries",
    "16 queries": "layer 20 adapted, priors worth 16 queries",
    "1 query": "layer 20 adapted, priors worth 1 queries",
}


@pytest.mark.parametrize("label", KEPT)
def test_the_cost_of_adapting_a_trained_layer_is_the_one_that_was_kept(label):
    loss, more = (
        figure(Cell("real_transformers.md", "loss", (KEPT[label],), x)) for x in ("nats a token", "more than the model")
    )
    page = (claims.ROOT / "docs/howto/adapt_inside_a_layer.md").read_text()
    assert f"| {label} | {loss} | {more} |" in page
