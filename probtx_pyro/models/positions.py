"""Position as a prior over units: where a unit stands relative to the query, before its key has been seen.

Each function returns the ``log_prior`` that `GaussianMixture`, `GaussianKeys` and their ``linked`` forms take: rows on
the simplex, -inf is a mask. With d = i - j, i the position of the query and j that of the unit:

===================================  =================================  ====================================================
prior                                ``π_ij`` is proportional to        combined with the linked prior it is
===================================  =================================  ====================================================
`uniform_log_prior`                  1                                  softmax attention, causal or in a sliding window
`laplace_log_prior`                  ``exp(-rate |d|)``                 attention with linear biases (ALiBi)
`generalized_gaussian_log_prior`     ``exp(-(|d| / scale)^power)``      2: with the position as one more coordinate of the
                                                                        keys; infinite: a sliding window
`stick_breaking_log_prior`           ``b_ij Π (1 - b_ik)``, k nearer    (keys without evidence:) stick-breaking attention
===================================  =================================  ====================================================

======  =============  =======================  ==========================================================================
symbol  name           shape                    support
======  =============  =======================  ==========================================================================
d       ``offsets``    (..., Q, U)              real; made by `offsets`, in the dtype of the prior
·       ``rate``       (...)                    >= 0, one over positions; 0 is uniform
·       ``scale``      (...)                    > 0, in positions
·       ``power``      (...)                    > 0; 1 is Laplace with rate 1/scale, 2 Gaussian
b_ij    ``fractions``  broadcast (..., Q, U)    [0, 1]: how much unit j takes of what units nearer to i have left
π_ij    the result     (..., Q, U)              log of rows on the simplex
======  =============  =======================  ==========================================================================

The leading axes of ``rate``, ``scale`` and ``power``, heads say, are those of the result. ``causal`` hides the units
after the query (j > i), ``window`` those with ``|i - j| >= window``, so that a causal window of w shows the query's own
and the w - 1 before it.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from probtx_pyro.models import _validation as check
from probtx_pyro.ops import safe_log


def offsets(
    units: int | Tensor,
    queries: int | Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """``i - j`` for every query and unit, (..., Q, U): positive for a unit that comes before the query.

    Parameters
    ----------
    units
        Their positions (..., U), or how many there are, at 0, 1, 2, ...
    queries
        Their positions (..., Q), or how many there are: the last so many units, as in decoding. None: every unit asks.
    dtype, device
        Of the result; without dtype, that of real positions, else the default one. Half precision counts to 256 or
        2048: convert the prior rather than the offsets.

    Raises
    ------
    ValueError
        No units, more queries than units where both are counts, something that is neither a count nor a tensor.

    Examples
    --------
    >>> offsets(3).tolist()
    [[0.0, -1.0, -2.0], [1.0, 0.0, -1.0], [2.0, 1.0, 0.0]]
    >>> offsets(3, queries=1).tolist()
    [[2.0, 1.0, 0.0]]
    """
    places = _places("units", units, device)
    if queries is None:
        asked = places
    elif isinstance(queries, int):
        if not 1 <= queries <= places.shape[-1]:
            raise ValueError(f"queries must be from 1 to the number of units, {places.shape[-1]}, not {queries}")
        asked = places[..., -queries:]
    else:
        asked = _places("queries", queries, device)
    found = asked.unsqueeze(-1) - places.unsqueeze(-2)
    return found.to(dtype or (found.dtype if found.is_floating_point() else torch.get_default_dtype()))


def _places(name: str, given: int | Tensor, device: torch.device | str | None) -> Tensor:
    if isinstance(given, int) and given > 0:
        return torch.arange(given, device=device)
    if not isinstance(given, Tensor) or not given.dim() or not given.shape[-1]:
        raise ValueError(f"{name} must be a count of 1 or more, or a tensor of positions (..., n), not {given!r}")
    return given if device is None else given.to(device)


def uniform_log_prior(offsets: Tensor, *, causal: bool = False, window: float | None = None) -> Tensor:
    """The same for every unit that the query may see, (..., Q, U).

    >>> uniform_log_prior(offsets(3), causal=True).exp()
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    """
    return laplace_log_prior(offsets, 0.0, causal=causal, window=window)


def laplace_log_prior(
    offsets: Tensor, rate: Tensor | float, *, causal: bool = False, window: float | None = None
) -> Tensor:
    """``log π_ij = -rate |i - j| + const``, (..., Q, U): the index of the unit is Laplace around that of the query.

    Parameters
    ----------
    offsets, rate, causal, window
        As in the tables above; ``rate=alibi_slopes(H)`` with the linked prior is attention with linear biases.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, NaN or infinity, a negative rate, a query that may see no unit.

    References
    ----------
    Press, Smith & Lewis 2022, *Train Short, Test Long: Attention with Linear Biases*, arXiv 2108.12409.

    Examples
    --------
    >>> laplace_log_prior(offsets(3), math.log(2.0)).exp()[0].mul(7).round().tolist()
    [4.0, 2.0, 1.0]
    """
    (rate,) = _parameters(offsets, rate=rate)
    if check.is_validation_enabled() and (rate < 0).any():
        raise ValueError("rate must be >= 0; it is an inverse distance, and 0 the uniform prior")
    return _normalized(-rate * offsets.abs(), _visible(offsets, causal, window))


def alibi_slopes(
    num_heads: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Tensor:
    """The published rates of `laplace_log_prior` for H heads, (H,): ``2^(-8h/H)``, h = 1..H, where H is a power of two.

    Otherwise, as published, those of the largest power of two below H, then every other one of twice as many heads.

    >>> alibi_slopes(4).tolist(), alibi_slopes(3).tolist()
    ([0.25, 0.0625, 0.015625, 0.00390625], [0.0625, 0.00390625, 0.25])
    """
    if num_heads < 1:
        raise ValueError(f"num_heads must be 1 or more, not {num_heads}")
    power = 2 ** (num_heads.bit_length() - 1)
    exponents = [8 * h / power for h in range(1, power + 1)]
    exponents += [4 * h / power for h in range(1, 2 * (num_heads - power), 2)]
    return torch.tensor([2.0**-x for x in exponents], dtype=dtype, device=device)


def generalized_gaussian_log_prior(
    offsets: Tensor,
    scale: Tensor | float,
    power: Tensor | float,
    *,
    causal: bool = False,
    window: float | None = None,
) -> Tensor:
    """``log π_ij = -(|i - j| / scale)^power + const``, (..., Q, U).

    With growing power all units nearer than the scale become equal and those beyond it vanish; a unit at exactly the
    scale keeps 1/e of a nearer one's weight at every power.

    Parameters
    ----------
    offsets, scale, power, causal, window
        As in the tables above.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, NaN or infinity, a scale or power that is not positive, a query whose every
        unit is hidden, or so far that its weight is no number.

    References
    ----------
    Nadarajah 2005, *A generalized normal distribution*, Journal of Applied Statistics 32(7).

    Examples
    --------
    >>> generalized_gaussian_log_prior(offsets(4), 2.5, 1000.0).exp()[0].mul(3).round().tolist()
    [1.0, 1.0, 1.0, 0.0]
    """
    scale, power = _parameters(offsets, scale=scale, power=power)
    if check.is_validation_enabled() and ((scale <= 0).any() or (power <= 0).any()):
        raise ValueError("scale and power must be > 0; for the uniform prior use uniform_log_prior")
    away = offsets != 0
    exponent = power * (torch.where(away, offsets.abs(), 1.0).log() - scale.log())
    visible = _visible(offsets, causal, window) & ~(away & (exponent > math.log(torch.finfo(offsets.dtype).max) - 1))
    return _normalized(-torch.where(away & visible, exponent, -math.inf).exp(), visible)


def stick_breaking_log_prior(
    offsets: Tensor, fractions: Tensor | float, *, causal: bool = True, window: float | None = None
) -> Tensor:
    """``π_ij = b_ij Π_{k nearer} (1 - b_ik)``, (..., Q, U): each unit takes its fraction of what nearer ones have left.

    The farthest unit that the query may see takes all that is left, whatever its fraction, so that rows sum to 1
    (published attention gives that part to nobody). One constant fraction b is a geometric law: causal Laplace with
    rate ``-log(1 - b)`` and, with probability ``(1 - b)^n``, n the number of units that the query may see, the farthest
    of them instead.

    Parameters
    ----------
    offsets, causal, window
        As in the tables above. The walk goes backwards from the query; not causal, outwards, of two units equally near
        the one with the lower index first.
    fractions
        A number, (U,), or (..., Q, U), which may depend on the query; 0 takes nothing, 1 takes all.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, NaN or infinity, fractions outside [0, 1], a query that may see no unit.

    References
    ----------
    Tan et al. 2025, *Scaling Stick-Breaking Attention*, arXiv 2410.17980; Ishwaran & James 2001, *Gibbs
    Sampling Methods for Stick-Breaking Priors*, for a last unit that takes the rest.

    Examples
    --------
    >>> stick_breaking_log_prior(offsets(4), 0.5).exp()[-1].tolist()
    [0.125, 0.125, 0.25, 0.5]
    """
    fractions = _number("fractions", fractions, offsets)
    if check.is_validation_enabled() and ((fractions < 0).any() or (fractions > 1).any()):
        raise ValueError("fractions must lie in [0, 1]; make them with a sigmoid")
    shape = check.broadcastable(offsets=offsets.shape, fractions=fractions.shape)
    check.same_size("offsets", offsets.shape[-1], "fractions", shape[-1], "units")
    visible = _visible(offsets, causal, window)
    _refuse_blind(visible)
    nearest = offsets.abs().masked_fill(~visible, math.inf).argsort(dim=-1, stable=True).expand(shape)
    last = visible.sum(-1, keepdim=True) - 1
    taken = fractions.expand(shape).gather(-1, nearest)
    taken = torch.where(torch.arange(shape[-1], device=taken.device) >= last, 1.0, taken)
    whole = taken == 1
    passed_on = taken.masked_fill(whole, 0.0).neg().log1p().masked_fill(whole, -math.inf)
    left = pad(passed_on[..., :-1].cumsum(-1), (1, 0))
    return torch.empty_like(taken).scatter(-1, nearest, safe_log(taken) + left)


def _parameters(offsets: Tensor, **given: Tensor | float) -> list[Tensor]:
    """Numbers or tensors (...) as tensors (..., 1, 1) that broadcast with the offsets."""
    found = {name: _number(name, x, offsets) for name, x in given.items()}
    check.broadcastable(offsets=offsets.shape[:-2], **{name: x.shape for name, x in found.items()})
    return [x[..., None, None] for x in found.values()]


def _number(name: str, x: Tensor | float, offsets: Tensor) -> Tensor:
    check.floating("offsets", offsets)
    check.at_least("offsets", offsets, 2, "(..., Q, U)")
    x = x if isinstance(x, Tensor) else check.number(name, x, offsets.dtype, offsets.device)
    check.same_dtype(**{"offsets": offsets, name: x})
    check.finite(**{"offsets": offsets, name: x})
    return x


def _visible(offsets: Tensor, causal: bool, window: float | None) -> Tensor:
    """The units that each query may see, boolean (..., Q, U): at the query or before it, and nearer than the window."""
    visible = offsets >= 0 if causal else torch.ones_like(offsets, dtype=torch.bool)
    return visible if window is None else visible & (offsets.abs() < window)


def _normalized(log_weights: Tensor, visible: Tensor) -> Tensor:
    """Log weights as rows on the simplex of the visible units."""
    _refuse_blind(visible)
    return log_weights.masked_fill(~visible, -math.inf).log_softmax(-1)


def _refuse_blind(visible: Tensor) -> None:
    if check.is_validation_enabled() and not visible.any(-1).all():
        raise ValueError("a query may see no unit; widen the window or the scale, or give the query a unit it may see")
