"""Some channels of a dependency CRF at a time: the scores of their heads, and their messages; sizes as in `probtx_pyro.ops.potentials`."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from probtx_pyro.ops.arc_groups import Groups
from probtx_pyro.ops.arcs import Arcs
from probtx_pyro.ops.potentials import Potentials, precision


def _as_they_are(x: Tensor) -> AbstractContextManager[Any]:
    """Matrix products in the precision of their factors, autocast or not."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


class Part(NamedTuple):
    """Some channels seen from label marginals: scores of their heads (B, c, N, S), and what their messages need again."""

    potentials: Potentials
    arcs: Arcs
    rooted: Tensor | None
    scores: Tensor

    @classmethod
    def of(cls, potentials: Potentials, labels: Tensor, root: Tensor | None, again: bool = False) -> "Part":
        """From potentials of these channels alone, see `by_parts`. ``again``: without gradients the next part is written over it."""
        q = labels.to(precision(labels))
        groups = potentials.groups
        if groups is None or not groups.serves(q):
            groups = Groups.of(potentials.distances, q)
        left, (right,) = potentials.left, potentials.right
        with _as_they_are(q):
            arcs = Arcs.of(groups, q, None if left is None else left[0].to(q.dtype), right.to(q.dtype), again)
        slots, rooted = [arcs.scores.transpose(0, 1).to(labels.dtype)], None
        if potentials.root is not None:
            rooted = torch.einsum("cak,bk->bca", potentials.root, root)
            slots.insert(0, torch.einsum("bia,bca->bci", labels, rooted).unsqueeze(-1))
        if potentials.memory is not None:
            nodes = torch.einsum("bia,cma->bcim", labels, potentials.memory)
            slots.append(F.pad(nodes, (0, 0, 0, 0, 0, len(right) - nodes.shape[1])))
        return cls(potentials, arcs, rooted, torch.cat(slots, -1) if len(slots) > 1 else slots[0])

    def messages(self, labels: Tensor, heads: Tensor, told: Tensor) -> tuple[Tensor, Tensor | None]:
        """Their share of ``G_i(a)`` (B, N, L), and of what the words tell the root (B, K), for their head marginals (B, c, N, S).

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
        root, memory = self.potentials.root, self.potentials.memory
        if self.rooted is not None and root is not None:
            total = total + torch.einsum("bci,bca->bia", heads[..., 0], self.rooted)
            to_root = torch.einsum("bci,bia,cak->bk", heads[..., 0], labels, root)
        if memory is not None:
            nodes = heads[:, : len(memory), :, first + length :]
            total = total + torch.einsum("bcim,cma->bia", nodes, memory)
        return total, to_root


def by_parts(potentials: Potentials) -> Iterator[tuple[slice, Potentials]]:
    """Some channels at a time, and their potentials: what is done with them next finds them in the cache."""
    end = 0
    left: Sequence[Tensor | None] = potentials.left or [None] * len(potentials.right)
    every = cast(tuple[Tensor, Tensor], potentials.choices)
    for u, v in zip(left, potentials.right, strict=True):
        channels = slice(end, end := end + len(v))
        root, memory = (None if x is None else x[channels] for x in (potentials.root, potentials.memory))
        choices = (every[0][:, channels], every[1][:, channels]) if every[0].shape[1] > 1 else every
        own = None if u is None else [u]
        yield channels, potentials._replace(left=own, right=[v], root=root, memory=memory, choices=choices)


__all__ = ["Part", "by_parts"]
