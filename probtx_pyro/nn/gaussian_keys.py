"""The attention layer of a mixture of Gaussian keys (Nguyen et al.)."""

from typing import Any

import torch
from torch import Tensor, nn

from probtx_pyro.nn._components import components
from probtx_pyro.nn.attention import Units
from probtx_pyro.nn.gaussian import GaussianAttention
from probtx_pyro.ops._assignment import Reduction, reduction


class GaussianKeysAttention(GaussianAttention):
    """Attention with a mixture of R Gaussian keys a unit, MGK (Nguyen et al. 2022, eq. 3-4 with the normalisers of erratum 9).

    Parameters
    ----------
    num_components
        R.
    share
        None: R projections of the input; ``"shift"``: one projection and R shifts a head (sMGK).
    assignment
        ``"soft"`` sums over the components, ``"hard"`` takes the largest (slower: not fused, chunked).
    linked
        Off, as in the paper. With ``linked=True`` and R = 1 the layer is scaled dot-product attention.
    others
        As `GaussianAttention`, `Attention`. With half the heads give ``head_dim``, or each will be twice as wide.

    Shapes: as ``torch.nn.MultiheadAttention``.

    Examples
    --------
    >>> layer = GaussianKeysAttention(16, 2, batch_first=True, head_dim=4, share="shift")
    >>> output, weights = layer(*[torch.randn(3, 5, 16)] * 3)
    >>> output.shape, weights.shape
    (torch.Size([3, 5, 16]), torch.Size([3, 5, 5]))
    """

    def __init__(
        self,
        *args: Any,
        num_components: int = 2,
        share: str | None = None,
        assignment: str | Reduction = "soft",
        linked: bool = False,
        **others: Any,
    ):
        if num_components < 1:
            raise ValueError(f"num_components must be 1 or more, not {num_components}")
        reduce = reduction(assignment)
        self.num_components, self.assignment = num_components, assignment
        super().__init__(*args, linked=linked, **others)
        self.reduce = reduce
        sizes = {"num_heads": self.num_heads, "head_dim": self.head_dim, "num_components": num_components}
        self.components = components(share, **sizes, kdim=self.kdim, bias=self.in_proj_bias is not None, **self._made)
        logits = torch.zeros((self.num_heads, num_components), **self._made)
        self.component_logits = nn.Parameter(logits) if num_components > 1 else None

    def component_log_weights(self) -> Tensor | None:
        """Log of ``component_weights``, (H, R); None for R = 1."""
        return None if self.component_logits is None else self.component_logits.log_softmax(-1)

    def constrained(self) -> dict[str, Tensor]:
        """Also ``component_weights`` (H, R), and ``shifts`` (H, R, D) where the keys share a projection."""
        values = super().constrained()
        if self.component_logits is not None:
            values["component_weights"] = self.component_logits.softmax(-1)
        if (shifts := getattr(self.components, "shifts", None)) is not None:
            values["shifts"] = shifts
        return values

    def units_of(self, keys: Tensor, source: Tensor) -> Units:
        """R keys for every unit."""
        units, several = super().units_of(keys, source), self.components(keys, source)
        return units._replace(keys=several.squeeze(-2) if self.num_components == 1 else several)

    def ask(self, model: Any, queries: Tensor, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        """With the layer's assignment of components."""
        if self.num_components == 1:
            return super().ask(model, queries, need_weights)
        weights = model.attention(queries, assignment=self.reduce) if need_weights else None
        return model.expected_outputs(queries, self.reduce), weights


__all__ = ["GaussianKeysAttention"]
