"""Distance groups of arcs, and the memory in which the words hold something for each of them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Run(NamedTuple):
    """Groups of a single offset: the k-th of ``length`` stands at ``place + k`` of the stack and has the offset ``offset + k``."""

    place: int
    offset: int
    length: int

    def pairs(self) -> list[tuple[int, int]]:
        """Place and offset of each."""
        return [(self.place + k, self.offset + k) for k in range(self.length)]


class Groups(NamedTuple):
    """The distance groups that occur among some words.

    numbers: which, in the order of the stack: to the right (j > i) nearest first, then to the left farthest first. runs: those of
    one offset. bands: the place of each other one, and the matrix (N, N) that is 1 for its pairs and 0 elsewhere. reach: rows of zeros
    that every group of a stack has at both ends, so that every word has a word at every offset of a run. pairs: (N, S), of every word
    the S pairs of the runs, in the flat matrix (N N); where there is none, any. room: memory that is written again and again, by
    purpose: what the system gives anew must be touched page by page, which takes as long as a sum.
    """

    numbers: tuple[int, ...]
    runs: tuple[Run, ...]
    bands: tuple[tuple[int, Tensor], ...]
    reach: int
    pairs: Tensor
    room: dict[str, Tensor]

    @classmethod
    def of(cls, distances: Sequence[int], words: Tensor, room: dict[str, Tensor] | None = None) -> "Groups":
        """Among words (..., N, L). ``distances`` (s_1 < s_2 < ...) cut ``|i - j|`` into [1, s_1), [s_1, s_2), ..., [s_n, ∞).

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
        offsets = torch.tensor(
            [run.offset + k for run in runs for k in range(run.length)], dtype=torch.long, device=words.device
        )
        word = torch.arange(length, device=words.device).unsqueeze(-1)
        pairs = (word * (length + 1) + offsets).clamp(0, max(length * length - 1, 0))
        return cls(numbers, tuple(runs), tuple(bands), reach, pairs, {} if room is None else room)

    def stack(self, words: int, features: int, like: Tensor, purpose: str | None = None) -> Tensor:
        """A stack to be written, (groups, words, r), with zeros at the ends of every group; for the same purpose in the same memory."""
        size = (len(self.numbers), words + 2 * self.reach, features)
        out, new = self._memory(size, like, purpose)
        if new:
            for end in (out[:, : self.reach], out[:, size[1] - self.reach :]):
                end.zero_()
        return out

    def scratch(self, words: int, features: int, like: Tensor, purpose: str) -> Tensor:
        """Rows to be written, (words, r), for the same purpose in the same memory."""
        return self._memory((words, features), like, purpose)[0]

    def _memory(self, size: tuple[int, ...], like: Tensor, purpose: str | None) -> tuple[Tensor, bool]:
        """Memory, and whether it is new."""
        purpose = None if torch.compiler.is_compiling() else purpose
        old = None if purpose is None else self.room.get(purpose)
        if old is not None and old.shape == size and old.dtype == like.dtype and old.device == like.device:
            return old, False
        new = like.new_empty(size)
        if purpose is not None:
            self.room[purpose] = new
        return new, True


def group_of(distances: Sequence[int], length: int, device: Any = None) -> Tensor:
    """Number of the distance group of every pair, (N, N); for a word and itself, which no arc joins, it means nothing."""
    offset = torch.arange(length, device=device)[None, :] - torch.arange(length, device=device)[:, None]
    edges = torch.tensor(distances, dtype=torch.long, device=device)
    ring = torch.bucketize(offset.abs(), edges, right=True)
    return torch.where(offset < 0, ring + len(distances) + 1, ring)


__all__ = ["Groups", "Run", "group_of"]
