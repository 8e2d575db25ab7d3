"""Other base measures: a Pyro distribution whose sufficient statistic is x itself, tilted by its natural parameter.

``h(x) exp(x'η) / Z(η)`` is of the same family (EF Theorem 1b, erratum 14: the tilt adds to the natural parameter), so
its mean and covariance are those of a distribution that Pyro knows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from pyro.distributions import Bernoulli, Categorical, Gamma, MultivariateNormal, Normal, OneHotCategorical, Poisson
from torch import Tensor
from torch.distributions import Distribution, Independent
from torch.nn.functional import softplus

from probtx_pyro.models.priors import as_pyro


class Tilt(NamedTuple):
    """A family under a tilt.

    tilted: the distribution with its natural parameter moved by η. log_normalizer: ``log E[exp(x'η)]``.
    limit: η must be below it, None for no bound.
    """

    tilted: Callable[[Any, Tensor], Any]
    log_normalizer: Callable[[Any, Tensor], Tensor]
    limit: Callable[[Any], Tensor] | None = None


def _categorical(d: Any, eta: Tensor) -> Tensor:
    return (d.logits.log_softmax(-1) + eta).logsumexp(-1)


FAMILIES: dict[type, Tilt] = {
    Normal: Tilt(
        lambda d, eta: Normal(d.loc + d.scale.square() * eta, d.scale.expand((d.loc + eta).shape)),
        lambda d, eta: d.loc * eta + 0.5 * (d.scale * eta).square(),
    ),
    MultivariateNormal: Tilt(
        lambda d, eta: MultivariateNormal(
            d.loc + (d.covariance_matrix @ eta.unsqueeze(-1)).squeeze(-1), d.covariance_matrix
        ),
        lambda d, eta: (eta * (d.loc + 0.5 * (d.covariance_matrix @ eta.unsqueeze(-1)).squeeze(-1))).sum(-1),
    ),
    Bernoulli: Tilt(
        lambda d, eta: Bernoulli(logits=d.logits + eta), lambda d, eta: softplus(d.logits + eta) - softplus(d.logits)
    ),
    OneHotCategorical: Tilt(lambda d, eta: OneHotCategorical(logits=d.logits + eta), _categorical),
    Poisson: Tilt(lambda d, eta: Poisson(d.rate * eta.exp()), lambda d, eta: d.rate * eta.expm1()),
    Gamma: Tilt(
        lambda d, eta: Gamma(d.concentration.expand((d.rate - eta).shape), d.rate - eta),
        lambda d, eta: -d.concentration * torch.log1p(-eta / d.rate),
        lambda d: d.rate,
    ),
}
REFUSED = (
    "its sufficient statistic is not x itself (of a Dirichlet or a Beta it is log x), so exp(x'η) leaves the family"
)


@dataclass(frozen=True, eq=False)
class TiltedFamily:
    """``p(x|η) ∝ h(x) exp(x'η)`` for a distribution h of `FAMILIES`; η has the shape of x, batch axes broadcast.

    A Categorical stands for the one-hot vectors of its labels, so that η (..., K) has one entry for each.

    >>> family = TiltedFamily(Gamma(2.0, 3.0))
    >>> round(float(family.mean(torch.tensor(1.0))), 6)                   # Gamma(2, 3 - 1)
    1.0
    """

    base: Any

    def _tilt(self, eta: Tensor) -> Tilt:
        tilt = FAMILIES[type(self.base)]
        if tilt.limit is not None and (eta >= tilt.limit(self.base)).any():
            raise ValueError(
                f"eta must be below the rate of {type(self.base).__name__}, {tilt.limit(self.base).tolist()}; log Z is infinite beyond"
            )
        return tilt

    def tilted(self, eta: Tensor) -> Any:
        """The tilted distribution."""
        return self._tilt(eta).tilted(self.base, eta)

    def log_normalizer(self, eta: Tensor) -> Tensor:
        """``log E_h[exp(x'η)]``, over the axes of x that are event."""
        return self._tilt(eta).log_normalizer(self.base, eta)

    def mean(self, eta: Tensor) -> Tensor:
        """``∇ log Z(η)``, of the shape of η."""
        return self.tilted(eta).mean

    def covariance(self, eta: Tensor) -> Tensor:
        """``∇² log Z(η)``: the variance where x is a scalar, (..., D, D) where it is a vector."""
        tilted = self.tilted(eta)
        if isinstance(tilted, MultivariateNormal):
            return tilted.covariance_matrix
        if isinstance(tilted, OneHotCategorical):
            p = tilted.probs
            return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
        return tilted.variance

    def entropy(self, eta: Tensor) -> Tensor:
        """``log Z(η) - η'∇log Z(η) = -KL(p || h)``."""
        products = eta * self.mean(eta)
        return self.log_normalizer(eta) - (products.sum(-1) if self.base.event_shape else products)


def from_distribution(distribution: Any) -> TiltedFamily:
    """A base measure that is a distribution of Pyro or torch: Normal, MultivariateNormal, Bernoulli,
    Categorical, Poisson or Gamma.

    Raises
    ------
    ValueError
        Any other, with the reason.
    """
    base = as_pyro(distribution) if isinstance(distribution, Distribution) else distribution
    while isinstance(base, Independent):
        base = base.base_dist
    if type(base) is Categorical:
        base = OneHotCategorical(logits=base.logits)
    for family in FAMILIES:
        if type(base) is family:
            return TiltedFamily(base)
    raise ValueError(
        f"distribution: {type(base).__name__} has no tilt in closed form: {REFUSED}, or it is not in the table; choose from {', '.join(x.__name__ for x in FAMILIES)}"
    )
