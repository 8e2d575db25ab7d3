"""Real pictures that installed packages carry, as numpy arrays; nothing is downloaded."""

from typing import NamedTuple

import numpy as np


class Digits(NamedTuple):
    """Handwritten digits.

    images: (N, 8, 8), ink in [0, 1].
    labels: (N,), the digits 0..9.
    """

    images: np.ndarray
    labels: np.ndarray


def load_digits() -> Digits:
    """The 1797 handwritten digits of scikit-learn (UCI ML, Alpaydin & Kaynak 1998).

    Raises
    ------
    ModuleNotFoundError
        Without scikit-learn.
    """
    found = _sklearn_datasets().load_digits()
    return Digits(found.images / 16.0, found.target)


def _sklearn_datasets():
    try:
        from sklearn import datasets
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "these pictures come with scikit-learn, which is not installed: pip install 'probtx_pyro[tour]'"
        ) from None
    return datasets


__all__ = ["Digits", "load_digits"]
