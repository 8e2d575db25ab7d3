"""Unconstrained coordinates of positive definite matrices, which torch and Pyro lack: the Cholesky factor,
its diagonal in logarithms.

Gradient samplers and automatic guides move in R^n and need a bijection onto the support, with its Jacobian.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Transform, constraints


class CholeskyCoordinates(Transform):
    """R^(D(D+1)/2) onto positive definite D x D matrices ``L L'``: the lower triangle of L by rows,
    with the log of its diagonal.

    Shapes: x (..., D(D+1)/2), y (..., D, D). References: Stan Reference Manual, "Covariance matrices"; Muirhead 1982,
    *Aspects of Multivariate Statistical Theory*, theorem 2.1.9.
    """

    domain = constraints.real_vector
    codomain = constraints.positive_definite
    bijective = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CholeskyCoordinates)

    def _call(self, x: Tensor) -> Tensor:
        root = self.root(x)
        return root @ root.mT

    def root(self, x: Tensor) -> Tensor:
        """Return L, lower triangular (..., D, D)."""
        size = _side(x.shape[-1])
        rows, columns = torch.tril_indices(size, size, device=x.device)
        entries = torch.where(rows == columns, x.exp(), x)
        root = x.new_zeros(*x.shape[:-1], size * size)
        return root.index_copy(-1, rows * size + columns, entries).unflatten(-1, (size, size))

    def _inverse(self, y: Tensor) -> Tensor:
        rows, columns = torch.tril_indices(*y.shape[-2:], device=y.device)
        entries = torch.linalg.cholesky(y)[..., rows, columns]
        diagonal = rows == columns
        return torch.where(diagonal, torch.where(diagonal, entries, 1.0).log(), entries)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """``D log 2 + Σ_i (D - i + 2) log L_ii``, i from 1: that of L to LL',
        and one more for each logarithm. Shape (...).
        """
        size = y.shape[-1]
        rows, columns = torch.tril_indices(size, size, device=x.device)
        logs = x[..., rows == columns]
        powers = torch.arange(size + 1, 1, -1, dtype=x.dtype, device=x.device)
        return size * math.log(2.0) + (powers * logs).sum(-1)

    def forward_shape(self, shape):
        """(..., D(D+1)/2) to (..., D, D)."""
        return torch.Size((*shape[:-1], _side(shape[-1]), _side(shape[-1])))

    def inverse_shape(self, shape):
        """(..., D, D) to (..., D(D+1)/2)."""
        return torch.Size((*shape[:-2], shape[-1] * (shape[-1] + 1) // 2))


def _side(count: int) -> int:
    """D, from D(D+1)/2."""
    return (math.isqrt(8 * count + 1) - 1) // 2
