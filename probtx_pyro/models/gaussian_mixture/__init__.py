"""The Gaussian-mixture MAP transformer (Movellan & Gabbur 2020)."""

from probtx_pyro.models.gaussian_mixture.answers import OutputModes
from probtx_pyro.models.gaussian_mixture.mixture import GaussianMixture

__all__ = ["GaussianMixture", "OutputModes"]
