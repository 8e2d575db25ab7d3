"""Mean field, channels at a time: the potentials as the kernel takes them, the scores and messages of some channels
with root and global nodes, and the schedules, which in other respects are those of `probtx_pyro.ops.dependency_crf`.

Sizes, here and in the other files: B sentences, N words, C channels, G distance groups, L labels, K labels of the root,
S slots, r the rank of the ternary potentials (L where they are full).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from probtx_pyro.ops import dependency_crf as formulas
from probtx_pyro.ops._arc_kernel.arcs import Arcs, Weights
from probtx_pyro.ops._arc_kernel.distance_groups import Groups
from probtx_pyro.ops._arc_kernel.full_rank import FullRank
from probtx_pyro.ops._arc_kernel.low_rank import LowRank
from probtx_pyro.ops._numerics import autocasts, unrounded
from probtx_pyro.ops.dependency_crf import Choices, Potentials, Rule, State, group_of

AT_ONCE = 2**18  # numbers: channels are taken together as long as their features are few enough for a core's cache


class Prepared(NamedTuple):
    """The potentials of all channels, or of those that are worked on together.

    potentials: the CRF, whose root and memory are those of these channels, and whose ternary potentials are not looked
    at.
    weights: the ternary potentials, some channels at a time. choices: the slots that heads in these channels may take.
    groups: the distance groups that occur.
    """

    potentials: Potentials
    weights: Sequence[Weights]
    choices: Choices
    groups: Groups

    @classmethod
    def of(cls, potentials: Potentials) -> "Prepared":
        """All channels of a CRF."""
        unary, ternary = potentials.unary, potentials.ternary
        words, groups = unary[..., 0].numel(), Groups.of(potentials.distances, unary.to(precision(unary)))
        factors = [ternary] if isinstance(ternary, Tensor) else ternary
        some = max(1, AT_ONCE // (words * factors[0].shape[-1]))  # channels at a time
        pieces = zip(*(x.split(some) for x in factors), strict=True)
        weights: list[Weights]
        if isinstance(ternary, Tensor):
            weights = [FullRank(x.contiguous()) for (x,) in pieces]
        else:
            weights = [LowRank.of(groups, *own) for own in pieces]
        return cls(potentials, weights, potentials.choices(), groups)

    def by_channels(self) -> Iterator[tuple[slice, "Prepared"]]:
        """Yield the channels in pieces that stay in the cache, each with what belongs to it."""
        end, crf, choices = 0, self.potentials, self.choices
        for weights in self.weights:
            channels = slice(end, end := end + len(weights))
            root, memory = (None if x is None else x[channels] for x in (crf.root, crf.memory))
            own = choices
            if choices.bias.shape[1] > 1:
                own = choices._replace(bias=choices.bias[:, channels], some=choices.some[:, channels])
            yield channels, Prepared(crf._replace(root=root, memory=memory), [weights], own, self.groups)


def precision(x: Tensor) -> torch.dtype:
    """The dtype in which matrix products are made: under autocast, its own."""
    return torch.get_autocast_dtype(x.device.type) if autocasts(x.device) else x.dtype


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
        with unrounded(q.device):
            arcs = Arcs.of(groups, q, type(weights)(weights.weights.to(q.dtype)), again)
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
        with unrounded(labels.device):
            low = self.arcs.q.dtype
            if told.dtype == low:
                total = self.arcs.messages(own, told)
            else:
                total = told + self.arcs.messages(own.to(low), torch.zeros_like(told, dtype=low))
        if self.rooted is not None:
            total = total + torch.einsum("bci,bca->bia", heads[..., 0], self.rooted)
            to_root = formulas.root_messages(self.given.potentials, labels, heads)
        memory = self.given.potentials.memory
        if memory is not None:
            nodes = heads[:, : len(memory), :, first + length :]
            total = total + torch.einsum("bcim,cma->bia", nodes, memory)
        return total, to_root


Update = Callable[[Prepared, Rule, Rule, State, bool], dict[str, Tensor]]
Pair = tuple[Tensor, Tensor]
Seen = tuple[Tensor, Tensor | None]


def _channels(
    given: Prepared, head: Rule, seen: Seen, before: Pair, told: Tensor, full: bool, synchronous: bool
) -> tuple[Pair, Tensor, Tensor | None]:
    """New logits and marginals of the heads in some channels from labels and the root, and what was ``told`` with their
    messages; see `Channels.messages`.
    """
    labels, root = seen
    channels = Channels.of(given, labels, root, again=True)
    heads = formulas.new_heads(head, channels.scores, *before, given.choices, given.potentials.parts, full)
    return heads, *channels.messages(labels, head.dropped(before[1] if synchronous else heads[1]), told)


@dataclass(frozen=True)
class Sweep:
    """A schedule that updates all heads, then all labels, which hear from these heads,
    or from those before (``synchronous``).

    channels: what a sweep repeats for channel after channel. The first head update is a full step, unless
    ``synchronous``.
    """

    synchronous: bool
    channels: Callable[..., tuple[Pair, Tensor, Tensor | None]] = _channels

    def __call__(self, given: Prepared, label: Rule, head: Rule, state: State, first: bool) -> dict[str, Tensor]:
        """Return the state after the sweep."""
        seen, found, to_root = (state["labels"], state.get("root")), [], None
        told = torch.zeros_like(seen[0], memory_format=torch.contiguous_format)
        full = head.step == 1 or (first and not self.synchronous)
        for some, own in given.by_channels():
            before = state["head_logits"][:, some], state["heads"][:, some]
            heads, told, rooted = self.channels(own, head, seen, before, told, full, self.synchronous)
            found.append(heads)
            to_root = rooted if to_root is None or rooted is None else to_root + rooted
        logits, marginals = (torch.cat(x, 1) for x in zip(*found, strict=True))
        new = {"head_logits": logits, "heads": marginals}
        new |= formulas.new_labels(given.potentials, label, state, told)
        return new if to_root is None else new | formulas.new_root(label, state, to_root)

    def compiled(self, *args: Any, **options: Any) -> "Sweep":
        """Return the same with its channels compiled as ``torch.compile`` is told to:
        once for all of them and all sweeps.
        """
        return Sweep(self.synchronous, torch.compile(_channels, *args, **options))

    def __reduce__(self) -> tuple[type["Sweep"], tuple[bool]]:
        """Copied and saved as it is written: what was compiled belongs to this process."""
        return Sweep, (self.synchronous,)


def _scores(given: Prepared, state: State) -> Tensor:
    """F of the heads in all channels, (B, C, N, S)."""
    labels, root = state["labels"], state.get("root")
    return torch.cat([Channels.of(own, labels, root).scores for _, own in given.by_channels()], 1)


def sequential(given: Prepared, label: Rule, head: Rule, state: State, first: bool) -> dict[str, Tensor]:
    """Heads, then the labels of one word after the other, then the root: coordinate ascent,
    so the objective never falls.
    """
    crf, labels, logits = given.potentials, state["labels"], state["label_logits"]
    rooted = None if crf.root is None else torch.einsum("cak,bk->bca", crf.root, state["root"])
    before = state["head_logits"], state["heads"]
    head_logits, marginals = formulas.new_heads(head, _scores(given, state), *before, given.choices, crf.parts, first)
    heads = head.dropped(marginals)
    left, right = (None, crf.ternary.mT) if isinstance(crf.ternary, Tensor) else crf.ternary
    group = group_of(crf.distances, labels.shape[1], labels.device)
    group = group.fill_diagonal_(right.shape[1])  # a word and itself are in none
    length, offset, numbers = (
        labels.shape[-2],
        int(rooted is not None),
        torch.arange(right.shape[1], device=labels.device),
    )

    def to_word(i: int, labels: Tensor) -> Tensor:
        """``G_i(a)`` of one word, (B, L): its neighbours' labels summed by group first, then one product."""
        outward, inward = ((x.unsqueeze(-1) == numbers).to(labels.dtype) for x in (group[i], group[:, i]))
        above = torch.einsum("bcj,jg,bjl->bcgl", heads[:, :, i, offset : offset + length], outward, labels)
        below = torch.einsum("bcj,jg,bjl->bcgl", heads[:, :, :, offset + i], inward, labels)
        told = torch.einsum("bcgl,cglr->bcgr", above, right)
        total = told.sum((1, 2)) if left is None else torch.einsum("bcgr,cglr->bl", told, left)
        told = below if left is None else torch.einsum("bcgl,cglr->bcgr", below, left)
        total = total + torch.einsum("bcgr,cglr->bl", told, right)
        if rooted is not None:
            total = total + torch.einsum("bc,bca->ba", heads[:, :, i, 0], rooted)
        if crf.memory is not None:
            nodes = heads[:, : len(crf.memory), i, offset + length :]
            total = total + torch.einsum("bcm,cma->ba", nodes, crf.memory)
        return total

    for i in range(length):
        one = {"label_logits": logits[:, i : i + 1], "labels": labels[:, i : i + 1]}
        known = None if crf.labels is None else crf.labels[:, i : i + 1]
        word = crf._replace(unary=crf.unary[:, i : i + 1], words=crf.words[:, i : i + 1], labels=known)
        one = formulas.new_labels(word, label, one, to_word(i, labels).unsqueeze(1))
        logits = torch.cat([logits[:, :i], one["label_logits"], logits[:, i + 1 :]], 1)
        labels = torch.cat([labels[:, :i], one["labels"], labels[:, i + 1 :]], 1)
    new = {"head_logits": head_logits, "heads": marginals, "label_logits": logits, "labels": labels}
    if crf.root is not None:
        new |= formulas.new_root(label, state, formulas.root_messages(crf, labels, heads))
    return new


SCHEDULES: dict[str, Update] = {"asynchronous": Sweep(False), "synchronous": Sweep(True), "sequential": sequential}


def iterate(potentials: Potentials, label: Rule, head: Rule, update: Update, num_steps: int) -> dict[str, Tensor]:
    """Return the state after so many sweeps: the unrolled network of the encoder, which a compiler can read."""
    given = Prepared.of(potentials)
    state = formulas.start(potentials, label, head, given.choices)
    for k in range(num_steps):
        state = update(given, label, head, state, k == 0)
    return state


def objective(given: Prepared, label: Rule, head: Rule, state: State) -> Tensor:
    """Return the objective of `probtx_pyro.ops.dependency_crf`, (B,)."""
    return formulas.objective(given.potentials, label, head, state, _scores(given, state))
