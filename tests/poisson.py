"""A formulation that the package does not have: units that emit counts. The worked example of docs/howto/add_a_formulation.md."""

from dataclasses import dataclass

import torch
from pyro.distributions import Gamma, Poisson
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro import models, ops


@dataclass(frozen=True, eq=False)
class PoissonMixture(models.Mixture):
    """Counts of U units: ``x_i | unit=j ~ Poisson(rate_j)``, coordinate by coordinate.

    ======  ==============  ====================  ============================
    symbol  name            shape                 support
    ======  ==============  ====================  ============================
    x_i     ``queries``     (..., Q, D)           counts, as floating point
    λ_j     ``rate``        (..., U, D)           > 0
    π_ij    ``log_prior``   (..., Q or 1, U)      log of rows on the simplex
    ======  ==============  ====================  ============================
    """

    rate: Tensor
    log_prior: Tensor | None = None

    PARAMETERS = {
        "rate": models.Parameter("unit feature", constraints.positive, Gamma, logarithmic=True),
        **models.WEIGHTS,
    }

    def __post_init__(self) -> None:
        if not (self.rate > 0).all():
            raise ValueError("rate must be > 0")
        self._validate_weights()

    def emission(self, unit: Tensor) -> torch.distributions.Distribution:
        """The program: what a unit emits."""
        return Poisson(self.of_unit("rate", unit)).to_event(1)

    def factor(self, queries, outputs=None, observed=None, centers=None) -> ops.Factor:
        """The closed form: ``x·log λ_j - Σ λ_j - Σ log x!``."""
        return ops.Factor(queries, self.rate.log(), -self.rate.sum(-1), -(queries + 1).lgamma().sum(-1))

    def conditional(self, name: str, seen) -> models.GammaTerms:
        """From the sums of an E-step: what ECM takes the mode of, and Gibbs draws."""
        if name == "rate":
            return models.GammaTerms(seen.sums, seen.counts.unsqueeze(-1).expand_as(seen.sums))
        return super().conditional(name, seen)
