"""A formulation whose observations depend on each other, and whose answers depend on its data: a Gaussian process."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import pyro
import torch
from pyro.distributions import Gamma, MultivariateNormal, Normal
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro import models


class Squares(NamedTuple):
    """``|y - f|²`` and ``f'K⁻¹f`` (...), of a curve that is expected or drawn, and the number of its heights."""

    log_evidence: Tensor
    residual: Tensor
    energy: Tensor
    number: int

    def reduced(self, total):
        """Refused: heights depend on each other."""
        raise NotImplementedError("process_group: the heights of a Gaussian process cannot be spread over processes")


@dataclass(frozen=True, eq=False)
class GaussianProcess(models.Formulation):
    """``f ~ N(0, K/τ)``, ``y_t ~ N(f(x_t), 1/β)``, ``K_st = exp(-|x_s - x_t|)``.  places x (..., T, D), heights y (..., T)."""

    scale: Tensor
    noise: Tensor
    seen: tuple[Tensor, ...] = ()

    PARAMETERS = {
        "scale": models.Parameter("", constraints.positive, Gamma, logarithmic=True),
        "noise": models.Parameter("", constraints.positive, Gamma, logarithmic=True),
    }
    DATA = {"places": models.Datum("place feature", "given"), "heights": models.Datum("place")}
    RESULTS = {"log_evidence": "place", "expected_outputs": "place"}
    LATENTS, AT_DRAWS, PREQUENTIAL = ("curve",), (), True

    def plates(self, places, heights=None, **sizes):
        """Name the plate of the places."""
        return models.Plates(torch.broadcast_shapes(places.shape[:-2], self.batch_shape), place=places.shape[-2])

    def _kernels(self, places, others):
        kernel = torch.exp(-torch.cdist(places, others)) / self.scale[..., None, None]
        return kernel, kernel + torch.eye(*kernel.shape[-2:]) / self.noise[..., None, None]

    def generate(self, plates, data, collapsed):
        """The Pyro program, with the curve or with it summed out."""
        kernel, spread = self._kernels(data[0], data[0])
        with plates.enter(None):
            density = MultivariateNormal(torch.zeros(kernel.shape[-1]), spread if collapsed else kernel)
            if not collapsed:
                curve = pyro.sample("curve", density)
                density = Normal(curve, self.noise.rsqrt().unsqueeze(-1).expand(curve.shape)).to_event(1)
            pyro.sample("heights", density, obs=data[1])

    def log_density(self, places, heights):
        """Each height given those before it, (..., T): innovations of the Cholesky factor."""
        root = torch.linalg.cholesky(self._kernels(places, places)[1])
        scaled = torch.linalg.solve_triangular(root, heights.unsqueeze(-1), upper=False).squeeze(-1)
        return Normal(0.0, 1.0).log_prob(scaled) - root.diagonal(dim1=-2, dim2=-1).log()

    def conditioned(self, data):
        """The process that has seen these heights."""
        return replace(self, seen=tuple(data))

    def expected_outputs(self, places):
        """The mean height at each place given what was seen, (..., T)."""
        return self._curve(places, *self.seen)[0]

    def _curve(self, asked, places, heights):
        gain = torch.linalg.solve(self._kernels(places, places)[1], self._kernels(places, asked)[0])
        spread = self._kernels(asked, asked)[0] - gain.mT @ self._kernels(places, asked)[0]
        return (gain.mT @ heights.unsqueeze(-1)).squeeze(-1), spread

    def _squares(self, data, curve, spread):
        inverse = torch.linalg.inv(torch.exp(-torch.cdist(data[0], data[0])))
        energy = torch.einsum("...s,...st,...t->...", curve, inverse, curve) + (inverse * spread).sum((-2, -1))
        residual = (data[1] - curve).square().sum(-1) + spread.diagonal(dim1=-2, dim2=-1).sum(-1)
        return Squares(self.log_density(*data), residual, energy, curve.shape[-1])

    def expect(self, data, centers=None):
        """The squares under the posterior of the curve."""
        return self._squares(data, *self._curve(data[0], *data))

    def draw_latents(self, data, leading, generator, centers):
        """The squares of a curve that is drawn."""
        mean, spread = self._curve(data[0], *data)
        noise = torch.randn((*leading, mean.shape[-1], 1), generator=generator, dtype=mean.dtype)
        return self._squares(data, mean + (torch.linalg.cholesky(spread) @ noise).squeeze(-1), 0 * spread)

    def conditional(self, name, statistics):
        """Gamma of either precision."""
        rate = statistics.energy if name == "scale" else statistics.residual
        return models.GammaTerms(torch.full_like(rate, 0.5 * statistics.number), 0.5 * rate)
