"""A formulation that the package does not have, spins on a ring, is drawn from and annealed without a line elsewhere."""

import math
from dataclasses import dataclass

import pytest
import torch
from strategies import generator
from tolerances import rounding
from torch.distributions import constraints

from probtx_pyro import inference, models, results


@dataclass(frozen=True, eq=False, repr=False)
class Ring(models.Formulation):
    """Spins on a ring: ``log φ(x) = Σ_i f_i x_i + coupling Σ_i x_i x_{i+1}``, x_i = -1 or 1, f ``field`` (..., N)."""

    field: torch.Tensor
    coupling: float = 0.5

    PARAMETERS = {"field": models.Parameter("place", constraints.real)}
    DATA = {"spins": models.Datum("place", "latent")}
    RESULTS = {"spin": "place", "attention": "place sign"}

    def latents(self, data):
        return Spins(self, *data)


class Spins:
    def __init__(self, ring, known):
        self.ring, self.known = ring, torch.zeros_like(ring.field) if known is None else known

    def logits(self, state, beta):
        x = state["spin"]
        return self.ring.field + beta * self.ring.coupling * (x.roll(1, -1) + x.roll(-1, -1))

    def drawn(self, logits, generator):
        up = torch.rand(logits.shape, generator=generator, dtype=logits.dtype) < torch.sigmoid(2 * logits)
        return torch.where(self.known == 0, torch.where(up, 1.0, -1.0), self.known)

    def start(self, num_chains, generator):
        return {"spin": self.drawn(self.ring.field.expand(num_chains, *self.ring.field.shape), generator)}

    def sweep(self, state, generator, beta=1.0):
        new = {"spin": state["spin"].clone()}
        for i in range(new["spin"].shape[-1]):
            new["spin"][..., i] = self.drawn(self.logits(new, beta), generator)[..., i]
        return new

    def log_density(self, state, *betas):
        x = state["spin"]
        pairs = (x * x.roll(1, -1)).sum(-1) * self.ring.coupling
        return torch.stack([(self.ring.field * x).sum(-1) + beta * pairs for beta in betas])

    def log_partition(self):
        free = torch.stack([self.ring.field, -self.ring.field]).logsumexp(0)
        return torch.where(self.known == 0, free, self.known * self.ring.field).sum(-1)

    def complete(self, state, generator):
        return dict(state)

    def attention(self, state):
        return torch.stack([state["spin"] < 0, state["spin"] > 0], -1).to(self.ring.field.dtype)


def test_a_formulation_of_ones_own_is_drawn_annealed_and_converted():
    ring = Ring(torch.randn(2, 5, generator=generator(0), dtype=torch.float64))
    known = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64).expand(2, 5)
    every = torch.cartesian_prod(*(torch.tensor([-1.0, 1.0], dtype=torch.float64),) * 5).unsqueeze(1)
    every = every[every[:, 0, 1] > 0]
    logs = Spins(ring, known).log_density({"spin": every.expand(-1, 2, -1)}, 1.0)[0]
    draws = inference.gibbs(ring, known, num_samples=10, num_chains=400, num_warmup=10, seed=0)
    means = draws.samples["spin"].mean(1)
    exact = torch.einsum("mb,mn->bn", logs.softmax(0), every[:, 0])
    assert ((means.mean(0) - exact).abs() <= 5 * means.std(0) / math.sqrt(400) + rounding(exact)).all()
    estimate = inference.annealed_log_partition(ring, known, num_temperatures=10, seed=0)
    assert ((estimate.log_partition - logs.logsumexp(0)).abs() < 5 * estimate.standard_error).all()
    idata = results.to_inference_data(draws)
    assert idata["posterior"]["attention"].dims == ("chain", "draw", "batch", "place", "sign")
    assert list(idata["observed_data"]) == ["spins"]


def test_a_mixture_has_no_latent_choices_to_anneal():
    with pytest.raises(
        NotImplementedError, match=r"GaussianMixture has no latents; .* take attention and log_evidence"
    ):
        inference.annealed_log_partition(models.GaussianMixture(torch.eye(2)), seed=0)
