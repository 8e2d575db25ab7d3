"""Sentences with a tag a word: files of two columns, named entities in BIO tags, and the F1 score of their spans.

``B-person`` begins an entity, ``I-person`` goes on with it, ``O`` is outside. An ``I-`` tag that goes on with nothing (after
``O``, at the beginning, or of another type than the tag before) begins an entity: so count ``conlleval``, the script of the
CoNLL shared tasks (Tjong Kim Sang & De Meulder 2003, aclanthology W03-0419), and the library nervaluate, used here.
"""

import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from probtx_pyro.data.fetch import GITHUB, Remote, read_lines
from probtx_pyro.data.splits import Published, Splits, load_splits

_BIO = re.compile(r"O|[BI]-\S+")
_WNUT = GITHUB + "leondz/emerging_entities_17/e52a2d2a71ac1a051ca2d532eef28653c5c02603/"
PUBLISHED: Published = {
    "wnut17": {
        part: Remote(f"wnut17/{file}", _WNUT + file, sha256)
        for part, file, sha256 in (
            ("train", "wnut17train.conll", "731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5"),
            ("dev", "emerging.dev.conll", "e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8"),
            ("test", "emerging.test.annotated", "2aa79b764e56ec9264a1b30fdd9b70195bd00ff400b62edd8f399d5f13c178f0"),
        )
    }
}


class Tagged(NamedTuple):
    """A sentence; one tag a word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_tagged(source: str | Path | Iterable[str], bio: bool = False) -> list[Tagged]:
    r"""The sentences of a file with a word and its tag on each line and blank lines (or lines of spaces) between sentences.

    The two stand between a tab, or, in a line without one, between spaces.

    Parameters
    ----------
    source
        A path, plain or ``.gz``, or lines.
    bio
        Whether every tag must be ``O``, ``B-type`` or ``I-type``.

    Raises
    ------
    ValueError
        ``FILE, line N: ...``: not two columns, an empty one, or no BIO tag where asked; see also `fetch.read_text`.

    Examples
    --------
    >>> read_tagged(["In O", "New B-location", "York I-location", "", "Yes O"])[0].tags
    ('O', 'B-location', 'I-location')
    """
    name, lines = read_lines(source, "file of words and tags")
    sentences: list[Tagged] = []
    rows: list[list[str]] = []
    for number, line in enumerate([*lines, ""], 1):
        if not line.strip():
            if rows:
                sentences.append(Tagged(*zip(*rows, strict=True)))
            rows = []
            continue
        columns = [column.strip(" ") for column in (line.split("\t") if "\t" in line else line.split())]
        if len(columns) != 2 or not all(columns):
            raise ValueError(f"{name}, line {number}: {line!r} is not a word, a tab and its tag; write them so")
        if bio and not _BIO.fullmatch(columns[1]):
            raise ValueError(f"{name}, line {number}: {columns[1]!r} is no BIO tag; give O, B-type or I-type")
        rows.append(columns)
    return sentences


def load_entities(source: str | Path = "wnut17", dev_share: float = 0.1) -> Splits[Tagged]:
    """Named entities.

    Parameters
    ----------
    source
        ``"wnut17"``, emerging entities in user texts (Derczynski et al. 2017, CC BY 4.0), from ``$PROBTX_DATA`` or downloaded
        once; or the path of a file or folder, see `part_paths`.
    dev_share
        How much of the end of train is held out where there is no dev part.

    Raises
    ------
    ValueError
        Of `part_paths` and `read_tagged`.
    """
    return load_splits(source, PUBLISHED, partial(read_tagged, bio=True), dev_share)


def span_f1(predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> float:
    """F1 of entities that have both the boundaries and the type right, over all sentences and types together.

    Parameters
    ----------
    predicted, gold
        BIO tags of each sentence.

    Returns
    -------
    float
        ``2 correct / (predicted + gold)`` of the numbers of entities; 0 where neither side has one.

    Raises
    ------
    ValueError
        Not the same sentences and words on both sides, or a tag that is no BIO tag.
    ModuleNotFoundError
        Without nervaluate.
    """
    try:
        from nervaluate import Evaluator
    except ModuleNotFoundError:
        raise ModuleNotFoundError("entities are scored by nervaluate: pip install 'probtx_pyro[train]'") from None
    if len(predicted) != len(gold):
        raise ValueError(f"{len(predicted)} predicted sentences for {len(gold)}; give the tags of the same sentences")
    for number, (ours, theirs) in enumerate(zip(predicted, gold, strict=True)):
        if len(ours) != len(theirs):
            raise ValueError(
                f"predicted[{number}] has {len(ours)} tags, gold[{number}] has {len(theirs)}; give one a word"
            )
        for tag in (*ours, *theirs):
            if not _BIO.fullmatch(tag):
                raise ValueError(f"{tag!r} in sentence {number} is no BIO tag; give O, B-type or I-type")
    types = sorted({tag[2:] for tags in (*predicted, *gold) for tag in tags if tag != "O"})
    if not types:
        return 0.0
    evaluator = Evaluator([list(tags) for tags in gold], [list(tags) for tags in predicted], tags=types, loader="list")
    return float(evaluator.evaluate()["overall"]["strict"].f1)


__all__ = ["Tagged", "load_entities", "read_tagged", "span_f1"]
