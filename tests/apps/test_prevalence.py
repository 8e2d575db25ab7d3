"""Draws of shares with an unknown concentration: against enumeration, and against `inference.gibbs` where it is known."""

import itertools
import math

import numpy as np
import pytest
import torch
from pyro.distributions import Dirichlet

from probtx_pyro import models
from probtx_pyro.apps import MemoryClassifier
from probtx_pyro.apps.memory import _adapt, _held_out
from probtx_pyro.inference import gibbs
from probtx_pyro.models import GaussianMixture

LIKELIHOOD = torch.tensor([[0.9, 0.1, 0.3], [0.7, 0.2, 0.1], [0.2, 0.3, 0.9], [0.8, 0.1, 0.1]], dtype=torch.float64)


def enumerated(likelihood, grid):
    """Posterior means of the shares and of c, by a loop over all classes of all points and all c."""
    points, classes = likelihood.shape
    total, shares, concentration = 0.0, [0.0] * classes, 0.0
    for c in grid:
        for z in itertools.product(range(classes), repeat=points):
            counts = [z.count(k) for k in range(classes)]
            log = math.lgamma(classes * c) - math.lgamma(classes * c + points)
            log += sum(math.lgamma(c + n) - math.lgamma(c) for n in counts)
            weight = math.exp(log) * math.prod(float(likelihood[i, k]) for i, k in enumerate(z))
            total, concentration = total + weight, concentration + weight * c
            for k, n in enumerate(counts):
                shares[k] += weight * (c + n) / (classes * c + points)
    return [x / total for x in shares], concentration / total


@pytest.mark.parametrize("grid", [(0.5,), (0.02, 0.3, 5.0)])
def test_draws_have_the_moments_of_the_enumerated_posterior(grid):
    shares, concentrations = _adapt.draw_shares(LIKELIHOOD.log() + 3.0, torch.tensor(grid), 100, 200, seed=0)
    exact, mean = enumerated(LIKELIHOOD, grid)
    # 200 chains of a shares' standard deviation below .4 (of c below 2.4), independent even if each is one draw: 4 standard errors
    torch.testing.assert_close(shares.mean(0), torch.tensor(exact), rtol=0, atol=4 * 0.4 / 200**0.5)
    torch.testing.assert_close(concentrations.mean(), torch.tensor(mean), rtol=0, atol=4 * 2.4 / 200**0.5)


@pytest.mark.slow
def test_a_known_concentration_is_gibbs_of_a_mixture_of_unit_vectors():
    ours, _ = _adapt.draw_shares(LIKELIHOOD.log(), torch.tensor([0.7]), 100, 200, seed=0)
    mixture = GaussianMixture(torch.eye(3), log_prior=torch.full((1, 3), 1 / 3).log())
    posterior = models.bayesian(mixture, weights=Dirichlet(torch.full((1, 3), 0.7)))
    draws = gibbs(posterior, LIKELIHOOD.log(), num_samples=100, num_chains=200, num_warmup=100, seed=1, progress=False)
    theirs = draws.samples["weights"].flatten(0, 1)[:, 0]
    bound = 4 * 0.4 * (2 / 200) ** 0.5  # as above, of a difference
    torch.testing.assert_close(ours.mean(0), theirs.mean(0), rtol=0, atol=bound)
    torch.testing.assert_close(ours.quantile(0.9, 0), theirs.quantile(0.9, 0), rtol=0, atol=2 * bound)


def test_sparse_and_even_shares_are_told_apart():
    grid = torch.logspace(-2, 1, 13)
    sparse, even = torch.full((2, 200, 10), -30.0)
    sparse[:, 3] = 0.0
    even[torch.arange(200), torch.arange(200) % 10] = 0.0
    low, high = (_adapt.draw_shares(x, grid, 20, 20, seed=0)[1].mean() for x in (sparse, even))
    assert low < 0.1 and high > 2


def test_points_may_come_in_blocks(monkeypatch):
    whole = _adapt.draw_shares(LIKELIHOOD.log(), torch.tensor([0.1, 1.0]), 50, 200, seed=0)[0]
    monkeypatch.setattr(_adapt, "_NUMBERS_AT_ONCE", 3 * 200)  # one point at once
    parts = _adapt.draw_shares(LIKELIHOOD.log(), torch.tensor([0.1, 1.0]), 50, 200, seed=0)[0]
    torch.testing.assert_close(whole.mean(0), parts.mean(0), rtol=0, atol=4 * 0.4 * (2 / 200) ** 0.5)


def test_a_class_that_was_never_shown_has_no_share():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(40, 2)) + np.repeat([[0, 0], [6, 0]], 20, 0), np.repeat([0, 2], 20)
    found = MemoryClassifier(cv=None, random_state=0).fit(x, np.eye(3)[labels]).prevalence(x[:25], num_samples=20)
    assert found.estimate[1] == found.high[1] == 0 and found.estimate.sum() == pytest.approx(1)
    assert found.low[0] < 0.8 < found.high[0]


def test_biases_match_the_mean_answer_to_the_share_of_each_class():
    """At the mode the mean answer and the labels differ by the pull of the prior alone: ``Σ_i (p_ic - y_ic) = -b_c``."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    x = torch.from_numpy(rng.normal(size=(100, 2)) + 1.5 * np.eye(3)[labels, :2])
    memory = GaussianMixture.categorical(
        torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.5, 0.0]]).double(), torch.eye(3).double()
    )
    truth = torch.eye(3, dtype=torch.float64)[torch.from_numpy(labels)]
    biases = _held_out.held_out(x, truth, torch.arange(100) % 2, [memory, memory], 0).biases(2.0)
    moved = (memory.replace(key_precision=0.5).attention(x).log() + biases).softmax(-1)
    # L-BFGS stops where a step lowers the loss by 2e-9 of it: an error of the root of 1e-7 in b, times a curvature below 100
    torch.testing.assert_close((moved - truth).sum(0), -biases, rtol=0, atol=0.05)
    assert biases.abs().max() > 0.3
