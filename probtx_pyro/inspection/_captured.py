"""A look inside a trained transformer: what its attention computes, as the formulation whose posterior it is.

Softmax attention with scale α is the exact posterior of ``p(q) = Σ_j π_j N(q; k_j, I/α)`` with ``π_j ∝ exp(α|k_j|²/2)``
(PT eq. 16, 20); a mask, or a position term, multiplies π. So real queries, keys and masks name a mixture, and
everything a mixture has.

They name it up to a tilt b and a precision P only: the mixture with keys ``P⁻¹(α k_j + b)`` and precision P has the
same attention, whatever b and P are, and another evidence. So evidence, draws and checks are of the *best equivalent*
mixture, that of the likeliest b and P, unless the one that the layer's weights write is asked for by name,
`Captured.raw`. docs/mathematics.md, section 2.10.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from probtx_pyro._brief import in_brief
from probtx_pyro.inspection._gauge import METRICS, Gauge, Head, Prior, Priors, fit
from probtx_pyro.models import Formulation, GaussianMixture, Mixture
from probtx_pyro.models._distributions import MixtureDensity
from probtx_pyro.models._plates import plate_names
from probtx_pyro.models._validation import broadcastable, finite, positive_definite, same_size
from probtx_pyro.models.priors import FLAT
from probtx_pyro.ops._numerics import common_shape
from probtx_pyro.results._arviz import Variable, from_arrays

Coords: TypeAlias = Mapping[str, Sequence[object]]
Units = TypeVar("Units", bound="Formulation | Softmax")
Kind = TypeVar("Kind", bound=type)


class _Double:
    """A field that keeps a tensor in the precision in which it came, and gives it in double."""

    def __init__(self, name: str):
        self.name = name

    def __get__(self, one: object, kind: object = None) -> Any:
        if one is None:
            return self
        held = vars(one)[self.name]
        return held if held is None else held.double()

    def __set__(self, one: object, value: Tensor | None) -> None:
        vars(one)[self.name] = value


def _in_double(*names: str) -> Callable[[Kind], Kind]:
    """Make fields of a dataclass `_Double`: a model in single precision is kept in half of the memory."""

    def decorate(kind: Kind) -> Kind:
        for name in names:
            setattr(kind, name, _Double(name))
        return kind

    return decorate


@_in_double("keys", "values")
@dataclass(frozen=True, eq=False, repr=False)
class Softmax:
    """Units of a softmax of ``scale q·k``: keys (..., U, D), values (..., U, M) or None, scale () or (..., 1)."""

    keys: Tensor
    values: Tensor | None
    scale: Tensor

    __repr__ = in_brief

    def logits(self, queries: Tensor, mask: Tensor) -> Tensor:
        """(..., Q, U)."""
        return self.scale.unsqueeze(-1) * queries @ self.keys.mT + mask

    def attention(self, queries: Tensor, mask: Tensor) -> Tensor:
        """(..., Q, U); NaN for a query that may attend to nothing."""
        return self.logits(queries, mask).softmax(-1)

    def mixture(self, mask: Tensor) -> GaussianMixture:
        """The mixture whose attention it is (PT eq. 16), with equal weights for a query that may attend to nothing."""
        opened = torch.where((mask > -torch.inf).any(-1, keepdim=True), mask, 0.0)
        return GaussianMixture.linked(self.keys, self.values, self.scale, 0.0, opened)


@_in_double("queries")
@dataclass(frozen=True, eq=False, repr=False)
class Captured:
    """Queries and attention that every head of a layer computed, in double precision: kept as they came, and
    converted where they are asked for. See `captured`, `inspection.capture`.

    queries: (..., Q, D).
    units: what the queries attend to: those of a `Softmax`, or the formulation of another layer. Where that has an
        axis of queries behind the leading ones, every query has units of its own.
    mask: the log weights that were added to the logits, (..., 1 or Q, U), with an axis for each leading one, of size 1
        where its members share them; 0 where nothing was, -inf where a unit is hidden.
    present: which queries count, boolean (..., Q): neither padding nor without any unit to attend to.
    dims: names of the leading axes, such as ``("batch", "head")``.
    coords: labels of dimensions, such as the names of the layers.
    chosen: the mixture that evidence is of; None is the best equivalent, found when it is first asked for.
    options: what ``written.attention`` takes beyond queries.
    """

    queries: Tensor
    units: Softmax | Formulation
    mask: Tensor
    present: Tensor
    dims: tuple[str, ...]
    coords: Coords = field(default_factory=dict)
    chosen: GaussianMixture | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    __repr__ = in_brief

    @property
    def written(self) -> Formulation:
        """The formulation whose attention it is, as the layer's weights write it: softmax's `GaussianMixture` with
        keys (..., U, D) and values (..., U, M) or None, or what another layer is. That of a softmax has a weight for
        each query and unit, so it is written anew whenever it is asked for, and not kept.
        """
        return self.units.mixture(self.mask) if isinstance(self.units, Softmax) else self.units

    @property
    def keys(self) -> Tensor:
        """The keys as written, (..., U, D); (..., U, R, D) for several to a unit."""
        return getattr(self.units, self.key_name)

    @property
    def key_name(self) -> str:
        """Name of the keys in the formulation, the first of its parameters."""
        return "keys" if isinstance(self.units, Softmax) else next(iter(self.units.PARAMETERS))

    @property
    def values(self) -> Tensor | None:
        """(..., U, M)."""
        return getattr(self.units, "values", None)

    @property
    def scale(self) -> Tensor:
        """The scale of the dot products, α as written: a scalar, or (..., 1)."""
        return self.units.scale if isinstance(self.units, Softmax) else self.as_written.key_precision

    def without(self, padded: Tensor) -> "Captured":
        """The same with queries that do not count left out: boolean, broadcast to (..., Q)."""
        fields = {name: vars(self)[name] for name in self.__dataclass_fields__}
        return type(self)(**fields | {"present": self.present & ~padded})

    def select(self, **indexers: Any) -> "Captured":
        """Take a part by the names of the leading axes, as ``isel`` of xarray does.

        Parameters
        ----------
        indexers
            By name of an axis: a position, which drops the axis, or a slice or a list of positions, which keep it. A
            label, or a list of labels, stands for its position where ``coords`` has them, as for layers that were
            stacked.

        Returns
        -------
        Captured
            With its part of the mask, the formulation, the mixture that was chosen and the labels. Of a
            `BestEquivalent` a plain one, whose evidence is still that of the mixture found from all queries.

        Raises
        ------
        ValueError
            An axis that is not there, a position out of range, a label that is not known, nothing selected.

        Examples
        --------
        >>> one = captured(torch.randn(3, 2, 5, 4), torch.randn(3, 2, 6, 4))
        >>> part = one.select(batch=slice(0, 2), head=1)
        >>> part.dims, part.attention().shape
        (('batch',), torch.Size([2, 5, 6]))
        """
        unknown = [name for name in indexers if name not in self.dims]
        if unknown:
            raise ValueError(f"select: no axis {unknown[0]!r}; there are {', '.join(self.dims) or 'none'}")
        found = self._plain()
        for name, asked in indexers.items():
            size, labels = found.present.shape[found.dims.index(name)], found.coords.get(name)
            taken = _positions(name, asked, size, None if labels is None else list(labels))
            found = found._taken(name, taken)
        return found

    def _taken(self, name: str, taken: int | list[int]) -> "Captured":
        """Positions on one leading axis; a single one drops it."""
        axis, places = self.dims.index(name), [taken] if isinstance(taken, int) else taken
        size, behind = self.present.shape[axis], len(self.dims) - axis  # from the right, as broadcasting counts

        def part(x: Tensor, own: int) -> Tensor:
            at = x.dim() - own - behind
            if at < 0:
                return x
            if x.shape[at] == size:  # else 1, shared
                x = x.index_select(at, torch.tensor(places, device=x.device))
            return x.squeeze(at) if isinstance(taken, int) else x

        def of_units(units: Units) -> Units:
            own = _own_axes(units)
            fields = {
                key: part(x, own[key] + self._alone) if key in own and isinstance(x, Tensor) else x
                for key, x in vars(units).items()
            }
            return type(units)(**fields)

        coords = {key: labels for key, labels in self.coords.items() if key != name}
        if not isinstance(taken, int) and name in self.coords:
            coords[name] = [self.coords[name][place] for place in places]
        dims = self.dims[:axis] + (() if isinstance(taken, int) else (name,)) + self.dims[axis + 1 :]
        chosen = None if self.chosen is None else of_units(self.chosen)
        present, queries = part(self.present, 1), part(vars(self)["queries"], 2)
        return Captured(queries, of_units(self.units), part(self.mask, 2), present, dims, coords, chosen, self.options)

    # -- attention, which no choice of mixture changes -----------------------------------------------------------------

    def attention(self) -> Tensor:
        """(..., Q, U), rows on the simplex; 0 for a query that may attend to nothing."""
        if isinstance(self.units, Softmax):
            weights = self.units.attention(self.queries, self.mask)
        else:
            weights = self._answered(self.units.attention(self._asked, **self.options), 1)
        return torch.where(self._alive().unsqueeze(-1), weights, 0.0)

    def entropy(self) -> Tensor:
        """Entropy of each row of attention in nats, (..., Q)."""
        return torch.special.entr(self.attention()).sum(-1)

    def effective_units(self) -> Tensor:
        """``exp(entropy)``, over how many units a query spreads, (..., Q); 0 for a query that may attend to nothing."""
        return torch.where(self._alive(), self.entropy().exp(), 0.0)

    def logits(self) -> Tensor:
        """``α q_i·k_j + mask``, of which attention is the softmax, (..., Q, U).

        Raises
        ------
        ValueError
            A layer of another kind than softmax.
        """
        if not isinstance(self.units, Softmax):
            raise ValueError(f"the layer is a {type(self.units).__name__}; only a softmax of dot products has logits")
        return self.units.logits(self.queries, self.mask)

    def with_background(
        self, logit: Tensor | float, value: Tensor | None = None, *, instead_of: int | None = None
    ) -> "Captured":
        """The same with a background: one more unit, the last, whose logit is the same for every query and mask.

        docs/mathematics.md (2.25). With ``instead_of`` it takes the place of a unit that is there, such as a sink.

        Parameters
        ----------
        logit
            A number, or (*heads): the leading axes without those of the batch.
        value
            Its answer, (M,) or (*heads, M); None is 0, or that of the unit that it replaces.
        instead_of
            Index of the unit; the background is open to the queries that the unit is open to.

        Raises
        ------
        ValueError
            A layer of another kind than softmax; a unit that is not there; shapes that do not fit.
        """
        keys, values, mask, heads = self.keys, self.values, self.mask, self._head_shape
        logits = self.logits()
        own = self._beside(_expanded("logit", logit, heads).to(logits), 0)[..., None, None]
        at = keys.shape[-2] if instead_of is None else unit_at("instead_of", instead_of, self)
        if instead_of is None:
            keys, mask = F.pad(keys, (0, 0, 0, 1)), F.pad(mask, (0, 1))
            values = None if values is None else F.pad(values, (0, 0, 0, 1))
        place = torch.arange(keys.shape[-2], device=keys.device) == at
        keys = torch.where(place.unsqueeze(-1), 0.0, keys)
        mask = torch.where(place & (mask > -torch.inf), own, mask)
        if values is not None and value is not None:
            answer = self._beside(_expanded("value", value, (*heads, values.shape[-1])).to(values), 1).unsqueeze(-2)
            values = torch.where(place.unsqueeze(-1), answer, values)
        return captured(
            self.queries, keys, values, mask, self.scale, padded=~self.present, dims=self.dims, coords=self.coords
        )

    # -- the mixture, of which evidence and draws are ------------------------------------------------------------------

    @property
    def has_density(self) -> bool:
        """True if the attention is the posterior of a density of queries: not of linear keys,
        a sparse memory or a hard assignment.
        """
        units = self.units
        return isinstance(units, Softmax) or (
            isinstance(units, Mixture) and not self.options and units.offers("log_evidence")
        )

    @property
    def as_written(self) -> GaussianMixture:
        """The mixture that the layer's weights write, units of several keys laid out flat.

        Raises
        ------
        ValueError
            The attention is the posterior of no density of queries.
        """
        written = self.written
        if not self.has_density or not isinstance(written, Mixture) or not isinstance(written.flat, GaussianMixture):
            kind = type(self.written).__name__
            raise ValueError(f"the attention of this {kind} is the posterior of no density of queries: no evidence")
        return written.flat

    @property
    def raw(self) -> "Captured":
        """The same with the mixture as the layer's weights write it, instead of the best equivalent."""
        return self._plain(chosen=self.as_written)

    @cached_property
    def mixture(self) -> GaussianMixture:
        """The mixture that evidence is of: the best equivalent (`best_equivalent`, scalar metric),
        or the one chosen.
        """
        if self.chosen is not None:
            return self.chosen
        found = self.equivalent(*self.gauge("scalar")[:2]).chosen
        assert found is not None
        self._warn_if_few("scalar")
        return found

    def log_evidence(self) -> Tensor:
        """``log p(q_i)`` under the mixture, (..., Q); -inf for a query that may attend to nothing."""
        return torch.where(self._alive(), self._answered(self.mixture.log_evidence(self._asked), 0), -torch.inf)

    def placed(self) -> tuple[Tensor, Tensor]:
        """Queries (..., Q, D) and means of the mixture's units (..., U, D) where its metric is the plain inner product.

        Where every query has units of its own, (..., Q, 1, D) and (..., Q, U, D).
        """
        return self.mixture.placed(self._asked)

    def replicate(self) -> "Captured":
        """The same with queries drawn from the mixture, from torch's generator."""
        asked = self._asked
        density = MixtureDensity(self.mixture, asked.shape[-2], validate_args=False).expand(asked.shape[:-1])
        return replace(self, queries=self._answered(density.sample(), 1), chosen=self.mixture)

    def equivalent(self, tilt: Tensor, precision: Tensor) -> "Captured":
        """The same attention, told by the mixture of a tilt b and a precision P:
        logits ``α k_j·q`` make its keys ``P⁻¹(α k_j + b)``.

        Parameters
        ----------
        tilt
            b, (*heads, D): the leading axes without those of the batch.
        precision
            P: positive numbers (*heads), diagonals (*heads, D) or matrices (*heads, D, D).

        Raises
        ------
        ValueError
            Shapes that do not fit; a metric for units whose precisions differ, which can share a scalar only.
        """
        heads = len(self._heads)
        tilt, precision = (x.to(self.queries) for x in (tilt, precision))
        kind = {1: "scalar", 0: "diagonal", -1: "full"}.get(tilt.dim() - precision.dim())
        if kind is None or tilt.dim() != heads + 1:
            raise ValueError("tilt must have shape (*heads, D), precision (*heads), (*heads, D) or (*heads, D, D)")
        flat = self.as_written
        slopes, logits, excess = _natural(flat, kind)
        pull = slopes + self._beside(tilt, 1).unsqueeze(-2)
        if kind == "scalar":
            number = self._beside(precision, 0).unsqueeze(-1)
            each = number if excess is None else number + excess
            keys, size = pull / each.unsqueeze(-1), 0.5 * slopes.shape[-1] * each.log()
            own: dict[str, Any] = {"key_precision": each, "metric": None}
        else:
            metric = self._beside(precision, 1 if kind == "diagonal" else 2)
            matrix = metric.diag_embed() if kind == "diagonal" else metric
            positive_definite("precision", matrix, slopes.shape[-1])
            root = torch.linalg.cholesky(matrix)
            keys, size = torch.cholesky_solve(pull.mT, root).mT, root.diagonal(dim1=-2, dim2=-1).log().sum(-1, True)
            own = {"key_precision": metric.new_ones(()), "metric": metric}
        weights = logits + (0.5 * (pull * keys).sum(-1) - size).unsqueeze(-2)
        own |= {"keys": keys, "shift": None, "diagonal_metric": kind == "diagonal"}
        return self._plain(chosen=flat.replace(log_prior=weights.log_softmax(-1), **own))

    def gauge(self, metric: str, tilt: Prior = None, precision: Prior = None) -> Gauge:
        """The likeliest b and P of every head, with leading axes (*heads);
        arguments as those of `inspection.best_equivalent`.
        """
        if metric not in METRICS:
            raise ValueError(f"metric must be one of {', '.join(METRICS)}, not {metric!r}")
        (slopes, logits, excess), features = _natural(self.as_written, metric), self.queries.shape[-1]
        count = (self.present.unsqueeze(-1) if self._alone else self.present).double()
        parts = {"queries": (self._asked, 2), "counted": (count, 1), "slopes": (slopes, 2), "logits": (logits, 2)}
        parts |= {} if excess is None else {"excess": (excess, 1)}
        leading = self._asked.shape[:-2]  # queries with units of their own are examples
        first = [i for i, name in enumerate(self.dims) if not name.startswith("batch")]
        order = [*first, *(i for i in range(len(leading)) if i not in first)]
        heads = torch.Size([leading[i] for i in first])

        def laid_out(x: Tensor, own: int) -> Tensor:
            """(*heads, examples, own axes)."""
            x = x.detach().expand(*leading, *x.shape[x.dim() - own :]).cpu()
            return x.permute(*order, *range(len(order), x.dim())).reshape(*heads, -1, *x.shape[len(order) :])

        tensors = {name: laid_out(*part) for name, part in parts.items()}
        priors, found = Priors.of(metric, features, heads, tilt, precision), []
        for index in np.ndindex(*heads):
            label = ", ".join(f"{name} {i}" for name, i in zip(self._heads, index, strict=True)) or "the head"
            head = Head(**{name: x[index] for name, x in tensors.items()})
            found.append(fit(head, metric, priors.head(index), label))
        columns = zip(*found, strict=True)
        gauge = [torch.stack([torch.as_tensor(x) for x in each]).unflatten(0, heads or (1,)) for each in columns]
        gauge = [(x if heads else x[0]).to(self.queries.device) for x in gauge]
        return Gauge(*gauge)  # type: ignore[arg-type]

    def _warn_if_few(self, metric: str, tilt: Prior = None, precision: Prior = None) -> None:
        """Warn where a head has fewer than five queries that count for each number of b and P without a prior."""
        features = self.queries.shape[-1]
        numbers = (tilt is None or tilt is FLAT) * features
        numbers += (precision is None or precision is FLAT) * METRICS[metric](features).numbers[0]
        fewest = int(self._pooled(self.present).min())
        if fewest < 5 * numbers:
            told = f"best_equivalent: a head has {fewest} queries that count for {numbers} numbers of b and P ({metric} metric)"
            repair = "capture more text, give priors (tilt=, precision=) or take a metric with fewer numbers"
            warnings.warn(f"{told}, fewer than five a number; other queries will fit worse: {repair}", stacklevel=3)

    def _pooled(self, x: Tensor) -> Tensor:
        """Sum over the queries and the axes of the batch, (..., Q, own axes) to (*heads, own axes)."""
        batch = [i for i, name in enumerate(self.dims) if name.startswith("batch")]
        return x.sum([*batch, len(self.dims)])

    # -- how it is laid out --------------------------------------------------------------------------------------------

    def _plain(self, **changes: Any) -> "Captured":
        return Captured(**{name: vars(self)[name] for name in Captured.__dataclass_fields__} | changes)

    def _alive(self) -> Tensor:
        """Which queries may attend to anything, broadcast to (..., Q)."""
        return (self.mask > -torch.inf).any(-1)

    @property
    def _alone(self) -> bool:
        """True if every query has units of its own."""
        return not isinstance(self.units, Softmax) and len(self.units.batch_shape) > len(self.dims)

    @property
    def _asked(self) -> Tensor:
        return self.queries.unsqueeze(-2) if self._alone else self.queries

    def _answered(self, x: Tensor, own: int) -> Tensor:
        """Answers for the queries, (..., Q, own axes)."""
        return x.squeeze(-own - 1) if self._alone else x

    @property
    def _heads(self) -> tuple[str, ...]:
        """The leading axes that are not pooled."""
        return tuple(name for name in self.dims if not name.startswith("batch"))

    @property
    def _head_shape(self) -> tuple[int, ...]:
        sizes = zip(self.dims, self.present.shape, strict=False)
        return tuple(size for name, size in sizes if not name.startswith("batch"))

    def _beside(self, x: Tensor, own: int) -> Tensor:
        """Lay (*heads, own axes) out beside what the formulation has,
        with axes of size 1 for the batch (and for queries with units of their own).
        """
        sizes = iter(x.shape)
        leading = [1 if name.startswith("batch") else next(sizes) for name in self.dims] + [1] * self._alone
        return x.reshape((*leading, *x.shape[x.dim() - own :]))


def _natural(flat: GaussianMixture, metric: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Logits ``m_ij + a_j·q - ½ e_j|q|²`` of the attention: slopes a (.., U, D), m (.., 1 or Q, U), e (.., U) or None
    where it is 0.
    """
    features = flat.keys.shape[-1]
    precision = torch.atleast_1d(flat.key_precision)
    excess = precision - precision.amin(-1, keepdim=True)
    at = flat.locations
    slopes = precision.unsqueeze(-1) * at
    if flat.metric is not None:
        slopes = slopes * flat.metric.unsqueeze(-2) if flat.diagonal_metric else slopes @ flat.metric
    own = 0.5 * features * precision.log() - 0.5 * (slopes * at).sum(-1)
    logits = flat.log_weights() + own.unsqueeze(-2)
    if not excess.any():
        return slopes, logits, None
    if flat.metric is not None or metric != "scalar":
        raise ValueError("metric: units whose precisions differ have no equivalents in one; take captured.raw")
    return slopes, logits, excess


def captured(
    queries: Tensor,
    keys: Tensor,
    values: Tensor | None = None,
    mask: Tensor | None = None,
    scale: Tensor | float | None = None,
    *,
    padded: Tensor | None = None,
    dims: Sequence[str] | None = None,
    coords: Coords | None = None,
) -> Captured:
    """The mixture that softmax assumes, from the projected queries, keys and values of any attention.

    Parameters
    ----------
    queries, keys, values
        (..., Q, D), (..., U, D), (..., U, M); the leading axes broadcast.
    mask
        (..., 1 or Q, U), what is added to the logits: 0 where a unit may be attended to, -inf where not, or position
        terms.
    scale
        What multiplies the dot products, positive: a number, or a tensor (..., 1) over the leading axes; None is
        ``1/sqrt(D)``.
    padded
        Boolean (..., Q): queries that are padding themselves, which no check counts.
    dims
        Names of the leading axes; None names them as the Pyro plates, ``batch`` and ``head``. Checks pool over the axes
        whose names begin with ``batch`` and keep the others apart.
    coords
        Labels of dimensions, such as ``{"layer": names}``.

    Returns
    -------
    Captured

    Raises
    ------
    ValueError
        A mask that is boolean or of another shape, a scale that is not positive, dims that do not count the leading
        axes, NaN or infinity in a query that counts, or in keys or values.

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
    # what is captured stays as it is when a cache that a model keeps is written to
    queries, keys = queries.detach(), keys.detach().clone()  # queries are copied where they are cleaned
    values = None if values is None else values.detach().clone()
    scale = queries.shape[-1] ** -0.5 if scale is None else scale
    scale = torch.as_tensor(scale, dtype=torch.float64, device=queries.device).detach()
    if scale.dim() and scale.shape[-1] != 1:
        raise ValueError(f"scale has shape {tuple(scale.shape)} but must be a number or end in 1; scale.unsqueeze(-1)?")
    if not bool((scale > 0).all()):
        raise ValueError("scale must be > 0; it is the precision of the implied mixture, 1/sqrt(D) for plain attention")
    same_size("queries", queries.shape[-1], "keys", keys.shape[-1], "features")
    if values is not None:
        same_size("keys", keys.shape[-2], "values", values.shape[-2], "units")
    mask = queries.new_zeros(1, keys.shape[-2]) if mask is None else mask
    mask = _mask(mask, queries.shape[-2], keys.shape[-2])
    while dims is not None and mask.dim() > len(dims) + 2 and mask.shape[0] == 1:  # of what a part is taken from
        mask = mask.squeeze(0)
    last_two = {"queries": queries, "keys": keys, "values": values, "mask": mask}
    shapes = {name: x.shape[:-2] for name, x in last_two.items() if x is not None}
    padded = torch.zeros((), dtype=torch.bool, device=queries.device) if padded is None else padded
    leading = broadcastable(**shapes, scale=scale.shape[:-1], padded=padded.shape[:-1])
    dims = tuple(plate_names(len(leading)) if dims is None else dims)
    if len(dims) != len(leading):
        raise ValueError(f"dims names {len(dims)} axes but there are {len(leading)} leading ones; name each once")
    finite(keys=keys, values=values)
    return seen(queries.expand(*leading, *queries.shape[-2:]), Softmax(keys, values, scale), mask, padded, dims, coords)


def seen(
    queries: Tensor,
    units: Softmax | Formulation,
    mask: Tensor,
    padded: Tensor | None,
    dims: tuple[str, ...],
    coords: Coords | None = None,
    options: Mapping[str, Any] | None = None,
) -> Captured:
    """Put queries beside the units that they attended to; queries that do not count may hold anything."""
    mask = mask.reshape((1,) * (len(dims) + 2 - mask.dim()) + mask.shape)
    present = torch.ones(queries.shape[:-1], dtype=torch.bool, device=queries.device)
    present = present if padded is None else present & ~padded
    present = present & (mask > -torch.inf).any(-1)
    queries = torch.where(present.unsqueeze(-1) | queries.isfinite(), queries, 0.0)
    finite(queries=queries)
    return Captured(queries, units, mask, present, dims, dict(coords or {}), None, dict(options or {}))


def _mask(mask: Tensor, num_queries: int, num_units: int) -> Tensor:
    if not mask.is_floating_point():
        raise ValueError(f"mask must be what is added to the logits, 0 or -inf, not {mask.dtype}")
    if mask.dim() < 2 or mask.shape[-2] not in (1, num_queries) or mask.shape[-1] != num_units:
        raise ValueError(f"mask has shape {tuple(mask.shape)} but must end in (1 or {num_queries}, {num_units})")
    mask = additive(mask.detach())
    if bool((mask.isnan() | (mask == torch.inf)).any()):
        raise ValueError("mask contains NaN or +infinity; use 0 and -inf, or finite position terms")
    return mask


def additive(mask: Tensor) -> Tensor:
    """A mask in double precision, -inf where it hides a unit by the lowest number of single or half precision."""
    lowest = torch.finfo(torch.float16 if mask.dtype == torch.float16 else torch.float32).min
    hidden = mask <= lowest / 2  # position terms may have been added to it
    return mask.double().masked_fill(hidden, -torch.inf) if bool((hidden & mask.isfinite()).any()) else mask.double()


def unit_at(name: str, unit: int, one: Captured) -> int:
    """Index of a unit from 0."""
    units = one.keys.shape[-2]
    if not -units <= unit < units:
        raise ValueError(f"{name} must be from {-units} to {units - 1}, not {unit}")
    return unit % units


def _expanded(name: str, x: Tensor | float, shape: tuple[int, ...]) -> Tensor:
    x = torch.as_tensor(x)
    try:
        return x.expand(shape)
    except RuntimeError:
        raise ValueError(f"{name} has shape {tuple(x.shape)} but must broadcast to {shape}, one a head") from None


def _positions(name: str, asked: Any, size: int, labels: list[object] | None) -> int | list[int]:
    """Return the position that an indexer of `Captured.select` takes of an axis, or several."""

    def position(one: Any) -> int:
        if isinstance(one, str):
            if labels is None or one not in labels:
                known = "it has no labels" if labels is None else f"labels are {', '.join(map(str, labels))}"
                raise ValueError(f"select: {name} has no label {one!r}; {known}")
            return labels.index(one)
        if not hasattr(one, "__index__") or isinstance(one, bool):
            raise ValueError(f"select: {name} takes a position, a slice or a list of positions, not {one!r}")
        if not -size <= int(one) < size:
            raise ValueError(f"select: {name} has positions 0 to {size - 1}, not {one}")
        return int(one) % size

    asked = asked.tolist() if isinstance(asked, Tensor | np.ndarray) else asked
    if isinstance(asked, slice):
        several = list(range(size)[asked])
    elif isinstance(asked, Sequence) and not isinstance(asked, str):
        several = [position(one) for one in asked]
    else:
        return position(asked)
    if not several:
        raise ValueError(f"select: {asked!r} takes nothing of {name}, which has positions 0 to {size - 1}")
    return several


def stack_layers(layers: Mapping[str, Captured]) -> Captured:
    """Layers of equal shapes as one, with a leading axis ``layer`` that carries their names.

    Raises
    ------
    ValueError
        No layer, or layers that differ in shape or in their leading axes.
    """
    every = list(layers.values())
    softmax = all(isinstance(x.units, Softmax) for x in every)
    units = [x.units if softmax else x.written for x in every]
    kinds = zip(layers.items(), map(type, units), strict=True)
    shapes = {name: (x.dims, x.present.shape, x.queries.shape[-1], x.keys.shape, kind) for (name, x), kind in kinds}
    chosen = [x.chosen for x in every if x.chosen is not None]
    if len(set(shapes.values())) != 1 or len(chosen) not in (0, len(every)):
        listed = ", ".join(
            f"{name} {(*q, d)} {tuple(k)} {kind.__name__}" for name, (_, q, d, k, kind) in shapes.items()
        )
        raise ValueError(f"layers differ in shape, kind or choice of mixture: {listed or 'none'}; take like layers")
    masks = torch.broadcast_tensors(*(x.mask for x in every))
    shared = len({(x.data_ptr(), x.stride()) for x in masks}) == 1
    return Captured(
        torch.stack([vars(x)["queries"] for x in every]),
        _stacked(units, every[0]._asked.shape[:-2]),
        masks[0].unsqueeze(0) if shared else torch.stack(masks),
        torch.stack([x.present for x in every]),
        ("layer", *every[0].dims),
        {**every[0].coords, "layer": list(layers)},
        _stacked(chosen, every[0]._asked.shape[:-2]) if chosen else None,
        every[0].options,
    )


def _stacked(every: Sequence[Units], leading: torch.Size) -> Units:
    """Formulations of one kind as one, with a leading axis more."""
    first, fields, own = every[0], dict[str, Any](), _own_axes(every[0])
    for name in vars(first):
        each = [vars(one)[name] for one in every]
        if all(isinstance(x, Tensor) for x in each):
            fields[name] = _aligned(each, own[name], leading)
        elif name == "values":
            fields[name] = None  # some layers have none
        elif any(x is not each[0] and x != each[0] for x in each):
            raise ValueError(f"layers differ in {name}, so that they are no one {type(first).__name__}; take like ones")
        else:
            fields[name] = each[0]
    return type(first)(**fields)


def _own_axes(units: "Formulation | Softmax") -> dict[str, int]:
    """Count the axes that each field has behind those of the problems."""
    if isinstance(units, Softmax):
        return {"keys": 2, "values": 2, "scale": 1}
    return {row.field or name: len(units.row(name).names) for name, row in units.PARAMETERS.items()} | {"mask": 1}


def _aligned(every: Sequence[Tensor], own: int, leading: torch.Size) -> Tensor:
    """Tensors with so many own axes behind the leading ones, stacked."""
    last = [(*(1,) * (own - x.dim()), *x.shape[max(x.dim() - own, 0) :]) for x in every]
    shape = common_shape(*last)
    return torch.stack([x.expand(*leading, *shape) for x in every])


def capture_data(layers: Captured | Mapping[str, Captured], coords: Coords | None = None) -> Any:
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


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BestEquivalent(Captured):
    """A captured head as the mixture of the likeliest tilt b and precision P. See `best_equivalent`.

    tilt: b, (*heads, D), heads the leading axes without those of the batch.
    precision: P, (*heads), (*heads, D) or (*heads, D, D).
    tilt_error, precision_error: their standard errors, from the observed information; of the posterior's Laplace
        approximation under priors.
    num_steps: Newton steps, (*heads).
    fitted_on: what b and P were found from, where that is not what is shown; None is its own queries.
    """

    tilt: Tensor
    precision: Tensor
    tilt_error: Tensor
    precision_error: Tensor
    num_steps: Tensor
    fitted_on: Captured | None = None


def best_equivalent(
    captured: Captured | Mapping[str, Captured],
    metric: str = "scalar",
    *,
    on: Captured | Mapping[str, Captured] | None = None,
    tilt: Prior = None,
    precision: Prior = None,
) -> BestEquivalent:
    """Find the mixture with the captured attention under which the captured queries are likeliest.

    Every mixture with keys ``P⁻¹(α k_j + b)``, precision P and the weights that go with them has the attention of
    logits ``α k_j·q``. The likelihood is concave in b and P, so there is one maximum; there the mean of the queries,
    and their mean squares as far as ``metric`` says, are those of the mixture. The mixture as written is one of them:
    the evidence of a head never falls.

    Parameters
    ----------
    captured
        One `Captured`, or what `inspection.capture` returned, if its layers have one shape. Axes named ``batch`` share
        b and P.
    metric
        ``"scalar"``, P a number; ``"diagonal"``, D numbers; ``"full"``, D(D + 1)/2 numbers. b has D more. The more
        numbers, the more queries it takes to know them.
    on
        Other text that the same heads read: what is returned are its queries, keys and attention, under b and P of
        ``captured``, so that its evidence is that of queries which the fit has not seen. Axes named ``batch`` are its
        own. None is ``captured``.
    tilt
        Prior on b: a Normal. None is maximum likelihood.
    precision
        Prior on P: a Gamma of shape 1 or more, or, for a full metric, a Wishart of D + 1 or more degrees of freedom.
        None is maximum likelihood, which needs queries in general position: two for a scalar metric, D + 1 for a full
        one, and more to be of use.

    Returns
    -------
    BestEquivalent
        A `Captured` that goes wherever one does.

    Raises
    ------
    ValueError
        Too few queries, or queries in a subspace, without a prior; a metric or a prior that is not known; an attention
        that is the posterior of no density of queries; ``on`` with other heads or features.

    Warns
    -----
    UserWarning
        A head has fewer than five queries that count for each number of b and P that has no prior: its evidence is then
        much higher on its own queries than on others.

    Examples
    --------
    >>> import torch
    >>> from probtx_pyro.inspection import captured
    >>> _ = torch.manual_seed(0)
    >>> keys, queries = torch.randn(6, 2), 3 + torch.randn(200, 2)
    >>> found = captured(queries, keys)
    >>> best = best_equivalent(found)
    >>> bool((best.mixture.attention(best.queries) - found.attention()).abs().max() < 1e-8)
    True
    >>> bool(best.log_evidence().sum() > found.raw.log_evidence().sum())
    True
    >>> other = best_equivalent(found, on=captured(3 + torch.randn(50, 2), keys))
    >>> other.log_evidence().shape, bool((other.tilt == best.tilt).all())
    (torch.Size([50]), True)
    """
    one, shown = (x if isinstance(x, Captured) or x is None else stack_layers(x) for x in (captured, on))
    assert one is not None
    sizes = [
        [
            (name, n)
            for name, n in zip((*x.dims, "feature"), (*x.queries.shape[:-2], x.queries.shape[-1]), strict=True)
            if not name.startswith("batch")
        ]
        for x in (one, one if shown is None else shown)
    ]
    if sizes[0] != sizes[1]:
        raise ValueError(f"on has axes {dict(sizes[1])} but captured {dict(sizes[0])}; give what the same heads read")
    gauge = one.gauge(metric, tilt, precision)
    one._warn_if_few(metric, tilt, precision)
    told = (one if shown is None else shown).equivalent(gauge.tilt, gauge.precision)
    fields = {name: vars(told)[name] for name in Captured.__dataclass_fields__}
    return BestEquivalent(**fields, **gauge._asdict(), fitted_on=None if shown is None else one)
