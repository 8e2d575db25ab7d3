"""Averages over the draws of Markov chains, weighted or not: their Monte Carlo errors, and quantiles.

Draws are tensors (chain, draw, ...), log weights the same, of size 1 where the axes share them.
"""

import math

import torch
from torch import Tensor


def shares(log_weights: Tensor) -> Tensor:
    """Weights that sum to 1 over chains and draws, from their logarithms, in double precision."""
    return log_weights.double().flatten(0, 1).softmax(0).reshape(log_weights.shape)


def average_error(x: Tensor, log_weights: Tensor) -> Tensor:
    """Standard error of the weighted mean m, a ratio of means, to first order: that of ``r_s (x_s - m) / mean(r)`` (delta method)."""
    wide, weights = x.double(), shares(log_weights)
    number = x.shape[0] * x.shape[1]
    return standard_error(number * weights * (wide - (weights * wide).sum((0, 1)))).to(x.dtype)


def log_average(log_x: Tensor) -> Tensor:
    """``log mean_s exp(log_x_s)``, (...)."""
    return (log_x.double().flatten(0, 1).logsumexp(0) - math.log(log_x.shape[0] * log_x.shape[1])).to(log_x.dtype)


def log_average_error(log_x: Tensor) -> Tensor:
    """Standard error of `log_average`, to first order."""
    return standard_error((log_x.double() - log_average(log_x.double())).exp()).to(log_x.dtype)


def band(x: Tensor, log_weights: Tensor, prob: float) -> Tensor:
    """The central band that holds ``prob`` of the weights, (2, ...)."""
    return quantiles(x, shares(log_weights), ((1 - prob) / 2, (1 + prob) / 2))


def quantiles(x: Tensor, weights: Tensor, probs: tuple[float, ...]) -> Tensor:
    """Return the smallest draw up to which the weights reach each probability: (chain, draw, ...) to (probability, ...)."""
    last = x.flatten(0, 1).movedim(0, -1).contiguous()  # to sort along neighbours in memory takes a third of the time
    ordered, order = last.sort(-1)
    reached = weights.expand_as(x).flatten(0, 1).movedim(0, -1).gather(-1, order).cumsum(-1)
    limits = reached.new_tensor(probs).expand(*reached.shape[:-1], -1).contiguous()
    places = torch.searchsorted(reached, limits).clamp_max(
        last.shape[-1] - 1
    )  # rounding may keep the sum below a limit
    return ordered.gather(-1, places).movedim(-1, 0)


def standard_error(x: Tensor) -> Tensor:
    """Standard error of the mean of Markov chains, (chain, draw, ...) to (...); 0 where all draws are equal.

    By the effective sample size of Geyer's initial monotone sequence over split chains (Vehtari et al. 2021, *Rank-normalization,
    folding, and localization*). Of chains shorter than 8 draws by the spread of their means; NaN of a single such chain.
    """
    chains, draws = x.shape[:2]
    if draws < 8:
        alike = (x == x[:1, :1]).flatten(0, 1).all(0)
        return torch.where(alike, 0.0, x.mean(1).std(0) / chains**0.5 if chains > 1 else math.nan)
    half = draws // 2
    x = torch.cat([x[:, :half], x[:, -half:]]).movedim(1, -1).contiguous()
    means = x.mean(-1)
    spectrum = torch.view_as_real(torch.fft.rfft(x - means.unsqueeze(-1), n=2 * half)).square().sum(-1).mean(0)
    covariance = torch.fft.irfft(spectrum, n=2 * half)[..., :half] / half
    within = covariance[..., :1] * half / (half - 1)
    total = covariance[..., :1] + means.var(0).unsqueeze(-1)
    correlation = 1 - (within - covariance) / total
    correlation[..., 0] = 1
    even, odd = correlation[..., : half // 2 * 2].unflatten(-1, (-1, 2)).unbind(-1)
    positive = (even + odd > 0).cumprod(-1)
    kept = torch.where(positive.bool(), (even + odd).cummin(-1).values, 0.0).sum(-1, keepdim=True)
    after = torch.cat([even, torch.zeros_like(even[..., :1])], -1).gather(-1, positive.sum(-1, keepdim=True))
    number = len(means) * half
    inflation = (2 * kept - 1 + after.clamp_min(0)).clamp_min(1 / math.log10(number))
    return torch.where(total > 0, (total * inflation / number).sqrt(), 0.0).squeeze(-1)


__all__ = [
    "average_error",
    "band",
    "log_average",
    "log_average_error",
    "quantiles",
    "shares",
    "standard_error",
]
