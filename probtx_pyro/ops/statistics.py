"""E-step and M-step sums in one pass over the queries: ``W' [T, 1]``, chunked so that the Q x U matrix never exists.

Each chunk of queries sees every unit, so its softmax is exact. With gradients, where there are several chunks they are recomputed
in the backward pass: the memory stays O(chunk x U) there, too.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from probtx_pyro.ops._numerics import common_shape, exporting, known, single, unrounded
from probtx_pyro.ops.attention import MASKED_COLUMN, Factor, beside
from probtx_pyro.typing import LogPrior, PerQuery, PerUnit

CHUNK_ELEMENTS = 2**19  # entries of W at a time: what stays in a processor's second cache


class Statistics(NamedTuple):
    """Sums of one E-step, with w_ij the attention, or the indicator of an assignment that was drawn from it.

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
    """Return the posterior-weighted sums of the sufficient statistics (PT eq. 29, 30, 35, 37, 38 are ratios of them).

    Parameters
    ----------
    factor
        Of Q queries and U units.
    log_prior
        (..., Q or 1, U), or None for 0.
    query_weights
        (..., Q), factors of the queries' rows: 0 is an absent query. None is 1.

    Returns
    -------
    statistics
        Log evidence (..., Q), counts (..., U), sums (..., U, T).
    """
    statistics, parameters, row_prior = as_product(factor, log_prior)
    collected = statistics if query_weights is None else statistics * query_weights.unsqueeze(-1)
    evidence, sums = over_chunks(_moments, (statistics, row_prior, collected), (parameters,))
    return Statistics(_based(evidence.squeeze(-1), factor), sums[..., -1, :], sums[..., :-1, :].transpose(-1, -2))


def sampled_statistics(
    factor: Factor, log_prior: LogPrior | None, uniforms: PerQuery, query_weights: PerQuery | None = None
) -> tuple[Statistics, Tensor]:
    """Return the sums with each query assigned to one unit, drawn from its attention by inverting the distribution function.

    Parameters
    ----------
    factor
        Of Q queries and U units.
    log_prior
        (..., Q or 1, U), or None for 0.
    uniforms
        (..., Q) in [0, 1); they also set the leading axes of what is drawn.
    query_weights
        (..., Q), factors of the queries' rows: 0 is an absent query. None is 1.

    Returns
    -------
    statistics
        As those of `expected_statistics`.
    units
        (..., Q), the units drawn. A row that is masked everywhere draws unit 0 and counts for nobody.
    """
    statistics, parameters, row_prior = as_product(factor, log_prior)
    collected = statistics if query_weights is None else statistics * query_weights.unsqueeze(-1)
    by_query = (statistics, row_prior, collected, uniforms.unsqueeze(-1))
    found, sums = over_chunks(_sampled, by_query, (parameters,))
    return Statistics(_based(found[..., 0], factor), sums[..., -1], sums[..., :-1]), found[..., 1].long()


def log_evidence(factor: Factor, log_prior: LogPrior | None = None) -> PerQuery:
    """Return ``log p(x_i) = logsumexp_j log p(x_i, unit=j)``, some queries at a time.

    Parameters
    ----------
    factor
        Of Q queries and U units.
    log_prior
        (..., Q or 1, U); None is 0.

    Returns
    -------
    log_evidence
        (..., Q); -inf for a fully masked row.
    """
    statistics, parameters, row_prior = as_product(factor, log_prior)
    return _based(over_chunks(_evidence, (statistics, row_prior), (parameters,))[0].squeeze(-1), factor)


def _based(evidence: Tensor, factor: Factor) -> Tensor:
    return evidence if factor.base is None else evidence + factor.base


def _weights(statistics: Tensor, parameters: Tensor, row_prior: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Attention before its division by the row sums, those sums (1 for an empty row), and the log evidence.

    In place, because each pass over a chunk costs as much as its matrix product.
    """
    scores = statistics @ parameters.transpose(-1, -2)
    if row_prior is not None:
        wide = common_shape(scores.shape, row_prior.shape)
        scores = scores.add_(row_prior) if scores.shape == wide else scores + row_prior
    peak = scores.detach().amax(-1, keepdim=True)
    empty = peak <= MASKED_COLUMN / 2
    shifted = scores.sub_(peak.masked_fill(empty, 0.0))
    lowest = math.log(torch.finfo(scores.dtype).tiny) + 1  # exp of less is subnormal, which slows a CPU tenfold
    subnormal = not scores.is_cuda and known(shifted.detach().amin() < lowest, otherwise=True)
    if subnormal and shifted.requires_grad:
        weights = torch.threshold(shifted.clamp_min(lowest).exp(), 1.001 * math.exp(lowest), 0.0)
    elif subnormal:
        weights = torch.threshold_(shifted.clamp_min_(lowest).exp_(), 1.001 * math.exp(lowest), 0.0)
    else:
        weights = shifted.exp_()
    total = weights.sum(-1, keepdim=True).masked_fill(empty, 1.0)
    return weights, total, (peak + total.log()).masked_fill(empty, -math.inf).squeeze(-1)


def _moments(
    statistics: Tensor, row_prior: Tensor | None, collected: Tensor, parameters: Tensor
) -> tuple[Tensor, Tensor]:
    weights, total, evidence = _weights(statistics, parameters, row_prior)
    return evidence.unsqueeze(-1), (collected / total).transpose(-1, -2) @ weights  # the quicker way round; (..., T, U)


def _sampled(
    statistics: Tensor, row_prior: Tensor | None, collected: Tensor, uniforms: Tensor, parameters: Tensor
) -> tuple[Tensor, Tensor]:
    """Queries last, so that every pass over the units runs along contiguous memory, and in place. Sums are (..., U, T)."""
    scores = parameters @ statistics.mT
    scores = scores if row_prior is None else scores + row_prior.mT
    peak = scores.amax(-2, keepdim=True)
    empty = peak <= MASKED_COLUMN / 2
    lowest = math.log(torch.finfo(scores.dtype).tiny) + 1  # exp of less is subnormal, which slows a CPU tenfold
    shifted = scores.sub_(peak.masked_fill(empty, 0.0)).clamp_min_(lowest)
    cumulated = shifted.exp_().cumsum_(-2)
    total = cumulated[..., -1:, :].clone()
    # 1 - uniform is never 0, so what `lowest` stands for, below its rounding, is never drawn
    height = torch.where(empty, math.inf, (1 - uniforms.mT) * total)
    reached = _wide(cumulated, height).ge_(height)
    units = (scores.shape[-2] - reached.sum(-2, keepdim=True)).masked_fill_(empty, 0.0)
    reached[..., 1:, :] -= reached[..., :-1, :].clone()  # the unit where the sum gets there: one 1 in each column
    evidence = (peak + total.log()).masked_fill_(empty, -math.inf)
    return torch.cat([evidence.expand_as(units), units], -2).mT, reached @ collected


def _wide(x: Tensor, like: Tensor) -> Tensor:
    """Return ``x`` with the leading axes of ``like``, to be written on."""
    return x if x.shape[:-2] == like.shape[:-2] else x.expand(*like.shape[:-2], *x.shape[-2:]).clone()


def _evidence(statistics: Tensor, row_prior: Tensor | None, parameters: Tensor) -> tuple[Tensor, None]:
    return _weights(statistics, parameters, row_prior)[2].unsqueeze(-1), None


def as_product(factor: Factor, log_prior: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the two sides of the log joint; the bias and a prior with one row ride along as a last column, against ones.

    There log 0 is `MASKED_COLUMN`.

    Parameters
    ----------
    factor
        Of Q queries and U units.
    log_prior
        (..., Q or 1, U), or None for 0.

    Returns
    -------
    statistics, parameters
        (..., Q, T + 1) and (..., U, T + 1), whose product is the log joint.
    row_prior
        A prior with a row for each query, as it is, or None.
    """
    bias, row_prior = factor.bias, None
    if log_prior is not None and log_prior.shape[-2] == 1:
        bias = bias + log_prior.squeeze(-2)
    elif log_prior is not None:
        row_prior = log_prior
    parameters = beside(factor.parameters, bias.clamp_min(MASKED_COLUMN).unsqueeze(-1))
    return beside(factor.statistics, factor.statistics.new_ones(1)), parameters, row_prior


def over_chunks(function: Callable, by_query: Sequence[Tensor | None], shared: Sequence[Tensor]) -> tuple[Tensor, Any]:
    """Return ``function(*by_query, *shared)``, computed in pieces: of the batch, and within a problem of the queries.

    ``torch.export``, which would fix the number of pieces, gets it in one.

    Parameters
    ----------
    function
        Returns a tensor (..., Q, X), whose pieces are joined, and one that sums over the queries (or None), whose pieces are added.
    by_query
        Tensors with the queries at axis -2, or None.
    shared
        Tensors for all queries; the first has the units at axis -2.

    Returns
    -------
    joined, total
        The two tensors of ``function`` for all queries.
    """
    if exporting():
        return function(*by_query, *shared)
    tensors = [x for x in (*by_query, *shared) if x is not None]
    queries, units = tensors[0].shape[-2], shared[0].shape[-2]
    batch = common_shape(*(x.shape[:-2] for x in tensors))
    if batch.numel() > 1 and batch.numel() * queries * units > CHUNK_ELEMENTS:
        axis = next(i for i, n in enumerate(batch) if n > 1) - len(batch)
        size = max(1, batch[axis] * CHUNK_ELEMENTS // (batch.numel() * queries * units))
        pieces = []
        for start in range(0, batch[axis], size):
            parts = [[_slice(x, axis - 2, start, size) for x in given] for given in (by_query, shared)]
            pieces.append(over_chunks(function, *parts))
        joined, sums = zip(*pieces, strict=True)
        return torch.cat(joined, axis - 2), None if sums[0] is None else torch.cat(sums, axis - 2)
    size = max(1, CHUNK_ELEMENTS // (max(1, batch.numel()) * units))
    recompute = queries > size and torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    found, total = [], None
    for start in range(0, queries, size):
        part = (*(_slice(x, -2, start, size) for x in by_query), *shared)
        piece, sums = checkpoint(function, *part, use_reentrant=False) if recompute else function(*part)
        found.append(piece)
        total = sums if total is None else (total + sums if recompute else total.add_(sums))
    return torch.cat(found, -2), total


def by_chunks(
    function: Callable[..., Tensor],
    states: Tensor,
    patterns: Tensor,
    log_prior: Tensor | None = None,
    *shared: Tensor,
) -> Tensor:
    """Return ``function(scores, *shared)``, some rows of the scores ``states · patterns' + log_prior`` at a time.

    Parameters
    ----------
    function
        From scores (..., Q, N) to (..., Q, X).
    states, patterns
        (..., Q, D) and (..., N, D).
    log_prior
        (..., Q or 1, N); None is 0.
    shared
        Further arguments of ``function``.

    Returns
    -------
    found
        (..., Q, X).
    """

    def rows(states: Tensor, log_prior: Tensor | None, patterns: Tensor, *shared: Tensor) -> tuple[Tensor, None]:
        with unrounded(states.device):
            scores = single(states) @ single(patterns).mT
        return function(scores if log_prior is None else scores + log_prior, *shared), None

    return over_chunks(rows, (states, log_prior), (patterns, *shared))[0]


def _slice(x: Any, axis: int, start: int, size: int) -> Any:
    """A slice along an axis counted from the right; a tensor that lacks it, or has it with size 1, is shared."""
    if x is None or x.dim() < -axis or x.shape[axis] == 1:
        return x
    return x.narrow(axis, start, min(size, x.shape[axis] - start))
