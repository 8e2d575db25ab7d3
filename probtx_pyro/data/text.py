"""Text to train language models on: the corpora by name, any file, and vocabularies of characters or words."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import torch
from torch import Tensor

from probtx_pyro.data.files import fetch, on_github, read_text

UNKNOWN = "�"
"""What stands for a character that the vocabulary does not have."""
REMOTE = {
    "tinyshakespeare": on_github(
        "tinyshakespeare",
        "karpathy/char-rnn/master/data/tinyshakespeare",
        training=("input.txt", "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),
    ),
    "wikitext2": on_github(
        "wikitext2",
        "pytorch/examples/main/word_language_model/data/wikitext-2",
        training=("train.txt", "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
        validation=("valid.txt", "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
        test=("test.txt", "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
    ),
}


class Text(NamedTuple):
    """A text in parts: one to train on, one to validate on, and one to test on where it is published (else empty)."""

    training: str
    validation: str
    test: str = ""


def topics_text() -> str:
    """The help topics of the Python that runs, one after the other in the order of their names."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def load_text(source: str | Path = "topics", validation_share: float = 0.1) -> Text:
    """A corpus by name, or a file.

    Parameters
    ----------
    source
        ``"topics"``, the help that comes with Python; ``"tinyshakespeare"`` or ``"wikitext2"``, read from the folder
        ``$PROBTX_DATA`` if that is set, else downloaded once and checked; or the path of a UTF-8 text file, plain or
        ``.gz``.
    validation_share
        How much of the end of a text without a validation part of its own is kept for validation.

    Raises
    ------
    ValueError
        No such corpus or file, a file that is not UTF-8 text, or one too short to split.

    Examples
    --------
    >>> text = load_text()
    >>> 8.9 < len(text.training) / len(text.validation) < 9.1
    True
    """
    if source in REMOTE:
        parts = [read_text(fetch(remote)) for remote in REMOTE[str(source)].values()]
    else:
        wanted = f"text file or one of topics, {', '.join(REMOTE)}"
        parts = [topics_text() if source == "topics" else read_text(Path(source), wanted)]
    if len(parts) > 1:
        return Text(*parts)
    if not 0 < validation_share < 1:
        raise ValueError(f"validation_share must be between 0 and 1, not {validation_share}")
    cut = round(len(parts[0]) * (1 - validation_share))
    if not 0 < cut < len(parts[0]):
        raise ValueError(f"{source} has {len(parts[0])} characters, too few to keep a part for validation")
    return Text(parts[0][:cut], parts[0][cut:])


def checked_texts(name: str, texts: Iterable[str]) -> list[str]:
    """Return texts; a text in the place of several, whose letters would be taken for texts, is refused.

    Parameters
    ----------
    name
        What the caller calls them.
    texts
        What was given.

    Raises
    ------
    ValueError
        One text, or what is none among them.
    """
    if isinstance(texts, str):
        raise ValueError(f"{name} is one text, {_cut(texts)}; give a list, [{_cut(texts)}]")
    found = list(texts)
    for i, text in enumerate(found):
        if not isinstance(text, str):
            raise ValueError(f"{name}[{i}] is {_cut(text)}, of the class {type(text).__name__}; give a text")
    return found


def checked_words(
    name: str, rows: Iterable[Iterable[str]], repair: str = "give its words, as data.tokenize does"
) -> list[list[str]]:
    """Return rows of words; a text in the place of words, whose letters would be taken for words, is refused.

    Parameters
    ----------
    name
        What the caller calls them.
    rows
        What was given.
    repair
        Of a text in the place of a row.

    Raises
    ------
    ValueError
        One text, a text or what is none among the rows, or what is no word in a row.
    """
    if isinstance(rows, str):
        raise ValueError(f"{name} is a text, {_cut(rows)}; give a list of rows, each a list of words")
    found: list[list[str]] = []
    for i, row in enumerate(rows):
        if isinstance(row, str):
            raise ValueError(f"{name}[{i}] is a text, {_cut(row)}; {repair}")
        found.append(list(row))
        for word in found[i]:
            if not isinstance(word, str):
                raise ValueError(f"{name}[{i}] has {_cut(word)}, of the class {type(word).__name__}; give words")
    return found


def _cut(given: object) -> str:
    """The beginning of what was given."""
    return repr(given) if len(repr(given)) <= 40 else f"{repr(given)[:40]}..."


def _words(text: str) -> list[str]:
    """Words between spaces; the end of a line is a word of its own."""
    return re.sub(r"\n", " <eos> ", text).split()


LEVELS: dict[str, Callable[[str], Sequence[str]]] = {"char": list, "word": _words}


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
    >>> spelling_features("Yes")[1:6]
    ('prefix Ye', 'prefix Yes', 'prefix Yes', 'suffix s', 'suffix es')
    >>> spelling_features("Yes")[8:]
    ('small yes', 'shape Aaa', 'runs Aa')
    """
    shape, ends = word_shape(word), range(1, LONGEST + 1)
    whole = f"small {word.lower()}", f"shape {shape}", "runs " + re.sub(r"(.)\1+", r"\1", shape)
    return (*(f"prefix {word[:n]}" for n in ends), *(f"suffix {word[-n:]}" for n in ends), *whole)


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


class Vocabulary(NamedTuple):
    """The tokens that a model knows; number 0 stands for all others.

    level: ``"char"`` or ``"word"``.
    tokens: in the order of their numbers, `UNKNOWN` first.
    spellings: rows of the table that spellings are numbered in, see `spelling_numbers`; 0 leaves spellings out.
    """

    level: str
    tokens: tuple[str, ...]
    spellings: int = 0

    @classmethod
    def of(cls, text: str, level: str = "char", rarest: int = 1) -> "Vocabulary":
        """Return the vocabulary of a text, in alphabetical order.

        Parameters
        ----------
        text
            Text to count tokens in.
        level
            ``"char"`` or ``"word"``.
        rarest
            How often a token must occur to be known.

        Raises
        ------
        ValueError
            Another level, or no text.

        Examples
        --------
        >>> Vocabulary.of("to be or not to be", "word", rarest=2).tokens[1:]
        ('be', 'to')
        """
        if level not in LEVELS:
            raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {level!r}")
        [text] = checked_texts("text", [text])
        counts = Counter(LEVELS[level](text))
        return cls(level, (UNKNOWN, *sorted(token for token, count in counts.items() if count >= rarest)))

    def numbers(self, rows: Iterable[Iterable[str]]) -> list[Tensor]:
        """Numbers of the tokens of each row, (token,); with spellings (token, 1 + features),
        the token's own number first.
        """
        number = {token: i for i, token in enumerate(self.tokens)}

        def of(token: str) -> int | tuple[int, ...]:
            own = number.get(token, 0)
            return (own, *spelling_numbers(token, self.spellings)) if self.spellings else own

        each = checked_words("rows", rows)
        return [torch.tensor([of(token) for token in row], dtype=torch.long) for row in each]

    def encode(self, text: str) -> Tensor:
        """Numbers of the tokens of ``text``, (token,)."""
        return self.encode_each([text])[0]

    def encode_each(self, texts: Iterable[str]) -> list[Tensor]:
        """Numbers of the tokens of each text, (token,).

        >>> [x.tolist() for x in Vocabulary.of("to be", "word").encode_each(["be", "to see"])]
        [[1], [2, 0]]
        """
        return self.numbers(map(LEVELS[self.level], checked_texts("texts", texts)))

    def unknown_share(self, tokens: Iterable[str]) -> float:
        """Share of ``tokens`` that the vocabulary does not have; 0 if there are none.

        >>> Vocabulary.of("to be", "word").unknown_share(["to", "see"])
        0.5
        """
        known = set(self.tokens)
        unknown = [token not in known for token in checked_texts("tokens", tokens)]
        return sum(unknown) / max(1, len(unknown))
