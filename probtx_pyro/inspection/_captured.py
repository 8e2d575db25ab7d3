"""A look inside a trained transformer: what its attention computes, as the mixture that softmax assumes.

Softmax attention with scale α is the exact posterior of ``p(q) = Σ_j π_j N(q; k_j, I/α)`` with ``π_j ∝ exp(α|k_j|²/2)`` (PT eq. 16,
20); a mask, or a position term, multiplies π. So real queries, keys and masks name a mixture, and everything a mixture has.

Attention names it up to origin and spread only: keys ``(α k_j + b)/a`` with precision a have the same attention for every b and a > 0,
and another evidence. What is captured is the mixture as the layer's weights write it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from probtx_pyro._brief import in_brief
from probtx_pyro.models import GaussianMixture
from probtx_pyro.models._plates import plate_names
from probtx_pyro.models._validation import broadcastable, finite
from probtx_pyro.results._arviz import Variable, from_arrays


@dataclass(frozen=True, eq=False, repr=False)
class Captured:
    """Queries, keys and attention that every head of a layer computed, in double precision. See `captured`, `inspection.capture`.

    queries: (..., Q, D).
    mixture: softmax's implied mixture; keys (..., U, D), values (..., U, M) or None.
    mask: the log weights that were added to the logits, (..., 1 or Q, U); None where nothing was.
    present: which queries count, boolean (..., Q): neither padding nor without any unit to attend to.
    dims: names of the leading axes, such as ``("batch", "head")``.
    coords: labels of dimensions, such as the names of the layers.
    """

    queries: Tensor
    mixture: GaussianMixture
    mask: Tensor | None
    present: Tensor
    dims: tuple[str, ...]
    coords: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    __repr__ = in_brief

    @property
    def keys(self) -> Tensor:
        """(..., U, D)."""
        return self.mixture.keys

    @property
    def values(self) -> Tensor | None:
        """(..., U, M)."""
        return self.mixture.values

    @property
    def scale(self) -> Tensor:
        """Scale of the dot products, the precision α of the mixture: a scalar, or (..., 1)."""
        return self.mixture.key_precision

    def attention(self) -> Tensor:
        """(..., Q, U), rows on the simplex; 0 for a query that may attend to nothing."""
        return torch.where(self._alive().unsqueeze(-1), self.mixture.attention(self.queries), 0.0)

    def entropy(self) -> Tensor:
        """Entropy of each row of attention in nats, (..., Q)."""
        return torch.special.entr(self.attention()).sum(-1)

    def effective_units(self) -> Tensor:
        """``exp(entropy)``, over how many units a query spreads, (..., Q); 0 for a query that may attend to nothing."""
        return torch.where(self._alive(), self.entropy().exp(), 0.0)

    def log_evidence(self) -> Tensor:
        """``log p(q_i)`` under the implied mixture, (..., Q); -inf for a query that may attend to nothing."""
        return torch.where(self._alive(), self.mixture.log_evidence(self.queries), -torch.inf)

    def _alive(self) -> Tensor:
        """Which queries may attend to anything, broadcast to (..., Q)."""
        return torch.ones_like(self.present) if self.mask is None else (self.mask > -torch.inf).any(-1)


def captured(
    queries: Tensor,
    keys: Tensor,
    values: Tensor | None = None,
    mask: Tensor | None = None,
    scale: Tensor | float | None = None,
    *,
    padded: Tensor | None = None,
    dims: Sequence[str] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
) -> Captured:
    """The mixture that softmax assumes, from the projected queries, keys and values of any attention.

    Parameters
    ----------
    queries, keys, values
        (..., Q, D), (..., U, D), (..., U, M); the leading axes broadcast.
    mask
        (..., 1 or Q, U), what is added to the logits: 0 where a unit may be attended to, -inf where not, or position terms.
    scale
        What multiplies the dot products, positive: a number, or a tensor (..., 1) over the leading axes; None is ``1/sqrt(D)``.
    padded
        Boolean (..., Q): queries that are padding themselves, which no check counts.
    dims
        Names of the leading axes; None names them as the Pyro plates, ``batch`` and ``head``. Checks pool over the axes whose
        names begin with ``batch`` and keep the others apart.
    coords
        Labels of dimensions, such as ``{"layer": names}``.

    Returns
    -------
    Captured

    Raises
    ------
    ValueError
        A mask that is boolean or of another shape, a scale that is not positive, dims that do not count the leading axes,
        NaN or infinity in a query that counts, or in keys or values.

    Examples
    --------
    >>> from probtx_pyro.data.text_transformer import load
    >>> heads = load().heads("a class is")
    >>> future = torch.full((10, 10), -torch.inf).triu(1)
    >>> found = captured(heads.queries, heads.keys, heads.values, future, dims=("layer", "head"))
    >>> bool((found.attention() - heads.attention).abs().max() < 1e-6)
    True

    References
    ----------
    Movellan & Gabbur 2020, eq. 16 and 20.
    """
    queries, keys = queries.detach().double(), keys.detach().double()
    values = None if values is None else values.detach().double()
    scale = queries.shape[-1] ** -0.5 if scale is None else scale
    scale = torch.as_tensor(scale, dtype=torch.float64, device=queries.device).detach()
    if scale.dim() and scale.shape[-1] != 1:
        raise ValueError(f"scale has shape {tuple(scale.shape)} but must be a number or end in 1; scale.unsqueeze(-1)?")
    if not bool((scale > 0).all()):
        raise ValueError("scale must be > 0; it is the precision of the implied mixture, 1/sqrt(D) for plain attention")
    mask = None if mask is None else _mask(mask, queries.shape[-2], keys.shape[-2])
    last_two = {"queries": queries, "keys": keys, "values": values, "mask": mask}
    shapes = {name: x.shape[:-2] for name, x in last_two.items() if x is not None}
    padded = torch.zeros((), dtype=torch.bool, device=queries.device) if padded is None else padded
    leading = broadcastable(**shapes, scale=scale.shape[:-1], padded=padded.shape[:-1])
    dims = tuple(plate_names(len(leading)) if dims is None else dims)
    if len(dims) != len(leading):
        raise ValueError(f"dims names {len(dims)} axes but there are {len(leading)} leading ones; name each once")
    queries = queries.expand(*leading, *queries.shape[-2:])
    present, log_prior = (~padded).expand(queries.shape[:-1]), mask
    if mask is not None:
        alive = (mask > -torch.inf).any(-1)
        present = present & alive
        log_prior = torch.where(alive.unsqueeze(-1), mask, 0.0)
    queries = torch.where(present.unsqueeze(-1) | queries.isfinite(), queries, 0.0)  # padding may hold anything
    finite(queries=queries, keys=keys, values=values)
    mixture = GaussianMixture.linked(keys, values, scale, 0.0, log_prior)
    return Captured(queries, mixture, mask, present, dims, dict(coords or {}))


def _mask(mask: Tensor, num_queries: int, num_units: int) -> Tensor:
    if not mask.is_floating_point():
        raise ValueError(
            f"mask must be what is added to the logits, not {mask.dtype}; from a boolean, torch.zeros(mask.shape).masked_fill(forbidden, -torch.inf)"
        )
    if mask.dim() < 2 or mask.shape[-2] not in (1, num_queries) or mask.shape[-1] != num_units:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)} but must end in (1, {num_units}) or ({num_queries}, {num_units}): queries by units"
        )
    mask = mask.detach().double()
    if bool((mask.isnan() | (mask == torch.inf)).any()):
        raise ValueError("mask contains NaN or +infinity; use 0 and -inf, or finite position terms")
    return mask


def stack_layers(layers: Mapping[str, Captured]) -> Captured:
    """Layers of equal shapes as one, with a leading axis ``layer`` that carries their names.

    Raises
    ------
    ValueError
        No layer, or layers that differ in shape or in their leading axes.
    """
    every = list(layers.values())
    shapes = {name: (x.dims, x.queries.shape, x.keys.shape) for name, x in layers.items()}
    if len(set(shapes.values())) != 1:
        listed = ", ".join(f"{name} {tuple(queries)} {tuple(keys)}" for name, (_, queries, keys) in shapes.items())
        raise ValueError(
            f"layers must have one shape of queries and keys, not {listed or 'none'}; take like layers only"
        )
    leading = every[0].queries.shape[:-2]

    def stacked(tensors: Sequence[Tensor]) -> Tensor:
        return torch.stack([x.expand(*leading, *x.shape[-2:]) for x in torch.broadcast_tensors(*tensors)])

    free = every[0].queries.new_zeros(1, every[0].keys.shape[-2])
    masks = [free if x.mask is None else x.mask for x in every]
    values = [x.values for x in every if x.values is not None]
    return captured(
        stacked([x.queries for x in every]),
        stacked([x.keys for x in every]),
        stacked(values) if len(values) == len(every) else None,
        stacked(masks) if any(x.mask is not None for x in every) else None,
        torch.stack([x.scale.expand(*leading, 1) for x in every]),
        padded=~torch.stack([x.present for x in every]),
        dims=("layer", *every[0].dims),
        coords={**every[0].coords, "layer": list(layers)},
    )


def capture_data(layers: Captured | Mapping[str, Captured], coords: Mapping[str, Sequence[Any]] | None = None) -> Any:
    """Lay out captured attention as labelled arrays: the group ``captured`` of ``arviz.InferenceData`` (``xarray.DataTree`` in ArviZ 1.x).

    Parameters
    ----------
    layers
        One `Captured`, or what `inspection.capture` returned, if its layers have one shape.
    coords
        Labels of dimensions, such as ``{"query": tokens, "unit": tokens}``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        ``attention`` (.., query, unit), ``weights`` of the implied mixture (.., query, unit), ``entropy``, ``effective_units``,
        ``log_evidence`` and ``present`` (.., query), ``queries`` (.., query, feature), ``keys`` (.., unit, feature), ``values``
        (.., unit, answer), ``scale``. A query that may attend to nothing has attention and weights 0, log evidence -inf.
    """
    one = layers if isinstance(layers, Captured) else stack_layers(layers)
    leading, units = one.queries.shape[:-2], one.keys.shape[-2]
    weights = torch.where(one._alive().unsqueeze(-1), one.mixture.log_weights().exp(), 0.0)
    arrays: dict[str, tuple[Tensor, tuple[str, ...]]] = {
        "attention": (one.attention(), ("query", "unit")),
        "weights": (weights.expand(*leading, one.queries.shape[-2], units), ("query", "unit")),
        "entropy": (one.entropy(), ("query",)),
        "effective_units": (one.effective_units(), ("query",)),
        "log_evidence": (one.log_evidence(), ("query",)),
        "present": (one.present, ("query",)),
        "queries": (one.queries, ("query", "feature")),
        "keys": (one.keys.expand(*leading, *one.keys.shape[-2:]), ("unit", "feature")),
        "scale": ((one.scale.squeeze(-1) if one.scale.dim() else one.scale).expand(leading), ()),
    }
    if one.values is not None:
        arrays["values"] = (one.values.expand(*leading, *one.values.shape[-2:]), ("unit", "answer"))
    group: dict[str, Variable] = {name: ((*one.dims, *axes), x.cpu().numpy()) for name, (x, axes) in arrays.items()}
    return from_arrays({"captured": group}, {**one.coords, **(coords or {})})
