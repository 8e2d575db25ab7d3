"""Files with a header and columns: ``.csv`` and ``.tsv``, plain or ``.gz``; what is wrong is told with its line."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from probtx_pyro.data._fetch import read_text

Item = TypeVar("Item")

# How a file is cut into columns, by its ending; a TSV file knows no quotes (IANA, text/tab-separated-values).
FORMATS = {
    ".csv": {"delimiter": ",", "strict": True},
    ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}


def read_columns(path: str | Path, reader_of: Callable[[list[str]], Callable[[list[str]], Item]]) -> list[Item]:
    """Return what is read from each row of a file, empty lines passed over.

    Parameters
    ----------
    path
        The file.
    reader_of
        From the header to a function that reads a row of as many columns; a ValueError of either gets the line.

    Raises
    ------
    ValueError
        Another ending; ``FILE, line N: ...`` for a row of another length than the header, or broken quotes; a file that cannot be read.
    """
    path = Path(path)
    ending = Path(path.name.removesuffix(".gz")).suffix.lower()
    if ending not in FORMATS:
        raise ValueError(f"{path} ends in none of {', '.join(FORMATS)}; rename or convert it")
    content = read_text(path, "CSV or TSV file").removeprefix("\ufeff")
    reader = csv.reader(io.StringIO(content, newline=""), **FORMATS[ending])  # type: ignore[arg-type]
    found: list[Item] = []
    header, number, read = None, 1, None
    try:
        for row in reader:
            if read is None or header is None:
                header, read = row, reader_of(row)
            elif row:
                if len(row) != len(header):
                    raise ValueError(
                        f"{len(row)} columns instead of {len(header)}; quote a text that has the delimiter"
                    )
                found.append(read(row))
            number = reader.line_num + 1
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{path}, line {number}: {error}") from None
    return found
