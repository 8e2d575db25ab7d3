"""Scores of arcs between words and the messages along them: two families of GEMMs with the potentials, and little besides.

An arc from word i to its head j has the potential ``T^{g(i,j)}``, g the distance group, of full rank or ``T^g = U^g V^g'``. With
``x^g = Q U^g`` (or Q itself) and ``y^g = Q V^g`` every sum over arcs is a derivative of the trilinear form

    s(p, x, y) = Σ_ij p_ij  x^{g(i,j)}_i · y^{g(i,j)}_j

with respect to p (`_add_scores`), x (`_add_sums`) or y (`_sums`), and so are the backward passes of all three.

What the words have for each group, the y, is a *stack* (words, groups, r): one GEMM makes it and one takes it back, whatever the
number of groups. The next groups along it belong to the next offsets, so that the words at offsets 1, 2, 3, each with the y of
its own group, lie at a constant distance in memory: a *run* of such groups is scored by products of a word with three rows, without
a copy. A group of several offsets is a band of a matrix product. Nothing of size groups x N x N is made.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from probtx_pyro.ops.arc_groups import Groups, Run


def _ends(offset: int, length: int) -> tuple[slice, slice, slice]:
    """The words i that have a word at ``offset``, those words j, and the words that are no such i."""
    if offset > 0:
        return slice(0, length - offset), slice(offset, length), slice(length - offset, length)
    return slice(-offset, length), slice(0, length + offset), slice(0, -offset)


def _rows(stack: Tensor, groups: Groups) -> Tensor:
    """A stack without the zeros at its ends, (words, groups, r)."""
    return stack[groups.reach : len(stack) - groups.reach]


def _views(x: Tensor, groups: Groups, sentences: int) -> Sequence[Tensor]:
    """What the words have for each group, (B, N, r), from a stack, or from rows (words, r) that are the same for every group."""
    if x.dim() == 2:
        return [x.unflatten(0, (sentences, -1))] * len(groups.numbers)
    return _rows(x, groups).unflatten(0, (sentences, -1)).unbind(2)


class _Weight(NamedTuple):
    """Weights of the pairs of a group: (B, N, N), or for a group of one offset those of its pairs, (B, pairs, 1)."""

    place: int
    offset: int | None
    value: Tensor


def _weights(p: Tensor, groups: Groups) -> list[_Weight]:
    """``p`` (B, N, N) group by group."""
    bands = [_Weight(place, None, p * band) for place, band in groups.bands]
    runs = (pair for run in groups.runs for pair in run.pairs())
    return [*bands, *(_Weight(place, offset, p.diagonal(offset, -2, -1).unsqueeze(-1)) for place, offset in runs)]


def _window(stack: Tensor, run: Run, groups: Groups, moved: bool) -> Tensor:
    """For every word the rows of a run's groups, (words, length, r): its own, or ``moved`` those of the words at their offsets."""
    row, features = stack.stride(0), stack.shape[-1]
    start = (groups.reach + (run.offset if moved else 0)) * row + run.place * features
    step = run.step * features + (row if moved else 0)
    if step < 0:  # own rows, from the right to the left of the stack
        return _rows(stack, groups)[:, run.place - run.length + 1 : run.place + 1].flip(1)
    size = (len(stack) - 2 * groups.reach, run.length, features)
    return stack.as_strided(size, (row, step, 1), stack.storage_offset() + start)


def _add_scores(total: Tensor, x: Tensor, y: Tensor, groups: Groups) -> None:
    """``total_ij += x_i · y_j``, each pair in its group; total (B, N, N), x rows or a stack, y a stack."""
    sentences, length = total.shape[:2]
    xs, ys = _views(x, groups, sentences), _views(y, groups, sentences)
    for place, band in groups.bands:
        total.addcmul_(torch.bmm(xs[place], ys[place].mT), band)
    for run in groups.runs:
        others = _window(y, run, groups, True)
        if x.dim() == 2:
            products = torch.bmm(x.unsqueeze(1), others.mT)
        else:
            products = (_window(x, run, groups, False) * others).sum(-1)
        products = products.reshape(sentences, length, run.length)
        for k, (_, offset) in enumerate(run.pairs()):
            i, _, _ = _ends(offset, length)
            total.diagonal(offset, -2, -1).add_(products[:, i, k])


def _add_sums(total: Tensor, weights: Sequence[_Weight], y: Tensor, groups: Groups) -> None:
    """``total_i += Σ_j p_ij y_j``, each pair with the y of its group; total (B, N, r), y a stack."""
    ys = _views(y, groups, len(total))
    for place, offset, weight in weights:
        if offset is None:
            total.baddbmm_(weight, ys[place])
        else:
            i, j, _ = _ends(offset, total.shape[1])
            total[:, i].addcmul_(weight, ys[place][:, j])


def _gathered(total: Tensor, weights: Sequence[_Weight], y: Tensor, groups: Groups, channels: int) -> Tensor:
    """``total`` (words, L) and, in place if there is one channel, `_add_sums` of every channel."""
    if channels == 1:
        _add_sums(total.unflatten(0, (len(weights[0].value), -1)), weights, y, groups)
        return total
    each = total.new_zeros(channels * len(total), total.shape[1])
    _add_sums(each.unflatten(0, (len(weights[0].value), -1)), weights, y, groups)
    return total + each.unflatten(0, (channels, -1)).sum(0)


def _sum(one: _Weight, x: Tensor, heads: bool, total: Tensor, old: Tensor | None) -> None:
    """For a group ``Σ_i p_ij x_i``, over the words that have j as their head, or with ``heads`` ``Σ_j p_ij x_j``, in ``total``.

    All (B, N, r); ``old`` is added.
    """
    _, offset, weight = one
    if offset is None:
        _into(total, *((torch.bmm,) if old is None else (torch.baddbmm, old)), weight if heads else weight.mT, x)
        return
    i, j, rest = _ends(offset if heads else -offset, total.shape[1])
    if old is None:
        total[:, rest].zero_()
        _into(total[:, i], torch.mul, weight, x[:, j])
    else:
        total[:, rest].copy_(old[:, rest])
        _into(total[:, i], torch.addcmul, old[:, i], weight, x[:, j])


def _sums(weights: Sequence[_Weight], x: Tensor, groups: Groups, heads: bool, out: Tensor) -> Tensor:
    """`_sum` of every group of x, rows or a stack, in the stack ``out``."""
    sentences = len(weights[0].value)
    totals, xs = _views(out, groups, sentences), _views(x, groups, sentences)
    for one in weights:
        _sum(one, xs[one.place], heads, totals[one.place], None)
    return out


def _in_turn(
    weights: Sequence[_Weight], x: Tensor, groups: Groups, heads: bool, channels: int, onto: Tensor | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """`_sum` of every group, to be used at once: the places, and (c, words, places r).

    One group after the other where a channel fills the cache, else all together. What is in ``onto``, a stack, is added.
    """
    words, sentences = len(x) if x.dim() == 2 else len(x) - 2 * groups.reach, len(weights[0].value)
    out = groups.stack(words, x.shape[-1], x, "sums", 1 if channels == 1 else None)
    rows = _by_channel(out, groups, channels)
    totals, xs = _rows(out, groups).unflatten(0, (sentences, -1)).unbind(2), _views(x, groups, sentences)
    olds = [None] * len(weights) if onto is None else _views(onto, groups, sentences)
    for one in weights:
        place = one.place
        _sum(one, xs[place], heads, totals[0 if channels == 1 else place], olds[place])
        if channels == 1:
            yield slice(place, place + 1), rows
    if channels > 1:
        yield slice(None), rows


def _into(where: Tensor, operation: Any, *arguments: Tensor) -> None:
    """``where[...] = operation(...)``, in one pass where the compiler is not there to make it one."""
    if torch.compiler.is_compiling():
        where.copy_(operation(*arguments))
    else:
        operation(*arguments, out=where)


def _by_channel(stack: Tensor, groups: Groups, channels: int) -> Tensor:
    """(c, words, groups r)."""
    return _rows(stack, groups).flatten(1).unflatten(0, (channels, -1))


def _stack(x: Tensor, weights: Tensor, groups: Groups, purpose: str | None = None) -> Tensor:
    """``x w'`` for every channel and group, from (words, L) and (c, groups, r, L). Plain GEMMs: batched ones are slow on CPUs."""
    channels, _, rank, _ = weights.shape
    out = groups.stack(channels * len(x), rank, x, purpose)
    for rows, w in zip(_by_channel(out, groups, channels), weights.flatten(1, 2), strict=True):
        _into(rows, torch.mm, x, w.mT)
    return out


def _products(rows: Tensor, weights: Tensor, total: Tensor | None = None) -> Tensor:
    """``Σ x w`` over channels and groups, (words, L), from (c, words, groups r); added to ``total`` if given, in place."""
    for x, w in zip(rows, weights.flatten(1, 2), strict=True):
        total = torch.mm(x, w) if total is None else total.addmm_(x, w)
    assert total is not None
    return total


def _outer(rows: Tensor, x: Tensor, out: Tensor) -> None:
    """``Σ y x'`` over words in ``out``, like weights (c, groups, r, L): the gradient of `_stack` and of `_products`."""
    for found, y in zip(out.flatten(1, 2), rows, strict=True):
        _into(found, torch.mm, y.mT, x)


def _each(x: Tensor, channels: int) -> Tensor:
    """Rows that are the same for every channel, (c words, L)."""
    return x if channels == 1 else x.expand(channels, *x.shape).flatten(0, 1)


class _Scores(torch.autograd.Function):
    """Scores of the arcs of some channels (c B, N, N), then the stacks x (if U is there) and y, which the messages need again."""

    @staticmethod
    def forward(ctx: Any, groups: Groups, again: bool, q: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        channels, words = len(weights[0]), q.flatten(0, 1)
        stacks = [_stack(words, w, groups, f"stack {k}" if again else None) for k, w in enumerate(weights)]
        scores = q.new_zeros(channels * len(q), q.shape[1], q.shape[1])
        _add_scores(scores, stacks[0] if len(stacks) > 1 else _each(words, channels), stacks[-1], groups)
        ctx.save_for_backward(q, *stacks, *weights)
        ctx.groups = groups
        return scores, *stacks

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_scores: Tensor, *d_stacks: Tensor) -> tuple[Tensor | None, ...]:
        groups, total = ctx.groups, len(d_stacks)
        q, stacks, weights = ctx.saved_tensors[0], ctx.saved_tensors[1 : total + 1], ctx.saved_tensors[total + 1 :]
        channels, words = len(weights[0]), q.flatten(0, 1)
        pairs, d_words, d_weights = _weights(d_scores, groups), None, []
        others = [_each(words, channels)] if total == 1 else stacks[::-1]
        for k, (w, x, d) in enumerate(zip(weights, others, d_stacks, strict=True)):
            d_weights.append(torch.empty_like(w, memory_format=torch.contiguous_format))
            for places, part in _in_turn(pairs, x, groups, total > 1 and k == 0, channels, d):
                d_words = _products(part, w[:, places], d_words)
                _outer(part, words, d_weights[-1][:, places])
        assert d_words is not None
        if total == 1:
            d_words = _gathered(d_words, pairs, stacks[0], groups, channels)
        return None, None, d_words.view_as(q), *d_weights


class _Messages(torch.autograd.Function):
    """What the arcs of some channels tell the words: the dependents from their heads, and the heads from their dependents."""

    @staticmethod
    def forward(ctx: Any, groups: Groups, p: Tensor, q: Tensor, *tensors: Tensor) -> Tensor:
        channels, words, pairs = len(tensors[-1]), q.flatten(0, 1), _weights(p, groups)
        stacks, weights = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        x, total = stacks[0] if len(stacks) > 1 else _each(words, channels), None
        for places, part in _in_turn(pairs, x, groups, False, channels):
            total = _products(part, weights[-1][:, places], total)
        if len(stacks) > 1:
            for places, part in _in_turn(pairs, stacks[1], groups, True, channels):
                total = _products(part, weights[0][:, places], total)
        else:
            total = _gathered(cast(Tensor, total), pairs, stacks[0], groups, channels)
        ctx.save_for_backward(p, q, *tensors)
        ctx.groups = groups
        return cast(Tensor, total).view_as(q)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        groups = ctx.groups
        p, q, *tensors = ctx.saved_tensors
        channels, words, d, pairs = len(tensors[-1]), q.flatten(0, 1), d.flatten(0, 1), _weights(p, groups)
        stacks, weights = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        low_rank = len(stacks) > 1
        x = stacks[0] if low_rank else _each(words, channels)
        d_sums = _stack(d, weights[-1], groups, "of sums")  # of those over dependents
        d_heads = _stack(d, weights[0], groups, "of heads") if low_rank else _each(d, channels)
        d_p, d_q = torch.zeros_like(p), None
        _add_scores(d_p, x, d_sums, groups)
        _add_scores(d_p, d_heads, stacks[-1], groups)
        d_weights = [torch.empty_like(w, memory_format=torch.contiguous_format) for w in weights]
        for places, part in _in_turn(pairs, x, groups, False, channels):
            _outer(part, d, d_weights[-1][:, places])
        rows, rank = len(x) if x.dim() == 2 else len(x) - 2 * groups.reach, weights[-1].shape[2]
        d_stacks = [_sums(pairs, d_heads, groups, False, groups.stack(rows, rank, d))]
        if low_rank:
            d_stacks.insert(0, _sums(pairs, d_sums, groups, True, groups.stack(rows, rank, d)))
            for places, part in _in_turn(pairs, stacks[1], groups, True, channels):
                _outer(part, d, d_weights[0][:, places])
        else:
            d_q = _gathered(torch.zeros_like(words), pairs, d_sums, groups, channels).view_as(q)
        return None, d_p, d_q, *d_stacks, *d_weights


class Arcs(NamedTuple):
    """The arcs of some channels among words with label marginals ``q`` (B, N, L).

    scores: (c, B, N, N), of every word j as the head of every word i; what no group holds is 0. stacks: see above.
    """

    groups: Groups
    q: Tensor
    weights: tuple[Tensor, ...]
    scores: Tensor
    stacks: tuple[Tensor, ...]

    @classmethod
    def of(cls, groups: Groups, q: Tensor, left: Tensor | None, right: Tensor, again: bool = False) -> "Arcs":
        """Potentials ``U V'`` from ``U'`` and ``V'``, of all groups (c, G, r, L); ``left=None`` is the identity.

        ``again`` writes the stacks where those of the arcs before were, which are gone then; without gradients only.
        """
        q = q.contiguous()  # sums are made in place on flattened views of tensors laid out like it
        some = list(groups.numbers)
        weights = tuple(w if len(some) == w.shape[1] else w[:, some] for w in (left, right) if w is not None)
        shape = (len(right), *q.shape[:2], q.shape[1])
        if not some:
            return cls(groups, q, weights, q.new_zeros(shape), ())
        scores, *stacks = _Scores.apply(groups, again and not torch.is_grad_enabled(), q, *weights)
        return cls(groups, q, weights, scores.view(shape), tuple(stacks))

    def messages(self, p: Tensor) -> Tensor:
        """``Σ_c Σ_j Σ_b (p_ij T_ab + p_ji T_ba) q_jb``, (B, N, L), for head marginals ``p`` (c, B, N, N) of the words."""
        if not self.stacks:
            return torch.zeros_like(self.q)
        return _Messages.apply(self.groups, p.flatten(0, 1), self.q, *self.stacks, *self.weights)


__all__ = ["Arcs"]
