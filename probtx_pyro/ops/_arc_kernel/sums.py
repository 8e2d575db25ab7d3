"""Sums over arcs: the derivatives of the trilinear form ``s(p, x, y) = Σ_ij p_ij x^{g(i,j)}_i · y^{g(i,j)}_j``,
in few operations.

g(i, j) is the distance group of word i and its head j. The derivative with respect to p is `scores`, to x `gather`, to
y `in_turn`, and so are the gradients of all three.

The rows of the words for each group, the y, are a *stack* (groups, words, r): one GEMM a group makes it, and one takes
it back. Neighbouring groups belong to neighbouring offsets, so that the words at offsets 1, 2, 3, each with the y of
its own group, lie at a constant distance in memory: a *run* of such groups is scored by products of a word with three
rows, without a copy. A group of several offsets is a band of a matrix product. Nothing of size groups x N x N is made.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from probtx_pyro.ops._arc_kernel.distance_groups import Groups, Rows, Run, Stack


def _along(matrix: Tensor, run: Run) -> Tensor:
    """Pairs of a run, (B, N, length), as a view of a matrix (B, N, reach + N + reach),
    whose ends take the entries that are no pairs.
    """
    sentence, row, _ = matrix.stride()
    start = matrix.storage_offset() + (matrix.shape[2] - matrix.shape[1]) // 2 + run.offset
    return matrix.as_strided((*matrix.shape[:2], run.length), (sentence, row + 1, 1), start)


# the place of a group, its offset if it has only one, and the weights of its pairs, (B, N, N), or of the words that
# have a pair, (B, n, 1)
Weight = tuple[int, int | None, Tensor]


def weights_of(p: Tensor, groups: Groups) -> list[Weight]:
    """Return ``p`` (B, N, N) group by group."""
    bands: list[Weight] = [(place, None, p * band) for place, band in groups.bands]
    singles = [pair for run in groups.runs for pair in run.pairs()]
    found = p.flatten(1).index_select(1, groups.pairs).unsqueeze(-1)
    each = found.split([p.shape[1] - abs(offset) for _, offset in singles], 1)
    return [*bands, *((*pair, weight) for pair, weight in zip(singles, each, strict=True))]


def scores(pairs: Sequence[tuple[Rows | Stack, Stack]], groups: Groups, shape: Sequence[int]) -> Tensor:
    """Return ``Σ x_i · y_j`` over pairs of x and y, each pair of words in its group; (B, N, N)."""
    sentences, length = shape[:2]
    size, like = (sentences, length, length + 2 * groups.reach), pairs[0][1].memory
    wide, fresh = like.new_empty(size) if groups.bands else like.new_zeros(size), bool(groups.bands)
    total = wide[..., groups.reach : groups.reach + length]
    for x, y in pairs:
        for place, band in groups.bands:
            products = torch.bmm(x[place].words, y[place].words.mT)
            torch.mul(products, band, out=total) if fresh else total.addcmul_(products, band)
            fresh = False
        for run in groups.runs:
            if isinstance(x, Rows):
                products = torch.bmm(x.flat.unsqueeze(1), y.window(run, True).mT)
            else:
                products = (x.window(run, False) * y.window(run, True)).sum(-1)
            _along(wide, run).add_(products.view(sentences, length, run.length))
    return total


def gather(total: Rows, weights: Sequence[Weight], y: Stack, channels: int) -> None:
    """Add ``Σ_j p_ij y_j`` to ``total`` (words, L), each pair with the y of its group, summed over channels."""
    size = channels * len(total.flat), total.flat.shape[1]
    each = total if channels == 1 else Rows.of(total.flat.new_zeros(size), channels * len(total.words))
    for place, offset, weight in weights:
        if offset is None:
            each.words.baddbmm_(weight, y[place].words)
        else:
            each.having(offset).addcmul_(weight, y[place].having(-offset))
    if channels > 1:
        total.flat.add_(each.flat.unflatten(0, (channels, -1)).sum(0))


def _sum(one: Weight, x: Rows, total: Rows, add: bool) -> None:
    """Write ``Σ_i p_ij x_i`` of a group, over the words that have j as their head, to ``total``.

    ``add`` adds it to the numbers that are there.
    """
    _, offset, weight = one
    if offset is None:
        total.words.baddbmm_(weight.mT, x.words) if add else torch.bmm(weight.mT, x.words, out=total.words)
    elif add:
        total.having(-offset).addcmul_(weight, x.having(offset))
    else:
        total.lacking(-offset).zero_()
        torch.mul(weight, x.having(offset), out=total.having(-offset))


def in_turn(
    terms: Sequence[tuple[Sequence[Weight], Rows | Stack]],
    groups: Groups,
    channels: int,
    purpose: str = "sums",
) -> Iterator[tuple[int, Sequence[Tensor]]]:
    """Yield `_sum` of every group over terms of weights and x: the group's place,
    and the rows of every channel (words, r).

    The groups follow one another in the same memory: use each at once.
    """
    total = groups.scratch(terms[0][1][0], purpose)
    rows = total.of_channels(channels)
    for same in zip(*(weights for weights, _ in terms), strict=True):
        place = same[0][0]
        for number, (one, (_, x)) in enumerate(zip(same, terms, strict=True)):
            _sum(one, x[place], total, number > 0)
        yield place, rows


def stack(x: Rows, weights: Tensor, groups: Groups, purpose: str | None = None) -> Stack:
    """Return ``x w'`` for every channel and group, from (words, L) and (c, G, r, L). Plain GEMMs:
    batched ones are slow on CPUs.
    """
    channels, _, rank, _ = weights.shape
    out = groups.stack(x, channels, rank, purpose)
    for same, rows in zip(matrices(weights, groups), out.rows, strict=True):
        for w, y in zip(same, rows.of_channels(channels), strict=True):
            torch.mm(x.flat, w.mT, out=y)
    return out


def matrices(weights: Tensor, groups: Groups) -> list[Sequence[Tensor]]:
    """Return weights (c, G, r, L) as matrices of the channels, by the place of their group in a stack."""
    every = weights.flatten(0, 1).unbind(0)
    return [every[number :: weights.shape[1]] for number in groups.numbers]


def add_products(total: Tensor, rows: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    """Add ``Σ x w`` over channels to ``total`` (words, L), from x (words, r) and w (r, L)."""
    for x, w in zip(rows, weights, strict=True):
        total.addmm_(x, w)


def outer(rows: Sequence[Tensor], x: Tensor, out: Sequence[Tensor], add: bool = False) -> None:
    """Write or ``add`` ``Σ y x'`` over words to ``out`` for every channel:
    the gradient of `stack` and of `add_products`.
    """
    for found, y in zip(out, rows, strict=True):
        found.addmm_(y.mT, x) if add else torch.mm(y.mT, x, out=found)


def for_each(x: Rows, channels: int) -> Rows:
    """Repeat rows for every channel, (c words, L)."""
    if channels == 1:
        return x
    return Rows.of(x.flat.expand(channels, *x.flat.shape).flatten(0, 1), channels * len(x.words))
