"""The masks of ``torch.nn.MultiheadAttention`` as log priors: 0 where a unit may be attended to, -inf where not;
and known answers.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from probtx_pyro.ops._fused import causal_prior, reachable


class Masks(NamedTuple):
    """The units that each query may attend to, and what else is known of each query.

    log_prior: (B, 1 or H, L or 1, S) log weights, not normalised; None where everything is allowed.
    causal: query i sees units up to i, on top of ``log_prior``.
    padded: True at queries that are padding themselves, (B, L); None where that is not known (it is in self-attention).
    extra: number of units behind those of the input, which every query sees.
    answers, observed: known answers (B, H, L, D), and at which queries they are known, (B, 1, L); None where there are
    none.
    """

    log_prior: Tensor | None = None
    causal: bool = False
    padded: Tensor | None = None
    extra: int = 0
    answers: Tensor | None = None
    observed: Tensor | None = None

    def explicit(self, num_queries: int, num_units: int, like: Tensor) -> Tensor | None:
        """Return the log prior, with a row for each query where the mask is causal;
        None where everything is allowed.
        """
        if not self.causal or not self.extra:
            return causal_prior(self.log_prior, num_queries, num_units, like) if self.causal else self.log_prior
        inner = None if self.log_prior is None else self.log_prior[..., : -self.extra]
        return pad(causal_prior(inner, num_queries, num_units - self.extra, like), (0, self.extra))

    def written_out(self, num_queries: int, num_units: int, like: Tensor) -> "Masks":
        """Return the same with a row for each query in place of ``causal``, where there are extra units."""
        if not self.causal or not self.extra:
            return self
        return self._replace(log_prior=self.explicit(num_queries, num_units, like), causal=False)

    def opened(self, num_queries: int, num_units: int, like: Tensor) -> Tensor | None:
        """Return the same with equal weights for a query that may attend to nothing, which no formulation takes."""
        rows = self.explicit(num_queries, num_units, like)
        return None if rows is None else torch.where((rows != -math.inf).any(-1, keepdim=True), rows, 0.0)

    def present(self) -> Tensor | None:
        """Return True at units that some query may attend to, (B, 1 or H, S, 1), causality aside; None where all are.

        Other units may hold anything.
        """
        return None if self.log_prior is None else (self.log_prior != -math.inf).any(-2).unsqueeze(-1)

    def known(self, like: Tensor) -> list[Tensor]:
        """Return known answers, of the dtype of ``like``, and where they are known; nothing where none are."""
        return [] if self.answers is None or self.observed is None else [self.answers.to(like.dtype), self.observed]

    def alive(self, num_queries: int) -> Tensor | None:
        """Return True at queries that may attend to something, (B or 1, 1 or H, L or 1, 1); None where all may."""
        if self.log_prior is None or self.extra:
            return None
        return reachable(self.log_prior, num_queries, self.causal)


def combine(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    queries: Tensor,
    num_units: int,
    extra: int = 0,
) -> Masks:
    """Combine the masks of a call, and allow ``extra`` units behind the others to every query.

    Parameters
    ----------
    attn_mask
        (L, S) or (B·H, L, S); True forbids, numbers are added to the logits.
    key_padding_mask
        (B, S), likewise.
    is_causal
        As in torch, True says that ``attn_mask`` is the causal mask; without ``attn_mask`` it asks for one.
    queries
        (B, H, L, D).
    num_units
        S, without the extra units.
    extra
        Number of units behind those of the input.

    Raises
    ------
    ValueError
        A mask of another shape, or one that is neither boolean nor floating.
    """
    batch, heads, length, _ = queries.shape
    shape = length, num_units
    rows = _additive("attn_mask", attn_mask, [shape, (batch * heads, *shape)], queries.dtype)
    columns = _additive("key_padding_mask", key_padding_mask, [(batch, num_units)], queries.dtype)
    if rows is not None:
        rows = None if is_causal else rows.view(1, 1, *shape) if rows.dim() == 2 else rows.view(batch, heads, *shape)
    if columns is not None:
        columns = columns.view(batch, 1, 1, num_units)
        rows = columns if rows is None else rows + columns
    if rows is None and num_units + extra == 0:  # nobody may attend to anything, which no mask says
        rows = queries.new_zeros(1, 1, 1, 0)
    return Masks(pad(rows, (0, extra)) if extra and rows is not None else rows, is_causal, extra=extra)


def _additive(name: str, mask: Tensor | None, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> Tensor | None:
    if mask is None:
        return None
    if tuple(mask.shape) not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f"{name} has shape {tuple(mask.shape)} but must have shape {wanted}")
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
    if not mask.is_floating_point():
        raise ValueError(f"{name} must be boolean (True forbids) or floating (added to the logits), not {mask.dtype}")
    return mask.to(dtype)
