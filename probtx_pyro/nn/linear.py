"""The attention layer of linear keys: O(L + S) in time and memory."""

from typing import Any, Unpack

from torch import Tensor

from probtx_pyro.models import LinearKeys
from probtx_pyro.nn._heads import Masks, Shared
from probtx_pyro.nn.attention import Answers, Units
from probtx_pyro.nn.gaussian_keys import SeveralKeys, check_components
from probtx_pyro.ops import explicit_linear_attention, linear_attention, query_features, unit_features
from probtx_pyro.ops._linear_attention import FeatureMap
from probtx_pyro.ops._numerics import drop, single


class LinearKeysAttention(SeveralKeys):
    """Attention with a mixture of R linear keys a unit, MLK (Nguyen et al. 2022); R = 1 is linear attention.

    Shapes: as ``torch.nn.MultiheadAttention``.

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        As for ``torch.nn.MultiheadAttention``.
    head_dim, priors
        As for `Attention`.
    num_components, share
        R, the keys of a unit, and where they come from, as for `GaussianKeysAttention`.
    feature_map
        Positive features of queries and keys, (..., D) -> (..., F); None is elu + 1.

    Notes
    -----
    Masks of units (``key_padding_mask``) and causality keep the cost linear. A mask with rows of its own, causality
    with L other than S, and ``need_weights`` need the L x S matrix. A floating mask multiplies products by its
    exponential. Dropout drops units, the same for all queries of a head.

    Raises
    ------
    ValueError
        Options out of range, and whatever `Attention` refuses.

    Examples
    --------
    >>> import torch
    >>> layer = LinearKeysAttention(8, 2, batch_first=True)
    >>> x = torch.randn(3, 5, 8)
    >>> layer(x, x, x, need_weights=False, is_causal=True)[0].shape
    torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        *torch: Any,
        num_components: int = 2,
        share: str | None = None,
        feature_map: FeatureMap | None = None,
        **shared: Unpack[Shared],
    ):
        check_components(num_components, share)
        super().__init__(*torch, **shared)
        self.num_components, self.share, self.feature_map = num_components, share, feature_map
        self._make_components()

    def units_of(self, keys: Tensor, source: Tensor) -> Units:
        """Return R keys for every unit."""
        return Units(self.components(keys, source))

    def attend(self, queries: Tensor, units: Units, values: Tensor, masks: Masks, need_weights: bool) -> Answers:
        """Return ratios of sums of features, as `ops.linear_attention`. See `Attention.attend`."""
        weights = None if self.component_logits is None else self.component_logits.softmax(-1).unsqueeze(-2)
        rows = masks.log_prior
        of_units = rows is None or rows.shape[-2] == 1
        of_units = of_units and not (masks.causal and queries.shape[-2] != values.shape[-2])
        present = rows.squeeze(-2).exp() if rows is not None and of_units else None
        units_features = unit_features(units.keys, weights, present, self.feature_map)
        features = query_features(queries, self.feature_map), units_features
        if of_units and not need_weights:
            if self._rate:
                values = values * drop(values.new_ones(*values.shape[:-1], 1), self._rate)
            return linear_attention(*features, values, masks.causal), None
        explicit = None if of_units else masks.explicit(queries.shape[-2], values.shape[-2], values)
        causal, allowed = (masks.causal, None) if explicit is None else (False, explicit.exp())
        attention = explicit_linear_attention(*features, values, causal, row_weights=allowed)[1]
        attention = drop(attention.to(values.dtype), self._rate)
        return attention @ values, attention if need_weights else None

    def formulation(self, queries: Tensor, units: Units, values: Tensor, masks: Masks) -> tuple[LinearKeys, Tensor]:
        """Return the linear keys of every head, and their queries. See `Attention.formulation`."""
        queries, keys, values = single(queries), single(units.keys), single(values)
        weights = None if self.component_logits is None else self.component_logits.softmax(-1).unsqueeze(-2).to(keys)
        weights = None if weights is None else weights.expand(keys.shape[:-1])
        rows = masks.opened(queries.shape[-2], values.shape[-2], values)
        if rows is None or rows.shape[-2] == 1:
            allowed = None if rows is None else rows.squeeze(-2).exp()
            return LinearKeys(keys, values, weights, self.feature_map, allowed), queries
        weights = None if weights is None else weights.unsqueeze(2)
        every = LinearKeys(keys.unsqueeze(2), values.unsqueeze(2), weights, self.feature_map, rows.exp())
        return every, queries.unsqueeze(-2)
