"""Hopfield layers: attention repeated, the state moving among the keys before it reads the values out (Ramsauer et al. 2021).

Batch and heads keep their places throughout, (B, H, L, D): no item of a batch meets another (erratum 18).
"""

from typing import Any

import torch
from torch import Tensor, nn

from probtx_pyro.nn._hopfield_update import StateUpdate
from probtx_pyro.nn._masks import Masks, combine
from probtx_pyro.nn.attention import Attention, Units


class HopfieldAttention(Attention):
    """Attention whose queries move among the keys for some steps before they read the values out.

    One step of softmax with ``beta=None``, that is ``1/sqrt(head_dim)``, is ``torch.nn.MultiheadAttention``. A β that does not learn
    is no part of the state, which then loads both ways with ``strict=True``.

    Parameters
    ----------
    num_steps, tol, beta, learn_beta, transformation
        As in `StateUpdate`.
    others
        As `Attention`.

    Notes
    -----
    ``need_weights=False`` builds no L x S tensor, at any number of steps (sparse and causal together need a mask of that size).
    With ``tol`` the number of steps depends on the data, which a compiler cannot follow in one graph.

    Shapes: as ``torch.nn.MultiheadAttention``.

    Raises
    ------
    ValueError
        Settings out of range, and what `Attention` refuses.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> trained = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> layer = HopfieldAttention.from_torch(trained)
    >>> x = torch.randn(3, 5, 8)
    >>> bool((layer(x, x, x)[0] - trained(x, x, x)[0]).abs().max() < 1e-5)
    True
    >>> deeper = HopfieldAttention.from_torch(trained, num_steps=3, transformation="entmax15")
    >>> deeper(x, x, x)[0].shape
    torch.Size([3, 5, 8])

    References
    ----------
    Ramsauer et al. 2021, *Hopfield Networks is All You Need*, arXiv 2008.02217.
    """

    def __init__(
        self,
        *args: Any,
        num_steps: int = 1,
        tol: float | None = None,
        beta: float | None = None,
        learn_beta: bool = False,
        transformation: str = "softmax",
        **others: Any,
    ):
        super().__init__(*args, **others)
        beta = self.head_dim**-0.5 if beta is None else beta
        self.update = StateUpdate(
            self.num_heads, beta, learn_beta=learn_beta, num_steps=num_steps, tol=tol, transformation=transformation,
            **self._made,
        )  # fmt: skip

    def constrained(self) -> dict[str, Tensor]:
        """``beta`` (H, 1) where it is learned."""
        return {} if self.update.log_beta is None else {"beta": self.update.log_beta.exp()}

    def attend(
        self, queries: Tensor, units: Units, values: Tensor, masks: Masks, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The queries' states after all steps but one, then one step on the values."""
        return self.update(queries, units.keys, values, masks, self._rate, need_weights)


class HopfieldRetrieval(nn.Module):
    """An associative memory as a layer without projections: states and stored patterns in, retrieved patterns out.

    Parameters
    ----------
    num_heads
        Heads among which the features are split, each a memory of its own.
    beta, learn_beta, num_steps, tol, transformation
        As in `StateUpdate`; a β that learns is the only parameter.
    patterns, values
        A memory (S, E) to hold as a buffer, and what it answers (S, M) in place of patterns; None if patterns come with each call.
    batch_first
        As in ``torch.nn.MultiheadAttention``: whether batches are (B, L, E) instead of (L, B, E).

    Shapes: ``state`` (B, L, E), or (L, E) for a single one; ``patterns`` (B, S, E), or (S, E) for one memory that all items of the
    batch share; ``values`` (B, S, M) or (S, M), None for the patterns -> (B, L, M) or (L, M).

    Raises
    ------
    ValueError
        Settings out of range; in a call, shapes that do not fit, a width that the heads do not divide, no patterns anywhere.

    Examples
    --------
    >>> layer = HopfieldRetrieval(beta=8.0, patterns=torch.tensor([[1.0, 1.0], [-1.0, 1.0]]))
    >>> layer(torch.tensor([[0.8, 0.0]])).round(decimals=3).tolist()
    [[1.0, 1.0]]

    References
    ----------
    Ramsauer et al. 2021, *Hopfield Networks is All You Need*, arXiv 2008.02217.
    """

    patterns: Tensor | None
    values: Tensor | None

    def __init__(
        self,
        num_heads: int = 1,
        beta: float | None = None,
        *,
        learn_beta: bool = False,
        num_steps: int = 1,
        tol: float | None = None,
        transformation: str = "softmax",
        patterns: Tensor | None = None,
        values: Tensor | None = None,
        batch_first: bool = False,
    ):
        super().__init__()
        if num_heads < 1:
            raise ValueError(f"num_heads must be 1 or more, not {num_heads}")
        if values is not None and patterns is None:
            raise ValueError("values to hold need the patterns that they answer; give both")
        self.num_heads, self.batch_first = num_heads, batch_first
        self.register_buffer("patterns", patterns)
        self.register_buffer("values", values)
        self.update = StateUpdate(
            num_heads, beta, learn_beta=learn_beta, num_steps=num_steps, tol=tol, transformation=transformation,
            **({} if patterns is None else {"device": patterns.device, "dtype": patterns.dtype}),
        )  # fmt: skip

    def forward(
        self,
        state: Tensor,
        patterns: Tensor | None = None,
        values: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """What the states retrieve; a state to which every pattern is forbidden gets 0.

        Masks as in ``torch.nn.MultiheadAttention``: ``key_padding_mask`` (B, S), ``attn_mask`` (L, S) or (B·H, L, S), True forbids.
        """
        if patterns is None:
            patterns, values = self.patterns, self.values if values is None else values
        if patterns is None:
            raise ValueError("there are no patterns; give them to the call, or to the layer, which then holds them")
        values = patterns if values is None else values
        single = state.dim() == 2
        if single and key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        batch = 1 if single or state.dim() < 3 else state.shape[0 if self.batch_first else 1]
        states, keys, answers = (
            self._heads(name, x, batch) for name, x in (("state", state), ("patterns", patterns), ("values", values))
        )
        if states.shape[-1] != keys.shape[-1] or keys.shape[2] != answers.shape[2]:
            raise ValueError(
                f"state {tuple(state.shape)}, patterns {tuple(patterns.shape)} and values {tuple(values.shape)} disagree: state and patterns have the same features, patterns and values the same number"
            )
        masks = combine(
            attn_mask, key_padding_mask, is_causal, batch=batch, heads=self.num_heads, queries=states.shape[2],
            units=keys.shape[2], extra=0, dtype=states.dtype,
        )  # fmt: skip
        present = masks.present()
        if present is not None:
            keys, answers = torch.where(present, keys, 0.0), torch.where(present, answers, 0.0)
        retrieved = self.update(states, keys, answers, masks)[0].transpose(1, 2).flatten(-2)
        if single:
            return retrieved.squeeze(0)
        return retrieved if self.batch_first else retrieved.transpose(0, 1)

    def _heads(self, name: str, x: Tensor, batch: int) -> Tensor:
        """(B, H, length, features of a head); what has no batch axis is shared by the batch."""
        if x.dim() == 3 and not self.batch_first:
            x = x.transpose(0, 1)
        if x.dim() not in (2, 3) or (x.dim() == 3 and len(x) != batch) or x.shape[-1] % self.num_heads:
            raise ValueError(
                f"{name} must be batched (of {batch}, batch_first={self.batch_first}) or single, with features that num_heads {self.num_heads} divides, but has shape {tuple(x.shape)}"
            )
        return x.expand(batch, *x.shape[-2:]).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


__all__ = ["HopfieldAttention", "HopfieldRetrieval"]
