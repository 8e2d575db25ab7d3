"""Ternary potentials of low rank."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from probtx_pyro.models import _validation as check


@dataclass(frozen=True, eq=False)
class LowRank:
    """``T^{(c,g)} = U^{(c,g)} V^{(c,g)}'``, the factorisation "uv"; `shared` makes "uvw".

    Parameters
    ----------
    left, right
        U and V, (C, G, L, r): of the dependent's label and of the head's.

    Raises
    ------
    ValueError
        Factors that do not fit each other.
    """

    left: Tensor
    right: Tensor

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            check.floating(name, getattr(self, name))
        if self.left.dim() != 4 or self.left.shape != self.right.shape:
            raise ValueError(
                f"left {tuple(self.left.shape)} and right {tuple(self.right.shape)} must have one shape (C, G, L, r)"
            )

    @classmethod
    def shared(cls, left: Tensor, right: Tensor, channels: Tensor) -> "LowRank":
        """``T^{(c,g)} = Σ_r u_gr ⊗ v_gr w_gcr``: factors (G, L, r), (G, L, r) and (G, C, r),
        over the channels as well.
        """
        shapes = left.shape, right.shape, channels.shape
        if {len(shape) for shape in shapes} != {3} or shapes[0] != shapes[1] or shapes[0][::2] != shapes[2][::2]:
            raise ValueError(
                f"left {tuple(left.shape)}, right {tuple(right.shape)} and channels {tuple(channels.shape)} must have shapes (G, L, r), (G, L, r) and (G, C, r)"
            )
        weights = channels.transpose(0, 1).unsqueeze(-2)
        return cls(left * weights, right.expand(len(weights), *right.shape))

    def full(self) -> Tensor:
        """T, (C, G, L, L)."""
        return self.left @ self.right.mT

    def to(self, *args: Any, **kwargs: Any) -> "LowRank":
        """Move and convert both factors, as ``torch.Tensor.to``."""
        return check.unchecked(LowRank, left=self.left.to(*args, **kwargs), right=self.right.to(*args, **kwargs))
