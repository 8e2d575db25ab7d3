"""Mixture of Gaussian keys: attention is the posterior over units, each of which is a mixture of R Gaussian keys.

Model (MGK eq. 1, 3): ``u_i ~ Categorical(π_i)``, ``r_i | u_i=j ~ Categorical(π_j·)``,
``q_i | u_i=j, r_i=r ~ N(k_jr, I/α_jr)`` with α = 1/σ². A metric Λ and a shift δ, which all keys share, make it
``N(k_jr + δ, (α_jr Λ)⁻¹)``; answers are those of a `GaussianMixture`, ``v_i | u_i=j ~ N(v_j, I/β_j)`` or
``Categorical(ρ_j)``.

======  =====================  ======================  =======================================================
symbol  name                   shape                   support
======  =====================  ======================  =======================================================
q_i     ``queries``            (..., Q, D)             real
k_jr    ``keys``               (..., U, R, D)          real
v_j     ``values``             (..., U, M)             real
α_jr    ``key_precision``      scalar or (..., U, R)   > 0; axes of size 1 are shared
β_j     ``value_precision``    scalar or (..., U)      > 0, or 0 everywhere: answers have a mean and no density
ρ_j     ``answer_probs``       (..., U, K)             rows on the simplex
Λ       ``metric``             (..., D, D) or (..., D) positive definite, or its diagonal; None is I
δ       ``shift``              (..., D)                real; None is 0
π_jr    ``component_weights``  (..., U or 1, R)        rows on the simplex, 0 is an absent component
π_ij    ``log_prior``          (..., Q or 1, U)        log of rows on the simplex, -inf is a mask
u_i     site ``unit``          (..., Q)                0..U-1
r_i     site ``component``     (..., Q)                0..R-1
γ_ijr   ``responsibilities``   (..., Q, U, R)          on the simplex over (j, r) together
w_ij    ``attention``          (..., Q, U)             rows on the simplex: ``Σ_r γ_ijr``
======  =====================  ======================  =======================================================

With R = 1, uniform π_j, unit-norm queries and keys and one σ² this is softmax attention (MGK eq. 2). The flat view,
``mixture``, is a `GaussianMixture` of U·R units whose values are repeated R times; everything Gaussian is
computed through it. Leading axes are independent problems (batch, head) and broadcast.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyro
from pyro.distributions import Categorical, Dirichlet, Gamma, Normal, TorchDistribution
from pyro.ops.indexing import Vindex
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.models import _validation as check
from probtx_pyro.models._distributions import MixtureDensity
from probtx_pyro.models._plates import PARALLEL, given_unit
from probtx_pyro.models.formulation import CorrelatedTerms, DirichletTerms, GammaTerms, NormalTerms, Parameter, Terms
from probtx_pyro.models.gaussian_mixture import OF_KEYS, GaussianMixture, GaussianUnits, about_one_center
from probtx_pyro.models.mixture import Centers, Maybe, Number, Seen, answers_of, attention_of
from probtx_pyro.ops import Factor, gaussian_attention, safe_log, safe_softmax
from probtx_pyro.ops._chunks import Reduction, assigned_evidence, assigned_outputs, log_sum, reduction
from probtx_pyro.ops._numerics import center_of


@dataclass(frozen=True, eq=False, repr=False)
class GaussianKeys(GaussianUnits):
    """A memory of U units with R Gaussian keys each. Immutable.

    Parameters
    ----------
    keys, values, key_precision, component_weights, log_prior
        As in the table above. ``values=None`` is a memory without answers; None for weights is uniform.
    value_precision, answer_probs, metric, shift, diagonal_metric
        As those of a `GaussianMixture`.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, NaN or infinity, a precision out of range, weights off their simplex.

    Examples
    --------
    >>> import torch
    >>> keys = torch.tensor([[[-1.0], [3.0]], [[1.0], [1.0]]])  # unit 0 sits on both sides of unit 1
    >>> model = GaussianKeys(keys, torch.tensor([[0.0], [1.0]]), key_precision=2.0)
    >>> [round(float(weight), 3) for weight in model.attention(torch.tensor([[-1.0], [1.0], [3.0]]))[:, 0]]
    [0.965, 0.018, 0.965]

    References
    ----------
    Nguyen et al. 2022, *Improving Transformers with Probabilistic Attention Keys*, arXiv 2110.08678.
    """

    keys: Tensor
    values: Maybe = None
    key_precision: Number = Number(1.0)
    component_weights: Maybe = None
    log_prior: Maybe = None
    value_precision: Number = field(default=Number(0.0), kw_only=True)
    answer_probs: Maybe = field(default=None, kw_only=True)
    metric: Maybe = field(default=None, kw_only=True)
    shift: Maybe = field(default=None, kw_only=True)
    diagonal_metric: bool | None = field(default=None, kw_only=True)

    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {
        **GaussianUnits.PARAMETERS,
        "keys": Parameter("unit component feature", constraints.real, Normal),
        "key_precision": Parameter("unit component", constraints.positive, Gamma, logarithmic=True),
        "component_weights": Parameter("unit component", constraints.simplex, Dirichlet),
    }

    @classmethod
    def shifted(
        cls,
        keys: Tensor,
        shifts: Tensor,
        values: Maybe = None,
        key_precision: Tensor | float = 1.0,
        component_weights: Maybe = None,
        log_prior: Maybe = None,
    ) -> "GaussianKeys":
        """sMGK: ``k_jr = k_j + b_r``, keys (..., U, D) and shifts (..., R, D).

        Shifts with more axes than the keys have their own for each unit, (..., U or 1, R, D).
        """
        shifts = _shifted(keys, shifts)
        return cls(keys.unsqueeze(-2) + shifts, values, key_precision, component_weights, log_prior)

    @classmethod
    def linked(
        cls,
        keys: Tensor,
        values: Maybe,
        key_precision: Tensor | float,
        component_weights: Maybe = None,
        log_prior: Maybe = None,
    ) -> "GaussianKeys":
        """Weights times ``exp(α|k_jr|²/2)``, normalised over (j, r):
        attention is a softmax of ``α k_jr·q`` (PT eq. 16).

        With R = 1 and ``key_precision = 1/sqrt(D)``, `expected_outputs` is scaled dot-product attention. ``log_prior``
        (..., Q or 1, U) holds further log weights, not normalised. A component whose weight within its unit is below
        the smallest number of the dtype is absent.

        Raises
        ------
        ValueError
            For precisions that differ: the prior is then undefined.
        """
        precision = check.number("key_precision", key_precision, keys.dtype, keys.device)
        plain = cls(keys, values, _common_precision(precision), component_weights)
        within, units = safe_softmax(plain.component_log_weights() + 0.5 * plain.key_precision * keys.square().sum(-1))
        weights = units.unsqueeze(-2)
        if log_prior is not None:
            weights = weights + check.log_weights(log_prior, "keys", plain.num_units)
        return plain.replace(component_weights=within, log_prior=weights.log_softmax(-1))

    # -- parameters ----------------------------------------------------------------------------------------------------

    def parameter(self, name: str, batch: Sequence[int] = ()) -> Maybe:
        """The present value of a parameter; weights that are None are uniform, for each problem of ``batch``."""
        if name == "component_weights" and self.component_weights is None:
            return self.keys.new_full((), 1 / self.num_components).expand(*batch, *self.unit_shape)
        return super().parameter(name, batch)

    def allowed(self, name: str) -> Maybe:
        """Boolean entries of a parameter on the simplex that are not masked; None where there is no mask."""
        if name == "component_weights" and self.component_weights is not None:
            return self.component_weights > 0
        return super().allowed(name)

    def _validate(self) -> None:
        keys, precision, weights = self.keys, self.key_precision, self.component_weights
        check.at_least("keys", keys, 3, "(..., U, R, D)")
        if self.num_components < 1:
            raise ValueError("keys has no components; give at least one")
        self._validate_units()
        if precision.dim():
            _per_component("key_precision", precision, keys, "give (..., U, R), axes of size 1 allowed, or a scalar")
        if weights is not None:
            _per_component("component_weights", weights, keys, "give (..., U, R), or (..., 1, R) for all units")
            check.same_size("keys", self.num_components, "component_weights", weights.shape[-1], "components")
            check.simplex("component_weights", weights)

    @property
    def num_components(self) -> int:
        """R."""
        return self.keys.shape[-2]

    @property
    def unit_shape(self) -> tuple[int, int]:
        """(U, R): what the units of the flat view are counted by."""
        return self.num_units, self.num_components

    @property
    def flat(self) -> GaussianMixture:
        """The flat view, `mixture`."""
        return self.mixture

    @property
    def mixture(self) -> GaussianMixture:
        """The flat view: a `GaussianMixture` of U·R units, component (j, r) at ``j R + r``,
        each answer repeated R times.
        """
        log_prior = None
        if self.log_prior is not None or self.component_weights is not None:
            log_prior = (self.log_weights().unsqueeze(-1) + self.component_log_weights().unsqueeze(-3)).flatten(-2)
        repeated = {name: self._repeated(name) for name in ("values", "value_precision", "answer_probs")}
        return self._flat_keys(log_prior=log_prior, **repeated)

    def _flat_keys(self, **others: Maybe) -> GaussianMixture:
        """The flat view with these weights and answers, or without any: what keys and queries are to each other."""
        precision = self.key_precision
        if precision.dim():
            shared = precision.shape[-2:] == (1, 1)
            precision = (precision if shared else precision.expand(*precision.shape[:-2], *self.unit_shape)).flatten(-2)
        others |= {name: getattr(self, name) for name in ("metric", "shift", "diagonal_metric")}
        return check.unchecked(GaussianMixture, keys=self.keys.flatten(-3, -2), key_precision=precision, **others)

    def _repeated(self, name: str) -> Maybe:
        """A parameter of the answers, R times for each unit; None where there is none."""
        x, axis = getattr(self, name), -len(self.PARAMETERS[name].names)
        shared = x is None or x.dim() == 0 or x.shape[axis] == 1 != self.num_units
        return x if shared else x.repeat_interleave(self.num_components, axis)

    # -- the program ---------------------------------------------------------------------------------------------------

    def draw_unit(self) -> Tensor:
        """Sample the latent sites ``unit`` and ``component``; returns the unit of the flat view."""
        unit = super().draw_unit()
        within = given_unit(self.component_log_weights(), unit, 1)
        return unit * self.num_components + pyro.sample("component", Categorical(logits=within), infer=PARALLEL)

    def emission(self, unit: Tensor) -> TorchDistribution:
        """``q_i | u_i=j, r_i=r ~ N(k_jr + δ, (α_jr Λ)⁻¹)``; ``unit`` counts the flat view, ``j R + r``."""
        return self._flat_keys().emission(unit)

    def answer(self, unit: Tensor) -> TorchDistribution:
        """``v_i | u_i=j ~ N(v_j, I/β_j)``, or ``Categorical(ρ_j)``; ``unit`` counts the flat view."""
        return self.mixture.answer(unit)

    def guide_unit(self, attention: Tensor, queries: Tensor) -> Tensor:
        """Sample ``unit`` from ``attention``, and ``component`` given it from its exact posterior."""
        unit = super().guide_unit(attention, queries)
        within = Vindex(self.component_attention(queries))[..., unit, :]
        component = pyro.sample("component", Categorical(logits=safe_log(within)), infer=PARALLEL)
        return unit * self.num_components + component

    # -- the closed form -----------------------------------------------------------------------------------------------

    def component_log_weights(self) -> Tensor:
        """``log π_jr``, shape (..., U, R)."""
        if self.component_weights is None:
            return self.keys.new_full(self.unit_shape, -math.log(self.num_components))
        log = safe_log(self.component_weights)
        return log.expand(*log.shape[:-2], *self.unit_shape)

    def origins(self) -> dict[str, Tensor]:
        """The mean location (..., 1, 1, D) and value (..., 1, M)."""
        own = {"keys": self._flat_keys().origins()["keys"].unsqueeze(-2)}
        return own if self.values is None else own | {"values": center_of(self.values)}

    def lowered(
        self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None, centers: Centers = None, **how: Any
    ) -> tuple[Factor, Tensor]:
        """The factor of the flat view and its log weights (..., Q or 1, U·R): all that an E-step needs."""
        flat = None if centers is None else {**centers, "keys": centers["keys"].flatten(-3, -2)}
        return self.mixture.lowered(queries, outputs, observed, flat, **how)

    def responsibilities(self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None) -> Tensor:
        """``γ_ijr = p(unit=j, component=r | q_i)``, (..., Q, U, R), on the simplex over (j, r): MGK's E-step,
        erratum 10.

        Given the answers, too, where they are known.
        """
        self.check_data(queries, outputs, observed)
        return self.mixture.attention(queries, outputs, observed).unflatten(-1, self.unit_shape)

    def component_attention(self, queries: Tensor) -> Tensor:
        """``p(component=r | unit=j, q_i)``, (..., Q, U, R), rows on the simplex over r;
        for a masked unit as if it were not.
        """
        unmasked = self.with_parameters({"log_prior": None})
        return safe_softmax(unmasked.log_joint(queries))[0]

    def attention(  # type: ignore[override]
        self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None, *, assignment: str | Reduction = "soft"
    ) -> Tensor:
        """``p(unit=j | q_i)``, (..., Q, U) (MGK eq. 4 with its normalisers, erratum 9).

        ``assignment`` says how the components of a unit enter: "soft" sums over them, "hard" takes the largest of
        ``π_jr α_jr^{D/2} exp(-α_jr|q - k_jr|²/2)`` (MGK's hard E-step, erratum 21); a callable maps log joints
        (..., R) to (...).
        """
        return attention_of(reduction(assignment)(self.log_joint(queries, outputs, observed)))[0]

    def log_evidence(  # type: ignore[override]
        self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None, *, assignment: str | Reduction = "soft"
    ) -> Tensor:
        """``log p_i(q_i)``, (..., Q) (MGK eq. 1, 3); with "hard" ``log Σ_j max_r``, which is never above it."""
        reduce = reduction(assignment)
        if reduce is log_sum:
            return super().log_evidence(queries, outputs, observed)
        self.check_data(queries, outputs, observed)
        return assigned_evidence(*self.lowered(queries, outputs, observed), self.num_components, reduce)

    def expected_outputs(self, queries: Tensor, assignment: str | Reduction = "soft") -> Tensor:  # type: ignore[override]
        """``Σ_j w_ij v_j``, (..., Q, M) (MGK eq. 4): fused for "soft", no Q x U tensor; else in chunks of queries."""
        values, reduce = self.unit_answers(), reduction(assignment)
        if reduce is log_sum:
            self.check_data(queries)
            flat = self._flat_keys()
            weights = None if self.component_weights is None else self.component_log_weights().flatten(-2)
            units = flat.locations, values, flat.key_precision, self.log_prior
            return answers_of(gaussian_attention(queries, *units, weights, self.num_components, flat.wide_root()))
        self.check_data(queries)
        factor, log_weights = self.lowered(queries)
        return assigned_outputs(factor, values, log_weights, self.num_components, reduce)

    def explicit_outputs(self, queries: Tensor, assignment: str | Reduction = "soft") -> tuple[Tensor, Tensor, Tensor]:
        """Output (..., Q, M), attention (..., Q, U) and log evidence (..., Q) by the Q x U path;
        twice differentiable.
        """
        attention, evidence = attention_of(reduction(assignment)(self.log_joint(queries)))
        return attention @ self.unit_answers(), attention, evidence

    def output_distribution(self, queries: Tensor) -> MixtureDensity | Categorical:
        """``p(v_i | q_i)``, that of the flat view."""
        return self.mixture.output_distribution(queries)

    def conditional(self, name: str, seen: Seen) -> Terms:
        """The likelihood of a parameter given the others and assignments; MGK's M-step, errata 10 and 11 mended,
        is its mode.
        """
        if name == "component_weights":
            return DirichletTerms(seen.counts)
        if name == "weights":
            return super().conditional(name, seen)
        if name not in OF_KEYS:
            if seen.each and seen.answers != "none" and self.answer_probs is None:
                first = self.keys.shape[-1] + 1
                seen = about_one_center(seen, "values", slice(first, first + self.unit_answers().shape[-1] + 1))
            return super().conditional(name, seen._replace(counts=seen.counts.sum(-1), sums=seen.sums.sum(-2)))
        centers = {**seen.centers, "keys": seen.centers["keys"].flatten(-3, -2)}
        seen = seen._replace(counts=seen.counts.flatten(-2), sums=seen.sums.flatten(-3, -2), centers=centers)
        terms = self._flat_keys().conditional(name, seen)
        return terms if name in ("shift", "metric") else self._of_components(terms)

    def _of_components(self, terms: Any) -> Terms:
        """Terms of the units of the flat view with the axes of units and components, (..., U·R, ...) to (..., U,
        R, ...).
        """
        # axes of what one unit has
        after = {GammaTerms: (0, 0), NormalTerms: (1, 1), CorrelatedTerms: (2, 1)}[type(terms)]
        laid = [x.unflatten(-1 - n, self.unit_shape) for x, n in zip(terms, after, strict=False)]
        centers = (x.unflatten(-2, (1, 1) if x.shape[-2] == 1 else self.unit_shape) for x in terms[2:])
        return type(terms)(*laid, *centers)


def _per_component(name: str, x: Tensor, keys: Tensor, repair: str) -> None:
    check.tensor(name, x)
    units = tuple(keys.shape[-3:-1])
    if x.dim() < 2 or any(n not in (1, size) for n, size in zip(x.shape[-2:], units, strict=True)):
        raise ValueError(f"{name} has shape {tuple(x.shape)} but there are {units} units and components; {repair}")


def _shifted(keys: Tensor, shifts: Tensor) -> Tensor:
    """``shifts`` with a unit axis, (..., U or 1, R, D), or an error where they do not fit the keys (..., U, D)."""
    check.floating("keys", keys)
    check.floating("shifts", shifts)
    check.at_least("keys", keys, 2, "(..., U, D)")
    check.at_least("shifts", shifts, 2, "(..., R, D) or (..., U, R, D)")
    check.same_dtype(keys=keys, shifts=shifts)
    shifts = shifts if shifts.dim() > keys.dim() else shifts.unsqueeze(-3)
    check.same_size("keys", keys.shape[-1], "shifts", shifts.shape[-1], "features")
    if shifts.shape[-3] not in (1, keys.shape[-2]):
        raise ValueError(f"shifts have {shifts.shape[-3]} units but keys have {keys.shape[-2]}; give (..., U, R, D)")
    check.broadcastable(keys=keys.shape[:-2], shifts=shifts.shape[:-3])
    return shifts


def _common_precision(precision: Tensor) -> Tensor:
    """A precision that all units and components share, with axes (..., 1, 1), or an error."""
    if precision.dim() and (precision != precision[..., :1, :1]).any():
        raise ValueError("key_precision differs between units or components, where no prior is linked; use one")
    return precision[..., :1, :1] if precision.dim() else precision
