"""The one lowering of every Gaussian form onto fused attention, and the explicit path beside it.

A member of an exponential family is linear in its sufficient statistic: ``log p(x | unit=j) = t(x)·η_j + c_j``. So the log
joint of a mixture is a matrix product of *statistics* of the queries with *parameters* of the units, plus a bias for each unit:

=====================  ====================  ====================  =====================================================
factor                 statistic t(x)        parameter η_j         bias c_j
=====================  ====================  ====================  =====================================================
N(x; ξ_j, I/α_j)       x, -|x|²/2            α_j ξ_j, α_j          (D/2) log(α_j/2π) - (α_j/2)|ξ_j|²
the same, α shared     αx                    ξ_j                   -(α/2)|ξ_j|²  (terms equal for all units dropped)
Categorical(x; ρ_j)    onehot(x)             log ρ_j               0
=====================  ====================  ====================  =====================================================

Factors multiply by joining their statistics. An unobserved answer has statistic 0, its bias carried by a column that is
0 for it, too. `attend` gives this product to ``scaled_dot_product_attention``; `explicit_attention` builds the Q x U matrix
and also returns it with its log normaliser, which is the log evidence of the query. The same statistics, weighted by the
attention, are what an M-step needs (`probtx_pyro.ops.statistics`).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from probtx_pyro.ops._fused import as_columns, causal_prior, fused_attention, reachable
from probtx_pyro.ops._numerics import HALF, common_shape, safe_log, safe_softmax, single, unrounded
from probtx_pyro.typing import Attention, LogPrior, Outputs, PerQuery, PerUnit, QueryStatistics, UnitParameters, Values

MASKED_COLUMN = -1e30  # stands for log 0 inside a product, where -inf times a zero gradient would be NaN


class Factor(NamedTuple):
    """``log p(x_i | unit=j) = statistics_i · parameters_j + bias_j + base_i`` (up to a constant of the query where that is said).

    ``base`` is the log base measure of the query, which attention does not see; None is 0.

    Half-precision inputs are held in float32 here; `attend` rounds statistics and parameters, as the inputs were rounded,
    and keeps the bias, a large number that cancels, to 24 bits.
    """

    statistics: QueryStatistics
    parameters: UnitParameters
    bias: PerUnit
    base: PerQuery | None = None


def gaussian_factor(points: Tensor, centers: Tensor, precision: Tensor, observed: Tensor | None = None) -> Factor:
    """Return ``N(points; centers, I/precision)`` with its normaliser.

    Parameters
    ----------
    points
        (..., Q, D).
    centers
        (..., U, D).
    precision
        Scalar or (..., U or 1).
    observed
        (..., Q); the factor is 1 where it is False. None observes every point.

    Returns
    -------
    factor
        Statistics (..., Q, D + 1), one wider with ``observed``, parameters to match, bias (..., U).
    """
    points, centers, precision = map(single, (points, centers, precision))
    precision = precision.expand(common_shape(precision.shape, (centers.shape[-2],)))
    statistics = gaussian_statistics(points)
    square = (centers * centers).sum(-1)
    bias = 0.5 * points.shape[-1] * (precision.log() - math.log(2 * math.pi)) - 0.5 * precision * square
    parameters = beside(precision.unsqueeze(-1) * centers, precision.unsqueeze(-1))
    return _switched(Factor(statistics, parameters, bias), observed)


def gaussian_statistics(points: Tensor, precision: Tensor | None = None) -> Tensor:
    """Return ``x, -|x|²/2``: the sufficient statistic of `gaussian_factor` for points (..., Q, D), whatever the precision; (..., Q, D + 1)."""
    return torch.cat([points, -0.5 * (points * points).sum(-1, keepdim=True)], -1)


def isotropic_statistics(points: Tensor, precision: Tensor) -> Tensor:
    """Return ``αx``: the statistic of `isotropic_factor`; (..., Q, D)."""
    return points * (precision.unsqueeze(-1) if precision.dim() else precision)


def isotropic_factor(points: Tensor, centers: Tensor, precision: Tensor) -> Factor:
    """Return `gaussian_factor` for a precision that the units share, less what is equal for all units.

    Attention under it is the same; it is D wide instead of D + 1, and its log-sum-exp is not an evidence.

    Parameters
    ----------
    points
        (..., Q, D).
    centers
        (..., U, D).
    precision
        Scalar or (..., 1).

    Returns
    -------
    factor
        Statistics (..., Q, D), parameters (..., U, D), bias (..., U).
    """
    points, centers, precision = map(single, (points, centers, precision))
    return Factor(isotropic_statistics(points, precision), centers, -0.5 * precision * (centers * centers).sum(-1))


def categorical_factor(labels: Tensor, probs: Tensor, observed: Tensor | None = None) -> Factor:
    """Return ``Categorical(labels; probs)``.

    Parameters
    ----------
    labels
        (..., Q), integers.
    probs
        (..., U, K), rows on the simplex.
    observed
        (..., Q); the factor is 1 where it is False. None observes every label.

    Returns
    -------
    factor
        Statistics (..., Q, K), one wider with ``observed``, parameters to match, bias (..., U).
    """
    statistics = one_hot(labels, probs.shape[-1]).to(probs.dtype)
    parameters = safe_log(probs).clamp_min(MASKED_COLUMN)
    return _switched(Factor(statistics, parameters, probs.new_zeros(probs.shape[:-1])), observed)


def _switched(factor: Factor, observed: Tensor | None) -> Factor:
    if observed is None:
        return factor
    statistics, parameters, bias, _ = factor
    switch = observed.unsqueeze(-1).to(statistics.dtype)
    statistics = beside(torch.where(observed.unsqueeze(-1), statistics, 0.0), switch)
    return Factor(statistics, beside(parameters, bias.unsqueeze(-1)), torch.zeros_like(bias))


def beside(left: Tensor, right: Tensor) -> Tensor:
    """Return (..., A) and (..., B), whose leading axes broadcast, as (..., A + B)."""
    shape = common_shape(left.shape[:-1], right.shape[:-1])
    return torch.cat([left.expand(*shape, left.shape[-1]), right.expand(*shape, right.shape[-1])], -1)


def joint(first: Factor, second: Factor) -> Factor:
    """Return the product of two factors that are independent given the unit, such as those of a query and of its answer.

    Parameters
    ----------
    first, second
        Factors of the same Q queries and U units.

    Returns
    -------
    factor
        As wide as both together.
    """
    return Factor(
        beside(first.statistics, second.statistics),
        beside(first.parameters, second.parameters),
        first.bias + second.bias,
        first.base if second.base is None else second.base if first.base is None else first.base + second.base,
    )


def log_joint(factor: Factor, log_prior: LogPrior | None = None) -> Attention:
    """Return ``log p(x_i, unit=j)``: the matrix whose softmax is attention and whose log-sum-exp is evidence.

    Parameters
    ----------
    factor
        Of Q queries and U units.
    log_prior
        (..., Q or 1, U); None is 0.

    Returns
    -------
    log_joint
        (..., Q, U).
    """
    with unrounded(factor.bias.device):
        scores = factor.statistics @ factor.parameters.transpose(-1, -2) + factor.bias.unsqueeze(-2)
    scores = scores if factor.base is None else scores + factor.base.unsqueeze(-1)
    return scores if log_prior is None else scores + log_prior


def explicit_attention(
    factor: Factor, values: Values, log_prior: LogPrior | None = None
) -> tuple[Outputs, Attention, PerQuery]:
    """Return output, attention and log-sum-exp, all differentiable twice, in O(Q x U) memory: the reference for `attend`.

    Parameters
    ----------
    factor
        Of Q queries and U units.
    values
        (..., U, M).
    log_prior
        (..., Q or 1, U); None is 0.

    Returns
    -------
    outputs, attention, log_evidence
        (..., Q, M), (..., Q, U) and (..., Q).
    """
    weights, lse = safe_softmax(log_joint(factor, log_prior))
    return weights @ values, weights, lse


def attend(
    factor: Factor,
    values: Values,
    log_prior: LogPrior | None = None,
    *,
    components: int = 1,
    causal: bool = False,
    dropout: float = 0.0,
) -> Outputs:
    """Return ``softmax_j(log p(x_i, unit=j)) · values`` by ``scaled_dot_product_attention``, without a Q x U matrix.

    A prior with one row becomes part of the bias of the units; one with a row for each query is an additive mask. Rows
    without an allowed unit give zeros, and units that no query may attend to may hold anything, NaN included.

    Parameters
    ----------
    factor
        Of Q queries and U units.
    values
        (..., U, M).
    log_prior
        (..., Q or 1, U); None is 0.
    components
        R: the factor has U·R keys, keys jR to jR + R - 1 being those of unit j.
    causal
        Let query i see the units j <= i only.
    dropout
        Probability that an entry of the attention is dropped; on a CPU it costs the whole matrix.

    Returns
    -------
    outputs
        (..., Q, M).
    """
    statistics, parameters, bias, _ = factor
    del factor  # what is joined or masked below replaces its parts, which need not stay in memory
    mask, allowed = None, None
    if log_prior is not None:
        if causal and log_prior.shape[-2] != 1:
            log_prior, causal = causal_prior(log_prior, log_prior.shape[-2], log_prior.shape[-1], log_prior), False
        allowed, present = reachable(log_prior, statistics.shape[-2], causal), (log_prior != -math.inf).any(-2)
        values = torch.where(present.unsqueeze(-1), values, 0.0)
        each = present.repeat_interleave(components, -1)
        parameters = torch.where(each.unsqueeze(-1), parameters, 0.0)
        if log_prior.shape[-2] == 1:
            bias = torch.where(each, bias + log_prior.squeeze(-2).repeat_interleave(components, -1), MASKED_COLUMN)
        else:
            bias = torch.where(each, bias, 0.0)
            mask = log_prior.masked_fill(~allowed, 0.0)
    training = torch.is_grad_enabled() and any(x.requires_grad for x in (statistics, parameters, bias, values))
    if values.dtype in HALF:
        statistics, parameters = statistics.to(values.dtype), parameters.to(values.dtype)
    used, needed = max(statistics.shape[-1], values.shape[-1]), max(statistics.shape[-1] + 1, values.shape[-1])
    if training or mask is not None or causal or components > 1 or bias.is_cuda or -(-used // 16) == -(-needed // 16):
        # as columns: no Q x U gradient; the flash kernels, which take no mask; room left in a width of 16 numbers
        columns = as_columns(bias, values.dtype)
        parameters = beside(parameters, columns)
        statistics = beside(statistics, statistics.new_ones(columns.shape[-1]))
    else:  # a mask expanded with stride 0 costs no memory
        mask = bias.unsqueeze(-2)
    output = fused_attention(statistics, parameters, values, mask, components, causal, dropout)
    return output if allowed is None else torch.where(allowed, output, 0.0)


def dot_product_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    log_prior: Tensor | None = None,
    *,
    components: int = 1,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Return ``softmax(queries · keys' + log_prior) · values``: `attend` without a bias, the linked limit (PT eq. 20).

    Parameters
    ----------
    queries, keys, values
        (..., Q, D), (..., U·R, D) and (..., U, M).
    log_prior, components, causal, dropout
        As in `attend`.

    Returns
    -------
    outputs
        (..., Q, M).
    """
    if values.dtype in HALF:
        queries, keys = queries.to(values.dtype), keys.to(values.dtype)
    if log_prior is None:
        return fused_attention(queries, keys, values, None, components, causal, dropout)
    unbiased = Factor(queries, keys, keys.new_zeros(keys.shape[:-1]))
    return attend(unbiased, values, log_prior, components=components, causal=causal, dropout=dropout)
