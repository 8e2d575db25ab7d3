"""Tables of numbers: files with a header, a column for each feature and perhaps one with labels."""

import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from probtx_pyro.data._columns import read_columns


class Table(NamedTuple):
    """Rows of numbers.

    features: the names of the columns, D.
    numbers: (N, D).
    labels: (N,) texts, None where the file has no such column.
    """

    features: tuple[str, ...]
    numbers: np.ndarray
    labels: np.ndarray | None


def read_table(
    path: str | Path, label: str | None = None, *, features: Collection[str] | None = None, skip: Collection[str] = ()
) -> Table:
    """The numbers of a ``.csv`` or ``.tsv`` file (or the same with ``.gz``) whose first line names its columns.

    Parameters
    ----------
    path
        The file.
    label
        Name of the column with labels; it need not be there where ``features`` are given.
    features
        Names of the columns of numbers, in the order wanted; others are passed over. None takes all but the label.
    skip
        Columns to pass over where ``features`` is None.

    Raises
    ------
    ValueError
        A column missing, named twice, or none left; ``FILE, line N: ...`` for a cell that is no finite number, an empty label, and
        what else is wrong with a line; no rows; a file that cannot be read.
    """
    names: list[str] = []
    labelled = False

    def reader_of(header: list[str]) -> Callable[[list[str]], tuple[list[float], str]]:
        nonlocal names, labelled
        labelled = label in header
        names = [name for name in header if name != label and name not in skip] if features is None else list(features)
        wanted = [*names, *skip, label or ""] if features is None else names
        if missing := [name for name in wanted if name and name not in header]:
            raise ValueError(f"the header has no column {', '.join(missing)}; name one of {header}")
        if twice := [name for name in names if header.count(name) > 1]:
            raise ValueError(f"the header has the column {twice[0]} twice; rename one of them")
        if not names:
            raise ValueError("there is no column of numbers; give at least one besides the label")
        places = [header.index(name) for name in names]
        own = header.index(label) if label is not None and labelled else None

        def read(row: list[str]) -> tuple[list[float], str]:
            numbers = [_number(row[place], name) for place, name in zip(places, names, strict=True)]
            text = "" if own is None else row[own].strip()
            if own is not None and not text and features is None:
                raise ValueError(f"the label in {label} is empty; fill it or remove the line")
            return numbers, text

        return read

    rows = read_columns(path, reader_of)
    if not rows:
        raise ValueError(f"{path} has no rows; give a header and at least one line below it")
    labels = np.array([text for _, text in rows]) if labelled else None
    return Table(tuple(names), np.array([numbers for numbers, _ in rows]), labels)


def _number(text: str, name: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} is {text!r}, which is no finite number; fill it, remove the line or skip the column")
    return number
