"""Sums over arcs: the derivatives of the trilinear form ``s(p, x, y) = Σ_ij p_ij x^{g(i,j)}_i · y^{g(i,j)}_j``, in few operations.

g(i, j) is the distance group of word i and its head j. The derivative with respect to p is `scores`, to x `gather`, to y `in_turn`,
and so are the gradients of all three.

What the words have for each group, the y, is a *stack* (groups, words, r): a GEMM a group makes it and one takes it back. The next
groups along it belong to the next offsets, so that the words at offsets 1, 2, 3, each with the y of its own group, lie at a constant
distance in memory: a *run* of such groups is scored by products of a word with three rows, without a copy. A group of several
offsets is a band of a matrix product. Nothing of size groups x N x N is made.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probtx_pyro.ops.arc_groups import Groups, Run


def _ends(offset: int, length: int) -> tuple[tuple[int, int, int], ...]:
    """The words i that have a word at ``offset``, those words j, and the words that are no such i: as `torch.narrow` takes them."""
    if offset > 0:
        return (1, 0, length - offset), (1, offset, length - offset), (1, length - offset, offset)
    return (1, -offset, length + offset), (1, 0, length + offset), (1, 0, -offset)


def _rows(stack: Tensor, groups: Groups) -> Tensor:
    """A stack without the zeros at its ends, (groups, words, r)."""
    return stack.narrow(1, groups.reach, stack.shape[1] - 2 * groups.reach)


def _views(x: Tensor, groups: Groups, sentences: int) -> Sequence[Tensor]:
    """What the words have for each group, (B, N, r), from a stack, or from rows (words, r) that are the same for every group."""
    if x.dim() == 2:
        return [x.view(sentences, -1, x.shape[-1])] * len(groups.numbers)
    return _rows(x, groups).unflatten(1, (sentences, -1)).unbind(0)


def _along(matrix: Tensor, run: Run) -> Tensor:
    """The pairs of a run, (B, N, length) for every word i, in a matrix (B, N, reach + N + reach), whose ends take what is no pair."""
    sentence, row, _ = matrix.stride()
    start = matrix.storage_offset() + (matrix.shape[2] - matrix.shape[1]) // 2 + run.offset
    return matrix.as_strided((*matrix.shape[:2], run.length), (sentence, row + 1, 1), start)


class Weight(NamedTuple):
    """Weights of the pairs of a group: (B, N, N), or for a group of one offset those of every word's pair, (B, N, 1)."""

    place: int
    offset: int | None
    value: Tensor


def weights_of(p: Tensor, groups: Groups) -> list[Weight]:
    """``p`` (B, N, N) group by group."""
    bands = [Weight(place, None, p * band) for place, band in groups.bands]
    found = p.flatten(1).index_select(1, groups.pairs.flatten()).view(len(p), *groups.pairs.shape, 1).unbind(2)
    singles = (pair for run in groups.runs for pair in run.pairs())
    return [*bands, *(Weight(*pair, weight) for pair, weight in zip(singles, found, strict=True))]


def _window(stack: Tensor, run: Run, groups: Groups, moved: bool) -> Tensor:
    """For every word the rows of a run's groups, (words, length, r): its own, or ``moved`` those of the words at their offsets."""
    group, row, _ = stack.stride()
    start = (groups.reach + (run.offset if moved else 0)) * row + run.place * group
    size = (stack.shape[1] - 2 * groups.reach, run.length, stack.shape[2])
    return stack.as_strided(size, (row, group + (row if moved else 0), 1), stack.storage_offset() + start)


def scores(pairs: Sequence[tuple[Tensor, Tensor]], groups: Groups, shape: Sequence[int]) -> Tensor:
    """``Σ x_i · y_j`` over pairs of x (rows or a stack) and y (a stack), each pair of words in its group; (B, N, N)."""
    sentences, length = shape[:2]
    size, like = (sentences, length, length + 2 * groups.reach), pairs[0][0]
    wide, fresh = like.new_empty(size) if groups.bands else like.new_zeros(size), bool(groups.bands)
    total = wide[..., groups.reach : groups.reach + length]
    for x, y in pairs:
        xs, ys = _views(x, groups, sentences), _views(y, groups, sentences)
        for place, band in groups.bands:
            products = torch.bmm(xs[place], ys[place].mT)
            _into(total, torch.mul, products, band) if fresh else total.addcmul_(products, band)
            fresh = False
        for run in groups.runs:
            others = _window(y, run, groups, True)
            if x.dim() == 2:
                products = torch.bmm(x.unsqueeze(1), others.mT)
            else:
                products = (_window(x, run, groups, False) * others).sum(-1)
            _along(wide, run).add_(products.view(sentences, length, run.length))
    return total


def gather(total: Tensor, weights: Sequence[Weight], y: Tensor, groups: Groups, channels: int) -> None:
    """``total_i += Σ_j p_ij y_j``, each pair with the y of its group, summed over channels; total (words, L), y a stack."""
    each = total if channels == 1 else total.new_zeros(channels * total.shape[0], total.shape[1])
    words = each.view(*weights[0].value.shape[:2], -1)
    ys = _views(y, groups, len(words))
    for place, offset, weight in weights:
        if offset is None:
            words.baddbmm_(weight, ys[place])
        else:
            i, j, _ = _ends(offset, words.shape[1])
            words.narrow(*i).addcmul_(weight.narrow(*i), ys[place].narrow(*j))
    if channels > 1:
        total.add_(each.unflatten(0, (channels, -1)).sum(0))


def _sum(one: Weight, x: Tensor, heads: bool, total: Tensor, add: bool) -> None:
    """For a group ``Σ_i p_ij x_i``, over the words that have j as their head, or with ``heads`` ``Σ_j p_ij x_j``, in ``total``.

    All (B, N, r). ``add``: to what is there.
    """
    _, offset, weight = one
    if offset is None:
        weight = weight if heads else weight.mT
        total.baddbmm_(weight, x) if add else _into(total, torch.bmm, weight, x)
        return
    i, j, rest = _ends(offset if heads else -offset, total.shape[1])
    weight, x = weight.narrow(*(i if heads else j)), x.narrow(*j)
    if add:
        total.narrow(*i).addcmul_(weight, x)
    else:
        total.narrow(*rest).zero_()
        _into(total.narrow(*i), torch.mul, weight, x)


def in_turn(
    terms: Sequence[tuple[Sequence[Weight], Tensor]], groups: Groups, heads: bool, channels: int, purpose: str = "sums"
) -> Iterator[tuple[int, Sequence[Tensor]]]:
    """`_sum` of every group, over terms of weights and x (rows or a stack): its place, and of every channel (words, r).

    One group after the other in the same memory, to be used at once.
    """
    x, sentences = terms[0][1], terms[0][0][0].value.shape[0]
    words = x.shape[-2] - (0 if x.dim() == 2 else 2 * groups.reach)
    out = groups.scratch(words, x.shape[-1], x, purpose)
    rows, total = out.unflatten(0, (channels, -1)).unbind(0), out.unflatten(0, (sentences, -1))
    views = [_views(x, groups, sentences) for _, x in terms]
    for same in zip(*(weights for weights, _ in terms), strict=True):
        place = same[0].place
        for number, (one, xs) in enumerate(zip(same, views, strict=True)):
            _sum(one, xs[place], heads, total, number > 0)
        yield place, rows


def _into(where: Tensor, operation: Any, *arguments: Tensor) -> None:
    """``where[...] = operation(...)``, in one pass where the compiler is not there to make it one."""
    if torch.compiler.is_compiling():
        where.copy_(operation(*arguments))
    else:
        operation(*arguments, out=where)


def stack(x: Tensor, weights: Tensor, groups: Groups, purpose: str | None = None) -> Tensor:
    """``x w'`` for every channel and group, from (words, L) and (c, G, r, L). Plain GEMMs: batched ones are slow on CPUs."""
    channels, _, rank, _ = weights.shape
    out = groups.stack(channels * len(x), rank, x, purpose)
    rows = _rows(out, groups).unflatten(1, (channels, -1)).unbind(0)
    for same, found in zip(matrices(weights, groups), rows, strict=True):
        for w, y in zip(same, found.unbind(0), strict=True):
            _into(y, torch.mm, x, w.mT)
    return out


def matrices(weights: Tensor, groups: Groups) -> list[Sequence[Tensor]]:
    """Weights (c, G, r, L) as matrices of the channels, by the place of their group in a stack."""
    every = weights.unbind(1)
    return [every[number].unbind(0) for number in groups.numbers]


def add_products(total: Tensor, rows: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    """``total += Σ x w`` over channels, (words, L), from x (words, r) and w (r, L)."""
    for x, w in zip(rows, weights, strict=True):
        total.addmm_(x, w)


def outer(rows: Sequence[Tensor], x: Tensor, out: Sequence[Tensor], add: bool = False) -> None:
    """``Σ y x'`` over words, of every channel, in ``out`` or added to it: the gradient of `stack` and of `add_products`."""
    for found, y in zip(out, rows, strict=True):
        found.addmm_(y.mT, x) if add else _into(found, torch.mm, y.mT, x)


def for_each(x: Tensor, channels: int) -> Tensor:
    """Rows that are the same for every channel, (c words, L)."""
    return x if channels == 1 else x.expand(channels, *x.shape).flatten(0, 1)


__all__ = [
    "Weight",
    "add_products",
    "for_each",
    "gather",
    "in_turn",
    "matrices",
    "outer",
    "scores",
    "stack",
    "weights_of",
]
