"""CoNLL-U: dependency treebanks by name or from files, read with the line of every error, written back to the byte.

CoNLL-U (https://universaldependencies.org/format.html): a line a word with ten columns between tabs, ``#`` comments
before the first word, a blank line after the last. The reader keeps every line as it is; what it decides where the
format is silent: CRLF and a byte-order mark are read and dropped; several blank lines, or lines of spaces, part
sentences as one does and are written as one; spaces stand only in FORM, LEMMA and MISC; comments between words are
refused.
"""

import gzip
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from probtx_pyro.data.files import BadLine, Block, Published, Splits, load_splits, on_github, read_blocks, write_bytes

COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
_MAY_HAVE_SPACES = {"FORM", "LEMMA", "MISC"}
_NUMBER = "(0|[1-9][0-9]*)"
_ID = re.compile(f"{_NUMBER}(?:([-.]){_NUMBER})?")

# Each address serves the part's CoNLL-U file of the repository at that commit, uncompressed, as text.
PUBLISHED: Published = {
    "small": {"train": Path(__file__).with_name("small_treebank.conllu")},
    "ewt": on_github(
        "ud_english_ewt",
        "UniversalDependencies/UD_English-EWT/15d613d8447b3478787d4c278730a1e48a945efb",
        train=("en_ewt-ud-train.conllu", "3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b"),
        dev=("en_ewt-ud-dev.conllu", "531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6"),
        test=("en_ewt-ud-test.conllu", "e266e515a0a7547657ed3d90d9ba46487d6bd251f27ad4269d4e8a427c8555cd"),
    ),
}


class Sentence(NamedTuple):
    """A sentence of a treebank; word j counts from 1, and every tuple but the last two has one entry a word.

    words, lemmas, upos, xpos: as in the file, ``_`` where it has none.
    heads: the number of each word's head, 0 for the root, ``None`` where the file has ``_``.
    relations: of each word to its head.
    comments: with their ``#``.
    lines: the lines of words, multiword tokens (``1-2``) and empty nodes (``8.1``), whole.
    """

    words: tuple[str, ...]
    lemmas: tuple[str, ...]
    upos: tuple[str, ...]
    xpos: tuple[str, ...]
    heads: tuple[int | None, ...]
    relations: tuple[str, ...]
    comments: tuple[str, ...]
    lines: tuple[str, ...]

    def with_heads(self, heads: Sequence[int]) -> "Sentence":
        """Return the sentence under other heads.

        A word with the same head keeps its line to the byte. Another head makes the old relation void: it becomes
        ``root`` under 0 and else ``dep``, which is UD's name for an unspecified relation. No other column changes.

        Parameters
        ----------
        heads
            (word,) numbers of the heads, 0 for the root.

        Raises
        ------
        ValueError
            Not one head a word, or a head that is no other word's number nor 0.
        """
        heads = [int(head) for head in heads]
        if len(heads) != len(self.words):
            raise ValueError(f"{len(heads)} heads for {len(self.words)} words; give one a word")
        for word, head in enumerate(heads, 1):
            if head == word or not 0 <= head <= len(heads):
                raise ValueError(f"word {word} has head {head}; give 0 or the number of another word, 1..{len(heads)}")
        lines, relations = list(self.lines), list(self.relations)
        rows = [i for i, line in enumerate(lines) if line.split("\t", 1)[0].isdigit()]
        for word, (row, old, new) in enumerate(zip(rows, self.heads, heads, strict=True)):
            if new != old:
                relations[word] = "dep" if new else "root"
                fields = lines[row].split("\t")
                fields[6:8] = str(new), relations[word]
                lines[row] = "\t".join(fields)
        return self._replace(heads=tuple(heads), relations=tuple(relations), lines=tuple(lines))


def read_conllu(source: str | Path | Iterable[str], check_tree: bool = True) -> list[Sentence]:
    r"""The sentences of a CoNLL-U file; none of an empty one.

    Parameters
    ----------
    source
        A path, plain or ``.gz``, or lines.
    check_tree
        Whether every word must reach the root. Sentences without any head (unannotated text) always pass.

    Raises
    ------
    ValueError
        ``FILE, line N: what is wrong; what to do`` for the first thing that breaks the format; a file that cannot be
        read.

    Examples
    --------
    >>> columns = "1 Attend attend VERB _ _ 0 root _ _".split()
    >>> (sentence,) = read_conllu(["\t".join(columns)])
    >>> sentence.words, sentence.heads
    (('Attend',), (0,))
    """
    return read_blocks(source, "CoNLL-U file", lambda block: _sentence(block, check_tree), " \t")


def write_conllu(sentences: Sequence[Sentence], path: str | Path, heads: Sequence[Sequence[int]] | None = None) -> None:
    r"""Write a CoNLL-U file, gzipped if ``path`` ends in ``.gz``, or standard output where it is ``-``.

    Parameters
    ----------
    sentences
        From `read_conllu`; unchanged, they make the bytes they were read from (with line ends ``\n`` and one blank line
        each).
    path
        Where to.
    heads
        New heads of each sentence, see `Sentence.with_heads`.

    Raises
    ------
    ValueError
        Not one row of heads a sentence, and those of `Sentence.with_heads`; a file that cannot be written.
    """
    if heads is not None:
        if len(heads) != len(sentences):
            raise ValueError(f"{len(heads)} rows of heads for {len(sentences)} sentences; give one a sentence")
        sentences = [sentence.with_heads(row) for sentence, row in zip(sentences, heads, strict=True)]
    lines = (line for sentence in sentences for line in (*sentence.comments, *sentence.lines, ""))
    content = "".join(f"{line}\n" for line in lines)
    path = Path(path)
    if str(path) == "-":
        sys.stdout.write(content)
    else:
        write_bytes(path, gzip.compress(content.encode(), mtime=0) if path.suffix == ".gz" else content.encode())


def load_treebank(source: str | Path = "small", dev_share: float = 0.2) -> Splits[Sentence]:
    """A treebank by name, or the user's.

    Parameters
    ----------
    source
        ``"small"``, written for this project and installed with it; ``"ewt"``, the UD English Web Treebank (Silveira et
        al. 2014, CC BY-SA 4.0), from ``$PROBTX_DATA`` or downloaded once; or the path of a file or folder, see
        `part_paths`.
    dev_share
        How much of the end of a treebank without a dev part becomes one.

    Raises
    ------
    ValueError
        Of `part_paths` and `read_conllu`.

    Examples
    --------
    >>> load_treebank().train[0].words
    ('The', 'cat', 'sleeps', '.')
    """
    return load_splits(source, PUBLISHED, read_conllu, dev_share)


def _sentence(block: Block, check_tree: bool) -> Sentence:
    """A sentence from its numbered lines."""
    comments = tuple(takewhile(lambda line: line.startswith("#"), (line for _, line in block)))
    rows = block[len(comments) :]
    if not rows:
        raise BadLine(block[0][0], "comments without words; remove them, or the blank line after them")
    words: list[tuple[int, list[str]]] = []  # the number of the line, and its columns
    span_end = span_line = empty_nodes = 0
    for number, line in rows:
        fields = _fields(number, line)
        first, mark, last = _id(number, fields[0])
        expected = len(words) + (mark != ".")
        if first != expected:
            what = "an empty node's ID must begin with" if mark == "." else "the next ID must be"
            raise BadLine(number, f"ID {fields[0]}, but {what} {expected}; number the words 1, 2, 3, ...")
        if mark == "-":
            if last < expected or expected <= span_end:
                raise BadLine(number, f"multiword token {fields[0]} runs backwards or overlaps; mend its range")
            span_end, span_line = last, number
        elif mark == ".":
            empty_nodes += 1
            if last != empty_nodes:
                raise BadLine(number, f"ID {fields[0]}, but the next empty node is {first}.{empty_nodes}; number it so")
        else:
            words.append((number, fields))
            empty_nodes = 0
    if not words:
        raise BadLine(rows[0][0], "a sentence without words; remove its lines")
    if span_end > len(words):
        raise BadLine(span_line, f"multiword token ends at {span_end}, the sentence at {len(words)}; mend its range")
    heads = tuple(_head(number, fields[6], word, len(words)) for word, (number, fields) in enumerate(words, 1))
    if check_tree:
        _check_tree(heads, [number for number, _ in words])
    _, forms, lemmas, upos, xpos, _, _, relations, _, _ = zip(*(fields for _, fields in words), strict=True)
    return Sentence(forms, lemmas, upos, xpos, heads, relations, comments, tuple(line for _, line in rows))


def _fields(number: int, line: str) -> list[str]:
    """The ten columns of a line."""
    if line.startswith("#"):
        raise BadLine(number, "a comment between words; move it before the first word of the sentence")
    fields = line.split("\t")
    if len(fields) != len(COLUMNS):
        repair = (
            "put tabs, not spaces, between them" if len(line.split()) == len(COLUMNS) else "write _ for what is missing"
        )
        raise BadLine(number, f"{len(fields)} columns between tabs instead of {len(COLUMNS)}; {repair}")
    for column, field in zip(COLUMNS, fields, strict=True):
        if not field.strip():
            raise BadLine(number, f"column {column} is empty; write _ for what is missing")
        if " " in field and column not in _MAY_HAVE_SPACES:
            raise BadLine(number, f"column {column} has a space in {field!r}; remove it")
    return fields


def _id(number: int, field: str) -> tuple[int, str, int]:
    """An ID in parts: 3 is (3, "", 0), 1-2 is (1, "-", 2), 8.1 is (8, ".", 1)."""
    match = _ID.fullmatch(field)
    if not match or (match[1] == "0" and match[2] != "."):
        raise BadLine(number, f"ID {field!r} is no word (3), multiword token (1-2) or empty node (8.1); mend it")
    return int(match[1]), match[2] or "", int(match[3] or 0)


def _head(number: int, field: str, word: int, length: int) -> int | None:
    """The head of a word."""
    if field == "_":
        return None
    if not re.fullmatch(_NUMBER, field) or int(field) > length:
        raise BadLine(number, f"HEAD {field!r} is no word of the sentence; give 0 to {length}, or _ for none")
    if int(field) == word:
        raise BadLine(number, f"word {word} is its own head; give another word, or 0 for the root")
    return int(field)


def _check_tree(heads: tuple[Any, ...], numbers: Sequence[int]) -> None:
    """Refuse heads of some words only, and cycles."""
    if None in heads and set(heads) != {None}:
        missing = heads.index(None)
        raise BadLine(numbers[missing], "no HEAD, but other words have one; give it, or check_tree=False")
    safe = {0, None}
    for word in range(1, len(heads) + 1):
        path: list[int] = []
        while word not in safe:
            if word in path:
                circle = " -> ".join(map(str, [*path[path.index(word) :], word]))
                raise BadLine(numbers[word - 1], f"heads run in a circle, {circle}; give one of them another head")
            path.append(word)
            word = heads[word - 1]
        safe.update(path)
