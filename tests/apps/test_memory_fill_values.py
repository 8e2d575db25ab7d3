"""Rows with values that stand for missing ones, numbers at any scale, and evidence that is no number: a memory says that it has not seen them."""

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from probtx_pyro.apps import MemoryClassifier
from probtx_pyro.apps.memory import _held_out, _learn
from probtx_pyro.models import GaussianMixture

SMALL, LARGE = (999.0, -9999.0), (1e20, -1e20, 1e38, 1e150, 1e200, -1e200, 1.7e308, -1.7e308)
UNITS = [(1, "scalar"), (1, "diagonal"), (1, "full"), (3, "diagonal"), ("all", "scalar"), ("all", "diagonal"), ("all", "full")]  # fmt: skip


def census(number, seed):
    """Rows on mixed scales: age, capital gain 0..99999, hours, a job of five, and whether married; and whether they earn much."""
    rng = np.random.default_rng(seed)
    rich = rng.random(number) < 0.24
    age = rng.normal(37 + 7 * rich, 12).clip(17, 90).round()
    gains = rng.random(number) < 0.04 + 0.17 * rich
    gain = np.where(gains, rng.lognormal(8 + 0.8 * rich, 1.0), 0).clip(0, 99999).round()
    hours = rng.normal(39 + 6 * rich, 11).clip(1, 99).round()
    job = np.eye(5)[rng.integers(0, 5, number)]
    married = np.eye(2)[(rng.random(number) < 0.34 + 0.5 * rich).astype(int)]
    return np.column_stack([age, gain, hours, job, married]), np.where(rich, ">50K", "<=50K")


def with_fills(row, fills):
    """A copy of the row for each fill value in each cell."""
    copies = np.tile(row, (len(fills) * len(row), 1))
    copies[np.arange(len(copies)), np.arange(len(copies)) % len(row)] = np.repeat(fills, len(row))
    return copies


@pytest.mark.parametrize(
    ("units", "metric", "dtype"), [(*x, np.float64) for x in UNITS] + [(*x, np.float32) for x in UNITS[1::2]]
)
def test_a_row_with_a_fill_value_is_rejected_and_answered_with_probabilities(units, metric, dtype):
    x, y = census(800 if units == "all" else 3000, 0)
    classifier = MemoryClassifier(units, metric=metric, cv=2, random_state=0).fit(x.astype(dtype), y)
    row = x[0]
    asked = with_fills(row, LARGE)  # in float64, which holds them all
    assert classifier.reject(asked).all() and classifier.reject(asked[-1:], 0.0).all()
    evidence = classifier.score_samples(asked)
    assert (evidence < classifier.threshold(0.01)).all()
    for rows in (asked, with_fills(row, SMALL)):
        probabilities = classifier.predict_proba(rows)
        assert np.isfinite(probabilities).all() and (probabilities >= 0).all()
        np.testing.assert_allclose(probabilities.sum(1), 1, rtol=8 * np.finfo(dtype).eps)
        assert (
            not np.isnan(classifier.score_samples(rows)).any()
            and not np.isnan(classifier.predict_log_proba(rows)).any()
        )
        assert set(classifier.predict(rows)) <= set(y)
    assert 0.9 < (~classifier.reject(census(500, 1)[0])).mean()  # and rows of the same kind are known


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("units", "metric"), [(1, "full"), (3, "scalar"), ("all", "diagonal")])
def test_where_no_unit_speaks_for_a_row_the_classes_have_their_prevalence(units, metric, dtype):
    x, y = census(300, 0)
    classifier = MemoryClassifier(units, metric=metric, cv=2, random_state=0).fit(x.astype(dtype), y)
    asked = with_fills(x[0], (1e200, -1.7e308, 1.7e308))
    shares = [float(Fraction(int((y == name).sum()), len(y))) for name in classifier.classes_]
    # each of 300 weights errs by the logarithm of 300 times eps, in the same direction at worst, and the sum by 300 eps
    np.testing.assert_allclose(classifier.predict_proba(asked), [shares] * len(asked), rtol=310 * np.finfo(dtype).eps)
    assert (classifier.score_samples(asked) == -np.inf).all()
    mixed = classifier.predict_proba(np.concatenate([x[:3], asked[:2], x[3:5]]))  # and the others have their own
    np.testing.assert_allclose(mixed[[0, 1, 2, 5, 6]], classifier.predict_proba(x[:5]), rtol=64 * np.finfo(dtype).eps)


@pytest.mark.slow
@pytest.mark.parametrize("units", [1, "all"])
def test_reasons_for_a_row_that_nothing_speaks_for_are_the_weights_of_the_units(units):
    x, y = census(60, 0)
    classifier = MemoryClassifier(units, metric="diagonal", cv=None, random_state=0).fit(x, y)
    unseen, other = classifier.explain(np.concatenate([with_fills(x[0], [1e200])[:1], x[:1]]), top=100)
    weights = classifier.posterior().samples["weights"].flatten(0, -2).mean(0)
    np.testing.assert_allclose(unseen.weights, weights[unseen.units], rtol=1e-12)
    assert (unseen.low <= unseen.weights).all() and (unseen.weights <= unseen.high).all()
    assert (np.diff(unseen.weights) <= 0).all() and np.isfinite(other.weights).all()
    np.testing.assert_array_equal(other.weights, classifier.explain(x[:1], top=100)[0].weights)


@functools.cache
def of_the_census():
    return MemoryClassifier(metric="diagonal", cv=2, random_state=0).fit(*census(400, 0))


@pytest.mark.parametrize("move", [None, "shift", "metric", ["shift", "scale", "keys"], "prevalence"])
@pytest.mark.parametrize("fill", [1e20, 1e200])
def test_rows_with_fill_values_move_nothing(move, fill):
    classifier = of_the_census()
    new = census(60, 1)[0] * 1.1
    spoilt = np.concatenate([new, with_fills(new[0], [fill])])
    with pytest.warns(
        UserWarning, match=r"10 of the rows, the first of them row 60, are far from all others and move nothing"
    ):
        moved = classifier.adapt(spoilt, move)
    expected = classifier.adapt(new, move)
    assert moved.moved_ == expected.moved_ and moved.temperature_ == expected.temperature_
    np.testing.assert_array_equal(moved.predict_proba(new), expected.predict_proba(new))
    with pytest.raises(ValueError, match="no row of X is like anything learned"):
        classifier.adapt(with_fills(new[0], [1e200, -1e200]), move)


def test_a_row_without_evidence_does_not_change_the_prevalence():
    (x, _), classifier = census(400, 0), of_the_census()
    row = with_fills(x[0], [1e200])[:1]
    with pytest.warns(UserWarning, match="100% of the points are unlike the training points"):
        found = classifier.prevalence(row, concentration=1.0, num_samples=50)
    np.testing.assert_allclose(found.estimate, 0.5, atol=4 * (1 / 12 / 10) ** 0.5)  # uniform, by 10 chains at least


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("units", [1, 2, "all"])
@pytest.mark.parametrize("fill", [1e20, -1e38, 1.7e308])
def test_a_fill_value_among_the_rows_to_learn_from_is_named(fill, units, dtype):
    x, y = census(200, 0)
    x[17, 2] = fill if dtype == np.float64 else max(min(fill, 3e38), -3e38)
    with pytest.raises(ValueError, match=r"X has -?\S+e\+\d+ in row 17, column 2, more than a million times as far"):
        MemoryClassifier(units, cv=2).fit(x.astype(dtype), y)
    learned = MemoryClassifier(units, cv=2).partial_fit(
        np.delete(x, 17, 0).astype(dtype), np.delete(y, 17), np.unique(y)
    )
    before = learned.memory_.keys.clone()
    with pytest.raises(ValueError, match=r"in row 1, column 2"):
        learned.partial_fit(x[16:18], y[16:18])
    assert torch.equal(learned.memory_.keys, before)


def test_a_column_is_named_as_in_the_table():
    import pandas as pd

    x, y = census(100, 0)
    table = pd.DataFrame(x, columns=[*"aghvwxyz", "alone", "married"])
    table.loc[5, "h"] = 1e20
    with pytest.raises(ValueError, match=r"X has 1e\+20 in row 5, column 'h'"):
        MemoryClassifier().fit(table, y)


@pytest.mark.parametrize("fill", SMALL)
@pytest.mark.parametrize("units", [1, "all"])
def test_a_fill_value_that_may_be_a_number_is_learned_from(fill, units):
    x, y = census(400, 0)
    sound = MemoryClassifier(units, metric="diagonal", cv=2, random_state=0).fit(x, y)
    x[17, 0] = fill
    classifier = MemoryClassifier(units, metric="diagonal", cv=2, random_state=0).fit(x, y)
    new, truth = census(400, 1)
    assert np.isfinite(classifier.predict_proba(new)).all() and np.isfinite(classifier.held_out_evidence_).all()
    assert abs(classifier.score(new, truth) - sound.score(new, truth)) < 0.1


@pytest.mark.parametrize("scale", [1e-140, 1e-60, 1e60, 1e140])
@pytest.mark.parametrize(("units", "metric"), [(1, "full"), (2, "diagonal"), ("all", "scalar")])
def test_the_unit_of_measure_changes_no_answer(units, metric, scale):
    x, y = census(100, 0)
    x[:, 1] /= 1000
    plain = MemoryClassifier(units, metric=metric, cv=2, random_state=0).fit(x, y)
    scaled = MemoryClassifier(units, metric=metric, cv=2, random_state=0).fit(x * scale, y)
    new = census(30, 1)[0] / [1, 1000, *[1] * 8]
    # k-means++ sees other roundings, and EM stops 1e-3 of a variance before its end
    np.testing.assert_allclose(scaled.predict_proba(new * scale), plain.predict_proba(new), atol=1e-6)
    evidence = plain.score_samples(new) - 10 * math.log(scale)
    np.testing.assert_allclose(scaled.score_samples(new * scale), evidence, atol=1e-5)


@pytest.mark.parametrize("units", [1, 2, "all"])
@pytest.mark.parametrize(("scale", "dtype"), [(1e160, float), (1e-170, float), (1e300, float), (1e20, np.float32), (1e-25, np.float32)])  # fmt: skip
def test_numbers_whose_squares_overflow_or_vanish_are_refused_as_that(units, scale, dtype):
    x, y = census(50, 0)
    with pytest.raises(
        ValueError, match=r"X varies by \S+, whose square float\d+ does not hold; .* or divide all by a number"
    ):
        MemoryClassifier(units, cv=2).fit((x * scale).astype(dtype), y)


def test_equal_rows_far_from_the_origin_are_refused_as_not_varying():
    for constant in (1e-300, 1.0, 1e160):
        with pytest.raises(ValueError, match="X does not vary"):
            MemoryClassifier(cv=None).fit(np.full((4, 2), constant), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="give at least two points that differ, at the first call"):
        MemoryClassifier(cv=None).partial_fit([[1.0]], ["a"], classes=["a", "b"])


# -- evidence that is no number ---------------------------------------------------------------------------------------------


@pytest.fixture
def learned():
    """A memory of 40 rows in the classes a and b, three of a for one of b."""
    rng = np.random.default_rng(0)
    y = np.array(["a", "a", "a", "b"] * 10)
    return MemoryClassifier(cv=2, random_state=0).fit(rng.normal(size=(40, 2)) + 2 * (y == "b")[:, None], y)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_evidence_that_is_no_number_is_that_of_an_unseen_row(value, learned, monkeypatch):
    monkeypatch.setattr(GaussianMixture, "log_evidence", lambda self, some: torch.full_like(some[:, 0], value))
    assert (learned.score_samples(np.zeros((3, 2))) == -np.inf).all()
    for rate in (0.0, 0.05, 0.9):
        assert learned.reject(np.zeros((3, 2)), rate).all()
    with pytest.warns(UserWarning, match="100% of the points are unlike"):
        learned.prevalence(np.zeros((3, 2)), num_samples=2)


@pytest.mark.parametrize("value", [math.nan, 0.0])
def test_answers_that_are_no_numbers_are_the_prevalence(value, learned, monkeypatch):
    monkeypatch.setattr(
        GaussianMixture, "expected_outputs", lambda self, some: torch.full((len(some), 2), value).double()
    )
    np.testing.assert_allclose(learned.predict_proba(np.zeros((3, 2))), [[0.75, 0.25]] * 3, rtol=1e-14)
    assert learned.predict(np.zeros((1, 2))).tolist() == ["a"]


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_a_threshold_of_evidence_that_is_no_number_rejects(rate, learned):
    learned.held_out_evidence_[:5] = math.nan  # not held out
    kept = np.sort(learned.held_out_evidence_[5:])
    assert learned.threshold(rate) == kept[math.floor(rate * 36 + 1e-9) - 1]
    learned.held_out_evidence_[5:] = -math.inf
    assert learned.reject(np.array([[1e200, 0.0]]), rate).all() and not learned.reject(np.zeros((1, 2)), rate).any()


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_temperature_and_biases_are_learned_from_numbers_alone(value):
    rng = np.random.default_rng(0)
    memory = GaussianMixture.categorical(torch.tensor([[0.0], [2.0]]).double(), torch.eye(2).double())
    labels = torch.arange(40) % 2
    points = torch.from_numpy(2.0 * labels.numpy()[:, None] + rng.normal(size=(40, 1)))
    shares, folds = torch.eye(2).double()[labels], torch.arange(40) % 2
    expected = _held_out.held_out(points[4:], shares[4:], folds[4:], [memory, memory], 0)

    class Broken(GaussianMixture):
        def log_joint(self, queries, *more):
            found = super().log_joint(queries, *more)
            return torch.where(torch.isin(queries, points[:4]), value, found)

    broken = Broken.categorical(memory.keys, memory.answer_probs)
    found = _held_out.held_out(points, shares, folds, [broken, broken], 0)
    assert found.temperature == pytest.approx(expected.temperature, rel=1e-12)
    torch.testing.assert_close(found.biases(1.5), expected.biases(1.5), rtol=0, atol=1e-12)
    assert _held_out.held_out(points[:4], shares[:4], folds[:4], [broken, broken], 0).temperature == 1.0


def test_evidence_that_is_no_number_chooses_no_move(learned, monkeypatch):
    points = torch.randn(20, 2, dtype=torch.float64)
    for value in (math.nan, -math.inf):
        evidence = "probtx_pyro.apps.memory._adapt.log_evidence"
        monkeypatch.setattr(evidence, lambda memory, some, value=value: some.new_full((len(some),), value))
        assert learned.adapt(points).moved_ == ()


def test_sums_that_are_no_numbers_do_not_vary():
    sums = _learn.Sums(torch.ones(1), torch.zeros(1, 2), torch.full((2, 2), math.nan), torch.zeros(1).long())
    assert not sums.vary()
    assert not sums._replace(means=torch.full((1, 2), math.nan), scatter=torch.eye(2)).vary()


def test_the_rate_that_few_rows_allow():
    x, y = census(18, 0)
    with pytest.warns(
        UserWarning, match=r"18 rows were held out, too few to tell with 5% false alarms .* give 19 rows or more"
    ):
        few = MemoryClassifier(metric="diagonal", cv=2, random_state=0).fit(x, y)
    assert few.lowest_rate_ == 1 / 19
    with pytest.raises(
        ValueError, match=r"18 rows were held out, too few to tell at false_alarm_rate=0.05 .* ask for 0.053 or more"
    ):
        few.reject(x)
    with pytest.raises(ValueError, match="too few to tell"):
        few.threshold(0.01)
    assert few.threshold(few.lowest_rate_) == few.held_out_evidence_.min()
    assert not few.reject(x, 0.0).any() and few.reject(x[:1] + 1e200, 0.0).all()
    x, y = census(19, 0)
    assert MemoryClassifier(metric="diagonal", cv=2, random_state=0).fit(x, y).threshold() > -np.inf
    with pytest.raises(ValueError, match="0 rows were held out"):
        MemoryClassifier(1, cv=2).partial_fit([[0.0], [1.0]], ["a", "b"], classes=["a", "b"]).reject([[0.0]])


# -- reports of other projects, with their values exact -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_variance_of_two_far_groups_in_single_precision(dtype):
    """scikit-learn issue 30382: 9999 and 0 gave a negative variance; here means 10000 and 1, and a scatter of 4 by 4 rows and 1 of the prior."""
    x = np.array([[9999], [0], [10001], [2]], dtype)
    memory = MemoryClassifier(1, metric="scalar", prior_weight=1, cv=None).fit(x, list("abab")).memory_
    square = Fraction(4, 4)
    assert memory.keys.tolist() == [[10000.0], [1.0]]
    assert float(memory.key_precision) == float(1 / ((square + 4) / (1 + 4)))


def test_a_question_mark_that_became_a_number():
    """imbalanced-learn issue 193: '?' was replaced by -99999 in columns of whole numbers from 1 to 10."""
    x = np.array([[5, 1], [3, -99999], [4, 2], [10, 7], [8, 10], [9, 9]], float)
    memory = MemoryClassifier(1, metric="diagonal", prior_weight=2, cv=None).fit(x, list("aaabbb")).memory_
    means = [[Fraction(sum(int(v) for v in x[rows, d]), 3) for d in range(2)] for rows in (slice(0, 3), slice(3, 6))]
    scatter = [sum((int(x[i, d]) - means[i // 3][d]) ** 2 for i in range(6)) for d in range(2)]
    square = sum(scatter) / 12
    np.testing.assert_allclose(memory.keys, [[float(v) for v in row] for row in means], rtol=1e-15)
    precision = [float((2 + 6) / (2 * square + some)) for some in scatter]
    np.testing.assert_allclose(memory.metric, precision, rtol=1e-14)


def test_a_finite_number_that_single_precision_does_not_hold():
    """rapidsai cuml issue 8570: finite values of float64 became infinite in float32 and were refused."""
    x = np.array([[0.0], [1.0], [0.5], [3.0], [4.0]], np.float32)
    classifier = MemoryClassifier(cv=None).fit(x, list("aaabb"))
    np.testing.assert_array_equal(classifier.predict_proba([[1e39], [-1.7e308]]), np.float32([[0.6, 0.4]] * 2))
    assert (classifier.score_samples([[1e39], [-1.7e308]]) == -np.inf).all()
    assert classifier.partial_fit([[0.2]], ["a"]).predict([[0.2]]).tolist() == ["a"]
    with pytest.raises(ValueError, match=r"X has 3.40282e\+38 in row 0, column 0, more than a million times"):
        classifier.partial_fit([[1e39]], ["a"])
