"""The scikit-learn face of soft k-means: its own checks, KMeans in the limit, and the value behind it."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator
from tolerances import assert_never_falls

from probtx_pyro.models import SoftKMeansEstimator

FACES = {"learned": None, "soft": 1.0, "k-means": math.inf}
CHECKS = [
    pytest.param(
        check,
        estimator,
        id=f"{getattr(check, 'func', check).__name__}-{number}-{face}",
        marks=() if face == "learned" else pytest.mark.slow,
    )
    for face, gamma in FACES.items()
    for number, (estimator, check) in enumerate(
        estimator_checks_generator(SoftKMeansEstimator(gamma=gamma), mark="skip")
    )
]


@pytest.mark.parametrize(("check", "estimator"), CHECKS)
@pytest.mark.filterwarnings("ignore:x has only:UserWarning")  # scikit-learn asks for 8 clusters of 4 different points
def test_check_estimator(check, estimator):
    check(estimator)


def data(dtype=np.float64):
    return load_digits().data[:300].astype(dtype) / 16


def test_in_the_limit_it_is_kmeans():
    x = data()
    start = x[:10]
    ours = SoftKMeansEstimator(10, gamma=math.inf, init=start, tol=1e-12).fit(x)
    theirs = KMeans(10, init=start, n_init=1, tol=0).fit(x)
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, atol=1e-12)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-12)
    assert ours.score(x) == pytest.approx(theirs.score(x), rel=1e-12)
    # KMeans forms the distances from products, so that its roots keep half the digits of |x|² ~ 20
    np.testing.assert_allclose(ours.transform(x), theirs.transform(x), atol=2e-7)


def test_it_is_the_value_behind_it():
    x = data(np.float32)
    fit = SoftKMeansEstimator(8, random_state=0).fit(x)
    assert fit.cluster_centers_.dtype == np.float32 and fit.gamma_ > 0
    assert_never_falls(-torch.as_tensor(fit.objective_))
    probabilities = fit.predict_proba(x)
    np.testing.assert_array_equal(probabilities, fit.model_.assign(torch.as_tensor(x)))
    np.testing.assert_array_equal(fit.predict(x), probabilities.argmax(1))
    assert fit.score(x) == pytest.approx(-float(fit.model_.free_energy(torch.as_tensor(x)).sum()), rel=1e-6)


@pytest.mark.slow
def test_more_starts_are_no_worse_and_a_seed_repeats():
    x = data()
    one, many = (SoftKMeansEstimator(12, gamma=2.0, n_init=n, random_state=0).fit(x) for n in (1, 6))
    assert many.objective_[-1] <= one.objective_[-1]
    again = SoftKMeansEstimator(12, gamma=2.0, random_state=0).fit(x)
    np.testing.assert_array_equal(one.cluster_centers_, again.cluster_centers_)
    shuffled = SoftKMeansEstimator(12, gamma=2.0, random_state=0).fit(x[np.random.default_rng(0).permutation(len(x))])
    np.testing.assert_allclose(one.cluster_centers_, shuffled.cluster_centers_, atol=1e-9)


def test_in_a_pipeline_and_a_grid_search():
    x, labels = data(), load_digits().target[:300]
    pipeline = make_pipeline(StandardScaler(), SoftKMeansEstimator(10, random_state=0))
    assert pipeline.fit_transform(x).shape == (300, 10)
    assert pipeline.get_feature_names_out()[0] == "softkmeansestimator0"
    search = GridSearchCV(SoftKMeansEstimator(10, random_state=0), {"gamma": [0.1, 1.0]}, cv=2).fit(x, labels)
    assert search.best_params_["gamma"] in (0.1, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": -1.0}, "'gamma' parameter"),
        ({"n_clusters": 301}, "n_samples=300 should be >= n_clusters=301"),
        ({"n_clusters": 2, "init": np.zeros((3, 64))}, r"init must have shape \(2, 64\)"),
        ({"tol": 0.0}, "'tol' parameter"),
    ],
)
def test_bad_input_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SoftKMeansEstimator(**options).fit(data())
    with pytest.raises(NotFittedError):
        SoftKMeansEstimator().predict(data())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("gamma", [None, 0.5, np.inf])
def test_rows_that_are_far_from_all_centers_have_answers(gamma, dtype):
    x = np.random.default_rng(0).normal(size=(40, 3)) + np.repeat([[0, 0, 0], [9, 9, 9]], 20, 0)
    fit = SoftKMeansEstimator(2, gamma=gamma, random_state=0).fit(x.astype(dtype))
    fills = [999.0, -9999.0, 1e10, 1e18, 1e20, 1e39, 1e150, -1e200, 1.7e308]
    asked = np.tile(x[0], (2 * len(fills), 1))
    asked[: len(fills), 1], asked[len(fills) :] = fills, np.outer(fills, [1, -1, 1])
    probabilities, labels = fit.predict_proba(asked), fit.predict(asked)
    assert np.isfinite(probabilities).all() and (probabilities >= 0).all()
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=4 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(labels, probabilities.argmax(1))
    scores = [fit.score(row[None]) for row in asked]
    assert not np.isnan(scores).any() and max(scores) < 0 and scores[len(fills) - 1] == -np.inf
    assert not np.isnan(fit.transform(asked)).any()
    assert labels[len(fills) - 1] == 0 and probabilities[len(fills) - 1, 0] == (1.0 if gamma == np.inf else 0.5)
    again = fit.predict_proba(np.concatenate([asked, x]))[len(asked) :]  # the others are answered as without them
    np.testing.assert_allclose(again, fit.predict_proba(x), atol=1e-6)


@pytest.mark.parametrize("gamma", [None, 0.5, np.inf])
@pytest.mark.parametrize(
    ("value", "dtype"), [(1e200, float), (-1.7e308, float), (1e20, np.float32), (-3e38, np.float32)]
)
def test_a_value_whose_square_overflows_is_refused(gamma, value, dtype):
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(dtype)
    x[7, 1] = value
    with pytest.raises(
        ValueError, match=r"X varies by \S+, whose square float\d+ does not hold; leave out what stands for missing"
    ):
        SoftKMeansEstimator(2, gamma=gamma).fit(x)
    x[7, 1] = 0
    with pytest.raises(ValueError, match="X varies by"):
        SoftKMeansEstimator(2, gamma=gamma).fit((x * np.finfo(dtype).tiny ** 0.6).astype(dtype))


def test_starts_that_end_in_no_number_are_not_the_best(monkeypatch):
    ends = iter([math.nan, 3.0, 2.0, math.nan])
    once = SoftKMeansEstimator._fit_once

    def fit_once(self, *arguments):
        found = once(self, *arguments)
        return found._replace(objective=torch.full_like(found.objective, next(ends)))

    monkeypatch.setattr(SoftKMeansEstimator, "_fit_once", fit_once)
    assert SoftKMeansEstimator(2, n_init=4, random_state=0).fit(data()).objective_[-1] == 2.0


def test_distances_of_one_at_ten_thousand_in_single_precision():
    """scikit-learn issue 9354: 10000 and 10001 in float32 are 1 apart."""
    x = np.array([[10000.0], [10001.0]], np.float32)
    fit = SoftKMeansEstimator(2, gamma=np.inf, init=x).fit(x)
    assert fit.transform(x).tolist() == [[0.0, 1.0], [1.0, 0.0]] and fit.predict(x).tolist() == [0, 1]


def test_a_row_that_overflows_in_single_precision_belongs_to_a_center():
    """scikit-learn issue 13905: squares of large float32 numbers overflowed into zeros, distances to nowhere."""
    x = np.array([[-1e18], [1e18]], np.float32)
    fit = SoftKMeansEstimator(2, gamma=np.inf, init=x).fit(x)
    assert fit.transform(x).tolist() == [[0.0, 2 * float(np.float32(1e18))], [2 * float(np.float32(1e18)), 0.0]]
    assert fit.predict(x).tolist() == [0, 1] and fit.inertia_ == 0.0
    assert np.isfinite(fit.predict_proba([[3e38], [-3e38]])).all()


@pytest.mark.slow
def test_without_scikit_learn_the_error_names_what_to_install():
    code = """
import sys
sys.modules["sklearn"] = None
from probtx_pyro import models
models.SoftKMeans
try:
    models.SoftKMeansEstimator
except ModuleNotFoundError as error:
    assert "pip install -e '.[tour]' in the folder of the repository" in str(error), error
else:
    raise AssertionError("no error")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
