"""Soft k-means: clustering becomes attention."""

from probtx_pyro.models.soft_kmeans.clusters import Clustering, SoftKMeans
from probtx_pyro.models.soft_kmeans.descent import OBJECTIVES

__all__ = ["OBJECTIVES", "Clustering", "SoftKMeans"]
