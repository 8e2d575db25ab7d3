"""Captured layers as one, and as labelled arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from probtx_pyro.inspection._captured import Captured
from probtx_pyro.ops._numerics import common_shape
from probtx_pyro.results._arviz import Variable, from_arrays


def stack_layers(layers: Mapping[str, Captured]) -> Captured:
    """Layers of equal shapes as one, with a leading axis ``layer`` that carries their names.

    Raises
    ------
    ValueError
        No layer, or layers that differ in shape or in their leading axes.
    """
    every = list(layers.values())
    shapes = {name: (x.dims, x.queries.shape, x.keys.shape, type(x.written)) for name, x in layers.items()}
    chosen = [x.chosen for x in every]
    if len(set(shapes.values())) != 1 or any(x is None for x in chosen) != all(x is None for x in chosen):
        listed = ", ".join(f"{name} {tuple(q)} {tuple(k)} {kind.__name__}" for name, (_, q, k, kind) in shapes.items())
        raise ValueError(
            f"layers must have one shape of queries and keys, one kind of attention and one choice of mixture, not {listed or 'none'}; take like layers only"
        )
    leading = every[0].queries.shape[:-2]
    masks = [x.mask for x in every if x.mask is not None]
    if masks:  # 0 where a layer has none
        masks = [torch.zeros_like(masks[0][..., :1, :]) if x.mask is None else x.mask for x in every]
    return Captured(
        torch.stack([x.queries for x in every]),
        _stacked([x.written for x in every], every[0]._asked.shape[:-2]),
        _aligned(masks, 2, leading) if masks else None,
        torch.stack([x.present for x in every]),
        ("layer", *every[0].dims),
        {**every[0].coords, "layer": list(layers)},
        None if chosen[0] is None else _stacked(chosen, every[0]._asked.shape[:-2]),
        every[0].options,
    )


def _stacked(every: Sequence[Any], leading: torch.Size) -> Any:
    """Formulations of one kind as one, with a leading axis more."""
    first, fields = every[0], dict[str, Any]()
    own = {row.field or name: len(first.row(name).names) for name, row in first.PARAMETERS.items()} | {"mask": 1}
    for name in vars(first):
        each = [vars(one)[name] for one in every]
        if all(isinstance(x, Tensor) for x in each):
            fields[name] = _aligned(each, own[name], leading)
        elif name == "values":
            fields[name] = None  # some layers have none
        elif any(x is not each[0] and x != each[0] for x in each):
            raise ValueError(
                f"layers differ in {name}, so that they are no one {type(first).__name__}; take like layers only"
            )
        else:
            fields[name] = each[0]
    return type(first)(**fields)


def _aligned(every: Sequence[Tensor], own: int, leading: torch.Size) -> Tensor:
    """Tensors with so many own axes behind the leading ones, stacked."""
    last = [(*(1,) * (own - x.dim()), *x.shape[max(x.dim() - own, 0) :]) for x in every]
    shape = common_shape(*last)
    return torch.stack([x.expand(*leading, *shape) for x in every])


def capture_data(layers: Captured | Mapping[str, Captured], coords: Mapping[str, Sequence[Any]] | None = None) -> Any:
    """Lay out captured attention as labelled arrays:
    the group ``captured`` of ``arviz.InferenceData`` (``xarray.DataTree`` in ArviZ 1.x).

    Parameters
    ----------
    layers
        One `Captured`, or what `inspection.capture` returned, if its layers have one shape.
    coords
        Labels of dimensions, such as ``{"query": tokens, "unit": tokens}``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        ``attention`` (.., query, unit), ``entropy``, ``effective_units`` and ``present`` (.., query), ``queries`` (..,
        query, feature), ``values`` (.., unit, answer), and ``keys`` (.., unit, feature) or (.., unit, component,
        feature) as written. Where attention is the posterior of a density, of the mixture (the best equivalent; as
        written of ``captured.raw``): ``log_evidence`` (.., query) and ``weights`` (.., query, unit); and ``scale``, of
        the dot products as written, where units share it. A query that may attend to nothing has attention and weights
        0, log evidence -inf.

    Raises
    ------
    ValueError
        Layers that do not stack; too few queries for the best equivalent.
    """
    one = layers if isinstance(layers, Captured) else stack_layers(layers)
    asked, attention = one._asked.shape[:-2], one.attention()
    arrays: dict[str, tuple[Tensor, tuple[str, ...]]] = {
        "attention": (attention, ("query", "unit")),
        "entropy": (one.entropy(), ("query",)),
        "effective_units": (one.effective_units(), ("query",)),
        "present": (one.present, ("query",)),
        "queries": (one.queries, ("query", "feature")),
    }
    alone = ("query",) * (len(asked) - len(one.dims))  # every query has units of its own
    for name, x in (("keys", one.keys), ("values", one.values)):
        if x is not None:
            axes = one.written.axes(one.key_name if name == "keys" else name)
            arrays[name] = (x.expand(*asked, *x.shape[-len(axes) :]), (*alone, *axes))
    if one.has_density:
        if torch.atleast_1d(one.scale).shape[-1] == 1 and not alone:
            arrays["scale"] = (one.scale.reshape(one.scale.shape[:-1]).expand(one.queries.shape[:-2]), ())
        weights = one._answered(one.mixture.log_weights().exp(), 1)
        weights = weights.unflatten(-1, (attention.shape[-1], -1)).sum(-1).expand(attention.shape)
        arrays["weights"] = (torch.where(one._alive().unsqueeze(-1), weights, 0.0), ("query", "unit"))
        arrays["log_evidence"] = (one.log_evidence(), ("query",))
    group: dict[str, Variable] = {name: ((*one.dims, *axes), x.cpu().numpy()) for name, (x, axes) in arrays.items()}
    return from_arrays({"captured": group}, {**one.coords, **(coords or {})})
