"""Attention as nonparametric regression: matrices A (..., Q, T) whose product with the values is an answer.

===================  ============================================================================  =====================
smoother             row of A for a query q, with w = softmax of the scores                        is the answer of
===================  ============================================================================  =====================
`nadaraya_watson`    ``w_s``                                                                       a constant near q
`local_linear`       ``w_s (1 + (q - m)' (S + (λ/Z) I)⁻¹ (k_s - m))``, m, S moments of w           a line near q
`kernel_ridge`       ``K(q, ·) (K + I/β)⁻¹``                                                       a Gaussian process
`fourier_attention`  ``Π_d sin(R u_d)/u_d``, u = q - k_s, over its sum                             none: may be negative
===================  ============================================================================  =====================

Scores are logarithms of a kernel, as in attention: `gaussian_scores`, or ``scale * queries @ keys.mT``. For keys of
one length both are the same softmax, the bandwidth being ``1/√scale``. All is computed in double precision.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check

Number = Tensor | float


class KernelRidge(NamedTuple):
    """Posterior of a Gaussian process at queries.

    weights: the matrix A (..., Q, T); the mean is ``A v``. variance: of the mean answer, without the noise of a value,
    (..., Q).
    """

    weights: Tensor
    variance: Tensor


def _number(name: str, x: Number, like: Tensor, zero: bool = False) -> Tensor:
    """A positive number, or one >= 0, in double precision."""
    own = check.number(name, x, torch.float64, like.device)
    if check.violated(~((own >= 0) if zero else (own > 0))):
        raise ValueError(f"{name} must be {'>= 0' if zero else '> 0'}")
    return own


def _differences(queries: Tensor, keys: Tensor) -> Tensor:
    """``q_i - k_s``, (..., Q, T, D), in double precision."""
    for name, x, axes in (("queries", queries, "(..., Q, D)"), ("keys", keys, "(..., T, D)")):
        check.floating(name, x)
        check.at_least(name, x, 2, axes)
    check.same_size("queries", queries.shape[-1], "keys", keys.shape[-1], "features")
    return queries.double().unsqueeze(-2) - keys.double().unsqueeze(-3)


def _softmax(scores: Tensor) -> Tensor:
    """Weights of the pairs, in double precision."""
    check.floating("scores", scores)
    if check.violated((scores == -math.inf).all(-1)):
        raise ValueError("scores leave out every pair in some row; let at least one in, or drop that query")
    return scores.double().softmax(-1)


def gaussian_scores(queries: Tensor, keys: Tensor, bandwidth: Number) -> Tensor:
    """``-|q - k|² / 2h²``, the logarithm of a Gaussian kernel, (..., Q, T).

    Parameters
    ----------
    queries, keys
        (..., Q, D) and (..., T, D).
    bandwidth
        h > 0, a number, or (..., 1, 1).
    """
    width = _number("bandwidth", bandwidth, keys)
    return (-0.5 * _differences(queries, keys).square().sum(-1) / width.square()).to(keys.dtype)


def nadaraya_watson(scores: Tensor) -> Tensor:
    """Softmax attention: a constant fitted to the values by least squares with weights ``exp(scores)``, (..., Q, T).

    Parameters
    ----------
    scores
        (..., Q, T); -inf leaves a pair out.
    """
    return _softmax(scores).to(scores.dtype)


def local_linear(queries: Tensor, keys: Tensor, scores: Tensor, slope_precision: Number) -> Tensor:
    """A line fitted near every query: ``v_s ≈ a + B (k_s - q)`` by least squares with weights ``exp(scores)``; a is the
    answer.

    Parameters
    ----------
    queries, keys, scores
        (..., Q, D), (..., T, D) and (..., Q, T).
    slope_precision
        λ >= 0: rows of B have the prior ``N(0, I/λ)`` in units of the noise; a has none, so that rows of A sum to 1.
        At 0 linear functions are reproduced exactly; as it grows the answer goes to that of `nadaraya_watson`.

    Raises
    ------
    ValueError
        ``slope_precision`` 0 where the keys in reach of a query lie on fewer than D dimensions.

    Examples
    --------
    >>> keys = torch.linspace(0, 1, 5, dtype=torch.float64)[:, None]
    >>> edge, scores = keys[:1], gaussian_scores(keys[:1], keys, 0.3)
    >>> [round(float(A @ (2 * keys)), 2) for A in (nadaraya_watson(scores), local_linear(edge, keys, scores, 0.0))]
    [0.34, 0.0]

    References
    ----------
    Fan & Gijbels 1996, *Local polynomial modelling and its applications*.
    """
    ridge, off = _number("slope_precision", slope_precision, keys, zero=True), -_differences(queries, keys)
    weights = _softmax(scores)
    center = (weights.unsqueeze(-1) * off).sum(-2, keepdim=True)  # m - q
    off = off - center
    largest = math.log(torch.finfo(torch.float64).max) / 2  # farther away there is nothing but the prior
    own = ridge * (-scores.double().logsumexp(-1)).clamp_max(largest).exp()  # λ/Z
    spread = off.mT @ (weights.unsqueeze(-1) * off)
    spread = spread + own[..., None, None] * torch.eye(off.shape[-1], dtype=off.dtype, device=off.device)
    root, failed = torch.linalg.cholesky_ex(spread)
    if check.violated(failed > 0):
        raise ValueError(
            "local_linear: the keys in reach of a query do not determine a line; give slope_precision > 0, or scores "
            "that reach farther"
        )
    tilt = off @ torch.cholesky_solve(-center.mT, root)
    return (weights * (1 + tilt.squeeze(-1))).to(keys.dtype)


def _root(gram: Tensor, noise: Tensor) -> Tensor:
    """The Cholesky factor of ``K + diag(noise)``."""
    each = noise.expand(*noise.shape[:-1], gram.shape[-1]) if noise.dim() else noise.expand(gram.shape[-1])
    root, failed = torch.linalg.cholesky_ex(gram.double() + torch.diag_embed(each))
    if check.violated(failed > 0):
        raise ValueError("gram, with the noise, is not positive definite; raise noise_variance, or use another kernel")
    return root


def kernel_ridge(cross: Tensor, gram: Tensor, prior_variance: Number, noise_variance: Number) -> KernelRidge:
    """The exact posterior of a Gaussian process: where softmax attention divides a row of the kernel by its sum, this
    one whitens correlated keys.

    With ``K = φ(k)' Λ⁻¹ φ(k')`` it is the answer of a `RegressionMemory` that stands still, at the cost of T³.

    Parameters
    ----------
    cross, gram
        The kernel of queries and keys, (..., Q, T), and of keys and keys, (..., T, T).
    prior_variance
        The kernel of each query and itself, a number or (..., Q).
    noise_variance
        1/β > 0, a number or (..., T).

    Examples
    --------
    >>> keys = torch.linspace(0, 1, 5, dtype=torch.float64)[:, None]
    >>> gram = gaussian_scores(keys, keys, 0.3).exp()
    >>> answer = kernel_ridge(gram[:1], gram, 1.0, 0.01)
    >>> round(float(answer.weights @ (2 * keys)), 2), round(float(answer.variance), 4)
    (0.0, 0.0097)

    References
    ----------
    Rasmussen & Williams 2006, *Gaussian processes for machine learning*, section 2.2.
    """
    noise = _number("noise_variance", noise_variance, gram)
    prior = check.number("prior_variance", prior_variance, torch.float64, gram.device)
    root = _root(gram, noise)
    half = torch.linalg.solve_triangular(root, cross.double().mT, upper=False)
    weights = torch.linalg.solve_triangular(root.mT, half, upper=True).mT
    variance = (prior - half.square().sum(-2)).clamp_min(0.0)  # where rounding would leave it below
    return KernelRidge(weights.to(gram.dtype), variance.to(gram.dtype))


def kernel_log_evidence(gram: Tensor, values: Tensor, noise_variance: Number) -> Tensor:
    """Log density of values (..., T, M) under a Gaussian process, columns independent, (...).

    With a prior on the bandwidth added it is the log posterior of the bandwidth, up to a constant.

    Parameters
    ----------
    gram
        (..., T, T).
    values
        (..., T, M).
    noise_variance
        1/β > 0, a number or (..., T).
    """
    root = _root(gram, _number("noise_variance", noise_variance, gram))
    white = torch.linalg.solve_triangular(root, values.double(), upper=False)
    volume = root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * values.shape[-2] * math.log(2 * math.pi)
    return (-0.5 * white.square().sum((-2, -1)) - values.shape[-1] * volume).to(gram.dtype)


def fourier_attention(queries: Tensor, keys: Tensor, radius: Number) -> Tensor:
    """The Fourier-integral kernel ``Π_d sin(R (q_d - k_d)) / (q_d - k_d)``, each row divided by its sum, (..., Q, T).

    Entries may be negative: it is no posterior of an assignment, and a row whose sum is near 0 has no bound.

    Parameters
    ----------
    queries, keys
        (..., Q, D) and (..., T, D).
    radius
        R > 0: the frequencies that it keeps.

    References
    ----------
    Nguyen et al. 2022, *Transformer with Fourier integral attentions*, arXiv 2206.00206, whose layers put a function
    around every factor.
    """
    frequency = _number("radius", radius, keys)
    kernel = torch.sinc(frequency * _differences(queries, keys) / math.pi).prod(-1)  # the factor R^D cancels
    return (kernel / kernel.sum(-1, keepdim=True)).to(keys.dtype)


def leave_one_out(weights: Tensor, values: Tensor) -> Tensor:
    """Errors ``v_i - v̂_i`` of answers that leave out the pair which is asked for, without a refit, (..., T, M).

    ``(v_i - (A v)_i) / (1 - A_ii)`` is exact for every smoother of this file, because a pair that lies on the fit of
    the others does not change it. It is not where the bandwidth is chosen by the same values, nor for a causal read.

    Parameters
    ----------
    weights
        A (..., T, T), the keys as queries.
    values
        (..., T, M).

    References
    ----------
    Craven & Wahba 1979, *Smoothing noisy data with spline functions*.
    """
    check.same_size("weights", weights.shape[-2], "values", values.shape[-2], "steps")
    left = 1 - weights.double().diagonal(dim1=-2, dim2=-1)
    if check.violated(left.detach().abs() < 8 * torch.finfo(weights.dtype).eps):
        raise ValueError("weights: an answer is the value at its own key, and nothing else; take a wider kernel")
    return ((values.double() - weights.double() @ values.double()) / left.unsqueeze(-1)).to(values.dtype)
