"""Files with a header and columns: ``.csv`` and ``.tsv``, plain or ``.gz``; what is wrong is told with its line."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from probtx_pyro.data._fetch import named, read_text

Item = TypeVar("Item")

# How a file is cut into columns, by its ending; a TSV file knows no quotes (IANA, text/tab-separated-values).
FORMATS = {
    ".csv": {"delimiter": ",", "strict": True, "skipinitialspace": True},
    ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}


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
                        f"the header has no {how['delimiter']!r} but {other[0]!r}; write {how['delimiter']!r} between columns, "
                        f"or say what stands there (delimiter {other[0]!r})"
                    )
                read = reader_of(header)
            elif row:
                if len(row) != len(header):
                    raise ValueError(
                        f"{len(row)} columns instead of {len(header)}; quote a text that has the delimiter"
                    )
                found.append(read(row))
            number = reader.line_num + 1
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{named(path)}, line {number}: {error}") from None
    return found
