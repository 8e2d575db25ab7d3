"""Tables of the reports have the figures of the files, and a table without a file says so."""

import re

import pytest

from benchmarks import reports
from benchmarks.report_tables import MAKERS

PAGES = sorted(reports.REPORTS.glob("*.md"))
MARKED = re.compile(r"<!-- table: (.+?) -->.*?" + re.escape(reports.END), re.DOTALL)
PAPERS = "the_papers_tables.md"  # `test_papers_tables` holds it to the files
ELSEWHERE = {"what_the_view_buys.md": 1}  # the table of unseen classes, whose benchmark is being changed


@pytest.mark.parametrize("place", range(len(MAKERS)), ids=lambda i: f"{MAKERS[i][0]}-{i}")
def test_tables_of_reports_are_what_the_files_say(place):
    """A result that lands without ``python -m benchmarks.reports`` fails here."""
    report, make = MAKERS[place]
    text = (reports.REPORTS / report).read_text()
    for name, lines in make().items():
        assert reports.filled(text, name, lines) == text, name


def test_every_table_that_is_marked_is_made():
    made = {(report, name) for report, make in MAKERS for name in make()}
    marked = {(page.name, name) for page in PAGES if page.name != PAPERS for name in MARKED.findall(page.read_text())}
    assert made == marked


def unmarked(text: str) -> list[str]:
    """Heads of the tables of figures that no command writes, and that do not say so in the paragraph above them."""
    paragraphs = [x.strip() for x in re.split(r"\n\s*\n", MARKED.sub("", text)) if x.strip()]
    found = []
    for above, table in zip(["", *paragraphs], paragraphs, strict=False):
        figures = re.search(r"\| *[-+*±~]*\.?\d", table.partition("\n")[2])
        if table.startswith("|") and figures and "trial, not kept" not in above.lower():
            found.append(table.partition("\n")[0])
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_table_of_figures_is_written_by_a_command_or_says_that_it_is_not(page):
    assert len(unmarked(page.read_text())) == ELSEWHERE.get(page.name, 0), unmarked(page.read_text())


def test_the_check_sees_a_table_that_is_typed():
    table = "| a | b |\n| --- | --- |\n| x | **.5** |"
    assert unmarked(f"Text.\n\n{table}\n") == ["| a | b |"]
    assert unmarked(f"*Trial, not kept: by hand.*\n\n{table}\n") == []
    assert unmarked(f"<!-- table: a -->\n{table}\n{reports.END}\n") == []
    assert unmarked("| a |\n| --- |\n| words alone |") == []


def test_short_numbers():
    assert [reports.short(x, 2, sign) for x, sign in [(0.944, ""), (-0.5, "+"), (0.5, "+"), (10.25, "")]] == [".94", "-.50", "+.50", "10.25"]  # fmt: skip
    assert reports.short_spread([0.5, 0.7], 1) == ".6 ± .1"
    assert reports.short_spread([0.5]) == ".500"


def test_a_report_has_one_place_for_a_table():
    text = f"<!-- table: a -->\nold\n{reports.END}"
    assert reports.filled(text, "a", ["new"]) == f"<!-- table: a -->\nnew\n{reports.END}"
    with pytest.raises(ValueError, match="must have one place for the table 'b'"):
        reports.filled(text, "b", ["new"])
