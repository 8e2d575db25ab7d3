"""What a base measure and its queries must be; one clear error for what they are not."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check

if TYPE_CHECKING:
    from probtx_pyro.models.log_normalizer.measure import LogNormalizer


def parameters(base: "LogNormalizer") -> None:
    """Shapes, dtypes and supports of the constructor's arguments."""
    check.at_least("locations", base.locations, 2, "(..., N, D)")
    if base.base_covariance is not None and base.variance is not None:
        raise ValueError("covariance and variance say the same thing; give one of them")
    tensors = {"locations": base.locations, "covariance": base.base_covariance, "variance": base.variance}
    check.same_dtype(**tensors, log_weights=base.log_weights)
    check.finite(**tensors)
    number, features = base.locations.shape[-2:]
    if base.base_covariance is not None:
        if base.base_covariance.shape[-2:] != (features, features):
            raise ValueError(
                f"covariance must end in ({features}, {features}) but has shape {tuple(base.base_covariance.shape)}"
            )
        if base.each and base.base_covariance.shape[-3] != number:
            raise ValueError(
                f"covariance has {base.base_covariance.shape[-3]} matrices but there are {number} locations; give one for each, or one"
            )
        if check.is_validation_enabled() and torch.linalg.cholesky_ex(base.base_covariance)[1].any():
            raise ValueError("covariance must be symmetric positive definite; add a multiple of the identity")
    if base.variance is not None:
        check.at_least("variance", base.variance, 2, "(..., 1 or N, 1 or D)")
        if base.variance.shape[-2] not in (1, number) or base.variance.shape[-1] not in (1, features):
            raise ValueError(
                f"variance must end in (1 or {number}, 1 or {features}) but has shape {tuple(base.variance.shape)}"
            )
        check.positive("variance", base.variance)
    if base.log_weights is not None:
        if base.log_weights.shape[-1:] != (number,):
            raise ValueError(
                f"log_weights must have shape (..., {number}), one for each location, not {tuple(base.log_weights.shape)}"
            )
        total = base.log_weights.detach().logsumexp(-1)
        if check.is_validation_enabled() and not torch.isfinite(total).all():
            raise ValueError("log_weights must be finite or -inf, and not -inf everywhere; use -inf for a mask only")


def queries(base: "LogNormalizer", eta: Tensor) -> None:
    """Queries (..., Q, D) that fit."""
    check.at_least("eta", eta, 2, "(..., Q, D)")
    check.same_size("eta", eta.shape[-1], "locations", base.locations.shape[-1], "coordinates")
    check.same_dtype(eta=eta, locations=base.locations)
    check.finite(eta=eta)


__all__ = ["parameters", "queries"]
