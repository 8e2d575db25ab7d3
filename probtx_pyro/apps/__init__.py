"""Whole tasks on the public API: segmentation from clicks, trees out of attention, classes from a memory,
use of trained models of words. Names load on first use.
"""

from probtx_pyro._lazy import lazily

_NAMES = {
    "memory": ("memory",),
    "memory._classifier": ("MemoryClassifier",),
    "segmentation": (
        "segmentation InteractiveSegmenter Segmentation SegmentationSettings lab_colours LABEL_COLOURS overlay Click "
        "marks_from_clicks suggest_click uncertainty ClickGame first_clicks next_click play_clicks"
    ).split(),
    "_parsing": ("AttentionParser", "DECODERS"),
    "_language": ("generate", "tag_words", "classify_texts", "fill_masked", "Guess", "HIDDEN"),
    "_translation": ("translate", "Translation"),
}
_NEEDS = {"memory._classifier": ("sklearn", "scikit-learn", "tour")}
__all__, __getattr__, __dir__ = lazily(__name__, _NAMES, _NEEDS)
