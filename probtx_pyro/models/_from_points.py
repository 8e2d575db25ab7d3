"""A Gaussian mixture from points alone: a start by k-means++, EM,
and the number of units by the evidence of points held out.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from pyro.distributions import Gamma, Wishart
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models._bayesian import bayesian
from probtx_pyro.models.gaussian_mixture import GaussianMixture, Metric
from probtx_pyro.models.mixture import Maybe
from probtx_pyro.models.priors import FLAT
from probtx_pyro.models.soft_kmeans import check_weights, kmeans_plus_plus
from probtx_pyro.ops import fixed_point
from probtx_pyro.ops._numerics import common_shape


def from_points(
    points: Tensor,
    num_units: int | Iterable[int],
    *,
    seed: int,
    values: Maybe = None,
    point_weights: Maybe = None,
    metric: str | None = None,
    prior_weight: float = 1.0,
    num_folds: int = 5,
    num_steps: int = 1000,
    tol: float | None = 1e-4,
) -> GaussianMixture:
    """The mixture that EM finds for points, from a start by k-means++.

    Keys, weights and values maximise the likelihood. Precisions maximise it under a prior that counts as
    ``prior_weight`` points with the spread ``covariance of all points / U^(2/D)``, which U units have that share their
    volume; the likelihood alone is unbounded where a unit has one point. EM is that of `inference.adapt` for these
    priors.

    Parameters
    ----------
    points
        (..., N, D), single or double precision.
    num_units
        U, or candidates, ``range(1, 8)``: the smallest whose `held_out_evidence`, summed over all problems, falls short
        of the largest by no more than the standard error of the difference.
    seed
        Of the start and of the folds.
    values
        Answers of the points, (..., N, M), which are explained, too, with one value precision for all units.
    point_weights
        (..., N), multiplicities; 0 leaves a point out.
    metric
        None: each unit has a precision of its own. ``"scalar"``: all share one. ``"diagonal"``, ``"full"``: they share
        a metric, and their precision is 1.
    prior_weight
        Positive; as it goes to 0 the precisions become those of maximum likelihood.
    num_folds, num_steps, tol
        Of the cross validation; of EM, as in `inference.adapt`. A warning says where EM has not met ``tol``.

    Returns
    -------
    GaussianMixture

    Raises
    ------
    ValueError
        Shapes, dtypes or numbers that do not fit; points that do not vary, or, for a full metric, lie in a subspace.

    Examples
    --------
    >>> import torch
    >>> from probtx_pyro import models
    >>> points = torch.tensor([[-4.0], [1.0], [6.0]]).repeat(40, 1) + torch.randn(120, 1, generator=torch.Generator().manual_seed(0))
    >>> models.from_points(points, range(1, 6), metric="scalar", seed=0).keys.sort(0).values.round().tolist()
    [[-4.0], [1.0], [6.0]]

    References
    ----------
    Arthur & Vassilvitskii 2007 (k-means++); Fraley & Raftery 2007, *Bayesian regularization for normal mixture
    estimation*, for the spread of the prior; Smyth 2000, *Model selection for probabilistic clustering using
    cross-validated likelihood*; Breiman et al. 1984, *Classification and regression trees*, for the one standard error.
    """
    given = _Points.checked(points, values, point_weights, metric, prior_weight)
    how: dict[str, Any] = {"seed": seed, "num_steps": num_steps, "tol": tol}
    candidates = _candidates(num_units)
    if not isinstance(num_units, int):
        options: dict[str, Any] = {"metric": metric, "prior_weight": prior_weight, "num_folds": num_folds}
        table = held_out_evidence(points, candidates, values=values, point_weights=point_weights, **options, **how)
        candidates = [_fewest({number: table[number] * given.weights for number in sorted(table)})]
    return _fit(given, candidates[0], **how)


def held_out_evidence(
    points: Tensor,
    num_units: int | Iterable[int],
    *,
    seed: int,
    values: Maybe = None,
    point_weights: Maybe = None,
    metric: str | None = None,
    prior_weight: float = 1.0,
    num_folds: int = 5,
    num_steps: int = 1000,
    tol: float | None = 1e-4,
) -> dict[int, Tensor]:
    """Log evidence of each point under the mixture that `from_points` finds for the points of the other folds.

    Cross validation asks what the mixture is for, the density of points to come, whatever the priors and however wrong
    the model. BIC is no alternative: its expansion fails for mixtures, whose parameters are not identified where units
    are too many.

    Parameters
    ----------
    points, num_units, seed, values, point_weights, metric, prior_weight, num_folds, num_steps, tol
        As in `from_points`. The folds do not depend on the number of units, so that differences are paired.

    Returns
    -------
    dict
        By number of units, (..., N), with the values of the point where they are given.

    Raises
    ------
    ValueError
        As `from_points`; folds out of range, or more units than the training points of a fold.
    """
    given = _Points.checked(points, values, point_weights, metric, prior_weight)
    candidates, size = _candidates(num_units), points.shape[-2]
    if not 2 <= num_folds <= size:
        raise ValueError(f"num_folds must be between 2 and the number of points, {size}, not {num_folds}")
    if max(candidates) > size - math.ceil(size / num_folds):
        raise ValueError(f"num_units goes to {max(candidates)}, more than the points that {num_folds} folds leave")
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed), device="cpu").to(points.device)
    held = order % num_folds == torch.arange(num_folds, device=points.device).unsqueeze(-1)
    own = held.reshape(num_folds, *(1,) * (given.points.dim() - 2), size)
    folds = given._replace(weights=torch.where(own, 0.0, given.weights))
    found = {}
    for number in candidates:
        mixture = _fit(folds, number, seed=seed, num_steps=num_steps, tol=tol)
        evidence = mixture.log_evidence(*given.data[:2])
        found[number] = torch.where(own, evidence, 0.0).sum(0)
    return found


class _Points(NamedTuple):
    """Points, their values and weights, expanded to the problems, and how their spread is to be found."""

    points: Tensor
    values: Maybe
    weights: Tensor
    metric: str | None
    prior_weight: float

    @classmethod
    def checked(
        cls, points: Tensor, values: Maybe, point_weights: Maybe, metric: str | None, prior_weight: float
    ) -> "_Points":
        for name, x in (("points", points),) + ((("values", values),) if values is not None else ()):
            if not isinstance(x, Tensor):
                check.floating(name, x)
            if x.dtype not in (torch.float32, torch.float64):
                raise ValueError(
                    f"{name} must be of single or double precision, not {x.dtype}; convert it with .float() or .double()"
                    + ("; for labels take models.GaussianMixture.categorical" if name == "values" else "")
                )
            check.at_least(name, x, 2, "(..., N, D)" if name == "points" else "(..., N, M)")
            check.finite(**{name: x})
        if metric not in SPREADS:
            raise ValueError(f"metric must be None, 'scalar', 'diagonal' or 'full', not {metric!r}")
        if not (prior_weight > 0 and math.isfinite(prior_weight)):
            raise ValueError(f"prior_weight must be a positive number of points, not {prior_weight}")
        leading = {"points": points.shape[:-2]}
        if values is not None:
            check.same_size("values", values.shape[-2], "points", points.shape[-2], "rows")
            check.same_dtype(points=points, values=values)
            leading["values"] = values.shape[:-2]
        weights = points.new_ones(points.shape[-2:-1])
        if point_weights is not None:
            check_weights(points, point_weights)
            weights, leading["point_weights"] = point_weights, point_weights.shape[:-1]
        batch = check.broadcastable(**leading)
        values = None if values is None else values.expand(*batch, *values.shape[-2:])
        return cls(points.expand(*batch, *points.shape[-2:]), values, weights.expand(*batch, -1), metric, prior_weight)

    @property
    def data(self) -> tuple[Tensor, Maybe, None, Tensor]:
        """Parameters as the mixture takes them."""
        return self.points, self.values, None, self.weights


def _fewest(table: Mapping[int, Tensor]) -> int:
    """The first whose total is within one standard error of the best,
    by the paired differences (Breiman et al. 1984).
    """
    best = max(table.values(), key=lambda evidence: float(evidence.sum()))
    lost = {number: (best - evidence).flatten() for number, evidence in table.items()}
    return next(number for number, x in lost.items() if float(x.sum()) <= len(x) ** 0.5 * float(x.std()))


def _candidates(num_units: int | Iterable[int]) -> list[int]:
    numbers = list(num_units) if isinstance(num_units, Iterable) else [num_units]
    if not numbers or any(isinstance(number, bool) or not isinstance(number, int) or number < 1 for number in numbers):
        raise ValueError(f"num_units must be a whole number from 1, or several, such as range(1, 8), not {num_units!r}")
    return numbers


class _Spread(NamedTuple):
    """Start of a precision or metric, and its prior: fields of the mixture,
    and the root that whitens points for k-means++.
    """

    fields: Mapping[str, Any]
    priors: Mapping[str, Any]
    root: Metric | None


def _gamma(square: Tensor, prior_weight: float, numbers: int) -> Gamma:
    """The prior of a precision that counts as so many points of ``numbers`` coordinates,
    with the mean square of each.
    """
    half = 0.5 * prior_weight * numbers
    return Gamma(torch.full_like(square, 1 + half), half * square, validate_args=False)


def _precisions(covariance: Tensor, units: int, prior_weight: float) -> _Spread:
    features = covariance.shape[-1]
    square = _positive(covariance.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True), "points")
    square = square.expand(*square.shape[:-1], units)
    prior = _gamma(square, prior_weight, features)
    return _Spread({"key_precision": square.reciprocal()}, {"key_precision": prior}, None)


def _shared_precision(covariance: Tensor, units: int, prior_weight: float) -> _Spread:
    return _precisions(covariance, 1, prior_weight)


def _diagonal(covariance: Tensor, units: int, prior_weight: float) -> _Spread:
    square = _positive(covariance.diagonal(dim1=-2, dim2=-1), "points, in some feature,")
    metric = square.reciprocal()
    prior = _gamma(square, prior_weight, 1)
    return _Spread({"metric": metric, "diagonal_metric": True}, {"metric": prior}, Metric.of(metric, diagonal=True))


def _full(covariance: Tensor, units: int, prior_weight: float) -> _Spread:
    features = covariance.shape[-1]
    scale = _positive(covariance.diagonal(dim1=-2, dim2=-1), "points, in some feature,").sqrt()
    correlation = covariance / (scale.unsqueeze(-1) * scale.unsqueeze(-2))
    if check.violated(torch.linalg.eigvalsh(correlation) <= 16 * features * torch.finfo(scale.dtype).eps):
        raise ValueError(f"points lie in a subspace of their {features} features; use metric='diagonal'")
    inverse = torch.linalg.inv(correlation) / (scale.unsqueeze(-1) * scale.unsqueeze(-2))
    inverse = 0.5 * (inverse + inverse.mT)
    degrees = scale.new_full(scale.shape[:-1], features + 1 + prior_weight)
    prior = Wishart(degrees, covariance_matrix=inverse / prior_weight, validate_args=False)
    return _Spread({"metric": inverse, "diagonal_metric": False}, {"metric": prior}, Metric.of(inverse, diagonal=False))


SPREADS: Mapping[str | None, Callable[[Tensor, int, float], _Spread]]
SPREADS = {None: _precisions, "scalar": _shared_precision, "diagonal": _diagonal, "full": _full}


def _positive(square: Tensor, what: str) -> Tensor:
    """Variances, unless they are those of rounding."""
    if check.violated(~(square > torch.finfo(square.dtype).tiny)):
        raise ValueError(f"{what} do not vary, so that no precision fits them; drop what is constant")
    return square


def _covariance(x: Tensor, weights: Tensor) -> Tensor:
    """Covariance of rows (..., N, D) with weights (..., N); of rows that differ by rounding alone 0."""
    share = (weights / weights.sum(-1, keepdim=True)).unsqueeze(-1)
    mean = (share * x).sum(-2, keepdim=True)
    around = x - mean
    around = torch.where(around.abs() > 16 * torch.finfo(x.dtype).eps * x.abs().amax(-2, keepdim=True), around, 0.0)
    return (share * around).mT @ around


def _fit(given: _Points, num_units: int, *, seed: int, num_steps: int, tol: float | None) -> GaussianMixture:
    """EM from a start by k-means++ in coordinates where all points have the spread that the metric can say."""
    if num_steps < 0 or (tol is not None and not tol > 0):
        raise ValueError(f"num_steps must be 0 or more and tol positive, not num_steps={num_steps}, tol={tol}")
    points, outputs, _, weights = given.data
    problems, features = common_shape(points.shape[:-2], weights.shape[:-1]), points.shape[-1]
    covariance = _covariance(points, weights) / num_units ** (2 / features)
    fields, priors, root = SPREADS[given.metric](covariance, num_units, given.prior_weight)
    keys = kmeans_plus_plus(points if root is None else root.whiten(points), num_units, seed, weights, None)
    if root is not None and root.diagonal:
        keys = keys / root.root.unsqueeze(-2)
    elif root is not None:
        keys = torch.linalg.solve_triangular(root.root, keys, upper=False, left=False)
    flat: dict[str, Any] = {"keys": FLAT, "weights": FLAT}
    if outputs is not None:
        square = _covariance(outputs, weights).diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        square = _positive(square, "values").expand(*problems, 1)
        mean = ((weights / weights.sum(-1, keepdim=True)).unsqueeze(-1) * outputs).sum(-2, keepdim=True)
        fields = {**fields, "values": mean.expand(*problems, num_units, -1), "value_precision": square.reciprocal()}
        flat["values"] = FLAT
        priors = {**priors, "value_precision": _gamma(square, given.prior_weight, outputs.shape[-1])}
    mixture = GaussianMixture(keys, **fields)
    problem = bayesian(mixture, **flat, **priors).problem(points, outputs, None, weights)
    middle = ((weights / weights.sum(-1, keepdim=True)).unsqueeze(-1) * points).sum(-2, keepdim=True)
    how: dict[str, Any] = {"problems": problems, "progress": False, "label": "EM", "origins": {"keys": middle}}
    found = fixed_point(problem.ecm_step, problem.start, num_steps=num_steps, tol=tol, **how)
    if tol is not None and num_steps and not bool(found.converged.all()):
        late = f"EM of {num_units} units has not met tol={tol} after num_steps={num_steps}; raise one of them"
        warnings.warn(late, stacklevel=3)
    return mixture.with_parameters(found.state)
