"""E-step and M-step sums in one pass over the queries: ``W' [T, 1]``, chunked so that the Q x U matrix never exists.

Each chunk of queries sees every unit, so its softmax is exact. With gradients, the chunks are recomputed in the backward
pass: the memory stays O(chunk x U) there, too.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from probtx_pyro.ops.attention import MASKED_COLUMN, Factor
from probtx_pyro.typing import LogPrior, PerQuery, PerUnit

CHUNK_ELEMENTS = 2**19  # entries of W at a time: what stays in a processor's second cache


class Statistics(NamedTuple):
    """What one E-step leaves behind.

    log_evidence: log p(x_i), shape (..., Q).
    counts: Σ_i w_ij, shape (..., U).
    sums: Σ_i w_ij t(x_i), shape (..., U, T).
    """

    log_evidence: PerQuery
    counts: PerUnit
    sums: Tensor


def expected_statistics(
    factor: Factor, log_prior: LogPrior | None, query_weights: PerQuery | None = None
) -> Statistics:
    """The posterior-weighted sums of the sufficient statistics (PT eq. 29, 30, 35, 37, 38 are ratios of them).

    Shapes: factor of Q queries and U units, log_prior (..., Q or 1, U); query_weights (..., Q) multiply the queries'
    rows (0: an absent query).
    """
    collected = torch.cat([factor.statistics, torch.ones_like(factor.statistics[..., :1])], -1)
    if query_weights is not None:
        collected = collected * query_weights.unsqueeze(-1)
    evidence, sums = zip(*_each_chunk(_moments, factor, log_prior, collected), strict=True)
    total = sums[0]
    for part in sums[1:]:
        total = total + part
    return Statistics(torch.cat(evidence, -1), total[..., -1], total[..., :-1])


def log_evidence(factor: Factor, log_prior: LogPrior | None = None) -> PerQuery:
    """``log p(x_i) = logsumexp_j log p(x_i, unit=j)``, shape (..., Q), chunked; -inf for a fully masked row."""
    return torch.cat(list(_each_chunk(_evidence, factor, log_prior, None)), -1)


def _weights(statistics: Tensor, parameters: Tensor, row_prior: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Attention before its division by the row sums, those sums (1 for an empty row), and the log evidence.

    In place, because each pass over a chunk costs as much as its matrix product.
    """
    scores = statistics @ parameters.transpose(-1, -2)
    if row_prior is not None:
        wide = torch.broadcast_shapes(scores.shape, row_prior.shape)
        scores = scores.add_(row_prior) if scores.shape == wide else scores + row_prior
    peak = scores.detach().amax(-1, keepdim=True)
    empty = peak <= MASKED_COLUMN / 2
    weights = scores.sub_(peak.masked_fill(empty, 0.0)).exp_()
    total = weights.sum(-1, keepdim=True).masked_fill(empty, 1.0)
    return weights, total, (peak + total.log()).masked_fill(empty, -math.inf).squeeze(-1)


def _moments(
    statistics: Tensor, parameters: Tensor, row_prior: Tensor | None, collected: Tensor
) -> tuple[Tensor, Tensor]:
    weights, total, evidence = _weights(statistics, parameters, row_prior)
    return evidence, weights.transpose(-1, -2) @ (collected / total)


def _evidence(statistics: Tensor, parameters: Tensor, row_prior: Tensor | None, collected: None) -> Tensor:
    return _weights(statistics, parameters, row_prior)[2]


def _each_chunk(function: Callable, factor: Factor, log_prior: Tensor | None, collected: Tensor | None) -> Iterator:
    """``function`` of every chunk of queries; the bias and a prior with one row ride along as a column of the product."""
    bias, row_prior = factor.bias, None
    if log_prior is not None and log_prior.shape[-2] == 1:
        bias = bias + log_prior.squeeze(-2)
    elif log_prior is not None:
        row_prior = log_prior
    column = bias.clamp_min(MASKED_COLUMN).unsqueeze(-1)
    shape = torch.broadcast_shapes(column.shape[:-1], factor.parameters.shape[:-1])
    parameters = torch.cat([factor.parameters.expand(*shape, -1), column.expand(*shape, 1)], -1)
    statistics = torch.cat([factor.statistics, torch.ones_like(factor.statistics[..., :1])], -1)
    tensors = (statistics, parameters, row_prior, collected)
    recompute = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    for rows in _chunks(statistics, parameters, row_prior):
        part = (
            statistics[..., rows, :],
            parameters,
            None if row_prior is None else row_prior[..., rows, :],
            None if collected is None else collected[..., rows, :],
        )
        yield checkpoint(function, *part, use_reentrant=False) if recompute else function(*part)


def _chunks(statistics: Tensor, parameters: Tensor, row_prior: Tensor | None) -> Iterator[slice]:
    queries, units = statistics.shape[-2], parameters.shape[-2]
    leading = [x.shape[:-2] for x in (statistics, parameters, row_prior) if x is not None]
    size = max(1, min(queries, CHUNK_ELEMENTS // max(1, torch.broadcast_shapes(*leading).numel() * units)))
    return (slice(start, start + size) for start in range(0, queries, size))


__all__ = ["Statistics", "expected_statistics", "log_evidence"]
