"""Training on one core or on many machines, with checkpoints that resume to the same numbers."""

from probtx_pyro.train.classification import ClassifierRun, train_classifier
from probtx_pyro.train.encoders import ENCODERS
from probtx_pyro.train.labelling import Example, LabellingSettings
from probtx_pyro.train.language_model import ATTENTIONS, LanguageModelRun, Settings, train_language_model
from probtx_pyro.train.loading import LoadedRun, load_run
from probtx_pyro.train.loop import RESULTS
from probtx_pyro.train.masked import MaskedRun, MaskedSettings, train_masked_language_model
from probtx_pyro.train.tagging import TaggerRun, train_tagger

__all__ = [
    "ATTENTIONS", "ENCODERS", "RESULTS",
    "LanguageModelRun", "Settings", "train_language_model",
    "MaskedRun", "MaskedSettings", "train_masked_language_model",
    "Example", "LabellingSettings", "TaggerRun", "train_tagger", "ClassifierRun", "train_classifier",
    "LoadedRun", "load_run",
]  # fmt: skip
