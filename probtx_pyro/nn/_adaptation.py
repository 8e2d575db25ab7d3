"""Priors under which `inference.adapt` adapts the units of every head to the queries of a call."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyro.distributions import Dirichlet, Gamma, Normal, TorchDistribution, Wishart
from torch import Tensor
from torch.distributions import Distribution

from probtx_pyro import models
from probtx_pyro.models.priors import in_dtype
from probtx_pyro.nn._masks import Masks

Model = models.GaussianMixture | models.GaussianKeys
#: names of parameters, or their priors: a distribution, a function from the present value to one, None for the layer's own
Adapted = Sequence[str] | Mapping[str, Any]


def _normal(value: Tensor, strength: Tensor) -> TorchDistribution:
    return Normal(value, _beside(strength, value).rsqrt().expand_as(value))


def _gamma(value: Tensor, strength: Tensor) -> TorchDistribution:
    strength = _beside(strength, value).expand_as(value)
    return Gamma(1 + strength, strength / value)


def _wishart(value: Tensor, strength: Tensor) -> TorchDistribution:
    each = _beside(strength, value[..., 0, 0]).expand(value.shape[:-2])
    return Wishart(value.shape[-1] + 1 + each, value / each[..., None, None])


def _dirichlet(value: Tensor, strength: Tensor) -> TorchDistribution:
    return Dirichlet(1 + _beside(strength, value) * value)


#: the prior of a conjugate family whose mode is the present value (B, H, ...), the stronger the larger its strength (H,)
OWN: Mapping[type, Callable[[Tensor, Tensor], TorchDistribution]] = {
    Normal: _normal, Gamma: _gamma, Wishart: _wishart, Dirichlet: _dirichlet,
}  # fmt: skip


def _beside(strength: Tensor, parameter: Tensor) -> Tensor:
    """Lay (H,) out beside a parameter (B, H, ...)."""
    return strength.view(-1, *(1,) * (parameter.dim() - 2))


def named(adapted: Adapted, kind: type[Model], lacking: Mapping[str, str]) -> dict[str, Any]:
    """Return a prior, or None for the layer's own, by name of the parameter.

    Parameters
    ----------
    adapted
        What the layer was given.
    kind
        The class of its model.
    lacking
        By name of a parameter that the layer does not have: what it takes to have it.

    Raises
    ------
    ValueError
        A parameter that is not there, or something that is no prior.
    """
    priors = dict(adapted) if isinstance(adapted, Mapping) else dict.fromkeys(adapted)
    known = [name for name, row in kind.PARAMETERS.items() if row.conjugate in OWN and name not in lacking]
    for name, prior in priors.items():
        if name in lacking:
            raise ValueError(f"adapted: {name} needs {lacking[name]}; or choose from {', '.join(known)}")
        if name not in known:
            raise ValueError(f"adapted: no parameter {name!r}; choose from {', '.join(known)}")
        if isinstance(prior, type) or not (prior is None or isinstance(prior, Distribution) or callable(prior)):
            raise ValueError(
                f"adapted: {name}={prior!r} is no prior; give a Pyro distribution, a function from the present value to one, or None for the layer's own"
            )
    return priors


def priors_of(model: Model, given: Mapping[str, Any], strengths: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the priors of a call, by name of the parameter.

    Parameters
    ----------
    model
        The model of every head, as the layer's weights make it.
    given
        What `named` returned.
    strengths
        (H,) of each of the layer's own priors.

    Raises
    ------
    ValueError
        A function that does not return a distribution.
    """
    priors = {}
    for name, prior in given.items():
        value = model.parameter(name, model.batch_shape)
        assert value is not None
        if prior is None:
            priors[name] = OWN[model.row(name).conjugate](value, strengths[name].to(value))  # type: ignore[index]
            continue
        found = prior if isinstance(prior, Distribution) else prior(value)
        if not isinstance(found, Distribution):
            raise ValueError(f"adapted: the function for {name} returned a {type(found).__name__}, not a distribution")
        priors[name] = in_dtype(found, value.dtype)
    return priors


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
