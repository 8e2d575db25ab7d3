"""A memory learned from labelled points: a Gaussian mixture whose units answer with a label, found by EM on points and labels.

``p(x, c) = Σ_j π_j ρ_jc N(x; ξ_j, (α Λ)⁻¹)``. Units of one class have a ρ_j with a single 1, so that a labelled point attends to the
units of its class alone. Keys and weights maximise the likelihood; what all units share, α or Λ, maximises it under a prior that
counts as ``prior_weight`` points whose spread is the same in all directions, which shrinks a covariance as regularised discriminant
analysis does (Friedman 1989).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from pyro.distributions import Gamma, Wishart
from torch import Tensor

from probtx_pyro import models
from probtx_pyro.inference import adapt
from probtx_pyro.models import FLAT, GaussianMixture

_PAIRS_AT_ONCE = 1 << 23  # points times units in the evidence of points left out
_NUM_STEPS, _TOL = 50, 1e-3


class Spread(NamedTuple):
    """Start of the shared precision or metric, as fields of the mixture, and its prior by name."""

    fields: Mapping[str, Any]
    priors: Mapping[str, Any]


def _scalar(covariance: Tensor, square: Tensor, prior_weight: float) -> Spread:
    half = 0.5 * prior_weight * covariance.shape[-1]
    mean = _shrunk(covariance, square, prior_weight).diagonal().mean().reshape(1)
    return Spread({"key_precision": 1 / mean}, {"key_precision": Gamma(1 + half, half * square.reshape(1))})


def _diagonal(covariance: Tensor, square: Tensor, prior_weight: float) -> Spread:
    half = 0.5 * prior_weight
    metric = _shrunk(covariance, square, prior_weight).diagonal().reciprocal()
    prior = Gamma(torch.full_like(metric, 1 + half), half * square.expand_as(metric))
    return Spread({"metric": metric, "diagonal_metric": True}, {"metric": prior})


def _full(covariance: Tensor, square: Tensor, prior_weight: float) -> Spread:
    features = covariance.shape[-1]
    metric = torch.linalg.inv(_shrunk(covariance, square, prior_weight))
    scale = torch.eye(features, dtype=metric.dtype) / (prior_weight * square)
    prior = Wishart(square.new_tensor(features + 1 + prior_weight), covariance_matrix=scale)
    return Spread({"metric": 0.5 * (metric + metric.mT), "diagonal_metric": False}, {"metric": prior})


def _shrunk(covariance: Tensor, square: Tensor, prior_weight: float) -> Tensor:
    """Return a start, at which half of the covariance is that of the prior."""
    return 0.5 * covariance + 0.5 * square * torch.eye(len(covariance), dtype=covariance.dtype)


METRICS: Mapping[str, Callable[[Tensor, Tensor, float], Spread]] = {
    "scalar": _scalar, "diagonal": _diagonal, "full": _full,
}  # fmt: skip


class Examples(NamedTuple):
    """Labelled points.

    points: (N, D). labels: (N,), from 0. weights: (N,), how often each counts. rows: (N,), the row of the data that each is; a row
    with a soft label is several examples, one a class.
    """

    points: Tensor
    labels: Tensor
    weights: Tensor
    rows: Tensor

    @classmethod
    def of(cls, points: Tensor, shares: Tensor) -> "Examples":
        """Make examples of points (N, D) with shares of classes (N, C), rows on the simplex."""
        rows, labels = torch.nonzero(shares, as_tuple=True)
        return cls(points[rows], labels, shares[rows, labels], rows)

    def some(self, chosen: Tensor) -> "Examples":
        """Return those chosen, by number or by a boolean for each."""
        return Examples(*(x[chosen] for x in self))


def learn_memory(
    examples: Examples, num_classes: int, units_per_class: int | None, metric: str, prior_weight: float, seed: int
) -> GaussianMixture:
    """Return the memory that EM finds.

    Parameters
    ----------
    examples
        Labelled points.
    num_classes
        C, the width of the answers; a class without examples has no unit.
    units_per_class
        At most so many, fewer where a class has fewer points that differ; None makes every point a unit.
    metric
        A key of `METRICS`.
    prior_weight
        Points that the prior of the spread counts as.
    seed
        Of the start by k-means++.

    Raises
    ------
    ValueError
        Points that do not vary.
    """
    points, total = examples.points, examples.weights.sum()
    around = points - _class_means(examples, num_classes)[examples.labels]
    covariance = (examples.weights.unsqueeze(-1) * around).mT @ around / total
    whole = points - points.mean(0)
    if not float(whole.square().mean()) > torch.finfo(points.dtype).eps ** 2 * float(points.square().mean()):
        raise ValueError("X does not vary, so that no spread fits it; give at least two points that differ")
    square = covariance.diagonal().mean()
    if not float(square) > 1e-12 * float(whole.square().mean()):  # a class is a point: the spread is that of all points
        covariance = whole.mT @ whole / len(whole)
        square = covariance.diagonal().mean()
    number = len(points) / num_classes if units_per_class is None else units_per_class
    shrink = max(1.0, number) ** (-2 / points.shape[-1])  # so many units that share the volume of a class
    spread = METRICS[metric](covariance * shrink, square * shrink, prior_weight)
    if units_per_class is None:
        return _every_point(examples, num_classes, spread, seed)
    keys, owners = _start(examples, num_classes, units_per_class, spread, seed)
    answers = torch.eye(num_classes, dtype=points.dtype)[owners]
    mixture = GaussianMixture.categorical(keys, answers, **spread.fields)
    posterior = models.bayesian(mixture, keys=FLAT, weights=FLAT, **spread.priors)
    given: dict[str, Any] = {"query_weights": examples.weights, "num_steps": _NUM_STEPS, "tol": _TOL, "progress": False}
    return adapt(posterior, points, examples.labels, **given).formulation


def _class_means(examples: Examples, num_classes: int) -> Tensor:
    sums = examples.points.new_zeros(num_classes, examples.points.shape[-1])
    sums.index_add_(0, examples.labels, examples.weights.unsqueeze(-1) * examples.points)
    return sums / examples.weights.new_zeros(num_classes).index_add_(0, examples.labels, examples.weights).unsqueeze(-1)


def _start(
    examples: Examples, num_classes: int, units_per_class: int, spread: Spread, seed: int
) -> tuple[Tensor, Tensor]:
    """Return keys by k-means++ within each class, where the spread is 1 in all directions, and the class of each."""
    fields = spread.fields
    metric = fields.get("metric", torch.ones_like(examples.points[0]))
    root = torch.linalg.cholesky(metric) if metric.dim() == 2 else torch.diag(metric.sqrt())
    keys, owners = [], []
    for label in range(num_classes):
        own = examples.points[examples.labels == label].unique(dim=0)
        number = min(units_per_class, len(own))
        if number:
            picked = models.SoftKMeans.plus_plus(own @ root, number, 1.0, seed=seed).centers
            keys.append(torch.linalg.solve_triangular(root, picked, upper=False, left=False))
            owners += [label] * number
    return torch.cat(keys), torch.tensor(owners)


def _every_point(examples: Examples, num_classes: int, spread: Spread, seed: int) -> GaussianMixture:
    """Return the memory whose units are the points, each with its label; the spread is that of points left out, one at a time.

    Such a point attends to the others of its class: its own unit, and those of other rows with the same place in ``rows``, are masked.
    """
    rows, first = examples.rows.unique(return_inverse=True)
    keys = examples.points.new_empty(len(rows), examples.points.shape[-1])
    keys[first] = examples.points
    shares = examples.points.new_zeros(len(rows), num_classes)
    shares[first, examples.labels] = examples.weights
    log_prior = torch.full((1, len(rows)), -math.log(len(rows)), dtype=keys.dtype)
    mixture = GaussianMixture.categorical(keys, shares, log_prior=log_prior, **spread.fields)
    company = (shares > 0).sum(0)[examples.labels] > 1  # of another point of the class
    asked = torch.nonzero(company).squeeze(-1)
    if not len(asked):
        return mixture
    most = max(1, _PAIRS_AT_ONCE // len(keys))
    order = torch.randperm(len(asked), generator=torch.Generator().manual_seed(seed))
    some = examples.some(asked[order[:most]])
    masked = log_prior.repeat(len(some.rows), 1)
    masked[torch.arange(len(masked)), first[asked[order[:most]]]] = -torch.inf
    left_out = mixture.replace(log_prior=masked.log_softmax(-1))
    fit = adapt(models.bayesian(left_out, **spread.priors), some.points, some.labels, query_weights=some.weights,
                num_steps=_NUM_STEPS, tol=_TOL, progress=False).formulation  # fmt: skip
    return fit.replace(log_prior=log_prior)
