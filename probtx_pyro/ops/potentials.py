"""What mean field for the dependency CRF starts from: the potentials, the slots a head may take, and how marginals follow scores.

The head of a word in a channel is one of S slots, in this order: the root (if there is one), the N words, the M global nodes. A word
is not its own head, and padding neither has heads nor is one. Sizes: B sentences, C channels, L labels, K labels of the root.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from probtx_pyro.ops.arc_groups import Groups

Factors = Sequence[Tensor]  # transposed, of some channels at a time: (c, G, r, L)
AT_ONCE = 2**18  # numbers: channels are taken together as long as their features are few enough for a core's cache


class Potentials(NamedTuple):
    """Everything that is fixed while labels and heads are inferred.

    unary: (B, N, L). words: (B, N), False for padding. left, right: from `factors`; the ternary potential is ``left right'``, and
    ``left=None`` the identity. root: (C, L, K) or None. memory: (C', M, L) or None, the global nodes of the first C' channels;
    split: whether they are a choice of their own, beside that of a head. choices, groups: see `prepared`.
    """

    unary: Tensor
    words: Tensor
    left: Factors | None
    right: Factors
    distances: tuple[int, ...] = ()
    root: Tensor | None = None
    memory: Tensor | None = None
    split: bool = False
    choices: tuple[Tensor, Tensor] | None = None
    groups: Groups | None = None

    def prepared(self) -> "Potentials":
        """With what is the same for all sweeps: ``choices``, `allowed` as log weights, see `as_bias`; and the distance ``groups``."""
        groups = Groups.of(self.distances, self.unary.to(precision(self.unary)))
        return self._replace(choices=as_bias(self.allowed(), self.unary, self.parts), groups=groups)

    @property
    def channels(self) -> int:
        """C."""
        return sum(map(len, self.right))

    @property
    def parts(self) -> list[int]:
        """Slots of each choice that a word makes in a channel."""
        heads = self.unary.shape[-2] + (self.root is not None)
        nodes = 0 if self.memory is None else self.memory.shape[-2]
        return [heads, nodes] if self.split else [heads + nodes]

    def allowed(self) -> Tensor:
        """Which slot a word may choose, (B, 1 or C, N, S)."""
        length, channels = self.unary.shape[-2], self.channels
        other = ~torch.eye(length, dtype=torch.bool, device=self.words.device)
        slots = [(self.words.unsqueeze(-1) & self.words.unsqueeze(-2) & other).unsqueeze(-3)]
        if self.root is not None:
            slots.insert(0, self.words[:, None, :, None])
        if self.memory is not None:
            has = torch.arange(channels, device=self.words.device) < self.memory.shape[0]
            slots = [x.expand(-1, channels, -1, -1) for x in slots]
            slots.append((self.words[:, None, :, None] & has[:, None, None]).expand(-1, -1, -1, self.memory.shape[1]))
        return torch.cat(slots, -1)


def precision(x: Tensor) -> torch.dtype:
    """In which matrix products are made: under autocast, its own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def factors(x: Tensor, words: int) -> Factors:
    """Factors of all channels and groups (C, G, L, r), in the parts that ``words`` words, batches together, are worked on."""
    return [some.contiguous() for some in x.mT.split(max(1, AT_ONCE // (words * x.shape[-1])))]


class Rule(NamedTuple):
    """How marginals follow their scores.

    temperature divides the scores. damping mixes in the logits before, step the probabilities before (1 is a full step).
    normalizer: like ``torch.softmax``, called with logits and the axis; -inf is a forbidden choice.
    dropout: of label logits, or of the head marginals that send messages; None is none.
    """

    temperature: float | Tensor = 1.0
    step: float = 1.0
    damping: float = 0.0
    normalizer: Callable[[Tensor, int], Tensor] = torch.softmax
    dropout: Callable[[Tensor], Tensor] | None = None

    def logits(self, scores: Tensor, before: Tensor) -> Tensor:
        """New logits."""
        one = isinstance(self.temperature, float) and self.temperature == 1
        logits = scores if one else scores / self.temperature
        return torch.lerp(logits, before, self.damping) if self.damping else logits

    def mixed(self, marginals: Tensor, before: Tensor, full: bool = False) -> Tensor:
        """New marginals after a step."""
        return marginals if full or self.step == 1 else torch.lerp(before, marginals, self.step)

    def normalized(self, logits: Tensor, bias: Tensor, some: Tensor, parts: Sequence[int] = ()) -> Tensor:
        """Marginals over the allowed slots of each part of the last axis; zero where nothing is allowed. See `as_bias`.

        What is less than the square of the rounding error becomes zero: no sum can feel it, but the products of such numbers are
        subnormal, and a CPU multiplies those ten times slower.
        """
        if len(parts) > 1:
            pieces = zip(*(x.split(list(parts), -1) for x in (logits, bias)), some.unbind(-1), strict=True)
            return torch.cat([self.normalized(x, b, a.unsqueeze(-1)) for x, b, a in pieces], -1)
        marginals = self.normalizer(logits + bias, -1)
        return F.threshold(marginals, torch.finfo(marginals.dtype).eps ** 2, 0.0) * some


def as_bias(allowed: Tensor, like: Tensor, parts: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Log weights (..., S), 0 where a slot is allowed and -inf elsewhere (0 all along where none is), and whether one is.

    The latter, (..., 1), is a number 1 or 0; with several parts of the last axis, (..., parts). Both have the dtype of ``like``.
    """
    if len(parts) > 1:
        bias, some = zip(*(as_bias(x, like) for x in allowed.split(list(parts), -1)), strict=True)
        return torch.cat(bias, -1), torch.cat(some, -1)
    one = allowed.any(-1, keepdim=True)
    return like.new_zeros(allowed.shape).masked_fill(~allowed & one, -torch.inf), one.to(like.dtype)


def relu_normalized(logits: Tensor, axis: int) -> Tensor:
    """Positive parts over their sum: the published alternative to softmax. Where no logit is positive, all are zero."""
    return F.normalize(logits.clamp(min=0.0), p=1.0, dim=axis)


__all__ = ["Factors", "Potentials", "Rule", "as_bias", "factors", "precision", "relu_normalized"]
