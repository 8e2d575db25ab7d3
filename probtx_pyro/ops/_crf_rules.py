"""Rules by which the marginals of a dependency CRF follow their scores: temperature, damping, step,
normaliser and dropout.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

ROW = 16  # a CPU takes the softmax of rows of 16 in a tenth to a quarter of the time of shorter ones


def softmax(logits: Tensor, axis: int = -1) -> Tensor:
    """Return the softmax as ``torch.softmax`` does,
    but on a CPU rows that are short are filled up to 16 numbers first.
    """
    length = logits.shape[-1]
    if axis != -1 or not 2 < length < ROW or logits.device.type != "cpu":
        return torch.softmax(logits, axis)
    return torch.softmax(F.pad(logits, (0, ROW - length), value=-torch.inf), -1)[..., :length]


class Choices(NamedTuple):
    """Which slots may be chosen, as `Rule` takes them.

    bias: (B, 1 or C, N, S), added to logits: 0 for a slot that is allowed, -inf for another; 0 throughout where none is
    allowed.
    some: (B, 1 or C, N, choices), 1 where any slot of a choice is allowed, else 0.
    largest: what marginals are multiplied by is at most this, a number or a scalar tensor.
    """

    bias: Tensor
    some: Tensor
    largest: float | Tensor = 1.0


class Rule(NamedTuple):
    """Rule by which marginals follow their scores: one for labels, one for heads.

    temperature: divides the scores, λ_Z or λ_H.
    step: share of the new marginals, the rest are those before; 1 is a full step.
    damping: share of the logits before in the new logits; 0 is none.
    normalizer: like `softmax`, called with logits and an axis; a logit of -inf is a choice that is not allowed.
    dropout: applied to label logits, or to the head marginals that send messages; None is none.
    """

    temperature: float | Tensor = 1.0
    step: float = 1.0
    damping: float = 0.0
    normalizer: Callable[[Tensor, int], Tensor] = softmax
    dropout: Callable[[Tensor], Tensor] | None = None

    def logits(self, scores: Tensor, before: Tensor) -> Tensor:
        """Scores over the temperature, damped by the logits before."""
        one = isinstance(self.temperature, float) and self.temperature == 1
        logits = scores if one else scores / self.temperature
        return torch.lerp(logits, before, self.damping) if self.damping else logits

    def marginals(
        self, logits: Tensor, before: Tensor, choices: Choices, parts: Sequence[int] = (), full: bool = False
    ) -> Tensor:
        """`normalized` logits mixed with the marginals before; ``full`` takes a full step whatever `step` is."""
        found = self.normalized(logits, choices, parts)
        return found if full or self.step == 1 else torch.lerp(before, found, self.step)

    def normalized(self, logits: Tensor, choices: Choices, parts: Sequence[int] = ()) -> Tensor:
        """Marginals over the allowed slots of each choice, whose sizes are ``parts``; zero where nothing is allowed.

        What is less than the square of the rounding error, even when it is multiplied by the largest potential, becomes
        zero: no sum can feel it, but the products of such numbers are subnormal, and a CPU multiplies those ten times
        slower.
        """
        bias, some, largest = choices
        if len(parts) > 1:
            pieces = zip(*(x.split(list(parts), -1) for x in (logits, bias)), some.split(1, -1), strict=True)
            return torch.cat([self.normalized(x, Choices(b, s, largest)) for x, b, s in pieces], -1)
        marginals = self.normalizer(logits + bias, -1)
        return marginals.masked_fill(marginals <= torch.finfo(marginals.dtype).eps ** 2 / largest, 0.0) * some

    def dropped(self, x: Tensor) -> Tensor:
        """``x`` after dropout."""
        return x if self.dropout is None else self.dropout(x)


PLAIN = Rule()
"""The rule of softmax at temperature 1 in full steps: the ELBO's own."""


def relu_normalized(logits: Tensor, axis: int) -> Tensor:
    """Positive parts over their sum: the published alternative to softmax. Where no logit is positive, all are zero.

    >>> relu_normalized(torch.tensor([1.0, 3.0, -2.0]), -1).tolist()
    [0.25, 0.75, 0.0]
    """
    parts = torch.relu(logits)
    largest = parts.amax(axis, keepdim=True).detach()
    parts = parts / torch.where(largest > 0, largest, 1.0)  # whose sum neither overflows nor underflows
    return parts / torch.where(largest > 0, parts.sum(axis, keepdim=True), 1.0)
