"""The dependency CRF: self-attention as mean-field inference over sentence structure (Wu & Tu)."""

from probtx_pyro.models.dependency_crf._exact import Marginals
from probtx_pyro.models.dependency_crf._labelled import LabelledCRF
from probtx_pyro.models.dependency_crf._mean_field import MeanField
from probtx_pyro.models.dependency_crf.crf import DependencyCRF
from probtx_pyro.models.dependency_crf.low_rank import LowRank

__all__ = ["LabelledCRF", "DependencyCRF", "LowRank", "Marginals", "MeanField"]
