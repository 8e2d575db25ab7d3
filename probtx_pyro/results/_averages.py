"""Averages over the draws of Markov chains, weighted or not: their Monte Carlo errors, and quantiles.

Draws are tensors (chain, draw, ...), log weights of the same shape or broadcasting to it.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Average(NamedTuple):
    """A mean over draws (...), its Monte Carlo standard error (...), and a central band of the draws (2, ...)."""

    mean: Tensor
    error: Tensor
    band: Tensor


def averaged(x: Tensor, log_weights: Tensor, prob: float) -> Average:
    """Average draws with weights that need not be normalised: ``Σ_s r_s x_s / Σ_s r_s``, a ratio of means.

    Parameters
    ----------
    x, log_weights
        (chain, draw, ...), the second broadcasting to the first.
    prob
        Of the band, between equal tails.

    Returns
    -------
    Average
        Its error is that of the ratio to first order: of the mean of ``r_s (x_s - mean) / mean(r)`` (the delta method).
    """
    wide, weights = x.double(), shares(log_weights.double())
    mean = (weights * wide).sum((0, 1))
    error = standard_error(x.shape[0] * x.shape[1] * weights * (wide - mean))
    tails = ((1 - prob) / 2, (1 + prob) / 2)
    band = quantiles(wide.flatten(0, 1), weights.expand_as(wide).flatten(0, 1), tails)
    return Average(mean.to(x.dtype), error.to(x.dtype), band.to(x.dtype))


def log_averaged(log_x: Tensor, prob: float) -> Average:
    """Average draws that are given by their logarithms, each with the same weight: ``log mean_s exp(log_x_s)``.

    The error is that of the logarithm, to first order; the band is one of the logarithms.
    """
    wide = log_x.double()
    number = wide.shape[0] * wide.shape[1]
    mean = wide.flatten(0, 1).logsumexp(0) - math.log(number)
    error = standard_error((wide - mean).exp())
    flat = wide.flatten(0, 1)
    band = quantiles(flat, torch.full_like(flat, 1 / number), ((1 - prob) / 2, (1 + prob) / 2))
    return Average(mean.to(log_x.dtype), error.to(log_x.dtype), band.to(log_x.dtype))


def shares(log_weights: Tensor) -> Tensor:
    """Weights that sum to 1 over chains and draws, from their logarithms (chain, draw, ...)."""
    return log_weights.flatten(0, 1).softmax(0).reshape(log_weights.shape)


def quantiles(x: Tensor, weights: Tensor, probs: tuple[float, ...]) -> Tensor:
    """Return the smallest draw up to which the weights reach each probability: x, weights (draw, ...) to (probability, ...)."""
    ordered, order = x.sort(0)
    reached = weights.gather(0, order).cumsum(0)
    last = len(x) - 1  # where rounding keeps the sum below the probability
    places = [(reached < p).sum(0, keepdim=True).clamp_max(last) for p in probs]
    return torch.cat([ordered.gather(0, place) for place in places])


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
    x = torch.cat([x[:, :half], x[:, -half:]])
    means = x.mean(1)
    centered = x - means.unsqueeze(1)
    spectrum = torch.fft.rfft(centered, n=2 * half, dim=1)
    covariance = torch.fft.irfft(spectrum.abs().square(), n=2 * half, dim=1)[:, :half].mean(0) / half
    within = covariance[0] * half / (half - 1)
    total = covariance[0] + means.var(0)
    correlation = 1 - (within - covariance) / total
    correlation[0] = 1
    even, odd = correlation[: half // 2 * 2].unflatten(0, (-1, 2)).unbind(1)
    positive = (even + odd > 0).cumprod(0)
    kept = torch.where(positive.bool(), (even + odd).cummin(0).values, 0.0)
    after = torch.cat([even, torch.zeros_like(even[:1])]).gather(0, positive.sum(0, keepdim=True))[0]
    number = x.shape[0] * half
    inflation = (2 * kept.sum(0) - 1 + after.clamp_min(0)).clamp_min(1 / math.log10(number))
    return torch.where(total > 0, (total * inflation / number).sqrt(), 0.0)


__all__ = ["Average", "averaged", "log_averaged", "quantiles", "shares", "standard_error"]
