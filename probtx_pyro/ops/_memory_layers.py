"""Recursions of memory layers, by chunks of pairs: ``W_t = γ_t W_{t-1} + u_t g_t'`` with gains g (F,) of keys alone.

Where u is the value, W sums; where it is the value's error, ``v_t - γ_t W_{t-1} φ_t``, W is corrected, and a chunk
costs one unit-triangular solve (the delta rule, and Kalman filters of any gain). Shapes: features, gains and queries
(..., T, F), values (..., T, M), strengths β_t and log γ_t (..., T), a memory (..., M, F). docs/mathematics.md, section
8.3.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from probtx_pyro.ops.regression_memory import conjugate_gradient

Solve = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From P (..., F, F) and queries (..., n, F): ``P⁻¹ q`` of each, and True where P was not positive definite, (...)."""


def _decays(log_gamma: Tensor) -> tuple[Tensor, Tensor]:
    """Return Γ_i (..., c) from a chunk's start to each pair, and Γ_is (..., c, c) from pair s to pair i, 0 where s > i."""
    total = log_gamma.cumsum(-1)
    return total.exp(), (total.unsqueeze(-1) - total.unsqueeze(-2)).tril().exp().tril()


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


def solved(
    features: Tensor,
    strength: Tensor,
    log_gamma: Tensor,
    moment: Tensor,
    prior: Tensor,
    queries: Tensor,
    solve: Solve,
    size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Solve ``P_i x_i = q_i`` after each pair, ``P_i = H_i + λ I`` with ``H_i = γ_i H_{i-1} + β_i φ_i φ_i'``.

    Parameters
    ----------
    features, strength, log_gamma, queries
        As above; a strength of 0 is an absent pair.
    moment
        H before the first pair, (..., F, F).
    prior
        λ, (...).
    solve
        The solver.
    size
        Pairs of a chunk, at most.

    Returns
    -------
    x (..., T, F), H after the last pair, and True where a P was not positive definite, (...).
    """
    ridge = prior[..., None, None] * torch.eye(features.shape[-1], dtype=features.dtype, device=features.device)
    found, failed = [], []
    for first in range(0, features.shape[-2], size):
        rows = slice(first, first + size)
        phi = features[..., rows, :]
        decay, between = _decays(log_gamma[..., rows])
        outer = (phi.unsqueeze(-1) * phi.unsqueeze(-2)).flatten(-2)
        added = (between * strength[..., rows].unsqueeze(-2)) @ outer
        moments = decay[..., None, None] * moment.unsqueeze(-3) + added.unflatten(-1, ridge.shape[-2:])
        x, wrong = solve(moments + ridge.unsqueeze(-3), queries[..., rows, :].unsqueeze(-2))
        found.append(x.squeeze(-2))
        failed.append(wrong.any(-1))
        moment = moments[..., -1, :, :]
    return torch.cat(found, -2), moment, torch.stack(failed).any(0)


@torch.no_grad()
def traces(features: Tensor, strength: Tensor, log_gamma: Tensor, moment: Tensor, size: int) -> Tensor:
    """Return the largest trace of an H of `solved`, (...); arguments as there."""
    one = torch.ones_like(strength).unsqueeze(-1)
    told = strength.unsqueeze(-1) * features.square().sum(-1, keepdim=True)
    before = moment.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    found, _ = recursion(one, told, one, log_gamma, before, one, False, size)
    assert found is not None
    return found.amax((-2, -1))


def by_cholesky(matrix: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Solve exactly. See `Solve`."""
    # not linalg.solve, whose second derivative by forward mode twice is wrong in torch 2.13
    root, failed = torch.linalg.cholesky_ex(matrix)
    return torch.cholesky_solve(queries.mT, root).mT, failed > 0


def by_conjugate_gradient(matrix: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Solve until the residual is 1e-6 of the query, 1e-4 in single precision, in at most 2F steps. See `Solve`."""
    tol = 1e-6 if matrix.dtype == torch.float64 else 1e-4
    x, _ = conjugate_gradient(matrix.unsqueeze(-3), queries, 2 * matrix.shape[-1], tol)
    return x, torch.zeros(matrix.shape[:-2], dtype=torch.bool, device=matrix.device)


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
