"""No text, picture or target of a part that is tested on is in training, on both sides of pairs.

Not yet of the treebanks of `benchmarks.adaptation` and `benchmarks.small_treebank` and the texts of `benchmarks.evidence.texts`, which
read the published parts as they are.

The published parts are read from the folder that PROBTX_DATA names (``make test-data``); without it their cases are skipped.
"""

import os

import numpy as np
import pytest

from benchmarks.evidence import shifts, unseen
from benchmarks.memory_classifier import taught
from benchmarks.task_runs import masked_text, texts, without_repeats
from probtx_pyro import data
from probtx_pyro.train import tagged_sentences

needs_data = pytest.mark.skipif(not os.environ.get("PROBTX_DATA"), reason="PROBTX_DATA names no folder")


def words_of(source, **options):
    parts = without_repeats(tagged_sentences(source, **options).parts, lambda row: row.words)
    return {name: [row.words for row in part] for name, part in parts.items()}


def lines_of(text):
    """Lines of running text but for headings, which articles share."""
    parts = {"train": text.training, "dev": text.validation, "test": text.test}
    return {name: [x.strip() for x in part.split("\n") if len(x.split()) > 8 and "= =" not in x] for name, part in parts.items()}  # fmt: skip


SPLITS = {
    "tags and entities of EWT": lambda: words_of("ewt"),
    "WNUT-17": lambda: words_of("wnut17"),
    "COGS": lambda: words_of("cogs"),
    "masked sentences": lambda: dict(
        zip(("train", "dev", "test"), (x.split("\n") for x in masked_text()), strict=True)
    ),
    "Banking77": lambda: {name: [tuple(words) for words, _ in part] for name, part in texts("banking77").items()},
    "ListOps": lambda: {name: [tuple(words) for words, _ in part] for name, part in texts("listops").items()},
    "WikiText-2": lambda: lines_of(data.load_text("wikitext2")),
    "Tatoeba, sources": lambda: {name: [x.source for x in part] for name, part in data.load_pairs()._asdict().items()},
    "Tatoeba, targets": lambda: {name: [x.target for x in part] for name, part in data.load_pairs()._asdict().items()},
}


def shared(parts):
    """What of the other parts is in training, too."""
    training = set(parts["train"])
    return {name: sum(x in training for x in part) for name, part in parts.items() if name != "train"}


@needs_data
@pytest.mark.parametrize("name", SPLITS)
def test_no_text_of_another_part_is_in_training(name):
    parts = SPLITS[name]()
    assert all(parts.values()) and set(shared(parts).values()) == {0}, shared(parts)


def test_the_small_treebank_shares_none():
    parts = {name: [x.words for x in part] for name, part in data.load_treebank()._asdict().items() if part}
    assert shared(parts) == {"dev": 0}


def test_the_check_sees_a_text_in_two_parts():
    assert shared({"train": ["a", "b"], "test": ["b", "c"]}) == {"test": 1}
    assert without_repeats({"train": ["a", "b"], "dev": ["b"]}, str) == {"train": ["a"], "dev": ["b"]}


def rows(images):
    return {x.tobytes() for x in np.ascontiguousarray(images).reshape(len(images), -1)}


@pytest.mark.parametrize("source", [data.load_digits, pytest.param(data.load_fashion, marks=needs_data)])
def test_no_picture_is_there_twice(source):
    """So that a draw without replacement shares none between its parts."""
    images = source().images
    assert len(rows(images)) == len(images)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_asked_was_not_learned_from(seed):
    images, labels = unseen._digits()
    task, validation = unseen.picture_tasks(images, labels, seed, num_unseen=3)
    for of in (task, *validation):
        assert not rows(of.points) & rows(np.concatenate([of.known, of.unseen]))
    parts = shifts.digits_parts(seed)
    assert not rows(parts.points) & rows(np.concatenate([parts.validation[0], parts.test[0]]))
    assert not rows(parts.validation[0]) & rows(parts.test[0])
    digits = data.load_digits()
    _, rest, _ = taught(digits.images[:400], digits.labels[:400], 300, seed)
    order = np.random.default_rng(seed).permutation(400)
    assert sorted(rest) == sorted(order[300:])
