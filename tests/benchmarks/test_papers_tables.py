"""The page of the papers' tables has the figures of the run files, and its verdicts those of `benchmarks.verdicts`."""

import json

import pytest

from benchmarks import papers_tables
from benchmarks.papers_tables import Row, Table, gain_of, lines, page, said, spread
from benchmarks.verdicts import Gains, verdict


def test_the_page_is_what_the_files_say():
    """A run that lands without ``python -m benchmarks.papers_tables`` fails here."""
    text = papers_tables.PAGE.read_text()
    assert page(text) == text
    with pytest.raises(ValueError, match="must have one place for the table 'language models'"):
        page(text.replace("<!-- table: language models -->", ""))


def test_a_verdict_has_the_word_of_the_source_or_our_own():
    holds, fails, undecided = (verdict(Gains(x)) for x in [(1.0, 1.1, 0.9), (-1.0, -1.1, -0.9), (1.0, -1.0, 0.2)])
    assert [said(x, True) for x in (holds, fails, undecided)] == ["reproduced", "not reproduced", "open"]
    assert [said(x, False) for x in (holds, fails, undecided)] == ["holds here", "does not hold here", "open"]


def test_a_printed_difference_has_the_digits_of_the_source():
    assert gain_of("34.21", "34.29", lower=True) == "+0.08"
    assert gain_of("96.44 ± 0.04", "96.29 ± 0.03", lower=False) == "+0.15"
    assert gain_of("-", "34.29", lower=True) == "-"
    assert spread([1.0, 3.0], 1, "+") == "+2.0 ± 1.4"  # the standard deviation has n - 1 below it


def test_a_table_of_runs(tmp_path, monkeypatch):
    """Runs in another order, one seed that only one row has, a row that rose, and one that is no run."""
    monkeypatch.setattr(papers_tables, "RESULTS", tmp_path)
    runs = [("a", 0, 5.0), ("a", 1, 7.0), ("a", 2, 6.0), ("b", 2, 7.0), ("b", 1, 9.0), ("b", 0, 6.0), ("b", 3, 0.0)]
    for name, seed, value in runs:
        run = {"settings": {"seed": seed}, "loss": value, "perplexity": 1.0, "parameters": 1000, "seconds": 60.0 + seed}
        run["validation"] = [[8, 10.0], [10, 9.0 if name == "a" else 9.95]]
        (tmp_path / f"{name}-{9 - seed}.json").write_text(json.dumps(run))
    rows = (Row("A", "a-*.json", ("1.0",)), Row("B", "b-*.json", ("1.5",)), Row("C", "b-*.json", fixed=True))
    table = Table(("theirs",), "ours", lambda run: run["loss"], True, rows, (("A", "B"), ("B", "A")))
    made = lines(table, {("A", "B"): 0.2})
    assert made[2] == "| A | 1.0 | 6.00 ± 1.00 | +10.0% **rose** | 1,000 | 61 | 3 |"
    assert made[3].endswith("| +0.5% | 1,000 | 62 | 4 |") and made[4] == "| C | - | 0.00 | - | - | - | - |"
    # 1, 2, 1: mean 4/3, standard deviation 1 / sqrt(3), t of 2 degrees 4.303, p of t = 4 by its closed form 1 - 4 / sqrt(18)
    assert made[-2] == "| A, better than B | +0.5 | +1.33 (-0.10 to +2.77) | 3 seeds | .057 | .20 | open: 4 seeds |"
    assert made[-1] == "| B, better than A | -0.5 | -1.33 (-2.77 to +0.10) | 3 seeds | .057 | - | open: 4 seeds |"
    assert lines(table._replace(short=True))[-1].endswith("| open: 4 seeds (short trials) |")


def test_claims_are_counted_and_corrected_together():
    claims = papers_tables.everything()
    flat = [claim for of in claims.values() for claim in of]
    counted = papers_tables.summary(claims)
    cells = [cell.strip() for cell in counted[-3].strip("| ").split("|")]
    words = [claim.verdict.word for claim in flat]
    assert cells[1:5] == [
        str(x) for x in (len(flat), *(words.count(word) for word in ("holds", "does not hold", "open")))
    ]
    least = min(claim.verdict.p for claim in flat if claim.verdict.p == claim.verdict.p)
    known = sum(claim.verdict.p == claim.verdict.p for claim in flat)
    corrected = papers_tables.corrected_p(claims)
    assert min(p for of in corrected.values() for p in of.values() if p == p) == pytest.approx(least * known)
