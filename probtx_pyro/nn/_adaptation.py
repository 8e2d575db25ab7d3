"""The probability model of every head, and the priors under which `inference.adapt` adapts it to the queries of a call."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from pyro.distributions import Gamma, Normal, TorchDistribution
from torch import Tensor

from probtx_pyro import models
from probtx_pyro.nn._masks import Masks

Model = models.GaussianMixture | models.GaussianKeys


def _keys(model: Model, strength: Tensor) -> TorchDistribution:
    return Normal(model.keys, _beside(strength, model.keys).rsqrt().expand_as(model.keys))


def _key_precision(model: Model, strength: Tensor) -> TorchDistribution:
    strength = _beside(strength, model.key_precision).expand_as(model.key_precision)
    return Gamma(1 + strength, strength / model.key_precision)


ADAPTED: Mapping[str, Callable[[Any, Tensor], TorchDistribution]] = {"keys": _keys, "key_precision": _key_precision}


def _beside(strength: Tensor, parameter: Tensor) -> Tensor:
    """Lay (H,) out beside a parameter (B, H, ...)."""
    return strength.view(-1, *(1,) * (parameter.dim() - 2))


def check_masks(masks: Masks) -> None:
    """Refuse a mask by which a query could learn from a unit that is hidden from it.

    Raises
    ------
    ValueError
        Units are hidden from some queries and not from others, other than causally.
    """
    rows = masks.log_prior
    if rows is None or rows.shape[-2] == 1:
        return
    hidden = rows == -math.inf
    if (hidden != hidden[..., :1, :]).any():
        raise ValueError(
            "attn_mask hides units from some queries only, but adapt_steps lets every query move the units; use is_causal=True, key_padding_mask, or adapt_steps=0"
        )
