"""The numerics of averages over draws: standard errors and quantiles."""

import arviz
import numpy as np
import pytest
import torch
from draws_by_hand import normal
from formulations import ROWS
from tolerances import assert_equal

from probtx_pyro.results._predict import quantiles, standard_error

DENSITIES = {name: row for name, row in ROWS.items() if row.density}
NAMES = ("attention", "log_evidence", "expected_outputs")


@pytest.mark.parametrize(("phi", "chains", "draws"), [(0.0, 4, 1000), (0.7, 4, 1001), (-0.4, 3, 800), (0.9, 1, 3000)])
def test_standard_errors_are_those_of_arviz_and_of_the_process(phi, chains, draws):
    """Of an autoregression of order 1, whose mean has the variance ``(1 + φ) / (1 - φ) / n`` times its own."""
    rng = np.random.default_rng(0)
    x = np.zeros((50, chains, draws))
    x[..., 0] = rng.normal(size=(50, chains)) / (1 - phi**2) ** 0.5
    for i in range(1, draws):
        x[..., i] = phi * x[..., i - 1] + rng.normal(size=(50, chains))
    found = standard_error(torch.from_numpy(x).permute(1, 2, 0)).numpy()
    halves = np.concatenate([x[..., : draws // 2], x[..., -(draws // 2) :]], 1)
    variance = halves.var(-1).mean(-1) + halves.mean(-1).var(-1, ddof=1)
    theirs = (variance / [float(arviz.ess(one, method="mean")) for one in x]) ** 0.5
    np.testing.assert_allclose(found, theirs, rtol=1e-9)
    exact = ((1 + phi) / (1 - phi) / (1 - phi**2) / (chains * draws)) ** 0.5
    assert np.mean(found) == pytest.approx(exact, rel=0.1)  # Geyer's estimate of 50 runs


def test_standard_errors_of_short_chains_and_of_constants():
    x = normal(1, 500, 3, 2)
    assert_equal(standard_error(x), x.mean(1).std(0) / 500**0.5)
    assert (standard_error(torch.full((4, 50, 2), 0.3)) < 1e-7).all() and (
        standard_error(torch.ones(1, 5, 2)) == 0
    ).all()
    assert standard_error(x[:1]).isnan().all()


def test_quantiles_are_the_first_draws_that_reach_the_probability():
    x, weights = normal(1, 30, 4), normal(2, 30, 4).softmax(0)
    found = quantiles(x.reshape(3, 10, 4), weights.reshape(3, 10, 4), (0.05, 0.5, 0.9))
    for i in range(4):
        order = sorted(range(30), key=lambda s: float(x[s, i]))
        for k, prob in enumerate((0.05, 0.5, 0.9)):
            total, place = 0.0, 0
            while total + float(weights[order[place], i]) < prob:
                total, place = total + float(weights[order[place], i]), place + 1
            assert found[k, i] == x[order[place], i]
