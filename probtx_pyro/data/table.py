"""Files with a header and columns, ``.csv`` and ``.tsv``; and tables of numbers in such files."""

import csv
import io
import math
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from probtx_pyro.data.files import named, read_text

Item = TypeVar("Item")

# How a file is cut into columns, by its ending; a TSV file knows no quotes (IANA, text/tab-separated-values).
FORMATS = {
    ".csv": {"delimiter": ",", "strict": True, "skipinitialspace": True},
    ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}
# digits of ASCII alone: Python's float also reads 1_000 and the digits of every script
_NUMBER = r"[+-]?(?:[0-9]+(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?"
POINTS = {".": re.compile(_NUMBER.format(point=r"\.")), ",": re.compile(_NUMBER.format(point=","))}
TRUTHS = {"true": 1.0, "false": 0.0}
"""Cells that are numbers too, in small or large letters: columns of yes and no, such as pandas.get_dummies makes."""
MISSING = ("", "?", "na", "n/a", "nan", "null", "none")
"""Marks of a number that is missing, in small or large letters, where those are let in."""


def read_columns(
    path: str | Path,
    reader_of: Callable[[list[str]], Callable[[list[str]], Item]],
    delimiter: str | None = None,
) -> list[Item]:
    """Return what is read from each row of a file, empty lines passed over.

    Parameters
    ----------
    path
        The file; ``-`` is standard input, read as CSV.
    reader_of
        From the names in the header, without spaces about them, to a function that reads a row of as many columns; a
        ValueError of either gets the line.
    delimiter
        Character between columns, of a CSV file of any ending; None goes by the ending.

    Raises
    ------
    ValueError
        Another ending; ``FILE, line N: ...`` for a header with another delimiter, a row of another length than the
        header, or broken quotes; a file that cannot be read.
    """
    path = Path(path)
    ending = Path(path.name.removesuffix(".gz")).suffix.lower()
    if delimiter is not None or str(path) == "-":
        how = {**FORMATS[".csv"], "delimiter": delimiter or ","}
    elif ending in FORMATS:
        how = FORMATS[ending]
    else:
        raise ValueError(f"{path} ends in none of {', '.join(FORMATS)}; rename or convert it")
    reader = csv.reader(io.StringIO(read_text(path, "CSV or TSV file"), newline=""), **how)  # type: ignore[arg-type]
    found: list[Item] = []
    header, number, read = None, 1, None
    try:
        for row in reader:
            if read is None or header is None:
                header = [name.strip() for name in row]
                if len(header) == 1 and (other := [mark for mark in ";\t,|" if mark in header[0]]):
                    raise ValueError(
                        f"the header has no {how['delimiter']!r} but {other[0]!r}; mend it (delimiter {other[0]!r})"
                    )
                read = reader_of(header)
            elif row:
                if len(row) != len(header):
                    raise ValueError(f"{len(row)} columns instead of {len(header)}; quote texts with delimiters")
                found.append(read(row))
            number = reader.line_num + 1
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{named(path)}, line {number}: {error}") from None
    return found


class Table(NamedTuple):
    """Rows of numbers.

    features: the names of the columns, D.
    numbers: (N, D), NaN where one is missing and may be.
    labels: (N,) texts, None where the file has no such column.
    """

    features: tuple[str, ...]
    numbers: np.ndarray
    labels: np.ndarray | None


def read_table(
    path: str | Path,
    label: str | None = None,
    *,
    features: Collection[str] | None = None,
    skip: Collection[str] = (),
    delimiter: str | None = None,
    decimal: str = ".",
    incomplete: bool = False,
) -> Table:
    """The numbers of a ``.csv`` or ``.tsv`` file (or the same with ``.gz``) whose first line names its columns;
    a cell of `TRUTHS` is 1 or 0.

    Parameters
    ----------
    path
        The file; ``-`` is standard input, read as CSV.
    label
        Name of the column with labels; it need not be there where ``features`` are given.
    features
        Names of the columns of numbers, in the order wanted; others are passed over. None takes all but the label.
    skip
        Columns to pass over where ``features`` is None.
    delimiter
        Character between columns, such as ``";"``; None goes by the ending.
    decimal
        ``"."`` or ``","``, before the decimals of a number.
    incomplete
        Whether numbers may be missing: a cell of `MISSING` is NaN, and a label may be empty.

    Raises
    ------
    ValueError
        A column missing, without a name, named twice, or none left; ``FILE, line N: ...`` for a cell that is no finite
        number, an empty label, and what else is wrong with a line; no rows; a file that cannot be read; another
        ``decimal``.
    """
    if decimal not in POINTS:
        raise ValueError(f"decimal must be one of {' '.join(POINTS)}, not {decimal!r}")
    names: list[str] = []
    labelled = False

    def reader_of(header: list[str]) -> Callable[[list[str]], tuple[list[float], str]]:
        nonlocal names, labelled
        labelled = label in header
        names = [name for name in header if name != label and name not in skip] if features is None else list(features)
        wanted = [*names, *skip, label or ""] if features is None else names
        if missing := [name for name in wanted if name and name not in header]:
            raise ValueError(f"the header has no column {', '.join(missing)}; name one of {header}")
        if "" in names:
            raise ValueError(f"column {header.index('') + 1} of the header has no name; name it, or remove it")
        if twice := [name for name in (*names, label) if header.count(name or "") > 1]:
            raise ValueError(f"the header has the column {twice[0]} twice; rename one of them")
        if not names:
            raise ValueError("there is no column of numbers; give at least one besides the label")
        places = [header.index(name) for name in names]
        own = header.index(label) if label is not None and labelled else None

        def read(row: list[str]) -> tuple[list[float], str]:
            numbers = [number(row[place].strip(), name) for place, name in zip(places, names, strict=True)]
            text = "" if own is None else row[own].strip()
            if own is not None and not text and features is None and not incomplete:
                raise ValueError(f"the label in {label} is empty; fill it or remove the line")
            return numbers, text

        return read

    def number(text: str, name: str) -> float:
        if incomplete and text.lower() in MISSING:
            return math.nan
        if (truth := TRUTHS.get(text.lower())) is not None:
            return truth
        found = float(text.replace(",", ".")) if POINTS[decimal].fullmatch(text) else math.nan
        if not math.isfinite(found):
            other, repairs = "," if decimal == "." else ".", ["fill it", "remove the line"]
            if other in text and POINTS[other].fullmatch(text):
                repairs = [f"write {decimal!r} before decimals", f"say what stands there (decimal {other!r})"]
            elif text.lower() in MISSING:
                repairs.append("pass over all such lines (incomplete)")
            if features is None:
                repairs.append(f"leave out the column (skip {name})")
            raise ValueError(f"{name} is {text!r}, no finite number; {', '.join(repairs[:-1])} or {repairs[-1]}")
        return found

    rows = read_columns(path, reader_of, delimiter)
    if not rows:
        raise ValueError(f"{named(path)} has no rows; give a header and at least one line below it")
    labels = np.array([text for _, text in rows]) if labelled else None
    return Table(tuple(names), np.array([numbers for numbers, _ in rows]), labels)
