"""Verdicts: intervals that cover what they say, words that follow from them, items that add up."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from benchmarks import verdicts
from benchmarks.task_runs import spans
from benchmarks.verdicts import Gains, Items, gains, holm, jackknife, rise, still_rose, verdict


def test_an_interval_of_seeds_alone_is_student_s():
    """Against SciPy's one-sample t test."""
    by_seed = (0.3, 1.1, 0.8, -0.2, 0.9)
    found = verdict(Gains(by_seed))
    theirs = stats.ttest_1samp(by_seed, 0.0)
    low, high = theirs.confidence_interval(0.95)
    assert (found.low, found.high, found.p) == pytest.approx((low, high, theirs.pvalue), rel=1e-9)


def simulated(draw, seeds, items, run, item, both):
    """Gains of a first row over a second that is no better: each seed moves a row, each item is easier for one of them, and what
    is left is the chance of one answer.
    """
    easier = item * draw.standard_normal(items)
    rows = []
    for side in (0.5, -0.5):
        chance = draw.standard_normal((seeds, items)) * both + run * draw.standard_normal((seeds, 1))
        rows.append(
            {s: Items("share", np.stack([side * easier + chance[s], np.ones(items)], -1)) for s in range(seeds)}
        )
    figures = [{s: float(verdicts.share(kept.each.sum(0))) for s, kept in row.items()} for row in rows]
    return gains(*figures, rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "item", "both"),
    [(0.02, 1.0, 1.0), (0.2, 1.0, 0.5), (0.0, 0.5, 1.0)],
    ids=["items decide", "both", "chance of an answer"],
)
def test_an_interval_covers_another_draw_of_seeds_and_items(run, item, both):
    """No difference: of 300 intervals so many cover zero that 5 % misses is not refuted (binomial, one in a thousand)."""
    draw, trials = np.random.default_rng(0), 300
    misses = sum(verdict(simulated(draw, 4, 150, run, item, both)).word != "open" for _ in range(trials))
    assert misses <= stats.binom.ppf(0.999, trials, 0.05)
    alone = np.random.default_rng(0)
    without = sum(verdict(simulated(alone, 4, 150, run, item, both)._replace(item_variance=None)).word != "open" for _ in range(trials))  # fmt: skip
    if item == 1.0 and run == 0.02:  # and seeds alone do not: the same items are in all of them
        assert without > stats.binom.ppf(0.999, trials, 0.05)


@pytest.mark.slow
def test_an_interval_finds_a_difference_as_often_as_a_t_test():
    """Where seeds decide, the words are those of the t test but for the jackknife's share: no loss of more than a tenth."""
    draw, found, theirs = np.random.default_rng(1), 0, 0
    for _ in range(300):
        of = simulated(draw, 6, 400, 0.5, 0.1, 0.5)
        moved = of._replace(by_seed=tuple(x + 100.0 for x in of.by_seed))
        found += verdict(moved).word == "holds"
        theirs += stats.ttest_1samp(moved.by_seed, 0.0).pvalue < 0.05
    assert 0.9 * theirs <= found <= theirs and theirs > 100


@pytest.mark.parametrize("figure", verdicts.FIGURES)
def test_the_jackknife_is_a_loop_that_leaves_items_out(figure):
    draw, columns = np.random.default_rng(2), {"mean": 2, "share": 2, "f1": 3, "perplexity": 2, "bleu": 10}[figure]
    rows = []
    for _ in range(4):
        each = np.sort(draw.integers(0, 9, (7, columns)), -1)  # as many are right as there are, at most
        if figure == "bleu":
            each = np.concatenate([draw.integers(4, 9, (7, 2)), each[:, :4], each[:, 4:8] + 9], -1)
        rows.append(Items(figure, each + (figure != "bleu")))
    first, second = rows[:2], rows[2:]
    without = []
    for i in range(7):
        kept = [np.delete(row.each, i, 0).sum(0).astype(float) for row in rows]
        a, b, c, d = (float(verdicts.FIGURES[figure](x)) for x in kept)
        without.append((a - c + b - d) / 2)
    expected = 6 / 7 * sum((x - sum(without) / 7) ** 2 for x in without)
    assert jackknife(first, second) == pytest.approx(expected, rel=1e-9) and expected > 0


def test_items_come_back_from_a_file_and_figures_are_those_of_their_sums():
    each = np.array([[3, 4], [1, 2]], np.uint16)
    back = Items.unpacked(json.loads(json.dumps(Items("share", each).packed())))
    assert back.figure == "share" and back.each.dtype == np.uint16 and (back.each == each).all()
    assert verdicts.share(each.sum(0)) == pytest.approx(400 / 6)
    assert verdicts.f1(np.array([2.0, 4.0, 6.0])) == 40.0 and verdicts.f1(np.zeros(3)) == 0.0
    assert verdicts.perplexity(np.array([math.log(8.0), 3.0])) == pytest.approx(2.0)


def test_gains_are_paired_by_seed_and_need_all_items():
    items = {s: Items("share", np.array([[s, 2.0], [1.0, 2.0]])) for s in range(3)}
    first, second = {0: 5.0, 1: 7.0, 2: 6.0}, {2: 7.0, 1: 9.0, 0: 6.0, 3: 0.0}
    assert gains(first, second, lower=True) == Gains((1.0, 2.0, 1.0))
    assert gains(first, second, [items, items]).item_variance == 0.0
    assert gains(first, second, [items, {0: items[0]}]) == Gains((-1.0, -2.0, -1.0))


@pytest.mark.parametrize(
    ("by_seed", "rose", "word", "more"),
    [
        ((), (False, False), "not run yet", ""),
        ((1.0,), (False, False), "open", "3 seeds"),
        ((1.0, 1.1, 0.9), (False, False), "holds", ""),
        ((-1.0, -1.1, -0.9), (False, False), "does not hold", ""),
        ((-1.0, -1.1, -0.9), (True, False), "open", "longer runs: the row behind still rose"),
        ((-1.0, -1.1, -0.9), (False, True), "does not hold", ""),
        ((1.0, 1.1, 0.9), (False, True), "open", "longer runs: the row behind still rose"),
        ((1.0, 2.0, 0.1), (False, False), "open", "6 seeds"),
        ((1.0, -1.0, 0.1), (True, True), "open", "not worth it: more than 50 seeds"),
        ((0.0, 0.0, 0.0), (False, False), "open", "the same in every seed"),
    ],
)
def test_words(by_seed, rose, word, more):
    found = verdict(Gains(by_seed), rose)
    assert (found.word, found.more) == (word, more)


def test_a_small_test_part_is_decided_by_no_number_of_seeds():
    assert verdict(Gains((1.0, 1.1, 0.9), item_variance=1.0)).more == "not worth it: the test part is too small"
    with pytest.raises(ValueError, match="is one run counted twice"):
        verdict(Gains((1.0, 1.0)))


def test_seeds_that_would_decide_do():
    """The number is the least at which as large a mean with as large a spread is decided."""
    by_seed = (1.0, 2.0, 0.1)
    mean, sd = np.mean(by_seed), np.std(by_seed, ddof=1)
    for n, word in ((5, "open"), (6, "holds")):
        spread = np.linspace(-1, 1, n)
        same = mean + spread * sd / np.std(spread, ddof=1)
        assert verdict(Gains(tuple(same))).word == word


def test_holm_is_that_of_the_definition():
    """By hand, and against a loop that rejects step by step."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, math.nan, 0.001])[::2] == pytest.approx([0.9, 0.002]) and math.isnan(holm([math.nan])[0])
    draw = np.random.default_rng(3)
    for _ in range(50):
        p = draw.random(6) ** 4
        rejected = set()
        for rank, i in enumerate(np.argsort(p)):
            if p[i] > 0.05 / (6 - rank):
                break
            rejected.add(int(i))
        assert {i for i, x in enumerate(holm(list(p))) if x <= 0.05} == rejected


def test_a_score_that_rises_is_seen():
    up, flat = [[i, 0.5 + 0.01 * i] for i in range(1, 11)], [[i, 0.5] for i in range(1, 11)]
    assert rise(up) == pytest.approx(0.6 / 0.58 - 1) and rise(flat) == 0.0
    assert rise([[8, 110.0], [10, 100.0]], lower=True) == pytest.approx(1 / 11)
    assert rise([[4, 0.0], [5, 0.1]]) == math.inf
    assert still_rose([{"validation": up}, {"validation": flat}])[1] and not still_rose([{"validation": flat}])[1]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-a I-a O B-b", {("a", 1, 3), ("b", 4, 5)}),
        ("B-a B-a I-b", {("a", 0, 1), ("a", 1, 2), ("b", 2, 3)}),
        ("I-a I-a O I-a", {("a", 0, 2), ("a", 3, 4)}),
        ("O O", set()),
    ],
)
def test_spans_of_tags(tags, expected):
    assert spans(tags.split()) == expected
