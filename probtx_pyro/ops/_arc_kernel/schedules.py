"""The schedules of mean field, channels at a time; in other respects those of `probtx_pyro.ops.dependency_crf`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probtx_pyro.ops import dependency_crf as formulas
from probtx_pyro.ops._arc_kernel.channels import Channels
from probtx_pyro.ops._arc_kernel.prepared import Prepared
from probtx_pyro.ops.dependency_crf import Potentials, Rule, State, group_of

Update = Callable[[Prepared, Rule, Rule, State, bool], dict[str, Tensor]]


def _channels(
    given: Prepared, head: Rule, labels: Tensor, root: Tensor | None, before: tuple[Tensor, Tensor], told: Tensor,
    full: bool, synchronous: bool,
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor | None]:  # fmt: skip
    """New logits and marginals of the heads in some channels, and what was ``told`` with their messages;
    see `Channels.messages`.
    """
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
    channels: Callable[..., Any] = _channels

    def __call__(self, given: Prepared, label: Rule, head: Rule, state: State, first: bool) -> dict[str, Tensor]:
        """Return the state after the sweep."""
        labels, root, found, to_root = state["labels"], state.get("root"), [], None
        told = torch.zeros_like(labels, memory_format=torch.contiguous_format)
        full = head.step == 1 or (first and not self.synchronous)
        for some, own in given.by_channels():
            before = state["head_logits"][:, some], state["heads"][:, some]
            heads, told, rooted = self.channels(own, head, labels, root, before, told, full, self.synchronous)
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

    def __reduce__(self) -> tuple[Any, ...]:
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
    for i in range(labels.shape[-2]):
        message = _to_word(crf, left, right, group, labels, heads, rooted, i)
        one = {"label_logits": logits[:, i : i + 1], "labels": labels[:, i : i + 1]}
        known = None if crf.labels is None else crf.labels[:, i : i + 1]
        word = crf._replace(unary=crf.unary[:, i : i + 1], words=crf.words[:, i : i + 1], labels=known)
        one = formulas.new_labels(word, label, one, message.unsqueeze(1))
        logits = torch.cat([logits[:, :i], one["label_logits"], logits[:, i + 1 :]], 1)
        labels = torch.cat([labels[:, :i], one["labels"], labels[:, i + 1 :]], 1)
    new = {"head_logits": head_logits, "heads": marginals, "label_logits": logits, "labels": labels}
    if crf.root is not None:
        new |= formulas.new_root(label, state, formulas.root_messages(crf, labels, heads))
    return new


def _to_word(
    crf: Potentials, left: Tensor | None, right: Tensor, group: Tensor, labels: Tensor, heads: Tensor,
    rooted: Tensor | None, i: int,
) -> Tensor:  # fmt: skip
    """``G_i(a)`` of one word, (B, L): its neighbours' labels summed by group first,
    then one product with the potentials.
    """
    length, first = labels.shape[-2], int(rooted is not None)
    numbers = torch.arange(right.shape[1], device=labels.device)
    outward, inward = ((x.unsqueeze(-1) == numbers).to(labels.dtype) for x in (group[i], group[:, i]))
    above = torch.einsum("bcj,jg,bjl->bcgl", heads[:, :, i, first : first + length], outward, labels)
    below = torch.einsum("bcj,jg,bjl->bcgl", heads[:, :, :, first + i], inward, labels)
    told = torch.einsum("bcgl,cglr->bcgr", above, right)
    total = told.sum((1, 2)) if left is None else torch.einsum("bcgr,cglr->bl", told, left)
    told = below if left is None else torch.einsum("bcgl,cglr->bcgr", below, left)
    total = total + torch.einsum("bcgr,cglr->bl", told, right)
    if rooted is not None:
        total = total + torch.einsum("bc,bca->ba", heads[:, :, i, 0], rooted)
    if crf.memory is not None:
        nodes = heads[:, : len(crf.memory), i, first + length :]
        total = total + torch.einsum("bcm,cma->ba", nodes, crf.memory)
    return total


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
