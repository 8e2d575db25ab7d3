"""A look inside a trained transformer: what its attention computes, as the formulation whose posterior it is.

Softmax attention with scale α is the exact posterior of ``p(q) = Σ_j π_j N(q; k_j, I/α)`` with ``π_j ∝ exp(α|k_j|²/2)``
(PT eq. 16, 20); a mask, or a position term, multiplies π. So real queries, keys and masks name a mixture, and
everything a mixture has.

They name it up to a tilt b and a precision P only: the mixture with keys ``P⁻¹(α k_j + b)`` and precision P has the
same attention, whatever b and P are, and another evidence. So evidence, draws and checks are of the *best equivalent*
mixture, that of the likeliest b and P, unless the one that the layer's weights write is asked for by name,
`Captured.raw`. docs/mathematics.md, section 2.10.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probtx_pyro._brief import in_brief
from probtx_pyro.inspection._gauge import METRICS, Gauge, Head, Priors, fit
from probtx_pyro.models import Formulation, GaussianMixture, Mixture
from probtx_pyro.models._distributions import MixtureDensity
from probtx_pyro.models._plates import plate_names
from probtx_pyro.models._validation import broadcastable, finite, positive_definite


@dataclass(frozen=True, eq=False, repr=False)
class Captured:
    """Queries and attention that every head of a layer computed,
    in double precision. See `captured`, `inspection.capture`.

    queries: (..., Q, D).
    written: the formulation whose attention it is, as the layer's weights write it: softmax's `GaussianMixture` with
    keys (..., U, D)
        and values (..., U, M) or None, or what another layer is. Where it has an axis of queries behind the leading
        ones, every query has units of its own.
    mask: the log weights that were added to the logits, (..., 1 or Q, U); None where nothing was.
    present: which queries count, boolean (..., Q): neither padding nor without any unit to attend to.
    dims: names of the leading axes, such as ``("batch", "head")``.
    coords: labels of dimensions, such as the names of the layers.
    chosen: the mixture that evidence is of; None is the best equivalent, found when it is first asked for.
    options: what ``written.attention`` takes beyond queries.
    """

    queries: Tensor
    written: Formulation
    mask: Tensor | None
    present: Tensor
    dims: tuple[str, ...]
    coords: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    chosen: GaussianMixture | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    __repr__ = in_brief

    @property
    def keys(self) -> Tensor:
        """The keys as written, (..., U, D); (..., U, R, D) for several to a unit."""
        return getattr(self.written, self.key_name)

    @property
    def key_name(self) -> str:
        """Name of the keys in the formulation, the first of its parameters."""
        return next(iter(self.written.PARAMETERS))

    @property
    def values(self) -> Tensor | None:
        """(..., U, M)."""
        return getattr(self.written, "values", None)

    @property
    def scale(self) -> Tensor:
        """The scale of the dot products, α as written: a scalar, or (..., 1)."""
        return self.as_written.key_precision

    def without(self, padded: Tensor) -> "Captured":
        """The same with queries that are padding left out, where capture could not tell: boolean,
        broadcast to (..., Q).
        """
        return replace(self, present=self.present & ~padded)

    # -- attention, which no choice of mixture changes -----------------------------------------------------------------

    def attention(self) -> Tensor:
        """(..., Q, U), rows on the simplex; 0 for a query that may attend to nothing."""
        weights = self._answered(self.written.attention(self._asked, **self.options), 1)
        return torch.where(self._alive().unsqueeze(-1), weights, 0.0)

    def entropy(self) -> Tensor:
        """Entropy of each row of attention in nats, (..., Q)."""
        return torch.special.entr(self.attention()).sum(-1)

    def effective_units(self) -> Tensor:
        """``exp(entropy)``, over how many units a query spreads, (..., Q); 0 for a query that may attend to nothing."""
        return torch.where(self._alive(), self.entropy().exp(), 0.0)

    # -- the mixture, of which evidence and draws are ------------------------------------------------------------------

    @property
    def has_density(self) -> bool:
        """True if the attention is the posterior of a density of queries: not of linear keys,
        a sparse memory or a hard assignment.
        """
        return isinstance(self.written, Mixture) and not self.options and self.written.offers("log_evidence")

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
            raise ValueError(
                f"the attention of this {kind} is the posterior of no density of queries, so that it has no mixture and no evidence; ask for attention, entropy or effective_units"
            )
        return written.flat

    @property
    def raw(self) -> "Captured":
        """The same with the mixture as the layer's weights write it, instead of the best equivalent."""
        return replace(self._plain(), chosen=self.as_written)

    @cached_property
    def mixture(self) -> GaussianMixture:
        """The mixture that evidence is of: the best equivalent (`best_equivalent`, scalar metric),
        or the one chosen.
        """
        if self.chosen is not None:
            return self.chosen
        found = self.equivalent(*self.gauge("scalar")[:2]).chosen
        assert found is not None
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
            raise ValueError(
                f"tilt has shape {tuple(tilt.shape)} and precision {tuple(precision.shape)}; with {heads} axes of heads ({', '.join(self._heads)}) tilt has {heads + 1} axes, precision {heads}, {heads + 1} or {heads + 2}"
            )
        slopes, logits, excess = self._natural(kind)
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
        return replace(self._plain(), chosen=self.as_written.replace(log_prior=weights.log_softmax(-1), **own))

    def gauge(self, metric: str, tilt: Any = None, precision: Any = None) -> Gauge:
        """The likeliest b and P of every head, with leading axes (*heads);
        arguments as those of `inspection.best_equivalent`.
        """
        if metric not in METRICS:
            raise ValueError(f"metric must be one of {', '.join(METRICS)}, not {metric!r}")
        (slopes, logits, excess), features = self._natural(metric), self.queries.shape[-1]
        counted = self.present.unsqueeze(-1) if self._alone else self.present
        parts = {
            "queries": (self._asked, 2),
            "counted": (counted.double(), 1),
            "slopes": (slopes, 2),
            "logits": (logits, 2),
        }
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
            found.append(
                fit(Head(**{name: x[index] for name, x in tensors.items()}), metric, priors.head(index), label)
            )
        columns = zip(*found, strict=True)
        gauge = [torch.stack([torch.as_tensor(x) for x in each]).unflatten(0, heads or (1,)) for each in columns]
        gauge = [(x if heads else x[0]).to(self.queries.device) for x in gauge]
        return Gauge(*gauge)  # type: ignore[arg-type]

    # -- how it is laid out --------------------------------------------------------------------------------------------

    def _plain(self) -> "Captured":
        return Captured(**{name: getattr(self, name) for name in Captured.__dataclass_fields__})

    def _alive(self) -> Tensor:
        """Which queries may attend to anything, broadcast to (..., Q)."""
        return torch.ones_like(self.present) if self.mask is None else (self.mask > -torch.inf).any(-1)

    @property
    def _alone(self) -> bool:
        """True if every query has units of its own."""
        return len(self.written.batch_shape) > len(self.dims)

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

    def _beside(self, x: Tensor, own: int) -> Tensor:
        """Lay (*heads, own axes) out beside what the formulation has,
        with axes of size 1 for the batch (and for queries with units of their own).
        """
        sizes = iter(x.shape)
        leading = [1 if name.startswith("batch") else next(sizes) for name in self.dims] + [1] * self._alone
        return x.reshape((*leading, *x.shape[x.dim() - own :]))

    def _natural(self, metric: str) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logits ``m_ij + a_j·q - ½ e_j|q|²`` of the attention: slopes a (.., U, D), m (.., 1 or Q, U), e (..,
        U) or None where it is 0.
        """
        flat, features = self.as_written, self.queries.shape[-1]
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
        if flat.metric is not None:
            raise ValueError(
                "units whose precisions differ, in a metric that is not the identity, have no equivalents to choose from here; ask for the mixture as written by name, captured.raw"
            )
        if metric != "scalar":
            raise ValueError(
                f"metric: units whose precisions differ are equivalent to others under a scalar metric only, not under a {metric} one; take metric='scalar'"
            )
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
    coords: Mapping[str, Sequence[Any]] | None = None,
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
    finite(keys=keys, values=values)
    opened = None if mask is None else torch.where((mask > -torch.inf).any(-1, keepdim=True), mask, 0.0)
    written = GaussianMixture.linked(keys, values, scale, 0.0, opened)
    return seen(queries.expand(*leading, *queries.shape[-2:]), written, mask, padded, dims, coords)


def seen(
    queries: Tensor,
    written: Formulation,
    mask: Tensor | None,
    padded: Tensor | None,
    dims: tuple[str, ...],
    coords: Mapping[str, Sequence[Any]] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Captured:
    """Put queries beside the formulation that attended to them; queries that do not count may hold anything."""
    present = torch.ones(queries.shape[:-1], dtype=torch.bool, device=queries.device)
    present = present if padded is None else present & ~padded
    present = present if mask is None else present & (mask > -torch.inf).any(-1)
    queries = torch.where(present.unsqueeze(-1) | queries.isfinite(), queries, 0.0)
    finite(queries=queries)
    return Captured(queries, written, mask, present, dims, dict(coords or {}), None, dict(options or {}))


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
