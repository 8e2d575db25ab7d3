"""Transformers that take any attention layer: a causal language model, a decoder, an encoder-decoder: trained in one
pass, decoded token by token.

A decoder block attends to the target tokens so far, then to the memory, the encoder's output: the units of its
cross-attention are the source tokens. Token by token the units of both are projected once and kept
(`Attention.remember`, `Attention.recall`): those of the source for good, those of the target one more in each step.
Linear keys are kept as keys, not as running sums, so a step costs them as much as the others: in proportion to the
tokens before it.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probtx_pyro.nn._heads import Remembered
from probtx_pyro.nn._module import Dropout
from probtx_pyro.nn.attention import Attention, SoftmaxAttention


class SelfAttentionBlock(nn.Module):
    """Base of `TransformerBlock`, where its arguments are explained, and of `TransformerDecoderBlock`:
    their common branches.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        attention: Callable[..., nn.Module] = SoftmaxAttention,
        dropout: float = 0.0,
        **options: object,
    ):
        super().__init__()
        self.attention_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention(width, num_heads, dropout=dropout, batch_first=True, **options)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = Dropout(dropout)

    def attended(self, x: Tensor, **masks: object) -> Tensor:
        """Return ``x`` (B, L, width) after self-attention."""
        h = self.attention_norm(x)
        return x + self.dropout(self.attention(h, h, h, need_weights=False, **masks)[0])

    def fed(self, x: Tensor) -> Tensor:
        """Return ``x`` (B, L, width) after the feed-forward layer."""
        return x + self.dropout(self.narrow(F.gelu(self.widen(self.feed_norm(x)))))


class TransformerBlock(SelfAttentionBlock):
    """Self-attention and a feed-forward layer four times as wide, each behind a layer norm and added to its input.

    Shapes: (B, L, width) -> (B, L, width); ``attn_mask`` and ``key_padding_mask`` as in
    ``torch.nn.MultiheadAttention``.

    Parameters
    ----------
    width, num_heads
        Channels, and heads of the attention.
    attention
        Class of the attention layer, or any callable with the constructor arguments of ``torch.nn.MultiheadAttention``.
    dropout
        Rate, in the attention and on both branches.
    options
        Further arguments of ``attention``, such as ``head_dim``.
    """

    def forward(
        self,
        x: Tensor,
        *,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return the block's output, of the shape of ``x``; masks as in ``torch.nn.MultiheadAttention``."""
        return self.fed(self.attended(x, attn_mask=attn_mask, key_padding_mask=key_padding_mask, is_causal=is_causal))


class TransformerLM(nn.Module):
    """A causal language model: logits of the next token, (B, L, vocabulary), from tokens (B, L).

    The output weights are the input embedding.

    Parameters
    ----------
    vocabulary, context
        Number of tokens, and of positions.
    width, num_heads, num_layers
        Channels and heads of the blocks, and their number.
    attention, dropout, options
        As for `TransformerBlock`.

    Examples
    --------
    >>> from probtx_pyro import nn as layers
    >>> keys = layers.GaussianKeysAttention
    >>> model = TransformerLM(20, 16, width=8, num_heads=2, num_layers=1, attention=keys, head_dim=2)
    >>> model(torch.zeros(3, 16, dtype=torch.long)).shape
    torch.Size([3, 16, 20])
    """

    def __init__(
        self,
        vocabulary: int,
        context: int,
        *,
        width: int = 128,
        num_heads: int = 8,
        num_layers: int = 4,
        attention: Callable[..., nn.Module] = SoftmaxAttention,
        dropout: float = 0.0,
        **options: object,
    ):
        super().__init__()
        self.context = context
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(width, num_heads, attention, dropout, **options) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the token after each, (B, L, vocabulary), given the tokens (B, L) up to it."""
        length = tokens.shape[-1]
        if not 0 < length <= self.context:
            raise ValueError(f"there are {length} tokens in a row; give between 1 and {self.context} (context)")
        x = self.dropout(self.tokens(tokens) + self.positions.weight[:length])
        for block in self.blocks:
            x = block(x, is_causal=True)
        return F.linear(self.norm(x), self.tokens.weight)

    @torch.no_grad()
    def attention_weights(self, tokens: Tensor) -> Tensor:
        """Return the attention of every layer and head while the model reads ``tokens`` (B, L): (layer, B, head,
        L, L).
        """
        caught, x = [], self.tokens(tokens) + self.positions.weight[: tokens.shape[-1]]
        for block in cast("list[TransformerBlock]", self.blocks):
            h = block.attention_norm(x)
            caught.append(block.attention(h, h, h, is_causal=True, average_attn_weights=False)[1])
            x = block(x, is_causal=True)
        return torch.stack(caught)


class BlockCache(NamedTuple):
    """Units that a decoder block keeps.

    own: the target tokens so far; None before the first.
    source: the memory.
    """

    own: Remembered | None
    source: Remembered

    def rows(self, index: Tensor) -> "BlockCache":
        """Return the rows of the batch at ``index``, in its order."""
        return BlockCache(None if self.own is None else self.own.rows(index), self.source.rows(index))


class DecoderCache(NamedTuple):
    """State of a decoder that goes on token by token: what each block keeps, and the number of target tokens so far."""

    blocks: tuple[BlockCache, ...]
    length: int = 0

    def rows(self, index: Tensor) -> "DecoderCache":
        """Return the rows of the batch at ``index`` (row,), in its order; a row may be taken more than once."""
        return DecoderCache(tuple(block.rows(index) for block in self.blocks), self.length)


class TransformerDecoderBlock(SelfAttentionBlock):
    """Causal self-attention, attention to a memory, a feed-forward layer:
    each behind a layer norm and added to its input.

    Parameters
    ----------
    width, num_heads, dropout
        As for `TransformerBlock`.
    attention
        Class of both attention layers, one that derives from `Attention`.
    options
        Further arguments of ``attention``.

    Raises
    ------
    ValueError
        A layer that does not derive from `Attention`, or whose units adapt to all queries of a call (``adapt``):
        in cross-attention earlier words would learn from later ones.

    Shapes: x (B, L, width), memory (B, S, width) -> (B, L, width).
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        attention: Callable[..., nn.Module] = SoftmaxAttention,
        dropout: float = 0.0,
        **options: object,
    ):
        super().__init__(width, num_heads, attention, dropout, **options)
        if not isinstance(self.attention, Attention):
            found = type(self.attention).__name__
            raise ValueError(f"attention must be a layer of probtx_pyro.nn or derive from nn.Attention, not {found}")
        if getattr(self.attention, "adapt", None):
            reason = "units that adapt to all target words would tell earlier words of later ones"
            raise ValueError(f"adapt must be left out in a decoder: {reason}")
        self.cross_norm = nn.LayerNorm(width)
        self.cross = attention(width, num_heads, dropout=dropout, batch_first=True, **options)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the block's output for all target tokens at once,
        each of which attends to those up to it and to the memory.

        Parameters
        ----------
        x, memory
            (B, L, width) and (B, S, width).
        key_padding_mask, memory_key_padding_mask
            (B, L) and (B, S), True at padding. Padding behind the target needs no mask: no token before it attends to
            it.
        """
        x = self.attended(x, key_padding_mask=key_padding_mask, is_causal=True)
        asked = self.cross_norm(x)
        heard = self.cross(asked, memory, memory, key_padding_mask=memory_key_padding_mask, need_weights=False)[0]
        return self.fed(x + self.dropout(heard))

    def remember(self, memory: Tensor, memory_key_padding_mask: Tensor | None = None) -> BlockCache:
        """Return the cache before the first token; memory (B, S, width), mask (B, S) with True at padding."""
        return BlockCache(None, cast(Attention, self.cross).remember(memory, memory_key_padding_mask))

    def step(self, x: Tensor, cache: BlockCache) -> tuple[Tensor, BlockCache]:
        """Return the block's output for the next token alone, x (B, 1, width) to (B, 1, width),
        and the cache after it.
        """
        layer, h = cast(Attention, self.attention), self.attention_norm(x)
        own = layer.remember(h) if cache.own is None else cache.own.joined(layer.remember(h))
        x = x + self.dropout(layer.recall(h, own))
        x = x + self.dropout(cast(Attention, self.cross).recall(self.cross_norm(x), cache.source))
        return self.fed(x), cache._replace(own=own)


class TransformerDecoder(nn.Module):
    """Decoder blocks and a last layer norm.

    Parameters
    ----------
    width, num_heads, num_layers
        Channels and heads of the blocks, and their number.
    attention, dropout, options
        As for `TransformerDecoderBlock`.

    Shapes: x (B, L, width), memory (B, S, width) -> (B, L, width).

    Raises
    ------
    ValueError
        As in `TransformerDecoderBlock`.

    Examples
    --------
    >>> import torch
    >>> from probtx_pyro import nn as layers
    >>> decoder = TransformerDecoder(8, 2, 1, attention=layers.GaussianKeysAttention).eval()
    >>> x, memory = torch.randn(3, 5, 8), torch.randn(3, 4, 8)
    >>> cache, found = decoder.remember(memory), []
    >>> for token in x.split(1, 1):
    ...     output, cache = decoder.step(token, cache)
    ...     found.append(output)
    >>> bool((torch.cat(found, 1) - decoder(x, memory)).abs().max() < 1e-5)
    True
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        num_layers: int,
        attention: Callable[..., nn.Module] = SoftmaxAttention,
        dropout: float = 0.0,
        **options: object,
    ):
        super().__init__()
        blocks = (TransformerDecoderBlock(width, num_heads, attention, dropout, **options) for _ in range(num_layers))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the output for all target tokens at once; arguments as in `TransformerDecoderBlock.forward`."""
        masks = {"key_padding_mask": key_padding_mask, "memory_key_padding_mask": memory_key_padding_mask}
        for block in self.blocks:
            x = block(x, memory, **masks)
        return self.norm(x)

    def remember(self, memory: Tensor, memory_key_padding_mask: Tensor | None = None) -> DecoderCache:
        """Return the cache before the first token; memory (B, S, width), mask (B, S) with True at padding."""
        blocks = cast("list[TransformerDecoderBlock]", self.blocks)
        return DecoderCache(tuple(block.remember(memory, memory_key_padding_mask) for block in blocks))

    def step(self, x: Tensor, cache: DecoderCache) -> tuple[Tensor, DecoderCache]:
        """Return the output for the next token alone, x (B, 1, width) to (B, 1, width), and the cache after it."""
        kept = []
        for block, own in zip(cast("list[TransformerDecoderBlock]", self.blocks), cache.blocks, strict=True):
            x, after = block.step(x, own)
            kept.append(after)
        return self.norm(x), DecoderCache(tuple(kept), cache.length + 1)


class EncoderDecoder(nn.Module):
    """A model of a target sequence given a source: logits of the next target token, (B, L, vocabulary).

    Source and target have one vocabulary, and one embedding, which is also the output weights; positions are learned,
    apart.

    Parameters
    ----------
    vocabulary, context
        Number of tokens, and most tokens of a source or a target.
    width, num_heads, num_layers
        Channels and heads of the blocks, and their number in the encoder and in the decoder each.
    attention, dropout, options
        As for `TransformerDecoderBlock`.

    Raises
    ------
    ValueError
        As in `TransformerDecoderBlock`; in a call, more tokens than ``context``, or none.

    References
    ----------
    Vaswani et al. 2017, *Attention Is All You Need*, arXiv 1706.03762; the norms stand before the layers.

    Examples
    --------
    >>> import torch
    >>> model = EncoderDecoder(20, 16, width=8, num_heads=2, num_layers=1)
    >>> model(torch.zeros(3, 7, dtype=torch.long), torch.zeros(3, 5, dtype=torch.long)).shape
    torch.Size([3, 5, 20])
    """

    def __init__(
        self,
        vocabulary: int,
        context: int,
        *,
        width: int = 128,
        num_heads: int = 8,
        num_layers: int = 3,
        attention: Callable[..., nn.Module] = SoftmaxAttention,
        dropout: float = 0.0,
        **options: object,
    ):
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(vocabulary, width)
        self.source_positions, self.target_positions = nn.Embedding(context, width), nn.Embedding(context, width)
        for embedding in (self.tokens, self.source_positions, self.target_positions):
            nn.init.normal_(embedding.weight, std=0.02)
        self.dropout = Dropout(dropout)
        blocks = (TransformerBlock(width, num_heads, attention, dropout, **options) for _ in range(num_layers))
        self.encoder, self.norm = nn.ModuleList(blocks), nn.LayerNorm(width)
        self.decoder = TransformerDecoder(width, num_heads, num_layers, attention, dropout, **options)

    def _embedded(self, tokens: Tensor, positions: nn.Module, start: int = 0) -> Tensor:
        """Return the embedded tokens, of which the first stands at ``start``."""
        end = start + tokens.shape[-1]
        if not start < end <= self.context:
            raise ValueError(f"there are {end} tokens in a row; give between 1 and {self.context} (context)")
        return self.dropout(self.tokens(tokens) + cast(nn.Embedding, positions).weight[start:end])

    def encode(self, source: Tensor, source_padding: Tensor | None = None) -> Tensor:
        """Return the memory, (B, S, width), from the source tokens (B, S); the mask (B, S) is True at padding."""
        x = self._embedded(source, self.source_positions)
        for block in self.encoder:
            x = block(x, key_padding_mask=source_padding)
        return self.norm(x)

    def forward(self, source: Tensor, target: Tensor, source_padding: Tensor | None = None) -> Tensor:
        """Return the logits of the token after each target token.

        Parameters
        ----------
        source, target
            (B, S) and (B, L). What stands behind the end of a target is read by nothing before it.
        source_padding
            (B, S), True at padding; None where there is none.

        Returns
        -------
        (B, L, vocabulary)
        """
        memory = self.encode(source, source_padding)
        x = self._embedded(target, self.target_positions)
        return self._logits(self.decoder(x, memory, memory_key_padding_mask=source_padding))

    def remember(self, source: Tensor, source_padding: Tensor | None = None) -> DecoderCache:
        """Read the source (B, S), padding (B, S), and return the cache before the first target token."""
        return self.decoder.remember(self.encode(source, source_padding), source_padding)

    def step(self, tokens: Tensor, cache: DecoderCache) -> tuple[Tensor, DecoderCache]:
        """Return the logits of the token after the next one, (B, vocabulary), and the cache after it; tokens (B,)."""
        x = self._embedded(tokens.unsqueeze(-1), self.target_positions, cache.length)
        x, cache = self.decoder.step(x, cache)
        return self._logits(x.squeeze(1)), cache

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.tokens.weight)
