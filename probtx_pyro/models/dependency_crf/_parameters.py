"""Ternary potentials of low rank, and checks of a dependency CRF's arguments, each with its repair."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.ops.dependency_crf import SCHEDULES, Potentials


@dataclass(frozen=True, eq=False)
class LowRank:
    """``T^{(c,g)} = U^{(c,g)} V^{(c,g)}'``, the factorisation "uv"; `shared` makes "uvw".

    Parameters
    ----------
    left, right
        U and V, (C, G, L, r): of the dependent's label and of the head's.

    Raises
    ------
    ValueError
        Factors that do not fit each other.
    """

    left: Tensor
    right: Tensor

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            check.floating(name, getattr(self, name))
        if self.left.dim() != 4 or self.left.shape != self.right.shape:
            raise ValueError(
                f"left {tuple(self.left.shape)} and right {tuple(self.right.shape)} must have one shape (C, G, L, r)"
            )

    @classmethod
    def shared(cls, left: Tensor, right: Tensor, channels: Tensor) -> "LowRank":
        """``T^{(c,g)} = Σ_r u_gr ⊗ v_gr w_gcr``: factors (G, L, r), (G, L, r) and (G, C, r),
        over the channels as well.
        """
        shapes = left.shape, right.shape, channels.shape
        if {len(shape) for shape in shapes} != {3} or shapes[0] != shapes[1] or shapes[0][::2] != shapes[2][::2]:
            raise ValueError(
                f"left {tuple(left.shape)}, right {tuple(right.shape)} and channels {tuple(channels.shape)} "
                "must have shapes (G, L, r), (G, L, r) and (G, C, r)"
            )
        weights = channels.transpose(0, 1).unsqueeze(-2)
        return cls(left * weights, right.expand(len(weights), *right.shape))

    def full(self) -> Tensor:
        """T, (C, G, L, L)."""
        return self.left @ self.right.mT

    def to(self, *args: Any, **kwargs: Any) -> "LowRank":
        """Move and convert both factors, as ``torch.Tensor.to``."""
        return check.unchecked(LowRank, left=self.left.to(*args, **kwargs), right=self.right.to(*args, **kwargs))


def validate_parameters(
    unary: Tensor,
    ternary: Tensor | LowRank,
    mask: Tensor | None,
    distances: tuple[int, ...],
    root_ternary: Tensor | None,
    memory: Tensor | None,
    memory_split: bool,
) -> None:
    """Refuse potentials that do not make a CRF; arguments as `DependencyCRF` takes them."""
    check.floating("unary", unary)
    check.at_least("unary", unary, 2, "(..., N, L)")
    if 0 in unary.shape:
        raise ValueError(f"unary {tuple(unary.shape)} has no sentences, an empty one, or no labels; leave it out")
    words = _words(unary, mask)
    seen = unary if words is None else unary.masked_fill(~words.unsqueeze(-1), 0.0)
    check.finite(unary=seen)
    rising = all(b > a for a, b in zip((1, *distances), distances, strict=False))
    if not all(isinstance(s, int) for s in distances) or not rising:
        raise ValueError(f"distances must be integers of 2 or more that rise, like (2, 3, 4), not {distances}")
    labels, groups = unary.shape[-1], 2 * (len(distances) + 1)
    if isinstance(ternary, LowRank):
        parts = {"ternary.left": ternary.left, "ternary.right": ternary.right}
        shape = (*ternary.left.shape[:3], ternary.left.shape[2])
    else:
        check.floating("ternary", ternary)
        parts, shape = {"ternary": ternary}, tuple(ternary.shape)
    if len(shape) != 4 or not shape[0] or shape[1:] != (groups, labels, labels):
        raise ValueError(
            f"ternary has shape {shape} but distances {distances} and unary {tuple(unary.shape)} need "
            f"(C, {groups}, {labels}, {labels}): 2 (len(distances) + 1) groups"
        )
    extras = {name: x for name, x in (("root_ternary", root_ternary), ("memory", memory)) if x is not None}
    for name, x in extras.items():
        check.floating(name, x)
    check.same_dtype(unary=unary, **parts, **extras)
    check.finite(**parts, **extras)
    channels = shape[0]
    _validate_extras(channels, labels, root_ternary, memory, memory_split)
    sizes = {name: x.detach().abs().amax() for name, x in {"unary": seen, **parts, **extras}.items()}
    if isinstance(ternary, LowRank):
        sizes["ternary"] = sizes.pop("ternary.left") * sizes.pop("ternary.right") * ternary.left.shape[-1]
    largest = torch.finfo(unary.dtype).max / (4 * unary.shape[-2] * (channels + 1))
    for name, size in sizes.items():  # where sums may be out of range, infinity less infinity would be NaN
        if check.violated(~(size <= largest)):
            raise ValueError(
                f"{name} is so large, up to {float(size):.3g}, that sums over the words may overflow {unary.dtype}; "
                "scale the potentials down"
            )


def _words(unary: Tensor, mask: Tensor | None) -> Tensor | None:
    """The mask at the shape of the sentences."""
    shape = unary.shape[:-1]
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape[-1:] != shape[-1:]:
        what = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"mask must be a boolean tensor {tuple(shape)}, True for a word, not {what}")
    words = mask.expand(check.broadcastable(unary=shape, mask=mask.shape))
    if words.shape != shape:
        raise ValueError(f"mask {tuple(mask.shape)} has more batch axes than unary {tuple(unary.shape)}; expand unary")
    if check.violated(~words.any(-1)):
        raise ValueError("mask leaves a sentence without words; leave empty sentences out")
    return words


def _validate_extras(channels: int, labels: int, root: Tensor | None, memory: Tensor | None, split: bool) -> None:
    if root is not None and (root.dim() != 3 or root.shape[:2] != (channels, labels) or not root.shape[2]):
        raise ValueError(
            f"root_ternary has shape {tuple(root.shape)} but must be ({channels}, {labels}, K): "
            "channels, labels of words, labels of the root"
        )
    if memory is not None and (
        memory.dim() != 3 or not 1 <= memory.shape[0] <= channels or not memory.shape[1] or memory.shape[2] != labels
    ):
        raise ValueError(
            f"memory has shape {tuple(memory.shape)} but must be (C', M, {labels}), "
            f"global nodes of the first C' of {channels} channels"
        )
    if split and memory is None:
        raise ValueError("memory_split is given without memory; give global nodes (C', M, L), or leave it out")


def known(
    potentials: Potentials, batch: torch.Size, labels: Tensor | None, heads: Tensor | None, observed: Tensor | None
) -> Potentials:
    """Return the potentials with what is known of labels (..., N), where ``observed``, and of heads (..., C, N),
    -1 where unknown.
    """
    words, count = potentials.words, potentials.unary.shape[-1]
    if labels is not None or observed is not None:
        present = words.reshape(*batch, words.shape[-1])
        labels, read = check.known_labels(labels, observed, present, count)
        potentials = potentials._replace(labels=labels.masked_fill(~read, -1).reshape(words.shape))
    if heads is not None:
        shape = (*batch, potentials.channels, words.shape[-1])
        heads = check.fitted("heads", heads, shape, own=2).reshape(len(words), *shape[-2:])
        heads = heads.masked_fill(~words.unsqueeze(-2), -1)
        allowed = potentials.allowed().split(potentials.parts, -1)[0].expand(*heads.shape, -1)
        slot = heads.clamp(0, allowed.shape[-1] - 1).unsqueeze(-1)
        wrong = (heads != -1) & ((slot.squeeze(-1) != heads) | ~allowed.gather(-1, slot).squeeze(-1))
        if check.violated(wrong):
            sentence, channel, word = wrong.nonzero()[0].tolist()
            which = [str(i) for i, ok in enumerate(allowed[sentence, channel, word].tolist()) if ok]
            said = f"it may take the slots {', '.join(which)}" if which else "it has no head to choose"
            raise ValueError(
                f"heads gives word {word} of sentence {sentence} slot {int(heads[sentence, channel, word])} in channel "
                f"{channel}, but {said}: no padding, nor the word itself; -1 says that it is not known"
            )
        potentials = potentials._replace(heads=heads)
    return potentials


def validate_choices(potentials: Potentials, batch: torch.Size, chosen: Mapping[str, Tensor | None]) -> None:
    """Refuse labels, heads, root_label and nodes outside the CRF's ranges; -1 is none."""
    words, count, channels = *potentials.unary.shape[-2:], potentials.channels
    nodes = 0 if potentials.memory is None else len(potentials.memory)
    rows = {
        "labels": ((*batch, words), count),
        "heads": ((*batch, channels, words), potentials.parts[0]),
        "root_label": (tuple(batch), 0 if potentials.root is None else potentials.root.shape[-1]),
        "nodes": ((*batch, nodes, words), potentials.parts[-1]),
    }
    lead: tuple[int, ...] | None = None
    for name, (shape, number) in rows.items():
        if (x := chosen[name]) is None:
            continue
        check.whole(name, x, shape)
        more = tuple(x.shape[: x.dim() - len(shape)])
        lead = more if lead is None else lead
        if tuple(x.shape[len(more) :]) != shape or x.dim() < len(shape) or more != lead:
            raise ValueError(f"{name} has shape {tuple(x.shape)} but must have {(*lead, *shape)}; give one a choice")
        if check.violated((x < -1) | (x >= number)):
            worst = int(x.max()) if int(x.max()) >= number else int(x.min())
            raise ValueError(f"{name} must be from 0 to {number - 1}, or -1, but one is {worst}")


def require_own(marginals: Tensor, unary: Tensor) -> None:
    """Refuse label marginals of a mean field of other sentences."""
    if marginals.shape != unary.shape:
        raise ValueError(
            f"field has label marginals {tuple(marginals.shape)} but unary is {tuple(unary.shape)}; "
            "give a mean field of this CRF"
        )


def validate_options(
    num_steps: int, tol: float | None, schedule: object, temperatures: tuple, steps: tuple, damping: tuple
) -> None:
    """Refuse options of the iteration that mean nothing."""
    if num_steps < 1 or (tol is not None and not tol > 0):
        raise ValueError(f"num_steps must be 1 or more and tol positive, not num_steps={num_steps}, tol={tol}")
    if isinstance(schedule, str) and schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)} or a callable, not {schedule!r}")
    ranges = {
        "temperature": (temperatures, lambda x: x > 0, "positive"),
        "step": (steps, lambda x: 0 < x <= 1, "more than 0 and at most 1"),
        "damping": (damping, lambda x: 0 <= x < 1, "at least 0 and less than 1"),
    }
    for what, (values, holds, said) in ranges.items():
        for name, value in zip(("label", "head"), values, strict=True):
            number = float(value.detach() if isinstance(value, Tensor) else value)
            if not holds(number):
                raise ValueError(f"{name}_{what} must be {said}, not {number}")


def require_one_sentence(sentences: torch.Size) -> None:
    """Refuse axes of sentences, which the enumerated program does not take."""
    if sentences:
        raise ValueError(f"the enumerated program takes one sentence, not batch axes {tuple(sentences)}; index one")
