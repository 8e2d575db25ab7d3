"""Attention with a mixture of linear keys (MLK): the kernel form of mixture attention, O(N) in time and memory.

``h_i = φ(q_i)'Σ_j w_j Σ_r π_jr φ(k_jr) v_j' / φ(q_i)'Σ_j w_j Σ_r π_jr φ(k_jr)`` (Nguyen et al. 2022, attention with a mixture of
linear keys, with normalised weights and unit weights w).

======  =====================  ==============  ==================================================
symbol  name                   shape           support
======  =====================  ==============  ==================================================
q_i     ``queries``            (..., Q, D)     real
k_jr    ``keys``               (..., U, R, D)  real
v_j     ``values``             (..., U, M)     real
π_jr    ``component_weights``  (..., U, R)     rows on the simplex; None is uniform
w_j     ``unit_weights``       (..., U)        >= 0, not normalised; 0 masks a unit; None is 1
φ       ``feature_map``        D -> F          positive; None is elu + 1
======  =====================  ==============  ==================================================

There is a latent assignment behind it, to a (unit, component, feature): ``p(j, r, f | q_i) ∝ φ_f(q_i) w_j π_jr φ_f(k_jr)``. The
weights are the posterior of the unit. It is normalised over assignments given a query and is no density of queries: the
program carries the features of the keys as a factor, and its log-normaliser is not a log evidence. Leading axes are
independent problems (batch, head) and broadcast.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pyro
import torch
from pyro.distributions import Categorical
from pyro.ops.indexing import Vindex
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.models import _validation as check
from probtx_pyro.models._plates import PARALLEL, Plates, given_unit
from probtx_pyro.models.formulation import Data, Datum, Formulation, Parameter
from probtx_pyro.ops import explicit_linear_attention, linear_attention, query_features, safe_log, unit_features
from probtx_pyro.ops._linear_attention import FeatureMap, elu_plus_one

Maybe = Tensor | None  # an argument that may be left out
_AXES = {"Q": "queries", "U": "units", "R": "components", "D": "features", "M": "answer coordinates"}


@dataclass(frozen=True, eq=False, repr=False)
class LinearKeys(Formulation):
    """A memory of U units with R linear keys each. Immutable.

    Parameters
    ----------
    keys, values, component_weights, feature_map, unit_weights
        As in the table above. ``values=None`` is a memory without answers. What a masked unit holds is never read: it may be NaN.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, NaN or infinity, weights off their support.

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

    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {
        "keys": Parameter("unit component feature", constraints.real),
        "values": Parameter("unit answer", constraints.real),
        "component_weights": Parameter("unit component", constraints.simplex),
        "unit_weights": Parameter("unit", constraints.nonnegative),
    }
    DATA: ClassVar[Mapping[str, Datum]] = {"queries": Datum("query feature", "given")}
    RESULTS: ClassVar[Mapping[str, str]] = {"attention": "query unit", "expected_outputs": "query answer"}
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "": "its weights are normalised given a query and are no density of queries; take gradients of expected_outputs, its Pyro programs model and guide, or train nn.LinearKeysAttention",
    }

    def __post_init__(self) -> None:
        _inputs(None, self.keys, self.component_weights, False, self.unit_weights, self.values)
        if 0 in self.keys.shape[-3:-1]:
            raise ValueError(f"keys {tuple(self.keys.shape)} have no units or no components; give at least one")

    def attention(self, queries: Tensor, causal: bool = False) -> Tensor:  # type: ignore[override]
        """``p(unit=j | q_i) ∝ w_j Σ_r π_jr φ(q_i)'φ(k_jr)``, (..., Q, U): the matrix that `expected_outputs` never builds."""
        features = self._features(queries, causal)
        return explicit_linear_attention(*features, self.keys.new_zeros(self.keys.shape[-3], 1), causal)[1]

    def expected_outputs(self, queries: Tensor, causal: bool = False) -> Tensor:  # type: ignore[override]
        """``h_i``, (..., Q, M), without a Q x U tensor: `linear_key_attention`."""
        values = self.values
        if values is None:
            raise ValueError("values is None, so this LinearKeys has no answers; build it with values=")
        if self.unit_weights is not None:
            values = torch.where(self.unit_weights.unsqueeze(-1) > 0, values, 0.0)
        return linear_attention(*self._features(queries, causal), values, causal)

    def _features(self, queries: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        """Features of the queries (..., Q, F) and sums of those of each unit (..., U, F), the queries and the features checked."""
        self._validate_queries(queries, causal)
        feature_map = None if self.feature_map is None else partial(_checked, self.feature_map)
        asked = query_features(queries, feature_map)
        units = unit_features(self.keys, self.component_weights, self.unit_weights, feature_map)
        check.same_size("feature_map's queries", asked.shape[-1], "its keys", units.shape[-1], "features")
        return asked, units

    def _validate_queries(self, queries: Tensor, causal: bool = False) -> None:
        _inputs(queries, self.keys, None, causal, self.unit_weights)

    # -- Pyro programs ------------------------------------------------------------------------------------------------------

    def plates(self, queries: Tensor) -> Plates:  # type: ignore[override]
        """The plates of the problem that memory and queries make, both checked: the leading axes, and ``query``."""
        self._validate_queries(queries)
        batch = check.broadcastable(queries=queries.shape[:-2], memory=self.batch_shape)
        return Plates(batch, query=queries.shape[-2], units=self.keys.shape[-3])

    def model(self, queries: Tensor) -> None:  # type: ignore[override]
        """``feature ~ φ(q_i)``, ``unit ~ w``, ``component | unit ~ π_unit``, and a factor ``φ_f(k_jr)``, in the plates of the problem.

        The first three are normalised, which changes its log-normaliser by a constant of the query and of w. Enumerated, the
        posterior of ``unit`` is `attention`.
        """
        self.generate(self.plates(queries), (queries,), collapsed=False)

    def generate(self, plates: Plates, data: Data, collapsed: bool) -> None:
        """Sites of `model` within plates that the caller has made."""
        if collapsed:
            self.refuse("collapsed")
        asked, held, units, mixing = self._assignment(data[0])
        with plates.enter("query"):
            feature = pyro.sample("feature", Categorical(asked), infer=PARALLEL)
            unit = pyro.sample("unit", Categorical(units.unsqueeze(-2)), infer=PARALLEL)
            component = pyro.sample("component", Categorical(given_unit(mixing, unit, 1)), infer=PARALLEL)
            pyro.factor("key", Vindex(safe_log(held).unsqueeze(-4))[..., unit, component, feature])

    def guide(self, queries: Tensor, attention: Maybe = None) -> None:  # type: ignore[override]
        """``unit ~ Categorical(attention)``, and component and feature given it from their exact posterior.

        With the exact attention (None) ELBO = log-normaliser of `model`, else it falls short by ``Σ_i KL(A_i || W_i)``.
        """
        plates = self.plates(queries)
        attention = self.attention(queries) if attention is None else attention
        check.simplex("attention", attention)
        asked, held, _, mixing = self._assignment(queries)
        products = mixing.unsqueeze(-3) * (held.unsqueeze(-4) @ asked[..., None, :, None]).squeeze(-1)  # (..., Q, U, R)
        with plates.enter("query"):
            unit = pyro.sample("unit", Categorical(logits=safe_log(attention)), infer=PARALLEL)
            component = pyro.sample("component", Categorical(Vindex(products)[..., unit, :]), infer=PARALLEL)
            features = asked * Vindex(held.unsqueeze(-4))[..., unit, component, :]
            pyro.sample("feature", Categorical(features), infer=PARALLEL)

    def _assignment(self, queries: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features of the queries (..., Q, F) and of the keys (..., U, R, F), weights of units (..., U) and components (..., U, R)."""
        shape = self.keys.shape[:-1]
        units = self.keys.new_ones(shape[-2:-1]) if self.unit_weights is None else self.unit_weights
        mixing = self.keys.new_ones(shape[-2:]) if self.component_weights is None else self.component_weights
        present = torch.where(units[..., None, None] > 0, self.keys, 0.0)
        return query_features(queries, self.feature_map), (self.feature_map or elu_plus_one)(present), units, mixing


def linear_key_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    component_weights: Maybe = None,
    feature_map: FeatureMap | None = None,
    causal: bool = False,
    unit_weights: Maybe = None,
) -> Tensor:
    """``h_i`` of the equation above, (..., Q, M), without a Q x U tensor; see `ops.linear_attention` for scales and limits.

    Parameters
    ----------
    queries, keys, values, component_weights, feature_map, unit_weights
        As in the table above. What a masked unit holds is never read: it may be NaN.
    causal
        Query i attends to the units up to i; as many units as queries.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, NaN or infinity, weights off their support, features that are negative, a query
        that has no unit to attend to.

    Examples
    --------
    >>> import torch
    >>> keys = torch.tensor([[[0.0], [1.0]], [[2.0], [4.0]]])  # two units of two keys; features 1 and 2, 3 and 5
    >>> linear_key_attention(torch.tensor([[1.0]]), keys, torch.tensor([[0.0], [11.0]])).tolist()  # 4 / (1.5 + 4) of 11
    [[8.0]]
    """
    return LinearKeys(keys, values, component_weights, feature_map, unit_weights).expected_outputs(queries, causal)


def _checked(feature_map: FeatureMap, x: Tensor) -> Tensor:
    """Features of keys or queries that keep their axes, are finite and not negative."""
    features = feature_map(x)
    if features.shape[:-1] != x.shape[:-1]:
        raise ValueError(
            f"feature_map turned {tuple(x.shape)} into {tuple(features.shape)}; it must keep all axes but the last"
        )
    check.finite(feature_map=features)
    if check.violated(features < 0):
        raise ValueError("feature_map gives negative features; make them positive, for instance by softplus")
    return features


def _inputs(
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
        raise ValueError(
            f"causal attention needs as many units as queries, not {keys.shape[-3]} units for {queries.shape[-2]} queries; mask units with unit_weights instead"
        )
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
        raise ValueError(
            "unit_weights mask the first unit, so that the first causal query has nobody to attend to; drop the leading masked positions"
        )
