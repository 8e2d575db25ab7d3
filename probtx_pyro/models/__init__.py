"""Attention as probability models: each formulation is a value of tensors with closed forms and a Pyro program."""

from typing import TYPE_CHECKING

from torch.serialization import add_safe_globals

from probtx_pyro._lazy import lazily
from probtx_pyro.models import layers
from probtx_pyro.models._bayesian import Bayesian, bayesian
from probtx_pyro.models._from_points import from_points, held_out_evidence
from probtx_pyro.models._plates import Plates
from probtx_pyro.models._problem import Problem
from probtx_pyro.models.dependency_crf import DependencyCRF, LowRank
from probtx_pyro.models.formulation import (
    CONJUGATE,
    BetaTerms,
    CorrelatedTerms,
    Datum,
    DirichletTerms,
    Formulation,
    GammaTerms,
    Latents,
    NormalTerms,
    Parameter,
    SufficientStatistics,
    WishartTerms,
)
from probtx_pyro.models.gaussian_keys import GaussianKeys
from probtx_pyro.models.gaussian_mixture import GaussianMixture, OutputModes
from probtx_pyro.models.hash_table import SoftHashTable
from probtx_pyro.models.hopfield import FixedPoints, Hopfield, Movement, Retrieval
from probtx_pyro.models.linear_keys import LinearKeys, linear_key_attention
from probtx_pyro.models.log_normalizer import LogNormalizer
from probtx_pyro.models.mixture import WEIGHTS, Mixture
from probtx_pyro.models.positions import (
    alibi_slopes,
    generalized_gaussian_log_prior,
    laplace_log_prior,
    offsets,
    stick_breaking_log_prior,
    uniform_log_prior,
)
from probtx_pyro.models.potts_field import Edges, PottsField, PottsMeanField
from probtx_pyro.models.priors import FLAT, Saved
from probtx_pyro.models.regression_memory import (
    Discount,
    Drift,
    PullBack,
    RegressionMemory,
    Reset,
    Static,
    Walk,
)
from probtx_pyro.models.soft_kmeans import Clustering, SoftKMeans

if TYPE_CHECKING:
    from probtx_pyro.models._soft_kmeans_estimator import SoftKMeansEstimator as SoftKMeansEstimator

# for torch.load(weights_only=True); a formulation adds itself
add_safe_globals([Bayesian, Saved, LowRank, Clustering, Edges])


_ESTIMATOR = "_soft_kmeans_estimator"
__getattr__ = lazily(
    __name__, {_ESTIMATOR: ("SoftKMeansEstimator",)}, {_ESTIMATOR: ("sklearn", "scikit-learn", "tour")}
)[1]

__all__ = ["GaussianMixture", "OutputModes", "from_points", "held_out_evidence", "GaussianKeys", "LinearKeys"]
__all__ += ["linear_key_attention", "DependencyCRF", "LowRank", "LogNormalizer", "Hopfield", "Retrieval", "FixedPoints"]
__all__ += ["Movement", "SoftKMeans", "Clustering", "SoftHashTable", "offsets", "uniform_log_prior"]
__all__ += ["laplace_log_prior", "alibi_slopes", "generalized_gaussian_log_prior", "stick_breaking_log_prior"]
__all__ += ["RegressionMemory", "Drift", "Static", "Discount", "PullBack", "Walk", "Reset", "layers"]
__all__ += ["bayesian", "Bayesian", "FLAT", "Formulation", "Mixture", "Parameter", "Datum", "Plates", "Problem"]
__all__ += ["SufficientStatistics", "Latents", "WEIGHTS", "NormalTerms", "GammaTerms", "DirichletTerms"]
__all__ += ["CorrelatedTerms", "WishartTerms", "BetaTerms", "CONJUGATE", "PottsField", "PottsMeanField", "Edges"]
