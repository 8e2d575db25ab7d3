"""Attention sinks: units that take attention whatever is asked, and how much of it one number a head explains.

A sink of logit s_0 beside others of log-sum-exp ``l_i = log Σ_j exp(s_ij)`` has the mass ``1 / (1 + exp(l_i - s_i0))``.
If s_i0 is the same for every query the sink is a background unit, docs/mathematics.md (2.25). Xiao et al. 2024,
*Efficient Streaming Language Models with Attention Sinks*, arXiv 2309.17453.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from probtx_pyro._brief import in_brief
from probtx_pyro.inspection._captured import Captured, Coords, unit_at
from probtx_pyro.inspection.redundancy import Array


class Sinks(NamedTuple):
    """Attention to one unit, and what predicts it; arrays (*heads), heads the leading axes without the batch's.

    mass: mean attention to the unit.
    key_ratio, value_ratio: norm of its key, and of its value, over the median of the others'; NaN without values.
    logit: mean of its logit s_0 over the queries. logit_sd: standard deviation. rest_sd: that of the log-sum-exp of the
        others.
    explained: share of the variance of the log odds of the mass that is left to the others when s_0 is a constant, at
        most 1.
    without, constant_mass, constant_logit: mean total variation of a row of attention where the unit is left out, where
        its mass is the mean mass, and where its logit is the mean logit.
    unit: which unit.
    dims, coords: names of the head axes, and their labels.
    """

    mass: Array
    key_ratio: Array
    value_ratio: Array
    logit: Array
    logit_sd: Array
    rest_sd: Array
    explained: Array
    without: Array
    constant_mass: Array
    constant_logit: Array
    unit: int
    dims: tuple[str, ...]
    coords: Coords

    def __repr__(self) -> str:
        return in_brief(self)


@torch.no_grad()
def sinks(
    captured: Captured | Mapping[str, Captured], unit: int = 0, *, on: Captured | Mapping[str, Captured] | None = None
) -> Sinks:
    """Measure by head how much attention a unit gets, and how well a constant mass or a constant logit predicts it.

    Parameters
    ----------
    captured
        One `Captured`, or what `inspection.capture` returned, with as many heads in every layer: softmax of dot
        products. The axes named ``batch`` are pooled; what does not count (`Captured.present`) is left out, as are
        queries to which the unit is closed, or every other one.
    unit
        Index of the unit: 0 is the first token, where sinks usually are.
    on
        Other texts of the same heads, on which the constants are tried and everything else is measured; None is the
        same texts.

    Returns
    -------
    Sinks

    Raises
    ------
    ValueError
        A unit that is not there, layers or heads that differ, a head without a query that counts, a layer of another
        kind than softmax.

    Examples
    --------
    >>> from probtx_pyro.data.text_transformer import load
    >>> from probtx_pyro.inspection import captured
    >>> heads = load().heads("The for statement is used to iterate over the elements of a sequence")
    >>> future = torch.full((68, 68), -torch.inf).triu(1)
    >>> found = sinks(captured(heads.queries, heads.keys, heads.values, future, dims=("layer", "head")))
    >>> found.mass.shape, bool((found.constant_mass <= found.without).any())
    ((2, 4), True)
    """
    if isinstance(captured, Captured):
        if not isinstance(on, Captured | None):
            raise ValueError("on must be one Captured, as captured is; or give the layers of both by name")
        return _of_one(captured, captured if on is None else on, unit)
    if not captured or (on is not None and (isinstance(on, Captured) or list(on) != list(captured))):
        raise ValueError("on must have the layers of captured, by the same names, and at least one")
    layers = [_of_one(one, one if on is None else on[name], unit) for name, one in captured.items()]
    first = layers[0]
    if any(x.mass.shape != first.mass.shape or x.dims != first.dims for x in layers):
        shapes = ", ".join(f"{name} {x.mass.shape}" for name, x in zip(captured, layers, strict=True))
        raise ValueError(f"captured: layers differ in their heads: {shapes}; take like ones")
    arrays = {name: np.stack([getattr(x, name) for x in layers]) for name in Sinks._fields[:-3]}
    coords = {**first.coords, "layer": list(captured)}
    return Sinks(**arrays, unit=unit, dims=("layer", *first.dims), coords=coords)


def _of_one(one: Captured, other: Captured, unit: int) -> Sinks:
    fitted = _odds(one, unit)
    odds = fitted if other is one else _odds(other, unit)
    if fitted.mass.shape[:-1] != odds.mass.shape[:-1]:
        shapes = [tuple(x.mass.shape[:-1]) for x in (odds, fitted)]
        raise ValueError(f"on has heads {shapes[0]} but captured {shapes[1]}; capture the same layers of one model")
    predicted = {
        "without": torch.zeros_like(odds.mass),
        "constant_mass": fitted.mean(fitted.mass).unsqueeze(-1),
        "constant_logit": torch.sigmoid(fitted.mean(fitted.logit).unsqueeze(-1) - odds.rest),
    }
    of_logit, of_rest = odds.variance(odds.logit), odds.variance(odds.rest)
    found = {
        "mass": odds.mean(odds.mass),
        "key_ratio": _ratio(other, other.keys, unit),
        "value_ratio": _ratio(other, other.values, unit),
        "logit": odds.mean(odds.logit),
        "logit_sd": of_logit.sqrt(),
        "rest_sd": of_rest.sqrt(),
        "explained": 1 - of_logit / odds.variance(odds.logit - odds.rest),
        **{name: odds.mean((odds.mass - x).abs()) for name, x in predicted.items()},
    }
    heads = tuple(name for name in other.dims if not name.startswith("batch"))
    coords = {name: x for name, x in other.coords.items() if name in heads}
    return Sinks(**{name: x.cpu().numpy() for name, x in found.items()}, unit=unit, dims=heads, coords=coords)


class _Odds(NamedTuple):
    """A unit's logit and mass, the others' log-sum-exp, and which queries count, (*heads, N) over all N queries of a
    head.
    """

    logit: Tensor
    rest: Tensor
    mass: Tensor
    counted: Tensor

    def mean(self, x: Tensor) -> Tensor:
        return torch.where(self.counted, x, 0.0).sum(-1) / self.counted.sum(-1)

    def variance(self, x: Tensor) -> Tensor:
        return self.mean((x - self.mean(x).unsqueeze(-1)).square())


def _odds(one: Captured, unit: int) -> _Odds:
    at, logits, attention = unit_at("unit", unit, one), one.logits(), one.attention()
    own, mass = logits[..., at], attention[..., at]
    rest = logits.index_fill(-1, torch.tensor(at, device=logits.device), -torch.inf).logsumexp(-1)
    counted = _by_head(one, one.present & own.isfinite() & rest.isfinite())
    if bool((counted.sum(-1) == 0).any()):
        raise ValueError("captured has a head without a query that attends to the unit and to others; leave it out")
    own, rest, mass = (torch.where(counted, _by_head(one, x), 0.0) for x in (own, rest, mass))
    return _Odds(own, rest, mass, counted)


def _by_head(one: Captured, x: Tensor) -> Tensor:
    """(..., N), whose leading axes broadcast to those of the queries, as (*heads, N over the batch)."""
    x = x.expand(*one.queries.shape[:-2], x.shape[-1])
    heads = [i for i, name in enumerate(one.dims) if not name.startswith("batch")]
    order = [*heads, *(i for i in range(len(one.dims)) if i not in heads)]
    return x.permute(*order, x.dim() - 1).flatten(len(heads))


def _ratio(one: Captured, vectors: Tensor | None, unit: int) -> Tensor:
    """Norm of the unit's vector over the median of the others', the mean over the batch; vectors (..., U, M), (*heads)."""
    if vectors is None:
        return _by_head(one, one.queries[..., 0]).sum(-1) * torch.nan
    norms = vectors.norm(dim=-1)
    others = torch.where((one.mask > -torch.inf).any(-2), norms, torch.nan)
    others[..., unit] = torch.nan  # and units that are closed to all
    return _by_head(one, (norms[..., unit] / others.nanmedian(-1).values).unsqueeze(-1)).mean(-1)
