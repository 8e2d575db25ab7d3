"""What a memory is taught by: odd labels, weights and copies of rows, folds of one's own; and tables of few rows."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.model_selection import (  # fmt: skip
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneGroupOut,
    PredefinedSplit,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
)
from tolerances import assert_equal

from probtx_pyro.apps import MemoryClassifier

X = np.array([[0.0, 1.0], [0.5, 0.0], [5.0, 5.0], [5.5, 4.0], [1.0, 0.5], [4.0, 5.5]])
NAMES = ["cat", "cat", "dog", "dog", "cat", "dog"]


def learned(y, **settings):
    return MemoryClassifier(cv=None, **settings).fit(X, y)


def put(values, place, value):
    values = list(values)
    values[place] = value
    return values


MISSING = {
    "None among text, a list": (put(NAMES, 3, None), "row 3: None"),
    "None among text, an array": (np.array(put(NAMES, 3, None), object), "row 3: None"),
    "None first": (put(NAMES, 0, None), "row 0: None"),
    "None among numbers": ([0, 0, 1, None, 0, 1], "row 3: None"),
    "NaN among text, a list": (put(NAMES, 3, float("nan")), "row 3: nan"),  # numpy makes it the class 'nan'
    "NaN among text, an array": (np.array(put(NAMES, 3, np.nan), object), "row 3: nan"),  # scikit-learn issue 30338
    "NaN among numbers": ([0, 0, 1, np.nan, 0, 1], "row 3: nan"),
    "None among texts of digits": (["1", "1", "2", None, "1", "2"], "row 3: None"),  # scikit-learn issue 10595
    "pandas.NA among text": (pd.array(put(NAMES, 3, pd.NA), dtype="string"), "row 3"),
    "pandas.NA among whole numbers": (pd.Series([0, 0, 1, pd.NA, 0, 1], dtype="Int64"), "row 3"),  # scikit-learn issue 25073
    "pandas.NA among booleans": (pd.Series([False, False, True, pd.NA, False, True], dtype="boolean"), "row 3"),
    "a missing category": (pd.Series(put(NAMES, 3, None), dtype="category"), "row 3: nan"),
    "NaT": (np.array(["2020", "2020", "2021", "NaT", "2020", "2021"], "datetime64[Y]"), "row 3"),
    "an empty text, a list": (put(NAMES, 3, ""), "row 3: ''"),
    "an empty text, an array": (np.array(put(NAMES, 3, "")), "row 3: ''"),
    "an empty text, objects": (np.array(put(NAMES, 3, ""), object), "row 3: ''"),
    "empty bytes": (np.array(put(NAMES, 3, "")).astype("S"), "row 3: b''"),
    "masked": (np.ma.array([0, 0, 1, 1, 0, 1], mask=[0, 0, 0, 1, 0, 0]), "row 3"),
    "several": ([None, 0, 1, None, 0, None], "row 0 and 2 more: None"),
    "NaN among shares": (np.where(np.arange(12).reshape(6, 2) == 7, np.nan, np.eye(2)[[0, 0, 1, 1, 0, 1]]), "row 3: "),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_label_is_named(name):
    y, said = MISSING[name]
    for deed in (learned, lambda y: MemoryClassifier(cv=None).partial_fit(X, y, classes=[0, 1])):
        with pytest.raises(ValueError, match=f"y has no label in {said}.*; fill or drop it") as error:
            deed(y)
        assert "\n" not in str(error.value)


def test_a_missing_class_is_named():
    with pytest.raises(ValueError, match="classes has no label in row 1: None"):
        MemoryClassifier(cv=None).partial_fit(X, NAMES, classes=["cat", None, "dog"])


@pytest.mark.parametrize("kind", [list, tuple, lambda y: np.array(y, object), lambda y: pd.Series(y, dtype=object)])
@pytest.mark.parametrize("other", [1, 2.5, True, b"dog"])
def test_text_beside_other_labels_is_refused(kind, other):
    with pytest.raises(ValueError, match=r"y mixes labels of several types: 'cat' and .*; make all of them text"):
        learned(kind(put(NAMES, 3, other)))


@pytest.mark.parametrize(("classes", "y"), [(["0", "1"], [0, 0, 1, 1, 0, 1]), ([0, 1], list("001101"))])
def test_text_is_no_number_among_the_classes_of_partial_fit(classes, y):
    with pytest.raises(ValueError, match=r"y has .* but the classes are .*; text is no number"):
        MemoryClassifier(cv=None).partial_fit(X, y, classes=classes)


ODD = {
    "nullable whole numbers": (pd.Series([3, 3, 7, 7, 3, 7], dtype="Int64"), [3, 7]),  # scikit-learn issue 25953
    "nullable booleans": (pd.Series([False, False, True, True, False, True], dtype="boolean"), [False, True]),  # issue 17675
    "booleans": (np.array([0, 0, 1, 1, 0, 1], bool), [False, True]),
    "text of objects": (np.array(NAMES, object), ["cat", "dog"]),  # scikit-learn pull request 2626
    "text of unequal length": (["a", "a", "a long name", "a long name", "a", "a long name"], ["a", "a long name"]),  # 2674
    "categories": (pd.Series(NAMES, dtype="category"), ["cat", "dog"]),
    "whole numbers as floats": ([1.0, 1.0, 2.0, 2.0, 1.0, 2.0], [1.0, 2.0]),
    "numbers that a float does not hold": (np.array([2**53, 2**53, 2**53 + 1, 2**53 + 1, 2**53, 2**53 + 1]), [2**53, 2**53 + 1]),
    "the text nan": (["nan", "nan", "None", "None", "nan", "None"], ["None", "nan"]),
    "one column": (np.array(NAMES), ["cat", "dog"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_labels_come_back_as_they_are(name):
    y, classes = ODD[name]
    found = learned(y)
    assert found.classes_.tolist() == classes
    assert found.predict(X).tolist() == np.asarray(y).tolist()


def test_booleans_among_the_features_are_0_and_1():
    """As `pandas.get_dummies` makes them, alone and beside numbers, of both kinds of pandas."""
    truth = X[:, :1] > 1
    for kind in ("bool", "boolean"):
        table = pd.DataFrame({"x": X[:, 0], "high": pd.array(truth[:, 0], dtype=kind)})
        found, plain = (
            MemoryClassifier(cv=None, random_state=0).fit(x, NAMES) for x in (table, np.hstack([X[:, :1], truth]))
        )
        np.testing.assert_array_equal(found.predict_proba(table), plain.predict_proba(np.hstack([X[:, :1], truth])))
    alone = MemoryClassifier(cv=None, random_state=0).fit(truth, NAMES)
    assert alone.predict([[True], [False]]).tolist() == alone.predict([[1.0], [0.0]]).tolist() == ["dog", "cat"]


@pytest.mark.parametrize("kind", [np.asarray, np.ndarray.tolist, pd.DataFrame])
def test_booleans_of_the_classes_are_labels(kind):
    truth = np.array([0, 0, 1, 1, 0, 1])
    found = learned(kind(np.eye(2, dtype=bool)[truth]))
    assert found.classes_.tolist() == [0, 1] and found.predict(X).tolist() == truth.tolist()
    np.testing.assert_array_equal(found.predict_proba(X), learned(truth).predict_proba(X))
    np.testing.assert_array_equal(found.predict_proba(X), learned(pd.get_dummies(pd.Series(NAMES))).predict_proba(X))
    with pytest.raises(ValueError, match="shares of classes"):
        learned(np.ones((6, 2), bool))


def test_log_probabilities_are_logarithms_also_of_0():
    found = learned(NAMES)
    np.testing.assert_array_equal(found.predict_log_proba(X), np.log(found.predict_proba(X)))
    assert found.predict_log_proba([[1e5, 1e5]]).tolist() == [[-np.inf, 0.0]]


# -- weights, copies, folds ----------------------------------------------------------------------------------------------------


def rows(number, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(number) % 2
    return rng.normal(size=(number, 2)) + 1.5 * labels[:, None], labels


@pytest.mark.parametrize(
    ("units", "metric"), [(1, "full"), (2, "diagonal"), (20, "scalar"), ("all", "scalar"), ("all", "full")]
)
def test_a_weight_is_so_many_copies_of_the_row(units, metric):
    x, y = rows(40)
    weights = np.random.default_rng(1).integers(0, 4, 40)
    weights[:2] = 2
    folds = np.arange(40) // 2 % 2
    weighted = MemoryClassifier(units, metric=metric, cv=PredefinedSplit(folds), random_state=0).fit(x, y, weights)
    repeated = MemoryClassifier(units, metric=metric, cv=PredefinedSplit(folds.repeat(weights)), random_state=0)
    repeated.fit(x.repeat(weights, 0), y.repeat(weights))
    new, _ = rows(30, 1)
    # sums over copies in another order, through EM that takes the same steps
    np.testing.assert_allclose(weighted.predict_proba(new), repeated.predict_proba(new), rtol=1e-9)
    np.testing.assert_allclose(weighted.score_samples(new), repeated.score_samples(new), rtol=1e-9)
    assert weighted.temperature_ == pytest.approx(repeated.temperature_, rel=1e-9)
    np.testing.assert_allclose(weighted.held_out_evidence_.repeat(weights), repeated.held_out_evidence_, rtol=1e-9)
    assert np.isnan(weighted.held_out_evidence_[weights == 0]).all()


@pytest.mark.parametrize("units", [1, "all"])
def test_a_posterior_counts_weights(units):
    """Of 30 rows at two far places the posterior weight of a place is its share by weights, not by rows."""
    x, y = np.repeat([[0.0], [50.0]], 15, 0) + np.random.default_rng(0).normal(size=(30, 1)), np.repeat([0, 1], 15)
    found = MemoryClassifier(units, metric="scalar", cv=None).fit(x, y, np.where(y, 9.0, 1.0))
    draws = found.posterior(num_samples=100).samples["weights"].flatten(0, -2)
    share = draws[:, found.memory_.keys[:, 0] > 25].sum(-1)
    # a Beta of 135 and 15 counts, and one of each unit's flat prior: a standard deviation of .025
    assert float(share.mean()) == pytest.approx(0.9, abs=4 * 0.025)


def test_a_posterior_of_parts_of_rows_is_refused():
    for y, weights in ((NAMES, np.full(6, 0.5)), (np.tile([0.5, 0.5], (6, 1)), None)):
        with pytest.raises(NotImplementedError, match="count each row a whole number of times"):
            MemoryClassifier(1, cv=None).fit(X, y, weights).explain(X)
        assert MemoryClassifier("all", cv=None).fit(X, y, weights).explain(X, top=2)[0].weights.sum() <= 1


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(6), "sample_weight is 0 everywhere|at least one non-zero"),
        (-np.ones(6), "Negative values"),
        (np.ones(5), "sample_weight"),
        (put(np.ones(6), 2, np.nan), "NaN"),
        (np.ones((6, 1)), "1D array"),
    ],
)
def test_invalid_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        MemoryClassifier(cv=None).fit(X, NAMES, weights)


@pytest.mark.parametrize("units", [1, 2, "all"])
def test_copies_of_a_row_are_in_its_fold(units):
    """Each row four times tells no more than once: neither temperature nor evidence finds a row again in the memory."""
    x, y = rows(60)
    once = MemoryClassifier(units, metric="scalar", random_state=0).fit(x, y)
    four = MemoryClassifier(units, metric="scalar", random_state=0).fit(np.tile(x, (4, 1)), np.tile(y, 4))
    folds = four._training.rows.fold_of.reshape(4, -1)
    assert (folds == folds[0]).all()
    assert four.held_out_evidence_.mean() == pytest.approx(once.held_out_evidence_.mean(), abs=0.2)
    assert abs(np.log(four.temperature_ / once.temperature_)) < np.log(1.5)
    assert 0.5 < four.reject(rows(400, 1)[0]).mean() / once.reject(rows(400, 1)[0]).mean() < 2


def test_copies_that_come_later_are_in_the_same_fold():
    x, y = rows(30)
    x[0] = 0.0
    again = x[::-1].copy()
    again[-1] = -0.0  # the same row
    parts = MemoryClassifier(random_state=0).partial_fit(x, y, classes=[0, 1]).partial_fit(again, y[::-1])
    folds = parts._training.rows.fold_of
    assert torch.equal(folds[:30], folds[30:].flip(0))


def test_the_spread_of_points_left_out_does_not_know_their_copies():
    x, y = rows(20)
    once, twice = (
        MemoryClassifier("all", metric="scalar", prior_weight=1e-9, cv=None).fit(x.repeat(n, 0), y.repeat(n))
        for n in (1, 2)
    )
    # the start counts units, 20 or 40, and EM stops a thousandth before its end
    assert float(twice.memory_.key_precision) == pytest.approx(float(once.memory_.key_precision), rel=0.05)
    alone = MemoryClassifier("all", cv=None).fit([[0.0], [0.0], [1.0], [1.0]], [0, 0, 1, 1])  # no class has two places
    assert np.isfinite(alone.predict_proba([[0.2]])).all()


@pytest.mark.parametrize("groups", [False, True])
def test_folds_of_a_splitter_are_the_folds(groups):
    x, y = rows(40)
    cv = GroupKFold(4) if groups else StratifiedKFold(4, shuffle=True, random_state=1)
    named = np.arange(40) // 4 if groups else None
    found = MemoryClassifier(cv=cv, random_state=0).fit(x, y, groups=named)
    pairs = MemoryClassifier(cv=list(cv.split(x, y, named)), random_state=0).fit(x, y)
    np.testing.assert_array_equal(found.held_out_evidence_, pairs.held_out_evidence_)
    assert found.temperature_ == pairs.temperature_
    for others, asked in cv.split(x, y, named):  # each by a memory that has learned from the others
        memory = MemoryClassifier(cv=None, random_state=0).fit(x[others], y[others])
        np.testing.assert_allclose(found.held_out_evidence_[asked], memory.score_samples(x[asked]), rtol=1e-10)


def test_rows_in_no_fold_are_learned_from_and_not_held_out():
    x, y = rows(40)
    found = MemoryClassifier(cv=PredefinedSplit([-1] * 20 + [0, 1] * 10), random_state=0).fit(x, y)
    assert np.isnan(found.held_out_evidence_[:20]).all() and np.isfinite(found.held_out_evidence_[20:]).all()
    assert found.lowest_rate_ == 1 / 21


def test_shares_and_a_search_over_settings_have_splitters():
    x, y = rows(40)
    hard = MemoryClassifier(cv=KFold(4)).fit(x, y)
    soft = MemoryClassifier(cv=KFold(4)).fit(x, np.eye(2)[y])
    # at most 40 terms, summed in another order where memory is aligned otherwise: 40 eps
    np.testing.assert_allclose(hard.held_out_evidence_, soft.held_out_evidence_, rtol=1e-14)
    assert MemoryClassifier(cv=StratifiedKFold(2)).fit(x, np.eye(2)[y]).temperature_ > 0
    search = GridSearchCV(MemoryClassifier(cv=StratifiedKFold(2)), {"metric": ["scalar", "full"]}, cv=2).fit(x, y)
    assert search.best_estimator_.cv.get_n_splits() == 2


@pytest.mark.parametrize(
    ("cv", "fit", "message"),
    [
        (ShuffleSplit(20, random_state=0), {}, "hold out each row once and learn from all others"),
        (TimeSeriesSplit(3), {}, "split 0 of cv: hold out each row once"),
        ([(np.arange(40), np.arange(10))], {}, "split 0 of cv"),
        (LeaveOneGroupOut(), {}, "groups"),
        (5, {"groups": np.arange(40)}, "groups: cv=5 does not read them"),
        (None, {"groups": np.arange(40)}, "groups: cv=None does not read them"),
        (1, {}, "'cv' parameter"),
        ("five", {}, "'cv' parameter"),
    ],
)
def test_folds_that_hold_no_row_out_once_are_refused(cv, fit, message):
    x, y = rows(40)
    with pytest.raises(ValueError, match=message):
        MemoryClassifier(cv=cv).fit(x, y, **fit)


def test_parts_have_no_splitter():
    x, y = rows(40)
    with pytest.raises(ValueError, match="needs all rows at once; give partial_fit a number of folds"):
        MemoryClassifier(cv=KFold(3)).partial_fit(x, y, classes=[0, 1])


def test_very_many_units_warn_of_the_time_they_take(monkeypatch):
    monkeypatch.setattr("probtx_pyro.apps.memory._classifier._MANY_UNITS", 39)
    x, y = rows(40)
    with pytest.warns(
        UserWarning,
        match=r"units_per_class='all' compares all pairs of 40 rows, .* takes minutes; several units a class take seconds",
    ):
        MemoryClassifier("all", cv=2).fit(x, y)
    MemoryClassifier("all", cv=2).fit(x[:39], y[:39])


def test_the_lowest_rate_counts_the_rows_that_were_held_out():
    x, y = rows(40)
    classifier = MemoryClassifier(random_state=0).fit(x, y)
    for evidence, lowest in (([1.0, np.nan, 2.0], 1 / 3), ([], 1.0)):
        classifier.held_out_evidence_ = np.array(evidence)
        assert classifier.lowest_rate_ == pytest.approx(lowest)
    classifier.held_out_evidence_ = np.append(np.arange(99.0)[::-1], np.nan)
    assert classifier.threshold(0.05) == 4.0  # the fifth of a hundred places


def test_weights_of_one_are_no_weights():
    x, y = rows(40)
    plain, ones = (MemoryClassifier(random_state=0).fit(x, y, some) for some in (None, np.ones(40)))
    for name in ("keys", "key_precision", "log_prior", "answer_probs"):
        assert_equal(getattr(plain.memory_, name), getattr(ones.memory_, name))
    assert plain.temperature_ == ones.temperature_
