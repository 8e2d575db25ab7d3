"""Held-out points: their evidence under memories that were not learned from them, and how far answers are to be trusted.

Evidence and answers ask different things of a spread. Features that depend on each other, which a diagonal metric takes for
independent, make it too sure. A temperature T divides the squared distances of the answers alone, ``p(c | x) ∝ Σ_j π_j ρ_jc exp(-d²_j/2T)``,
which is the same memory with precision α/T; the weights, and with them the prevalence of classes, keep their meaning.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from probtx_pyro.apps.memory._learn import Examples
from probtx_pyro.models import GaussianMixture

_NUMBERS_AT_ONCE = 1 << 22  # of a tensor over points and units
_COLDEST, _HOTTEST = 0.1, 1000.0  # temperatures


class HeldOut(NamedTuple):
    """Scores of the training points, each by a memory that was learned without it.

    log_evidence: (N,). temperature: that of the least log loss of their labels, 1 where there is nothing to learn it from.
    """

    log_evidence: np.ndarray
    temperature: float


def cross_validated(
    points: Tensor, shares: Tensor, learn: Callable[[Examples], GaussianMixture], num_folds: int, seed: int
) -> HeldOut:
    """Learn a memory without each fold in turn, and ask it about the fold.

    Parameters
    ----------
    points, shares
        (N, D), and the shares of classes (N, C).
    learn
        From examples to a memory.
    num_folds, seed
        At most N folds, each with its part of every class.
    """
    fold_of = _folds(shares.argmax(-1), min(num_folds, len(points)), seed)
    evidence, asked = points.new_empty(len(points)), []
    for fold in fold_of.unique():
        inside = fold_of == fold
        memory = learn(Examples.of(points[~inside], shares[~inside]))
        evidence[inside] = log_evidence(memory, points[inside])
        present = shares[~inside].sum(0) > 0
        known = shares[inside][:, ~present].sum(-1) == 0  # else no temperature answers with the label
        asked.append((memory, points[inside][known], shares[inside][known]))
    return HeldOut(evidence.numpy(), _temperature(asked))


def _folds(labels: Tensor, num_folds: int, seed: int) -> Tensor:
    """Deal the points of each class out to the folds in turn, in an order drawn at random."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[labels[order].argsort(stable=True)]
    fold_of = torch.empty_like(labels)
    fold_of[order] = torch.arange(len(labels)) % num_folds
    return fold_of


def _temperature(asked: list[tuple[GaussianMixture, Tensor, Tensor]]) -> float:
    """The temperature of the least log loss, of memories with the points and labels that they are asked about."""
    if not any(len(points) for _, points, _ in asked):
        return 1.0

    def loss(log_temperature: float) -> float:
        total = 0.0
        for memory, points, shares in asked:
            answers = expected_answers(tempered(memory, math.exp(log_temperature)), points)
            total -= float((shares * answers.clamp_min(torch.finfo(answers.dtype).tiny).log()).sum())
        return total

    bounds = math.log(_COLDEST), math.log(_HOTTEST)
    best = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 0.02})
    return math.exp(best.x) if best.fun < loss(0.0) else 1.0


def tempered(memory: GaussianMixture, temperature: float) -> GaussianMixture:
    """Return the memory whose squared distances are divided by a temperature."""
    return memory.with_parameters({"key_precision": memory.key_precision / temperature})


def blocks(memory: GaussianMixture, points: Tensor) -> Iterator[Tensor]:
    """Cut points into blocks of which a tensor over points and units stays small."""
    wide = memory.num_units + points.shape[-1]
    yield from points.split(max(1, _NUMBERS_AT_ONCE // wide))


def log_evidence(memory: GaussianMixture, points: Tensor) -> Tensor:
    """``log p(x)`` of points (N, D), (N,)."""
    return torch.cat([memory.log_evidence(some) for some in blocks(memory, points)])


def expected_answers(memory: GaussianMixture, points: Tensor) -> Tensor:
    """``p(c | x)`` of points (N, D), (N, C), rows on the simplex."""
    answers = torch.cat([memory.expected_outputs(some) for some in blocks(memory, points)])
    return answers / answers.sum(-1, keepdim=True)


def threshold(held_out: np.ndarray, false_alarm_rate: float) -> float:
    """Return the evidence below which a point is unlike the training points.

    Of n held-out points and a new one of the same kind, which are exchangeable, the new one falls below the k-th smallest with
    probability at most ``k / (n + 1)``; k is the largest whole number for which this is at most the rate (-inf where it is 0).

    Parameters
    ----------
    held_out
        Evidence of held-out points, (n,).
    false_alarm_rate
        From 0 to below 1.

    Examples
    --------
    >>> threshold(np.arange(99.0), 0.05)
    4.0
    """
    rank = math.floor(false_alarm_rate * (len(held_out) + 1) + 1e-9)
    return float(np.sort(held_out)[rank - 1]) if rank else -math.inf
