"""Attention as probability models: each formulation is a value of tensors with closed forms and a Pyro program."""

from probtx_pyro.models.bayesian import Bayesian, bayesian
from probtx_pyro.models.dependency_crf import DependencyCRF, LowRank
from probtx_pyro.models.distributions import FaceDirichlet, IsotropicMixture
from probtx_pyro.models.gaussian_keys import GaussianKeys
from probtx_pyro.models.gaussian_mixture import GaussianMixture, OutputModes
from probtx_pyro.models.hopfield import Hopfield, Retrieval
from probtx_pyro.models.linear_keys import linear_key_attention, linear_key_weights, linear_keys_program
from probtx_pyro.models.log_normalizer import LogNormalizer, TiltedFamily
from probtx_pyro.models.positions import (
    alibi_slopes,
    generalized_gaussian_log_prior,
    laplace_log_prior,
    offsets,
    stick_breaking_log_prior,
    uniform_log_prior,
)
from probtx_pyro.models.priors import MixturePriors

__all__ = [
    "GaussianMixture", "OutputModes",
    "GaussianKeys",
    "linear_key_attention", "linear_key_weights", "linear_keys_program",
    "DependencyCRF", "LowRank",
    "LogNormalizer", "TiltedFamily", "Hopfield", "Retrieval",
    "offsets", "uniform_log_prior", "laplace_log_prior", "alibi_slopes", "generalized_gaussian_log_prior", "stick_breaking_log_prior",
    "bayesian", "Bayesian", "MixturePriors", "FaceDirichlet", "IsotropicMixture",
]  # fmt: skip
