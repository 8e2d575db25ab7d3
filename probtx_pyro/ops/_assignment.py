"""Units that are groups of R components: attention of a unit by any reduction over its components.

``scores_ij = reduce_r log p(x_i, unit=j, component=r)``: the log of a sum is the exact posterior of the unit ("soft"),
the largest term the hard E-step. Chunked over queries, and recomputed in the backward pass, as
`probtx_pyro.ops.statistics`.
"""

from collections.abc import Callable

from torch import Tensor

from probtx_pyro.ops._chunks import by_scores
from probtx_pyro.ops._factor import Factor
from probtx_pyro.ops._numerics import log_sum, safe_softmax
from probtx_pyro.typing import LogPrior, Outputs, PerQuery

Reduction = Callable[[Tensor], Tensor]


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
            f"assignment must be one of {', '.join(ASSIGNMENTS)}, or a callable from log joints (..., R) to (...), not {assignment!r}"
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
