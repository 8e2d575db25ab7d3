"""Held-out points: their evidence under memories that were not learned from them,
and how far answers are to be trusted.

Evidence and answers ask different things of a spread. Features that depend on each other, which a diagonal metric takes
for independent, make it too sure. A temperature T divides the squared distances of the answers alone,
``p(c | x) ∝ Σ_j π_j ρ_jc exp(-d²_j/2T)``, which is the same memory with precision α/T; the weights, and with them the
prevalence of classes, keep their meaning.

A point so far from all units that its squared distances overflow is one that the memory has not seen: its evidence is
-inf, and as no unit speaks for it, its answer is the prevalence of the classes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import scipy  # scipy.optimize is loaded when it is used
import torch
from torch import Tensor

from probtx_pyro.apps.memory._learn import Examples
from probtx_pyro.models import GaussianMixture

_NUMBERS_AT_ONCE = 1 << 22  # of a tensor over points and units
_MOST_PAIRS = 1 << 23  # points times units from which a temperature is learned
_COLDEST, _HOTTEST = 0.1, 1000.0  # temperatures


class HeldOut(NamedTuple):
    """Scores of the training points, each by a memory that was learned without it.

    log_evidence: (N,), NaN where what is left without the fold does not vary, and where a point is in no fold.
    temperature: that of the least log loss of their labels, 1 where there is nothing to learn it from. biases: (C,), by
    which the log answers at some temperature are moved so that every class is said as often as it is.
    """

    log_evidence: np.ndarray
    temperature: float
    biases: Callable[[float], Tensor]


def folds_of(labels: Tensor, num_folds: int, before: Sequence[int], seed: int) -> Tensor:
    """Deal the points of each class out to the folds, in rounds of an order drawn at random.

    Parameters
    ----------
    labels
        (N,), from 0.
    num_folds
        How many.
    before
        How many points of each class were dealt out before these: they go on where those ended, as if all had come at
        once.
    seed
        Of the orders.
    """
    fold_of = torch.empty_like(labels)
    for label in labels.unique().tolist():
        own = torch.nonzero(labels == label).squeeze(-1)
        last = before[label] + len(own)
        orders = np.random.default_rng([seed, label]).random((-(-last // num_folds), num_folds)).argsort(1)
        fold_of[own] = torch.from_numpy(orders.ravel()[before[label] : last])
    return fold_of


def held_out(
    points: Tensor, shares: Tensor, fold_of: Tensor, memories: Sequence[GaussianMixture | None], seed: int
) -> HeldOut:
    """Ask about each point the memory that was learned without its fold.

    Parameters
    ----------
    points, shares
        (N, D), and the shares of classes (N, C).
    fold_of
        (N,), -1 in none.
    memories
        One for each fold, None where none could be learned.
    seed
        Of the points that the temperature is learned from, where there are very many.
    """
    evidence, asked = points.new_full((len(points),), math.nan), []
    units = max((memory.num_units for memory in memories if memory is not None), default=1)
    share = _MOST_PAIRS / (units * len(points))
    chosen = torch.rand(len(points), generator=torch.Generator().manual_seed(seed), device="cpu") < share
    for fold, memory in enumerate(memories):
        inside = fold_of == fold
        if memory is not None and bool(inside.any()):
            evidence[inside] = log_evidence(memory, points[inside])
            asked.append(_Asked.of(memory, Examples.of(points[inside & chosen], shares[inside & chosen])))
    return HeldOut(evidence.numpy(), _temperature(asked), lambda temperature: _biases(asked, temperature, shares[:1]))


class _Asked(NamedTuple):
    """All that a temperature needs. log_weights: (1, U). halves: minus half the squared distances, plus a constant,
    (N, U). unit_answers: ``ρ_jc``, (U, C). labels, weights: (N,).
    """

    log_weights: Tensor
    halves: Tensor
    unit_answers: Tensor
    labels: Tensor
    weights: Tensor

    @classmethod
    def of(cls, memory: GaussianMixture, examples: Examples) -> "_Asked":
        """Ask a memory about examples; those of a class that it does not have are left out,
        as no temperature answers with it.
        """
        of_units = memory.unit_answers()
        some = examples.some(of_units.sum(0)[examples.labels] > 0)
        halves = memory.log_joint(some.points) - memory.log_weights()
        seen = halves.amax(-1).isfinite()  # NaN where one is; the others are like nothing that the memory knows
        return cls(memory.log_weights(), halves[seen], of_units, some.labels[seen], some.weights[seen])

    def attention(self, temperature: float) -> Tensor:
        """Attention of the examples to the units, (N, U)."""
        return (self.log_weights + self.halves / temperature).softmax(-1)

    def loss(self, temperature: float) -> float:
        """Log loss of the labels, their sum."""
        answers = (self.attention(temperature) * self.unit_answers.mT[self.labels]).sum(-1)
        return -float(self.weights @ answers.clamp_min(torch.finfo(answers.dtype).tiny).log())


def _temperature(asked: list[_Asked]) -> float:
    """The temperature of the least log loss."""
    if not any(len(some.weights) for some in asked):
        return 1.0

    def loss(log_temperature: float) -> float:
        return sum(some.loss(math.exp(log_temperature)) for some in asked)

    bounds = math.log(_COLDEST), math.log(_HOTTEST)
    best = scipy.optimize.minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 0.02})
    return math.exp(best.x) if best.fun < loss(0.0) else 1.0


def _biases(asked: list[_Asked], temperature: float, like: Tensor) -> Tensor:
    """Return the biases of the least log loss of ``softmax(log p + b)`` under a Normal(0, 1) prior, (C,),
    as a tensor like one (1, C).
    """
    if not asked:
        return torch.zeros_like(like[0])
    answers = torch.cat([some.attention(temperature) @ some.unit_answers for some in asked])
    logs = answers.clamp_min(torch.finfo(answers.dtype).tiny).log()
    labels, weights = torch.cat([some.labels for some in asked]), torch.cat([some.weights for some in asked])
    truth = torch.zeros_like(like[0]).index_add_(0, labels, weights)

    def loss(biases: np.ndarray) -> tuple[float, np.ndarray]:
        moved = logs + torch.from_numpy(biases).to(logs)
        own = moved.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        value = weights @ (moved.logsumexp(-1) - own)
        away = weights @ moved.softmax(-1) - truth
        return float(value) + 0.5 * float(biases @ biases), away.double().numpy() + biases

    return torch.from_numpy(scipy.optimize.minimize(loss, np.zeros(len(truth)), jac=True, method="L-BFGS-B").x).to(logs)


def tempered(memory: GaussianMixture, temperature: float) -> GaussianMixture:
    """Return the memory whose squared distances are divided by a temperature."""
    return memory.with_parameters({"key_precision": memory.key_precision / temperature})


def blocks(memory: GaussianMixture, points: Tensor) -> Iterator[Tensor]:
    """Cut points into blocks of which a tensor over points and units stays small."""
    wide = memory.num_units + points.shape[-1]
    yield from points.split(max(1, _NUMBERS_AT_ONCE // wide))


def log_evidence(memory: GaussianMixture, points: Tensor) -> Tensor:
    """``log p(x)`` of points (N, D), (N,); -inf where it overflows or is no number."""
    evidence = torch.cat([memory.log_evidence(some) for some in blocks(memory, points)])
    return torch.where(evidence < math.inf, evidence, -math.inf)


def expected_answers(memory: GaussianMixture, points: Tensor) -> Tensor:
    """``p(c | x)`` of points (N, D), (N, C), rows on the simplex;
    the prevalence of the classes where the log evidence is -inf.
    """
    squares = ((points - memory.keys.mean(0)) @ root_of(memory)).square().sum(-1)
    told = squares < torch.finfo(squares.dtype).max ** 0.5  # the others may overflow, and are asked for their evidence
    if not bool(told.all()):
        told = told.index_put((~told,), log_evidence(memory, points[~told]) > -math.inf)
    asked, prevalence = torch.where(told.unsqueeze(-1), points, memory.keys[:1]), class_shares(memory)
    answers = torch.cat([memory.expected_outputs(some) for some in blocks(memory, asked)])
    total = answers.sum(-1, keepdim=True)
    told = told.unsqueeze(-1) & (total > 0)
    return torch.where(told, answers / total.where(told, 1.0), prevalence / prevalence.sum())


def class_shares(memory: GaussianMixture) -> Tensor:
    """``p(c) = Σ_j π_j ρ_jc``, (C,)."""
    return memory.log_weights().exp()[0] @ memory.unit_answers()


def root_of(memory: GaussianMixture) -> Tensor:
    """The matrix L (D, D) by which points are whitened, ``x L``: ``L L' = α Λ``."""
    size = memory.keys.shape[-1]
    root = torch.eye(size, dtype=memory.keys.dtype)
    if memory.metric is not None:
        root = torch.diag(memory.metric.sqrt()) if memory.diagonal_metric else torch.linalg.cholesky(memory.metric)
    return root * memory.key_precision.reshape(-1)[0].sqrt()
