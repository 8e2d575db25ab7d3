"""The dependency CRF: self-attention as mean-field inference over sentence structure (Wu & Tu)."""

from probtx_pyro.models.dependency_crf._densities import Marginals
from probtx_pyro.models.dependency_crf._mean_field import MeanField
from probtx_pyro.models.dependency_crf._parameters import LowRank
from probtx_pyro.models.dependency_crf.crf import DependencyCRF, LabelledCRF

__all__ = ["LabelledCRF", "DependencyCRF", "LowRank", "Marginals", "MeanField"]
