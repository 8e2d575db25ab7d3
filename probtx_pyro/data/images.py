"""Real pictures that installed packages carry, as numpy arrays; nothing is downloaded."""

from importlib import resources
from typing import NamedTuple

import numpy as np
from PIL import Image

from probtx_pyro._lazy import install_advice


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


class Photograph(NamedTuple):
    """A photograph and a reference segmentation of its object.

    image: (H, W, 3) bytes.
    mask: (H, W), True on the object.
    """

    image: np.ndarray
    mask: np.ndarray


def load_pagoda() -> Photograph:
    """scikit-learn's photograph ``china.jpg``, 427 x 640,
    and a mask of its pagoda drawn for this project (see README.md).

    Raises
    ------
    ModuleNotFoundError
        Without scikit-learn.
    """
    image = np.asarray(_sklearn_datasets().load_sample_image("china.jpg"))
    with resources.files("probtx_pyro.data").joinpath("china_pagoda_mask.png").open("rb") as file:
        mask = np.asarray(Image.open(file).convert("1"))
    return Photograph(image, mask)


def _sklearn_datasets():
    try:
        from sklearn import datasets
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"these pictures come with scikit-learn, which is not installed: {install_advice('tour')}"
        ) from None
    return datasets
