"""Attention as the gradient of a log normaliser (Shim)."""

from probtx_pyro.models.log_normalizer.families import TiltedFamily
from probtx_pyro.models.log_normalizer.measure import Conjugate, LogNormalizer

__all__ = ["Conjugate", "LogNormalizer", "TiltedFamily"]
