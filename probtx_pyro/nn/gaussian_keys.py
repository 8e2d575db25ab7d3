"""The attention layer of a mixture of Gaussian keys (Nguyen et al.); and where the R keys of a unit come from, which
the layer of linear keys shares: shifts of one projected key, or projections of their own.
"""

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from probtx_pyro.nn._gaussian import Adapt, GaussianAttention
from probtx_pyro.nn._heads import Made, Shared
from probtx_pyro.nn.attention import Answers, Attention, Units
from probtx_pyro.ops._chunks import Reduction, log_sum, reduction


class Shifts(nn.Module):
    """``k_jr = k_j + b_r`` (sMGK): R vectors a head and no further projection.

    Shapes: keys (B, H, S, D), source (B, S, kdim) -> (B, H, S, R, D).
    """

    def __init__(self, num_heads: int, head_dim: int, num_components: int, kdim: int, bias: bool, **made: Unpack[Made]):
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

    def __init__(self, num_heads: int, head_dim: int, num_components: int, kdim: int, bias: bool, **made: Unpack[Made]):
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


SHARES: dict[str | None, type[Shifts | Projections]] = {"shift": Shifts, None: Projections}


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
        sizes = self.num_heads, self.head_dim, self.num_components, self.kdim
        self.components = SHARES[self.share](*sizes, self.bias, **self._made)
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


class GaussianKeysAttention(SeveralKeys, GaussianAttention):
    """Attention with a mixture of R Gaussian keys a unit, MGK (Nguyen et al. 2022,
    eq. 3-4 with the normalisers of erratum 9).

    Shapes: as ``torch.nn.MultiheadAttention``.

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        As for ``torch.nn.MultiheadAttention``.
    head_dim, priors
        As for `Attention`. With half the heads give ``head_dim``, or each will be twice as wide.
    num_components
        R, the keys of a unit.
    share
        None: R projections of the input; ``"shift"``: one projection and R shifts a head (sMGK).
    assignment
        ``"soft"`` sums over the components, ``"hard"`` takes the largest (slower: not fused, chunked). Or any reduction
        of the last axis of a tensor of log probabilities.
    linked
        As for `GaussianMixtureAttention`, but False as in the paper. With ``linked=True`` and R = 1 the layer is scaled
        dot-product attention.
    adapt, background
        As for `GaussianMixtureAttention`.

    Raises
    ------
    ValueError
        Options out of range or that exclude each other, and whatever `Attention` refuses.

    Examples
    --------
    >>> layer = GaussianKeysAttention(16, 2, batch_first=True, head_dim=4, share="shift")
    >>> output, weights = layer(*[torch.randn(3, 5, 16)] * 3)
    >>> output.shape, weights.shape
    (torch.Size([3, 5, 16]), torch.Size([3, 5, 5]))
    """

    def __init__(
        self,
        *torch: Any,
        num_components: int = 2,
        share: str | None = None,
        assignment: str | Reduction = "soft",
        linked: bool = False,
        adapt: Adapt | Mapping[str, object] | None = None,
        background: str | None = None,
        **shared: Unpack[Shared],
    ):
        check_components(num_components, share)
        super().__init__(*torch, **shared)
        self.num_components, self.share = num_components, share
        self.assignment, self.reduce = assignment, reduction(assignment)
        self._start(linked, adapt, background)
        self._make_components()

    def units_of(self, keys: Tensor, source: Tensor) -> Units:
        """Return R keys for every unit."""
        units, several = super().units_of(keys, source), self.components(keys, source)
        return units._replace(keys=several.squeeze(-2) if self.num_components == 1 else several)

    @property
    def attention_options(self) -> dict[str, Reduction]:
        """The assignment of components, where it is not the sum over them."""
        return {} if self.num_components == 1 or self.reduce is log_sum else {"assignment": self.reduce}

    def ask(self, model: Any, queries: Tensor, need_weights: bool, *known: Tensor) -> Answers:
        """Return answers, and weights if asked for, under the layer's assignment of components."""
        if self.num_components == 1:
            return super().ask(model, queries, need_weights)
        weights = model.attention(queries, assignment=self.reduce) if need_weights else None
        return model.expected_outputs(queries, self.reduce), weights
