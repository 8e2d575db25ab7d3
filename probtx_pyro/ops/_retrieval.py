"""States among patterns: sums under each map of their dot products onto the simplex, without a Q x N tensor, and the iteration.

Softmax takes the fused kernel and the chunked log evidence. The sparse maps sort every row: some queries at a time see every
pattern, and with gradients those rows are computed again in the backward pass.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop

from probtx_pyro.ops._chunks import by_chunks
from probtx_pyro.ops._factor import Factor
from probtx_pyro.ops._fixed_point import FixedPoint, fixed_point
from probtx_pyro.ops._fused import causal_prior
from probtx_pyro.ops.attention import dot_product_attention
from probtx_pyro.ops.entmax import ENTMAX, Entmax
from probtx_pyro.ops.statistics import log_evidence


class Pooling(NamedTuple):
    """Sums and normalisers for the scores ``states · patterns' + log_prior`` of Q states and N patterns under one map onto the simplex.

    function: from scores to rows p on the simplex, as in `ENTMAX`.
    pool: ``(states, patterns, values, log_prior=None, *, causal=False, dropout=0.0)`` -> ``Σ_n p_n values_n``, (..., Q, M).
    conjugate: ``(states, patterns, log_prior=None)`` -> the scores' log-sum-exp or its counterpart for the map, (..., Q).

    Shapes: states (..., Q, D), patterns (..., N, D), values (..., N, M), log_prior (..., Q or 1, N), -inf for a mask.
    """

    function: Callable[[Tensor], Tensor]
    pool: Callable[..., Tensor]
    conjugate: Callable[..., Tensor]


def _sparse_pool(
    function: Callable[[Tensor], Tensor],
    states: Tensor,
    patterns: Tensor,
    values: Tensor,
    log_prior: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    if causal:
        log_prior = causal_prior(log_prior, states.shape[-2], patterns.shape[-2], states)

    def pooled(scores: Tensor, values: Tensor) -> Tensor:
        return drop(function(scores), dropout).to(values.dtype) @ values

    return by_chunks(pooled, states, patterns, log_prior, values)


def _sparse_conjugate(family: Entmax, states: Tensor, patterns: Tensor, log_prior: Tensor | None = None) -> Tensor:
    return by_chunks(lambda scores: family.conjugate(scores).unsqueeze(-1), states, patterns, log_prior).squeeze(-1)


def _log_sum_exp(states: Tensor, patterns: Tensor, log_prior: Tensor | None = None) -> Tensor:
    return log_evidence(Factor(states, patterns, patterns.new_zeros(patterns.shape[:-1])), log_prior)


POOLING = {
    name: Pooling(family.function, partial(_sparse_pool, family.function), partial(_sparse_conjugate, family))
    for name, family in ENTMAX.items()
} | {"softmax": Pooling(ENTMAX["softmax"].function, dot_product_attention, _log_sum_exp)}


def iterate(
    move: Callable[[Tensor], Tensor],
    state: Tensor,
    *,
    problems: torch.Size,
    num_steps: int,
    tol: float | None = None,
    trace: Callable[[Tensor], Tensor] | None = None,
) -> FixedPoint:
    """Iterate ``state <- move(state)`` for one tensor, by `fixed_point`.

    Parameters
    ----------
    move
        The step.
    state
        The start, whose leading axes are ``problems``.
    problems, num_steps, tol
        As in `fixed_point`.
    trace
        The objective of a state, recorded in every state visited; None records none.

    Returns
    -------
    found
        The end of the iteration, with the last state in ``found.state["state"]``.
    """

    def step(now: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], Tensor | None]:
        return {"state": move(now["state"])}, None if trace is None else trace(now["state"])

    return fixed_point(
        step, {"state": state}, problems=problems, num_steps=num_steps, tol=tol, progress=False,
        objective=None if trace is None else lambda now: trace(now["state"]),
    )  # fmt: skip
