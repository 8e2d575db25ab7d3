"""Classifiers of texts: one category for the whole, read from the root of a dependency CRF or the mean word of a transformer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from probtx_pyro.data import Vocabulary
from probtx_pyro.nn import ENCODERS, TextClassifier
from probtx_pyro.train._encoders import EncoderSettings
from probtx_pyro.train._labelling import Example, LabellingSettings, accuracy, labelling
from probtx_pyro.train._loop import train_task
from probtx_pyro.train._task import RunOptions

Texts = Sequence[tuple[Sequence[str], str]]


class ClassifierRun(NamedTuple):
    """A finished run.

    model, vocabulary, categories: the trained model, its words, and the categories in the order of its logits.
    results: as in `TaggerRun`, with the losses in nats a text.
    """

    model: TextClassifier
    vocabulary: Vocabulary
    categories: tuple[str, ...]
    results: dict[str, Any]


def text_classifier(settings: EncoderSettings, words: int, categories: Sequence[int]) -> TextClassifier:
    """Return an untrained classifier.

    Parameters
    ----------
    settings
        Settings of the run.
    words
        Number of words.
    categories
        Number of the categories, alone.
    """
    summary = ENCODERS[settings.encoder].summary
    return settings.model(TextClassifier, words, root=True, num_categories=categories[0], summary=summary)


def train_classifier(
    settings: LabellingSettings, parts: Mapping[str, Texts], out: Path | None = None, **run: Unpack[RunOptions]
) -> ClassifierRun:
    """Train a classifier and keep the parameters of the best validation.

    Parameters
    ----------
    settings, parts
        Settings, and the texts of the parts of the data by name, each text the words and the category; parts as in
        `train_tagger`.
    out, run
        As in `train_language_model`.

    Raises
    ------
    ValueError
        An empty part, texts without words, and as in `train_language_model`.
    """
    rows = {name: [Example(tuple(words), ((of,),)) for words, of in part] for name, part in parts.items()}

    task = labelling(settings, rows, text_classifier, lambda logits: [logits[:, None]], {"accuracy": accuracy})
    model, results = train_task(task, out, **run)
    return ClassifierRun(model, Vocabulary("word", task.tokens), task.labels[0], results)


__all__ = ["ClassifierRun", "text_classifier", "train_classifier"]
