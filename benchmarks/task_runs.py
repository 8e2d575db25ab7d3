"""The runs of `benchmarks.tasks`: what each task trains, and what it scores beyond the metrics of training."""

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from benchmarks.induced_trees import attachment
from probtx_pyro import train
from probtx_pyro.apps import tag_words
from probtx_pyro.data import Text, load_cogs, load_treebank, logical_form_of
from probtx_pyro.train import classified_texts, cogs_tags, tagged_sentences


class Words(nn.Module):
    """No encoder: words as they are."""

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:  # noqa: D102
        return x


def words_alone(width: int, *, context: int, dropout: float, root: bool) -> nn.Module:
    """Build no encoder."""
    if root:
        raise ValueError("words alone have no root; give the summary mean, or the encoder crf")
    return Words()


def tagger(source: str, column: str = "upos") -> Callable[..., dict[str, Any]]:
    """A task of tags."""

    def run(settings: train.LabellingSettings, tuning: bool, **where: Any) -> dict[str, Any]:
        data = tagged_sentences(source, column)
        settings = replace(settings, select=data.select)
        return train.train_tagger(settings, without_test(data.parts, tuning), metrics=data.metrics, **where).results

    return run


def without_test(parts: Any, tuning: bool) -> dict[str, Any]:
    """The parts of the data that a run may see."""
    return {name: part for name, part in parts.items() if not tuning or name in ("train", "dev")}


def classifier(settings: train.ClassifierSettings, tuning: bool, **where: Any) -> dict[str, Any]:
    """Banking77."""
    return train.train_classifier(settings, without_test(classified_texts("banking77"), tuning), **where).results


def masked(settings: train.MaskedSettings, tuning: bool, **where: Any) -> dict[str, Any]:
    """A masked language model of the sentences of EWT, and the trees in its attention."""
    bank = load_treebank("ewt")
    parts = ["\n".join(" ".join(sentence.words) for sentence in part) for part in bank]
    done = train.train_masked_language_model(settings, Text(*parts[: 2 if tuning else 3]), **where)
    trees = {} if tuning else {"attachment": attachment(done.model, done.vocabulary, bank.dev, bank.test)}
    return {**done.results, **trees}


def cogs(settings: train.LabellingSettings, tuning: bool, **where: Any) -> dict[str, Any]:
    """COGS, by the logical forms that are right to the letter."""
    data, rows = tagged_sentences("cogs"), load_cogs()._asdict()
    done = train.train_tagger(replace(settings, select=data.select), without_test(data.parts, tuning), **where)
    if tuning:
        return done.results
    forms: dict[str, Any] = {}
    for name in ("dev", "test", "gen"):
        right = right_forms(done, rows[name])
        forms[name] = {"exact_match": statistics.fmean(right)}
        kinds = sorted({row.category for row in rows[name]})
        forms[name]["by category"] = {
            kind: statistics.fmean(ok for ok, row in zip(right, rows[name], strict=True) if row.category == kind)
            for kind in kinds
        }
    return {**done.results, "forms": forms}


def right_forms(done: train.Run, rows: list) -> list[bool]:
    """Whether the logical form that the predicted tags of a row spell is its own."""
    tagged = tag_words(done.model, done.vocabulary, done.labels, [row.words for row in rows], batch=256)
    return [
        same_form(row, [tuple(guess.label for guess in word) for word in found])
        for row, found in zip(rows, tagged, strict=True)
    ]


def same_form(row: Any, labels: list[tuple[str, ...]]) -> bool:
    """Whether labels spell the logical form of a row; a parent outside the sentence spells none."""
    try:
        return logical_form_of(row.words, cogs_tags(labels)) == row.logical_form
    except ValueError:
        return False
