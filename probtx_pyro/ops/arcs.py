"""Scores of arcs between words and the messages along them: two families of GEMMs with the potentials, and little besides.

An arc from word i to its head j has the potential ``T^{g(i,j)}``, g the distance group, of full rank or ``T^g = U^g V^g'``. With
``x^g = Q U^g`` (or Q itself) and ``y^g = Q V^g`` every sum over arcs is a derivative of the trilinear form

    s(p, x, y) = Σ_ij p_ij  x^{g(i,j)}_i · y^{g(i,j)}_j

with respect to p (`_add_scores`), x (`_add_gathered`) or y (`_spread`), and so are the backward passes of all three. A group of one
offset is a diagonal, multiplied where it lies; a group of several is a band of a matrix product. Nothing of size groups x N x N is
made, and of the many tensors as large as all the ``y`` only those are kept for the backward pass.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Span(NamedTuple):
    """The offsets j - i of a distance group.

    group: its number. low, high: smallest and largest offset. band: (N, N), 1 for its pairs and 0 elsewhere; None for one offset.
    """

    group: int
    low: int
    high: int
    band: Tensor | None = None


def spans(distances: Sequence[int], words: Tensor) -> tuple[Span, ...]:
    """The distance groups that occur among words (..., N, L): to the right (j > i) nearest first, then to the left.

    ``distances`` (s_1 < s_2 < ...) cut ``|i - j|`` into [1, s_1), [s_1, s_2), ..., [s_n, ∞).

    >>> [span[:3] for span in spans((2,), torch.zeros(4, 1))]
    [(0, 1, 1), (1, 2, 3), (2, -1, -1), (3, -3, -2)]
    """
    length = words.shape[-2]
    edges = [1, *distances, max(length, 1)]
    near = [(low, min(high, length) - 1) for low, high in pairwise(edges)]
    both = [*near, *((-high, -low) for low, high in near)]
    every = words.new_ones(length, length)
    return tuple(
        Span(k, low, high, None if low == high else every.triu(low).tril(high))
        for k, (low, high) in enumerate(both)
        if low <= high
    )


def group_of(distances: Sequence[int], length: int, device: Any = None) -> Tensor:
    """Number of the distance group of every pair, (N, N); for a word and itself, which no arc joins, it means nothing."""
    offset = torch.arange(length, device=device)[None, :] - torch.arange(length, device=device)[:, None]
    edges = torch.tensor(distances, dtype=torch.long, device=device)
    ring = torch.bucketize(offset.abs(), edges, right=True)
    return torch.where(offset < 0, ring + len(distances) + 1, ring)


def _ends(offset: int, length: int) -> tuple[slice, slice]:
    """The words i that have a word at ``offset``, and those words j."""
    if offset > 0:
        return slice(0, length - offset), slice(offset, length)
    return slice(-offset, length), slice(0, length + offset)


def _add_scores(total: Tensor, x: Tensor, y: Tensor, span: Span, room: Tensor) -> None:
    """``total_ij += x_i · y_j`` for the pairs of a group; x, y (B, N, r), total (B, N, N), ``room`` like x to write in."""
    if span.band is None:
        i, j = _ends(span.low, x.shape[1])
        products = room[:, i]
        _into(products, torch.mul, x[:, i], y[:, j])
        total.diagonal(span.low, -2, -1).add_(products.sum(-1))
    else:
        total.addcmul_(torch.bmm(x, y.mT), span.band)


def _add_gathered(total: Tensor, p: Tensor, y: Tensor, span: Span) -> None:
    """``total_i += Σ_j p_ij y_j`` over the pairs of a group."""
    if span.band is None:
        i, j = _ends(span.low, y.shape[1])
        total[:, i].addcmul_(p.diagonal(span.low, -2, -1).unsqueeze(-1), y[:, j])
    else:
        total.baddbmm_(p * span.band, y)


def _spread(p: Tensor, x: Tensor, span: Span, onto: Tensor | None = None, room: Tensor | None = None) -> Tensor:
    """``Σ_i p_ij x_i`` over the pairs of a group, (B, N, r), in ``room`` if given; added to ``onto``, which is kept."""
    total = torch.empty_like(x) if room is None else room
    if span.band is not None:
        band = (p * span.band).mT
        _into(total, *((torch.bmm,) if onto is None else (torch.baddbmm, onto)), band, x)
        return total
    i, j = _ends(span.low, x.shape[1])
    rest = slice(0, j.start) if span.low > 0 else slice(j.stop, None)
    weights = p.diagonal(span.low, -2, -1).unsqueeze(-1)
    if onto is None:
        total[:, rest] = 0
        _into(total[:, j], torch.mul, weights, x[:, i])
    else:
        total[:, rest] = onto[:, rest]
        _into(total[:, j], torch.addcmul, onto[:, j], weights, x[:, i])
    return total


def _into(where: Tensor, operation: Any, *arguments: Tensor) -> None:
    """``where[...] = operation(...)``, in one pass where the compiler is not there to make it one."""
    if torch.compiler.is_compiling():
        where.copy_(operation(*arguments))
    else:
        operation(*arguments, out=where)


def _add_products(total: Tensor, x: Tensor, weights: Tensor) -> None:
    """``total += Σ_c x_c w_c``; x (c B, N, r), weights (c, r, L), total (B, N, L). Plain GEMMs: batched ones are slow on CPUs."""
    flat = total.flatten(0, 1)
    for channel, w in zip(x.reshape(len(weights), -1, x.shape[-1]), weights, strict=True):
        flat.addmm_(channel, w)


def _products(x: Tensor, weights: Tensor, room: Tensor | None = None) -> Tensor:
    """``x w_c`` for every channel, (c B, N, r), from (B, N, L) and (c, L, r); in ``room`` if given."""
    channels, _, rank = weights.shape
    out = x.new_empty(channels * x.shape[0], x.shape[1], rank) if room is None else room
    for channel, w in zip(out.view(channels, -1, rank), weights, strict=True):
        _into(channel, torch.mm, x.flatten(0, 1), w)
    return out


def _outer(x: Tensor, y: Tensor, channels: int) -> Tensor:
    """``Σ x y'`` over words, (c, L, r), from (B, N, L) and (c B, N, r)."""
    flat = x.flatten(0, 1).mT
    out = x.new_empty(channels, len(flat), y.shape[-1])
    for channel, of in zip(out, y.reshape(channels, -1, y.shape[-1]), strict=True):
        _into(channel, torch.mm, flat, of)
    return out


def _each(x: Tensor, channels: int) -> Tensor:
    """The same for every channel, (c B, N, L)."""
    return x if channels == 1 else x.expand(channels, *x.shape).flatten(0, 1)


def _together(x: Tensor, channels: int) -> Tensor:
    """The sum over channels, (B, N, L)."""
    return x if channels == 1 else x.unflatten(0, (channels, -1)).sum(0)


class _Scores(torch.autograd.Function):
    """Scores of the arcs of some channels, then the features x (if U is there) and y, which the messages need again."""

    @staticmethod
    def forward(ctx: Any, groups: Sequence[Span], q: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        count, channels = len(groups), len(weights[0])
        xs = [_products(q, w) for w in weights[:-count]] or [_each(q, channels)] * count
        scores, room = q.new_zeros(channels * q.shape[0], q.shape[1], q.shape[1]), torch.empty_like(xs[0])
        features = xs if len(weights) > count else []
        for x, w, span in zip(xs, weights[-count:], groups, strict=True):
            features = [*features, _products(q, w)]
            _add_scores(scores, x, features[-1], span, room)
        ctx.save_for_backward(q, *features, *weights)
        ctx.groups = groups
        return scores, *features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_scores: Tensor, *d_features: Tensor) -> tuple[Tensor | None, ...]:
        groups, count, total = ctx.groups, len(ctx.groups), len(d_features)
        q, features, weights = ctx.saved_tensors[0], ctx.saved_tensors[1 : total + 1], ctx.saved_tensors[total + 1 :]
        channels, d_q, d_weights = len(weights[0]), torch.zeros_like(q), []
        every, room = _each(q, channels), torch.empty_like(features[-1])
        d_every = d_q if channels == 1 else torch.zeros_like(every)
        for k, (w, d) in enumerate(zip(weights, d_features, strict=True)):
            y, span = features[k % count - count], groups[k % count]
            if k < total - count:  # of x
                d = d.clone()
                _add_gathered(d, d_scores, y, span)
            else:
                d = _spread(d_scores, features[k - count] if total > count else every, span, d, room)
                if total == count:
                    _add_gathered(d_every, d_scores, y, span)
            _add_products(d_q, d, w.mT)
            d_weights.append(_outer(q, d, channels))
        return None, d_q if channels == 1 else d_q + _together(d_every, channels), *d_weights


class _Messages(torch.autograd.Function):
    """What the arcs of some channels tell the words: the dependents from their heads, and the heads from their dependents."""

    @staticmethod
    def forward(ctx: Any, groups: Sequence[Span], p: Tensor, q: Tensor, *tensors: Tensor) -> Tensor:
        channels, total = len(tensors[-1]), torch.zeros_like(q)
        gathered = total if channels == 1 else torch.zeros_like(_each(q, channels))
        room = torch.empty_like(tensors[0])
        for x, y, left, right, span in _rows(groups, q, tensors):
            if left is None:
                _add_gathered(gathered, p, y, span)
            else:
                of_group = torch.zeros_like(x)
                _add_gathered(of_group, p, y, span)
                _add_products(total, of_group, left.mT)
            _add_products(total, _spread(p, x, span, room=room), right.mT)
        ctx.save_for_backward(p, q, *tensors)
        ctx.groups = groups
        return total if channels == 1 else total + _together(gathered, channels)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        groups = ctx.groups
        p, q, *tensors = ctx.saved_tensors
        channels, d_p, d_q = len(tensors[-1]), torch.zeros_like(p), torch.zeros_like(q)
        every, d_every = _each(d, channels), d_q if channels == 1 else torch.zeros_like(_each(q, channels))
        d_xs, d_ys, d_left, d_right = [], [], [], []
        room, more = torch.empty_like(tensors[0]), torch.empty_like(tensors[0])
        for x, y, left, right, span in _rows(groups, q, tensors):
            d_spread = _products(d, right, more)
            d_gathered = every if left is None else _products(d, left)
            _add_scores(d_p, x, d_spread, span, room)
            _add_scores(d_p, d_gathered, y, span, room)
            d_right.append(_outer(d, _spread(p, x, span, room=room), channels))
            d_ys.append(_spread(p, d_gathered, span))
            d_x = d_every if left is None else torch.zeros_like(x)
            _add_gathered(d_x, p, d_spread, span)
            if left is not None:
                of_group = torch.zeros_like(x)
                _add_gathered(of_group, p, y, span)
                d_left.append(_outer(d, of_group, channels))
                d_xs.append(d_x)
        d_q = d_q if channels == 1 else _together(d_every, channels)
        return None, d_p, d_q, *d_xs, *d_ys, *d_left, *d_right


def _rows(groups: Sequence[Span], q: Tensor, tensors: Sequence[Tensor]) -> Any:
    """For every group x, y, U (or None) and V, of features and weights in that order."""
    count = len(groups)
    if len(tensors) == 2 * count:
        x = _each(q, len(tensors[-1]))
        return zip([x] * count, tensors[:count], [None] * count, tensors[count:], groups, strict=True)
    return zip(*(tensors[k * count : (k + 1) * count] for k in range(4)), groups, strict=True)


class Arcs(NamedTuple):
    """The arcs of some channels among words with label marginals ``q`` (B, N, L).

    scores: (c, B, N, N), of every word j as the head of every word i; what no group holds is 0.
    """

    groups: tuple[Span, ...]
    q: Tensor
    weights: tuple[Tensor, ...]
    scores: Tensor
    features: tuple[Tensor, ...]

    @classmethod
    def of(cls, groups: tuple[Span, ...], q: Tensor, left: Sequence[Tensor] | None, right: Sequence[Tensor]) -> "Arcs":
        """Potentials ``U V'``, for each group (c, L, r); ``left=None`` is the identity."""
        q = q.contiguous()  # sums are made in place on flattened views of tensors laid out like it
        weights = tuple(w[span.group] for w in (left, right) if w is not None for span in groups)
        shape = (len(right[0]), *q.shape[:2], q.shape[1])
        if not groups:
            return cls(groups, q, weights, q.new_zeros(shape), ())
        scores, *features = _Scores.apply(groups, q, *weights)
        return cls(groups, q, weights, scores.view(shape), tuple(features))

    def messages(self, p: Tensor) -> Tensor:
        """``Σ_c Σ_j Σ_b (p_ij T_ab + p_ji T_ba) q_jb``, (B, N, L), for head marginals ``p`` (c, B, N, N) of the words."""
        if not self.groups:
            return torch.zeros_like(self.q)
        return _Messages.apply(self.groups, p.flatten(0, 1), self.q, *self.features, *self.weights)


__all__ = ["Arcs", "Span", "group_of", "spans"]
