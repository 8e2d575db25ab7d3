"""E-step and M-step sums in one pass over the queries: ``W' [T, 1]``, chunked so that the Q x U matrix never exists.

Where a factor holds squares (`probtx_pyro.ops._factor`), sums of them about a common center would lose their digits,
too. They are then about the mean of what each unit is given, which takes a second pass.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from probtx_pyro.ops._chunks import Parts, log_joint_of, over_chunks, sides, squares_of
from probtx_pyro.ops._factor import Factor, Squares, differences, doubled, whiten
from probtx_pyro.ops._numerics import known, safe_ratio
from probtx_pyro.typing import LogPrior, PerQuery, PerUnit

Scatter = Callable[[Tensor], Tensor]
Total = Callable[..., tuple[Tensor, ...]]


class Statistics(NamedTuple):
    """Sums of one E-step, with w_ij the attention, or the indicator of an assignment that was drawn from it.

    log_evidence: log p(x_i), shape (..., Q).
    counts: Σ_i w_ij, shape (..., U).
    sums: Σ_i w_ij t(x_i), shape (..., U, T). Of a factor with squares first, for each of them,
    ``z = root'(x - center)`` and ``-½|z|²``.
    centers: of a factor with squares, what each unit's sums are about, (..., U, D) each.
    scatter: of a factor with squares, from numbers a (..., U) to ``Σ_i (Σ_j a_j w_ij) z_ij z_ij'`` of the first, (...,
    D, D).
    """

    log_evidence: PerQuery
    counts: PerUnit
    sums: Tensor
    centers: tuple[Tensor, ...] = ()
    scatter: Scatter | None = None


def expected_statistics(
    factor: Factor, log_prior: LogPrior | None, query_weights: PerQuery | None = None, total: Total | None = None
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
    total
        Adds tensors up over the processes that hold the queries, all of which call with a factor of the same kind; None
        is one process.

    Returns
    -------
    statistics
        Log evidence (..., Q), counts (..., U), sums (..., U, T).
    """
    queries, units, width = sides(factor, log_prior)
    weights, total = None if query_weights is None else query_weights.unsqueeze(-1), total or _alone

    def summed(of: Callable[[Tensor, Parts, Parts], Tensor], *more: Tensor) -> tuple[Tensor, Tensor]:
        """The log evidence, and what ``of`` makes of attention times the weights of the queries, summed over these."""

        def chunk(queries: list, given: list) -> tuple[Tensor, Tensor]:
            (weights, *queries), units = queries, given[: len(given) - len(more)]
            attention, total, evidence = _weights(queries, units)
            attention = attention.mul_(total.reciprocal() if weights is None else weights / total)
            return evidence.unsqueeze(-1), of(attention, queries, given)

        evidence, sums = over_chunks(chunk, [weights, *queries], [*units, *more], width)
        return evidence.squeeze(-1), total(sums)[0]

    if not factor.squares:
        statistics = queries[0] if weights is None else queries[0] * weights
        evidence, sums = over_chunks(_moments, [statistics, *queries], units, width)
        (sums,) = total(sums.mT)
        return Statistics(_based(evidence.squeeze(-1), factor), sums[..., -1], sums[..., :-1])
    if all(x.origin is not None for x in factor.squares):
        evidence, first = summed(_doubled)
        counts, sums, means = _about_means(factor.squares, first)
    else:
        evidence, first = summed(_first)
        counts, linear, means = _means(factor.squares, first)
        _, second = summed(_about, *means)
        sums = torch.cat([second, linear], -1)

    def scatter(per_unit: Tensor) -> Tensor:
        return summed(_crossed, means[0], per_unit.unsqueeze(-1))[1].to(sums.dtype)

    return Statistics(_based(evidence, factor), counts, sums, tuple(means), scatter)


def _alone(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tensors


def sampled_statistics(
    factor: Factor, log_prior: LogPrior | None, uniforms: PerQuery, query_weights: PerQuery | None = None
) -> tuple[Statistics, Tensor]:
    """Return the sums with each query assigned to one unit,
    drawn from its attention by inverting the distribution function.

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
    queries, units, width = sides(factor, log_prior)
    collected = queries[0] if query_weights is None else queries[0] * query_weights.unsqueeze(-1)
    found, sums = over_chunks(_sampled, [collected, uniforms.unsqueeze(-1), *queries], units, width)
    counts, sums, evidence, chosen = sums[..., -1], sums[..., :-1], found[..., 0], found[..., 1].long()
    if not factor.squares:
        return Statistics(_based(evidence, factor), counts, sums), chosen
    present = (evidence > -math.inf).to(evidence.dtype) * (1.0 if query_weights is None else query_weights)
    drawn = [x if x.root is None else x._replace(root=_of_drawn(x.root, chosen)) for x in factor.squares]
    seen = [present if x.observed is None else present * x.observed.squeeze(-1) for x in drawn]

    def added(rows: Tensor, weights: Tensor) -> Tensor:
        """Rows (..., Q, X) times weights (..., Q), added up for each unit drawn."""
        rows = (rows * weights.unsqueeze(-1)).expand(*chosen.shape, rows.shape[-1])
        place = chosen.unsqueeze(-1).expand(rows.shape)
        return rows.new_zeros(*counts.shape, rows.shape[-1]).scatter_add(-2, place, rows)

    means = []
    for x, weights in zip(drawn, seen, strict=True):
        away = x.points - _of_drawn(x.centers, chosen)
        shift = added(torch.cat([away, torch.ones_like(away[..., :1])], -1), weights)
        means.append(x.centers + safe_ratio(shift[..., :-1], shift[..., -1:], torch.zeros_like(shift[..., :-1])))
    around = [whiten(x.points - _of_drawn(mean, chosen), x.root) for x, mean in zip(drawn, means, strict=True)]
    blocks = [added(_with_square(z), weights) for z, weights in zip(around, seen, strict=True)]

    def scatter(per_unit: Tensor) -> Tensor:
        strength = seen[0] * per_unit.expand(*chosen.shape[:-1], -1).gather(-1, chosen)
        return (strength.unsqueeze(-1) * around[0]).mT @ around[0]

    every = torch.cat([*blocks, _linear(factor.squares, sums)], -1)
    return Statistics(_based(evidence, factor), counts, every, tuple(means), scatter), chosen


def _of_drawn(per_unit: Tensor, chosen: Tensor) -> Tensor:
    """Rows (..., U, X) of the units chosen, (..., Q, X); a single row is that of all."""
    if per_unit.shape[-2] == 1:
        return per_unit
    rows = per_unit.expand(*chosen.shape[:-1], *per_unit.shape[-2:])
    return rows.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, per_unit.shape[-1]))


def _with_square(z: Tensor) -> Tensor:
    """``z, -½|z|²``, (..., D + 1)."""
    return torch.cat([z, -0.5 * z.square().sum(-1, keepdim=True)], -1)


def _observing(attention: Tensor, x: Squares) -> Tensor:
    return attention if x.observed is None else attention * x.observed


def _first(attention: Tensor, queries: Parts, units: Parts) -> Tensor:
    """Sums of 1, of the linear statistics, and for each of the squares of ``x - ξ`` and of 1, (..., U, X)."""
    blocks = [attention.mT @ queries[0]]
    for x in squares_of(queries, units):
        weights = _observing(attention, x).unsqueeze(-1)
        blocks += [(weights * differences(x._replace(root=None))).sum(-3), weights.sum(-3)]
    return torch.cat(blocks, -1)


def _linear(squares: tuple[Squares, ...], sums: Tensor) -> Tensor:
    """Sums of the statistics less those of expanded squares, which come first."""
    return sums[..., sum(x.points.shape[-1] + 1 for x in squares) :]


def _means(squares: tuple[Squares, ...], first: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Counts, sums of the linear statistics, and the mean of the points that each unit is given, from `_first`."""
    sizes = [x.points.shape[-1] + 1 for x in squares]
    linear, *blocks = first.split([first.shape[-1] - sum(sizes), *sizes], -1)
    means = []
    for x, block in zip(squares, blocks, strict=True):
        away, count = block[..., :-1].detach(), block[..., -1:].detach()
        means.append(x.centers.detach() + safe_ratio(away, count, torch.zeros_like(away)))
    linear = _linear(squares, linear)
    return linear[..., -1], linear[..., :-1], means


def _about(attention: Tensor, queries: Parts, given: Parts) -> Tensor:
    """Sums of ``z = root'(x - mean)`` and of ``-½|z|²`` for each of the squares, (..., U, X);
    the means come last in ``given``.
    """
    squares = squares_of(queries, given[: len(given) - (len(queries) - 2) // 2])
    blocks = []
    for x, mean in zip(squares, given[len(given) - len(squares) :], strict=True):
        z = _with_square(differences(x._replace(centers=mean)))
        blocks.append((_observing(attention, x).unsqueeze(-1) * z).sum(-3))
    return torch.cat(blocks, -1)


def _doubled(attention: Tensor, queries: Parts, units: Parts) -> Tensor:
    """Sums of 1, of the linear statistics, and for each of the squares of x, ``z = root'x``, ``-½|z|²`` and 1, (...,
    U, X) in float64.
    """
    blocks = [attention.mT @ queries[0]]
    for x in squares_of(queries, units):
        assert x.origin is not None
        z = _with_square(doubled(x)[0])
        columns = torch.cat([x.points.double() - x.origin.double(), z, torch.ones_like(z[..., :1])], -1)
        blocks.append(_observing(attention, x).double().mT @ columns)
    return torch.cat(blocks, -1)


def _about_means(squares: tuple[Squares, ...], sums: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Counts, and sums about the mean of the points that each unit is given, and that mean, from `_doubled`."""
    sizes = [2 * x.points.shape[-1] + 2 for x in squares]
    linear, *blocks = sums.split([sums.shape[-1] - sum(sizes), *sizes], -1)
    means, about = [], []
    for x, block in zip(squares, blocks, strict=True):
        assert x.origin is not None
        plain, z, square, count = block.split([x.points.shape[-1], x.points.shape[-1], 1, 1], -1)
        away = safe_ratio(plain.detach(), count.detach(), (x.centers - x.origin).double().detach())
        means.append((x.origin + away).to(x.points.dtype).detach())
        at = doubled(x._replace(centers=means[-1]))[1]
        about += [z - count * at, square + (at * (z - 0.5 * count * at)).sum(-1, keepdim=True)]
    every = torch.cat([*about, _linear(squares, linear)], -1).to(squares[0].points.dtype)
    return every[..., -1], every[..., :-1], means


def _crossed(attention: Tensor, queries: Parts, given: Parts) -> Tensor:
    """``Σ_ij a_j w_ij z_ij z_ij'`` of the first squares, (..., D, D); their means and a (..., U,
    1) come last in ``given``.
    """
    *units, mean, per_unit = given
    x = squares_of(queries, units)[0]._replace(centers=mean)
    if x.origin is not None:
        (z, at), weights = doubled(x), (attention * per_unit.mT).double()
        first = weights.mT @ z - 0.5 * weights.sum(-2).unsqueeze(-1) * at
        crossed = first.mT @ at
        return z.mT @ (weights.sum(-1, keepdim=True) * z) - crossed - crossed.mT
    z, weights = differences(x), (attention * per_unit.mT).unsqueeze(-1)
    return (weights * z).flatten(-3, -2).mT @ z.flatten(-3, -2)


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
    return _based(over_chunks(_evidence, *sides(factor, log_prior))[0].squeeze(-1), factor)


def _based(evidence: Tensor, factor: Factor) -> Tensor:
    return evidence if factor.base is None else evidence + factor.base


def _weights(queries: Parts, units: Parts) -> tuple[Tensor, Tensor, Tensor]:
    """Attention before its division by the row sums, those sums (1 for an empty row), and the log evidence.

    In place, because each pass over a chunk costs as much as its matrix product.
    """
    scores = log_joint_of(queries, units)
    peak = scores.detach().amax(-1, keepdim=True)
    empty = peak == -math.inf
    shifted = scores.sub_(peak.masked_fill(empty, 0.0))
    lowest = math.log(torch.finfo(scores.dtype).tiny) + 1  # exp of less is subnormal, which slows a CPU tenfold
    subnormal = not scores.is_cuda and scores.numel() and known(shifted.detach().amin() < lowest, otherwise=True)
    if subnormal and shifted.requires_grad:
        weights = torch.threshold(shifted.clamp_min(lowest).exp(), 1.001 * math.exp(lowest), 0.0)
    elif subnormal:
        weights = torch.threshold_(shifted.clamp_min_(lowest).exp_(), 1.001 * math.exp(lowest), 0.0)
    else:
        weights = shifted.exp_()
    total = weights.sum(-1, keepdim=True).masked_fill(empty, 1.0)
    return weights, total, (peak + total.log()).masked_fill(empty, -math.inf).squeeze(-1)


def _moments(queries: list, units: list) -> tuple[Tensor, Tensor]:
    collected, *queries = queries
    weights, total, evidence = _weights(queries, units)
    return evidence.unsqueeze(-1), (collected / total).transpose(-1, -2) @ weights  # the quicker way round; (..., T, U)


def _sampled(by_query: list, given: list) -> tuple[Tensor, Tensor]:
    """Queries last, so that every pass over the units runs along contiguous memory, and in place. Sums are (...,
    U, T).
    """
    collected, uniforms, *queries = by_query
    scores = log_joint_of(queries, given, units_first=True)
    peak = scores.amax(-2, keepdim=True)
    empty = peak == -math.inf
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


def _evidence(queries: Parts, units: Parts) -> tuple[Tensor, None]:
    return _weights(queries, units)[2].unsqueeze(-1), None
