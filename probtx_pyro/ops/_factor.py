"""Factors of a log joint: a product of statistics and parameters, or where that would lose its digits the squares themselves.

``-½ α |x - ξ|²`` is expanded to ``α x'ξ - ½ α |x|² - ½ α |ξ|²``, a matrix product, only where `expands` bounds what that loses. Far
from the origin, in Unix seconds or between groups of points, an ulp of ``|x|²`` is larger than the distances to tell apart. There a
factor keeps points and centers (`Squares`), and its logits are squares of differences. `expands` is the one place that decides.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from probtx_pyro.ops._numerics import common_shape, exporting, known
from probtx_pyro.typing import PerQuery, PerUnit, QueryStatistics, UnitParameters

EXPANDED = {torch.float32: 2.0**10, torch.float64: 2.0**16}
"""The largest ½ α (|x| + |ξ|)² whose squares are expanded, in nats: a logit of D features then errs by (D + 4) 6e-5, or (D + 4) 1.5e-11."""
PAIRS = 2**20  # differences of a query, a unit and a feature at a time
BY_DIFFERENCES = "donot_use_mm_for_euclid_dist"  # of torch.cdist


class Squares(NamedTuple):
    """``-½ precision_j |root_j'(x_i - ξ_j)|²``, to be computed from the differences; 0 where the point is not observed.

    points: x, (..., Q, D). centers: ξ, (..., U, D). precision: (..., U, 1). root: of a metric that all units share or each has,
    flat, (..., 1 or U, D²), or of a diagonal one (..., 1 or U, D); None is the identity. observed: boolean (..., Q, 1); None is True.
    """

    points: Tensor
    centers: Tensor
    precision: Tensor
    root: Tensor | None = None
    observed: Tensor | None = None


class Factor(NamedTuple):
    """``log p(x_i | unit=j) = statistics_i · parameters_j + bias_j + base_i + squares_ij`` (up to a constant of the query where that is said).

    ``base`` is the log base measure of the query, which attention does not see; None is 0. ``squares`` are what is not expanded.
    ``never``, like ``parameters``, is positive where the parameter is -inf and 0 elsewhere, None where it is 0 throughout: a unit
    has no density where a statistic meets it.

    Half-precision inputs are held in float32 here; `attend` rounds statistics and parameters, as the inputs were rounded,
    and keeps the bias, a large number that cancels, to 24 bits.
    """

    statistics: QueryStatistics
    parameters: UnitParameters
    bias: PerUnit
    base: PerQuery | None = None
    squares: tuple[Squares, ...] = ()
    never: Tensor | None = None


def expands(points: Tensor, centers: Tensor, precision: Tensor, root: Tensor | None = None) -> bool:
    """Return True where expanded squares lose little: ``½ α |Λ| (|x| + |ξ|)²`` is at most `EXPANDED` for all points and centers.

    An expanded logit of D features is then within ``(D + 4) EXPANDED`` roundings of the exact one. True, too, where a branch on
    numbers is not possible (compiled, exported and vmapped calls); False where they are not finite.

    Parameters
    ----------
    points, centers, precision
        x (..., Q, D) and ξ (..., U, D), less what is subtracted before squares are expanded; α, scalar or (..., U or 1).
    root
        As in `Squares`.
    """
    if torch.compiler.is_compiling() or exporting() or points.is_meta or 0 in (points.numel(), centers.numel()):
        return True
    points, centers, features = points.detach(), centers.detach(), points.shape[-1]
    try:
        bound = 0.5 * precision.detach().amax().item() / EXPANDED[torch.promote_types(points.dtype, torch.float32)]
        if root is not None:
            bound *= _largest_eigenvalue(root.detach(), features)
        largest = [vector_norm(x, math.inf).item() for x in (points, centers)]
        if bound * features * sum(largest) ** 2 <= 1:
            return True
        return bound * sum(vector_norm(x, dim=-1).amax().item() for x in (points, centers)) ** 2 <= 1
    except OverflowError:  # of a power of numbers of Python
        return False
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        return True


def _largest_eigenvalue(root: Tensor, features: int) -> float:
    """Bound that of ``LL'`` from above, by its largest sum of a row; exactly of a diagonal."""
    if root.shape[-1] == features:
        return root.square().amax().item()
    matrix = root.unflatten(-1, (features, features)).abs()
    return (matrix @ matrix.sum(-2).unsqueeze(-1)).amax().item()


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


def differences(x: Squares) -> Tensor:
    """Return ``root_j'(x_i - ξ_j)``, (..., Q, U, D)."""
    return whiten(x.points.unsqueeze(-2) - x.centers.unsqueeze(-3), None if x.root is None else x.root.unsqueeze(-3))


def from_differences(x: Squares) -> Tensor:
    """Return ``-½ precision_j |root_j'(x_i - ξ_j)|²``, (..., Q, U), some queries at a time; no square overflows on the way to a number."""
    strength = x.precision.sqrt()
    lengths = (
        None if x.root is not None or _learns(x) else torch.cdist(x.points, x.centers, compute_mode=BY_DIFFERENCES)
    )
    if lengths is not None and known(lengths.isfinite().all(), otherwise=False):
        scores = -0.5 * (lengths * strength.mT).square()
    else:
        wide = (
            common_shape(x.points.shape[:-2], x.centers.shape[:-2]).numel() * x.centers.shape[-2] * x.centers.shape[-1]
        )
        scores = -0.5 * torch.cat([
            (differences(x._replace(points=part)) * strength.unsqueeze(-3)).square().sum(-1)
            for part in x.points.split(max(1, PAIRS // max(1, wide)), -2)
        ], -2)  # fmt: skip
    return scores if x.observed is None else torch.where(x.observed, scores, 0.0)


def _learns(x: Squares) -> bool:
    """True if a gradient is asked for, which that of ``cdist`` has once only, and not at distance 0."""
    return torch.is_grad_enabled() and any(y.requires_grad for y in x[:3])


def squared_distances(points: Tensor, centers: Tensor) -> Tensor:
    """Return ``|x_i - ξ_j|²``, (..., Q, U), from the differences."""
    return -2 * from_differences(Squares(points, centers, torch.ones_like(centers[..., :1])))


def scores_of(factor: Factor) -> Tensor:
    """Return the log density less its base, (..., Q, U)."""
    scores = factor.statistics @ factor.parameters.mT + factor.bias.unsqueeze(-2)
    for x in factor.squares:
        scores = scores + from_differences(x)
    return scores if factor.never is None else scores.masked_fill(factor.statistics @ factor.never.mT > 0, -math.inf)


def beside(left: Tensor, right: Tensor) -> Tensor:
    """Return (..., A) and (..., B), whose leading axes broadcast, as (..., A + B)."""
    shape = common_shape(left.shape[:-1], right.shape[:-1])
    return torch.cat([left.expand(*shape, left.shape[-1]), right.expand(*shape, right.shape[-1])], -1)
