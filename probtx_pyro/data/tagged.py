"""Sentences with a tag for each word: files of columns, and named entities in BIO tags (see `probtx_pyro.metrics`)."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from probtx_pyro.data.files import BadLine, Block, Published, Splits, load_splits, on_github, read_blocks
from probtx_pyro.metrics import BIO_TAG

PUBLISHED: Published = {
    "wnut17": on_github(
        "wnut17",
        "leondz/emerging_entities_17/e52a2d2a71ac1a051ca2d532eef28653c5c02603",
        train=("wnut17train.conll", "731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5"),
        dev=("emerging.dev.conll", "e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8"),
        test=("emerging.test.annotated", "2aa79b764e56ec9264a1b30fdd9b70195bd00ff400b62edd8f399d5f13c178f0"),
    ),
}


DOCUMENT = "-DOCSTART-"


class Tagged(NamedTuple):
    """A sentence; one tag a word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_tagged(source: str | Path | Iterable[str], bio: bool = False) -> list[Tagged]:
    r"""The sentences of a file with a word and its tag on each line and blank lines
    (or lines of spaces) between sentences.

    Tabs stand between them or, in a line without one, spaces. Where there are more columns, as in CoNLL-2003, the first
    is the word and the last its tag; those between are passed over. A sentence ``-DOCSTART-``, which begins a document
    there, is none.

    Parameters
    ----------
    source
        A path, plain or ``.gz``, or lines.
    bio
        Whether every tag must be ``O``, ``B-type`` or ``I-type``.

    Raises
    ------
    ValueError
        ``FILE, line N: ...``: one column, not as many as in the first line, an empty one, or no BIO tag where asked; a
        file that cannot be read.

    Examples
    --------
    >>> read_tagged(["In O", "New B-location", "York I-location", "", "Yes O"])[0].tags
    ('O', 'B-location', 'I-location')
    """
    counts: list[int] = []

    def sentence(block: Block) -> Tagged:
        rows = []
        for number, line in block:
            columns = [column.strip(" ") for column in (line.split("\t") if "\t" in line else line.split())]
            if len(columns) < 2 or not all(columns):
                raise BadLine(number, f"{line!r} is not a word, a tab and its tag; write them so")
            counts.append(len(columns))
            if len(columns) != counts[0]:
                raise BadLine(number, f"{line!r} has {len(columns)} columns instead of {counts[0]}; give as many")
            if bio and not BIO_TAG.fullmatch(columns[-1]):
                raise BadLine(number, f"{columns[-1]!r} is no BIO tag; give O, B-type or I-type")
            rows.append((columns[0], columns[-1]))
        return Tagged(*zip(*rows, strict=True))

    found = read_blocks(source, "file of words and tags", sentence)
    return [row for row in found if row.words != (DOCUMENT,)]


def load_entities(source: str | Path = "wnut17", dev_share: float = 0.1) -> Splits[Tagged]:
    """Named entities.

    Parameters
    ----------
    source
        ``"wnut17"``, emerging entities in user texts (Derczynski et al. 2017, CC BY 4.0), from ``$PROBTX_DATA`` or
        downloaded once; or the path of a file or folder, see `part_paths`.
    dev_share
        How much of the end of train is held out where there is no dev part.

    Raises
    ------
    ValueError
        Of `part_paths` and `read_tagged`.
    """
    return load_splits(source, PUBLISHED, partial(read_tagged, bio=True), dev_share)
