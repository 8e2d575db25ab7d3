"""Adaptation of units to the queries of a call: a model of `probtx_pyro.models` for every head, and `inference.adapt` on it."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from pyro.distributions import Gamma, Normal, TorchDistribution
from torch import Tensor

from probtx_pyro import models
from probtx_pyro.inference import adapt
from probtx_pyro.nn._masks import Masks


def _keys(model: models.GaussianMixture | models.GaussianKeys, strength: Tensor) -> TorchDistribution:
    return Normal(model.keys, _beside(strength, model.keys).rsqrt().expand_as(model.keys))


def _key_precision(model: models.GaussianMixture | models.GaussianKeys, strength: Tensor) -> TorchDistribution:
    strength = _beside(strength, model.key_precision).expand_as(model.key_precision)
    return Gamma(1 + strength, strength / model.key_precision)


ADAPTED: Mapping[str, Callable[[Any, Tensor], TorchDistribution]] = {"keys": _keys, "key_precision": _key_precision}


def _beside(strength: Tensor, parameter: Tensor) -> Tensor:
    """Lay (H,) out beside a parameter (B, H, ...)."""
    return strength.view(-1, *(1,) * (parameter.dim() - 2))


def model_of(
    keys: Tensor,
    values: Tensor,
    precision: Tensor,
    key_weights: Tensor,
    log_prior: Tensor | None,
) -> models.GaussianMixture | models.GaussianKeys:
    """Return the probability model of every head.

    Parameters
    ----------
    keys, values
        (B, H, S, [R,] D) and (B, H, S, D).
    precision, key_weights
        Precision and log weight, not normalised, of each key, (B, H, S, [R]).
    log_prior
        (B, 1 or H, L or 1, S) with -inf for masks, or None.
    """
    if keys.dim() == 4:
        weights = key_weights.unsqueeze(-2) if log_prior is None else key_weights.unsqueeze(-2) + log_prior
        return models.GaussianMixture(keys, values, precision, log_prior=weights.log_softmax(-1))
    units = key_weights.logsumexp(-1).unsqueeze(-2)
    weights = units if log_prior is None else units + log_prior
    return models.GaussianKeys(keys, values, precision, key_weights.softmax(-1), log_prior=weights.log_softmax(-1))


def adapted(
    model: Any,
    queries: Tensor,
    strengths: Mapping[str, Tensor],
    num_steps: int,
    *,
    query_weights: Tensor | None = None,
    causal: bool = False,
) -> Any:
    """Adapt ``model`` to the queries.

    Parameters
    ----------
    model, queries
        The probability model of every head, and queries (B, H, L, D).
    strengths
        Strength (H,) of the prior on each parameter, by name: a Normal on the keys has this precision, a Gamma on the key
        precision counts as so many halves of observed coordinates; both have their mode at the parameter as it was.
    num_steps
        Number of ECM steps.
    query_weights
        (B, H, L), how much each query counts; None is 1.
    causal
        Query i meets units that adapted to queries up to i.

    Returns
    -------
    The adapted model; if ``causal``, to be asked with queries (B, H, L, 1, D).
    """
    priors: dict[str, Any] = {name: ADAPTED[name](model, strength) for name, strength in strengths.items()}
    options: dict[str, Any] = {
        "num_steps": num_steps,
        "query_weights": query_weights,
        "causal": causal,
        "progress": False,
    }
    return adapt(models.bayesian(model, **priors), queries, **options).formulation


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


__all__ = ["ADAPTED", "adapted", "check_masks", "model_of"]
