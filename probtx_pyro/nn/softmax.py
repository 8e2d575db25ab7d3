"""The reference layer, scaled dot-product attention,
and the explicit path that layers take where weights are asked for.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from probtx_pyro.models import GaussianMixture
from probtx_pyro.nn._masks import Masks
from probtx_pyro.nn.attention import Answers, Attention, Units
from probtx_pyro.ops._numerics import single, unrounded
from probtx_pyro.ops.attention import dot_product_attention
from probtx_pyro.ops.entmax import softmax


class SoftmaxAttention(Attention):
    """Scaled dot-product attention itself, the reference for the others, with ``head_dim`` free.

    The arguments are those of `Attention`.

    Examples
    --------
    >>> import torch
    >>> layer = SoftmaxAttention(8, 2, batch_first=True)
    >>> layer(*[torch.ones(1, 3, 8)] * 3, is_causal=True)[1][0, 0].tolist()
    [1.0, 0.0, 0.0]
    """

    def attend(self, queries: Tensor, units: Units, values: Tensor, masks: Masks, need_weights: bool) -> Answers:
        """Weigh by the softmax of dot products over ``sqrt(head_dim)``. See `Attention.attend`."""
        queries = (single(queries) if need_weights else queries) * self.head_dim**-0.5
        if need_weights:
            return explicit(products(queries, units.keys), values, masks, self._rate)
        how: Any = {"causal": masks.causal, "dropout": self._rate}
        return dot_product_attention(queries, units.keys, values, masks.log_prior, **how), None

    def formulation(
        self, queries: Tensor, units: Units, values: Tensor, masks: Masks
    ) -> tuple[GaussianMixture, Tensor]:
        """Return the mixture that softmax assumes in every head, and its queries. See `Attention.formulation`."""
        keys, values = single(units.keys), single(values)
        rows = masks.opened(queries.shape[-2], values.shape[-2], values)
        return GaussianMixture.linked(keys, values, self.head_dim**-0.5, 0.0, rows), single(queries)


def products(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the products (B, H, L, S) of queries (B, H, L, D) and keys (B, H, S, D), in 32 bits at least:
    softmax sees their differences.
    """
    with unrounded(queries.device):
        return single(queries) @ single(keys).mT


def explicit(
    logits: Tensor, values: Tensor, masks: Masks, dropout: float, function: Callable[[Tensor], Tensor] = softmax
) -> tuple[Tensor, Tensor]:
    """Return answers and weights by the L x S path; dropped weights are returned as torch returns them.

    Parameters
    ----------
    logits, values
        (B, H, L, S) and (B, H, S, D).
    masks
        The units that each query may attend to.
    dropout
        Rate.
    function
        From logits, of 32 bits at least, to rows on the simplex.

    Returns
    -------
    Answers (B, H, L, D) and weights (B, H, L, S).
    """
    log_prior = masks.explicit(logits.shape[-2], logits.shape[-1], logits)
    weights = function(single(logits if log_prior is None else logits + log_prior)).to(values.dtype)
    weights = F.dropout(weights, dropout) if dropout else weights
    return weights @ values, weights
