"""What a Hopfield memory stores, and how well: separation, the retrieval error and its bound, metastable states.

Reference: Ramsauer et al. 2021, arXiv 2008.02217, Definitions 1 and 2, Theorem 5.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from probtx_pyro.ops.retrieval import by_chunks

if TYPE_CHECKING:
    from probtx_pyro.models.hopfield.memory import Hopfield


class FixedPoints(NamedTuple):
    """Where each pattern ends when retrieval starts from itself.

    state: the fixed point, (..., N, D).
    error: its distance from the pattern, (..., N); a pattern is stored where this is small.
    num_patterns: how many patterns the fixed point averages, see `effective_patterns`; (..., N). 1 is a pattern by itself, more
        is a metastable state, N the average of all.
    converged: whether the fixed point was reached, (..., N).
    """

    state: Tensor
    error: Tensor
    num_patterns: Tensor
    converged: Tensor


def separation(memory: "Hopfield") -> Tensor:
    """``Δ_n = x_n'x_n - max_{m≠n} x_n'x_m``, (..., N): patterns with β Δ_n large are fixed points and retrieved in one step."""
    products = memory.patterns @ memory.patterns.mT
    mask = memory.log_mask()
    other = products.masked_fill(_itself(products), -torch.inf)
    other = other if mask is None else other + mask
    return products.diagonal(dim1=-2, dim2=-1) - other.amax(-1)


def retrieval_error_bound(memory: "Hopfield", distance: Tensor | float = 0.0) -> Tensor:
    """How far from pattern n one step may end, ``|f(s) - x_n|``, from any state within ``distance`` of it: (..., N).

    There every other pattern scores less than pattern n by at least ``m = β (Δ_n - 2 M distance)``, M the largest norm. So the
    others get at most what they get when all are m behind, and each is at most 2M away. For softmax the bound is
    ``2M (N-1) / (N - 1 + exp(m))``; sparse retrieval is exact, bound 0, from m = 1 (sparsemax) or m = 2 (entmax15) on.

    Parameters
    ----------
    distance
        A number, or one for each pattern (..., N).

    Notes
    -----
    Theorem 5 prints ``2M (N-1) exp(-m)``, which is larger, and in m the larger of the distances of the state and of the fixed point
    from the pattern; the proof of one step needs no fixed point. A pattern that is not stored has no bound: infinity.

    Raises
    ------
    ValueError
        A distance that is negative or not finite.
    """
    distance = torch.as_tensor(distance, dtype=memory.patterns.dtype, device=memory.patterns.device)
    if not ((distance >= 0) & distance.isfinite()).all():
        raise ValueError("distance must be finite and at least 0; it is that of a state from a pattern")
    norm = memory.patterns.norm(dim=-1)
    norm = norm if memory.mask is None else norm.where(memory.mask, 0.0)
    largest = norm.amax(-1, keepdim=True)
    lead = memory.beta * (memory.separation() - 2 * largest * distance)
    number = memory.patterns.shape[-2]
    scores = (-lead).unsqueeze(-1).expand(*lead.shape, number)
    itself, mask = _itself(scores), memory.log_mask()
    scores = scores.masked_fill(itself, 0.0)
    scores = scores if mask is None else scores + mask
    bound = 2 * largest * memory.pooling.function(scores).masked_fill(itself, 0.0).sum(-1)
    return bound if memory.mask is None else bound.where(memory.mask, torch.inf)


def effective_patterns(memory: "Hopfield", state: Tensor) -> Tensor:
    """How many patterns a state retrieves, the exponential of the entropy of its attention: 1 to N, (..., Q)."""

    def entropy(scores: Tensor) -> Tensor:
        return torch.special.entr(memory.pooling.function(scores)).sum(-1, keepdim=True)

    return by_chunks(entropy, memory.scaled(state), memory.patterns, memory.log_mask()).squeeze(-1).exp()


def fixed_points(memory: "Hopfield", num_steps: int = 1000, tol: float = 1e-6) -> FixedPoints:
    """Retrieval from every pattern, until it stays: which patterns are stored, alone or in a metastable state with others.

    ``num_steps`` and ``tol`` as in `fixed_point`. Where patterns share a metastable state they end in the same point.
    """
    found = memory.settle(memory.patterns, num_steps, tol)
    error = (found.state - memory.patterns).norm(dim=-1)
    return FixedPoints(found.state, error, effective_patterns(memory, found.state), found.converged)


def _itself(square: Tensor) -> Tensor:
    return torch.eye(square.shape[-1], dtype=torch.bool, device=square.device)


__all__ = ["FixedPoints", "effective_patterns", "fixed_points", "retrieval_error_bound", "separation"]
