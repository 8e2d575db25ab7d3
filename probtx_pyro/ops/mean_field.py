"""Mean field for the dependency CRF: messages, updates and schedules on plain tensors; sizes as in `probtx_pyro.ops.potentials`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from probtx_pyro.ops.arc_groups import Groups, group_of
from probtx_pyro.ops.arcs import Arcs
from probtx_pyro.ops.potentials import Factors, Potentials, Rule, factors, precision, relu_normalized

State = Mapping[str, Tensor]
Update = Callable[[Potentials, Rule, Rule, State, bool], dict[str, Tensor]]


def start(potentials: Potentials, label: Rule, head: Rule) -> dict[str, Tensor]:
    """``Q(Z) ∝ exp(S)``; Q(H) uniform over the allowed heads, with logits 1 so that ReLU normalisation is uniform, too."""
    words = potentials.words.unsqueeze(-1)
    bias, some = cast(tuple[Tensor, Tensor], potentials.choices)
    unary = potentials.unary.masked_fill(~words, 0.0)
    shape = (len(unary), potentials.channels, *bias.shape[2:])
    logits = unary.new_ones(()).expand(shape)
    state = {
        "label_logits": unary,
        "labels": label.normalized(unary, words.new_zeros((), dtype=unary.dtype), words.to(unary.dtype)),
        "head_logits": logits,
        "heads": head.normalized(logits, bias, some, potentials.parts),
    }
    if potentials.root is not None:
        state["root_logits"] = unary.new_zeros(len(unary), potentials.root.shape[-1])
        state["root"] = torch.softmax(state["root_logits"], -1)
    return state


def _as_they_are(x: Tensor) -> AbstractContextManager[Any]:
    """Matrix products in the precision of their factors, autocast or not."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


class Part(NamedTuple):
    """Some channels seen from label marginals: scores of their heads (B, c, N, S), and what their messages need again."""

    channels: slice
    arcs: Arcs
    rooted: Tensor | None
    scores: Tensor

    def messages(
        self, potentials: Potentials, labels: Tensor, heads: Tensor, told: Tensor
    ) -> tuple[Tensor, Tensor | None]:
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
        if self.rooted is not None and potentials.root is not None:
            total = total + torch.einsum("bci,bca->bia", heads[..., 0], self.rooted)
            to_root = torch.einsum("bci,bia,cak->bk", heads[..., 0], labels, potentials.root[self.channels])
        if potentials.memory is not None:
            memory = potentials.memory[self.channels]
            nodes = heads[:, : len(memory), :, first + length :]
            total = total + torch.einsum("bcim,cma->bia", nodes, memory)
        return total, to_root


def parts(potentials: Potentials, labels: Tensor, root: Tensor | None, again: bool = False) -> Iterator[Part]:
    """``F^c_i(j)`` for every slot, some channels at a time: what is done with them next finds them in the cache.

    ``again``: without gradients a part is done with when the next one is asked for, which is written over it.
    """
    low, end = precision(labels), 0
    q = labels.to(low)
    groups = potentials.groups
    if groups is None or not groups.serves(q):
        groups = Groups.of(potentials.distances, q)
    left: Sequence[Tensor | None] = potentials.left or [None] * len(potentials.right)
    for u, v in zip(left, potentials.right, strict=True):
        channels = slice(end, end := end + len(v))
        with _as_they_are(q):
            arcs = Arcs.of(groups, q, None if u is None else u.to(low), v.to(low), again)
        slots, rooted = [arcs.scores.transpose(0, 1).to(labels.dtype)], None
        if potentials.root is not None:
            rooted = torch.einsum("cak,bk->bca", potentials.root[channels], root)
            slots.insert(0, torch.einsum("bia,bca->bci", labels, rooted).unsqueeze(-1))
        if potentials.memory is not None:
            nodes = torch.einsum("bia,cma->bcim", labels, potentials.memory[channels])
            slots.append(F.pad(nodes, (0, 0, 0, 0, 0, len(v) - nodes.shape[1])))
        yield Part(channels, arcs, rooted, torch.cat(slots, -1) if len(slots) > 1 else slots[0])


def scores(potentials: Potentials, labels: Tensor, root: Tensor | None = None) -> Tensor:
    """``F^c_i(j)`` of all channels, (B, C, N, S)."""
    return torch.cat([part.scores for part in parts(potentials, labels, root)], 1)


def _heads(
    potentials: Potentials, head: Rule, state: State, channels: slice, scores: Tensor, first: bool
) -> dict[str, Tensor]:
    bias, some = cast(tuple[Tensor, Tensor], potentials.choices)
    if bias.shape[1] > 1:
        bias, some = bias[:, channels], some[:, channels]
    logits = head.logits(scores, state["head_logits"][:, channels])
    found = head.normalized(logits, bias, some, potentials.parts)
    return {"head_logits": logits, "heads": head.mixed(found, state["heads"][:, channels], first)}


def _labels(
    potentials: Potentials, label: Rule, state: State, messages: Tensor, to_root: Tensor | None
) -> dict[str, Tensor]:
    words = potentials.words.unsqueeze(-1)
    logits = label.logits((potentials.unary + messages).masked_fill(~words, 0.0), state["label_logits"])
    logits = logits if label.dropout is None else label.dropout(logits)
    free = logits.new_zeros(())
    found = label.normalized(logits, free, words.to(logits.dtype))
    new = {"label_logits": logits, "labels": label.mixed(found, state["labels"])}
    if to_root is not None:
        new["root_logits"] = label.logits(to_root, state["root_logits"])
        new["root"] = label.mixed(label.normalized(new["root_logits"], free, free + 1.0), state["root"])
    return new


def _sent(head: Rule, heads: Tensor) -> Tensor:
    return heads if head.dropout is None else head.dropout(heads)


def _sweep(
    potentials: Potentials, label: Rule, head: Rule, state: State, first: bool, before: bool
) -> dict[str, Tensor]:
    """Heads, then labels that hear from them, or from those ``before``; channel by channel."""
    labels, found, to_root = state["labels"], [], None
    told = torch.zeros_like(labels, memory_format=torch.contiguous_format)
    for part in parts(potentials, labels, state.get("root"), again=True):
        found.append(_heads(potentials, head, state, part.channels, part.scores, first))
        heads = state["heads"][:, part.channels] if before else found[-1]["heads"]
        told, rooted = part.messages(potentials, labels, _sent(head, heads), told)
        to_root = rooted if to_root is None or rooted is None else to_root + rooted
    new = {name: torch.cat([x[name] for x in found], 1) for name in ("head_logits", "heads")}
    return {**new, **_labels(potentials, label, state, told, to_root)}


def asynchronous(potentials: Potentials, label: Rule, head: Rule, state: State, first: bool) -> dict[str, Tensor]:
    """Heads from the labels, then labels from those heads. The first head update is a full step."""
    return _sweep(potentials, label, head, state, first, False)


def synchronous(potentials: Potentials, label: Rule, head: Rule, state: State, first: bool) -> dict[str, Tensor]:
    """Heads and labels at once, both from the marginals before."""
    return _sweep(potentials, label, head, state, False, True)


def sequential(potentials: Potentials, label: Rule, head: Rule, state: State, first: bool) -> dict[str, Tensor]:
    """Heads, then the labels of one word after the other, then the root: coordinate ascent, so the objective never falls."""
    found = list(parts(potentials, state["labels"], state.get("root")))
    every, all_scores = slice(0, potentials.channels), torch.cat([part.scores for part in found], 1)
    rooted = None if potentials.root is None else torch.cat([cast(Tensor, part.rooted) for part in found], 1)
    new = _heads(potentials, head, state, every, all_scores, first)
    heads, labels, logits = _sent(head, new["heads"]), state["labels"], state["label_logits"]
    right = _stacked(potentials.right)
    left = None if potentials.left is None else _stacked(potentials.left)
    group = group_of(potentials.distances, labels.shape[1], labels.device)
    for i in range(labels.shape[-2]):
        message = _to_word(potentials, left, right, group, labels, heads, rooted, i)
        one = {"label_logits": logits[:, i : i + 1], "labels": labels[:, i : i + 1]}
        part = potentials._replace(unary=potentials.unary[:, i : i + 1], words=potentials.words[:, i : i + 1])
        one = _labels(part, label, one, message.unsqueeze(1), None)
        logits = torch.cat([logits[:, :i], one["label_logits"], logits[:, i + 1 :]], 1)
        labels = torch.cat([labels[:, :i], one["labels"], labels[:, i + 1 :]], 1)
    new |= {"label_logits": logits, "labels": labels}
    if potentials.root is not None:
        to_root = torch.einsum("bci,bia,cak->bk", heads[..., 0], labels, potentials.root)
        nothing = potentials._replace(unary=potentials.unary[:, :0], words=potentials.words[:, :0])
        before = {**state, "label_logits": logits[:, :0], "labels": labels[:, :0]}
        root = _labels(nothing, label, before, logits[:, :0], to_root)
        new |= {name: root[name] for name in ("root_logits", "root")}
    return new


def _stacked(factors: Factors) -> Tensor:
    """(C, G, L, r)."""
    return torch.cat([*factors]).mT


def _to_word(
    potentials: Potentials, left: Tensor | None, right: Tensor, group: Tensor, labels: Tensor, heads: Tensor,
    rooted: Tensor | None, i: int,
) -> Tensor:  # fmt: skip
    """``G_i(a)`` of one word, (B, L): its neighbours' labels summed by group first, then one product with the potentials."""
    length, first = labels.shape[-2], int(rooted is not None)
    outward, inward = (F.one_hot(x, right.shape[1]).to(labels.dtype) for x in (group[i], group[:, i]))
    above = torch.einsum("bcj,jg,bjl->bcgl", heads[:, :, i, first : first + length], outward, labels)
    below = torch.einsum("bcj,jg,bjl->bcgl", heads[:, :, :, first + i], inward, labels)
    told = torch.einsum("bcgl,cglr->bcgr", above, right)
    total = told.sum((1, 2)) if left is None else torch.einsum("bcgr,cglr->bl", told, left)
    told = below if left is None else torch.einsum("bcgl,cglr->bcgr", below, left)
    total = total + torch.einsum("bcgr,cglr->bl", told, right)
    if rooted is not None:
        total = total + torch.einsum("bc,bca->ba", heads[:, :, i, 0], rooted)
    if potentials.memory is not None:
        nodes = heads[:, : len(potentials.memory), i, first + length :]
        total = total + torch.einsum("bcm,cma->ba", nodes, potentials.memory)
    return total


SCHEDULES = {"asynchronous": asynchronous, "synchronous": synchronous, "sequential": sequential}


def iterate(potentials: Potentials, label: Rule, head: Rule, update: Update, num_steps: int) -> dict[str, Tensor]:
    """The state after so many sweeps: the unrolled network of the encoder, which a compiler can read."""
    state = start(potentials, label, head)
    for k in range(num_steps):
        state = update(potentials, label, head, state, k == 0)
    return state


def objective(potentials: Potentials, label: Rule, head: Rule, state: State) -> Tensor:
    """``E_Q[log φ] + λ_Z Σ H(Q(Z)) + λ_H Σ H(Q(H))``, (B,): the ELBO where both temperatures are 1."""
    labels, root = state["labels"], state.get("root")
    unary = potentials.unary.masked_fill(~potentials.words.unsqueeze(-1), 0.0)
    expected = (labels * unary).sum((-2, -1))
    expected = expected + (state["heads"] * scores(potentials, labels, root)).sum((-3, -2, -1))
    uncertainty = _entropy(labels).sum(-1) + (0.0 if root is None else _entropy(root))
    return expected + label.temperature * uncertainty + head.temperature * _entropy(state["heads"]).sum((-2, -1))


def _entropy(p: Tensor) -> Tensor:
    """Over the last axis; 0 log 0 is 0, with a finite gradient."""
    return -(p * torch.where(p > 0, p, 1.0).log()).sum(-1)


__all__ = [
    "SCHEDULES", "Part", "Potentials", "Rule", "State", "Update",
    "factors", "iterate", "objective", "parts", "relu_normalized", "scores", "start",
]  # fmt: skip
