"""A memory learned from labelled points: a Gaussian mixture whose units answer with a label,
found by EM on points and labels.

``p(x, c) = Σ_j π_j ρ_jc N(x; ξ_j, Λ⁻¹)``. Units of one class have a ρ_j with a single 1, so that a labelled point
attends to the units of its class alone, and the E-step goes class by class. Keys and weights maximise the likelihood;
what all units share, Λ, maximises it under a prior that counts as ``prior_weight`` points whose spread is the same in
all directions, which shrinks a covariance as regularised discriminant analysis does (Friedman 1989).

Counts, means and scatter of the units are all that EM takes from points (`Sums`), so that those of later points are
added to them: with one unit a class exactly; with several, whose E-step depends on the parameters, as under the
conjugate prior that the points before make (incremental EM, Neal & Hinton 1998).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from probtx_pyro.models import GaussianMixture, SoftKMeans

_PAIRS_AT_ONCE = 1 << 23  # of points and units in the evidence of points left out
_NUM_STEPS = 50
# EM ends when no key moves by more, in standard deviations, and no variance, in parts of itself
_TOL_KEYS, _TOL_SPREAD = 1e-2, 1e-3


class Shared(NamedTuple):
    """The spread that units share. precision: Λ from a covariance, a number (1,),
    a diagonal (D,) or a matrix. fields: of the mixture, from it.
    """

    precision: Callable[[Tensor], Tensor]
    fields: Callable[[Tensor], Mapping[str, Any]]


METRICS: Mapping[str, Shared] = {
    "scalar": Shared(lambda c: 1 / c.diagonal().mean().reshape(1), lambda p: {"key_precision": p}),
    "diagonal": Shared(lambda c: 1 / c.diagonal(), lambda p: {"metric": p, "diagonal_metric": True}),
    "full": Shared(lambda c: _symmetric(torch.linalg.inv(c)), lambda p: {"metric": p, "diagonal_metric": False}),
}


class Settings(NamedTuple):
    """Settings of learning.

    num_classes: C, the width of the answers; a class without examples has no unit. units_per_class: at most so many,
    fewer where a class has fewer points that differ; None makes every point a unit. metric: a key of `METRICS`.
    prior_weight: points that the prior of the spread counts as. seed: of the start by k-means++.
    """

    num_classes: int
    units_per_class: int | None
    metric: str
    prior_weight: float
    seed: int


class Examples(NamedTuple):
    """Labelled points.

    points: (N, D). labels: (N,), from 0. weights: (N,), how often each counts. rows: (N,), the row of the data that
    each is; a row with a soft label is several examples, one a class.
    """

    points: Tensor
    labels: Tensor
    weights: Tensor
    rows: Tensor

    @classmethod
    def of(cls, points: Tensor, shares: Tensor) -> "Examples":
        """Make examples of points (N, D) with shares of classes (N, C), rows on the simplex,
        or that times how often each counts.
        """
        rows, labels = torch.nonzero(shares, as_tuple=True)
        return cls(points if len(rows) == len(points) else points[rows], labels, shares[rows, labels], rows)

    def some(self, chosen: Tensor) -> "Examples":
        """Return those chosen, by number or by a boolean for each."""
        return Examples(*(x[chosen] for x in self))

    def by_class(self) -> Iterator[tuple[int, Tensor]]:
        """Yield each class that has examples, and their numbers."""
        numbers = self.labels.argsort(stable=True).split(self.labels.bincount().tolist())
        yield from ((label, own) for label, own in enumerate(numbers) if len(own))


class Sums(NamedTuple):
    """Sufficient statistics of points that attend to units, each unit of one class.

    counts: ``n_j = Σ_i w_ij``, (U,). means: ``m_j = Σ_i w_ij x_i / n_j``, (U, D). scatter:
    ``Σ_ij w_ij (x_i - m_j)(x_i - m_j)'``, (D, D). owners: the class of each unit, (U,).
    """

    counts: Tensor
    means: Tensor
    scatter: Tensor
    owners: Tensor

    def plus(self, other: "Sums") -> "Sums":
        """Add the sums of other points over the same units, by means and not by squares,
        so that nothing cancels (Chan et al. 1983).
        """
        counts = self.counts + other.counts
        share = _ratio(other.counts, counts)
        away = other.means - self.means
        scatter = self.scatter + other.scatter + away.mT @ ((self.counts * share).unsqueeze(-1) * away)
        return Sums(counts, self.means + share.unsqueeze(-1) * away, scatter, self.owners)

    def grouped(self, groups: Tensor, number: int) -> "Sums":
        """Take the units of each of so many groups, (U,) from 0, as one."""
        counts = self.counts.new_zeros(number).index_add_(0, groups, self.counts)
        sums = self.means.new_zeros(number, self.means.shape[-1])
        means = _ratio(sums.index_add_(0, groups, self.counts.unsqueeze(-1) * self.means), counts.unsqueeze(-1))
        away = self.means - means[groups]
        scatter = self.scatter + away.mT @ (self.counts.unsqueeze(-1) * away)
        return Sums(counts, means, scatter, torch.arange(number))

    def vary(self) -> bool:
        """Return True if the points differ."""
        whole = self.grouped(torch.zeros_like(self.owners), 1)
        varied = float(whole.scatter.trace() / whole.counts.sum().clamp_min(1)) ** 0.5
        return varied > 16 * torch.finfo(whole.means.dtype).eps * max(varied, float(whole.means.abs().max()))


class Spread(NamedTuple):
    """The covariance of units before EM, (D, D), and the variance in all directions that its prior expects."""

    covariance: Tensor
    square: Tensor

    @classmethod
    def of(cls, sums: Sums, num_classes: int, units_per_class: float) -> "Spread":
        """Take the spread of classes, shrunk to that of so many units that share the volume of one."""
        classes = sums.grouped(sums.owners, num_classes)
        whole = classes.grouped(torch.zeros_like(classes.owners), 1)
        total, size = whole.counts.sum(), len(whole.scatter)
        if not sums.vary():
            raise ValueError("X does not vary; give at least two points that differ, at the first call")
        # where each class is a point, the spread of all points
        one = not float(classes.scatter.trace() / total) > 1e-12 * float(whole.scatter.trace() / total)
        covariance = (whole if one else classes).scatter / total * max(1.0, units_per_class) ** (-2 / size)
        square = covariance.diagonal().mean()
        return cls(0.5 * covariance + 0.5 * square * torch.eye(size, dtype=square.dtype), square)

    def mode(self, scatter: Tensor, total: Tensor, prior_weight: float) -> Tensor:
        """Return the covariance (D, D) given the scatter around units of so many points."""
        prior = prior_weight * self.square * torch.eye(len(scatter), dtype=scatter.dtype)
        return (prior + _symmetric(scatter)) / (prior_weight + total)


def learned_sums(examples: Examples, settings: Settings, before: Sums | None = None) -> Sums:
    """Return the sums at which EM ends, those of earlier points included.

    Parameters
    ----------
    examples
        Labelled points.
    settings
        With a number of units.
    before
        Sums of earlier points, which stay assigned as they are; a class that has fewer units than it may have gets
        others.

    Raises
    ------
    ValueError
        Points that do not vary.
    """
    assert settings.units_per_class is not None
    classes = class_sums(examples, settings.num_classes)
    if settings.units_per_class == 1:
        return classes if before is None else before.plus(classes)
    every = classes if before is None else before.grouped(before.owners, settings.num_classes).plus(classes)
    spread = Spread.of(every, settings.num_classes, settings.units_per_class)
    present = _with_starts(examples, settings, spread, before)
    own_units = [torch.nonzero(present.owners == label).squeeze(-1) for label in range(settings.num_classes)]
    groups = [
        (examples.points[own] - classes.means[label], examples.weights[own], own_units[label], classes.means[label])
        for label, own in examples.by_class()
    ]
    total, covariance = present._replace(counts=present.counts.clamp_min(1)), spread.covariance
    for _ in range(_NUM_STEPS):
        precision = METRICS[settings.metric].precision(covariance)
        counts, means, scatter = torch.zeros_like(total.counts), total.means.clone(), classes.scatter.clone()
        for points, weights, units, center in groups:
            attention = _attention(points, total.means[units] - center, total.counts[units].log(), precision)
            attention = attention * weights.unsqueeze(-1)
            counts[units] = attention.sum(0)
            sums = attention.mT @ points
            away = _ratio(sums, counts[units].unsqueeze(-1))
            means[units] = center + away
            scatter -= sums.mT @ away
        new = present.plus(Sums(counts, means, scatter, present.owners))
        moved, old = new.means - total.means, covariance
        covariance = spread.mode(new.scatter, new.counts.sum(), settings.prior_weight)
        total = new
        if _still(old, covariance) and float((_times(moved, precision) * moved).sum(-1).max()) < _TOL_KEYS**2:
            break
    return total


def class_sums(examples: Examples, num_classes: int) -> Sums:
    """Return the sums of one unit a class."""
    points, counts = examples.points, examples.weights.new_zeros(num_classes)
    means = points.new_zeros(num_classes, points.shape[-1])
    scatter = points.new_zeros(points.shape[-1], points.shape[-1])
    for label, own in examples.by_class():
        weights = examples.weights[own]
        counts[label] = weights.sum()
        means[label] = weights @ points[own] / counts[label]
        away = points[own] - means[label]
        scatter += away.mT @ (weights.unsqueeze(-1) * away)
    return Sums(counts, means, scatter, torch.arange(num_classes))


def _with_starts(examples: Examples, settings: Settings, spread: Spread, before: Sums | None) -> Sums:
    """Return sums with units without points where a class may have more,
    by k-means++ where the spread is 1 in all directions.
    """
    root = torch.linalg.cholesky(torch.linalg.inv(spread.covariance))
    size = len(root)
    empty = Sums(root.new_zeros(0), root.new_zeros(0, size), root.new_zeros(size, size), torch.zeros(0).long())
    counts, means, scatter, owners = before or empty
    for label, own in examples.by_class():
        points = examples.points[own].unique(dim=0)
        number = min(int(settings.units_per_class or 0) - int((owners == label).sum()), len(points))
        if number > 0:
            picked = SoftKMeans.plus_plus(points @ root, number, 1.0, seed=settings.seed).centers
            means = torch.cat([means, torch.linalg.solve_triangular(root, picked, upper=False, left=False)])
            counts = torch.cat([counts, counts.new_zeros(number)])
            owners = torch.cat([owners, owners.new_full((number,), label)])
    return Sums(counts, means, scatter, owners)


def _attention(points: Tensor, keys: Tensor, log_weights: Tensor, precision: Tensor) -> Tensor:
    """Return the attention of points (N, D) to keys (U, D), with log weights (U,) or (N, U)."""
    steep = _times(keys, precision)
    return (points @ steep.mT + (log_weights - 0.5 * (keys * steep).sum(-1))).softmax(-1)


def _times(points: Tensor, precision: Tensor) -> Tensor:
    return points @ precision if precision.dim() == 2 else points * precision


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return 0 where the denominator is 0."""
    return numerator / denominator.where(denominator > 0, 1.0)


def _symmetric(matrix: Tensor) -> Tensor:
    return 0.5 * (matrix + matrix.mT)


def _still(old: Tensor, new: Tensor) -> bool:
    return float((new.diagonal() / old.diagonal() - 1).abs().max()) < _TOL_SPREAD


def memory_of(sums: Sums, settings: Settings) -> GaussianMixture:
    """Return the memory that sums make.

    Parameters
    ----------
    sums
        As `learned_sums` returns them.
    settings
        With which they were found.

    Raises
    ------
    ValueError
        Points that do not vary.
    """
    spread = Spread.of(sums, settings.num_classes, float(settings.units_per_class or 1))
    total, used = sums.counts.sum(), sums.counts > 0
    shared = METRICS[settings.metric]
    fields = shared.fields(shared.precision(spread.mode(sums.scatter, total, settings.prior_weight)))
    answers = torch.eye(settings.num_classes, dtype=sums.means.dtype)[sums.owners[used]]
    log_prior = (sums.counts[used] / total).log().unsqueeze(0)
    return GaussianMixture.categorical(sums.means[used], answers, log_prior=log_prior, **fields)


def every_point(examples: Examples, settings: Settings) -> GaussianMixture:
    """Return the memory whose units are the points, each with its label; the spread is that of points left out,
    one at a time.

    Such a point attends to the others of its class, its own copies not among them.

    Parameters
    ----------
    examples
        Labelled points.
    settings
        With None for the number of units.

    Raises
    ------
    ValueError
        Points that do not vary.
    """
    rows, first = examples.rows.unique(return_inverse=True)
    keys = examples.points.new_empty(len(rows), examples.points.shape[-1])
    keys[first] = examples.points
    shares = examples.points.new_zeros(len(rows), settings.num_classes)
    shares[first, examples.labels] = examples.weights
    counts = shares.sum(-1)  # how often each row counts
    every = class_sums(examples, settings.num_classes)
    spread = Spread.of(every, settings.num_classes, float(counts.sum()) / settings.num_classes)
    shared, covariance = METRICS[settings.metric], spread.covariance
    groups = _left_out(examples, settings.seed)
    total = sum((weights[asked].sum() for _, weights, asked, _ in groups), keys.new_zeros(()))
    for _ in range(_NUM_STEPS if groups else 0):
        precision, scatter = shared.precision(covariance), torch.zeros_like(covariance)
        for points, weights, asked, same in groups:
            log_weights = weights.log().masked_fill(same, -torch.inf)
            attention = _attention(points[asked], points, log_weights, precision) * weights[asked].unsqueeze(-1)
            scatter += _scatter(points[asked], attention, points, settings.metric == "full")
        old, covariance = covariance, spread.mode(scatter, total, settings.prior_weight)
        if _still(old, covariance):
            break
    log_prior, answers = (counts / counts.sum()).log().unsqueeze(0), shares / counts.unsqueeze(-1)
    fields = shared.fields(shared.precision(covariance))
    return GaussianMixture.categorical(keys, answers, log_prior=log_prior, **fields)


def _scatter(points: Tensor, attention: Tensor, keys: Tensor, whole: bool) -> Tensor:
    """Return ``Σ_ij a_ij (x_i - ξ_j)(x_i - ξ_j)'``, (D, D), or its diagonal alone as such a matrix."""
    own, other, mixed = attention.sum(-1), attention.sum(0), attention @ keys
    if whole:
        crossed = points.mT @ mixed
        return (own * points.mT) @ points - crossed - crossed.mT + (other * keys.mT) @ keys
    return torch.diag(own @ points.square() - 2 * (points * mixed).sum(0) + other @ keys.square())


def copies(points: Tensor) -> Tensor:
    """Return of each point (N, D) the number of the first that is equal to it, (N,)."""
    contents = [hash(row.tobytes()) for row in points.numpy() + 0.0]  # -0 is 0
    _, first, group = np.unique(contents, return_index=True, return_inverse=True)
    return torch.from_numpy(first[group])


def _left_out(examples: Examples, seed: int) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Return of each class with company its points around their mean (n, D), their weights, the numbers of those that
    are left out in turn, (A,), and which points are left out with each, itself and its copies, (A, n).
    """
    alike = copies(examples.points)
    groups = [own for _, own in examples.by_class() if len(alike[own].unique()) > 1]
    pairs = sum(len(own) ** 2 for own in groups)
    found = []
    for own in groups:
        order = torch.randperm(len(own), generator=torch.Generator().manual_seed(seed), device="cpu")
        asked = order[: max(1, len(own) * _PAIRS_AT_ONCE // pairs)] if pairs > _PAIRS_AT_ONCE else order
        same = alike[own][asked].unsqueeze(-1) == alike[own]
        found.append((examples.points[own] - examples.points[own].mean(0), examples.weights[own], asked, same))
    return found
