"""Arcs between words and their heads: scores, and the messages along them,
by whichever kernel the potentials belong to.

A compiler gets them as the operations of `plain`, which it can differentiate, reorder and fuse: `full_rank` and
`low_rank` write their memory again and have their backward passes by hand.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from probtx_pyro.ops._arc_kernel import plain
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
            scores, *made = plain.scores(groups, q, weights.by_group(groups))
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
                return plain.messages(*given)
            # the backward pass makes the sums again
            return checkpoint(plain.messages, *given, use_reentrant=False, preserve_rng_state=False)
        if torch.is_grad_enabled() and not self.gradients:
            raise RuntimeError("arcs made without gradients give none: make them where gradients are enabled")
        return self.weights.tell(self.groups, p, self.q, onto, made)
