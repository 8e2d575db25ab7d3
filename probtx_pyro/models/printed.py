"""MGK's formulas exactly as printed, to reproduce the paper (errata 9, 10, 11, 21).

The library uses none of them.
"""

import torch
from torch import Tensor

from probtx_pyro.models.gaussian_keys import GaussianKeys
from probtx_pyro.ops import safe_softmax
from probtx_pyro.ops._chunks import Reduction, largest, reduction


def _scores(model: GaussianKeys, queries: Tensor) -> Tensor:
    """``-|q_i - k_jr|²/2σ_jr²``, shape (..., Q, U, R)."""
    if model.metric is not None or model.shift is not None:
        raise ValueError("model has a metric or a shift, which the printed formulas lack; ask the model itself")
    flat = model.mixture
    precision = flat.key_precision.unsqueeze(-2) if flat.key_precision.dim() else flat.key_precision
    return (-0.5 * precision * torch.cdist(queries, flat.keys).square()).unflatten(-1, model.unit_shape)


def printed_attention(model: GaussianKeys, queries: Tensor, assignment: str | Reduction = "soft") -> Tensor:
    """MGK eq. 4 as printed, (..., Q, U): ``Σ_r π_jr exp(-|q - k_jr|²/2σ_jr²)`` over its sum,
    (σ_jr²)^{-D/2} and π_j dropped.

    ``assignment="hard"`` is the printed hard E-step, which drops π_jr as well: ``max_r exp(-|q - k_jr|²/2σ_jr²)``.
    """
    reduce, scores = reduction(assignment), _scores(model, queries)
    if reduce is not largest:
        scores = scores + model.component_log_weights().unsqueeze(-3)
    return safe_softmax(reduce(scores))[0]


def printed_responsibilities(model: GaussianKeys, queries: Tensor) -> Tensor:
    """MGK's E-step as printed, (..., Q, U, R): normalised *within* a key,
    so that every query counts fully for every key.
    """
    return safe_softmax(_scores(model, queries) + model.component_log_weights().unsqueeze(-3))[0]


def printed_m_step(model: GaussianKeys, queries: Tensor, responsibilities: Tensor) -> GaussianKeys:
    """MGK's M-step as printed: ``π_jr = N_jr/N``, ``k_jr = Σ_i γ q_i / N_jr``,
    ``σ_jr² = Σ_i γ |q_i - k_jr|² / N_jr`` (no D).

    Not validated: with responsibilities that are normalised over (j, r) the printed π_jr leave their simplex.
    """
    counts = responsibilities.sum(-3)
    flat = responsibilities.flatten(-2)
    keys = (flat.transpose(-1, -2) @ queries).unflatten(-2, model.unit_shape) / counts.unsqueeze(-1)
    squares = torch.cdist(queries, keys.flatten(-3, -2)).square()
    variance = (flat * squares).sum(-2).unflatten(-1, model.unit_shape) / counts
    return model.with_parameters(
        {"keys": keys, "key_precision": variance.reciprocal(), "component_weights": counts / queries.shape[-2]}
    )


def printed_em_step(model: GaussianKeys, queries: Tensor) -> GaussianKeys:
    """One step of MGK's EM as printed."""
    return printed_m_step(model, queries, printed_responsibilities(model, queries))


__all__ = ["printed_attention", "printed_em_step", "printed_m_step", "printed_responsibilities"]
