"""A formulation that is no mixture and has no latents: Bayesian linear regression. An example of docs/howto/add_a_formulation.md."""

from dataclasses import dataclass
from typing import NamedTuple

import pyro
import torch
from pyro.distributions import Gamma, Normal
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro import models


class Sums(NamedTuple):
    """All that a conditional reads of data: Σ x x' (..., D, D), Σ x y (..., D), Σ y² and the number of observations (...)."""

    log_evidence: Tensor
    square: Tensor
    product: Tensor
    energy: Tensor
    number: Tensor

    def reduced(self, total):
        """The sums of all processes."""
        return Sums(self.log_evidence, *total(*self[1:]))


@dataclass(frozen=True, eq=False)
class LinearRegression(models.Formulation):
    """``y_i ~ N(x_i'b, 1/τ)``.  inputs x (..., N, D), targets y (..., N), coefficients b (..., D), precision τ (...)."""

    coefficients: Tensor
    precision: Tensor

    PARAMETERS = {
        "coefficients": models.Parameter("feature", constraints.real, Normal, plate=False),
        "precision": models.Parameter("", constraints.positive, Gamma),
    }
    DATA = {"inputs": models.Datum("observation feature", "given"), "targets": models.Datum("observation")}
    RESULTS = {"log_evidence": "observation", "expected_outputs": "observation"}

    def plates(self, inputs, targets=None, **sizes):
        """Check the data, and name the plate of the observations."""
        self.require_given(inputs, sizes)
        if inputs.shape[-1] != self.coefficients.shape[-1] or (
            targets is not None and targets.shape[-1:] != inputs.shape[-2:-1]
        ):
            raise ValueError(
                "inputs must be (..., N, D) and targets (..., N), D as that of coefficients; transpose them"
            )
        leading = [inputs.shape[:-2], self.batch_shape, *([] if targets is None else [targets.shape[:-1]])]
        return models.Plates(torch.broadcast_shapes(*leading), observation=inputs.shape[-2])

    def generate(self, plates, data, collapsed):
        """The Pyro program; there is nothing to sum out."""
        with plates.enter("observation"):
            pyro.sample("targets", self.output_distribution(data[0]), obs=data[1])

    def model(self, inputs, targets=None):
        """The program without priors."""
        self.generate(self.plates(inputs, targets), (inputs, targets), True)

    collapsed = model

    def output_distribution(self, inputs):
        """The distribution of each target, (..., N)."""
        return Normal(self.expected_outputs(inputs), self.precision.rsqrt().unsqueeze(-1))

    def expected_outputs(self, inputs):
        """``x_i'b``, (..., N)."""
        return (inputs * self.coefficients.unsqueeze(-2)).sum(-1)

    def log_density(self, inputs, targets):
        """``log p(y_i | x_i)``, (..., N)."""
        return self.output_distribution(inputs).log_prob(targets)

    def expect(self, data, centers=None):
        """The sums; no latents, so nothing is expected."""
        x, y = data
        energy, number = y.square().sum(-1), torch.full_like(y[..., 0], y.shape[-1])
        return Sums(self.log_density(x, y), x.mT @ x, (x * y.unsqueeze(-1)).sum(-2), energy, number)

    def draw_latents(self, data, leading, generator, centers):
        """The same: nothing is drawn."""
        return self.expect(data)

    def conditional(self, name, statistics):
        """Normal of the coefficients, Gamma of the precision."""
        square, product, b = statistics.square, statistics.product, self.coefficients
        if name == "coefficients":
            return models.CorrelatedTerms(
                self.precision[..., None, None] * square, self.precision.unsqueeze(-1) * product
            )
        left = statistics.energy - 2 * (b * product).sum(-1) + (b * (square @ b.unsqueeze(-1)).squeeze(-1)).sum(-1)
        return models.GammaTerms(0.5 * statistics.number, 0.5 * left.clamp_min(0.0))
