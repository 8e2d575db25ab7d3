"""Tables of the reports have the figures of the files, and a table without a file says so."""

import re

import pytest

from benchmarks import reports
from benchmarks.report_tables import MAKERS

PAGES = sorted(reports.REPORTS.glob("*.md"))
MARKED = re.compile(r"<!-- table: (.+?) -->.*?" + re.escape(reports.END), re.DOTALL)
PAPERS = "the_papers_tables.md"  # `test_papers_tables` holds it to the files


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
    assert unmarked(page.read_text()) == []


def test_the_check_sees_a_table_that_is_typed():
    table = "| a | b |\n| --- | --- |\n| x | **.5** |"
    assert unmarked(f"Text.\n\n{table}\n") == ["| a | b |"]
    assert unmarked(f"*Trial, not kept: by hand.*\n\n{table}\n") == []
    assert unmarked(f"<!-- table: a -->\n{table}\n{reports.END}\n") == []
    assert unmarked("| a |\n| --- |\n| words alone |") == []


FIGURE = re.compile(r"(?<![\w.,])[-+]?\d*\.\d{2,}(?!\w|\.\d)")
NOT_KEPT = re.compile(r"trials?\b[^.]{0,30}\bnot\skept|in\sno\sfile", re.IGNORECASE)
IN_WORK = (PAPERS, "claims.md")  # pages of tables alone


def loose(text: str) -> list[str]:
    """Figures of two digits and more after the point, in prose, that no table of the page has, and that are not called trials.

    A paragraph or point that says "trial, not kept" is passed over, and one that begins with "Trials, not kept" with what follows it
    in its section. Numbers in code are settings.
    """
    known = [abs(float(x)) for line in text.split("\n") if line.startswith("|") for x in FIGURE.findall(line)]
    found = []
    for section in re.split(r"^#+ ", text, flags=re.MULTILINE)[2:]:
        for paragraph in re.split(r"\n\s*\n|\n(?=- |\d+\. )", section):
            if re.match(r"\W*trials?, not kept", paragraph, re.IGNORECASE):
                break
            if NOT_KEPT.search(paragraph) or paragraph.startswith(("|", "<!--")):
                continue
            for x in FIGURE.findall(re.sub(r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)|arXiv [\d.]+", "", paragraph)):
                digits = len(x.partition(".")[2])
                if not any(f"{abs(float(x)):.{digits}f}" == f"{y:.{digits}f}" for y in known):
                    found.append(x)
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in IN_WORK], ids=lambda page: page.stem)
def test_figures_in_prose_stand_in_a_table_of_the_page_or_are_called_trials(page):
    assert loose(page.read_text()) == []


def test_the_check_sees_a_loose_figure():
    page = "# Report\n\n## A\n\nIt gains {} points.\n\n| a |\n| --- |\n| .947 |\n"
    assert (
        loose(page.format(".95")) == loose(page.format("`0.02`")) == loose(page.format("(trial, not kept) .12")) == []
    )
    assert loose(page.format(".12")) == [".12"]
    assert loose(page.format("much (trial, not kept) in") + "\nIt lost .34.\n") == [".34"]
    assert loose(page.format("much") + "\nTrials, not kept:\n\n- .34\n- .56\n\n## B\n\n.78") == [".78"]


def test_short_numbers():
    assert [reports.short(x, 2, sign) for x, sign in [(0.944, ""), (-0.5, "+"), (0.5, "+"), (10.25, "")]] == [".94", "-.50", "+.50", "10.25"]  # fmt: skip
    assert reports.short_spread([0.5, 0.7], 1) == ".6 ± .1"
    assert reports.short_spread([0.5]) == ".500"


def test_a_report_has_one_place_for_a_table():
    text = f"<!-- table: a -->\nold\n{reports.END}"
    assert reports.filled(text, "a", ["new"]) == f"<!-- table: a -->\nnew\n{reports.END}"
    with pytest.raises(ValueError, match="must have one place for the table 'b'"):
        reports.filled(text, "b", ["new"])
