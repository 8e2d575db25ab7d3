"""k-means++: centers picked among the points,
each with probability proportional to its distance from those before it.
"""

import math
import warnings

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models.mixture import Maybe
from probtx_pyro.ops._factor import squared_distances
from probtx_pyro.ops._numerics import common_shape


def plus_plus(x: Tensor, num_centers: int, seed: int, point_weights: Maybe, num_trials: int | None) -> Tensor:
    """Centers (..., K, D) among points (..., N, D);
    of ``num_trials`` candidates for each the one that lowers the distortion most.

    Problems of a batch pick alike from the same seed.
    """
    check.floating("x", x)
    check.at_least("x", x, 2, "(..., N, D)")
    check.finite(x=x)
    if point_weights is not None:
        check_weights(x, point_weights)
    if not 1 <= num_centers <= x.shape[-2]:
        raise ValueError(f"num_centers must be from 1 to the number of points, {x.shape[-2]}, not {num_centers}")
    trials = 2 + int(math.log(num_centers)) if num_trials is None else num_trials
    if trials < 1:
        raise ValueError(f"num_trials must be 1 or more, not {num_trials}")
    generator = torch.Generator().manual_seed(seed)
    batch = x.shape[:-2] if point_weights is None else common_shape(x.shape[:-2], point_weights.shape[:-1])
    x = x.expand(*batch, *x.shape[-2:])
    weights = x.new_ones(x.shape[:-1]) if point_weights is None else point_weights.to(x).expand(x.shape[:-1])
    least, chosen = torch.ones_like(weights), []
    for number in range(num_centers):
        mass = (weights * least).cumsum(-1)
        spent = mass[..., -1:] <= 0
        if spent.any():
            warnings.warn(
                f"x has only {number} points that differ and have weight, fewer than num_centers={num_centers}: centers coincide",
                stacklevel=3,
            )
            mass = torch.where(spent, weights.cumsum(-1), mass)
        uniform = torch.rand(trials if number else 1, generator=generator, dtype=torch.float64, device="cpu").to(x)
        candidates = torch.searchsorted(mass, (1 - uniform) * mass[..., -1:])  # in (0, total]: of positive mass
        candidates = candidates.clamp_max(x.shape[-2] - 1)
        rows = x.gather(-2, candidates.unsqueeze(-1).expand(*candidates.shape, x.shape[-1]))
        distances = squared_distances(rows, x)
        tried = distances if number == 0 else torch.minimum(distances, least.unsqueeze(-2))
        best = (weights.unsqueeze(-2) * tried).sum(-1).argmin(-1, keepdim=True)
        chosen.append(candidates.gather(-1, best))
        least = tried.gather(-2, best.unsqueeze(-1).expand(*best.shape, x.shape[-2])).squeeze(-2)
    picked = torch.cat(chosen, -1)
    return x.gather(-2, picked.unsqueeze(-1).expand(*picked.shape, x.shape[-1]))


def check_weights(x: Tensor, point_weights: Tensor) -> None:
    """Refuse weights that do not fit the points."""
    if point_weights.shape[-1:] != x.shape[-2:-1] or point_weights.dtype != x.dtype:
        raise ValueError(
            f"point_weights must be {x.dtype} of shape (..., {x.shape[-2]}), one for each point, not {point_weights.dtype} {tuple(point_weights.shape)}"
        )
    check.finite(point_weights=point_weights)
    if check.is_validation_enabled() and ((point_weights < 0).any() or (point_weights == 0).all(-1).any()):
        raise ValueError("point_weights must be non-negative and positive somewhere; 0 leaves a point out")
