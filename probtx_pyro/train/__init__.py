"""Training on one core or on many machines, with checkpoints that resume to the same numbers."""

from probtx_pyro.train._adaptation import TagScores, adapt_tagger, score_tagger
from probtx_pyro.train._labelling import (
    ClassifierRun,
    ClassifierSettings,
    Example,
    LabellingSettings,
    TaggerRun,
    train_classifier,
    train_tagger,
)
from probtx_pyro.train._loading import LoadedRun, load_run
from probtx_pyro.train._loop import RESULTS
from probtx_pyro.train._sources import TaggedData, annotated_sentences, classified_texts, cogs_tags, tagged_sentences
from probtx_pyro.train.language_model import LanguageModelRun, LanguageModelSettings, train_language_model
from probtx_pyro.train.masked import MaskedRun, MaskedSettings, train_masked_language_model
from probtx_pyro.train.translation import TranslationRun, TranslationSettings, train_translation

__all__ = [
    "LanguageModelRun", "LanguageModelSettings", "train_language_model",
    "MaskedRun", "MaskedSettings", "train_masked_language_model",
    "TranslationRun", "TranslationSettings", "train_translation",
    "Example", "LabellingSettings", "TaggedData", "tagged_sentences", "cogs_tags", "TaggerRun", "train_tagger",
    "annotated_sentences", "adapt_tagger", "TagScores", "score_tagger",
    "classified_texts", "ClassifierSettings", "ClassifierRun", "train_classifier",
    "RESULTS", "LoadedRun", "load_run",
]  # fmt: skip
