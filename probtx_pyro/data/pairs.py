"""Sentence pairs to train translation on: files of two columns, and Tatoeba by name;
held-out parts share no sentence with the rest, on either side.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from probtx_pyro.data.files import GITHUB, Splits, download, held_out, own_file, part_paths, read_lines

TATOEBA = "tatoeba_en_de/pairs.tsv"
SHA256 = "fd7636e4f85ae5414c7f0c2dcb5992a1fcb110404fd7e2526b746553273d0510"
# the repository's file has these pairs between CR and LF, and a line of column numbers before them
ADDRESS = GITHUB + "DarrenCarvalho/Language-Translation/a30fc3ec31687d0ed561047a9c7d7fdb5915f89c/data/deu.txt"
HEADER = "1\t2"


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


def read_pairs(source: str | Path | Iterable[str]) -> list[Pair]:
    r"""Return the pairs of a file with a sentence, a tab and its translation on each line; blank lines are passed over.

    Parameters
    ----------
    source
        A path, plain or ``.gz``, or lines. Columns behind the second, such as the attributions of Tatoeba's exports,
        are passed over.

    Raises
    ------
    ValueError
        ``FILE, line N: ...`` for a line without a tab or with an empty sentence; no pairs; see also `read_lines`.

    Examples
    --------
    >>> read_pairs(["Go.\tGeh.\n", "Go.\tGehen Sie.\n"])[1].target
    'Gehen Sie.'
    """
    name, lines = read_lines(source, "file of sentence pairs")
    pairs = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            columns = [column.strip() for column in line.split("\t")]
            if len(columns) < 2 or not all(columns[:2]):
                raise ValueError(f"{name}, line {number}: give a sentence, a tab and its translation")
            pairs.append(Pair(*columns[:2]))
    if not pairs:
        raise ValueError(f"{name} has no pairs; give a sentence, a tab and its translation on each line")
    return pairs


def load_pairs(
    source: str | Path = "tatoeba", dev_share: float = 0.05, test_share: float = 0.05, seed: int = 0
) -> Splits[Pair]:
    """Sentence pairs by name, or the user's.

    Parameters
    ----------
    source
        ``"tatoeba"``, 50,001 short English-German pairs (Tatoeba, CC BY 2.0 FR, selected by manythings.org), from
        ``$PROBTX_DATA`` or downloaded once; or the path of a file or folder, see `part_paths`.
    dev_share, test_share
        How much of train becomes dev or test where there is no such part, drawn at random. Pairs that share a sentence
        on either side are in one part, and so are those that other pairs connect.
    seed
        Seed of the draw.

    Raises
    ------
    ValueError
        Of `part_paths` and `read_pairs`; shares that leave train or dev empty.
    """
    if source == "tatoeba":
        parts = {"train": _tatoeba()}
    else:
        parts = {part: read_pairs(path) for part, path in part_paths(source, {"tatoeba": {}}).items()}
    shares = {"dev": dev_share, "test": test_share}
    missing = {part: share for part, share in shares.items() if part not in parts}
    return Splits(**{"test": [], **parts, **held_out(parts["train"], missing, seed, texts=iter)})


def _tatoeba() -> list[Pair]:
    path = own_file(TATOEBA, SHA256) or download(ADDRESS, TATOEBA, None)
    lines = read_lines(path)[1]
    lines = lines[1:] if lines[0] == HEADER else lines
    if hashlib.sha256("\n".join(lines).encode()).hexdigest() != SHA256:
        raise ValueError(f"{path} does not hold the published pairs (other SHA-256); delete it to fetch it again")
    return read_pairs(lines)
