"""Attention with a mixture of linear keys (MLK): the kernel form of mixture attention, O(N) in time and memory.

``h_i = φ(q_i)'Σ_j w_j Σ_r π_jr φ(k_jr) v_j' / φ(q_i)'Σ_j w_j Σ_r π_jr φ(k_jr)`` (Nguyen et al. 2022, attention with a
mixture of linear keys, with normalised weights and unit weights w).

======  =====================  ==============  ==================================================
symbol  name                   shape           support
======  =====================  ==============  ==================================================
q_i     ``queries``            (..., Q, D)     real
k_jr    ``keys``               (..., U, R, D)  real
v_j     ``values``             (..., U, M)     real
π_jr    ``component_weights``  (..., U, R)     rows on the simplex; None is uniform
w_j     ``unit_weights``       (..., U)        >= 0, not normalised; 0 masks a unit; None is 1
β_j     ``value_precision``    (..., U)        > 0, or a number; None: answers have no density
v_i     ``outputs``            (..., Q, M)     real: answers to the queries
φ       ``feature_map``        D -> F          positive; None is elu + 1
======  =====================  ==============  ==================================================

There is a latent assignment behind it, to a (unit, component, feature):
``p(j, r, f | q_i) ∝ φ_f(q_i) w_j π_jr φ_f(k_jr)``. The weights are the posterior of the unit. It is normalised over
assignments given a query and is no density of queries. The answers have one where they have a precision β:
``v_i | u_i=j ~ N(v_j, I/β_j)``, a Gaussian mixture in which the weights of each query are its attention; from answers
to given queries all parameters have a posterior. Leading axes are independent problems (batch, head) and broadcast.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pyro
import torch
from pyro.distributions import Categorical, Gamma, Normal
from pyro.ops.indexing import Vindex
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.models import _validation as check
from probtx_pyro.models._distributions import MixtureDensity
from probtx_pyro.models._plates import PARALLEL, Plates, given_unit, isotropic
from probtx_pyro.models.formulation import Data, Datum, Formulation, Parameter, Terms
from probtx_pyro.models.gaussian_mixture import GaussianMixture, plain_units
from probtx_pyro.models.mixture import Centers, Number, Seen
from probtx_pyro.ops import explicit_linear_attention, linear_attention, query_features, safe_log, unit_features
from probtx_pyro.ops._linear_attention import FeatureMap, elu_plus_one

Maybe = Tensor | None  # an argument that may be left out


@dataclass(frozen=True, eq=False, repr=False)
class LinearKeys(Formulation):
    """A memory of U units with R linear keys each. Immutable.

    Parameters
    ----------
    keys, values, component_weights, feature_map, unit_weights
        As in the table above. ``values=None`` is a memory without answers. What a masked unit holds is never read: it
        may be NaN.
    value_precision
        β, which takes values; inference takes memories that have it.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, NaN or infinity, weights or precisions off their support.

    Examples
    --------
    >>> import torch
    >>> keys = torch.tensor([[[0.0], [1.0]], [[2.0], [4.0]]])  # two units of two keys; features 1 and 2, 3 and 5
    >>> memory = LinearKeys(keys, torch.tensor([[0.0], [11.0]]))
    >>> memory.expected_outputs(torch.tensor([[1.0]])).tolist()  # 4 / (1.5 + 4) of 11
    [[8.0]]

    References
    ----------
    Nguyen et al. 2022, *Improving Transformers with Probabilistic Attention Keys*, arXiv 2110.08678.
    """

    keys: Tensor
    values: Maybe = None
    component_weights: Maybe = None
    feature_map: FeatureMap | None = None
    unit_weights: Maybe = None
    value_precision: Number = Number(None)  # type: ignore[assignment]

    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {
        "keys": Parameter("unit component feature", constraints.real),
        "values": Parameter("unit answer", constraints.real, Normal),
        "value_precision": Parameter("unit", constraints.positive, Gamma, logarithmic=True),
        "component_weights": Parameter("unit component", constraints.simplex),
        "unit_weights": Parameter("unit", constraints.nonnegative, logarithmic=True, mask=0.0),
    }
    DATA: ClassVar[Mapping[str, Datum]] = {
        "queries": Datum("query feature", "given"),
        "outputs": Datum("query answer"),
    }
    RESULTS: ClassVar[Mapping[str, str]] = {
        "attention": "query unit",
        "log_evidence": "query",
        "expected_outputs": "query answer",
    }
    GUIDED_BY_ATTENTION: ClassVar[bool] = True
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "": "its weights are no density of queries; give it values and a value_precision, a density of answers to given queries, or take gradients of expected_outputs, or train nn.LinearKeysAttention",
        "conditional": "all but values and value_precision are in the normaliser of attention and have no conditional of a known family; draw with inference.nuts, or fit a guide with inference.variational",
    }

    def __post_init__(self) -> None:
        validate_inputs(None, self.keys, self.component_weights, False, self.unit_weights, self.values)
        if 0 in self.keys.shape[-3:-1]:
            raise ValueError(f"keys {tuple(self.keys.shape)} have no units or no components; give at least one")
        if self.value_precision is None:
            return
        precision = check.number("value_precision", self.value_precision, self.keys.dtype, self.keys.device)
        object.__setattr__(self, "value_precision", precision)
        validate_precision(precision, self.values, self.keys.shape[-3])
        _ = self.batch_shape

    def lacks(self) -> Collection[str]:
        """Densities, which are those of answers with a precision."""
        return ("log_evidence", "output_distribution") if self.value_precision is None else ()

    def attention(self, queries: Tensor, outputs: Maybe = None, causal: bool = False) -> Tensor:  # type: ignore[override]
        """``p(unit=j | q_i) ∝ w_j Σ_r π_jr φ(q_i)'φ(k_jr)``, (..., Q, U):
        the matrix that `expected_outputs` never builds.

        With answers ``p(unit=j | q_i, v_i)``.
        """
        if outputs is not None:
            self._require_data(queries, outputs)
            return self._answering(queries, causal).attention(outputs)
        features = self._features(queries, causal)
        return explicit_linear_attention(*features, self.keys.new_zeros(self.keys.shape[-3], 1), causal)[1]

    def expected_outputs(self, queries: Tensor, causal: bool = False) -> Tensor:  # type: ignore[override]
        """``h_i``, (..., Q, M), without a Q x U tensor: `linear_key_attention`."""
        return linear_attention(*self._features(queries, causal), self._heard(), causal)

    def _heard(self) -> Tensor:
        """The values of units that are not masked, 0 of those that are."""
        if self.values is None:
            raise ValueError("values is None, so this LinearKeys has no answers; build it with values=")
        present = None if self.unit_weights is None else self.unit_weights.unsqueeze(-1) > 0
        return self.values if present is None else torch.where(present, self.values, 0.0)

    def _features(self, queries: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        """Features of the queries (..., Q, F) and sums of those of each unit (..., U, F),
        the queries and the features checked.
        """
        self._validate_queries(queries, causal)
        feature_map = None if self.feature_map is None else partial(checked, self.feature_map)
        asked = query_features(queries, feature_map)
        units = unit_features(self.keys, self.component_weights, self.unit_weights, feature_map)
        check.same_size("feature_map's queries", asked.shape[-1], "its keys", units.shape[-1], "features")
        return asked, units

    def _validate_queries(self, queries: Tensor, causal: bool = False) -> None:
        validate_inputs(queries, self.keys, None, causal, self.unit_weights)

    # -- the density of answers given queries: a Gaussian mixture, weighted by attention -------------------------------

    def _answering(self, queries: Maybe = None, causal: bool = False) -> GaussianMixture:
        """The mixture that the answers to these queries are drawn from: its keys are the values;
        without queries, without weights.
        """
        if self.value_precision is None:
            self.refuse("log_evidence")
        log_weights = None if queries is None else safe_log(self.attention(queries, causal=causal))
        return plain_units(self._heard(), self.value_precision, log_weights)

    def _require_data(self, queries: Tensor, outputs: Maybe) -> None:
        if self.value_precision is None:
            self.refuse("log_evidence")
        self.plates(queries, outputs)

    def log_joint(self, queries: Tensor, outputs: Tensor) -> Tensor:
        """``log p(v_i, unit=j | q_i)``, (..., Q, U): the log density of the Pyro program at every unit."""
        self._require_data(queries, outputs)
        return self._answering(queries).log_joint(outputs)

    def log_evidence(self, queries: Tensor, outputs: Maybe = None) -> Tensor:  # type: ignore[override]
        """``log p(v_i | q_i)``, (..., Q)."""
        self._require_data(queries, outputs)
        return self.log_density(queries, outputs)

    def log_density(self, queries: Tensor, outputs: Maybe = None) -> Tensor:  # type: ignore[override]
        """`log_evidence` of data that have been checked."""
        if outputs is None:
            raise ValueError("outputs are None, but the log evidence is their density given queries; give outputs")
        return self._answering(queries).log_density(outputs)

    def output_distribution(self, queries: Tensor) -> MixtureDensity:  # type: ignore[override]
        """``p(v_i | q_i)``, batch shape (..., Q)."""
        self._require_data(queries, None)
        return MixtureDensity(self._answering(queries), queries.shape[-2])

    def origins(self) -> dict[str, Tensor]:
        """The mean value."""
        return self._answering().origins()

    def expect(self, data: Data, centers: Centers = None) -> Seen:
        """The sums of an E-step over the answers."""
        return self._answering(data[0]).expect((data[1], None, None, None), centers)

    def draw_latents(
        self, data: Data, leading: Sequence[int], generator: torch.Generator, centers: Mapping[str, Tensor]
    ) -> Seen:
        """The same sums, with units drawn from their posterior."""
        return self._answering(data[0]).draw_latents((data[1], None, None, None), leading, generator, centers)

    def conditional(self, name: str, seen: Seen) -> Terms:
        """The likelihood of ``values`` or ``value_precision`` given the others and assignments."""
        mixture, own = self._answering(), {"values": "keys", "value_precision": "key_precision"}
        return mixture.conditional(own[name], seen) if name in own else self.refuse("conditional")

    # -- Pyro programs -------------------------------------------------------------------------------------------------

    def plates(self, queries: Tensor, outputs: Maybe = None, **sizes: int | None) -> Plates:  # type: ignore[override]
        """The plates of the problem that memory and data make, all checked: the leading axes,
        ``query`` and ``units``.
        """
        self.require_given(queries, sizes)
        self._validate_queries(queries)
        shapes = {"queries": queries.shape[:-2]}
        if outputs is not None:
            if self.value_precision is None:
                self.refuse("log_evidence")
            validate_outputs(queries, outputs, self._heard())
            shapes["outputs"] = outputs.shape[:-2]
        batch = check.broadcastable(**shapes, memory=self.batch_shape)
        return Plates(batch, query=queries.shape[-2], units=self.keys.shape[-3])

    def model(self, queries: Tensor, outputs: Maybe = None) -> None:  # type: ignore[override]
        """``feature ~ φ_f(q_i) Σ_jr w_j π_jr φ_f(k_jr)``, ``unit | feature``, ``component | unit, feature``,
        and ``outputs | unit``.

        A feature of the query is looked up, then a unit that has it. The posterior of ``unit`` is `attention`;
        ``outputs`` is a latent site where answers have a density and none are given, and absent where they have none.
        """
        self.generate(self.plates(queries, outputs), (queries, outputs), collapsed=False)

    def collapsed(self, queries: Tensor, outputs: Maybe = None) -> None:  # type: ignore[override]
        """The same density of outputs with the assignment summed out."""
        self.generate(self.plates(queries, outputs), (queries, outputs), collapsed=True)

    def generate(self, plates: Plates, data: Data, collapsed: bool) -> None:
        """Sites of `model`, or of `collapsed`, within plates that the caller has made."""
        queries, outputs = data
        with plates.enter("query"):
            if collapsed:
                pyro.sample("outputs", self.output_distribution(queries), obs=outputs)
                return
            asked, held, units, mixing = self._assignment(queries)
            mass = units[..., None, None] * mixing.unsqueeze(-1) * held  # w_j π_jr φ_f(k_jr), (..., U, R, F)
            of_units, of_components = _somewhere(mass.sum(-2).mT), _somewhere(mass.mT)
            looked_up = asked * mass.sum((-3, -2)).unsqueeze(-2)
            feature = pyro.sample("feature", Categorical(looked_up), infer=PARALLEL)
            unit = pyro.sample("unit", Categorical(given_unit(of_units, feature, 1)), infer=PARALLEL)
            rows = Vindex(of_components.unsqueeze(-4))[..., unit, feature, :]
            pyro.sample("component", Categorical(rows), infer=PARALLEL)
            self._answer(unit, outputs)

    def unnormalized(self, queries: Tensor, outputs: Maybe = None) -> None:
        """``feature ~ φ(q_i)``, ``unit ~ w``, ``component | unit ~ π_unit``, a factor ``φ_f(k_jr)``,
        and ``outputs | unit``.

        The definition: enumerated, the posterior of ``unit`` is `attention`, which `model` draws from. The first three
        are normalised, which changes the log-normaliser by a constant of the query and of w.
        """
        asked, held, units, mixing = self._assignment(queries)
        with self.plates(queries, outputs).enter("query"):
            feature = pyro.sample("feature", Categorical(asked), infer=PARALLEL)
            unit = pyro.sample("unit", Categorical(units.unsqueeze(-2)), infer=PARALLEL)
            component = pyro.sample("component", Categorical(given_unit(mixing, unit, 1)), infer=PARALLEL)
            pyro.factor("key", Vindex(safe_log(held).unsqueeze(-4))[..., unit, component, feature])
            self._answer(unit, outputs)

    def _answer(self, unit: Tensor, outputs: Maybe) -> None:
        """Sample the site ``outputs`` where answers have a density."""
        if self.value_precision is not None:
            emission = isotropic(given_unit(self._heard(), unit, 1), given_unit(self.value_precision, unit, 0))
            pyro.sample("outputs", emission, obs=outputs)

    def guide(self, queries: Tensor, outputs: Maybe = None, attention: Maybe = None) -> None:  # type: ignore[override]
        """``unit ~ Categorical(attention)``, and component and feature given it from their exact posterior.

        With the exact attention (None) ELBO = the log-normaliser of the program, else it falls short by
        ``Σ_i KL(A_i || W_i)``. Answers that the model leaves latent are drawn from the unit's.
        """
        plates = self.plates(queries, outputs)
        attention = self.attention(queries, outputs) if attention is None else attention
        check.simplex("attention", attention)
        asked, held, _, mixing = self._assignment(queries)
        products = mixing.unsqueeze(-3) * (held.unsqueeze(-4) @ asked[..., None, :, None]).squeeze(-1)  # (..., Q, U, R)
        with plates.enter("query"):
            unit = pyro.sample("unit", Categorical(logits=safe_log(attention)), infer=PARALLEL)
            component = pyro.sample("component", Categorical(Vindex(products)[..., unit, :]), infer=PARALLEL)
            features = asked * Vindex(held.unsqueeze(-4))[..., unit, component, :]
            pyro.sample("feature", Categorical(features), infer=PARALLEL)
            if outputs is None:
                self._answer(unit, None)

    def _assignment(self, queries: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features of the queries (..., Q, F) and of the keys (..., U, R, F), weights of units (...,
        U) and components (..., U, R).
        """
        shape = self.keys.shape[:-1]
        units = self.keys.new_ones(shape[-2:-1]) if self.unit_weights is None else self.unit_weights
        mixing = self.keys.new_ones(shape[-2:]) if self.component_weights is None else self.component_weights
        present = torch.where(units[..., None, None] > 0, self.keys, 0.0)
        return query_features(queries, self.feature_map), (self.feature_map or elu_plus_one)(present), units, mixing


def _somewhere(rows: Tensor) -> Tensor:
    """Weights (..., n) to draw from: where all are 0, which is of probability 0 and never drawn, equal ones."""
    return torch.where(rows.sum(-1, keepdim=True) > 0, rows, 1.0)


def linear_key_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    component_weights: Maybe = None,
    feature_map: FeatureMap | None = None,
    causal: bool = False,
    unit_weights: Maybe = None,
) -> Tensor:
    """``h_i`` of the equation above, (..., Q, M), without a Q x U tensor;
    see `ops.linear_attention` for scales and limits.

    Parameters
    ----------
    queries, keys, values, component_weights, feature_map, unit_weights
        As in the table above. What a masked unit holds is never read: it may be NaN.
    causal
        Query i attends to the units up to i; as many units as queries.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, NaN or infinity, weights off their support, features that are negative, a
        query that has no unit to attend to.

    Examples
    --------
    >>> import torch
    >>> keys = torch.tensor([[[0.0], [1.0]], [[2.0], [4.0]]])  # two units of two keys; features 1 and 2, 3 and 5
    >>> linear_key_attention(torch.tensor([[1.0]]), keys, torch.tensor([[0.0], [11.0]])).tolist()  # 4 / (1.5 + 4) of 11
    [[8.0]]
    """
    return LinearKeys(keys, values, component_weights, feature_map, unit_weights).expected_outputs(queries, causal)


_AXES = {"Q": "queries", "U": "units", "R": "components", "D": "features", "M": "answer coordinates"}


def checked(feature_map: FeatureMap, x: Tensor) -> Tensor:
    """Features of keys or queries that keep their axes, are finite and not negative."""
    features = feature_map(x)
    if features.shape[:-1] != x.shape[:-1]:
        raise ValueError(f"feature_map turned {tuple(x.shape)} into {tuple(features.shape)}; only the last may change")
    check.finite(feature_map=features)
    if check.violated(features < 0):
        raise ValueError("feature_map gives negative features; make them positive, for instance by softplus")
    return features


def validate_inputs(
    queries: Maybe, keys: Tensor, component_weights: Maybe, causal: bool, unit_weights: Maybe, values: Maybe = None
) -> None:
    """Refuse what does not fit together, and queries without a unit to attend to."""
    given = {
        name: (x, axes)
        for name, x, axes in (
            ("queries", queries, ("Q", "D")),
            ("keys", keys, ("U", "R", "D")),
            ("values", values, ("U", "M")),
            ("component_weights", component_weights, ("U", "R")),
            ("unit_weights", unit_weights, ("U",)),
        )
        if x is not None
    }
    sizes: dict[str, tuple[str, int]] = {}
    for name, (x, axes) in given.items():
        check.floating(name, x)
        check.at_least(name, x, len(axes), f"(..., {', '.join(axes)})")
        for axis, size in zip(axes, x.shape[-len(axes) :], strict=True):
            first, known = sizes.setdefault(axis, (name, size))
            check.same_size(first, known, name, size, _AXES[axis])
    check.same_dtype(**{name: x for name, (x, _) in given.items()})
    check.broadcastable(**{name: x.shape[: x.dim() - len(axes)] for name, (x, axes) in given.items()})
    if causal and queries is not None and queries.shape[-2] != keys.shape[-3]:
        raise ValueError(f"causal attention needs as many units as queries, not {keys.shape[-3]}")
    if component_weights is not None:
        check.simplex("component_weights", component_weights)
    if unit_weights is None:
        check.finite(queries=queries, keys=keys, values=values)
    elif check.is_validation_enabled():
        _validate_unit_weights(unit_weights, causal)
        present = unit_weights > 0
        heard = None if values is None else torch.where(present[..., None], values, 0.0)
        check.finite(queries=queries, keys=torch.where(present[..., None, None], keys, 0.0), values=heard)


def _validate_unit_weights(unit_weights: Tensor, causal: bool) -> None:
    check.finite(unit_weights=unit_weights)
    if (unit_weights < 0).any():
        raise ValueError("unit_weights must be non-negative; 0 masks a unit")
    if (unit_weights == 0).all(-1).any():
        raise ValueError("unit_weights mask every unit; allow at least one, or drop that problem")
    if causal and (unit_weights[..., 0] == 0).any():
        raise ValueError("unit_weights mask the first unit, all that the first causal query may see; drop it")


def validate_precision(precision: Tensor, values: Maybe, num_units: int) -> None:
    """Refuse a precision of answers that does not fit the units, or where there are no answers."""
    if values is None:
        raise ValueError("value_precision is that of the answers, but values is None; give values, or leave it out")
    if precision.dim() and precision.shape[-1] not in (1, num_units):
        raise ValueError(f"value_precision must be a number or (..., {num_units}), not {tuple(precision.shape)}")
    check.finite(value_precision=precision)
    check.positive("value_precision", precision)


def validate_outputs(queries: Tensor, outputs: Tensor, values: Tensor) -> None:
    """Refuse answers that do not fit the queries or the values of the units."""
    check.floating("outputs", outputs)
    check.at_least("outputs", outputs, 2, "(..., Q, M)")
    check.same_size("outputs", outputs.shape[-1], "values", values.shape[-1], "answer coordinates")
    check.same_size("queries", queries.shape[-2], "outputs", outputs.shape[-2], "rows")
    check.same_dtype(queries=queries, outputs=outputs)
    check.finite(outputs=outputs)
