"""A formulation whose latents are normal vectors: factor analysis. An example of docs/howto/add_a_formulation.md."""

from dataclasses import dataclass
from typing import NamedTuple

import pyro
import torch
from pyro.distributions import Gamma, LowRankMultivariateNormal, Normal
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro import models


class Sums(NamedTuple):
    """Σ z z' (..., K, K), Σ x z' (..., D, K), Σ x² (..., D) and the number of observations (...), latents expected or drawn."""

    log_evidence: Tensor
    square: Tensor
    product: Tensor
    energy: Tensor
    number: Tensor

    def reduced(self, total):
        """The sums of all processes."""
        return Sums(self.log_evidence, *total(*self[1:]))


@dataclass(frozen=True, eq=False)
class FactorAnalysis(models.Formulation):
    """``z_i ~ N(0, I)``, ``x_id ~ N(w_d'z_i, 1/τ_d)``.  points x (..., N, D), loadings w (..., D, K), precision τ (..., D)."""

    loadings: Tensor
    precision: Tensor

    PARAMETERS = {
        "loadings": models.Parameter("feature factor", constraints.real, Normal),
        "precision": models.Parameter("feature", constraints.positive, Gamma),
    }
    DATA = {"points": models.Datum("observation feature")}
    RESULTS = {"log_evidence": "observation"}
    LATENTS = ("factors",)

    def plates(self, points, **sizes):
        """Check the points, and name the plates."""
        if points.shape[-1] != self.loadings.shape[-2]:
            raise ValueError("points must be (..., N, D), D as that of loadings; transpose them")
        batch = torch.broadcast_shapes(points.shape[:-2], self.batch_shape)
        return models.Plates(batch, observation=points.shape[-2], feature=points.shape[-1])

    def generate(self, plates, data, collapsed):
        """The Pyro program, with the factors or with them summed out."""
        w, noise = self.loadings.unsqueeze(-3), self.precision.reciprocal().unsqueeze(-2)
        with plates.enter("observation"):
            density = LowRankMultivariateNormal(w.new_zeros(w.shape[-2]), w, noise)
            if not collapsed:
                z = pyro.sample("factors", Normal(w.new_zeros(w.shape[-1]), 1.0).to_event(1))
                density = Normal((w @ z.unsqueeze(-1)).squeeze(-1), noise.sqrt()).to_event(1)
            pyro.sample("points", density, obs=data[0])

    def model(self, points):
        """The program without priors."""
        self.generate(self.plates(points), (points,), False)

    def collapsed(self, points):
        """The same, factors summed out."""
        self.generate(self.plates(points), (points,), True)

    def log_density(self, points):
        """``log N(x_i; 0, WW' + diag(1/τ))``, (..., N)."""
        w = self.loadings.unsqueeze(-3)
        density = LowRankMultivariateNormal(w.new_zeros(w.shape[-2]), w, self.precision.reciprocal().unsqueeze(-2))
        return density.log_prob(points)

    def _factors(self, points):
        """Mean (..., N, K) of each observation's factors, and the Cholesky root (..., K, K) of their precision."""
        scaled = self.precision.unsqueeze(-1) * self.loadings
        root = torch.linalg.cholesky(torch.eye(scaled.shape[-1]) + self.loadings.mT @ scaled)
        return torch.cholesky_solve((points @ scaled).mT, root).mT, root

    def _sums(self, points, z, spread):
        number = points.new_tensor(float(points.shape[-2]))
        return Sums(
            self.log_density(points), z.mT @ z + number * spread, points.mT @ z, points.square().sum(-2), number
        )

    def expect(self, data, centers=None):
        """The sums under the posterior of the factors."""
        mean, root = self._factors(*data)
        return self._sums(*data, mean, torch.cholesky_inverse(root))

    def draw_latents(self, data, leading, generator, centers):
        """The same with the factors drawn."""
        mean, root = self._factors(*data)
        noise = torch.randn((*leading, *mean.shape[-2:]), generator=generator, dtype=mean.dtype)
        return self._sums(*data, mean + torch.linalg.solve_triangular(root.mT, noise.mT, upper=True).mT, 0.0)

    def conditional(self, name, statistics):
        """Normal of each row of the loadings, Gamma of each precision."""
        square, product, w = statistics.square, statistics.product, self.loadings
        if name == "loadings":
            strength = self.precision.unsqueeze(-1)
            return models.CorrelatedTerms(strength.unsqueeze(-1) * square.unsqueeze(-3), strength * product)
        left = statistics.energy - 2 * (w * product).sum(-1) + ((w @ square) * w).sum(-1)
        return models.GammaTerms(0.5 * statistics.number.expand(left.shape), 0.5 * left.clamp_min(0.0))
