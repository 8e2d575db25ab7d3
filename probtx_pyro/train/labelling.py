"""Labels of words or of whole texts: the task that taggers and classifiers share, and both.

A tagger has one or several tags for every word of a sentence. A classifier has one category for the whole text, read
from the mean word, or from the root of a dependency CRF.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple, Unpack

import torch
from pyro.distributions import Normal
from torch import Tensor, nn
from torch.nn import functional as F

from probtx_pyro.apps._batches import require_room
from probtx_pyro.data.text import Vocabulary, checked_words
from probtx_pyro.models import DependencyCRF
from probtx_pyro.nn import SUMMARIES, DependencyCRFEncoder, TextClassifier, WordTagger, log_prior_density
from probtx_pyro.nn.tasks import is_padding
from probtx_pyro.train import loop
from probtx_pyro.train.loop import Batch, EncoderSettings, Processes, Run, RunOptions, Task, train_task, unknown_share
from probtx_pyro.train.rows import NO_TARGET, WordRows, answers, drawn_rows, drop_words, known_words, numbered

Metric = Callable[[list[list[str]], list[list[str]]], float]


class Example(NamedTuple):
    """Words and their labels.

    words: of a sentence or text.
    labels: one tuple for each labelled thing (each word, or the text), with one label for each column.
    """

    words: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]


Parts = Mapping[str, Sequence[Example]]
Texts = Sequence[tuple[Sequence[str], str]]


@dataclass(frozen=True, kw_only=True)
class LabellingSettings(EncoderSettings):
    """Settings of a task on words with labels.

    unknown: a word that occurs c times in training is made unknown with probability unknown / (unknown + c) at each
        draw.
    characters: rows of the table in which words have features of their spelling, known or not; 0 is words alone.
    select: the metric by which the validation chooses the parameters that are kept.
    prior_spread: standard deviation of Normal priors with mean 0 on the potentials of a dependency CRF, whose log
        density is added to the objective; None adds nothing.
    """

    unknown: float = 0.25
    characters: int = 0
    select: str = "accuracy"
    prior_spread: float | None = None

    RULES = {
        **EncoderSettings.RULES,
        **dict.fromkeys(("unknown", "characters"), (lambda value: value >= 0, "0 or more")),
        "prior_spread": (lambda value: value is None or value > 0, "positive, or None"),
    }

    def model(self, words: int, labels: Sequence[int]) -> Any:
        """The untrained tagger, from the number of words and the number of the tags of each column."""
        return self.with_head(WordTagger, words, num_tags=labels, spellings=self.characters)


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings(LabellingSettings):
    """Settings of a classifier of texts.

    summary: a name of `nn.SUMMARIES`, by which the text is read from its words.
    """

    summary: str = "mean"

    RULES = {**LabellingSettings.RULES, "summary": SUMMARIES}

    def model(self, words: int, labels: Sequence[int]) -> Any:
        """The untrained classifier, from the number of words and of the categories, the one column of labels."""
        read, root = SUMMARIES[self.summary]
        head = {"num_categories": labels[0], "summary": read, "spellings": self.characters}
        return self.with_head(TextClassifier, words, root=root, **head)


def accuracy(right: Tensor, real: Tensor) -> float:
    """Return the share of the labels that are right.

    Parameters
    ----------
    right
        (row, thing, column) True where a label is right.
    real
        (row, thing) True where a thing is no padding.
    """
    return float(right[real].double().mean())


def sentence_accuracy(right: Tensor, real: Tensor) -> float:
    """Return the share of the rows whose every label is right.

    Parameters
    ----------
    right, real
        As in `accuracy`.
    """
    return float((right.all(-1) | ~real).all(-1).double().mean())


def potential_priors(encoder: nn.Module, spread: float) -> dict[str, Normal]:
    """Return Normal priors with mean 0 on the potentials of an encoder, by name.

    Parameters
    ----------
    encoder
        A `DependencyCRFEncoder`; of factors of low rank, the prior is on their product.
    spread
        Standard deviation.

    Raises
    ------
    ValueError
        Another encoder.
    """
    if not isinstance(encoder, DependencyCRFEncoder):
        raise ValueError("prior_spread is of potentials, which the encoder crf alone has; leave it out")
    return {name: Normal(0.0, spread) for name in encoder.constrained() if name in DependencyCRF.PARAMETERS}


def labelling(
    settings: LabellingSettings,
    parts: Parts,
    read: Callable[[Any], Sequence[Tensor]],
    counted: Mapping[str, Callable[[Tensor, Tensor], float]],
    metrics: Mapping[str, Metric] | None = None,
) -> Task:
    """A task whose loss is the cross entropy of a thing, summed over the columns.

    Parameters
    ----------
    settings, parts
        Settings, and the parts of the data by name: ``"train"``, ``"dev"`` and any others, on which the kept model is
        tested.
    read
        From the output of the model to logits (row, thing, label), one tensor a column.
    counted
        Metrics by name, from which labels are right (row, thing, column) and which things are no padding (row, thing).
    metrics
        Further ones, from predicted and given labels (a list for each row) of the one column.

    Raises
    ------
    ValueError
        An empty part, rows that have no words, unequal columns or more words than ``context``, a metric that is not
        there or that needs one column.
    """
    columns, metrics = _columns(parts), metrics or {}
    if settings.select not in {**counted, **metrics}:
        raise ValueError(f"select must be one of {', '.join({**counted, **metrics})}, not {settings.select!r}")
    if metrics and columns > 1:
        raise ValueError(f"{', '.join(metrics)} is of one column of labels, and there are {columns}; leave it out")
    vocabulary, counts = known_words([row.words for row in parts["train"]], settings.rarest, settings.characters)
    labels = tuple(tuple(sorted({row[k] for item in parts["train"] for row in item.labels})) for k in range(columns))
    rows = {name: _rows(part, vocabulary, labels, name) for name, part in parts.items() if part}
    drawn = drawn_rows(rows["train"], settings)

    model = settings.model(len(vocabulary.tokens), tuple(map(len, labels)))
    for name, part in rows.items():
        require_room(model, [len(words) for words in part.words], f"in the {name} part, sentence")
    if settings.prior_spread is not None:
        model.encoder.priors = potential_priors(model.encoder, settings.prior_spread)
    things = sum(map(len, rows["train"].targets))

    def of_a_thing(model: nn.Module) -> Tensor | float:
        return 0.0 if settings.prior_spread is None else log_prior_density(model) / things

    def batch(step: int) -> Batch:
        words, targets = rows["train"].pick(drawn(step).tolist())
        words = drop_words(words, counts, settings.unknown, settings.draw(step))
        return (words, targets), int((targets[..., 0] != NO_TARGET).sum())

    def logits(model: nn.Module, words: Tensor) -> Sequence[Tensor]:
        return read(model(words.clamp(min=0), is_padding(words)))

    def loss(model: nn.Module, words: Tensor, targets: Tensor) -> Tensor:
        found = (
            F.cross_entropy(x.flatten(0, 1), y.flatten(), ignore_index=NO_TARGET, reduction="sum")
            for x, y in zip(logits(model, words), targets.unbind(-1), strict=True)
        )
        return torch.stack(list(found)).sum()

    def best(model: nn.Module, words: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([x.argmax(-1) for x in logits(model, words)], -1)

    def evaluate(model: nn.Module, name: str, fabric: Processes) -> dict[str, float]:
        _, given = rows[name].pick(range(len(rows[name].words)))
        predicted = answers(model, rows[name], fabric, best, torch.zeros_like(given))
        real, right = given[..., 0] != NO_TARGET, predicted == given
        found = {metric: count(right, real) for metric, count in counted.items()}
        if metrics:
            given_labels = [[label for (label,) in item.labels] for item in parts[name]]
            rows_of = zip(predicted[..., 0].tolist(), given_labels, strict=True)
            lists = [[labels[0][i] for i in row[: len(of)]] for row, of in rows_of]
            found.update({metric: float(of(lists, given_labels)) for metric, of in metrics.items()})
        return found

    others = {name: part for name, part in rows.items() if name != "train"}
    return Task(
        label=settings.encoder,
        settings=settings,
        model=model,
        texts=(json.dumps([name, *part]) for name, part in parts.items()),
        vocabulary=vocabulary,
        labels=labels,
        words=fmean(len(row.words) for row in parts["train"]),
        batch=batch,
        loss=loss,
        log_prior_density=of_a_thing,
        evaluate=evaluate,
        metric=settings.select,
        keep_best=True,
        unknown={name: unknown_share(part.words) for name, part in others.items()},
    )


def _columns(parts: Parts) -> int:
    """The number of columns, the same in all rows."""
    for name in ("train", "dev"):
        if not parts.get(name):
            raise ValueError(f"the {name} part is empty; give at least one row")
    columns = len(parts["train"][0].labels[0]) if parts["train"][0].labels else 0
    for name, part in parts.items():
        for i, row in enumerate(part):
            if not columns or not row.labels or any(len(labels) != columns for labels in row.labels):
                raise ValueError(f"row {i + 1} of the {name} part has not {columns} columns of labels; mend it")
    return columns


def _rows(part: Sequence[Example], vocabulary: Vocabulary, labels: Sequence[Sequence[str]], name: str) -> WordRows:
    """Numbers; a label that training does not have gets a number that is never predicted."""
    number = [{label: i for i, label in enumerate(column)} for column in labels]
    targets = [
        torch.tensor([[of.get(x, len(of)) for of, x in zip(number, row, strict=True)] for row in item.labels])
        for item in part
    ]
    return WordRows(numbered(vocabulary, [item.words for item in part], name), targets)


def _require_words(parts: Mapping[str, Sequence[tuple[Sequence[str], Any]]]) -> None:
    """Refuse parts without names, and texts in the place of words."""
    loop.require("parts", parts, Mapping, "the rows of each part by name, {'train': ..., 'dev': ...}")
    for name, part in parts.items():
        checked_words(f"words of parts[{name!r}]", [words for words, _ in part])


COUNTED = {"accuracy": accuracy, "sentence_accuracy": sentence_accuracy}


def train_tagger(
    settings: LabellingSettings,
    parts: Parts,
    out: str | os.PathLike[str] | None = None,
    *,
    metrics: Mapping[str, Metric] | None = None,
    **run: Unpack[RunOptions],
) -> Run[WordTagger, Vocabulary]:
    """Train a tagger and keep the parameters of the best validation.

    Parameters
    ----------
    settings, parts
        Settings, and the sentences of the parts of the data by name: ``"train"``, ``"dev"`` and any others, on which
        the kept model is tested.
    metrics
        Besides ``"accuracy"`` of tags and ``"sentence_accuracy"``, metrics of one column of tags by name: from the
        predicted and the given tags, a list for each sentence. ``settings.select`` may be any of them.
    out, run
        As in `train_language_model`.

    Raises
    ------
    ValueError
        Texts in the place of words, tags without columns, an empty part, sentences without words or with another number
        of tags, a metric that is not there or that needs one column, and as in `train_language_model`.
    """
    loop.require("settings", settings, LabellingSettings, "train.LabellingSettings(...)")
    _require_words(parts)
    for name, part in parts.items():
        for i, (words, tags) in enumerate(part):
            checked_words(f"parts[{name!r}][{i}].labels", tags, "give one for each column, as in ('NOUN',)")
            if len(words) != len(tags):
                raise ValueError(f"sentence {i + 1} of the {name} part has tags for {len(tags)} of {len(words)} words")
    return train_task(labelling(settings, parts, lambda logits: logits, COUNTED, metrics), out, **run)


def train_classifier(
    settings: ClassifierSettings,
    parts: Mapping[str, Texts],
    out: str | os.PathLike[str] | None = None,
    **run: Unpack[RunOptions],
) -> Run[TextClassifier, Vocabulary]:
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
        Texts in the place of their words, an empty part, texts without words, a summary that the encoder does not have,
        and as in `train_language_model`.
    """
    loop.require("settings", settings, ClassifierSettings, "train.ClassifierSettings(...)")
    _require_words(parts)
    rows = {name: [Example(tuple(words), ((of,),)) for words, of in part] for name, part in parts.items()}
    task = labelling(settings, rows, lambda logits: [logits[:, None]], {"accuracy": accuracy})
    return train_task(task, out, **run)
