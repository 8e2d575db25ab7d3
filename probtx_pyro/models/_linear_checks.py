"""Input checks of linear keys: what a memory holds, its queries, and the answers to them."""

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.ops._linear_attention import FeatureMap

Maybe = Tensor | None  # an argument that may be left out
_AXES = {"Q": "queries", "U": "units", "R": "components", "D": "features", "M": "answer coordinates"}


def checked(feature_map: FeatureMap, x: Tensor) -> Tensor:
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


def validate_precision(precision: Tensor, values: Maybe, num_units: int) -> None:
    """Refuse a precision of answers that does not fit the units, or where there are no answers."""
    if values is None:
        raise ValueError("value_precision is that of the answers, but values is None; give values, or leave it out")
    if precision.dim() and precision.shape[-1] not in (1, num_units):
        raise ValueError(
            f"value_precision must be a number or (..., {num_units}), one for each unit, not {tuple(precision.shape)}"
        )
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
