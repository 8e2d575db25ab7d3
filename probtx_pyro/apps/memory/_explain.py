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
    memory: GaussianMixture, examples: Examples, every_point: bool, num_samples: int, num_chains: int, seed: int
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
    num_samples, num_chains, seed
        As in `inference.gibbs`.

    Raises
    ------
    NotImplementedError
        Points that count a part of once, of a memory with several to a unit.
    """
    data = (examples.points, examples.labels, None, None)
    flat = Dirichlet(memory.keys.new_ones(1, memory.num_units))
    if every_point:
        generator = torch.Generator().manual_seed(seed)
        shape = (num_chains, num_samples, 1, memory.num_units)
        counts = examples.weights.new_zeros(memory.num_units).index_add_(0, examples.rows, examples.weights)
        drawn = torch._standard_gamma(counts.expand(shape).contiguous(), generator=generator)
        samples = {"weights": drawn / drawn.sum(-1, keepdim=True)}
        posterior = models.bayesian(memory, weights=flat)
        lp = {"lp": memory.keys.new_zeros(num_chains, num_samples)}
        return Draws(samples, lp, posterior, data, "Bayesian bootstrap", {"seed": seed})
    if bool((examples.weights != examples.weights.round()).any()):
        raise NotImplementedError(
            "draws of the units count each row a whole number of times; labels that are shares, and other weights, have them with "
            "units_per_class='all' only"
        )
    examples = examples.some(torch.arange(len(examples.labels)).repeat_interleave(examples.weights.long()))
    data = (examples.points, examples.labels, None, None)
    whole = examples.points
    prior = Normal(whole.mean(0).expand_as(memory.keys), _WIDE * whole.std().expand_as(memory.keys))
    posterior = models.bayesian(memory, keys=prior, weights=flat)
    start = {"keys": memory.keys, "weights": memory.log_weights().exp()}
    return gibbs(posterior, *data[:2], num_samples=num_samples, num_chains=num_chains, num_warmup=50, start=start,
                 seed=seed, progress=False)  # fmt: skip


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
    labels = memory.unit_answers().argmax(-1)
    return [
        Explanation(own.numpy(), classes[labels[own].numpy()], *(x[i, own].numpy() for x in (attention, low, high)),
                    memory.keys[own].numpy())  # type: ignore[call-arg]
        for i, own in enumerate(order)
    ]  # fmt: skip
