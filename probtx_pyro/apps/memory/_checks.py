"""Checks of what a `MemoryClassifier` is given, and what it makes of it."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import check_cv
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from probtx_pyro.apps.memory._adapt import ANCHORS
from probtx_pyro.models._soft_kmeans_estimator import away_from_middle, check_squares, middle

_FAR = 1e6  # times the typical distance from the middle, from which a row is no other row's like


def checked_labels(name: str, labels: Any) -> Any:
    """Return labels, or shares, as they are given; refuse those that are missing, and text among other labels.

    Parameters
    ----------
    name
        Of the argument.
    labels
        Array, list or column of a table; None for none.

    Raises
    ------
    ValueError
        None, NaN, NaT, pandas.NA or a masked entry; text beside numbers.
    """
    array = np.asarray(labels)
    if array.ndim == 0:
        return labels
    # as text, None and NaN of a list would be classes "None" and "nan"
    given = (
        np.asarray(labels, dtype=object) if isinstance(labels, list | tuple) and array.dtype.kind in "OUS" else array
    )
    if given.dtype.kind == "O":
        missing = np.array([_missing(value) for value in given.ravel()], dtype=bool).reshape(given.shape)
    else:
        missing = given != given if given.dtype.kind in "fcmM" else np.zeros(given.shape, dtype=bool)
    missing = missing | np.ma.getmaskarray(labels) if isinstance(labels, np.ma.MaskedArray) else missing
    rows = np.flatnonzero(missing.any(tuple(range(1, missing.ndim))))
    if len(rows):
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        raise ValueError(
            f"{name} has no label in row {rows[0]}{more}: {_shown(given[rows[0]])}; fill it, or leave the row out"
        )
    if given.dtype.kind == "O":
        kinds: dict[Any, Any] = {}
        for value in given.flat:
            kinds.setdefault(next((kind for kind in (str, bytes) if isinstance(value, kind)), None), value)
        if len(kinds) > 1:
            raise ValueError(
                f"{name} mixes labels of several types: {' and '.join(map(repr, kinds.values()))}; make all of them text"
            )
    return labels


def _missing(value: Any) -> bool:
    if value is None:
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # pandas.NA is neither equal nor unequal
        return True


def _shown(value: Any) -> str:
    return repr(
        value.tolist() if isinstance(value, np.ndarray) else value.item() if isinstance(value, np.generic) else value
    )


def shares_of(y: Any, known: NDArray | None, given: ArrayLike | None) -> tuple[NDArray, NDArray]:
    """Return the classes (C,), and the share of each in each label, (N, C).

    Parameters
    ----------
    y
        (N,) classes, or (N, C), C > 1, shares of classes 0..C-1, which may be booleans.
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
        y = y.astype(float) if y.dtype == bool else y
        if not np.issubdtype(y.dtype, np.number) or (y < 0).any() or not np.allclose(y.sum(1), 1, atol=1e-4):
            raise ValueError("y must be classes (N,), or shares of classes (N, C) that are >= 0 and sum to 1")
        own = np.arange(y.shape[1])
    else:
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        own = np.unique(y)
    named = None if given is None else np.unique(np.asarray(given))
    classes = next(x for x in (known, None if soft else named, own) if x is not None)
    if not soft and isinstance(own.flat[0], str) != isinstance(classes.flat[0], str):
        raise ValueError(
            f"y has labels such as {_shown(own[0])} but the classes are {classes.tolist()}; text is no number"
        )
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


def far_rows(data: NDArray) -> NDArray[np.bool_]:
    """Return True for each row (N, D) whose largest distance from the median is
    over a million times the typical one, (N,).
    """
    away = away_from_middle(data)
    typical = np.median(away[away > 0]) if (away > 0).any() else 0.0
    return (away > 0) & ~(away <= _FAR * typical)


def check_spread(data: NDArray, rows: NDArray, names: Sequence[str] | None, given: str = "X") -> None:
    """Refuse rows to learn from that one metric cannot hold.

    Parameters
    ----------
    data
        (N, D), the new rows last.
    rows
        Numbers by which the new ones are called, (n,).
    names
        Of the columns, None for their numbers.
    given
        What the rows are called.

    Raises
    ------
    ValueError
        A row so far from the others that nothing would be left of their differences; numbers whose squares overflow or
        vanish.
    """
    old = len(data) - len(rows)
    for row in np.flatnonzero(far_rows(data)[old:]) + old:
        column = int(np.argmax(np.abs(data[row].astype(float) / 2 - middle(data).astype(float) / 2)))
        name = column if names is None else repr(names[column])
        raise ValueError(
            f"{given} has {data[row, column]:g} in row {rows[row - old]}, column {name}, more than a million times as far from the others "
            "as they are from each other; if it stands for a missing value, fill it or leave the row out; "
            "a column of such a range needs its logarithm"
        )
    check_squares(data, given)


def folds_by(cv: Any, data: NDArray, y: NDArray, groups: ArrayLike | None) -> tuple[int, torch.Tensor | None]:
    """Return the number of folds, 0 for none, and the fold of each row (N,), -1 in none;
    None where a number alone is given.

    Parameters
    ----------
    cv
        A number, None, what has ``split``, or pairs of numbers of rows: those to learn from, and those that are held
        out.
    data, y, groups
        Given to ``split``; of shares of classes (N, C) the largest.

    Raises
    ------
    ValueError
        A row that is held out twice, or neither held out nor learned from; groups that nothing reads.
    """
    if cv is None or isinstance(cv, Integral):
        if groups is not None:
            raise ValueError(
                f"groups are given but cv={cv} does not read them; give a cv that does, such as GroupKFold(5)"
            )
        return int(cv or 0), None
    y = y.argmax(1) if y.ndim == 2 and y.shape[1] > 1 else y.ravel()
    fold_of = np.full(len(data), -1)
    splits = list(check_cv(cv, y, classifier=True).split(data, y, groups))
    for fold, (learned, asked) in enumerate(splits):
        inside = np.zeros(len(data), dtype=bool)
        inside[asked] = True
        others = np.zeros(len(data), dtype=bool)
        others[learned] = True
        if (fold_of[inside] >= 0).any() or (inside == others).any():
            raise ValueError(
                f"split {fold} of cv holds out a row for the second time, or leaves one out of both parts; give a cv whose test parts do "
                "not overlap and whose other part is all the rest, such as StratifiedKFold or GroupKFold"
            )
        fold_of[inside] = fold
    return len(splits), torch.from_numpy(fold_of)


def as_tensor(array: NDArray) -> torch.Tensor:
    """Share memory with the array, unless that is read-only or in reverse, which torch does not know."""
    return torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else array.copy())
