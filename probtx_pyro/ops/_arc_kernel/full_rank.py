"""Scores of arcs of full rank and the messages along them, with their gradients: two families of GEMMs,
and little besides.

An arc from word i to its head j has the potential ``T^{g(i,j)}``, g the distance group. With ``y^g = Q T^g'``, scores,
messages and all their gradients are sums of `probtx_pyro.ops._arc_kernel.sums`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from probtx_pyro.ops._arc_kernel import sums
from probtx_pyro.ops._arc_kernel.distance_groups import Groups, Rows, Stack


def _score(groups: Groups, q: Tensor, weights: Tensor, purpose: str | None) -> tuple[Tensor, Stack]:
    """Return the scores (c B, N, N), and the stack of y."""
    channels, words = len(weights), _rows(q)
    stack = sums.stack(words, weights, groups, purpose)
    return sums.scores([(sums.for_each(words, channels), stack)], groups, (channels * len(q), q.shape[1])), stack


def _tell(groups: Groups, p: Tensor, q: Tensor, onto: Tensor, stack: Stack, weights: Tensor) -> None:
    """Add the messages to ``onto``."""
    channels, total, pairs = len(weights), _rows(onto), sums.weights_of(p, groups)
    matrices = sums.matrices(weights, groups)
    for place, rows in sums.in_turn([(pairs, sums.for_each(_rows(q), channels))], groups, channels):
        sums.add_products(total.flat, rows, matrices[place])
    sums.gather(total, pairs, stack, channels)


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
    def forward(ctx: Any, groups: Groups, q: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        scores, stack = _score(groups, q, weights, None)
        ctx.save_for_backward(q, stack.memory, weights)
        ctx.groups = groups
        ctx.mark_non_differentiable(stack.memory)
        ctx.set_materialize_grads(False)
        # p and d
        return scores, *(q.new_zeros(()).expand_as(like) for like in (scores, q.flatten(0, 1))), stack.memory

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_scores: Tensor | None, *notes: Tensor | None) -> tuple[Tensor | None, ...]:
        groups, (q, memory, weights) = ctx.groups, ctx.saved_tensors
        channels, words, d_q = len(weights), _rows(q), torch.zeros_like(q)
        p, d = notes[:2]
        some = d_scores if p is None else p
        if some is None:
            return None, None, None
        told_q = _rows(d_q)
        scored, told = (None if x is None else sums.weights_of(x, groups) for x in (d_scores, p))
        x = sums.for_each(words, channels)
        d_x = None if d is None else sums.for_each(Rows.of(d, len(q)), channels)
        new = torch.empty_like if len(groups.numbers) == weights.shape[1] else torch.zeros_like
        d_weights = new(weights, memory_format=torch.contiguous_format)
        terms = [(a, b) for a, b in ((scored, x), (told, d_x)) if a is not None and b is not None]
        matrices, found = sums.matrices(weights, groups), sums.matrices(d_weights, groups)
        sent = None if told is None else sums.in_turn([(told, x)], groups, channels, "sent")
        for place, rows in sums.in_turn(terms, groups, channels):
            sums.add_products(told_q.flat, rows, matrices[place])
            sums.outer(rows, words.flat, found[place])
            if sent is not None:
                sums.outer(next(sent)[1], cast(Tensor, d), found[place], add=True)
        if scored is not None:
            sums.gather(told_q, scored, groups.stacked(memory, len(some)), channels)
        return None, d_q, d_weights


class _Messages(torch.autograd.Function):
    """Messages along the arcs of some channels, from heads to dependents and from dependents to heads,
    added to ``onto``.

    tokens and memory are those of the scores. Messages may be asked for once: what the tokens carry in place of
    gradients does not add up.
    """

    @staticmethod
    def forward(
        ctx: Any,
        groups: Groups,
        p: Tensor,
        q: Tensor,
        onto: Tensor,
        _: Tensor,
        __: Tensor,
        memory: Tensor,
        weights: Tensor,
    ) -> Tensor:
        _tell(groups, p, q, onto, groups.stacked(memory, len(p)), weights)
        ctx.save_for_backward(p, q, memory, weights)
        ctx.groups = groups
        ctx.mark_dirty(onto)
        return onto

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_onto: Tensor) -> tuple[Tensor | None, ...]:
        groups, (p, q, memory, weights) = ctx.groups, ctx.saved_tensors
        channels, words, d = len(weights), _rows(q), _rows(d_onto.contiguous())
        stack, d_x, d_q = (
            groups.stacked(memory, len(p)),
            sums.stack(d, weights, groups, "of messages"),
            torch.zeros_like(q),
        )
        ends = [(sums.for_each(words, channels), d_x), (sums.for_each(d, channels), stack)]
        sums.gather(_rows(d_q), sums.weights_of(p, groups), d_x, channels)
        return None, sums.scores(ends, groups, p.shape), d_q, d_onto, p, d.flat, None, None


class FullRank(NamedTuple):
    """Potentials of some channels and all groups, (channels, G, L, L)."""

    weights: Tensor

    def __len__(self) -> int:
        return len(self.weights)

    def to(self, dtype: torch.dtype) -> "FullRank":
        """Return the same in another precision."""
        return FullRank(self.weights.to(dtype))

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
