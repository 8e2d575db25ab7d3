"""Scores of arcs between words and the messages along them, with their gradients: two families of GEMMs, and little besides.

An arc from word i to its head j has the potential ``T^{g(i,j)}``, g the distance group, of full rank or ``T^g = U^g V^g'``. With
``x^g = Q U^g`` (or Q itself) and ``y^g = Q V^g`` scores, messages and all their gradients are sums of `probtx_pyro.ops.arc_sums`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from probtx_pyro.ops import arc_sums as sums
from probtx_pyro.ops.arc_groups import Groups


def _score(groups: Groups, q: Tensor, weights: Sequence[Tensor], purpose: str | None) -> tuple[Tensor, list[Tensor]]:
    """Scores (c B, N, N), and the stacks x (if U is there) and y."""
    channels, words = len(weights[0]), q.flatten(0, 1)
    stacks = [sums.stack(words, w, groups, purpose and f"{purpose} {k}") for k, w in enumerate(weights)]
    x = stacks[0] if len(weights) > 1 else sums.for_each(words, channels)
    return sums.scores([(x, stacks[-1])], groups, (channels * len(q), q.shape[1])), stacks


def _tell(
    groups: Groups, p: Tensor, q: Tensor, onto: Tensor, stacks: Sequence[Tensor], weights: Sequence[Tensor]
) -> None:
    """Adds the messages to ``onto``."""
    channels, words, low_rank = len(weights[0]), q.flatten(0, 1), len(weights) > 1
    total, pairs = onto.view(words.shape), sums.weights_of(p, groups)
    others = stacks[::-1] if low_rank else [sums.for_each(words, channels)]
    for k, (w, x) in enumerate(zip(weights, others, strict=True)):
        matrices = sums.matrices(w, groups)
        for place, rows in sums.in_turn([(pairs, x)], groups, low_rank and k == 0, channels):
            sums.add_products(total, rows, matrices[place])
    if not low_rank:
        sums.gather(total, pairs, stacks[0], groups, channels)


class _Scores(torch.autograd.Function):
    """Scores of the arcs of some channels (c B, N, N), then tokens for `_Messages`, then the stacks x (if U is there) and y.

    A token is a zero that takes no memory; its gradient is a note from the backward pass of the messages, not a derivative. The
    gradient of a stack is a sum over arcs of what the notes say; made here, group by group, it need not be written as a whole,
    and the gradient of the potentials is added up within the GEMMs.
    """

    @staticmethod
    def forward(ctx: Any, groups: Groups, q: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        scores, stacks = _score(groups, q, weights, None)
        ctx.save_for_backward(q, *stacks, *weights)
        ctx.groups = groups
        ctx.mark_non_differentiable(*stacks)
        ctx.set_materialize_grads(False)
        noted = (
            scores,
            q.flatten(0, 1),
            *(stacks if len(stacks) > 1 else ()),
        )  # p, d, and what d becomes in the places of x and y
        return scores, *(q.new_zeros(()).expand_as(like) for like in noted), *stacks

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_scores: Tensor | None, *notes: Tensor | None) -> tuple[Tensor | None, ...]:
        groups, (q, *tensors) = ctx.groups, ctx.saved_tensors
        half = len(tensors) // 2
        stacks, weights, low_rank = tensors[:half], tensors[half:], half > 1
        channels, words, d_q = len(weights[0]), q.flatten(0, 1), torch.zeros_like(q)
        p, d = notes[:2]
        if d_scores is None and p is None:
            return None, None, *(None for _ in weights)
        scored, told = (None if x is None else sums.weights_of(x, groups) for x in (d_scores, p))
        others = stacks[::-1] if low_rank else [sums.for_each(words, channels)]
        d_others = notes[2:4] if low_rank else [d if d is None else sums.for_each(d, channels)]
        new = torch.empty_like if len(groups.numbers) == weights[0].shape[1] else torch.zeros_like
        d_weights = [new(w, memory_format=torch.contiguous_format) for w in weights]
        for k, (w, x, d_x) in enumerate(zip(weights, others, d_others, strict=True)):
            heads = low_rank and k == 0
            terms = [(a, b) for a, b in ((scored, x), (told, d_x)) if a is not None and b is not None]
            matrices, found = sums.matrices(w, groups), sums.matrices(d_weights[k], groups)
            sent = None if told is None else sums.in_turn([(told, x)], groups, heads, channels, "sent")
            for place, rows in sums.in_turn(terms, groups, heads, channels):
                sums.add_products(d_q.view(words.shape), rows, matrices[place])
                sums.outer(rows, words, found[place])
                if sent is not None:
                    sums.outer(next(sent)[1], cast(Tensor, d), found[place], add=True)
        if not low_rank and scored is not None:
            sums.gather(d_q.view(words.shape), scored, stacks[0], groups, channels)
        return None, d_q, *d_weights


class _Messages(torch.autograd.Function):
    """Adds to ``onto`` what the arcs of some channels tell the words: dependents from their heads, and heads from their dependents.

    tensors: tokens, stacks and potentials of the scores, which may be asked for messages once: notes of several do not add up.
    """

    @staticmethod
    def forward(ctx: Any, groups: Groups, p: Tensor, q: Tensor, onto: Tensor, *tensors: Tensor) -> Tensor:
        number = len(tensors) // 4
        stacks, weights = tensors[-2 * number : -number], tensors[-number:]
        _tell(groups, p, q, onto, stacks, weights)
        ctx.save_for_backward(p, q, *stacks, *weights)
        ctx.groups = groups
        ctx.mark_dirty(onto)
        return onto

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_onto: Tensor) -> tuple[Tensor | None, ...]:
        groups, (p, q, *tensors) = ctx.groups, ctx.saved_tensors
        half = len(tensors) // 2
        stacks, weights = tensors[:half], tensors[half:]
        channels, words, d = len(weights[0]), q.flatten(0, 1), d_onto.flatten(0, 1)
        if half > 1:
            d_y, d_x = (sums.stack(d, w, groups) for w in weights)
            d_p = sums.scores([(stacks[0], d_x), (d_y, stacks[1])], groups, p.shape)
            return None, d_p, None, d_onto, p, d, d_x, d_y, None, None, None, None
        d_x, d_q = sums.stack(d, weights[0], groups, "of messages"), torch.zeros_like(q)
        ends = [(sums.for_each(words, channels), d_x), (sums.for_each(d, channels), stacks[0])]
        sums.gather(d_q.view(words.shape), sums.weights_of(p, groups), d_x, groups, channels)
        return None, sums.scores(ends, groups, p.shape), d_q, d_onto, p, d, None, None


class Arcs(NamedTuple):
    """The arcs of some channels among words with label marginals ``q`` (B, N, L).

    scores: (c, B, N, N), of every word j as the head of every word i; what no group holds is 0. made: what the messages need again.
    """

    groups: Groups
    q: Tensor
    weights: tuple[Tensor, ...]
    scores: Tensor
    made: list[Tensor]

    @classmethod
    def of(cls, groups: Groups, q: Tensor, left: Tensor | None, right: Tensor, again: bool = False) -> "Arcs":
        """Potentials ``U V'`` from ``U'`` and ``V'``, of all groups (c, G, r, L); ``left=None`` is the identity.

        ``again`` writes the stacks where those of the arcs before were, which are gone then; without gradients only.
        """
        q = q.contiguous()  # sums are made in place on flattened views of tensors laid out like it
        weights = tuple(w for w in (left, right) if w is not None)
        shape = (len(right), *q.shape[:2], q.shape[1])
        if not groups.numbers:
            return cls(groups, q, weights, q.new_zeros(shape), [])
        if torch.is_grad_enabled():
            scores, *made = _Scores.apply(groups, q, *weights)
        else:
            scores, made = _score(groups, q, weights, "stack" if again else None)
        return cls(groups, q, weights, scores.view(shape), made)

    def messages(self, p: Tensor, onto: Tensor) -> Tensor:
        """``Σ_c Σ_j Σ_b (p_ij T_ab + p_ji T_ba) q_jb`` for head marginals ``p`` (c, B, N, N) of the words; to be asked for once.

        They are added to what is in ``onto`` (B, N, L), contiguous and of the dtype of q, in place.
        """
        if not self.groups.numbers:
            return onto
        made = self.made[:]
        if not made:
            raise RuntimeError("arcs are asked for messages once: make them anew")
        self.made.clear()
        if not torch.is_grad_enabled():
            _tell(self.groups, p.flatten(0, 1), self.q, onto, made[-len(self.weights) :], self.weights)
            return onto
        if len(made) == len(self.weights):
            raise RuntimeError("arcs made without gradients give none: make them where gradients are enabled")
        return _Messages.apply(self.groups, p.flatten(0, 1), self.q, onto, *made, *self.weights)


__all__ = ["Arcs"]
