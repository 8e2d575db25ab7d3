"""Scores of arcs between words and the messages along them, with their gradients: two families of GEMMs, and little besides.

An arc from word i to its head j has the potential ``T^{g(i,j)}``, g the distance group, of full rank or ``T^g = U^g V^g'``. With
``x^g = Q U^g`` (or Q itself) and ``y^g = Q V^g``, scores, messages and all their gradients are sums of
`probtx_pyro.ops._arc_kernel.sums`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from probtx_pyro.ops._arc_kernel import compiled, sums
from probtx_pyro.ops._arc_kernel.distance_groups import Groups, Rows, Stack
from probtx_pyro.ops._numerics import transformed


def _score(groups: Groups, q: Tensor, weights: Sequence[Tensor], purpose: str | None) -> tuple[Tensor, list[Stack]]:
    """Return the scores (c B, N, N), and the stacks x (if U is there) and y."""
    channels, words = len(weights[0]), _rows(q)
    stacks = [sums.stack(words, w, groups, purpose and f"{purpose} {k}") for k, w in enumerate(weights)]
    x = stacks[0] if len(weights) > 1 else sums.for_each(words, channels)
    return sums.scores([(x, stacks[-1])], groups, (channels * len(q), q.shape[1])), stacks


def _tell(
    groups: Groups, p: Tensor, q: Tensor, onto: Tensor, stacks: Sequence[Stack], weights: Sequence[Tensor]
) -> None:
    """Add the messages to ``onto``."""
    channels, low_rank, total = len(weights[0]), len(weights) > 1, _rows(onto)
    pairs = sums.weights_of(p, groups)
    others: Sequence[Rows | Stack] = stacks[::-1] if low_rank else [sums.for_each(_rows(q), channels)]
    for k, (w, x) in enumerate(zip(weights, others, strict=True)):
        matrices = sums.matrices(w, groups)
        for place, rows in sums.in_turn([(pairs, x)], groups, low_rank and k == 0, channels):
            sums.add_products(total.flat, rows, matrices[place])
    if not low_rank:
        sums.gather(total, pairs, stacks[0], channels)


def _rows(x: Tensor) -> Rows:
    """Rows of words (B, N, L), contiguous."""
    return Rows(x.view(-1, x.shape[-1]), x, {})


def _stacked(groups: Groups, memory: Sequence[Tensor], p: Tensor) -> list[Stack]:
    """Read the stacks that were kept for the backward pass, of words with head marginals (c B, N, N)."""
    return [groups.stacked(x, len(p)) for x in memory]


class _Scores(torch.autograd.Function):
    """Scores of the arcs of some channels (c B, N, N), then tokens for `_Messages`, then the memory of x (if U is there) and y.

    A token is a zero that takes no memory. In place of its gradient the backward pass of the messages returns one of the tensors
    that the gradient of a stack is a sum of; so that sum is made here, group by group, is never written as a whole, and the
    gradient of the potentials is added up within the GEMMs.
    """

    @staticmethod
    def forward(ctx: Any, groups: Groups, q: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        scores, stacks = _score(groups, q, weights, None)
        memory = [stack.memory for stack in stacks]
        ctx.save_for_backward(q, *memory, *weights)
        ctx.groups = groups
        ctx.mark_non_differentiable(*memory)
        ctx.set_materialize_grads(False)
        # p, d, and what d becomes in the places of x and y
        noted = (scores, q.flatten(0, 1), *(memory if len(memory) > 1 else ()))
        return scores, *(q.new_zeros(()).expand_as(like) for like in noted), *memory

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_scores: Tensor | None, *notes: Tensor | None) -> tuple[Tensor | None, ...]:
        groups, (q, *tensors) = ctx.groups, ctx.saved_tensors
        half = len(tensors) // 2
        weights, low_rank = tensors[half:], half > 1
        channels, words, d_q = len(weights[0]), _rows(q), torch.zeros_like(q)
        p, d = notes[:2]
        some = d_scores if p is None else p
        if some is None:
            return None, None, *(None for _ in weights)
        told_q, stacks = _rows(d_q), _stacked(groups, tensors[:half], some)
        scored, told = (None if x is None else sums.weights_of(x, groups) for x in (d_scores, p))
        others: Sequence[Rows | Stack] = stacks[::-1] if low_rank else [sums.for_each(words, channels)]
        d_others: Sequence[Rows | Stack | None]
        if low_rank:
            d_others = [x if x is None else groups.stacked(x, len(some)) for x in notes[2:4]]
        else:
            d_others = [None if d is None else sums.for_each(Rows.of(d, len(q)), channels)]
        new = torch.empty_like if len(groups.numbers) == weights[0].shape[1] else torch.zeros_like
        d_weights = [new(w, memory_format=torch.contiguous_format) for w in weights]
        for k, (w, x, d_x) in enumerate(zip(weights, others, d_others, strict=True)):
            heads = low_rank and k == 0
            terms = [(a, b) for a, b in ((scored, x), (told, d_x)) if a is not None and b is not None]
            matrices, found = sums.matrices(w, groups), sums.matrices(d_weights[k], groups)
            sent = None if told is None else sums.in_turn([(told, x)], groups, heads, channels, "sent")
            for place, rows in sums.in_turn(terms, groups, heads, channels):
                sums.add_products(told_q.flat, rows, matrices[place])
                sums.outer(rows, words.flat, found[place])
                if sent is not None:
                    sums.outer(next(sent)[1], cast(Tensor, d), found[place], add=True)
        if not low_rank and scored is not None:
            sums.gather(told_q, scored, stacks[0], channels)
        return None, d_q, *d_weights


class _Messages(torch.autograd.Function):
    """Messages along the arcs of some channels, from heads to dependents and from dependents to heads, added to ``onto``.

    tensors: tokens, memory of stacks and potentials of the scores. Messages may be asked for once: what the tokens carry in place of
    gradients does not add up.
    """

    @staticmethod
    def forward(ctx: Any, groups: Groups, p: Tensor, q: Tensor, onto: Tensor, *tensors: Tensor) -> Tensor:
        number = len(tensors) // 4
        memory, weights = tensors[-2 * number : -number], tensors[-number:]
        _tell(groups, p, q, onto, _stacked(groups, memory, p), weights)
        ctx.save_for_backward(p, q, *memory, *weights)
        ctx.groups = groups
        ctx.mark_dirty(onto)
        return onto

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_onto: Tensor) -> tuple[Tensor | None, ...]:
        groups, (p, q, *tensors) = ctx.groups, ctx.saved_tensors
        half = len(tensors) // 2
        stacks, weights = _stacked(groups, tensors[:half], p), tensors[half:]
        channels, words, d = len(weights[0]), _rows(q), _rows(d_onto.contiguous())
        if half > 1:
            d_y, d_x = (sums.stack(d, w, groups) for w in weights)
            d_p = sums.scores([(stacks[0], d_x), (d_y, stacks[1])], groups, p.shape)
            return None, d_p, None, d_onto, p, d.flat, d_x.memory, d_y.memory, None, None, None, None
        d_x, d_q = sums.stack(d, weights[0], groups, "of messages"), torch.zeros_like(q)
        ends = [(sums.for_each(words, channels), d_x), (sums.for_each(d, channels), stacks[0])]
        sums.gather(_rows(d_q), sums.weights_of(p, groups), d_x, channels)
        return None, sums.scores(ends, groups, p.shape), d_q, d_onto, p, d.flat, None, None


class Arcs(NamedTuple):
    """The arcs of some channels among words with label marginals ``q`` (B, N, L).

    scores: (c, B, N, N), of every word j as the head of every word i; 0 for pairs in no group. made: stacks, which the messages need
    again, or where gradients are enabled tokens and the memory of stacks.
    """

    groups: Groups
    q: Tensor
    weights: tuple[Tensor, ...]
    scores: Tensor
    made: list[Any]

    @classmethod
    def of(cls, groups: Groups, q: Tensor, left: Tensor | None, right: Tensor, again: bool = False) -> "Arcs":
        """Make arcs with potentials ``U V'`` from ``U'`` and ``V'`` of all groups, (c, G, r, L); ``left=None`` is the identity.

        ``again``, without gradients, writes the stacks over those of the arcs before.
        """
        q = q.contiguous()  # sums are made in place on flattened views of tensors laid out like it
        weights = tuple(w for w in (left, right) if w is not None)
        shape = (len(right), *q.shape[:2], q.shape[1])
        made: list[Any] = []
        if not groups.numbers:
            return cls(groups, q, weights, q.new_zeros(shape), made)
        if torch.compiler.is_compiling() or transformed():
            scores, *made = compiled.scores(groups, q, weights)
        elif torch.is_grad_enabled():
            scores, *made = _Scores.apply(groups, q, *weights)
        else:
            scores, made = _score(groups, q, weights, "stack" if again else None)
        return cls(groups, q, weights, scores.view(shape), made)

    def messages(self, p: Tensor, onto: Tensor) -> Tensor:
        """Return ``onto + Σ_c Σ_j Σ_b (p_ij T_ab + p_ji T_ba) q_jb`` for head marginals ``p`` (c, B, N, N) of the words; ask once.

        ``onto`` (B, N, L) is contiguous and has the dtype of q; it is changed in place (under a compiler, a copy is).
        """
        if not self.groups.numbers:
            return onto
        made = self.made[:]
        if not made:
            raise RuntimeError("arcs are asked for messages once: make them anew")
        self.made.clear()
        p, plain = p.flatten(0, 1), len(made) == len(self.weights)
        given = self.groups, p, self.q, onto, made, self.weights
        if torch.compiler.is_compiling():  # the backward pass makes the sums again
            return checkpoint(compiled.messages, *given, use_reentrant=False, preserve_rng_state=False)
        if transformed():  # torch.func refuses checkpoints
            return compiled.messages(*given)
        if not torch.is_grad_enabled():
            stacks = made if plain else _stacked(self.groups, made[-len(self.weights) :], p)
            _tell(self.groups, p, self.q, onto, stacks, self.weights)
            return onto
        if plain:
            raise RuntimeError("arcs made without gradients give none: make them where gradients are enabled")
        return _Messages.apply(self.groups, p, self.q, onto, *made, *self.weights)
