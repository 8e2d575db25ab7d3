"""EM of soft k-means and, in its limit, Lloyd's algorithm: one loop, with the assignment as the only difference."""

import math

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models.mixture import Maybe
from probtx_pyro.ops import expected_statistics, fixed_point, gaussian_factor, safe_ratio
from probtx_pyro.ops._chunks import over_chunks
from probtx_pyro.ops._factor import squared_distances
from probtx_pyro.ops._fixed_point import State
from probtx_pyro.ops._numerics import common_shape

Found = tuple[Tensor, Tensor, Tensor]


def em(
    centers: Tensor,
    gamma: Tensor,
    x: Tensor,
    num_steps: int,
    tol: float | None,
    learn_gamma: bool,
    point_weights: Maybe,
    implicit: bool,
    progress: bool | None,
) -> tuple[Tensor, Tensor, Found]:
    """Centers, γ, and the trace, convergence and steps of each problem; see `SoftKMeans.em`."""
    if num_steps < 0 or (tol is not None and not tol > 0):
        raise ValueError(f"num_steps must be 0 or more and tol positive, not num_steps={num_steps}, tol={tol}")
    limit = bool(gamma.isinf().any())
    if learn_gamma and limit:
        raise ValueError("learn_gamma needs a finite gamma to start from; give one with replace(gamma=...)")
    weighted = () if point_weights is None else (point_weights.shape[:-1],)
    problems = common_shape(x.shape[:-2], centers.shape[:-2], gamma.shape, *weighted)
    weights = torch.ones_like(x[..., 0]) if point_weights is None else point_weights
    total, fixed, number, limits = weights.sum(-1), gamma.expand(problems), centers.shape[-2], torch.finfo(x.dtype)
    rounding = (16 * limits.eps) ** 2 * (weights * x.detach().square().sum(-1)).sum(
        -1
    )  # of points that are their center
    middle = x.detach().mean(-2, keepdim=True)
    assigned = hard if limit else soft

    def step(state: State) -> tuple[State, Tensor]:
        sharpness = state.get("gamma", fixed)
        moved, around, energy = assigned(x, state["centers"], sharpness, middle, point_weights)
        if not learn_gamma:
            return {"centers": moved}, energy
        if check.is_validation_enabled() and not (around > rounding).all():
            raise ValueError(
                "learn_gamma: the points lie on the centers, where gamma grows without bound; use fewer centers, or keep gamma fixed"
            )
        learned = 0.5 * x.shape[-1] * total / around
        return {"centers": moved, "gamma": learned}, likelihood(energy, sharpness)

    def likelihood(energy: Tensor, sharpness: Tensor) -> Tensor:
        """Minus the log likelihood of the mixture with precision 2γ and equal weights."""
        density = math.log(number) - 0.5 * x.shape[-1] * (sharpness / math.pi).log()
        return sharpness * energy + total * density

    begin = {"centers": centers.expand(*problems, -1, -1)}
    if learn_gamma:  # what is fixed is no part of the state, where it would be a flat direction
        begin["gamma"] = fixed
    found = fixed_point(
        step, begin, problems=problems, num_steps=num_steps, tol=tol, objective=lambda state: step(state)[1],
        implicit=implicit, progress=progress, label="EM", origins={"centers": middle},
    )  # fmt: skip
    assert found.objective is not None
    learned = found.state["gamma"] if learn_gamma else gamma
    return found.state["centers"], learned, (found.objective, found.converged, found.num_steps)


def soft(x: Tensor, centers: Tensor, gamma: Tensor, middle: Tensor, point_weights: Maybe) -> Found:
    """The means of what each center is assigned, (..., K, D), ``Σ_ij ω_i α_ij |x_i - mean_j|²`` and the free energy, (...)."""
    features = x.shape[-1]
    found = expected_statistics(
        gaussian_factor(x, centers, 2 * gamma.unsqueeze(-1), origin=middle), None, point_weights
    )
    origin, counts = found.centers[0] if found.centers else middle, found.counts.unsqueeze(-1)
    first, second = found.sums[..., :features], -2 * found.sums[..., features]
    moved = torch.where(counts > 0, origin + safe_ratio(first, counts, torch.zeros_like(first)), centers)
    around = (second - (safe_ratio(first, counts, torch.zeros_like(first)) * first).sum(-1)).sum(-1)
    evidence = found.log_evidence - 0.5 * features * (gamma / math.pi).log().unsqueeze(-1)
    evidence = evidence if point_weights is None else evidence * point_weights
    return moved, around, -evidence.sum(-1) / gamma


def hard(x: Tensor, centers: Tensor, gamma: Tensor, middle: Tensor, point_weights: Maybe) -> Found:
    """The same in the limit of infinite γ: every point counts for the nearest center, the first of several."""

    def nearest(queries: list, given: list) -> tuple[Tensor, None]:
        """Return the number of the nearest center, by a product where its rounding leaves no doubt, else by the differences."""
        (points,), (centers, middle) = queries, given
        away, at = points - middle, centers - middle
        scores = at.square().sum(-1).unsqueeze(-2) - 2 * away @ at.mT
        doubt = 8 * (x.shape[-1] + 4) * torch.finfo(x.dtype).eps * sum(z.norm(dim=-1).amax() for z in (away, at)) ** 2
        close = scores <= scores.amin(-1, keepdim=True) + doubt
        if not (close.sum(-1) == 1).all():
            scores = squared_distances(points, centers)
        return scores.argmin(-1, keepdim=True).to(points.dtype), None

    with torch.no_grad():
        chosen = over_chunks(nearest, [x], [centers, middle], centers.shape[-2])[0].long()
    shape = (*chosen.shape[:-1], x.shape[-1])
    place = chosen.expand(shape)
    away = x - centers.expand(*shape[:-2], *centers.shape[-2:]).gather(-2, place)
    weights = (
        torch.ones_like(away[..., :1]) if point_weights is None else point_weights.unsqueeze(-1).expand(*shape[:-1], 1)
    )
    counts = away.new_zeros(*shape[:-2], centers.shape[-2], 1).scatter_add(-2, chosen, weights)
    shift = away.new_zeros(*shape[:-2], *centers.shape[-2:]).scatter_add(-2, place, weights * away)
    moved = centers + safe_ratio(shift, counts, torch.zeros_like(shift))
    energy = (weights * away.square()).sum((-2, -1))
    return moved, energy, energy
