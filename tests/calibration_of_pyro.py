"""Pyro models for simulation-based calibration, and a kernel that draws independently from an exact posterior or a wrong one."""

import pyro
import torch
from pyro.distributions import HalfNormal, Normal
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel

DATA = {"n": 4, "y": torch.zeros(4)}
SCHOOLS = {"J": 3, "sigma": torch.tensor([10.0, 11.0, 12.0]), "y": torch.zeros(3)}


def normal_mean(n, y=None, noise=1.0):
    mu = pyro.sample("mu", Normal(0.0, 1.0))
    with pyro.plate("place", n):
        pyro.sample("y", Normal(mu, noise), obs=y)


def schools(J, sigma, y=None):
    mu = pyro.sample("mu", Normal(0.0, 5.0))
    tau = pyro.sample("tau", HalfNormal(5.0))
    with pyro.plate("J", J):
        theta = pyro.sample("theta", Normal(mu, tau))
        pyro.sample("y", Normal(theta, sigma), obs=y)


class ExactNormal(MCMCKernel):
    """Mean of normal data of unit variance under a standard normal prior; ``spread`` other than 1 is the planted fault."""

    transforms = {}

    def __init__(self, model, spread=1.0):
        self.model = model
        self.spread = spread

    def setup(self, warmup_steps, *args, y, **kwargs):
        self.precision = 1 + len(y)
        self.mean = y.sum() / self.precision

    @property
    def initial_params(self):
        return {"mu": torch.zeros(())}

    def sample(self, params):
        return {"mu": self.mean + self.spread * torch.randn(()) / self.precision**0.5}
