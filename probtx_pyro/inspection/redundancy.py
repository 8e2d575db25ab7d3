"""Redundancy of attention matrices: the ranks they use, how far apart heads are, how many keys a query attends to.

Arrays in, arrays out; leading axes (layer, batch, head, ...) are kept. Rows of attention are on the simplex, or 0 for a
query that may attend to nothing.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.floating]
Distance = Callable[[Array, Array], Array]


def rank_spectrum(attention: ArrayLike) -> Array:
    """Singular values over the largest, from 1 downwards; all 0 for a matrix of zeros.

    Shapes: (..., Q, U) -> (..., min(Q, U)).

    >>> rank_spectrum([[0.5, 0.5], [0.5, 0.5]]).round(8).tolist()
    [1.0, 0.0]
    """
    values = np.linalg.svd(_rows(attention), compute_uv=False)
    largest = values[..., :1]
    return np.divide(values, largest, out=np.zeros_like(values), where=largest > 0)


def attention_rank(attention: ArrayLike, share: float = 0.9) -> NDArray[np.int64]:
    """Number of singular values that hold ``share`` of the sum of squares, ``|A|²_F``.

    The rank of the nearest matrix (in the Frobenius norm) that leaves no more than ``1 - share`` of it unexplained: the
    "cumulative energy" of principal components. The plain rank says little of attention: every causal matrix without
    zeros on its diagonal has full rank.

    Shapes: (..., Q, U) -> (...).

    Raises
    ------
    ValueError
        ``share`` not in (0, 1], or rows off the simplex.

    Examples
    --------
    >>> int(attention_rank(np.eye(10))), int(attention_rank(np.eye(10), share=1.0))
    (9, 10)
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, not {share}")
    held = np.cumsum(rank_spectrum(attention) ** 2, -1)
    wanted = share * held[..., -1:]
    rounding = held.shape[-1] * np.finfo(held.dtype).eps
    short = held < wanted * (1 - rounding)
    return np.where(held[..., -1] > 0, short.sum(-1) + 1, 0)


def effective_rank(attention: ArrayLike) -> Array:
    """``exp`` of the entropy of the singular values, normalised to sum to 1; from 1 (or 0, of zeros) to min(Q, U).

    Unlike a count it has no threshold. Roy & Vetterli 2007, *The effective rank*, EUSIPCO.

    Shapes: (..., Q, U) -> (...).
    """
    spectrum = rank_spectrum(attention)
    return _perplexity(spectrum / np.maximum(spectrum.sum(-1, keepdims=True), 1))


def effective_keys(attention: ArrayLike) -> Array:
    """``exp`` of the entropy of each row: over how many units a query spreads; 1 to U,
    or 0 if it may attend to nothing.

    Shapes: (..., Q, U) -> (..., Q).

    >>> effective_keys([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]).round(8).tolist()
    [1.0, 2.0, 0.0]
    """
    return _perplexity(_rows(attention))


def jensen_shannon(p: Array, q: Array) -> Array:
    """Square root of the Jensen-Shannon divergence in bits: a metric, 0 for equal rows,
    1 for rows without a common unit.

    Shapes: (..., U) and (..., U) -> (...). Endres & Schindelin 2003, *A new metric for probability distributions*.
    """
    middle = (p + q) / 2
    divergence = _entropy(middle) - (_entropy(p) + _entropy(q)) / 2
    return np.sqrt(np.maximum(divergence, 0) / np.log(2))


def head_distances(attention: ArrayLike, distance: Distance = jensen_shannon) -> Array:
    """Distance of each pair of heads: the mean over queries of that between their rows of attention.

    Parameters
    ----------
    attention
        (..., H, Q, U). Queries that may attend to nothing in one of two heads are left out of the mean (0 if all are).
    distance
        Between rows, (..., U) and (..., U) -> (...), symmetric; for the L2 distance
        ``lambda p, q: np.linalg.norm(p - q, axis=-1)``.

    Returns
    -------
    array
        (..., H, H), symmetric, with a diagonal of 0.

    Raises
    ------
    ValueError
        No axis of heads, or rows off the simplex.

    Examples
    --------
    >>> head_distances([[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 1.0]]]).tolist()
    [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    rows = _rows(attention, "(..., head, query, unit)", 3)
    heads, alive = rows.shape[-3], rows.sum(-1) > 0
    found = np.zeros((*rows.shape[:-3], heads, heads), rows.dtype)
    for head in range(heads - 1):  # against all that follow: the rows of all pairs at once would not fit
        one, others = rows[..., head : head + 1, :, :], rows[..., head + 1 :, :, :]
        counted = alive[..., head : head + 1, :] & alive[..., head + 1 :, :]
        total = np.where(counted, distance(one, others), 0).sum(-1)
        found[..., head, head + 1 :] = total / np.maximum(counted.sum(-1), 1)
    return found + found.swapaxes(-1, -2)


def _entropy(p: Array) -> Array:
    """``-Σ p log p`` in nats, with 0 log 0 = 0."""
    return -(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(-1)


def _perplexity(p: Array) -> Array:
    """``exp`` of the entropy of rows on the simplex; 0 for rows of zeros."""
    return np.where(p.any(-1), np.exp(_entropy(p)), 0)


def _rows(attention: ArrayLike, shape: str = "(..., query, unit)", rank: int = 2) -> Array:
    """Attention in double or single precision, validated;
    single and half precision are held to the sums they can have.
    """
    given = np.asarray(attention)
    eps = np.finfo(given.dtype).eps if np.issubdtype(given.dtype, np.floating) else np.finfo(np.float64).eps
    rows: Array = given.astype(np.float32 if given.dtype in (np.float16, np.float32) else np.float64)
    if rows.ndim < rank or 0 in rows.shape[-rank:]:
        raise ValueError(f"attention must have shape {shape} but has shape {rows.shape}; add what is missing")
    if not np.isfinite(rows).all():
        raise ValueError("attention contains NaN or infinity; mask units with -inf before the softmax, not after it")
    total = rows.sum(-1)
    if (rows < 0).any() or (np.minimum(np.abs(total - 1), np.abs(total)) > 16 * max(rows.shape[-1], 8) * eps).any():
        raise ValueError("attention must have non-negative rows that sum to 1, or to 0 without units; normalise them")
    return rows
