"""Training on one core or on many machines, with checkpoints that resume to the same numbers."""

from probtx_pyro.train.language_model import ATTENTIONS, RESULTS, LanguageModelRun, Settings, train_language_model

__all__ = ["ATTENTIONS", "RESULTS", "LanguageModelRun", "Settings", "train_language_model"]
