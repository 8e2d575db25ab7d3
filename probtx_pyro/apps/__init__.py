"""Whole tasks on the public API: segmentation from clicks, trees out of attention, classes from a memory, use of trained models of words."""

from typing import TYPE_CHECKING

from probtx_pyro._lazy import with_extra
from probtx_pyro.apps import memory, segmentation
from probtx_pyro.apps._language import HIDDEN, Guess, classify_texts, fill_masked, generate, tag_words
from probtx_pyro.apps._parsing import DECODERS, AttentionParser
from probtx_pyro.apps._translation import Translation, translate

if TYPE_CHECKING:
    from probtx_pyro.apps.memory._classifier import MemoryClassifier as MemoryClassifier

_ESTIMATOR = {"MemoryClassifier": "probtx_pyro.apps.memory._classifier"}
__getattr__ = with_extra(__name__, _ESTIMATOR, "sklearn scikit-learn", "tour")

__all__ = [
    "memory", "segmentation", "AttentionParser", "DECODERS", "MemoryClassifier",
    "generate", "tag_words", "classify_texts", "fill_masked", "Guess", "HIDDEN",
    "translate", "Translation",
]  # fmt: skip
