"""E-step and M-step sums in one pass over the queries: ``W' [T, 1]``, chunked so that the Q x U matrix never exists.

Each chunk of queries sees every unit, so its softmax is exact. With gradients, the chunks are recomputed in the backward
pass: the memory stays O(chunk x U) there, too.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from probtx_pyro.ops.attention import Factor, log_joint
from probtx_pyro.ops.numerics import safe_softmax
from probtx_pyro.typing import LogPrior, PerQuery, PerUnit

CHUNK_ELEMENTS = 2**21  # entries of W at a time: what stays near the processor's cache; see benchmarks/mixture.py


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

    Shapes: factor of Q queries and U units, log_prior (..., Q or 1, U), query_weights (..., Q) multiply the queries' rows
    (0: an absent query).
    """
    collected = torch.cat([factor.statistics, torch.ones_like(factor.statistics[..., :1])], -1)
    if query_weights is not None:
        collected = collected * query_weights.unsqueeze(-1)
    evidences, total = [], 0.0
    for rows in _chunks(factor, log_prior):
        part, prior = factor._replace(statistics=factor.statistics[..., rows, :]), _rows(log_prior, rows)
        evidence, sums = _run(_moments, part, prior, collected[..., rows, :])
        evidences.append(evidence)
        total = total + sums
    return Statistics(torch.cat(evidences, -1), total[..., -1], total[..., :-1])


def log_evidence(factor: Factor, log_prior: LogPrior | None = None) -> PerQuery:
    """``log p(x_i) = logsumexp_j log p(x_i, unit=j)``, shape (..., Q), chunked; -inf for a fully masked row."""
    return torch.cat(
        [
            _run(_evidence, factor._replace(statistics=factor.statistics[..., rows, :]), _rows(log_prior, rows))
            for rows in _chunks(factor, log_prior)
        ],
        -1,
    )


def _moments(factor: Factor, log_prior: Tensor | None, collected: Tensor) -> tuple[Tensor, Tensor]:
    weights, evidence = safe_softmax(log_joint(factor, log_prior))
    return evidence, weights.transpose(-1, -2) @ collected


def _evidence(factor: Factor, log_prior: Tensor | None) -> Tensor:
    return safe_softmax(log_joint(factor, log_prior))[1]


def _run(function, factor: Factor, *args):
    recompute = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in (*factor, *args))
    return checkpoint(function, factor, *args, use_reentrant=False) if recompute else function(factor, *args)


def _rows(log_prior: Tensor | None, rows: slice) -> Tensor | None:
    return log_prior if log_prior is None or log_prior.shape[-2] == 1 else log_prior[..., rows, :]


def _chunks(factor: Factor, log_prior: Tensor | None) -> Iterator[slice]:
    queries, units = factor.statistics.shape[-2], factor.parameters.shape[-2]
    prior_batch = () if log_prior is None else log_prior.shape[:-2]
    batch = torch.broadcast_shapes(factor.statistics.shape[:-2], factor.parameters.shape[:-2], prior_batch).numel()
    size = max(1, min(queries, CHUNK_ELEMENTS // max(1, batch * units)))
    return (slice(start, start + size) for start in range(0, queries, size))


__all__ = ["Statistics", "expected_statistics", "log_evidence"]
