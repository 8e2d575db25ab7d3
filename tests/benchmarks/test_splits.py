"""No text, picture or target of a part that is tested on is in training, on both sides of pairs.

The published parts are read from the folder that PROBTX_DATA names (``make test-data``); without it their cases are skipped.
"""

import os
import re

import numpy as np
import pytest

from benchmarks import adaptation, known_tags, memory_classifier, small_treebank
from benchmarks.evidence import shifts, texts, unseen
from benchmarks.memory_classifier import taught
from benchmarks.task_runs import masked_text, only_new, without_repeats
from benchmarks.task_runs import texts as categories
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


def bags_of(parts):
    """Words of two letters and more, in any order: all that TF-IDF reads."""
    return {name: [tuple(sorted(re.findall(r"\w\w+", x.lower()))) for x in part] for name, (part, _) in parts.items()}


SPLITS = {
    "tags and entities of EWT": lambda: words_of("ewt"),
    "WNUT-17": lambda: words_of("wnut17"),
    "COGS": lambda: words_of("cogs"),
    "masked sentences": lambda: dict(
        zip(("train", "dev", "test"), (x.split("\n") for x in masked_text()), strict=True)
    ),
    "Banking77": lambda: {name: [tuple(words) for words, _ in part] for name, part in categories("banking77").items()},
    "ListOps": lambda: {name: [tuple(words) for words, _ in part] for name, part in categories("listops").items()},
    "EWT by genre": lambda: {name: [x.words for x in part] for name, part in adaptation.treebank()._asdict().items()},
    "small_treebank on EWT": lambda: {
        name: [x.words for x in part] for name, part in small_treebank.parts_of("ewt").items()
    },
    "known tags": lambda: {
        "train": [x.words for x in data.load_treebank("ewt").train],
        "dev": [x.words for x in known_tags.judged()],
    },
    "Banking77 as vectors": lambda: bags_of(dict(zip(("train", "test"), texts.banking(), strict=True))),
    "Tiny Shakespeare": lambda: {
        name: part for name, part in lines_of(data.load_text("tinyshakespeare")).items() if name != "test"
    },
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


@needs_data
def test_the_memory_classifier_has_the_same_questions():
    (_, labels), (_, truth) = texts.banking()
    points, others, *found = memory_classifier.banking(0)
    assert [len(points), len(others)] == [len(labels), len(truth)]
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate([labels, truth]))


def test_the_small_treebank_shares_none():
    parts = {name: [x.words for x in part] for name, part in data.load_treebank()._asdict().items() if part}
    assert shared(parts) == {"dev": 0}
    judged = {name: [x.words for x in part] for name, part in small_treebank.parts_of("small").items()}
    assert judged == parts


def test_the_check_sees_a_text_in_two_parts():
    assert shared({"train": ["a", "b"], "test": ["b", "c"]}) == {"test": 1}
    assert without_repeats({"train": ["a", "b"], "dev": ["b"]}, str) == {"train": ["a"], "dev": ["b"]}
    assert only_new({"train": ["a", "b"], "dev": ["b", "c"]}, str) == {"train": ["a", "b"], "dev": ["c"]}


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
