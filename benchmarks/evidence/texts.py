"""Banking77 as vectors."""

from collections.abc import Sequence

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from probtx_pyro.data import load_labelled

Texts = tuple[np.ndarray, np.ndarray]  # texts and labels, (N,) each


def banking() -> tuple[Texts, Texts]:
    """Training and test part as published, labels as numbers 0..76."""
    parts = load_labelled("banking77")
    names = sorted({item.label for item in parts.train})
    train, test = (
        (np.array([item.text for item in part], dtype=object), np.array([names.index(item.label) for item in part]))
        for part in ([*parts.train, *parts.dev], parts.test)
    )
    return train, test


def vectors(learned_from: Sequence[str], *others: Sequence[str], size: int = 64) -> tuple[np.ndarray, ...]:
    """TF-IDF of words, sublinear, in the first singular vectors of the texts learned from; (N, size) of them and of each of the others."""
    words, reduced = TfidfVectorizer(sublinear_tf=True), TruncatedSVD(size, random_state=0)
    first = reduced.fit_transform(words.fit_transform(learned_from))
    return first, *(reduced.transform(words.transform(some)) for some in others)
