"""The tilted distribution as Pyro programs: a base measure with a factor, whose evidence is Z, and what it is once normalised.

Plates: ``query`` at dim -1 and, left of it, the leading axes of the problem: ``batch``, ``head``.
"""

from typing import TYPE_CHECKING

import pyro
import torch
from pyro.distributions import Categorical, Delta, MultivariateNormal, Normal
from pyro.ops.indexing import Vindex
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models._plates import PARALLEL, Plates, given_unit
from probtx_pyro.models.log_normalizer import checks
from probtx_pyro.ops import safe_log

if TYPE_CHECKING:
    from probtx_pyro.models.log_normalizer.measure import LogNormalizer

Maybe = Tensor | None  # an argument that may be left out


def plates(base: "LogNormalizer", eta: Tensor) -> Plates:
    """The plates of the problem that measure and queries make."""
    shapes = {"eta": eta.shape[:-2], "locations": base.locations.shape[:-2]}
    if base.log_weights is not None:
        shapes["log_weights"] = base.log_weights.shape[:-1]
    return Plates(check.broadcastable(**shapes), query=eta.shape[-2])


def _x(base: "LogNormalizer", unit: Tensor, eta: Tensor | None):
    """What the unit drawn says of x; tilted by ``eta``, if given: ``N(μ_n + Σ_n η, Σ_n)``."""
    mean = given_unit(base.locations, unit, 1)
    if base.base_covariance is not None:
        each = base.each
        spread = (
            Vindex(base.base_covariance.unsqueeze(-4))[..., unit, :, :] if each else base.base_covariance.unsqueeze(-3)
        )
        mean = mean if eta is None else mean + (spread @ eta.unsqueeze(-1)).squeeze(-1)
        return MultivariateNormal(mean, spread)
    if base.variance is not None:
        spread = given_unit(base.variance, unit, 1) if base.each else base.variance
        spread = spread.expand(torch.broadcast_shapes(spread.shape, mean.shape))
        return Normal(mean if eta is None else mean + spread * eta, spread.sqrt()).to_event(1)
    return Delta(mean, event_dim=1)


def model(base: "LogNormalizer", eta: Tensor) -> None:
    """``unit ~ Categorical(π)``, ``x | unit`` from the base measure, and a factor ``exp(x'η)`` times the measure's mass.

    Its evidence is ``Z(η)``. The posterior of ``unit`` is attention, that of ``x`` the tilted distribution.
    """
    checks.queries(base, eta)
    log_prior = base.log_prior()
    with plates(base, eta).enter("query"):
        unit = pyro.sample("unit", Categorical(logits=log_prior), infer=PARALLEL)
        x = pyro.sample("x", _x(base, unit, None))
        pyro.factor("tilt", (x * eta).sum(-1) + log_prior.logsumexp(-1))


def guide(base: "LogNormalizer", eta: Tensor, weights: Maybe = None) -> None:
    """``unit ~ Categorical(weights)``, ``x | unit`` tilted: the exact posterior of `model`, with attention as its weights.

    With the exact weights ELBO = log Z; with others on the simplex (..., Q, N) it is `bound`. Draws of the tilted distribution are
    ``Predictive(base.guide, num_samples=...)(eta)["x"]``.
    """
    checks.queries(base, eta)
    weights = base.weights(eta) if weights is None else weights
    check.simplex("weights", weights)
    with plates(base, eta).enter("query"):
        unit = pyro.sample("unit", Categorical(logits=safe_log(weights)), infer=PARALLEL)
        pyro.sample("x", _x(base, unit, eta))


__all__ = ["guide", "model", "plates"]
