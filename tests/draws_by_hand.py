"""Draws made by hand for the tests of results: no sampler, every number from a seed."""

import torch
from pyro.distributions import Dirichlet, Normal

from probtx_pyro import inference, models

DTYPE = torch.float64


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DTYPE)


def bayesian(batch=(), units=3, collapsed=True, separated=False):
    """A mixture with answers; keys, values and shared weights have priors, equal for all units or not."""
    keys = torch.zeros(*batch, units, 2, dtype=DTYPE)
    uniform = torch.full((*batch, 1, units), 1 / units, dtype=DTYPE).log()
    mixture = models.GaussianMixture(keys, torch.zeros(*batch, units, 1, dtype=DTYPE), 2.0, 1.5, uniform)
    center = torch.arange(units, dtype=DTYPE).unsqueeze(-1) if separated else torch.zeros((), dtype=DTYPE)
    scale = torch.tensor(2.0, dtype=DTYPE)
    priors = dict(
        keys=Normal(center, scale),
        values=Normal(torch.zeros((), dtype=DTYPE), scale),
        weights=Dirichlet(torch.ones(1, units, dtype=DTYPE)),
    )
    return models.bayesian(mixture, **priors, collapsed=collapsed)


def samples(batch=(), chains=4, draws=150, units=3, seed=1):
    """Draws about well separated units, each with its own label everywhere."""
    center = 3.0 * torch.stack([torch.arange(units), torch.arange(units) % 2], -1).to(DTYPE)
    shape = (chains, draws, *batch)
    logits = 0.3 * normal(seed + 2, *shape, 1, units) + 0.5 * torch.arange(units, dtype=DTYPE)
    return {
        "keys": center + 0.3 * normal(seed, *shape, units, 2),
        "values": center[:, :1] + 0.3 * normal(seed + 1, *shape, units, 1),
        "weights": logits.softmax(-1),
    }


def make(program, given, arguments, method="NUTS", **statistics):
    chains, draws = next(iter(given.values())).shape[:2]
    lp = {"lp": -normal(99, chains, draws).square()}
    return inference.Draws(given, lp | statistics, program, arguments, method, {"seed": 7, "num_warmup": 50})


def data(batch=(), queries=5):
    """Queries, answers, where they are observed, weights of the queries of which some are 0."""
    observed = normal(13, *batch, queries) < 0.5
    weights = (normal(14, *batch, queries) < 0.8).to(DTYPE)
    weights[..., 0] = 0.0
    return normal(11, *batch, queries, 2), normal(12, *batch, queries, 1), observed, weights
