"""Mixture of Gaussian keys (Nguyen et al. 2022)."""

from probtx_pyro.models.gaussian_keys.keys import GaussianKeys

__all__ = ["GaussianKeys"]
