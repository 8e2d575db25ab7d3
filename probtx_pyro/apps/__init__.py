"""Whole tasks on the public API: segmentation from clicks, trees out of attention, classes from a memory,
use of trained models of words.
"""

from typing import TYPE_CHECKING

from probtx_pyro._lazy import with_extra
from probtx_pyro.apps import memory, segmentation
from probtx_pyro.apps._language import HIDDEN, Guess, classify_texts, fill_masked, generate, tag_words
from probtx_pyro.apps._parsing import DECODERS, AttentionParser
from probtx_pyro.apps._translation import Translation, translate
from probtx_pyro.apps.segmentation import (
    LABEL_COLOURS,
    Click,
    ClickGame,
    InteractiveSegmenter,
    Segmentation,
    SegmentationSettings,
    first_clicks,
    lab_colours,
    marks_from_clicks,
    next_click,
    overlay,
    play_clicks,
    suggest_click,
    uncertainty,
)

if TYPE_CHECKING:
    from probtx_pyro.apps.memory._classifier import MemoryClassifier as MemoryClassifier

_ESTIMATOR = {"MemoryClassifier": "probtx_pyro.apps.memory._classifier"}
__getattr__ = with_extra(__name__, _ESTIMATOR, "sklearn scikit-learn", "tour")

__all__ = ["memory", "segmentation", "AttentionParser", "DECODERS", "MemoryClassifier"]
__all__ += ["generate", "tag_words", "classify_texts", "fill_masked", "Guess", "HIDDEN", "translate", "Translation"]
__all__ += ["InteractiveSegmenter", "Segmentation", "SegmentationSettings", "lab_colours", "LABEL_COLOURS", "overlay"]
__all__ += ["Click", "marks_from_clicks", "suggest_click", "uncertainty"]
__all__ += ["ClickGame", "first_clicks", "next_click", "play_clicks"]
