"""Texts with a label: files with a header and two columns, and their words; and the expressions of ListOps.

ListOps: nested lists of digits under MAX, MIN, MED (median) and SM (sum modulo 10), whose value, a digit,
is the label.

Nangia & Bowman, 'ListOps: A Diagnostic Dataset for Latent Tree Learning' (NAACL student workshop 2018, aclanthology
N18-4013). The published files have parentheses around every pair, which make the tree of an expression binary. They say
nothing that the brackets do not and are dropped, as in Tay et al., 'Long Range Arena' (ICLR 2021), whose longer
expressions are read, too.
"""

import re
from collections.abc import Callable, Container
from pathlib import Path
from typing import NamedTuple

from probtx_pyro.data.files import (
    GITHUB,
    Published,
    Remote,
    Splits,
    fetch,
    held_out,
    load_splits,
    on_github,
    own_file,
    part_paths,
    read_lines,
)
from probtx_pyro.data.table import read_columns

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
                f"the header is {', '.join(header)}, without {' and '.join(sorted(missing))}; name the columns so"
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
        How much of train becomes dev where there is none, drawn at random; equal texts stay together.

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


OPERATORS, END = ("[MAX", "[MIN", "[MED", "[SM"), "]"
_TOKENS = {*OPERATORS, END, *"0123456789"}
_HEADER = "Source\tTarget"  # of Long Range Arena, with the expression first
_WHOLE = Remote(
    "listops/test_d20s.tsv",
    f"{GITHUB}nyu-mll/spinn/0e24a35c7be00e9f67814b0c846c3095cfe7632b/python/spinn/data/listops/test_d20s.tsv",
    "71335416e6896e8dd8dc69281c8ed9b37316382d05d3705d660461564e843840",
)
_TRAIN = 8000  # rows of it
_PARTS = {
    "train": "de19132facaaebe590d06fcf5c2b586dd9350db4a5e2ca88f8a3c7aa60eedfe8",
    "test": "c67eab1fed6ef1eb095b083be5ebadce1f0c0d666d930aa2a3439e6d3f734948",
}


def read_listops(path: str | Path) -> list[Labelled]:
    r"""Expressions of a file, plain or ``.gz``, and their answers.

    Parameters
    ----------
    path
        The file, a row a line: the answer, a tab and the expression; under a header ``Source``, tab, ``Target`` the
        other way round, as in Long Range Arena.

    Returns
    -------
    Expressions without parentheses, spaces between their tokens (``[MAX``, digits, ``]``), and answers.

    Raises
    ------
    ValueError
        ``FILE, line N: ...``: not an answer and an expression; a file that cannot be read.
    """
    name, lines = read_lines(path, "ListOps file")
    reverse, found = lines[0] == _HEADER, []
    for number, line in enumerate(lines, 1):
        if line and not (reverse and number == 1):
            answer, tab, expression = line.partition("\t") if not reverse else line.rpartition("\t")[::-1]
            try:
                label = _answer(answer if tab else line)
                found.append(Labelled(_expression(expression), label))
            except ValueError as error:
                raise ValueError(f"{name}, line {number}: {error}") from None
    return found


def _answer(text: str) -> str:
    if len(text) != 1 or text not in "0123456789":
        raise ValueError(f"{text!r} is no digit; give the answer, a tab and the expression")
    return text


def _expression(text: str) -> str:
    tokens = [token for token in text.split() if token not in ("(", ")")]
    if wrong := [token for token in tokens if token not in _TOKENS]:
        raise ValueError(f"{wrong[0]!r} is no token: {', '.join(OPERATORS)}, {END} or a digit")
    depth, i = 0, -1
    for i, token in enumerate(tokens, 1):
        depth += (token in OPERATORS) - (token == END)
        if depth < 0 or (depth == 0) != (i == len(tokens)):
            break
    if depth or i < len(tokens):
        raise ValueError("the brackets are not those of one expression; mend them")
    return " ".join(tokens)


def is_listops(source: str | Path) -> bool:
    """Return whether a file, or the train file of a folder, has rows of ListOps, by its first line.

    Parameters
    ----------
    source
        A path, see `part_paths`.

    Raises
    ------
    ValueError
        Of `part_paths`, or a file that cannot be read.
    """
    first = read_lines(part_paths(source, {})["train"])[1][0]
    return first == _HEADER or (first[:1].isdecimal() and first[1:2] == "\t")


def load_listops(source: str | Path = "listops", dev_share: float = 0.1, seed: int = 0) -> Splits[Labelled]:
    """Expressions and their answers.

    Parameters
    ----------
    source
        ``"listops"``, the published test file of 10,000 expressions (MIT licence), from ``$PROBTX_DATA`` or downloaded
        once. This project's own cut of it: the first 8,000 are train, the last 2,000 test, so that scores do not
        compare with published ones. Or the path of a file or folder, see `part_paths` and `read_listops`.
    dev_share, seed
        How much of train becomes dev where there is none, drawn at random; equal texts stay together.

    Raises
    ------
    ValueError
        Of `part_paths` and `read_listops`; there is no connection, or ``$PROBTX_DATA`` is set and has other files.
    ModuleNotFoundError
        It must be downloaded, and pooch is not installed.
    """
    if source != "listops":
        return load_splits(source, {}, read_listops, dev_share, seed)
    own = [own_file(f"listops/d20s_{part}.tsv", sha256) for part, sha256 in _PARTS.items()]
    files = [path for path in own if path] or [fetch(_WHOLE)]
    rows = [row for path in files for row in read_listops(path)]
    return Splits(**held_out(rows[:_TRAIN], {"dev": dev_share}, seed), test=rows[_TRAIN:])
