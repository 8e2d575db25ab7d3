"""Functions of the log joint some queries at a time, so that the Q x U matrix never exists.

Each chunk of queries sees every unit, so that its softmax is exact. With gradients, where there are several chunks they
are computed again in the backward pass: the memory stays O(chunk x U) there, too.

So are attention and evidence of units that are groups of R components, under any reduction over these, ``scores_ij =
reduce_r log p(x_i, unit=j, component=r)``: the log of a sum is the exact posterior of the unit ("soft"), the largest
term the hard E-step.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from probtx_pyro.ops._factor import Factor, Squares, beside, logits_of
from probtx_pyro.ops._numerics import (
    common_shape,
    exporting,
    known,
    log_sum,
    safe_softmax,
    single,
    transformed,
    unrounded,
)
from probtx_pyro.typing import LogPrior, Outputs, PerQuery

CHUNK_ELEMENTS = 2**19  # entries of W at a time: what stays in a processor's second cache
ON_GPU = 2**26  # likewise: what keeps a GPU busy, in a few hundred MiB
Parts = Sequence[Any]  # tensors, or None
Reduction = Callable[[Tensor], Tensor]  # from log joints of the components of a unit (..., R) to scores (...)


def sides(factor: Factor, log_prior: Tensor | None) -> tuple[list[Any], list[Any], int]:
    """Return what makes the log joint less its base: tensors of the queries, tensors of the units,
    and the numbers that a query takes.

    The bias and a prior with one row ride along as a last column of the product, against ones; units that such a prior
    masks are marked by a boolean. `log_joint_of` puts the pieces of a chunk together.
    """
    bias, row_prior, absent = factor.bias, None, None
    if log_prior is not None and log_prior.shape[-2] > 1:
        row_prior = log_prior
    elif log_prior is not None:
        if log_prior.numel() and known(log_prior.amin() == -math.inf, otherwise=True):
            absent = log_prior == -math.inf
            log_prior = log_prior.masked_fill(absent, 0.0)
        bias = bias + log_prior.squeeze(-2)
    statistics, parameters = factor.statistics, beside(factor.parameters, bias.unsqueeze(-1))
    never = None if factor.never is None else beside(factor.never, factor.never.new_zeros(1))
    queries: list[Any] = [beside(statistics, statistics.new_ones(1)), row_prior]
    units: list[Any] = [parameters, None if absent is None else absent.mT, never]
    for x in factor.squares:
        queries += [x.points, x.observed]
        units += [x.centers, x.precision, x.root, x.origin, x.apart]
    width = max([1, *(x.points.shape[-1] for x in factor.squares if x.origin is None)])
    return queries, units, width * parameters.shape[-2]


def squares_of(queries: Parts, units: Parts) -> list[Squares]:
    """Return the squares of a chunk of `sides`."""
    return [
        Squares(queries[i], units[j], units[j + 1], units[j + 2], queries[i + 1], units[j + 3], units[j + 4])
        for i, j in zip(range(2, len(queries), 2), range(3, len(units), 5), strict=True)
    ]


def log_joint_of(queries: Parts, units: Parts, units_first: bool = False) -> Tensor:
    """Return the log joint less its base of a chunk of `sides`, (..., Q, U), a tensor that may be written on;
    or (..., U, Q).
    """
    statistics, row_prior, *_ = queries
    parameters, absent, never, *_ = units

    def turned(x: Tensor) -> Tensor:
        return x.mT if units_first else x

    with unrounded(statistics.device):
        scores = parameters @ statistics.mT if units_first else statistics @ parameters.mT
    for x in squares_of(queries, units):
        scores = scores + turned(logits_of(x))
    if row_prior is not None:
        wide = common_shape(scores.shape, turned(row_prior).shape)
        scores = scores.add_(turned(row_prior)) if scores.shape == wide else scores + turned(row_prior)
    if absent is not None:
        scores = scores.masked_fill(absent if units_first else absent.mT, -math.inf)
    if never is not None:
        scores = scores.masked_fill(turned(statistics @ never.mT) > 0, -math.inf)
    return scores


def over_chunks(
    function: Callable[[list, list], tuple[Tensor, Any]], by_query: Parts, shared: Parts, width: int
) -> tuple[Tensor, Any]:
    """Return ``function(by_query, shared)``, computed in pieces: of the batch, and within a problem of the queries.

    ``torch.export``, which would fix the number of pieces, gets it in one.

    Parameters
    ----------
    function
        Returns a tensor (..., Q, X), whose pieces are joined, and one that sums over the queries (or None), whose
        pieces are added.
    by_query
        Tensors with the queries at axis -2, or None.
    shared
        Tensors for all queries, or None.
    width
        Numbers that are made for each query.

    Returns
    -------
    joined, total
        The two tensors of ``function`` for all queries.
    """
    if exporting():
        return function(list(by_query), list(shared))
    rows = [x for x in by_query if x is not None]
    tensors = [*rows, *(x for x in shared if x is not None)]
    queries, width = max(x.shape[-2] for x in rows), max(1, width)
    batch = common_shape(*(x.shape[:-2] for x in tensors))
    elements = CHUNK_ELEMENTS if tensors[0].is_cpu else ON_GPU
    if batch.numel() > 1 and batch.numel() * queries * width > elements:
        axis = next(i for i, n in enumerate(batch) if n > 1) - len(batch)
        size = max(1, batch[axis] * elements // (batch.numel() * queries * width))
        pieces = []
        for start in range(0, batch[axis], size):
            part, own = ([_slice(x, axis - 2, start, size) for x in given] for given in (by_query, shared))
            pieces.append(over_chunks(function, part, own, width))
        joined, sums = zip(*pieces, strict=True)
        return torch.cat(joined, axis - 2), None if sums[0] is None else torch.cat(sums, axis - 2)
    size = max(1, elements // (max(1, batch.numel()) * width))
    differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    recompute = differentiable and queries > size and not transformed()  # inside torch.func.grad nothing can be
    found, total, same = [], None, list(shared)
    for start in range(0, max(1, queries), size):
        part = [_slice(x, -2, start, size) for x in by_query]
        piece, sums = checkpoint(function, part, same, use_reentrant=False) if recompute else function(part, same)
        found.append(piece)
        total = sums if total is None else (total + sums if differentiable else total.add_(sums))
    return found[0] if len(found) == 1 else torch.cat(found, -2), total


def by_scores(
    function: Callable[..., Tensor], factor: Factor, log_prior: Tensor | None = None, *shared: Tensor, width: int = 1
) -> Tensor:
    """Return ``function(scores, *shared)``, some rows of the log joint less its base at a time.

    Parameters
    ----------
    function
        From scores (..., Q, U) to (..., Q, X).
    factor, log_prior
        Of Q queries and U units; (..., Q or 1, U), None is 0.
    shared
        Further arguments of ``function``.
    width
        Numbers that ``function`` makes for a query and a unit.

    Returns
    -------
    found
        (..., Q, X).
    """
    queries, units, numbers = sides(factor, log_prior)

    def rows(queries: list, given: list) -> tuple[Tensor, None]:
        return function(log_joint_of(queries, given[: len(units)]), *given[len(units) :]), None

    return over_chunks(rows, queries, [*units, *shared], max(numbers, width * factor.bias.shape[-1]))[0]


def by_chunks(
    function: Callable[..., Tensor], states: Tensor, patterns: Tensor, log_prior: Tensor | None = None, *shared: Tensor
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
    given = None if log_prior is None or log_prior.shape[-2] > 1 else log_prior

    def rows(queries: list, units: list) -> tuple[Tensor, None]:
        (states, log_prior), (patterns, one_row, *shared) = queries, units
        with unrounded(states.device):
            scores = single(states) @ single(patterns).mT
        log_prior = one_row if log_prior is None else log_prior
        return function(scores if log_prior is None else scores + log_prior, *shared), None

    by_query = [states, log_prior if given is None else None]
    return over_chunks(rows, by_query, [patterns, given, *shared], patterns.shape[-2])[0]


def _slice(x: Tensor | None, axis: int, start: int, size: int) -> Tensor | None:
    """A slice along an axis counted from the right; a tensor that lacks it, or has it with size 1, is shared."""
    if x is None or x.dim() < -axis or x.shape[axis] == 1:
        return x
    return x.narrow(axis, start, min(size, x.shape[axis] - start))


def largest(log_joint: Tensor) -> Tensor:
    """Return ``max_r``, (..., R) -> (...); its gradient is shared by the components that tie."""
    return log_joint.amax(-1)


ASSIGNMENTS: dict[str, Reduction] = {"soft": log_sum, "hard": largest}


def reduction(assignment: str | Reduction) -> Reduction:
    """Return the reduction over components that a name of `ASSIGNMENTS` stands for; a callable (...,
    R) -> (...) stands for itself.
    """
    if callable(assignment):
        return assignment
    if assignment not in tuple(ASSIGNMENTS):
        raise ValueError(
            f"assignment must be one of {', '.join(ASSIGNMENTS)}, or a callable from log joints (..., R) to (...), "
            f"not {assignment!r}"
        )
    return ASSIGNMENTS[assignment]


def assigned_evidence(factor: Factor, log_prior: LogPrior | None, components: int, reduce: Reduction) -> PerQuery:
    """Return ``log Σ_j exp(scores_ij)``.

    Parameters
    ----------
    factor
        Of Q queries and U·R components in the order of units.
    log_prior
        (..., Q or 1, U·R), or None for 0.
    components
        R, the components of a unit.
    reduce
        From log joints (..., R) to scores (...).

    Returns
    -------
    log_evidence
        (..., Q).
    """

    def evidence(scores: Tensor) -> Tensor:
        return log_sum(_of_units(scores, components, reduce)).unsqueeze(-1)

    found = by_scores(evidence, factor, log_prior).squeeze(-1)
    return found if factor.base is None else found + factor.base


def assigned_outputs(
    factor: Factor, values: Tensor, log_prior: LogPrior | None, components: int, reduce: Reduction
) -> Outputs:
    """Return ``softmax_j(scores_ij) · values_j``.

    Parameters
    ----------
    factor
        Of Q queries and U·R components in the order of units.
    values
        (..., U, M), one row a unit.
    log_prior, components, reduce
        As in `assigned_evidence`.

    Returns
    -------
    outputs
        (..., Q, M).
    """

    def outputs(scores: Tensor, values: Tensor) -> Tensor:
        return safe_softmax(_of_units(scores, components, reduce))[0].to(values.dtype) @ values

    return by_scores(outputs, factor, log_prior, values)


def _of_units(scores: Tensor, components: int, reduce: Reduction) -> Tensor:
    return reduce(scores.unflatten(-1, (-1, components)))
