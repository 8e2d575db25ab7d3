"""The family of maps onto the simplex that regularise an argmax: softmax, 1.5-entmax and sparsemax,
with their conjugates.

``p(z) = argmax_p p'z + H_α(p)`` for Tsallis' entropy ``H_α(p) = Σ (p - p^α) / (α (α - 1))``, Shannon's at α = 1. The
conjugate of ``-H_α`` is ``z'p(z) + H_α(p(z))``, whose gradient is ``p(z)``: log-sum-exp at α = 1. For α > 1 small
scores get exactly 0. Martins & Astudillo 2016 (sparsemax, α = 2); Peters, Niculae & Martins 2019 (1.5-entmax).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from probtx_pyro.ops._numerics import safe_softmax


def softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last axis; -inf is a mask, and a row of -inf gives zeros."""
    return safe_softmax(scores)[0]


def sparsemax(scores: Tensor) -> Tensor:
    """Return the Euclidean projection onto the simplex, over the last axis; -inf is a mask,
    and a row of -inf gives zeros.

    >>> sparsemax(torch.tensor([0.0, 0.5, 2.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    shifted, masked, ordered, number = _sorted(scores)
    threshold = (ordered.cumsum(-1) - 1) / number
    return _above(threshold, ordered > threshold, shifted).masked_fill(masked, 0.0)


def entmax15(scores: Tensor) -> Tensor:
    """Return 1.5-entmax over the last axis, by its exact threshold; -inf is a mask, and a row of -inf gives zeros.

    >>> entmax15(torch.tensor([0.0, 0.5, 4.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    shifted, masked, ordered, number = _sorted(scores / 2)
    mean = ordered.cumsum(-1) / number
    spread = (ordered.square().cumsum(-1) / number - mean.square()).clamp_min(0.0)
    inside = 1 / number - spread
    positive = inside > 0
    threshold = mean - torch.where(positive, torch.where(positive, inside, 1.0).sqrt(), 0.0)
    return _above(threshold, threshold <= ordered, shifted).square().masked_fill(masked, 0.0)


def _above(threshold: Tensor, held: Tensor, shifted: Tensor) -> Tensor:
    """Return how far scores are above the threshold of the last place that is held."""
    last = held.sum(-1, keepdim=True).clamp_min(1) - 1
    return torch.relu(shifted - threshold.gather(-1, last))  # slope 0 at the threshold, where a score is not held


def _sorted(scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scores less their maximum, the mask, these scores falling, and 1, 2, ... along the axis.

    Whatever is 1 (or, halved, 1) below the largest gets nothing, a mask or not: there -4 stands for it, whose square
    does not overflow.
    """
    masked = scores == -torch.inf
    peak = scores.amax(-1, keepdim=True).detach()
    shifted = (scores - peak.masked_fill(peak == -torch.inf, 0.0)).clamp_min(-4.0)
    number = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype, device=scores.device)
    return shifted, masked, shifted.sort(-1, descending=True).values, number


class Entmax(NamedTuple):
    """A map onto the simplex and its entropy.

    function: from scores to rows on the simplex. entropy: of such rows, (...).
    """

    function: Callable[[Tensor], Tensor]
    entropy: Callable[[Tensor], Tensor]

    def conjugate(self, scores: Tensor) -> Tensor:
        """Return ``max_p p'z + H(p)``, shape (...), -inf of a row of -inf: the counterpart of softmax's log-sum-exp."""
        p = self.function(scores)
        found = torch.where(p > 0, p * torch.where(p > 0, scores, 0.0), 0.0).sum(-1) + self.entropy(p)
        return found.masked_fill((scores == -torch.inf).all(-1), -torch.inf)


ENTMAX: dict[str, Entmax] = {
    "softmax": Entmax(softmax, lambda p: torch.special.entr(p).sum(-1)),
    "entmax15": Entmax(entmax15, lambda p: 4 / 3 * (p - p.pow(1.5)).sum(-1)),
    "sparsemax": Entmax(sparsemax, lambda p: 0.5 * (p - p.square()).sum(-1)),
}
"""Maps from scores to weights by name, each with its entropy."""
