"""Objectives of soft k-means as data, and mini-batch gradient descent on them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.ops._numerics import common_shape
from probtx_pyro.ops._progress import progress_bar

Objective = Callable[[Any, Tensor], Tensor]  # a `SoftKMeans` and points to a number for every point, (..., N)

OBJECTIVES: dict[str, Objective] = {
    "free_energy": lambda model, x: model.free_energy(x),
    "distortion": lambda model, x: model.distortion(x),
    "reconstruction_error": lambda model, x: model.reconstruction_error(x),
}


def named(objective: str | Objective) -> Objective:
    """The objective that a name stands for; a callable stands for itself."""
    if callable(objective):
        return objective
    if objective not in OBJECTIVES:
        raise ValueError(
            f"objective must be one of {', '.join(OBJECTIVES)}, or a callable of (model, points), not {objective!r}"
        )
    return OBJECTIVES[objective]


def gradient(model: Any, x: Tensor, objective: str | Objective) -> Tensor:
    """Return the gradient of the mean over points with respect to the centers, (..., K, D)."""
    return _slope(model, x, named(objective))[0]


def _slope(model: Any, x: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    """The gradient, and the objective's mean over the points, (...)."""
    batch = common_shape(x.shape[:-2], model.centers.shape[:-2], model.gamma.shape)
    with torch.enable_grad():
        centers = model.centers.detach().expand(*batch, -1, -1).clone().requires_grad_()
        value = objective(check.unchecked(type(model), centers=centers, gamma=model.gamma), x).mean(-1)
        return torch.autograd.grad(value.sum(), centers)[0], value.detach()


def descend(
    model: Any,
    x: Tensor,
    objective: str | Objective,
    num_steps: int,
    batch_size: int,
    seed: int,
    learning_rate: float | None,
    progress: bool | None,
) -> tuple[Tensor, Tensor]:
    """Centers and the objective of every mini-batch; see `SoftKMeans.descend`."""
    if not 1 <= batch_size <= x.shape[-2]:
        raise ValueError(f"batch_size must be from 1 to the number of points, {x.shape[-2]}, not {batch_size}")
    if num_steps < 1 or (learning_rate is not None and not learning_rate > 0):
        raise ValueError(
            f"num_steps must be 1 or more and learning_rate positive, not num_steps={num_steps}, learning_rate={learning_rate}"
        )
    if learning_rate is None and objective != "free_energy":
        raise ValueError(
            "learning_rate=None makes centers running means, which descends the free energy only; give a number"
        )
    function, generator = named(objective), torch.Generator().manual_seed(seed)
    batch = common_shape(x.shape[:-2], model.centers.shape[:-2], model.gamma.shape)
    centers, trace = model.centers.detach().expand(*batch, -1, -1), []
    met, order = centers.new_zeros(centers.shape[:-1]), torch.empty(0, dtype=torch.long, device="cpu")
    for _ in progress_bar(range(num_steps), label="mini-batches", progress=progress):
        if len(order) < batch_size:
            order = torch.randperm(x.shape[-2], generator=generator, device="cpu")
        rows, order = order[:batch_size].to(x.device), order[batch_size:]
        now = check.unchecked(type(model), centers=centers, gamma=model.gamma)
        points = x[..., rows, :].detach()
        slope, value = _slope(now, points, function)
        trace.append(value)
        if learning_rate is not None:
            centers = centers - learning_rate * slope
            continue
        met = met + now.assign(points).sum(-2)
        share = batch_size / (2 * met.unsqueeze(-1))  # -slope · batch / 2 is the sum of the pulls
        centers = centers - torch.where(met.unsqueeze(-1) > 0, share, 0.0) * slope
    return centers, torch.stack(trace)
