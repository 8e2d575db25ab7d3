"""Problem set 1, solved."""

import math

import torch
from torch import Tensor


def log_joint(points: Tensor, means: Tensor, log_weights: Tensor, precision: float) -> Tensor:
    """Add the log weight and the log density of an isotropic Gaussian."""
    squares = (points[:, None] - means).square().sum(-1)
    normaliser = points.shape[-1] / 2 * math.log(precision / (2 * math.pi))
    return log_weights + normaliser - precision / 2 * squares


def responsibilities(points: Tensor, means: Tensor, log_weights: Tensor, precision: float) -> Tensor:
    """Normalise over clusters; softmax subtracts the largest score first, which is why far points do no harm."""
    return log_joint(points, means, log_weights, precision).softmax(-1)


def em_step(points: Tensor, means: Tensor, log_weights: Tensor, precision: float) -> tuple[Tensor, Tensor, Tensor]:
    """Averages, weighted by the responsibilities."""
    shares = responsibilities(points, means, log_weights, precision)
    counts = shares.sum(0)
    means = shares.T @ points / counts[:, None]
    squares = (shares * (points[:, None] - means).square().sum(-1)).sum()
    return means, (counts / len(points)).log(), float(points.numel() / squares)


def elbo(guide: Tensor, points: Tensor, means: Tensor, log_weights: Tensor, precision: float) -> Tensor:
    """Expected log joint plus entropy."""
    return (guide * log_joint(points, means, log_weights, precision)).sum() + torch.special.entr(guide).sum()


def linked_log_weights(keys: Tensor, precision: float) -> Tensor:
    """Put back what the square takes away: long keys are likelier beforehand."""
    return (precision / 2 * keys.square().sum(-1)).log_softmax(-1)


def em_answer(start: Tensor, attention: Tensor, values: Tensor, value_precision: float, num_steps: int) -> Tensor:
    """E-step: the unit given query and answer. M-step: the average of the values under it."""
    answer = start
    for _ in range(num_steps):
        answer = responsibilities(answer[None], values, attention.log(), value_precision)[0] @ values
    return answer
