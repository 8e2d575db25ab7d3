"""A formulation that the package does not have, with a Beta prior: units that emit yes or no, coordinate by coordinate."""

from dataclasses import dataclass

from pyro.distributions import Bernoulli, Beta
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro import models, ops


@dataclass(frozen=True, eq=False)
class BernoulliMixture(models.Mixture):
    """``x_i | unit=j ~ Bernoulli(prob_j)``.  prob (..., U, D) in (0, 1), log_prior (..., Q or 1, U), queries 0 or 1."""

    prob: Tensor
    log_prior: Tensor | None = None

    PARAMETERS = {"prob": models.Parameter("unit feature", constraints.unit_interval, Beta), **models.WEIGHTS}

    def __post_init__(self) -> None:
        self._validate_weights()

    def emission(self, unit: Tensor) -> Bernoulli:
        """The program: what a unit emits."""
        return Bernoulli(self.of_unit("prob", unit)).to_event(1)

    def factor(self, queries, outputs=None, observed=None, centers=None) -> ops.Factor:
        """The closed form: ``x·logit p_j + Σ log(1 - p_j)``."""
        no = (-self.prob).log1p()
        return ops.Factor(queries, self.prob.log() - no, no.sum(-1))

    def conditional(self, name: str, seen) -> models.BetaTerms | models.DirichletTerms:
        """How often a coordinate was 1, and how often 0."""
        if name == "prob":
            return models.BetaTerms(seen.sums, seen.counts.unsqueeze(-1) - seen.sums)
        return super().conditional(name, seen)
