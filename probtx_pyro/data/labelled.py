"""Texts with a label: files with a header and two columns, and their words."""

import re
from collections.abc import Callable, Container
from pathlib import Path
from typing import NamedTuple

from probtx_pyro.data._columns import read_columns
from probtx_pyro.data._fetch import on_github
from probtx_pyro.data._splits import Published, Splits, load_splits

PUBLISHED: Published = {
    "banking77": on_github(
        "banking77",
        "PolyAI-LDN/task-specific-datasets/57ec275d8078af65b7731c2a98be812d844a6d6b/banking_data",
        train=("train.csv", "b06e26ac675513959a63135f11b94ea7786ed02da65db93a5650d8838cbc664b"),
        test=("test.csv", "d12d6e3bc4c3103966ae786dc435913c0c563dfa328f5a3646d0e62cfeeb474d"),
    ),
}


class Labelled(NamedTuple):
    """A text and its label."""

    text: str
    label: str


def read_labelled(
    path: str | Path, text: str = "text", label: str = "category", delimiter: str | None = None
) -> list[Labelled]:
    """The rows of a ``.csv`` or ``.tsv`` file (or the same with ``.gz``) whose first line names its columns.

    Parameters
    ----------
    path
        The file.
    text, label
        Names of the two columns; others are passed over.
    delimiter
        Character between columns, such as ``";"``; None goes by the ending.

    Raises
    ------
    ValueError
        Another ending, a column missing in the header or named twice; ``FILE, line N: ...`` for a row of another length
        than the header, an empty text or label, or broken quotes; a file that cannot be read.
    """

    def reader_of(header: list[str]) -> Callable[[list[str]], Labelled]:
        if missing := {text, label} - set(header):
            raise ValueError(
                f"the header is {', '.join(header)}, without {' and '.join(sorted(missing))}; name the column of the texts {text} "
                f"and that of their labels {label}"
            )
        if twice := [name for name in (text, label) if header.count(name) > 1]:
            raise ValueError(f"the header has the column {twice[0]} twice; rename one of them")
        columns = header.index(text), header.index(label)

        def read(row: list[str]) -> Labelled:
            item = Labelled(*(row[column].strip() for column in columns))
            if not all(item):
                raise ValueError("the text or its label is empty; fill it or remove the line")
            return item

        return read

    return read_columns(path, reader_of, delimiter)


def load_labelled(source: str | Path = "banking77", dev_share: float = 0.1, seed: int = 0) -> Splits[Labelled]:
    """Labelled texts.

    Parameters
    ----------
    source
        ``"banking77"``, customers' questions and 77 intents (Casanueva et al. 2020, CC BY 4.0; train and test), from
        ``$PROBTX_DATA`` or downloaded once; or the path of a file or folder, see `part_paths`.
    dev_share, seed
        How much of train becomes dev where there is none, drawn at random.

    Raises
    ------
    ValueError
        Of `part_paths` and `read_labelled`.
    """
    return load_splits(source, PUBLISHED, read_labelled, dev_share, seed)


def tokenize(text: str, known: Container[str] = ()) -> list[str]:
    """Words in small letters, with their apostrophes, and every other mark by itself.

    Parameters
    ----------
    text
        The text.
    known
        What stands between spaces and is known, such as a token of ListOps, stays as it is.

    Examples
    --------
    >>> tokenize("Hasn't my card (no. 7) come?")
    ["hasn't", 'my', 'card', '(', 'no', '.', '7', ')', 'come', '?']
    >>> tokenize("[MAX 2 9 ]", known={"[MAX"})
    ['[MAX', '2', '9', ']']
    """
    split = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]").findall
    return [token for word in text.split() for token in ([word] if word in known else split(word.lower()))]
