"""Mean field for the dependency CRF: messages, updates and schedules on plain tensors; sizes as in `probtx_pyro.ops.potentials`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from probtx_pyro.ops.arc_groups import group_of
from probtx_pyro.ops.parts import Part, by_parts
from probtx_pyro.ops.potentials import Factors, Potentials, Rule, factors, relu_normalized

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


def scores(potentials: Potentials, labels: Tensor, root: Tensor | None = None) -> Tensor:
    """``F^c_i(j)`` of all channels, (B, C, N, S)."""
    return torch.cat([Part.of(own, labels, root).scores for _, own in by_parts(potentials)], 1)


def _heads(
    potentials: Potentials, head: Rule, before: tuple[Tensor, Tensor], scores: Tensor, full: bool
) -> tuple[Tensor, Tensor]:
    """Logits and marginals after a step, or a ``full`` one."""
    bias, some = cast(tuple[Tensor, Tensor], potentials.choices)
    logits = head.logits(scores, before[0])
    return logits, head.mixed(head.normalized(logits, bias, some, potentials.parts), before[1], full)


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


def _channels(
    potentials: Potentials, head: Rule, labels: Tensor, root: Tensor | None, before: tuple[Tensor, Tensor], told: Tensor,
    full: bool, synchronous: bool,
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor | None]:  # fmt: skip
    """New logits and marginals of the heads in some channels, and what was ``told`` with their messages; see `Part.messages`."""
    part = Part.of(potentials, labels, root, again=True)
    heads = _heads(potentials, head, before, part.scores, full)
    return heads, *part.messages(labels, _sent(head, before[1] if synchronous else heads[1]), told)


@dataclass(frozen=True)
class Sweep:
    """A schedule that updates all heads, then all labels, which hear from these heads, or from those before (``synchronous``).

    channels: what a sweep repeats for channel after channel. The first head update is a full step, unless ``synchronous``.
    """

    synchronous: bool
    channels: Callable[..., Any] = _channels

    def __call__(self, potentials: Potentials, label: Rule, head: Rule, state: State, first: bool) -> dict[str, Tensor]:
        """The state after it."""
        labels, root, found, to_root = state["labels"], state.get("root"), [], None
        told = torch.zeros_like(labels, memory_format=torch.contiguous_format)
        full = head.step == 1 or (first and not self.synchronous)
        for some, own in by_parts(potentials):
            before = state["head_logits"][:, some], state["heads"][:, some]
            heads, told, rooted = self.channels(own, head, labels, root, before, told, full, self.synchronous)
            found.append(heads)
            to_root = rooted if to_root is None or rooted is None else to_root + rooted
        logits, marginals = (torch.cat(x, 1) for x in zip(*found, strict=True))
        return {"head_logits": logits, "heads": marginals, **_labels(potentials, label, state, told, to_root)}

    def compiled(self, *args: Any, **options: Any) -> "Sweep":
        """The same with its channels compiled as ``torch.compile`` is told to: once for all of them and all sweeps."""
        return Sweep(self.synchronous, torch.compile(_channels, *args, **options))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied and saved as it is written: what was compiled belongs to this process."""
        return Sweep, (self.synchronous,)


asynchronous, synchronous = Sweep(synchronous=False), Sweep(synchronous=True)


def sequential(potentials: Potentials, label: Rule, head: Rule, state: State, first: bool) -> dict[str, Tensor]:
    """Heads, then the labels of one word after the other, then the root: coordinate ascent, so the objective never falls."""
    found = [Part.of(own, state["labels"], state.get("root")) for _, own in by_parts(potentials)]
    rooted = None if potentials.root is None else torch.cat([cast(Tensor, part.rooted) for part in found], 1)
    before, every = (state["head_logits"], state["heads"]), torch.cat([part.scores for part in found], 1)
    head_logits, marginals = _heads(potentials, head, before, every, first)
    heads, labels, logits = _sent(head, marginals), state["labels"], state["label_logits"]
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
    new = {"head_logits": head_logits, "heads": marginals, "label_logits": logits, "labels": labels}
    if potentials.root is not None:
        to_root = torch.einsum("bci,bia,cak->bk", heads[..., 0], labels, potentials.root)
        nothing = potentials._replace(unary=potentials.unary[:, :0], words=potentials.words[:, :0])
        none = {**state, "label_logits": logits[:, :0], "labels": labels[:, :0]}
        root = _labels(nothing, label, none, logits[:, :0], to_root)
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


SCHEDULES: dict[str, Update] = {"asynchronous": asynchronous, "synchronous": synchronous, "sequential": sequential}


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
    "SCHEDULES", "Potentials", "Rule", "State", "Sweep", "Update",
    "factors", "iterate", "objective", "relu_normalized", "scores", "start",
]  # fmt: skip
