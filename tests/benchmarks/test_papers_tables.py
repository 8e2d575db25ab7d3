"""The page of the papers' tables has the figures of the run files, and its verdicts follow the rule that it states."""

import json

import pytest

from benchmarks import (
    efficiency,
    language_modelling,
    long_range,
    memory,
    papers_tables,
    redundancy,
    reports,
    statements,
    tasks,
    translation,
)
from benchmarks.papers_tables import Row, Table, gain_of, lines, page, spread, verdict


def test_the_page_is_what_the_files_say():
    """A run that lands without ``python -m benchmarks.papers_tables`` fails here."""
    text = papers_tables.PAGE.read_text()
    assert page(text) == text
    with pytest.raises(ValueError, match="must have one place for the table 'language models'"):
        page(text.replace("<!-- table: language models -->", ""))


@pytest.mark.parametrize(
    ("gains", "says"),
    [([], "not run yet"), ([1.0, 1.0], "open"), ([1.0, 2.0, 0.1], "reproduced"), ([1.0, 2.0, -0.1], "open"), ([-1.0, -2.0, -0.1], "not reproduced"), ([0.0, 1.0, 1.0], "open")],
)  # fmt: skip
def test_a_verdict_needs_three_seeds_that_agree(gains, says):
    assert verdict(gains) == says
    own = {"reproduced": "holds here", "not reproduced": "does not hold here"}
    assert verdict(gains, printed=False) == own.get(says, says)


def test_a_printed_difference_has_the_digits_of_the_source():
    assert gain_of("34.21", "34.29", lower=True) == "+0.08"
    assert gain_of("96.44 ± 0.04", "96.29 ± 0.03", lower=False) == "+0.15"
    assert gain_of("-", "34.29", lower=True) == "-"
    assert spread([1.0, 3.0], 1, "+") == "+2.0 ± 1.4"  # the standard deviation has n - 1 below it


def test_differences_are_paired_by_seed(tmp_path, monkeypatch):
    """Runs in another order, and one seed that only one row has."""
    monkeypatch.setattr(papers_tables, "RESULTS", tmp_path)
    for name, seed, value in [("a", 0, 5.0), ("a", 1, 7.0), ("a", 2, 6.0), ("b", 2, 7.0), ("b", 1, 9.0), ("b", 0, 6.0), ("b", 3, 0.0)]:  # fmt: skip
        (tmp_path / f"{name}-{9 - seed}.json").write_text(json.dumps({"settings": {"seed": seed}, "loss": value}))
    rows = (Row("A", "a-*.json", ("1.0",)), Row("B", "b-*.json", ("1.5",)))
    table = Table(("theirs",), "ours", lambda run: run["loss"], True, rows, (("A", "B"),))
    assert lines(table)[-1] == "| A, better than B | +0.5 | +1.33 ± 0.58 | 3 of 3 | reproduced |"
    assert lines(table)[2] == "| A | 1.0 | 6.00 ± 1.00 | 3 |"


def summary(name):
    return json.loads((papers_tables.RESULTS / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("report", "name", "made"),
    [
        ("language_models.md", "tinyshakespeare", lambda: language_modelling.printed(summary("language_modelling_tinyshakespeare")["rows"])),
        ("language_models.md", "wikitext2", lambda: language_modelling.printed(summary("language_modelling_wikitext2")["rows"])),
        ("performance.md", "width", lambda: efficiency.width_table(summary("efficiency_width_cpu")["rows"])),
        ("performance.md", "redundancy", lambda: redundancy.printed(redundancy.means(redundancy.runs("wikitext2")))),
        ("translation.md", "BLEU", lambda: translation.printed(translation.table([0, 1, 2]))),
        ("long_range.md", "accuracy", lambda: long_range.printed(summary("long_range_listops")["rows"], summary("long_range_listops")["baselines"])),
        ("long_range.md", "time and memory", lambda: long_range.speed_table(summary("long_range_speed")["rows"])),
        ("dependency_crf.md", "tasks", lambda: tasks.printed(tasks.table(list(tasks.TASKS), None))),
        *(("memory.md", name, lambda lines=lines: lines) for name, lines in memory.tables(summary("memory"))),
        ("dependency_crf.md", "steps", lambda: tasks.table_of_steps("masked sentences")),
        *(("statements_of_the_sources.md", name, made) for name, made in statements.MADE.items()),
    ],
)  # fmt: skip
def test_tables_of_reports_are_what_the_files_say(report, name, made):
    text = (reports.REPORTS / report).read_text()
    assert reports.filled(text, name, made()) == text
