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
program (`linear_keys_program`) carries the features of the keys as a factor, and its log-normaliser is not a log evidence.
"""

from typing import Any

import torch
from pyro import factor, plate, sample
from pyro.distributions import Categorical
from pyro.ops.indexing import Vindex
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.ops import explicit_linear_attention, linear_attention, query_features, safe_log, unit_features
from probtx_pyro.ops._linear_attention import FeatureMap, elu_plus_one

Maybe = Tensor | None  # an argument that may be left out
PARALLEL: Any = {"enumerate": "parallel"}
_AXES = {"Q": "queries", "U": "units", "R": "components", "D": "features", "M": "answer coordinates"}


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
    _inputs(queries, keys, component_weights, causal, unit_weights, values)
    if unit_weights is not None:
        values = torch.where(unit_weights.unsqueeze(-1) > 0, values, 0.0)
    return linear_attention(*_features(queries, keys, component_weights, feature_map, unit_weights), values, causal)


def linear_key_weights(
    queries: Tensor,
    keys: Tensor,
    component_weights: Maybe = None,
    feature_map: FeatureMap | None = None,
    causal: bool = False,
    unit_weights: Maybe = None,
) -> Tensor:
    """``p(unit=j | q_i) ∝ w_j Σ_r π_jr φ(q_i)'φ(k_jr)``, (..., Q, U): the matrix that `linear_key_attention` never builds."""
    _inputs(queries, keys, component_weights, causal, unit_weights)
    features = _features(queries, keys, component_weights, feature_map, unit_weights)
    nothing = keys.new_zeros(keys.shape[-3], 1)
    return explicit_linear_attention(*features, nothing, causal)[1]


def linear_keys_program(
    queries: Tensor,
    keys: Tensor,
    component_weights: Maybe = None,
    feature_map: FeatureMap | None = None,
    unit_weights: Maybe = None,
) -> None:
    """The Pyro program of one problem: ``feature ~ φ(q_i)``, ``unit ~ w``, ``component | unit ~ π_unit``, factor ``φ_f(k_jr)``.

    The first three are normalised, which changes its log-normaliser by a constant of the query and of w. Enumerated, the
    posterior of ``unit`` is `linear_key_weights`. Shapes without leading axes: queries (Q, D), keys (U, R, D).
    """
    _inputs(queries, keys, component_weights, False, unit_weights)
    if queries.dim() > 2 or keys.dim() > 3:
        raise ValueError(
            f"linear_keys_program is of one problem, not queries {tuple(queries.shape)} and keys {tuple(keys.shape)}; condition on one at a time"
        )
    units, components = keys.shape[:2]
    prior = keys.new_ones(units) if unit_weights is None else unit_weights
    mixing = keys.new_ones(units, components) if component_weights is None else component_weights
    present = torch.where(prior[:, None, None] > 0, keys, 0.0)
    log_features = safe_log((feature_map or elu_plus_one)(present))
    with plate("query", queries.shape[0], dim=-1):
        feature = sample("feature", Categorical(query_features(queries, feature_map)), infer=PARALLEL)
        unit = sample("unit", Categorical(prior), infer=PARALLEL)
        component = sample("component", Categorical(Vindex(mixing)[unit, :]), infer=PARALLEL)
        factor("key", Vindex(log_features)[unit, component, feature])


def _features(
    queries: Tensor, keys: Tensor, component_weights: Maybe, feature_map: FeatureMap | None, unit_weights: Maybe
) -> tuple[Tensor, Tensor]:
    if feature_map is None:
        return query_features(queries), unit_features(keys, component_weights, unit_weights)

    def checked(x: Tensor) -> Tensor:
        features = feature_map(x)
        if features.shape[:-1] != x.shape[:-1]:
            raise ValueError(
                f"feature_map turned {tuple(x.shape)} into {tuple(features.shape)}; it must keep all axes but the last"
            )
        check.finite(feature_map=features)
        if check.is_validation_enabled() and (features < 0).any():
            raise ValueError("feature_map gives negative features; make them positive, for instance by softplus")
        return features

    asked, units = (
        query_features(queries, checked),
        unit_features(keys, component_weights, unit_weights, checked),
    )
    check.same_size("feature_map's queries", asked.shape[-1], "its keys", units.shape[-1], "features")
    return asked, units


def _inputs(
    queries: Tensor, keys: Tensor, component_weights: Maybe, causal: bool, unit_weights: Maybe, values: Maybe = None
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
    if causal and queries.shape[-2] != keys.shape[-3]:
        raise ValueError(
            f"causal attention needs as many units as queries, not {keys.shape[-3]} units for {queries.shape[-2]} queries; mask units with unit_weights instead"
        )
    if component_weights is not None:
        check.simplex("component_weights", component_weights)
    if unit_weights is None:
        check.finite(queries=queries, keys=keys, values=values)
    elif check.is_validation_enabled():
        _weights(unit_weights, causal)
        present = unit_weights > 0
        heard = None if values is None else torch.where(present[..., None], values, 0.0)
        check.finite(queries=queries, keys=torch.where(present[..., None, None], keys, 0.0), values=heard)


def _weights(unit_weights: Tensor, causal: bool) -> None:
    check.finite(unit_weights=unit_weights)
    if (unit_weights < 0).any():
        raise ValueError("unit_weights must be non-negative; 0 masks a unit")
    if (unit_weights == 0).all(-1).any():
        raise ValueError("unit_weights mask every unit; allow at least one, or drop that problem")
    if causal and (unit_weights[..., 0] == 0).any():
        raise ValueError(
            "unit_weights mask the first unit, so that the first causal query has nobody to attend to; drop the leading masked positions"
        )


__all__ = ["linear_key_attention", "linear_key_weights", "linear_keys_program"]
