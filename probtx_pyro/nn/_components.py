"""Sources of the R keys of a unit: shifts of one projected key, or projections of their own."""

from typing import Any

import torch
from torch import Tensor, nn

from probtx_pyro.nn.attention import Attention


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


def check_components(num_components: int, share: str | None) -> None:
    """Refuse a number of keys that is not positive, and a ``share`` that is not one of `SHARES`."""
    if num_components < 1:
        raise ValueError(f"num_components must be 1 or more, not {num_components}")
    if share not in SHARES:
        raise ValueError(f"share must be one of {', '.join(map(repr, SHARES))}, not {share!r}")


class SeveralKeys(Attention):
    """Base of the layers with R keys a unit: where the keys come from, and their weights."""

    num_components: int
    share: str | None

    def _make_components(self) -> None:
        made: Any = {"kdim": self.kdim, "bias": self.bias, **self._made}
        self.components = SHARES[self.share](self.num_heads, self.head_dim, self.num_components, **made)
        logits = torch.zeros((self.num_heads, self.num_components), **self._made)
        self.component_logits = nn.Parameter(logits) if self.num_components > 1 else None

    def component_log_weights(self) -> Tensor | None:
        """Return the log of ``component_weights``, (H, R); None for R = 1."""
        return None if self.component_logits is None else self.component_logits.log_softmax(-1)

    def constrained(self) -> dict[str, Tensor]:
        """Return the base's parameters, ``component_weights`` (H, R), and ``shifts`` (H, R,
        D) where the keys share a projection.
        """
        values = super().constrained()
        if self.component_logits is not None:
            values["component_weights"] = self.component_logits.softmax(-1)
        return values | dict(self.components.named_parameters(recurse=False))
