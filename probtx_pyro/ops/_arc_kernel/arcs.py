"""Arcs between words and their heads: scores, and the messages along them,
by whichever kernel the potentials belong to.

A compiler gets them as plain operations that it can differentiate, reorder and fuse (`_compiled_scores`,
`_compiled_messages`): `full_rank` and `low_rank` write their memory again and have their backward passes by hand, which
`torch.compile` does by itself.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from probtx_pyro.ops._arc_kernel.distance_groups import Groups
from probtx_pyro.ops._arc_kernel.full_rank import FullRank
from probtx_pyro.ops._arc_kernel.low_rank import LowRank
from probtx_pyro.ops._numerics import transformed

Weights = FullRank | LowRank
"""Ternary potentials of some channels; ``len`` is their number."""


class Arcs(NamedTuple):
    """The arcs of some channels among words with label marginals ``q`` (B, N, L).

    scores: (c, B, N, N), of every word j as the head of every word i; 0 for pairs in no group. made: what the messages
    need again.
    """

    groups: Groups
    q: Tensor
    weights: Weights
    scores: Tensor
    made: list[Any]
    gradients: bool

    @classmethod
    def of(cls, groups: Groups, q: Tensor, weights: Weights, again: bool = False) -> "Arcs":
        """Make arcs.

        ``again``, without gradients, writes over what was made for the arcs before.
        """
        q = q.contiguous()  # sums are made in place on flattened views of tensors laid out like it
        made: list[Any] = []
        shape, gradients = (len(weights), *q.shape[:2], q.shape[1]), torch.is_grad_enabled()
        if not groups.numbers:
            return cls(groups, q, weights, q.new_zeros(shape), made, gradients)
        if torch.compiler.is_compiling() or transformed():
            scores, *made = _compiled_scores(groups, q, weights.by_group(groups))
        else:
            scores, *made = weights.score(groups, q, again)
        return cls(groups, q, weights, scores.view(shape), made, gradients)

    def messages(self, p: Tensor, onto: Tensor) -> Tensor:
        """Return ``onto + Σ_c Σ_j Σ_b (p_ij T_ab + p_ji T_ba) q_jb`` for head marginals ``p`` (c, B, N,
        N) of the words; ask once.

        ``onto`` (B, N, L) is contiguous and has the dtype of q; it is changed in place (under a compiler, a copy is).
        """
        if not self.groups.numbers:
            return onto
        made = self.made[:]
        if not made:
            raise RuntimeError("arcs are asked for messages once: make them anew")
        self.made.clear()
        p = p.flatten(0, 1)
        if torch.compiler.is_compiling() or transformed():
            given = self.groups, p, self.q, onto, made, self.weights.by_group(self.groups)
            if transformed():  # torch.func refuses checkpoints
                return _compiled_messages(*given)
            # the backward pass makes the sums again
            return checkpoint(_compiled_messages, *given, use_reentrant=False, preserve_rng_state=False)
        if torch.is_grad_enabled() and not self.gradients:
            raise RuntimeError("arcs made without gradients give none: make them where gradients are enabled")
        return self.weights.tell(self.groups, p, self.q, onto, made)


Matrices = Sequence[Sequence[Tensor]]  # V', or U' and V', of every group, (c, r, L)


def _compiled_scores(groups: Groups, q: Tensor, weights: Matrices) -> list[Tensor]:
    """Return the scores (c B, N, N) of words (B, N, L), then x (if U is there) and y of all groups, (c, B, N,
    r) each.
    """
    made = [_forth(q, w) for each in weights for w in each]
    total = q.new_zeros(())
    for place, where in _places(groups):
        x, y = _ends(groups, q, made)[place]
        if isinstance(where, int):
            total = total + (_having(x, where) * _having(y, -where)).sum(-1).diag_embed(where)
        else:
            total = total + (x @ y.mT) * where
    return [total.flatten(0, 1), *made]


def _compiled_messages(
    groups: Groups, p: Tensor, q: Tensor, onto: Tensor, made: Sequence[Tensor], weights: Matrices
) -> Tensor:
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
