"""Whole tasks on the public API: segmentation of a picture from clicks, and dependency trees read out of attention."""

from probtx_pyro.apps import segmentation
from probtx_pyro.apps._parsing import DECODERS, AttentionParser

__all__ = ["segmentation", "AttentionParser", "DECODERS"]
