"""A transformer that takes any attention layer: blocks,
and a causal language model of them. Its decoder is in ``decoder.py``.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probtx_pyro.nn.attention import SoftmaxAttention


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
        self.dropout = nn.Dropout(dropout)

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
        self.dropout = nn.Dropout(dropout)
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
