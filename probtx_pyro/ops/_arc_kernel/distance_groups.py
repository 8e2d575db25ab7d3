"""Distance groups of arcs, and the memory in which the words hold something for each of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

T = TypeVar("T")


class Context(FunctionCtx):
    """Context of a kernel: its distance groups, and the tensors saved for the backward pass."""

    groups: "Groups"
    saved_tensors: tuple[Tensor, ...]


class Run(NamedTuple):
    """Groups of a single offset: the k-th of ``length`` stands at ``place + k`` of
    the stack and has the offset ``offset + k``.
    """

    place: int
    offset: int
    length: int

    def pairs(self) -> list[tuple[int, int]]:
        """Place and offset of each group."""
        return [(self.place + k, self.offset + k) for k in range(self.length)]


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """One row of r numbers for every word; views that sums ask for again and again are made once.

    flat: (words, r). words: the same sentence by sentence, (B, N, r). made: the views.
    """

    flat: Tensor
    words: Tensor
    made: dict[tuple[int, ...], Tensor]

    @classmethod
    def of(cls, flat: Tensor, sentences: int) -> "Rows":
        """Rows of so many sentences, channels together."""
        return cls(flat, flat.unflatten(0, (sentences, -1)), {})

    def __getitem__(self, place: int) -> "Rows":
        """Return the same rows for every group."""
        return self

    def having(self, offset: int) -> Tensor:
        """Rows of the words that have another word at ``offset``."""
        return self._view(max(0, -offset), self.words.shape[1] - abs(offset))

    def lacking(self, offset: int) -> Tensor:
        """Rows of the words that have no word at ``offset``."""
        return self._view(self.words.shape[1] - offset if offset > 0 else 0, abs(offset))

    def _view(self, *place: int) -> Tensor:
        if place not in self.made:
            self.made[place] = self.words.narrow(1, *place)
        return self.made[place]

    def of_channels(self, channels: int) -> Sequence[Tensor]:
        """Return the rows of each channel, (words, r)."""
        return (self.flat,) if channels == 1 else self.flat.unflatten(0, (channels, -1)).unbind(0)


@dataclass(frozen=True, eq=False, slots=True)
class Stack:
    """Rows of the words for each distance group.

    memory: (groups, words, r), with zeros at both ends of every group. rows: of each group, without them. made: views,
    as in `Rows`.
    """

    memory: Tensor
    rows: Sequence[Rows]
    made: dict[tuple[Run, bool], Tensor]

    def __getitem__(self, place: int) -> Rows:
        """Rows of the group at ``place``."""
        return self.rows[place]

    def window(self, run: Run, moved: bool) -> Tensor:
        """Return for every word its rows in a run's groups, (words, length, r),
        or if ``moved`` those of the words at their offsets.
        """
        if (run, moved) not in self.made:
            first = self.rows[run.place].flat
            group, row, _ = self.memory.stride()
            start = first.storage_offset() + (run.offset * row if moved else 0)
            size, steps = (len(first), run.length, first.shape[1]), (row, group + (row if moved else 0), 1)
            self.made[run, moved] = self.memory.as_strided(size, steps, start)
        return self.made[run, moved]


class Groups(NamedTuple):
    """The distance groups that occur among some words.

    numbers: which, in the order of the stack: to the right (j > i) nearest first, then to the left farthest first.
    runs: those of one offset. bands: the place of each other one, and the matrix (N, N) that is 1 for its pairs and 0
    elsewhere. reach: rows of zeros that every group of a stack has at both ends, so that every word has a word at every
    offset of a run. pairs: of the runs, offset by offset those of the words that have one, in the flat matrix (N N).
    room: memory that is written again and again, by purpose and
    size: what the system gives anew must be touched page by page, which takes as long as a sum.
    """

    numbers: tuple[int, ...]
    runs: tuple[Run, ...]
    bands: tuple[tuple[int, Tensor], ...]
    reach: int
    pairs: Tensor
    room: dict[object, Any]

    @classmethod
    def of(cls, distances: Sequence[int], words: Tensor) -> "Groups":
        """Find the groups that occur among words (..., N, L), whose dtype the bands take.

        ``distances`` (s_1 < s_2 < ...) cut ``|i - j|`` into [1, s_1), [s_1, s_2), ..., [s_n, ∞).

        >>> Groups.of((2, 3), torch.zeros(9, 1)).runs
        (Run(place=0, offset=1, length=2), Run(place=4, offset=-2, length=2))
        """
        length, every = words.shape[-2], words.new_ones(words.shape[-2], words.shape[-2])
        rings = [(low, min(high, length) - 1) for low, high in pairwise([1, *distances, max(length, 1)])]
        rings = [(low, high) for low, high in rings if low <= high]
        number, bands = len(rings), []
        runs: list[Run] = []
        for k, (low, high) in enumerate(rings):
            left = 2 * number - 1 - k
            if low < high:
                bands += [(k, every.triu(low).tril(high)), (left, every.tril(-low).triu(-high))]
            elif k and rings[k - 1][0] == rings[k - 1][1]:  # the run goes on
                one, other = runs[-2:]
                runs[-2:] = one._replace(length=one.length + 1), Run(left, -high, other.length + 1)
            else:
                runs += [Run(k, low, 1), Run(left, -low, 1)]
        numbers = (*range(number), *(len(distances) + 1 + k for k in reversed(range(number))))
        reach = max([0, *(low for low, high in rings if low == high)])
        offsets = [offset for run in runs for _, offset in run.pairs()]
        first = [(-offset * length if offset < 0 else offset, length - abs(offset)) for offset in offsets]
        pairs = [start + (length + 1) * k for start, count in first for k in range(count)]
        return cls(numbers, tuple(runs), tuple(bands), reach, words.new_tensor(pairs, dtype=torch.long), {})

    def serves(self, words: Tensor) -> bool:
        """True if matrix products of such words can be multiplied with the bands."""
        return all(band.dtype == words.dtype for _, band in self.bands)

    def stack(self, words: Rows, channels: int, features: int, purpose: str | None = None) -> Stack:
        """Make a stack to be written, for the channels of all words, with zeros at the ends of every group.

        The same ``purpose`` gets the same memory again; None gets new memory.
        """
        rows, sentences = channels * len(words.flat), channels * len(words.words)
        size = (len(self.numbers), rows + 2 * self.reach, features)

        def new() -> Stack:
            memory = words.flat.new_empty(size)
            memory[:, : self.reach] = memory[:, size[1] - self.reach :] = 0
            return self.stacked(memory, sentences)

        return self.kept(new, purpose, *size, words.flat.dtype)

    def stacked(self, memory: Tensor, sentences: int) -> Stack:
        """Read a stack from the memory of one that was written before."""
        rows = memory.narrow(1, self.reach, memory.shape[1] - 2 * self.reach)
        return Stack(memory, [Rows.of(x, sentences) for x in rows.unbind(0)], {})

    def scratch(self, like: Rows, purpose: str) -> Rows:
        """Make rows to be written; the same ``purpose`` gets the same memory again."""
        size = like.flat.shape
        return self.kept(lambda: Rows.of(like.flat.new_empty(size), len(like.words)), purpose, *size, like.flat.dtype)

    def kept(self, new: Callable[[], T], purpose: str | None, *kind: object) -> T:
        """Return what ``new`` makes; the same ``purpose`` and kind gets the same again."""
        if purpose is None:
            return new()
        if (purpose, kind) not in self.room:
            self.room[purpose, kind] = new()
        return self.room[purpose, kind]
