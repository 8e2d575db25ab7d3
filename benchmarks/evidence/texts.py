"""Banking77 as vectors."""

from collections.abc import Sequence

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks.task_runs import only_new
from probtx_pyro.data import load_labelled

Texts = tuple[np.ndarray, np.ndarray]  # texts and labels, (N,) each


def banking() -> tuple[Texts, Texts]:
    """Training part as published, and the test part without the 64 of its 3,080 questions whose words a training question has.

    Words in any order and case, as TF-IDF reads them: the vectors of such questions are equal. Labels are numbers 0..76.
    """
    published = load_labelled("banking77")
    words_of = TfidfVectorizer().build_analyzer()
    parts = {"train": [*published.train, *published.dev], "test": published.test}
    parts = only_new(parts, lambda item: tuple(sorted(words_of(item.text))))
    names = sorted({item.label for item in parts["train"]})
    train, test = (
        (np.array([item.text for item in part], dtype=object), np.array([names.index(item.label) for item in part]))
        for part in (parts["train"], parts["test"])
    )
    return train, test


def vectors(learned_from: Sequence[str], *others: Sequence[str], size: int = 64) -> tuple[np.ndarray, ...]:
    """TF-IDF of words, sublinear, in the first singular vectors of the texts learned from; (N, size) of them and of each of the others."""
    words, reduced = TfidfVectorizer(sublinear_tf=True), TruncatedSVD(size, random_state=0)
    first = reduced.fit_transform(words.fit_transform(learned_from))
    return first, *(reduced.transform(words.transform(some)) for some in others)
