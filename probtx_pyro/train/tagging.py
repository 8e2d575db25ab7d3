"""Taggers: one or several tags for every word of a sentence."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from probtx_pyro.data import Vocabulary
from probtx_pyro.nn import WordTagger
from probtx_pyro.train._encoders import EncoderSettings
from probtx_pyro.train._labelling import LabellingSettings, Metric, Parts, accuracy, labelling, sentence_accuracy
from probtx_pyro.train._loop import train_task
from probtx_pyro.train._task import RunOptions

COUNTED = {"accuracy": accuracy, "sentence_accuracy": sentence_accuracy}


class TaggerRun(NamedTuple):
    """A finished run.

    model, vocabulary, tags: the trained model, its words, and the tags of each column in the order of its logits.
    results: settings, ``losses`` (nats a word at every step, summed over the columns), ``validation`` ([step, selected metric]
        pairs), ``kept`` (the step of the best), ``metrics`` of all other parts than ``"train"`` under the parameters of that step,
        ``parameters``, ``seconds`` and the machine; as in the results file.
    """

    model: WordTagger
    vocabulary: Vocabulary
    tags: tuple[tuple[str, ...], ...]
    results: dict[str, Any]


def word_tagger(settings: EncoderSettings, words: int, tags: Sequence[int]) -> WordTagger:
    """Return an untrained tagger.

    Parameters
    ----------
    settings
        Settings of the run.
    words
        Number of words.
    tags
        Number of the tags of each column.
    """
    return settings.model(WordTagger, words, num_tags=tags)


def train_tagger(
    settings: LabellingSettings,
    parts: Parts,
    out: Path | None = None,
    *,
    metrics: Mapping[str, Metric] | None = None,
    **run: Unpack[RunOptions],
) -> TaggerRun:
    """Train a tagger and keep the parameters of the best validation.

    Parameters
    ----------
    settings, parts
        Settings, and the sentences of the parts of the data by name: ``"train"``, ``"dev"`` and any others, on which the kept
        model is tested.
    metrics
        Besides ``"accuracy"`` of tags and ``"sentence_accuracy"``, metrics of one column of tags by name: from the predicted and
        the given tags, a list for each sentence. ``settings.select`` may be any of them.
    out, run
        As in `train_language_model`.

    Raises
    ------
    ValueError
        An empty part, sentences without words or with another number of tags, a metric that is not there or that needs one
        column, and as in `train_language_model`.
    """
    for name, part in parts.items():
        for i, (words, tags) in enumerate(part):
            if len(words) != len(tags):
                raise ValueError(
                    f"sentence {i + 1} of the {name} part has {len(words)} words and tags for {len(tags)}; mend it"
                )

    task = labelling(settings, parts, word_tagger, lambda logits: logits, COUNTED, metrics)
    model, results = train_task(task, out, **run)
    return TaggerRun(model, Vocabulary("word", task.tokens), task.labels, results)


__all__ = ["TaggerRun", "train_tagger", "word_tagger"]
