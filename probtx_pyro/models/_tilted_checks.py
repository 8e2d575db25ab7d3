"""Input checks of the log normaliser: its parameters, queries and points."""

from typing import Any

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check


def validate_measure(base: Any) -> None:
    """Refuse parameters of a `LogNormalizer` that do not fit together."""
    covariance, variance = base.covariances, base.variance
    check.at_least("locations", base.locations, 2, "(..., N, D)")
    if covariance is not None and variance is not None:
        raise ValueError("covariance and variance say the same thing; give one of them")
    tensors = {"locations": base.locations, "covariance": covariance, "variance": variance}
    check.same_dtype(**tensors, log_weights=base.log_weights)
    check.finite(**tensors)
    number, features = base.locations.shape[-2:]
    if number < 1:
        raise ValueError("locations has no units; give at least one")
    if covariance is not None:
        check.positive_definite("covariance", covariance, features)
        if covariance.shape[-3] not in (1, number):
            raise ValueError(
                f"covariance has {covariance.shape[-3]} matrices but there are {number} locations; give one for each, or one"
            )
    if variance is not None:
        check.at_least("variance", variance, 2, "(..., 1 or N, 1 or D)")
        if variance.shape[-2] not in (1, number) or variance.shape[-1] not in (1, features):
            raise ValueError(
                f"variance must end in (1 or {number}, 1 or {features}) but has shape {tuple(variance.shape)}"
            )
        check.positive("variance", variance)
    if base.log_weights is not None:
        if base.log_weights.shape[-1:] != (number,):
            raise ValueError(
                f"log_weights must have shape (..., {number}), one for each location, not {tuple(base.log_weights.shape)}"
            )
        if check.violated(~torch.isfinite(base.log_weights.detach().logsumexp(-1))):
            raise ValueError("log_weights must be finite or -inf, and not -inf everywhere; use -inf for a mask only")
    _ = base.batch_shape


def validate_queries(base: Any, eta: Tensor, name: str = "eta") -> None:
    """Refuse queries, or points, that do not fit the locations."""
    check.floating(name, eta)
    check.at_least(name, eta, 2, "(..., Q, D)")
    check.same_size(name, eta.shape[-1], "locations", base.locations.shape[-1], "coordinates")
    check.same_dtype(**{name: eta}, locations=base.locations)
    check.finite(**{name: eta})


def validate_data(base: Any, eta: Tensor, points: Tensor | None) -> torch.Size:
    """Return the problems that queries and points make together; refuse those that do not fit, and points without a density."""
    validate_queries(base, eta)
    if points is None:
        return eta.shape[:-2]
    if not base.dense:
        base.refuse("log_evidence")
    validate_queries(base, points, "points")
    check.same_size("eta", eta.shape[-2], "points", points.shape[-2], "rows")
    return check.broadcastable(eta=eta.shape[:-2], points=points.shape[:-2])
