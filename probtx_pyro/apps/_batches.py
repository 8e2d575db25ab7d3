"""Rows of words that are computed together: of like length,
and few enough that the machine has room for all pairs of their words.

A model whose memory grows with the pairs of the words of a row has, for each of its channels, a few tensors with one
number for every pair. Rows are padded to the longest of their batch, so that a batch of R rows costs
``R * longest² * channels``; it is kept within `BUDGET`, or is one row alone, which must be within `LONGEST`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isqrt

from torch import nn

from probtx_pyro.nn import DependencyCRFEncoder

BUDGET = 2**25
"""Most numbers of a tensor of pairs of words, of a batch: 128 MiB in single precision."""
LONGEST = 2**26
"""The same of one row, which cannot be divided: 2,896 words where there are 8 channels."""


class BadRow(ValueError):
    """Error in one of several rows, which a reader of files tells by its line.

    Parameters
    ----------
    kind
        What a row is.
    number
        Which one, from 1.
    wrong
        What is wrong with it, and the repair.
    """

    def __init__(self, kind: str, number: int, wrong: str):
        super().__init__(f"{kind} {number} {wrong}")
        self.number, self.wrong = number, wrong


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode for a while, and then back in the mode that it was in."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def channels_of(model: nn.Module) -> int:
    """Return how many numbers a model keeps for each pair of words: one for each channel of a dependency CRF,
    or head with biases by offset.

    Parameters
    ----------
    model
        A model of words.
    """
    encoder = getattr(model, "encoder", None)
    if isinstance(encoder, DependencyCRFEncoder):
        return encoder.num_channels
    return getattr(encoder, "num_heads", 1) if getattr(encoder, "max_offset", None) else 1


def batches(lengths: Sequence[int], rows: int, channels: int = 1) -> list[list[int]]:
    """Return the numbers of the rows of each batch, shortest rows first; empty rows are in none.

    Parameters
    ----------
    lengths
        Words of each row.
    rows
        Most rows of a batch.
    channels
        Of `channels_of`.

    Raises
    ------
    ValueError
        ``rows`` is less than 1.

    Examples
    --------
    >>> batches([3, 5000, 0, 2, 3], rows=2)
    [[3, 0], [4], [1]]
    """
    if rows < 1:
        raise ValueError(f"batch must be 1 or more, not {rows}")
    found: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not lengths[i]:
            continue
        if found and len(found[-1]) < rows and (len(found[-1]) + 1) * lengths[i] ** 2 * channels <= BUDGET:
            found[-1].append(i)
        else:
            found.append([i])
    return found


def room_of(model: nn.Module) -> int:
    """Return the words of the longest row that the machine has room for, or the model, if that is less.

    Parameters
    ----------
    model
        A model of words.
    """
    return min(isqrt(LONGEST // channels_of(model)), getattr(getattr(model, "encoder", None), "context", LONGEST))


def require_room(model: nn.Module, lengths: Sequence[int], kind: str = "sentence") -> None:
    """Refuse the first row that is longer than a model takes, or than the machine has room for.

    Parameters
    ----------
    model
        A model of words.
    lengths
        Words of each row.
    kind
        What a row is, for errors.

    Raises
    ------
    BadRow
        There is one.
    """
    most = room_of(model)
    by_model = getattr(getattr(model, "encoder", None), "context", LONGEST) == most
    room = f"{most:,} (context); divide it, or train with more" if by_model else f"{most:,}; divide it"
    for number, length in enumerate(lengths, 1):
        if length > most:
            raise BadRow(kind, number, f"has {length:,} words, and there is room for {room}")
