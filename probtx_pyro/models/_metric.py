"""An inner product that the units of a mixture share: full or diagonal, as the root that whitens points."""

from typing import NamedTuple

import torch
from torch import Tensor

from probtx_pyro.ops._numerics import single


class Metric(NamedTuple):
    """``Λ = L L'``. root: L, lower triangular (..., D, D),
    or of a diagonal metric the square root of its entries (..., D).
    """

    root: Tensor
    diagonal: bool

    @classmethod
    def of(cls, metric: Tensor, diagonal: bool) -> "Metric":
        """Take the root of a metric; NaN where a matrix is not positive definite."""
        metric = single(metric)
        if diagonal:
            return cls(metric.sqrt(), True)
        root, failed = torch.linalg.cholesky_ex(metric)
        return cls(torch.where((failed > 0)[..., None, None], torch.nan, root), False)

    def whiten(self, points: Tensor) -> Tensor:
        """``L'x`` of points (..., n, D): their products are those of the metric."""
        return single(points) * self.root.unsqueeze(-2) if self.diagonal else single(points) @ self.root

    def wide(self) -> Tensor:
        """The root as `ops.attention.key_factor` takes it: (..., D, D), or (..., 1, D) of a diagonal."""
        return self.root.unsqueeze(-2) if self.diagonal else self.root

    def flat(self) -> Tensor:
        """The root as `ops` takes it: flat, (..., 1, D²), or (..., 1, D) of a diagonal."""
        return (self.root if self.diagonal else self.root.flatten(-2)).unsqueeze(-2)

    def restore(self, whitened: Tensor) -> Tensor:
        """``L x`` of whitened points (..., n, D): ``Λ x`` of the points themselves."""
        return whitened * self.root.unsqueeze(-2) if self.diagonal else whitened @ self.root.mT

    def log_root(self) -> Tensor:
        """``½ log|Λ|``, (...)."""
        return (self.root if self.diagonal else self.root.diagonal(dim1=-2, dim2=-1)).log().sum(-1)

    def times(self, strength: Tensor) -> Tensor:
        """``strength Λ`` for strengths (..., n): matrices (..., n, D, D), or diagonals (..., n, D)."""
        if self.diagonal:
            return strength.unsqueeze(-1) * self.root.square().unsqueeze(-2)
        return strength[..., None, None] * (self.root @ self.root.mT).unsqueeze(-3)
