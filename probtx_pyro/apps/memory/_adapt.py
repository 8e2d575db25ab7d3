"""A memory that adapts to points without labels: which of its parts move, under which priors, and what prevalence the points have.

Labels alone tell classes apart, and points without labels can move the keys of one class onto another while their evidence rises. So
every prior is centred on what was learned, and counts as ``anchor`` points of the memory's own spread, in every direction: the
memory adapts in whitened coordinates.

**Prevalence.** ``p(x | c) ∝ p(c | x) / p(c)`` whatever the memory (Saerens et al. 2002), so that the weights of classes need no more
than the answers. They are the weights of a mixture with the unit vectors e_c as keys and precision 1, asked with the vectors of
``log p(c | x) - log p(c)``: its attention is ``softmax_c(log π_c + log p(x | c))``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from pyro.distributions import Dirichlet, Distribution, Gamma, Normal, Wishart
from torch import Tensor

from probtx_pyro import models
from probtx_pyro.apps.memory._held_out import expected_answers, tempered
from probtx_pyro.inference import adapt, gibbs
from probtx_pyro.models import Bayesian, GaussianMixture

_NUM_STEPS, _TOL = 50, 1e-3
_WARMUP = 100  # sweeps of Gibbs, which starts at the mode


def _shift(memory: GaussianMixture, anchor: float) -> Distribution:
    present = torch.zeros_like(memory.keys[0]) if memory.shift is None else memory.shift
    return Normal(present, anchor**-0.5)


def _keys(memory: GaussianMixture, anchor: float) -> Distribution:
    """The prior under which each unit has its share of the points that all count as."""
    own = (anchor * memory.log_weights().exp()[0]).clamp_min(torch.finfo(memory.keys.dtype).eps)
    return Normal(memory.keys, own.rsqrt().unsqueeze(-1).expand_as(memory.keys))


def _metric(memory: GaussianMixture, anchor: float) -> Distribution:
    """The prior whose mode is the present metric, for a scalar one the precision, both 1 in whitened coordinates."""
    ones = torch.ones_like(memory.keys[0])
    if memory.metric is None:
        half = 0.5 * anchor * len(ones)
        return Gamma(torch.full_like(memory.key_precision, 1 + half), half)
    if memory.diagonal_metric:
        return Gamma(1 + 0.5 * anchor * ones, 0.5 * anchor)
    return Wishart(ones.new_tensor(len(ones) + 1 + anchor), covariance_matrix=torch.diag(ones) / anchor)


def _weights(memory: GaussianMixture, anchor: float) -> Distribution:
    return Dirichlet(1 + anchor * memory.log_weights().exp())


def _root(memory: GaussianMixture) -> Tensor:
    """The matrix L (D, D) by which points are whitened, ``x L``: ``L L' = α Λ``."""
    size = memory.keys.shape[-1]
    root = torch.eye(size, dtype=memory.keys.dtype)
    if memory.metric is not None:
        root = torch.diag(memory.metric.sqrt()) if memory.diagonal_metric else torch.linalg.cholesky(memory.metric)
    return root * memory.key_precision.reshape(-1)[0].sqrt()


def _in_coordinates(memory: GaussianMixture, root: Tensor) -> GaussianMixture:
    """Return the memory of points ``x root``; the precision goes into the metric, where there is one."""
    inverse = torch.linalg.inv(root)
    changes: dict[str, Tensor] = {"keys": memory.keys @ root}
    if memory.shift is not None:
        changes["shift"] = memory.shift @ root
    if memory.metric is None:
        changes["key_precision"] = memory.key_precision * inverse[0, 0].square()
    elif memory.diagonal_metric:
        changes["metric"] = memory.metric * memory.key_precision.reshape(-1)[0] * inverse.diagonal().square()
    else:
        metric = inverse @ (memory.metric * memory.key_precision.reshape(-1)[0]) @ inverse.mT
        changes["metric"] = 0.5 * (metric + metric.mT)
    if memory.metric is not None:
        changes["key_precision"] = torch.ones_like(memory.key_precision)
    return memory.with_parameters(changes)


#: what may move, with its prior
MOVES: Mapping[str, Callable[[GaussianMixture, float], Distribution]] = {
    "prevalence": _weights, "shift": _shift, "metric": _metric, "keys": _keys,
}  # fmt: skip


def posterior_of(memory: GaussianMixture, moves: Sequence[str], anchor: float) -> Bayesian[GaussianMixture]:
    """Return the memory, in coordinates where its units are round and of spread 1, with priors on what moves, as one program.

    Parameters
    ----------
    memory
        As it was learned.
    moves
        Keys of `MOVES`.
    anchor
        Points that what was learned counts as.
    """
    round_ = _in_coordinates(memory, _root(memory))
    if "shift" in moves and round_.shift is None:
        round_ = round_.with_parameters({"shift": torch.zeros_like(round_.keys[0])})
    names = {"prevalence": "weights", "metric": "key_precision" if memory.metric is None else "metric"}
    priors: dict[str, Any] = {names.get(name, name): MOVES[name](round_, anchor) for name in moves}
    return models.bayesian(round_, **priors)


def adapted(
    memory: GaussianMixture, points: Tensor, moves: Sequence[str], anchor: float, temperature: float
) -> GaussianMixture:
    """Return the memory after what moves has adapted to points.

    Parameters
    ----------
    memory
        As it was learned.
    points
        (N, D), without labels.
    moves, anchor
        As in `posterior_of`.
    temperature
        Of the answers, from which the prevalence follows, after the rest.
    """
    moved = memory
    if set(moves) - {"prevalence"}:
        posterior, root = posterior_of(memory, moves, anchor), _root(memory)
        fit = adapt(posterior, points @ root, num_steps=_NUM_STEPS, tol=_TOL, progress=False).formulation
        moved = _in_coordinates(fit, torch.linalg.inv(root)).with_parameters({"log_prior": memory.log_prior})
    if "prevalence" in moves:
        present, shares, queries = _of_classes(moved, points, temperature)
        prior = Dirichlet(1 + anchor * shares.unsqueeze(0))
        posterior = models.bayesian(present, weights=prior)
        weighed = adapt(posterior, queries, num_steps=1000, tol=1e-5, progress=False).formulation
        moved = with_prevalence(moved, weighed.log_weights().exp()[0])
    return moved


def class_shares(memory: GaussianMixture) -> Tensor:
    """``p(c) = Σ_j π_j ρ_jc``, (C,)."""
    return memory.log_weights().exp()[0] @ memory.unit_answers()


def with_prevalence(memory: GaussianMixture, shares: Tensor) -> GaussianMixture:
    """Return the memory with other shares of the classes, (C,), and the same densities ``p(x | c)``."""
    joint = memory.log_weights().exp()[0].unsqueeze(-1) * memory.unit_answers()
    joint = joint * torch.where(shares > 0, shares / class_shares(memory), 0.0)
    weights = joint.sum(-1)
    answers = torch.where(weights.unsqueeze(-1) > 0, joint / weights.unsqueeze(-1), memory.unit_answers())
    return memory.with_parameters({"log_prior": (weights / weights.sum()).log().unsqueeze(0), "answer_probs": answers})


def _of_classes(memory: GaussianMixture, points: Tensor, temperature: float) -> tuple[GaussianMixture, Tensor, Tensor]:
    """Return the mixture whose units are the classes, their present shares, and its queries (N, C)."""
    answers, shares = expected_answers(tempered(memory, temperature), points), class_shares(memory)
    tiny = torch.finfo(answers.dtype).tiny
    queries = answers.clamp_min(tiny).log() - shares.clamp_min(tiny).log()
    queries = queries - queries.amax(-1, keepdim=True)
    mixture = GaussianMixture(torch.eye(len(shares), dtype=queries.dtype), log_prior=shares.log().unsqueeze(0))
    return mixture, shares, queries


class Prevalence(NamedTuple):
    """Shares of the classes where points come from: mean of the posterior, and the ends of a central interval, (C,) each."""

    classes: np.ndarray
    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray


def draw_prevalence(
    memory: GaussianMixture, points: Tensor, concentration: float, temperature: float, num_samples: int, num_chains: int, seed: int
) -> Tensor:  # fmt: skip
    """Draw the shares of the classes in the population that points come from, (draw, C).

    Parameters
    ----------
    memory, points, temperature
        As in `adapted`.
    concentration
        Of the Dirichlet prior of the shares.
    num_samples, num_chains, seed
        As in `inference.gibbs`.
    """
    present, shares, queries = _of_classes(memory, points, temperature)
    prior = Dirichlet(torch.full_like(shares, concentration).unsqueeze(0))
    draws = gibbs(models.bayesian(present, weights=prior), queries, num_samples=num_samples, num_chains=num_chains,
                  num_warmup=_WARMUP, seed=seed, progress=False)  # fmt: skip
    return draws.samples["weights"].flatten(0, 1)[:, 0]
