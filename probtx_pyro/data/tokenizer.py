"""Subwords and words as numbers, learned from text by the library ``tokenizers``, with nothing of the text lost."""

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from probtx_pyro._lazy import install_advice
from probtx_pyro.data.text import checked_texts

UNKNOWN_NUMBER, START, END = 0, 1, 2
SPECIAL = ["<unknown>", "<start>", "<end>"]


def _library() -> ModuleType:
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"translation needs tokenizers: {install_advice('train')}") from None
    return tokenizers


class Level(NamedTuple):
    """Kind of the tokens: its model and the trainer of it, made from the library and the size,
    and the smallest size.
    """

    model: Callable[[ModuleType], object]
    trainer: Callable[[ModuleType, int], object]
    least: int


def _byte_pairs(library: ModuleType, size: int) -> object:
    alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())  # all 256 bytes: nothing is unknown
    return library.trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )


def _words(library: ModuleType, size: int) -> object:
    return library.trainers.WordLevelTrainer(vocab_size=size, special_tokens=SPECIAL, show_progress=False)


LEVELS = {
    "subword": Level(lambda library: library.models.BPE(), _byte_pairs, len(SPECIAL) + 256),
    "word": Level(lambda library: library.models.WordLevel(unk_token=SPECIAL[0]), _words, len(SPECIAL) + 1),
}
"""Kinds of tokens: byte-pair encoding of the UTF-8 bytes of words (Sennrich et al. 2016),
and the most frequent words."""


class Tokenizer:
    """Tokens that a model of text knows: number 0 stands for what is unknown, 1 for the start of a sequence,
    2 for its end.

    Words, runs of punctuation and runs of spaces are cut apart first; a space belongs to the word behind it, so that
    `decode` gives the text back.

    Parameters
    ----------
    text
        What `text` of another one holds.

    Raises
    ------
    ValueError
        Text that holds no tokenizer.
    ModuleNotFoundError
        The library ``tokenizers`` is not installed.

    Examples
    --------
    >>> tokenizer = Tokenizer.of(["low lower lowest"] * 3, size=300)
    >>> tokenizer.decode(tokenizer.encode("slowest, 低!"))
    'slowest, 低!'
    """

    def __init__(self, text: str):
        try:
            self._tokenizer = _library().Tokenizer.from_str(text)
        except ModuleNotFoundError:
            raise
        except Exception as error:  # the library has no class of its own
            raise ValueError(f"text holds no tokenizer ({error}); give the text of another one") from None
        self._tokenizer.encode_special_tokens = True  # "<end>" in a text is six characters

    @classmethod
    def of(cls, lines: Iterable[str], level: str = "subword", size: int = 4000) -> "Tokenizer":
        """Learn tokens from lines.

        Parameters
        ----------
        lines
            Text to learn from.
        level
            ``"subword"`` or ``"word"``, of `LEVELS`.
        size
            Most tokens, the three special ones and, of subwords, the 256 bytes among them.

        Raises
        ------
        ValueError
            Another level, or a size that is too small for it.
        ModuleNotFoundError
            The library ``tokenizers`` is not installed.
        """
        if level not in LEVELS:
            raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {level!r}")
        library, kind = _library(), LEVELS[level]
        if size < kind.least:
            raise ValueError(f"size must be {kind.least} or more for the level {level}, not {size}")
        learned = library.Tokenizer(kind.model(library))
        learned.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=True)
        learned.decoder = library.decoders.ByteLevel()
        learned.train_from_iterator(checked_texts("lines", lines), kind.trainer(library, size))
        return cls(learned.to_str())

    @property
    def text(self) -> str:
        """The tokenizer as JSON, from which it can be made again."""
        return self._tokenizer.to_str()

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens in the order of their numbers, as the library writes them: a byte a character, Ġ for a space."""
        return tuple(sorted(self._tokenizer.get_vocab(), key=self._tokenizer.token_to_id))

    def encode(self, line: str) -> Tensor:
        """Return the numbers of the tokens of a line, (token,), without start and end."""
        return torch.tensor(self._tokenizer.encode(line).ids, dtype=torch.long)

    def decode(self, numbers: Iterable[int] | Tensor) -> str:
        """Return the text of tokens, without the special ones."""
        numbers = numbers.tolist() if isinstance(numbers, Tensor) else list(numbers)
        return self._tokenizer.decode(numbers).removeprefix(" ")

    def unknown_share(self, lines: Iterable[str]) -> float:
        """Return the share of the tokens of lines that are unknown; 0 if there are none."""
        unknown = [number == UNKNOWN_NUMBER for line in lines for number in self._tokenizer.encode(line).ids]
        return sum(unknown) / max(1, len(unknown))
