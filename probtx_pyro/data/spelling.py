"""Spelling of words as numbers, so that a word that was never seen still says something: its ends, and its shape.

These are the classic features of taggers: Ratnaparkhi, 'A Maximum Entropy Model for Part-of-Speech Tagging' (EMNLP
1996), table 1, prefixes and suffixes of up to four letters; Collins, 'Ranking Algorithms for Named-Entity Extraction'
(ACL 2002), the shape.
"""

import re
from functools import lru_cache
from zlib import crc32

LONGEST = 4
"""Letters of the longest prefix or suffix that is a feature."""


def word_shape(word: str) -> str:
    """Return a word with ``A`` for every large letter, ``a`` for every other letter and ``0`` for every digit;
    other marks stay.

    >>> word_shape("McGraw-1990s")
    'AaAaaa-0000a'
    """
    return "".join("A" if x.isupper() else "a" if x.isalpha() else "0" if x.isdigit() else x for x in word)


def spelling_features(word: str) -> tuple[str, ...]:
    """Return the features of a spelling, as many for every word: prefixes and suffixes, small letters,
    and the shape in two ways.

    Parameters
    ----------
    word
        Any word.

    Examples
    --------
    >>> spelling_features("Yes")
    ('prefix Y', 'prefix Ye', 'prefix Yes', 'prefix Yes', 'suffix s', 'suffix es', 'suffix Yes', 'suffix Yes', 'small
    yes', 'shape Aaa', 'runs Aa')
    """
    shape = word_shape(word)
    runs = re.sub(r"(.)\1+", r"\1", shape)
    ends = range(1, LONGEST + 1)
    return (
        *(f"prefix {word[:n]}" for n in ends), *(f"suffix {word[-n:]}" for n in ends),
        f"small {word.lower()}", f"shape {shape}", f"runs {runs}",
    )  # fmt: skip


@lru_cache(maxsize=2**17)
def spelling_numbers(word: str, rows: int) -> tuple[int, ...]:
    """Return the rows that the features of a spelling have in a table, from 0, the same on every machine;
    features may share one.

    Parameters
    ----------
    word
        Any word.
    rows
        Rows of the table.
    """
    return tuple(crc32(feature.encode()) % rows for feature in spelling_features(word))
