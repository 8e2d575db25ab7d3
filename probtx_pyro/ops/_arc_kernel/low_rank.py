"""Scores of arcs of low rank ``T^g = U^g V^g'`` and the messages along them,
in few operations for all channels and groups at once.

With ``x^g_i = U^g' q_i`` and ``y^g_j = V^g' q_j`` the score of an arc is ``F_ij = x^g_i · y^g_j``, g the group of the
pair, and the message is ``Σ_g U^g s^g_i + V^g t^g_i`` with ``s^g_i = Σ_j p_ij y^g_j`` and ``t^g_j = Σ_i p_ij x^g_i``.
So x and y of all channels and groups, the *features*, are one matrix product with the words, and the messages are one
with the sums s and t. These are the derivatives of ``Σ p F`` with respect to x and y: the two functions `scores` and
`sums` serve the backward passes, too.

Features lie as (end, r, groups, channels, sentences, words), the words innermost. The word at offset 1 is one number
on, those at offsets 1, 2, 3, each with a group of its own, are one group and one number on: a *run* of single offsets
is a view. It passes the end of a sentence: what it finds there falls beside the matrix of scores, and is set to zero
among the sums. A group of several offsets is a band of a matrix product over sentences.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from probtx_pyro.ops._arc_kernel import plain
from probtx_pyro.ops._arc_kernel.distance_groups import Context, Groups, Run
from probtx_pyro.ops._numerics import again

# products whose columns are a multiple of it take half the time for short sentences; they may read beyond their end
STEP = 8
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a number


class Features(NamedTuple):
    """Numbers (end, r, groups, channels, sentences, words); the ends of an arc are the word (x) and its head (y).

    memory: flat, with some zeros before and behind them. shape: that of the numbers.
    """

    groups: Groups
    memory: Tensor
    shape: tuple[int, ...]

    @classmethod
    def product(cls, groups: Groups, weights: Tensor, q: Tensor, purpose: str | None = None) -> "Features":
        """Return ``w q'`` of weights (end, r, groups, channels, L) and words (B, N, L).

        The same ``purpose`` gets the same memory again; None gets new memory.
        """
        found = cls(groups, q, (*weights.shape[:-1], *q.shape[:-1])).empty(purpose)
        torch.mm(weights.flatten(0, -2), q.flatten(0, -2).mT, out=found.matrix())
        return found

    @property
    def beside(self) -> int:
        """Zeros before and behind the numbers."""
        return max(self.groups.reach, STEP)

    @property
    def row(self) -> int:
        """Numbers of a feature of a group: channels times words."""
        return math.prod(self.shape[3:])

    def empty(self, purpose: str | None = None) -> "Features":
        """Return others of the same shape, to be written."""

        def new() -> Tensor:
            memory = self.memory.new_empty(math.prod(self.shape) + 2 * self.beside)
            memory[: self.beside] = memory[len(memory) - self.beside :] = 0
            return memory

        return self._replace(memory=self.groups.kept(new, purpose, *self.shape, self.memory.dtype))

    def matrix(self) -> Tensor:
        """Return the numbers as a matrix, (end r groups channels, words)."""
        own = self.memory[self.beside : len(self.memory) - self.beside]
        return own.view(-1, self.shape[-2] * self.shape[-1])

    def group(self, end: int, place: int, columns: int = 0) -> Tensor:
        """Return those of a group, (channels sentences, r, words), or ``columns``,
        of which the last are not the sentence's.
        """
        _, rank, groups, channels, sentences, words = self.shape
        size = channels * sentences, rank, columns or words
        start = self.beside + (end * rank * groups + place) * self.row
        return self.memory.as_strided(size, (words, groups * self.row, 1), start)

    def run(self, end: int, run: Run, moved: int = 0) -> Tensor:
        """Return those of a run's groups, (r, length, channels words),
        of the words that are ``moved`` times the offset of each on.
        """
        _, rank, groups = self.shape[:3]
        start = self.beside + (end * rank * groups + run.place) * self.row + moved * run.offset
        size = rank, run.length, self.row
        return self.memory.as_strided(size, (groups * self.row, self.row + moved, 1), start)

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Return for every word of every run its place in flat matrices (channels B, N, N) of pairs,
        and bits that keep what is a pair.

        Both (2, offsets, channels words), of the word as dependent and as head.
        """

        def new() -> tuple[Tensor, Tensor]:
            length, device = self.shape[-1], self.memory.device
            offsets = torch.tensor([offset for run in self.groups.runs for _, offset in run.pairs()], device=device)
            word = torch.arange(length, device=device)
            other = word + torch.stack([offsets, -offsets]).unsqueeze(-1)
            real, other = (other >= 0) & (other < length), other.clamp(0, length - 1)
            index = torch.stack([word * length + other[0], other[1] * length + word]).unsqueeze(2)
            index = index + length**2 * torch.arange(self.row // length, device=device).unsqueeze(-1)
            kept = real.unsqueeze(2).expand(index.shape).to(BITS[self.memory.element_size()]).neg()
            return index.flatten(-2), kept.flatten(-2)

        return self.groups.kept(new, "pairs", self.row, self.memory.dtype)


def scores(ends: Sequence[tuple[Features, Features]]) -> Tensor:
    """Return ``Σ x_i · y_j``, each pair of words in its group, over pairs of features that give x and y;
    (channels B, N, N).
    """
    groups, memory, shape = ends[0][0]
    sentences, length = math.prod(shape[3:5]), shape[5]
    wide = memory.new_zeros(sentences, length, length + 2 * groups.reach)
    total = wide[..., groups.reach : groups.reach + length]
    for x, y in ends:
        for place, band in groups.bands:
            products = torch.bmm(x.group(0, place).mT, y.group(1, place, _columns(length)))
            total.addcmul_(products[..., :length], band)
        for run in groups.runs:
            products = (x.run(0, run) * y.run(1, run, 1)).sum(0).view(run.length, sentences, length)
            start, row = groups.reach + run.offset, wide.stride(1)
            wide.as_strided(products.shape, (1, length * row, row + 1), start).add_(products)
    return total


def sums(p: Tensor, features: Features, purpose: str | None = None) -> Features:
    """Return ``s_i = Σ_j p_ij y_j`` in the place of x and ``t_j = Σ_i p_ij x_i`` in that of y,
    for weights p (channels B, N, N).
    """
    groups, found, columns = features.groups, features.empty(purpose), _columns(p.shape[1])
    sentences, length, _ = p.shape
    square = p.new_zeros(sentences, columns, columns)
    for place, band in groups.bands:
        torch.mul(p, band, out=square[:, :length, :length])
        for end, weights in ((0, square[..., :length].mT), (1, square[:, :length])):
            told = torch.bmm(features.group(1 - end, place), weights)
            found.group(end, place).copy_(told[..., :length])
    if groups.runs:
        index, kept = features.pairs()
        lengths = [run.length for run in groups.runs]
        weights = p.flatten().index_select(0, index.flatten()).view(index.shape).split(lengths, 1)
        kept = kept.split(lengths, 1)
        for run, weight, bits in zip(groups.runs, weights, kept, strict=True):
            for end, moved in ((0, 1), (1, -1)):
                told = torch.mul(features.run(1 - end, run, moved), weight[end], out=found.run(end, run))
                told.view(bits.dtype).bitwise_and_(bits[end])  # zero, even where a sentence beside it is not finite
    return found


def _columns(length: int) -> int:
    """Next multiple of `STEP`."""
    return -(-length // STEP) * STEP


class _Scores(torch.autograd.Function):
    """Scores (channels B, N, N), and the memory of the features, in which the messages return their gradient."""

    @staticmethod
    def forward(ctx: Context, groups: Groups, q: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        features = Features.product(groups, weights, q)
        ctx.save_for_backward(q, weights, features.memory)
        ctx.groups = groups
        ctx.set_materialize_grads(False)
        return scores([(features, features)]), features.memory

    @staticmethod
    def backward(ctx: Context, d_scores: Tensor | None, d_memory: Tensor | None) -> tuple[Tensor | None, ...]:
        q, weights, memory = ctx.saved_tensors
        if again() and d_scores is not None:
            return None, *plain.scored_again(LowRank, ctx.groups, q, weights, d_scores)
        features = Features(ctx.groups, memory, (*weights.shape[:-1], *q.shape[:-1]))
        if d_scores is not None:
            told = sums(d_scores, features).memory
            d_memory = told if d_memory is None else told.add_(d_memory)
        if d_memory is None:
            return None, None, None
        d = features._replace(memory=d_memory).matrix()
        d_q = torch.mm(d.mT, weights.flatten(0, -2)).view(q.shape)
        return None, d_q, torch.mm(d, q.flatten(0, -2)).view(weights.shape)


class _Messages(torch.autograd.Function):
    """Messages for head marginals p (channels B, N, N), added to ``onto``."""

    @staticmethod
    def forward(
        ctx: Context, groups: Groups, p: Tensor, q: Tensor, memory: Tensor, weights: Tensor, onto: Tensor
    ) -> Tensor:
        features = Features(groups, memory, (*weights.shape[:-1], *onto.shape[:-1]))
        told = sums(p, features)
        onto.flatten(0, -2).addmm_(told.matrix().mT, weights.flatten(0, -2))
        ctx.save_for_backward(p, q, memory, weights, told.memory)
        ctx.groups = groups
        ctx.mark_dirty(onto)
        return onto

    @staticmethod
    def backward(ctx: Context, d_onto: Tensor) -> tuple[Tensor | None, ...]:
        p, q, memory, weights, told = ctx.saved_tensors
        if again():
            d_p, d_q, d_weights = plain.told_again(LowRank, ctx.groups, p, q, weights, d_onto)
            return None, d_p, d_q, None, d_weights, d_onto
        d_onto = d_onto.contiguous()
        d = Features.product(ctx.groups, weights, d_onto)
        d_weights = torch.mm(d._replace(memory=told).matrix(), d_onto.flatten(0, -2)).view(weights.shape)
        features = d._replace(memory=memory)
        return None, scores([(features, d), (d, features)]), None, sums(p, d).memory, d_weights, d_onto


class LowRank(NamedTuple):
    """Factors of the potentials of some channels, of the groups that occur: (end, r, groups, channels, L),
    U before V.
    """

    weights: Tensor

    @classmethod
    def of(cls, groups: Groups, left: Tensor, right: Tensor) -> "LowRank":
        """Make the table from U and V of all groups, (channels, G, L, r) each."""
        index = torch.tensor(groups.numbers, dtype=torch.long, device=left.device)
        return cls(torch.stack([left, right]).index_select(2, index).permute(0, 4, 2, 1, 3).contiguous())

    def __len__(self) -> int:
        return self.weights.shape[3]

    def by_group(self, groups: Groups) -> list[list[Tensor]]:
        """Return U' and V' of every group, (channels, r, L), in the order of the groups."""
        return [[w.transpose(0, 1) for w in end.unbind(1)] for end in self.weights.unbind(0)]

    def score(self, groups: Groups, q: Tensor, again: bool) -> Sequence[Tensor]:
        """Return the scores (channels B, N, N) of words (B, N, L), and what `tell` needs;
        ``again`` writes over those before.
        """
        if torch.is_grad_enabled():
            return _Scores.apply(groups, q, self.weights)
        features = Features.product(groups, self.weights, q, "features" if again else None)
        return scores([(features, features)]), features.memory

    def tell(self, groups: Groups, p: Tensor, q: Tensor, onto: Tensor, made: Sequence[Tensor]) -> Tensor:
        """Add the messages for head marginals p (channels B, N, N) to ``onto`` (B, N, L)."""
        if torch.is_grad_enabled():
            return _Messages.apply(groups, p, q, *made, self.weights, onto)
        told = sums(p, Features(groups, made[-1], (*self.weights.shape[:-1], *q.shape[:-1])), "sums")
        onto.flatten(0, -2).addmm_(told.matrix().mT, self.weights.flatten(0, -2))
        return onto
