"""Scores of the heads in some channels of a dependency CRF, and the messages along them,
the root and global nodes included.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from probtx_pyro.ops._arc_kernel.arcs import Arcs
from probtx_pyro.ops._arc_kernel.distance_groups import Groups
from probtx_pyro.ops._arc_kernel.prepared import Prepared, precision
from probtx_pyro.ops.dependency_crf import root_messages


def _as_they_are(x: Tensor) -> AbstractContextManager[Any]:
    """Matrix products in the precision of their factors, autocast or not."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


class Channels(NamedTuple):
    """Some channels seen from label marginals.

    scores: F of their heads, (B, c, N, S). arcs, rooted: what their messages need again; rooted is
    ``Σ_k R_ak Q(root = k)``, (B, c, L).
    """

    given: Prepared
    arcs: Arcs
    rooted: Tensor | None
    scores: Tensor

    @classmethod
    def of(cls, given: Prepared, labels: Tensor, root: Tensor | None, again: bool = False) -> "Channels":
        """Make the table from what belongs to these channels alone, see `Prepared.by_channels`.

        ``again``: without gradients, the next channels are written over these.
        """
        q, crf = labels.to(precision(labels)), given.potentials
        groups = given.groups if given.groups.serves(q) else Groups.of(crf.distances, q)
        (weights,) = given.weights
        with _as_they_are(q):
            arcs = Arcs.of(groups, q, weights.to(q.dtype), again)
        slots, rooted = [arcs.scores.transpose(0, 1).to(labels.dtype)], None
        if crf.root is not None:
            rooted = torch.einsum("cak,bk->bca", crf.root, root)
            slots.insert(0, torch.einsum("bia,bca->bci", labels, rooted).unsqueeze(-1))
        if crf.memory is not None:
            nodes = torch.einsum("bia,cma->bcim", labels, crf.memory)
            slots.append(F.pad(nodes, (0, 0, 0, 0, 0, len(weights) - nodes.shape[1])))
        return cls(given, arcs, rooted, torch.cat(slots, -1) if len(slots) > 1 else slots[0])

    def messages(self, labels: Tensor, heads: Tensor, told: Tensor) -> tuple[Tensor, Tensor | None]:
        """Their share of ``G_i(a)`` (B, N, L), and of what the words tell the root (B, K),
        for their head marginals (B, c, N, S).

        The former is added to what was ``told`` before, in place if that has the precision of the products.
        """
        to_root, first, length = None, int(self.rooted is not None), labels.shape[-2]
        own = heads[..., first : first + length].transpose(0, 1)
        with _as_they_are(labels):
            low = self.arcs.q.dtype
            if told.dtype == low:
                total = self.arcs.messages(own, told)
            else:
                total = told + self.arcs.messages(own.to(low), torch.zeros_like(told, dtype=low))
        if self.rooted is not None:
            total = total + torch.einsum("bci,bca->bia", heads[..., 0], self.rooted)
            to_root = root_messages(self.given.potentials, labels, heads)
        memory = self.given.potentials.memory
        if memory is not None:
            nodes = heads[:, : len(memory), :, first + length :]
            total = total + torch.einsum("bcim,cma->bia", nodes, memory)
        return total, to_root
