"""Checks of what a `MemoryClassifier` is given, and what it makes of it."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from probtx_pyro.apps.memory._adapt import ANCHORS


def shares_of(y: Any, known: NDArray | None, given: ArrayLike | None) -> tuple[NDArray, NDArray]:
    """Return the classes (C,), and the share of each in each label, (N, C).

    Parameters
    ----------
    y
        (N,) classes, or (N, C), C > 1, shares of classes 0..C-1.
    known
        The classes from before, None where these labels are the first.
    given
        The classes that the user names, None where he does not.

    Raises
    ------
    ValueError
        Shares that do not sum to 1, classes other than those from before, a label that is not among them.
    """
    soft = y.ndim == 2 and y.shape[1] > 1
    if soft:
        if not np.issubdtype(y.dtype, np.number) or (y < 0).any() or not np.allclose(y.sum(1), 1, atol=1e-4):
            raise ValueError("y must be classes (N,), or shares of classes (N, C) that are >= 0 and sum to 1")
        own = np.arange(y.shape[1])
    else:
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        own = np.unique(y)
    named = None if given is None else np.unique(np.asarray(given))
    classes = next(x for x in (known, None if soft else named, own) if x is not None)
    for some in (named, own if soft else None):
        if some is not None and not np.array_equal(some, classes):
            raise ValueError(f"classes {some.tolist()} are not {classes.tolist()}, which were learned; leave them out")
    if soft:
        return classes, y / y.sum(1, keepdims=True)
    if len(others := np.setdiff1d(own, classes)):
        raise ValueError(f"y has labels that are not among the classes: {others.tolist()}; name all at the first call")
    return classes, np.eye(len(classes))[np.searchsorted(classes, y)]


def moves_of(move: str | Iterable[str]) -> Sequence[str]:
    """Return the names of what moves, in the order of the table."""
    named = {move} if isinstance(move, str) else set(move)
    if not named or named - ANCHORS.keys():
        raise ValueError(f"move must name some of {', '.join(ANCHORS)}, not {move!r}")
    return [name for name in ANCHORS if name in named]


def inside(name: str, value: float, low: float, high: float = np.inf) -> None:
    """Refuse a number that is not strictly between two."""
    if not low < value < high:
        said = "positive" if high == np.inf else f"between {low:g} and {high:g}"
        raise ValueError(f"{name} must be {said}, not {value}")


def as_tensor(array: NDArray) -> torch.Tensor:
    """Share memory with the array, unless that is read-only or in reverse, which torch does not know."""
    return torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else array.copy())
