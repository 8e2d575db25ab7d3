"""The runs of `benchmarks.tasks`: what each task trains, and what it scores beyond the metrics of training."""

import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.induced_trees import attachment
from benchmarks.verdicts import FIGURES, Items
from probtx_pyro import train
from probtx_pyro.apps import classify_texts, tag_words
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
        parts = without_repeats(data.parts, lambda row: row.words)
        settings = replace(settings, select=data.select)
        done = train.train_tagger(settings, without_test(parts, tuning), metrics=data.metrics, **where)
        if tuning:
            return done.results
        test = parts["test"]
        found = tag_words(done.model, done.vocabulary, done.labels, [row.words for row in test], batch=256)
        pairs = [([guess.label for (guess,) in x], [label for (label,) in row.labels]) for x, row in zip(found, test, strict=True)]  # fmt: skip
        each = [_right(*pair) for pair in pairs]
        items = Items("share", np.array(each, np.uint16))
        if "span_f1" in data.metrics:
            items = Items("f1", np.array([_spans(*pair) for pair in pairs], np.uint16))
        return with_items(done.results, items, 100 * done.results["metrics"]["test"][data.select])

    return run


def with_items(results: dict[str, Any], items: Items, figure: float, within: float = 1e-6) -> dict[str, Any]:
    """Results with the test items of the figure, which must add up to it (relatively ``within``)."""
    found = float(FIGURES[items.figure](items.each.astype(float).sum(0)))
    if abs(found - figure) > within * abs(figure):
        raise ValueError(f"the items add up to {found}, and the figure is {figure}; they are not of the same answers")
    return {**results, "items": items.packed()}


def _right(predicted: Sequence[str], given: Sequence[str]) -> tuple[int, int]:
    """Labels right, and labels."""
    return sum(a == b for a, b in zip(predicted, given, strict=True)), len(given)


def _spans(predicted: Sequence[str], given: Sequence[str]) -> tuple[int, int, int]:
    """Entities found and right, found, and given: of a sentence."""
    ours, theirs = spans(predicted), spans(given)
    return len(ours & theirs), len(ours), len(theirs)


def spans(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Type, start and end of the entities that BIO tags spell; an I after another type, or after none, starts one."""
    found, start = set(), 0
    for i, (before, tag, after) in enumerate(zip(("O", *tags), tags, (*tags[1:], "O"), strict=False)):
        if tag == "O":
            continue
        if tag[0] == "B" or before[2:] != tag[2:]:
            start = i
        if after[0] != "I" or after[2:] != tag[2:]:
            found.add((tag[2:], start, i + 1))
    return found


def without_repeats(parts: Mapping[str, Sequence[Any]], text: Callable[[Any], Hashable]) -> dict[str, Sequence[Any]]:
    """The parts, without the rows of train whose text stands in another part, too: published parts repeat short texts."""
    elsewhere = {text(row) for name, part in parts.items() if name != "train" for row in part}
    return {**parts, "train": [row for row in parts["train"] if text(row) not in elsewhere]}


def only_new(parts: Mapping[str, Sequence[Any]], text: Callable[[Any], Hashable]) -> dict[str, Sequence[Any]]:
    """The parts, without the rows of the others whose text stands in train, too: what was learned and chosen stays."""
    learned = {text(row) for row in parts["train"]}
    others = {name: [row for row in part if text(row) not in learned] for name, part in parts.items()}
    return {**others, "train": parts["train"]}


def texts(source: str) -> dict[str, Any]:
    """Texts with their categories, none of dev or test in train."""
    return without_repeats(classified_texts(source), lambda row: tuple(row[0]))


def masked_text(repeats: bool = False) -> Text:
    """The sentences of EWT, none of validation or test in training, but for ``repeats``."""
    parts = load_treebank("ewt")._asdict()
    kept = parts if repeats else without_repeats(parts, lambda sentence: sentence.words)
    return Text(*("\n".join(" ".join(sentence.words) for sentence in part) for part in kept.values()))


def without_test(parts: Any, tuning: bool) -> dict[str, Any]:
    """The parts of the data that a run may see."""
    return {name: part for name, part in parts.items() if not tuning or name in ("train", "dev")}


def classifier(settings: train.ClassifierSettings, tuning: bool, **where: Any) -> dict[str, Any]:
    """Banking77."""
    parts = texts("banking77")
    done = train.train_classifier(settings, without_test(parts, tuning), **where)
    return done.results if tuning else with_items(done.results, right_texts(done, parts["test"]), 100 * done.results["metrics"]["test"]["accuracy"])  # fmt: skip


def right_texts(done: train.Run, rows: Any) -> Items:
    """Whether the likeliest category of each text is its own."""
    found = classify_texts(done.model, done.vocabulary, done.labels[0], [" ".join(words) for words, _ in rows], 64)
    return Items("share", np.array([(guesses[0].label == label, 1) for guesses, (_, label) in zip(found, rows, strict=True)], np.uint8))  # fmt: skip


def masked(settings: train.MaskedSettings, tuning: bool, **where: Any) -> dict[str, Any]:
    """A masked language model of the sentences of EWT, and the trees in its attention."""
    text = masked_text()
    done = train.train_masked_language_model(settings, Text(*text[: 2 if tuning else 3]), **where)
    if tuning:
        return done.results
    bank = load_treebank("ewt")
    trees = {"attachment": attachment(done.model, done.vocabulary, bank.dev, bank.test)}
    figure = done.results["metrics"]["test"]["perplexity"]
    return {**with_items(done.results, hidden_words(done, text.test), figure, within=1e-4), **trees}


def questions(done: Any, text: str) -> Iterator[tuple[Tensor, Tensor]]:
    """The words of each sentence, (1, N), and which are hidden: the same that training's own test hides."""
    draw = done.settings.draw(-1)
    for words in done.vocabulary.encode_each(text.split("\n")):
        chance = torch.rand(1, len(words), generator=draw)
        number = (done.settings.mask * torch.tensor(len(words))).round().clamp(min=1)
        yield words[None], chance.argsort(-1).argsort(-1) < number


@torch.no_grad()
def hidden_words(done: Any, text: str) -> Items:
    """Nats of the hidden words of each sentence, and how many they are."""
    rows = []
    done.model.eval()
    for words, where in questions(done, text):
        logits = done.model(words.masked_fill(where, done.model.mask), None, where)
        rows.append((float(F.cross_entropy(logits, words[where], reduction="sum")), int(where.sum())))
    return Items("perplexity", np.array(rows, np.float32))


def cogs(settings: train.LabellingSettings, tuning: bool, **where: Any) -> dict[str, Any]:
    """COGS, by the logical forms that are right to the letter."""
    data, rows = tagged_sentences("cogs"), load_cogs()._asdict()
    done = train.train_tagger(replace(settings, select=data.select), without_test(data.parts, tuning), **where)
    if tuning:
        return done.results
    forms: dict[str, Any] = {}
    for name in ("dev", "test", "gen"):
        right = right_forms(done, rows[name])
        if name == "gen":
            items = Items("share", np.array([(ok, 1) for ok in right], np.uint8))
        forms[name] = {"exact_match": statistics.fmean(right)}
        kinds = sorted({row.category for row in rows[name]})
        forms[name]["by category"] = {
            kind: statistics.fmean(ok for ok, row in zip(right, rows[name], strict=True) if row.category == kind)
            for kind in kinds
        }
    return with_items({**done.results, "forms": forms}, items, 100 * forms["gen"]["exact_match"])


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
