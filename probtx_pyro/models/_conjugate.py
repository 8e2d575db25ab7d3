"""The convex conjugate of a log normaliser, by damped Newton steps."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probtx_pyro.ops import fixed_point

HALVINGS = 12  # of a Newton step that would not climb


class Conjugate(NamedTuple):
    """``sup_η η'm - log Z(η)``.

    value: (..., Q): the entropy of the tilted distribution with mean m, negated. eta: where the supremum is, (..., Q, D).
    converged: whether the mean there is m, (..., Q); a mean outside the convex hull of discrete points has no such η.
    """

    value: Tensor
    eta: Tensor
    converged: Tensor


def conjugate(base: Any, mean: Tensor, num_steps: int, tol: float | None) -> Conjugate:
    """`LogNormalizer.conjugate` of a measure with ``log_normalizer``, ``mean`` and ``covariance``, for means (..., Q, D)."""
    tol = torch.finfo(mean.dtype).eps ** 0.75 if tol is None else tol
    sizes = 0.5 ** torch.arange(HALVINGS, dtype=mean.dtype, device=mean.device)

    def step(state):
        eta = state["eta"]
        hessian, slope = base.covariance(eta), mean - base.mean(eta)
        scale = hessian.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        damped = hessian + 1e-10 * scale * torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        towards = (torch.linalg.pinv(damped, hermitian=True) @ slope.unsqueeze(-1)).squeeze(
            -1
        )  # a GPU's lstsq needs full rank
        tried = eta + sizes.view(-1, *(1,) * eta.dim()) * towards
        value = (tried * mean).sum(-1) - base.log_normalizer(tried)
        best = value.nan_to_num(-math.inf).argmax(0, keepdim=True)
        return {"eta": tried.gather(0, best.unsqueeze(-1).expand(1, *eta.shape)).squeeze(0)}, None

    with torch.no_grad():
        start = {"eta": torch.zeros_like(mean)}
        eta = fixed_point(step, start, problems=mean.shape[:-1], num_steps=num_steps, tol=tol, progress=False).state[
            "eta"
        ]
    reached = (base.mean(eta) - mean).norm(dim=-1)
    size = 1 + base.locations.abs().amax()
    return Conjugate((eta * mean).sum(-1) - base.log_normalizer(eta), eta, reached <= tol**0.5 * size)
