"""Conditionals of Gaussian units: the likelihood of locations, precisions, shift and metric, from the sums of an E-step or of a draw.

With a metric and a shift: docs/mathematics.md, equations (2.21) to (2.24).
"""

from typing import Any

import torch
from torch import Tensor

from probtx_pyro.models._metric import Metric
from probtx_pyro.models.formulation import CorrelatedTerms, GammaTerms, NormalTerms, Terms, WishartTerms
from probtx_pyro.ops import safe_ratio
from probtx_pyro.ops._numerics import common_shape


def gaussian_terms(
    name: str, location: Tensor, precision: Tensor, center: Tensor, counts: Tensor, sums: Tensor
) -> NormalTerms | GammaTerms:
    """Terms of the location, or (by ``name``) of the precision, of isotropic Gaussian units.

    Shapes: location (..., U, D), precision scalar or (..., U), counts ``Σw`` (..., U), and sums ``Σw (x, -|x|²/2)`` of points
    less their ``center``, (..., U, D + 1). The precision's are around the location given.
    """
    first = sums[..., :-1]
    if "precision" not in name:
        pull = precision.unsqueeze(-1) if precision.dim() else precision
        return NormalTerms((precision * counts).unsqueeze(-1).expand_as(first), pull * first, center)
    at = location - center
    scatter = -2 * sums[..., -1] - 2 * (at * first).sum(-1) + counts * at.square().sum(-1)
    return GammaTerms(0.5 * first.shape[-1] * counts, 0.5 * scatter.clamp_min(0))


def about_one_center(seen: Any, name: str, block: slice) -> Any:
    """Return what an E-step left with a unit's sums about one center, the mean of those of its components, (..., U, R, T).

    ``name`` is that of the centers, ``block`` where their sums ``Σw (x, -|x|²/2)`` stand; nothing cancels.
    """
    sums, centers = seen.sums[..., block], seen.centers[name]
    counts = seen.sums[..., -1:] if seen.answers == "some" else seen.counts.unsqueeze(-1)
    away = centers - centers[..., :1, :]
    mean = safe_ratio(
        (counts * away).sum(-2, keepdim=True), counts.sum(-2, keepdim=True), torch.zeros_like(away[..., :1, :])
    )
    offset = away - mean
    first = sums[..., :-1] + counts * offset
    second = sums[..., -1:] - (offset * (sums[..., :-1] + 0.5 * counts * offset)).sum(-1, keepdim=True)
    moved = torch.cat([seen.sums[..., : block.start], first, second, seen.sums[..., block.stop :]], -1)
    common = (centers[..., :1, :] + mean).squeeze(-2)
    return seen._replace(sums=moved, centers={**seen.centers, name: common})


def key_terms(
    name: str, keys: Tensor, shift: Tensor | None, precision: Tensor, metric: Metric | None, seen: Any, sums: Tensor
) -> Terms:
    """Terms of ``keys``, ``shift``, ``key_precision`` or ``metric`` of units ``N(ξ_j + δ, (α_j Λ)⁻¹)``.

    Parameters
    ----------
    name
        The parameter.
    keys, shift, precision, metric
        ξ (..., U, D), δ (..., D), α scalar or (..., U), and the root of Λ; None where there is none.
    seen
        What an E-step left, a `Seen`, of which ``sums`` are ``Σw (x, -|x|²/2)`` of the queries x less their center, whitened: (..., U, D + 1).
    """
    counts, center = seen.counts, seen.centers["keys"]
    around = center if shift is None else center - shift.unsqueeze(-2)
    if metric is None and name != "shift":
        return gaussian_terms(name, keys, precision, around, counts, sums)
    metric = Metric(torch.ones_like(keys[..., 0, :]), True) if metric is None else metric
    at = metric.whiten(keys - around)
    if name == "key_precision":
        return gaussian_terms(name, at, precision, torch.zeros_like(center), counts, sums)
    each = precision.expand(common_shape(precision.shape, counts.shape[-1:]))
    strength, pulled = each * counts, each.unsqueeze(-1) * sums[..., :-1]
    kind = NormalTerms if metric.diagonal else CorrelatedTerms
    if name == "keys":
        return kind(metric.times(strength), metric.restore(pulled), around)
    if name == "shift":
        assert shift is not None
        rest = (pulled - strength.unsqueeze(-1) * at).sum(-2, keepdim=True)
        total = metric.times(strength.sum(-1, keepdim=True)).select(-2 if metric.diagonal else -3, 0)
        return kind(total, metric.restore(rest).squeeze(-2), shift)
    # Σ α w (x - at)(x - at)' of whitened queries
    crossed = at.mT @ pulled
    scatter = seen.scatter(each, at.shape[-1]) - crossed - crossed.mT + at.mT @ (strength.unsqueeze(-1) * at)
    if metric.diagonal:
        squares = scatter.diagonal(dim1=-2, dim2=-1).clamp_min(0) / metric.root.square()
        return GammaTerms(0.5 * counts.sum(-1, keepdim=True).expand_as(squares), 0.5 * squares)
    return WishartTerms(counts.sum(-1), scatter, metric.root)
