"""Sources of the R keys of a unit: shifts of one projected key, or projections of their own."""

from typing import Any

import torch
from torch import Tensor, nn


class Shifts(nn.Module):
    """``k_jr = k_j + b_r`` (sMGK): R vectors a head and no further projection.

    Shapes: keys (B, H, S, D), source (B, S, kdim) -> (B, H, S, R, D).
    """

    def __init__(self, num_heads: int, head_dim: int, num_components: int, kdim: int, bias: bool, **made: Any):
        super().__init__()
        self.shifts = nn.Parameter(torch.empty(num_heads, num_components, head_dim, **made))
        nn.init.normal_(self.shifts, std=head_dim**-0.5)  # components that start alike would stay alike

    def forward(self, keys: Tensor, source: Tensor) -> Tensor:
        """Return all keys of every unit."""
        return keys.unsqueeze(-2) + self.shifts.unsqueeze(1)


class Projections(nn.Module):
    """The projected key is the first; R - 1 projections of the same input give the others.

    Shapes: keys (B, H, S, D), source (B, S, kdim) -> (B, H, S, R, D).
    """

    def __init__(self, num_heads: int, head_dim: int, num_components: int, kdim: int, bias: bool, **made: Any):
        super().__init__()
        self.num_heads, self.others = num_heads, num_components - 1
        self.linear = nn.Linear(kdim, num_heads * self.others * head_dim, bias=bias, **made) if self.others else None
        if self.linear is not None:
            nn.init.xavier_uniform_(self.linear.weight)
            if bias:
                nn.init.zeros_(self.linear.bias)

    def forward(self, keys: Tensor, source: Tensor) -> Tensor:
        """Return all keys of every unit."""
        if self.linear is None:
            return keys.unsqueeze(-2)
        others = self.linear(source).unflatten(-1, (self.num_heads, self.others, -1)).transpose(1, 2)
        return torch.cat([keys.unsqueeze(-2), others], -2)


SHARES: dict[str | None, type[nn.Module]] = {"shift": Shifts, None: Projections}


def components(share: str | None) -> type[nn.Module]:
    """Return the class of module that makes the keys of a unit, by the name of what its keys share."""
    if share not in SHARES:
        raise ValueError(f"share must be one of {', '.join(map(repr, SHARES))}, not {share!r}")
    return SHARES[share]


__all__ = ["Projections", "Shifts", "components"]
