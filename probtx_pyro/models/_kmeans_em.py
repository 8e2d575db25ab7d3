"""EM of soft k-means and, in its limit, Lloyd's algorithm: one loop, with the assignment as the only difference."""

import math

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models.mixture import Maybe
from probtx_pyro.ops import expected_statistics, fixed_point, isotropic_factor, safe_ratio
from probtx_pyro.ops._fixed_point import State
from probtx_pyro.ops._numerics import common_shape
from probtx_pyro.ops.statistics import over_chunks

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
    middle = x.detach().mean(-2, keepdim=True)  # far from the origin the products would lose digits
    points = x - middle
    squares = points.square().sum(-1)
    weights = torch.ones_like(squares) if point_weights is None else point_weights
    total, second = weights.sum(-1), (weights * squares).sum(-1)

    fixed, number = gamma.expand(problems), centers.shape[-2]
    assigned = hard if limit else soft

    def step(state: State) -> tuple[State, Tensor]:
        present, sharpness = state["centers"], state.get("gamma", fixed)
        counts, sums, energy = assigned(points, present, sharpness, point_weights)
        moved = safe_ratio(sums, counts.unsqueeze(-1), present)
        value = second + energy
        if not learn_gamma:
            return {"centers": moved}, value
        around = second - (counts * moved.square().sum(-1)).sum(-1)  # Σ w |x - r|² about the means
        if check.is_validation_enabled() and (around <= 1e3 * torch.finfo(x.dtype).eps * second).any():
            raise ValueError(
                "learn_gamma: the points lie on the centers, where gamma grows without bound; use fewer centers, or keep gamma fixed"
            )
        learned = 0.5 * x.shape[-1] * total / around
        return {"centers": moved, "gamma": learned}, likelihood(value, sharpness)

    def likelihood(energy: Tensor, sharpness: Tensor) -> Tensor:
        """Minus the log likelihood of the mixture with precision 2γ and equal weights."""
        density = math.log(number) - 0.5 * x.shape[-1] * (sharpness / math.pi).log()
        return sharpness * energy + total * density

    begin = {"centers": (centers - middle).expand(*problems, -1, -1)}
    if learn_gamma:  # what is fixed is no part of the state, where it would be a flat direction
        begin["gamma"] = fixed
    found = fixed_point(
        step, begin, problems=problems, num_steps=num_steps, tol=tol, objective=lambda state: step(state)[1],
        implicit=implicit, progress=progress, label="EM",
    )  # fmt: skip
    assert found.objective is not None
    learned = found.state["gamma"] if learn_gamma else gamma
    return found.state["centers"] + middle, learned, (found.objective, found.converged, found.num_steps)


def soft(points: Tensor, centers: Tensor, gamma: Tensor, point_weights: Maybe) -> Found:
    """``Σ_i ω_i α_ij`` (..., K), ``Σ_i ω_i α_ij x_i`` (..., K, D), and the free energy less ``Σ_i ω_i |x_i|²``, (...)."""
    precision = 2 * gamma.unsqueeze(-1)
    found = expected_statistics(isotropic_factor(points, centers, precision), None, point_weights)
    evidence = found.log_evidence if point_weights is None else found.log_evidence * point_weights
    return found.counts, found.sums / precision.unsqueeze(-1), -evidence.sum(-1) / gamma


def hard(points: Tensor, centers: Tensor, gamma: Tensor, point_weights: Maybe) -> Found:
    """The same in the limit of infinite γ: every point counts for the nearest center."""
    statistics = torch.cat([points, torch.ones_like(points[..., :1])], -1)
    parameters = torch.cat([-2 * centers, centers.square().sum(-1, keepdim=True)], -1)

    def nearest(statistics: Tensor, parameters: Tensor) -> tuple[Tensor, None]:
        least = (statistics @ parameters.mT).min(-1, keepdim=True)
        return torch.cat([least.values, least.indices.to(least.values)], -1), None

    found = over_chunks(nearest, (statistics,), (parameters,))[0]
    energy, chosen = found[..., 0], found[..., 1:].detach().long()
    weights = torch.ones_like(energy) if point_weights is None else point_weights.expand_as(energy)
    counts = weights.new_zeros(centers.shape[:-1]).scatter_add(-1, chosen.squeeze(-1), weights)
    collected = (points * weights.unsqueeze(-1)).expand(*energy.shape, -1)
    sums = torch.zeros_like(centers).scatter_add(-2, chosen.expand_as(collected), collected)
    return counts, sums, (weights * energy).sum(-1)
