"""Scores of arcs of full rank and the messages along them, with their gradients: two families of GEMMs,
and little besides.

An arc from word i to its head j has the potential ``T^{g(i,j)}``, g(i, j) the distance group. With ``y^g = Q T^g'``,
scores, messages and all their gradients are derivatives of the trilinear form ``s(p, x, y) = Σ_ij p_ij x^{g(i,j)}_i ·
y^{g(i,j)}_j``: with respect to p it is `scores`, to x `gather`, to y `in_turn`, and so are the gradients of all three.

The rows of the words for each group, the y, are a *stack* (groups, words, r): one GEMM a group makes it, and one takes
it back. Neighbouring groups belong to neighbouring offsets, so that the words at offsets 1, 2, 3, each with the y of
its own group, lie at a constant distance in memory: a *run* of such groups is scored by products of a word with three
rows, without a copy. A group of several offsets is a band of a matrix product. Nothing of size groups x N x N is made.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from probtx_pyro.ops._arc_kernel import plain
from probtx_pyro.ops._arc_kernel.distance_groups import Context, Groups, Rows, Run, Stack
from probtx_pyro.ops._numerics import again


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


Terms = Sequence[tuple[Sequence[Weight], Rows | Stack]]


def in_turn(
    terms: Terms, groups: Groups, channels: int, purpose: str = "sums"
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


def products(x: Rows, weights: Tensor, groups: Groups, purpose: str | None = None) -> Stack:
    """Return ``x w'`` for every channel and group, from (words, L) and (c, G, r, L). Plain GEMMs:
    batched ones are slow on CPUs.
    """
    channels, _, rank, _ = weights.shape
    out = groups.stack(x, channels, rank, purpose)
    for same, rows in zip(by_place(weights, groups), out.rows, strict=True):
        for w, y in zip(same, rows.of_channels(channels), strict=True):
            torch.mm(x.flat, w.mT, out=y)
    return out


def by_place(weights: Tensor, groups: Groups) -> list[Sequence[Tensor]]:
    """Return weights (c, G, r, L) as matrices of the channels, by the place of their group in a stack."""
    every = weights.flatten(0, 1).unbind(0)
    return [every[number :: weights.shape[1]] for number in groups.numbers]


def add_products(total: Tensor, rows: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    """Add ``Σ x w`` over channels to ``total`` (words, L), from x (words, r) and w (r, L)."""
    for x, w in zip(rows, weights, strict=True):
        total.addmm_(x, w)


def outer(rows: Sequence[Tensor], x: Tensor, out: Sequence[Tensor], add: bool = False) -> None:
    """Write or ``add`` ``Σ y x'`` over words to ``out`` for every channel:
    the gradient of `products` and of `add_products`.
    """
    for found, y in zip(out, rows, strict=True):
        found.addmm_(y.mT, x) if add else torch.mm(y.mT, x, out=found)


def for_each(x: Rows, channels: int) -> Rows:
    """Repeat rows for every channel, (c words, L)."""
    if channels == 1:
        return x
    return Rows.of(x.flat.expand(channels, *x.flat.shape).flatten(0, 1), channels * len(x.words))


def _score(groups: Groups, q: Tensor, weights: Tensor, purpose: str | None) -> tuple[Tensor, Stack]:
    """Return the scores (c B, N, N), and the stack of y."""
    channels, words = len(weights), _rows(q)
    stack = products(words, weights, groups, purpose)
    return scores([(for_each(words, channels), stack)], groups, (channels * len(q), q.shape[1])), stack


def _tell(groups: Groups, p: Tensor, q: Tensor, onto: Tensor, stack: Stack, weights: Tensor) -> None:
    """Add the messages to ``onto``."""
    channels, total, pairs = len(weights), _rows(onto), weights_of(p, groups)
    matrices = by_place(weights, groups)
    for place, rows in in_turn([(pairs, for_each(_rows(q), channels))], groups, channels):
        add_products(total.flat, rows, matrices[place])
    gather(total, pairs, stack, channels)


def _rows(x: Tensor) -> Rows:
    """Rows of words (B, N, L), contiguous."""
    return Rows(x.view(-1, x.shape[-1]), x, {})


class _Scores(torch.autograd.Function):
    """Scores of the arcs of some channels (c B, N, N), then two tokens for `_Messages`, then the memory of y.

    A token is a zero that takes no memory. In place of its gradient the backward pass of the messages returns one of
    the tensors that the gradient of a stack is a sum of; so that sum is made here, group by group, is never written as
    a whole, and the gradient of the potentials is added up within the GEMMs.
    """

    @staticmethod
    def forward(ctx: Context, groups: Groups, q: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        scores, stack = _score(groups, q, weights, None)
        ctx.save_for_backward(q, stack.memory, weights)
        ctx.groups = groups
        ctx.mark_non_differentiable(stack.memory)
        ctx.set_materialize_grads(False)
        # p and d
        return scores, *(q.new_zeros(()).expand_as(like) for like in (scores, q.flatten(0, 1))), stack.memory

    @staticmethod
    def backward(ctx: Context, d_scores: Tensor | None, *notes: Tensor | None) -> tuple[Tensor | None, ...]:
        groups, (q, memory, weights) = ctx.groups, ctx.saved_tensors
        if again() and d_scores is not None:
            return None, *plain.scored_again(FullRank, groups, q, weights, d_scores)
        channels, words, d_q = len(weights), _rows(q), torch.zeros_like(q)
        p, d = notes[:2]
        some = d_scores if p is None else p
        if some is None:
            return None, None, None
        told_q = _rows(d_q)
        scored, told = (None if x is None else weights_of(x, groups) for x in (d_scores, p))
        x = for_each(words, channels)
        d_x = None if d is None else for_each(Rows.of(d, len(q)), channels)
        new = torch.empty_like if len(groups.numbers) == weights.shape[1] else torch.zeros_like
        d_weights = new(weights, memory_format=torch.contiguous_format)
        terms = [(a, b) for a, b in ((scored, x), (told, d_x)) if a is not None and b is not None]
        matrices, found = by_place(weights, groups), by_place(d_weights, groups)
        sent = None if told is None else in_turn([(told, x)], groups, channels, "sent")
        for place, rows in in_turn(terms, groups, channels):
            add_products(told_q.flat, rows, matrices[place])
            outer(rows, words.flat, found[place])
            if sent is not None:
                outer(next(sent)[1], cast(Tensor, d), found[place], add=True)
        if scored is not None:
            gather(told_q, scored, groups.stacked(memory, len(some)), channels)
        return None, d_q, d_weights


class _Messages(torch.autograd.Function):
    """Messages along the arcs of some channels, from heads to dependents and from dependents to heads,
    added to ``onto``.

    tokens and memory are those of the scores. Messages may be asked for once: what the tokens carry in place of
    gradients does not add up.
    """

    @staticmethod
    def forward(ctx: Context, groups: Groups, p: Tensor, q: Tensor, onto: Tensor, *made: Tensor) -> Tensor:
        *_, memory, weights = made
        _tell(groups, p, q, onto, groups.stacked(memory, len(p)), weights)
        ctx.save_for_backward(p, q, memory, weights)
        ctx.groups = groups
        ctx.mark_dirty(onto)
        return onto

    @staticmethod
    def backward(ctx: Context, d_onto: Tensor) -> tuple[Tensor | None, ...]:
        groups, (p, q, memory, weights) = ctx.groups, ctx.saved_tensors
        if again():
            d_p, d_q, d_weights = plain.told_again(FullRank, groups, p, q, weights, d_onto)
            return None, d_p, d_q, d_onto, None, None, None, d_weights
        channels, words, d = len(weights), _rows(q), _rows(d_onto.contiguous())
        stack, d_q = groups.stacked(memory, len(p)), torch.zeros_like(q)
        d_x = products(d, weights, groups, "of messages")
        ends = [(for_each(words, channels), d_x), (for_each(d, channels), stack)]
        gather(_rows(d_q), weights_of(p, groups), d_x, channels)
        return None, scores(ends, groups, p.shape), d_q, d_onto, p, d.flat, None, None


class FullRank(NamedTuple):
    """Potentials of some channels and all groups, (channels, G, L, L)."""

    weights: Tensor

    def __len__(self) -> int:
        return len(self.weights)

    def by_group(self, groups: Groups) -> list[list[Tensor]]:
        """Return the potentials of every group, (channels, L, L), in the order of the groups."""
        return [[self.weights[:, number] for number in groups.numbers]]

    def score(self, groups: Groups, q: Tensor, again: bool) -> Sequence[Any]:
        """Return the scores (channels B, N, N) of words (B, N, L), and what `tell` needs;
        ``again`` writes over those before.
        """
        if torch.is_grad_enabled():
            return _Scores.apply(groups, q, self.weights)
        return _score(groups, q, self.weights, "stack" if again else None)

    def tell(self, groups: Groups, p: Tensor, q: Tensor, onto: Tensor, made: Sequence[Any]) -> Tensor:
        """Add the messages for head marginals p (channels B, N, N) to ``onto`` (B, N, L)."""
        if torch.is_grad_enabled():
            return _Messages.apply(groups, p, q, onto, *made, self.weights)
        stack = made[0] if len(made) == 1 else groups.stacked(made[-1], len(p))
        _tell(groups, p, q, onto, stack, self.weights)
        return onto
