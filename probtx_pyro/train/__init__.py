"""Training on one core or on many machines, with checkpoints that resume to the same numbers."""

from probtx_pyro.train._loading import load_run
from probtx_pyro.train.adaptation import TagScores, adapt_tagger, score_tagger
from probtx_pyro.train.labelling import ClassifierSettings, Example, LabellingSettings, train_classifier, train_tagger
from probtx_pyro.train.language_model import LanguageModelSettings, train_language_model
from probtx_pyro.train.loop import CHECKPOINT, RESULTS, LoopSettings, Run, Task, train_task
from probtx_pyro.train.masked import MaskedSettings, train_masked_language_model
from probtx_pyro.train.sources import TaggedData, annotated_sentences, classified_texts, cogs_tags, tagged_sentences
from probtx_pyro.train.translation import TranslationSettings, train_translation

__all__ = ["Run", "load_run", "CHECKPOINT", "RESULTS", "LoopSettings", "Task", "train_task"]
__all__ += ["LanguageModelSettings", "train_language_model", "MaskedSettings", "train_masked_language_model"]
__all__ += ["TranslationSettings", "train_translation", "Example", "LabellingSettings", "train_tagger"]
__all__ += ["TaggedData", "tagged_sentences", "cogs_tags", "annotated_sentences"]
__all__ += ["adapt_tagger", "TagScores", "score_tagger"]
__all__ += ["classified_texts", "ClassifierSettings", "train_classifier"]
