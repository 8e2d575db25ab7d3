"""LOO of our files against leave-one-out by quadrature: one unknown number, its posterior known on a grid to every digit."""

import math

import arviz
import arviz_versions as versions
import numpy as np
import oracles
import pytest
import torch
from draws_by_hand import DTYPE, make, normal
from pyro.distributions import Gamma
from strategies import lists

from probtx_pyro import models, results

GRID = np.linspace(0.02, 8.0, 800)  # of the precision that all keys share; the posterior's mass lies between 0.3 and 4
SHAPE, RATE = 2.0, 1.0


def problem(points=20):
    """Two keys, 20 queries of which one lies far out, answers of which some are observed."""
    keys = torch.tensor([[-1.5, 0.0], [1.5, 0.0]], dtype=DTYPE)
    mixture = models.GaussianMixture(keys, keys[:, :1], value_precision=2.0)
    queries = keys[torch.arange(points) % 2] + normal(1, points, 2)
    queries[3] += torch.tensor([0.0, 2.0])
    outputs, observed = keys[torch.arange(points) % 2, :1] + 0.7 * normal(2, points, 1), torch.arange(points) % 3 > 0
    return mixture, queries, outputs, observed


def on_grid(mixture, queries, outputs=None, observed=None, answers=False):
    """log p(point i | precision), (grid, point), by the oracle's loops."""
    rows = []
    for precision in GRID:
        lists_of = lists(mixture.replace(key_precision=float(precision)), queries, outputs, observed)
        row = oracles.evidence(lists_of)
        alone = oracles.evidence({**lists_of, "outputs": None}) if answers else np.zeros(len(row))
        rows.append(np.subtract(row, alone))
    return np.array(rows)


def log_integral(values):
    return np.logaddexp.reduce(values) + math.log(GRID[1] - GRID[0])


def exact(pointwise, everything):
    """log p(y_i | the rest) for each point i, and the log posterior given all that ``everything`` holds."""
    prior = np.array([oracles.gamma_log(x, SHAPE, RATE) for x in GRID])
    whole = prior + everything.sum(1)
    return np.array([log_integral(whole) - log_integral(whole - point) for point in pointwise.T]), whole


def assert_close_to(found, truth, whole, pointwise, draws=4000):
    """Point by point within five standard errors of ``-log mean(1 / p_i)``, whose variance is exact on the grid too."""
    first, second = (np.array([log_integral(whole - k * x) for x in pointwise.T]) - log_integral(whole) for k in (1, 2))
    error = np.sqrt(np.expm1(second - 2 * first) / draws)
    distance = np.abs(versions.pointwise_elpd(found).reshape(-1) - truth)
    assert (distance < 5 * error).all(), (distance / error).max()


def exact_draws(whole, program, arguments, chains=4, draws=1000):
    """Independent draws by the inverse distribution function on the grid."""
    mass = np.exp(whole - whole.max())
    cumulative = np.cumsum(mass) - 0.5 * mass
    uniform = np.random.default_rng(3).uniform(size=(chains, draws))
    precision = torch.as_tensor(np.interp(uniform, cumulative / mass.sum(), GRID))
    return make(program, {"key_precision": precision}, arguments)


def bayesian(mixture):
    shape, rate = (torch.tensor(x, dtype=DTYPE) for x in (SHAPE, RATE))
    return models.bayesian(mixture, key_precision=Gamma(shape, rate))


CASES = {"queries": ("joint", False), "joint": ("joint", True), "outputs": ("answers", True)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_loo_is_that_of_exact_refits(name):
    mixture, *arguments = problem()
    likelihood, answered = CASES[name]
    arguments = tuple(arguments) if answered else tuple(arguments[:1])
    everything = on_grid(mixture, *arguments)
    pointwise = on_grid(mixture, *arguments, answers=True)[:, arguments[2]] if name == "outputs" else everything
    truth, whole = exact(pointwise, everything)
    data = results.to_inference_data(exact_draws(whole, bayesian(mixture), arguments), likelihood=likelihood)
    assert list(data["log_likelihood"].data_vars) == [name]
    found = arviz.loo(data, pointwise=True)
    assert abs(versions.elpd(found) - truth.sum()) < 2 * found.se
    assert_close_to(found, truth, whole, pointwise)
    assert float(found.pareto_k.max()) < found.good_k


def test_compare_prefers_the_model_that_made_the_data():
    """Two keys made the queries; one key, or keys elsewhere, explain them worse, as the exact values say too."""
    mixture, queries, *_ = problem()
    others = {
        "two keys": mixture,
        "keys elsewhere": mixture.replace(keys=mixture.keys + torch.tensor([0.0, 1.5])),
    }
    files, truth = {}, {}
    for name, model in others.items():
        everything = on_grid(model, queries)
        truth[name], whole = exact(everything, everything)
        files[name] = results.to_inference_data(exact_draws(whole, bayesian(model), (queries,)))
    table = versions.compare(files)
    assert table.index.tolist() == ["two keys", "keys elsewhere"]
    difference = truth["two keys"] - truth["keys elsewhere"]
    found = table.loc["keys elsewhere", "elpd_diff"]
    assert abs(found - difference.sum()) < 2 * table.loc["keys elsewhere", "dse"]
    assert difference.sum() > 0


def test_absent_queries_do_not_count():
    mixture, queries, *_ = problem()
    weights = (torch.arange(20) < 17).to(DTYPE)
    everything = on_grid(mixture, queries[:17])
    truth, whole = exact(everything, everything)
    data = results.to_inference_data(exact_draws(whole, bayesian(mixture), (queries, None, None, weights)))
    found = arviz.loo(data, pointwise=True)
    assert found.n_data_points == 17 and abs(versions.elpd(found) - truth.sum()) < 2 * found.se
    assert_close_to(found, truth, whole, everything)
