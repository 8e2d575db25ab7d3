"""Factors of a log joint: a product of statistics and parameters,
or where that would lose its digits the squares themselves.

``-½ α |x - ξ|²`` is expanded to ``α x'ξ - ½ α |x|² - ½ α |ξ|²``, a matrix product, only where `far_apart` bounds what
that loses. Far from the origin, in Unix seconds or between groups of points, an ulp of ``|x|²`` is larger than the
distances to tell apart. There a factor keeps points and centers (`Squares`), and its logits are squares of differences;
those of float32 are expanded in float64 where that has digits enough, which is several times as fast. `far_apart` is
the one place that decides.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from probtx_pyro.ops._numerics import common_shape, exporting, known, values_hidden
from probtx_pyro.typing import PerQuery, PerUnit, QueryStatistics, UnitParameters

EXPANDED = {torch.float32: 2.0**10, torch.float64: 2.0**16}
"""The largest ½ α (|x| + |ξ|)² whose squares are expanded, in nats: a logit of D features then errs by (D + 4) 6e-5,
or (D + 4) 1.5e-11."""
DOUBLE = 2.0**28
"""The largest that is expanded in float64 for inputs in float32: a logit then errs by (D + 4) 3e-8,
half its own rounding at 1."""
PAIRS, PAIRS_ON_GPU = 2**20, 2**26  # differences of a query, a unit and a feature at a time
BY_DIFFERENCES = "donot_use_mm_for_euclid_dist"  # of torch.cdist


class Squares(NamedTuple):
    """``-½ precision_j |root_j'(x_i - ξ_j)|²``, to be computed from the differences; 0 where the point is not observed.

    points: x, (..., Q, D). centers: ξ, (..., U, D). precision: (..., U, 1). root: of a metric that all units share or
    each has, flat, (..., 1 or U, D²), or of a diagonal one (..., 1 or U, D); None is the identity. observed: boolean
    (..., Q, 1); None is True.
    origin: (..., 1, D), less which the squares are expanded in float64 after all; None takes the differences. apart:
    boolean (..., 1, 1), the problems whose logits these are; None is all. Those of the others are 0: they stand in the
    product of the `Factor`, whose first columns are then 0 for what is apart.
    """

    points: Tensor
    centers: Tensor
    precision: Tensor
    root: Tensor | None = None
    observed: Tensor | None = None
    origin: Tensor | None = None
    apart: Tensor | None = None


class Factor(NamedTuple):
    """``log p(x_i | unit=j) = statistics_i · parameters_j + bias_j + base_i +
    squares_ij`` (up to a constant of the query where that is said).

    ``base`` is the log base measure of the query, which attention does not see; None is 0. ``squares`` are what is not
    expanded. ``never``, like ``parameters``, is positive where the parameter is -inf and 0 elsewhere, None where it is
    0 throughout: a unit has no density where a statistic meets it.

    Half-precision inputs are held in float32 here; `attend` rounds statistics and parameters, as the inputs were
    rounded, and keeps the bias, a large number that cancels, to 24 bits.
    """

    statistics: QueryStatistics
    parameters: UnitParameters
    bias: PerUnit
    base: PerQuery | None = None
    squares: tuple[Squares, ...] = ()
    never: Tensor | None = None


def far_apart(
    points: Tensor, centers: Tensor, precision: Tensor, root: Tensor | None = None, most: float | None = None
) -> Tensor | None:
    """Return which problems have squares that may not be expanded, boolean (..., 1, 1), or None where all of them may.

    They may where ``½ α |Λ| (|x| + |ξ|)²`` is at most `EXPANDED` for all points and centers of a problem: an expanded
    logit of D features is then within ``(D + 4) EXPANDED`` roundings of the exact one. Each problem decides for itself,
    so that a batch is the stack of its singles. None, too, where a branch on numbers is not possible (compiled,
    exported and vmapped calls).

    Parameters
    ----------
    points, centers, precision
        x (..., Q, D) and ξ (..., U, D), less what is subtracted before squares are expanded; α, scalar or (..., U or
        1).
    root
        As in `Squares`.
    most
        In place of `EXPANDED`.
    """
    if torch.compiler.is_compiling() or exporting() or points.is_meta or 0 in (points.numel(), centers.numel()):
        return None
    points, centers, precision, features = points.detach(), centers.detach(), precision.detach(), points.shape[-1]
    most = most or EXPANDED[torch.promote_types(points.dtype, torch.float32)]
    eigenvalue = None if root is None else _largest_eigenvalues(root.detach(), features)
    try:
        bound = 0.5 * precision.amax().item() / most * (1.0 if eigenvalue is None else eigenvalue.amax().item())
        length = _largest(points) + _largest(centers)
        if bound * (features * length * length) <= 1:
            return None
        lengths = [vector_norm(x, dim=-1).amax(-1).double() for x in (points, centers)]
        length = sum(x.amax().item() for x in lengths)
        if bound * (length * length) <= 1:
            return None
    except RuntimeError as error:
        if not values_hidden(error):
            raise
        return None
    each = 0.5 * (precision.amax(-1) if precision.dim() else precision).double() / most
    each = each if eigenvalue is None else each * eigenvalue
    each = each * (lengths[0] + lengths[1]).square()
    return None if bool((each <= 1).all()) else ~(each <= 1)[..., None, None]  # what is not finite is far


def _largest(x: Tensor) -> float:
    low, high = torch.aminmax(x)  # a twentieth of the time of the infinity norm
    return max(-low.item(), high.item())


def _largest_eigenvalues(root: Tensor, features: int) -> Tensor:
    """Bound that of ``LL'`` from above, by its largest sum of a row; exactly of a diagonal; (...) in float64."""
    if root.shape[-1] == features:
        return root.square().amax((-2, -1)).double()
    matrix = root.unflatten(-1, (features, features)).abs()
    return (matrix @ matrix.sum(-2).unsqueeze(-1)).amax((-3, -2, -1)).double()


def whiten(points: Tensor, root: Tensor | None) -> Tensor:
    """Return ``root'x`` of points (..., n, D), for a root as in `Squares`, (..., 1 or n, D² or D)."""
    features = points.shape[-1]
    if root is None:
        return points
    if root.shape[-1] == features:
        return points * root
    matrix = root.unflatten(-1, (features, features))
    if matrix.shape[-3] == 1:
        return points @ matrix.squeeze(-3)
    return (points.unsqueeze(-2) @ matrix).squeeze(-2)


def squares_apart(
    points: Tensor,
    centers: Tensor,
    precision: Tensor,
    root: Tensor | None,
    origin: Tensor,
    observed: Tensor | None = None,
    apart: Tensor | None = None,
) -> Squares:
    """Return the `Squares` of points and centers whose squares are not expanded as they are;
    those of float32 in float64, where that does.
    """
    some = apart is not None and not known(apart.all(), otherwise=False)
    found = Squares(points, centers, precision, root, observed, apart=apart if some else None)
    has = points.dtype == torch.float32 and points.device.type != "mps" and (root is None or root.shape[-2] == 1)
    wide = has and far_apart(points - origin, centers - origin, precision.squeeze(-1), root, DOUBLE) is None
    return found._replace(origin=origin) if wide else found


def doubled(x: Squares) -> tuple[Tensor, Tensor]:
    """Return points and centers less the origin, whitened, in float64."""
    assert x.origin is not None
    root = None if x.root is None else x.root.double()
    points, centers = (whiten(y.double() - x.origin.double(), root) for y in (x.points, x.centers))
    return points, centers


def differences(x: Squares) -> Tensor:
    """Return ``root_j'(x_i - ξ_j)``, (..., Q, U, D)."""
    return whiten(x.points.unsqueeze(-2) - x.centers.unsqueeze(-3), None if x.root is None else x.root.unsqueeze(-3))


def logits_of(x: Squares) -> Tensor:
    """Return ``-½ precision_j |root_j'(x_i - ξ_j)|²``, (..., Q, U), some queries at a time;
    no square overflows on the way to a number.
    """
    if x.apart is not None and not known(x.apart.any(), otherwise=True):
        (*batch, queries, _), (*own, units, _) = x.points.shape, x.centers.shape
        return x.points.new_zeros(()).expand(common_shape((*batch, queries, 1), (*own, 1, units)))
    strength, lengths = x.precision.sqrt(), None
    if x.origin is None and x.root is None and not _learns(x):
        lengths = torch.cdist(x.points, x.centers, compute_mode=BY_DIFFERENCES)
    if x.origin is not None:
        scores = _expanded(x)
    elif lengths is not None and known(lengths.isfinite().all(), otherwise=False):
        scores = -0.5 * (lengths * strength.mT).square()
    else:
        problems = common_shape(x.points.shape[:-2], x.centers.shape[:-2]).numel()
        wide, pairs = max(1, problems * math.prod(x.centers.shape[-2:])), PAIRS if x.points.is_cpu else PAIRS_ON_GPU
        parts = x.points.split(max(1, pairs // wide), -2)
        each = (differences(x._replace(points=part)) * strength.unsqueeze(-3) for part in parts)
        scores = -0.5 * torch.cat([away.square().sum(-1) for away in each], -2)
    for there in (x.observed, x.apart):
        scores = scores if there is None else torch.where(there, scores, 0.0)
    return scores


def _expanded(x: Squares) -> Tensor:
    (points, centers), strength = doubled(x), x.precision.double()
    square, own = (-0.5 * y.square().sum(-1, keepdim=True) for y in (points, centers))
    left = torch.cat([points, square, torch.ones_like(square)], -1)
    wide = strength.expand(common_shape(strength.shape, own.shape))  # chains may differ in precision alone
    right = torch.cat([wide * centers, wide, wide * own], -1)
    return (left @ right.mT).to(x.points.dtype)


def _learns(x: Squares) -> bool:
    """True if a gradient is asked for, which that of ``cdist`` has once only, and not at distance 0."""
    return torch.is_grad_enabled() and any(y.requires_grad for y in x[:3])


def squared_distances(points: Tensor, centers: Tensor) -> Tensor:
    """Return ``|x_i - ξ_j|²``, (..., Q, U), from the differences."""
    return -2 * logits_of(Squares(points, centers, torch.ones_like(centers[..., :1])))


def scores_of(factor: Factor) -> Tensor:
    """Return the log density less its base, (..., Q, U)."""
    scores = factor.statistics @ factor.parameters.mT + factor.bias.unsqueeze(-2)
    for x in factor.squares:
        scores = scores + logits_of(x)
    return scores if factor.never is None else scores.masked_fill(factor.statistics @ factor.never.mT > 0, -math.inf)


def beside(left: Tensor, right: Tensor) -> Tensor:
    """Return (..., A) and (..., B), whose leading axes broadcast, as (..., A + B)."""
    shape = common_shape(left.shape[:-1], right.shape[:-1])
    return torch.cat([left.expand(*shape, left.shape[-1]), right.expand(*shape, right.shape[-1])], -1)
