"""A NaN given to a verdict is said, and never passes: the verdict fails, is NaN itself, or refuses in one line that names what has it."""

import numpy as np
import pytest
import torch

from probtx_pyro import metrics, results
from probtx_pyro.results import calibration, from_arrays

SAMPLES, NAN = ("chain", "draw"), float("nan")
rng = np.random.default_rng(0)
KEYS, ONE, POINTS = rng.normal(size=(4, 500, 2)), rng.normal(size=(4, 500)), rng.normal(size=(4, 500, 3))


def broken(x):
    x = np.array(x, float)
    x[(0,) * x.ndim] = NAN
    return x


def data(keys=KEYS, **groups):
    own = {name: {variable: ((*SAMPLES, "query")[: x.ndim], x)} for name, (variable, x) in groups.items()}
    return from_arrays({"posterior": {"keys": ((*SAMPLES, "unit"), keys)}, **own})


@pytest.mark.parametrize(
    ("check", "given"),
    [
        ("finite", {"keys": broken(KEYS)}),
        ("divergences", {"sample_stats": ("diverging", broken(np.zeros((4, 500))))}),
        ("BFMI", {"sample_stats": ("energy", broken(ONE))}),
        ("Pareto k", {"log_likelihood": ("x", broken(POINTS))}),
        ("Pareto k", {"log_likelihood": ("x", np.full_like(POINTS, NAN))}),
        ("moving", {"keys": np.zeros((4, 500, 2))}),
    ],
)
def test_draws_with_nan_do_not_pass(check, given):
    assert results.diagnose(data()).ok
    verdict = results.diagnose(data(**given))
    assert not verdict.ok and [x.name for x in verdict.checks if not x.ok] == [check]
    assert "FAIL" in str(verdict)


def test_an_observation_whose_tail_has_no_shape_is_the_worst(monkeypatch):
    import xarray

    unknown = xarray.DataArray(np.full(3, NAN), dims="query", coords={"query": [0, 1, 2]})
    monkeypatch.setattr("probtx_pyro.results._diagnose.leave_one_out_k", lambda *_: (unknown, 0.7))
    assert not results.diagnose(data(log_likelihood=("x", POINTS))).ok


@pytest.mark.parametrize("name", ["rhat", "ess", "bfmi", "pareto_k"])
def test_a_bound_that_is_nan_is_refused(name):
    with pytest.raises(ValueError, match=f"^{name} must be a positive number, not nan"):
        results.diagnose(data(), **{name: NAN})


REFUSALS = {
    "ranks of a truth": (lambda: calibration._ranks("keys", torch.tensor([NAN]), torch.zeros(9, 1), rng), "keys: NaN in the truth"),
    "ranks among draws": (lambda: calibration._ranks("keys", torch.zeros(1), torch.full((9, 1), NAN), rng), "keys: NaN in the draws"),
    "uniformity": (lambda: results.uniformity(np.full(10, NAN), 9), "ranks must be integers from 0 to"),
    "uniformity out of range": (lambda: results.uniformity(np.full(10, 11), 9), "ranks must be integers from 0 to"),
    "band": (lambda: results.simultaneous_band(10, 9, NAN), "level must be between 0 and 1"),
    "pareto k": (lambda: results.pareto_k(broken(np.zeros(30))), "log_weights must be finite"),
    "prior": (lambda: results.prior_against_posterior({"a": broken(np.zeros(9))}, {"a": ONE}), "prior of a contains NaN"),
    "posterior": (lambda: results.prior_against_posterior({"a": np.zeros(9)}, {"a": broken(ONE)}), "posterior of a must be finite"),
    "log prior": (lambda: results.prior_sensitivity({"a": ONE}, broken(ONE), ONE), "log_prior must be finite"),
    "log likelihood": (lambda: results.prior_sensitivity({"a": ONE}, ONE, broken(ONE)), "log_likelihood must be finite"),
    "draws": (lambda: results.prior_sensitivity({"a": broken(ONE)}, ONE, ONE), "draws of a must be finite"),
    "scaling": (lambda: results.prior_sensitivity({"a": ONE}, ONE, ONE, scaling=NAN), "scaling must be above 1, not"),
    "endless scaling": (lambda: results.prior_sensitivity({"a": ONE}, ONE, ONE, scaling=np.inf), "scaling must be above 1, not"),
    "relabel": (lambda: results.relabel(data(broken(KEYS)), exchangeable={"unit": [0, 0]}), "keys contains NaN"),
    "reference": (lambda: results.relabel(data(), {"keys": [NAN, 1.0]}, exchangeable={"unit": [0, 0]}), "keys contains NaN"),
    "likeliest heads": (lambda: metrics.likeliest_heads(broken(np.zeros((3, 3)))), "marginals contain NaN"),
    "channel scores": (lambda: metrics.channel_scores([broken(np.zeros((1, 3, 3)))], [[2, 0, 1]]), "head_marginals.0. contains NaN"),
    "true mask": (lambda: metrics.intersection_over_union(broken(np.ones((2, 2))), np.ones((2, 2))), "truth contains NaN"),
    "predicted mask": (lambda: metrics.intersection_over_union(np.ones((2, 2)), broken(np.ones((2, 2)))), "predicted contains NaN"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_nan_is_refused_by_name(name):
    verdict, said = REFUSALS[name]
    with pytest.raises(ValueError, match=f"^{said}"):
        verdict()


def test_the_numbering_is_not_that_of_a_draw_without_a_density():
    keys = np.array([[[-1.0, 1.0], [1.1, -1.1], [-0.9, 1.0]]])
    lp = np.array([[0.0, NAN, -1.0]])
    given = data(keys, sample_stats=("lp", lp))
    found = results.relabel(given, exchangeable={"unit": [0, 0]})["posterior"]["keys"].values[0]
    assert found.tolist() == [[-1.0, 1.0], [-1.1, 1.1], [-0.9, 1.0]]


def test_numbers_that_are_compared_by_logarithm_are_not_negative():
    given = from_arrays({"posterior": {"keys": ((*SAMPLES, "unit"), KEYS)}}, attrs={"logarithmic": "keys"})
    with pytest.raises(ValueError, match="keys is negative somewhere"):
        results.relabel(given, exchangeable={"unit": [0, 0]})


def test_a_gap_that_is_nan_says_so():
    nan = torch.tensor([NAN])
    assert "nan nats per query, at most nan" in repr(results.Gap(nan, nan, nan, nan, nan))


def test_marginals_may_be_logarithms_too():
    logs = np.log([[0.9, 0.06, 0.04], [0.3, 0.4, 0.3], [0.1, 0.2, 0.7]])
    assert metrics.likeliest_heads(logs).tolist() == [2, 1, 2]  # never the word itself, whatever the scale
