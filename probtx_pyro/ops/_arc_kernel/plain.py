"""Scores of arcs, and the messages along them, in torch's own operations: for compilers, for transforms of functions,
and for derivatives of derivatives, which no kernel has.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from probtx_pyro.ops._arc_kernel.distance_groups import Groups
from probtx_pyro.ops._numerics import gradients

Kind = Callable[[Tensor], Any]  # makes `FullRank` or `LowRank` of their table
Matrices = Sequence[Sequence[Tensor]]  # V', or U' and V', of every group, (c, r, L)


def scores(groups: Groups, q: Tensor, weights: Matrices) -> list[Tensor]:
    """Return the scores (c B, N, N) of words (B, N, L), then x (if U is there) and y of all groups, (c, B, N,
    r) each.
    """
    made = features(q, weights)
    total = q.new_zeros(())
    for place, where in _places(groups):
        x, y = _ends(groups, q, made)[place]
        if isinstance(where, int):
            total = total + (_having(x, where) * _having(y, -where)).sum(-1).diag_embed(where)
        else:
            total = total + (x @ y.mT) * where
    return [total.flatten(0, 1), *made]


def features(q: Tensor, weights: Matrices) -> list[Tensor]:
    """Return x (if U is there) and y of all groups, (c, B, N, r) each."""
    return [_forth(q, w) for each in weights for w in each]


def messages(groups: Groups, p: Tensor, q: Tensor, onto: Tensor, made: Sequence[Tensor], weights: Matrices) -> Tensor:
    """Return ``onto`` (B, N, L) plus the messages for head marginals ``p`` (c B, N, N)."""
    p, places, ends = p.unflatten(0, (len(weights[0][0]), -1)), _places(groups), _ends(groups, q, made)
    heads = [_sum(p, ends[place][1], where, True) for place, where in places]
    dependents = [_sum(p, ends[place][0], where, False) for place, where in places]
    if len(weights) == 1:  # in one pass, before the products
        onto = sum((x.sum(0) for x in heads), onto)
    for each, sums in zip(weights, [heads, dependents][-len(weights) :], strict=True):
        for (place, _), x in zip(places, sums, strict=True):
            onto = _back(onto, x, each[place])
    return onto


def scored_again(kind: Kind, groups: Groups, q: Tensor, weights: Tensor, gradient: Tensor) -> list[Tensor | None]:
    """Gradients of the scores with respect to words and table, for the backward pass of a kernel. See `gradients`."""

    def scored(q: Tensor, weights: Tensor) -> Tensor:
        return scores(groups, q, kind(weights).by_group(groups))[0]

    return gradients(scored, (q, weights), gradient)


def told_again(
    kind: Kind, groups: Groups, p: Tensor, q: Tensor, weights: Tensor, gradient: Tensor
) -> list[Tensor | None]:
    """Gradients of the messages with respect to head marginals, words and table. See `gradients`."""

    def told(p: Tensor, q: Tensor, weights: Tensor) -> Tensor:
        each = kind(weights).by_group(groups)
        return messages(groups, p, q, torch.zeros_like(q), features(q, each), each)

    return gradients(told, (p, q, weights), gradient)


def _places(groups: Groups) -> list[tuple[int, int | Tensor]]:
    """Place of every group in a stack, and its offset or its band."""
    return [*groups.bands, *(pair for run in groups.runs for pair in run.pairs())]


def _ends(groups: Groups, q: Tensor, made: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Pairs of x and y, one for every group."""
    number = len(groups.numbers)
    x = made[:number] if len(made) > number else [q.unsqueeze(0)] * number
    return list(zip(x, made[-number:], strict=True))


def _forth(q: Tensor, w: Tensor) -> Tensor:
    """Return ``q w'``, (c, B, N, r), from (B, N, L) and (c, r, L), in one product."""
    found = q.flatten(0, 1) @ w.flatten(0, 1).mT
    return found.view(*q.shape[:2], *w.shape[:2]).movedim(2, 0)


def _back(onto: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """Return ``onto + Σ_c x w``, (B, N, L), from (c, B, N, r) and (c, r, L), in one product."""
    rows = x.movedim(0, 2).reshape(-1, w.shape[0] * w.shape[1])
    return torch.addmm(onto.flatten(0, 1), rows, w.flatten(0, 1)).view(onto.shape)


def _having(x: Tensor, offset: int) -> Tensor:
    """Rows of the words that have another word at ``offset``."""
    return x.narrow(-2, max(0, -offset), x.shape[-2] - abs(offset))


def _sum(p: Tensor, x: Tensor, where: int | Tensor, heads: bool) -> Tensor:
    """Return ``Σ_j p_ij x_j`` over the heads j of a group, or ``Σ_i p_ij x_i`` over its dependents, (c, B, N, r)."""
    if not isinstance(where, int):
        p = p * where
        return (p if heads else p.mT) @ x
    offset = where if heads else -where
    sent = p.diagonal(where, -2, -1).unsqueeze(-1) * _having(x, -offset)
    return F.pad(sent, (0, 0, max(0, -offset), max(0, offset)))
