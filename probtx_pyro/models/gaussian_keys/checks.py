"""What a mixture of Gaussian keys must be, and what to do where it is not."""

from typing import TYPE_CHECKING

from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models.gaussian_mixture.checks import log_weights

if TYPE_CHECKING:
    from probtx_pyro.models.gaussian_keys.keys import GaussianKeys


def parameters(model: "GaussianKeys") -> None:
    """Refuse parameters that do not make a mixture of keys."""
    keys, values, precision, weights = model.keys, model.values, model.key_precision, model.component_weights
    given = {name: x for name in model.axes if (x := getattr(model, name)) is not None}
    check.at_least("keys", keys, 3, "(..., U, R, D)")
    check.same_dtype(**given)
    check.finite(keys=keys, values=values, key_precision=precision, component_weights=weights)
    if values is not None:
        check.at_least("values", values, 2, "(..., U, M)")
        check.same_size("keys", keys.shape[-3], "values", values.shape[-2], "units")
    if precision.dim():
        _per_component("key_precision", precision, keys, "give (..., U, R), axes of size 1 allowed, or a scalar")
    check.positive("key_precision", precision)
    if weights is not None:
        _per_component("component_weights", weights, keys, "give (..., U, R), or (..., 1, R) for all units")
        check.same_size("keys", keys.shape[-2], "component_weights", weights.shape[-1], "components")
        check.simplex("component_weights", weights)
    if model.log_prior is not None:
        log_weights(model.log_prior, keys.shape[-3])
        check.normalized_log("log_prior", model.log_prior)
    _ = model.batch_shape


def _per_component(name: str, x: Tensor, keys: Tensor, repair: str) -> None:
    units = tuple(keys.shape[-3:-1])
    if x.dim() < 2 or any(n not in (1, size) for n, size in zip(x.shape[-2:], units, strict=True)):
        raise ValueError(f"{name} has shape {tuple(x.shape)} but there are {units} units and components; {repair}")


def shifted(keys: Tensor, shifts: Tensor) -> Tensor:
    """``shifts`` with a unit axis, (..., U or 1, R, D), or an error where they do not fit the keys (..., U, D)."""
    check.floating("keys", keys)
    check.floating("shifts", shifts)
    check.at_least("keys", keys, 2, "(..., U, D)")
    check.at_least("shifts", shifts, 2, "(..., R, D) or (..., U, R, D)")
    check.same_dtype(keys=keys, shifts=shifts)
    shifts = shifts if shifts.dim() > keys.dim() else shifts.unsqueeze(-3)
    check.same_size("keys", keys.shape[-1], "shifts", shifts.shape[-1], "features")
    if shifts.shape[-3] not in (1, keys.shape[-2]):
        raise ValueError(
            f"shifts have {shifts.shape[-3]} units but keys have {keys.shape[-2]}; with more axes than the keys, shifts are (..., U, R, D)"
        )
    check.broadcastable(keys=keys.shape[:-2], shifts=shifts.shape[:-3])
    return shifts


def no_answers(outputs: Tensor | None, observed: Tensor | None) -> None:
    """Refuse annotated answers: the values have no density here."""
    if outputs is not None or observed is not None:
        raise ValueError(
            "outputs are given, but the answers of GaussianKeys have no density; drop them, or ask the flat view, keys.mixture.replace(value_precision=...)"
        )


def common_precision(precision: Tensor) -> Tensor:
    """A precision that all units and components share, with axes (..., 1, 1), or an error."""
    if precision.dim() and (precision != precision[..., :1, :1]).any():
        raise ValueError(
            "key_precision differs between units or components, for which the linked prior is undefined; use one precision, or GaussianKeys with weights of your own"
        )
    return precision[..., :1, :1] if precision.dim() else precision


def attention_of_guide(model: "GaussianKeys", queries: Tensor, attention: Tensor) -> None:
    """Refuse a matrix that is not a distribution over units for each query."""
    expected = (queries.shape[-2], model.num_units)
    if attention.shape[-2:] != expected:
        raise ValueError(f"attention has shape {tuple(attention.shape)} but must end in {expected}: queries by units")
    check.simplex("attention", attention)


__all__ = ["attention_of_guide", "common_precision", "no_answers", "parameters", "shifted"]
