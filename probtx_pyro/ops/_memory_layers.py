"""Recursions of memory layers, by chunks of pairs: ``W_t = γ_t W_{t-1} + u_t g_t'`` with gains g (F,) of keys alone.

Where u is the value, W sums; where it is the value's error, ``v_t - γ_t W_{t-1} φ_t``, W is corrected, and a chunk
costs one unit-triangular solve (the delta rule, and Kalman filters of any gain). Shapes: features, gains and queries
(..., T, F), values (..., T, M), strengths β_t and log γ_t (..., T), a memory (..., M, F). docs/mathematics.md, section
8.3.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probtx_pyro.ops._numerics import transformed
from probtx_pyro.ops.regression_memory import conjugate_gradient

Solve = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From P (..., F, F) and queries (..., n, F): ``P⁻¹ q`` of each, and True where P was not positive definite, (...)."""


def _decays(log_gamma: Tensor) -> tuple[Tensor, Tensor]:
    """Return Γ_i (..., c) from a chunk's start to each pair, and Γ_is (..., c, c) from pair s to pair i, 0 where s > i."""
    total = log_gamma.cumsum(-1)
    between = total.unsqueeze(-1) - total.unsqueeze(-2)
    future = torch.ones(between.shape[-2:], dtype=torch.bool, device=between.device).triu(1)
    return total.exp(), between.masked_fill(future, -math.inf).exp()


def recursion(
    features: Tensor,
    gains: Tensor,
    values: Tensor,
    log_gamma: Tensor,
    mean: Tensor,
    queries: Tensor | None,
    errors: bool,
    size: int,
) -> tuple[Tensor | None, Tensor]:
    """Return reads of queries after the pair of the same step, (..., T, M), None without queries;
    and the memory after the last pair.

    Parameters
    ----------
    features, gains, values, log_gamma, queries
        As above.
    mean
        The memory before the first pair.
    errors
        True where errors are written, False where values are.
    size
        Pairs of a chunk, at most.
    """
    reads = []
    for first in range(0, features.shape[-2], size):
        rows = slice(first, first + size)
        phi, gain, written = features[..., rows, :], gains[..., rows, :], values[..., rows, :]
        decay, between = _decays(log_gamma[..., rows])
        decay = decay.unsqueeze(-1)
        if errors:
            across = between * (phi @ gain.mT)  # what pair s moves at key i; its diagonal is not read
            left = written - decay * (phi @ mean.mT)
            written = torch.linalg.solve_triangular(across, left, upper=False, unitriangular=True)
        if queries is not None:
            asked = queries[..., rows, :]
            reads.append(decay * (asked @ mean.mT) + (between * (asked @ gain.mT)) @ written)
        kept = between[..., -1, :].unsqueeze(-1)
        mean = decay[..., -1:, :] * mean + (kept * written).mT @ gain
    return torch.cat(reads, -2) if reads else None, mean


class Systems(NamedTuple):
    """Matrices ``P_i = H_i + λ I`` after some pairs, or after all of them; ``H_i = γ_i H_{i-1} + β_i φ_i φ_i'``.

    asked: whose queries they solve. matrix: P, (..., c or 1, F, F). moment: H after the last pair, (..., F, F).
    condition: a bound of their condition numbers, ``1 + trace(H) / λ``, (...).
    """

    asked: slice
    matrix: Tensor
    moment: Tensor
    condition: Tensor


def systems(
    features: Tensor, strength: Tensor, log_gamma: Tensor, moment: Tensor | None, prior: Tensor, causal: bool, size: int
) -> Iterator[Systems]:
    """Yield what queries solve, chunk by chunk.

    Parameters
    ----------
    features, strength, log_gamma
        As above; a strength of 0 is an absent pair.
    moment
        H before the first pair, (..., F, F); None is 0.
    prior
        λ, (...).
    causal
        True where each pair has a query of its own; False where all queries are asked after the last pair.
    size
        Pairs of a chunk, at most.
    """
    width = features.shape[-1]
    ridge = prior[..., None, None] * torch.eye(width, dtype=features.dtype, device=features.device).flatten()
    if not causal:
        start = features.new_zeros(*features.shape[:-2], width, width) if moment is None else moment
        _, moment = recursion(
            features, strength.unsqueeze(-1) * features, features, log_gamma, start, None, False, size
        )
        total = moment.flatten(-2).unsqueeze(-2)
        yield _systems(slice(None), total + ridge, total, prior)
        return
    before = None if moment is None else moment.flatten(-2).unsqueeze(-2)
    for first in range(0, features.shape[-2], size):
        rows = slice(first, first + size)
        phi = features[..., rows, :]
        decay, between = _decays(log_gamma[..., rows])
        outer = (phi.unsqueeze(-1) * phi.unsqueeze(-2)).flatten(-2)
        weights = between * strength[..., rows].unsqueeze(-2)
        old = ridge if before is None else decay.unsqueeze(-1) * before + ridge
        last = weights[..., -1:, :] @ outer
        before = last if before is None else decay[..., -1:, None] * before + last
        yield _systems(rows, old + weights @ outer, before, prior)


def _systems(asked: slice, matrix: Tensor, moment: Tensor, prior: Tensor) -> Systems:
    """Systems of flat matrices."""
    square = (math.isqrt(matrix.shape[-1]),) * 2
    matrix = matrix.unflatten(-1, square)
    trace = matrix.detach().diagonal(dim1=-2, dim2=-1).sum(-1).amax(-1)
    condition = 1 - square[0] + trace / prior.detach()
    return Systems(asked, matrix, moment.squeeze(-2).unflatten(-1, square), condition)


def by_cholesky(matrix: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Solve exactly. See `Solve`."""
    return _solution(_cholesky, matrix, queries)


def by_conjugate_gradient(matrix: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Solve until the residual is 1e-6 of the query, 1e-4 in single precision, in at most 2F steps, and gradients likewise.
    See `Solve`.
    """
    return _solution(_conjugate_gradient, matrix, queries)


def _cholesky(matrix: Tensor, queries: Tensor, root: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Solutions (..., n, F), what solves for other queries, and where there are none, (...)."""
    failed = torch.zeros(matrix.shape[:-2], dtype=torch.int, device=matrix.device)
    if root is None:  # not linalg.solve, whose second derivative by forward mode twice is wrong in torch 2.13
        root, failed = torch.linalg.cholesky_ex(matrix)
    return torch.cholesky_solve(queries.mT, root).mT, root, failed > 0


def _conjugate_gradient(matrix: Tensor, queries: Tensor, found: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Do as `_cholesky`; nothing serves again."""
    tol = 1e-6 if matrix.dtype == torch.float64 else 1e-4
    x, _ = conjugate_gradient(matrix.unsqueeze(-3), queries, 2 * matrix.shape[-1], tol)
    return x, x.new_zeros(()), torch.zeros(matrix.shape[:-2], dtype=torch.bool, device=matrix.device)


def _solution(
    solve: Callable[..., tuple[Tensor, Tensor, Tensor]], matrix: Tensor, queries: Tensor
) -> tuple[Tensor, Tensor]:
    if torch.compiler.is_compiling() or transformed():
        x, _, failed = solve(matrix, queries)
    else:
        x, _, failed = _Solution.apply(solve, matrix, queries)
    return x, failed


class _Solution(torch.autograd.Function):
    """``x = P⁻¹ q``, with ``dx = P⁻¹(dq - dP x)``: the derivatives of a factor, or of steps, are not needed, and would take
    longer than all the rest.
    """

    @staticmethod
    def forward(
        ctx: Any, solve: Callable[..., tuple[Tensor, ...]], matrix: Tensor, queries: Tensor
    ) -> tuple[Tensor, ...]:
        x, found, failed = solve(matrix, queries)
        ctx.mark_non_differentiable(found, failed)
        ctx.save_for_backward(matrix, x, found)
        ctx.solve = solve
        return x, found, failed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[None, Tensor, Tensor]:
        matrix, x, found = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is differentiated in its turn, and a factor has no derivatives
            along, *_ = _Solution.apply(ctx.solve, matrix, gradient)
        else:
            along, *_ = ctx.solve(matrix, gradient, found)
        return None, -along.mT * x if x.shape[-2] == 1 else -along.mT @ x, along


def kalman_gains(
    features: Tensor, strength: Tensor, log_decay: Tensor, variance: Tensor, prior: Tensor
) -> tuple[Tensor, Tensor]:
    """Return gains (..., T, F) of a Kalman filter that keeps one variance, or one a feature, and these after each pair.

    ``p̂ = a² p + (1 - a²)/λ``, ``g = p̂ φ / (1/β + Σ p̂ φ²)``, ``1/p = 1/p̂ + β φ²``, the mean of φ² where there is one
    variance. Step by step.

    Parameters
    ----------
    features, strength
        As above; a strength of 0 is an absent pair.
    log_decay
        log a_t, (..., T), 0 where time stands still.
    variance
        Before the first pair, (..., 1 or F).
    prior
        λ, (...).
    """
    squares, kept = features.square(), (2 * log_decay).exp().unsqueeze(-1)
    grown = (1 - kept) / prior[..., None, None]
    seen = strength.unsqueeze(-1) * (squares.mean(-1, keepdim=True) if variance.shape[-1] == 1 else squares)
    predicted, after = [], []
    for t in range(features.shape[-2]):
        before = kept[..., t, :] * variance + grown[..., t, :]
        variance = before / (1 + before * seen[..., t, :])
        predicted.append(before)
        after.append(variance)
    wide, strong = torch.stack(predicted, -2), strength.unsqueeze(-1)
    gains = strong * wide * features / (1 + strong * (wide * squares).sum(-1, keepdim=True))
    return gains, torch.stack(after, -2)
