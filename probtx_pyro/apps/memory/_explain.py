"""Reasons of an answer: the units attended to,
with bands from the posterior of the units given the points they were learned from.
"""

from typing import NamedTuple

import numpy as np
import torch
from pyro.distributions import Dirichlet, Normal
from torch import Tensor

from probtx_pyro import models, results
from probtx_pyro.apps.memory._held_out import log_evidence, tempered
from probtx_pyro.apps.memory._learn import Examples
from probtx_pyro.inference import Draws, gibbs
from probtx_pyro.models import Bayesian, GaussianMixture

_WIDE = 10.0  # spread of the prior of keys, in standard deviations of all points


class Explanation(NamedTuple):
    """Units that a point attends to, the most attended first, (top,) each; of a point that the memory has not seen,
    by their prior weights.

    units: their numbers in the memory. classes: the most probable class of each. weights: attention, averaged over the
    posterior.
    low, high: ends of its band. keys: where they are, (top, D).
    """

    units: np.ndarray
    classes: np.ndarray
    weights: np.ndarray
    low: np.ndarray
    high: np.ndarray
    keys: np.ndarray


def unit_names(memory: GaussianMixture, classes: np.ndarray) -> list[str]:
    """Return a name of each unit: its most probable class, and its number among those of the class."""
    counts: dict[int, int] = {}
    names = []
    for label in memory.unit_answers().argmax(-1).tolist():
        names.append(f"{classes[label]}/{counts.get(label, 0)}")
        counts[label] = counts.get(label, 0) + 1
    return names


def draws_of_training(
    memory: GaussianMixture, examples: Examples, every_point: bool, draws: int, chains: int, seed: int
) -> Draws:
    """Draw keys and weights given labelled points, the spread as it was learned.

    Parameters
    ----------
    memory
        As it was learned.
    examples
        What from.
    every_point
        True if the points are the units: then a key has no posterior, and each point gives weight to its own unit, as
        often as it counts.
    draws, chains, seed
        Draws of each chain, chains, and the seed, as in `inference.gibbs`.

    Raises
    ------
    NotImplementedError
        Points that count a part of once, of a memory with several to a unit.
    """
    data = (examples.points, examples.labels, None, None)
    flat = Dirichlet(memory.keys.new_ones(1, memory.num_units))
    if every_point:
        generator = torch.Generator().manual_seed(seed)
        shape = (chains, draws, 1, memory.num_units)
        counts = examples.weights.new_zeros(memory.num_units).index_add_(0, examples.rows, examples.weights)
        drawn = torch._standard_gamma(counts.expand(shape).contiguous(), generator=generator)
        samples = {"weights": drawn / drawn.sum(-1, keepdim=True)}
        posterior = models.bayesian(memory, weights=flat)
        lp = {"lp": memory.keys.new_zeros(chains, draws)}
        return Draws(samples, lp, posterior, data, "Bayesian bootstrap", {"seed": seed})
    if bool((examples.weights != examples.weights.round()).any()):
        raise NotImplementedError("draws count each row a whole number of times, but of units_per_class='all'")
    examples = examples.some(torch.arange(len(examples.labels)).repeat_interleave(examples.weights.long()))
    ours = examples.points, examples.labels
    wide = _WIDE * examples.points.std().expand_as(memory.keys)
    prior = Normal(examples.points.mean(0).expand_as(memory.keys), wide)
    program = models.bayesian(memory, keys=prior, weights=flat)
    start = {"keys": memory.keys, "weights": memory.log_weights().exp()}
    return gibbs(
        program, *ours, num_samples=draws, num_chains=chains, num_warmup=50, start=start, seed=seed, progress=False
    )


def explained(
    draws: Draws, points: Tensor, temperature: float, classes: np.ndarray, top: int, probability: float
) -> list[Explanation]:
    """Name the units that points attend to.

    Parameters
    ----------
    draws
        As `draws_of_training` returns them.
    points
        (N, D).
    temperature
        Of the answers.
    classes
        (C,), their names.
    top
        Units to name.
    probability
        Of the bands.
    """
    assert isinstance(draws.program, Bayesian)
    program = draws.program
    cooled = Bayesian(tempered(program.formulation, temperature), program.priors, program.collapsed)
    seen = log_evidence(cooled.formulation, points) > -torch.inf
    weights = draws.samples["weights"].flatten(0, -2)  # in the place of what the others attend to
    ends = weights.new_tensor([(1 - probability) / 2, (1 + probability) / 2])
    rows = (weights.mean(0), *weights.quantile(ends, 0))
    attention, low, high = (row.repeat(len(points), 1) for row in rows)
    if bool(seen.any()):
        said = results.predict(draws._replace(program=cooled), points[seen], prob=probability, relabel=False)
        attention[seen], (low[seen], high[seen]) = said.attention, said.band("attention")
    order = attention.argsort(-1, descending=True)[:, :top]
    memory = program.formulation
    labels = memory.unit_answers().argmax(-1).numpy()
    mean, least, most, keys = (x.numpy() for x in (attention, low, high, memory.keys))
    return [
        Explanation(own, classes[labels[own]], mean[i, own], least[i, own], most[i, own], keys[own])
        for i, own in enumerate(order.numpy())
    ]
