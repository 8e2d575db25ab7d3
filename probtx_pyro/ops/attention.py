"""The one lowering of every Gaussian form onto fused attention, and the explicit path beside it.

A member of an exponential family is linear in its sufficient statistic: ``log p(x | unit=j) = t(x)·η_j + c_j``. So the
log joint of a mixture is a matrix product of *statistics* of the queries with *parameters* of the units, plus a bias
for each unit:

=====================  ====================  ====================  =====================================================
factor                 statistic t(x)        parameter η_j         bias c_j
=====================  ====================  ====================  =====================================================
N(x; ξ_j, I/α_j)       x, -|x|²/2            α_j ξ_j, α_j          (D/2) log(α_j/2π) - (α_j/2)|ξ_j|²
the same, α shared     αx                    ξ_j                   -(α/2)|ξ_j|²  (terms equal for all units dropped)
Categorical(x; ρ_j)    onehot(x)             log ρ_j               0
=====================  ====================  ====================  =====================================================

Factors multiply by joining their statistics. An unobserved answer has statistic 0, its bias carried by a column that is
0 for it, too. `attend` gives this product to ``scaled_dot_product_attention``; `explicit_attention` builds the Q x U
matrix and also returns it with its log normaliser, which is the log evidence of the query. The same statistics,
weighted by the attention, are what an M-step needs (`probtx_pyro.ops.statistics`).

Where points lie so far apart that expanded squares would lose their digits, a Gaussian factor holds points and centers
instead of a product (`probtx_pyro.ops._factor`), and everything here computes its logits from their differences.
"""

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from probtx_pyro.ops._chunks import by_scores
from probtx_pyro.ops._factor import Factor, Squares, beside, far_apart, scores_of, squares_apart, whiten
from probtx_pyro.ops._fused import as_columns, causal_prior, fused_attention, reachable
from probtx_pyro.ops._numerics import HALF, center_of, common_shape, drop, known, safe_softmax, single, unrounded
from probtx_pyro.typing import Attention, LogPrior, Outputs, PerQuery, Values

ONE_AT_A_TIME = 2**18  # numbers in one problem's queries from which on the batch is lowered problem by problem


def gaussian_factor(
    points: Tensor,
    centers: Tensor,
    precision: Tensor,
    observed: Tensor | None = None,
    *,
    root: Tensor | None = None,
    origin: Tensor | None = None,
    expanded: bool | None = None,
) -> Factor:
    """Return ``N(points; centers, I/precision)`` with its normaliser; with a root
    ``N(points; centers, (precision LL')⁻¹)`` less ``log|L|``.

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
    root
        L of a metric, as in `Squares`.
    origin
        (..., 1, D), subtracted from both before squares are expanded; None is 0.
    expanded
        True expands them without asking `far_apart`; False has ``squares`` in any case, if only of no problem.

    Returns
    -------
    factor
        Statistics (..., Q, D + 1), one wider with ``observed``, parameters to match, bias (..., U). Problems that are
        not expanded have zeros there, and ``squares``.
    """
    points, centers, precision = map(single, (points, centers, precision))
    precision = precision.expand(common_shape(precision.shape, (centers.shape[-2],)))
    normalizer = 0.5 * points.shape[-1] * (precision.log() - math.log(2 * math.pi))
    near, around = (points, centers) if origin is None else (points - origin, centers - origin)
    apart = None if expanded else far_apart(near, around, precision, root)
    if apart is None and expanded is False:
        apart = torch.zeros(1, 1, dtype=torch.bool, device=near.device)
    squares: tuple[Squares, ...] = ()
    if apart is not None:
        seen = None if observed is None else observed.unsqueeze(-1)
        middle = centers.new_zeros(1, 1) if origin is None else origin
        squares = (squares_apart(points, centers, precision.unsqueeze(-1), root, middle, seen, apart),)
        near, around = near.masked_fill(apart, 0.0), around.masked_fill(apart, 0.0)
    points, centers = whiten(near, root), whiten(around, root)
    statistics = torch.cat([points, -0.5 * (points * points).sum(-1, keepdim=True)], -1)
    bias = normalizer - 0.5 * precision * (centers * centers).sum(-1)
    parameters = beside(precision.unsqueeze(-1) * centers, precision.unsqueeze(-1))
    return _switched(Factor(statistics, parameters, bias), observed)._replace(squares=squares)


def isotropic_factor(points: Tensor, centers: Tensor, precision: Tensor) -> Factor:
    """Return `gaussian_factor` for a precision that the units share, less what is equal for all units; always expanded.

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
    scaled = points * (precision.unsqueeze(-1) if precision.dim() else precision)
    return Factor(scaled, centers, -0.5 * precision * (centers * centers).sum(-1))


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

    Raises
    ------
    ValueError
        Labels that are no integers, or not among the K.
    """
    outside = (labels < 0) | (labels >= probs.shape[-1])
    if labels.is_floating_point() or known(outside.any(), otherwise=False):
        raise ValueError(f"labels must be integers from 0 to {probs.shape[-1] - 1}, the columns of probs")
    statistics = (labels.unsqueeze(-1) == torch.arange(probs.shape[-1], device=labels.device)).to(probs.dtype)
    parameters, never = torch.where(probs > 0, probs, 1.0).log(), (probs == 0).to(probs.dtype)
    some = known((never > 0).any(), otherwise=True)
    bias = probs.new_zeros(probs.shape[:-1])
    return _switched(Factor(statistics, parameters, bias, never=never if some else None), observed)


def _switched(factor: Factor, observed: Tensor | None) -> Factor:
    if observed is None:
        return factor
    statistics, parameters, bias, never = factor.statistics, factor.parameters, factor.bias, factor.never
    switch = observed.unsqueeze(-1).to(statistics.dtype)
    statistics = beside(torch.where(observed.unsqueeze(-1), statistics, 0.0), switch)
    never = None if never is None else beside(never, never.new_zeros(1))
    return Factor(statistics, beside(parameters, bias.unsqueeze(-1)), torch.zeros_like(bias), never=never)


def joint(first: Factor, second: Factor) -> Factor:
    """Return the product of two factors that are independent given the unit,
    such as those of a query and of its answer.

    Parameters
    ----------
    first, second
        Factors of the same Q queries and U units.

    Returns
    -------
    factor
        As wide as both together.
    """
    base = first.base if second.base is None else second.base if first.base is None else first.base + second.base
    never = None
    if first.never is not None or second.never is not None:
        never = beside(*(torch.zeros_like(x.parameters) if x.never is None else x.never for x in (first, second)))
    statistics, parameters = beside(first.statistics, second.statistics), beside(first.parameters, second.parameters)
    return Factor(statistics, parameters, first.bias + second.bias, base, first.squares + second.squares, never)


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
        scores = scores_of(factor)
    scores = scores if factor.base is None else scores + factor.base.unsqueeze(-1)
    return scores if log_prior is None else scores + log_prior


def explicit_attention(
    factor: Factor, values: Values, log_prior: LogPrior | None = None
) -> tuple[Outputs, Attention, PerQuery]:
    """Return output, attention and log-sum-exp, all differentiable twice, in O(Q x U) memory:
    the reference for `attend`.

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
    """Return ``softmax_j(log p(x_i, unit=j)) · values`` by ``scaled_dot_product_attention``, without a Q x U matrix; in
    chunks of queries where the factor has squares.

    A prior with one row becomes part of the bias of the units; one with a row for each query is an additive mask. Rows
    without an allowed unit give zeros, and units that no query may attend to may hold anything, NaN included. A query
    whose log densities overflow under all units gives NaN.

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
    if factor.squares or factor.never is not None:
        return _attend_in_chunks(factor, values, log_prior, components, causal, dropout)
    statistics, parameters, bias = factor[:3]
    del factor  # what is joined or masked below replaces its parts, which need not stay in memory
    mask, allowed, each = None, None, bias > -math.inf if components > 1 else None
    if each is not None and not torch.compiler.is_compiling() and known(each.all(), otherwise=False):
        each = None
    if log_prior is not None:
        if causal and log_prior.shape[-2] != 1:
            log_prior, causal = causal_prior(log_prior, log_prior.shape[-2], log_prior.shape[-1], log_prior), False
        allowed, present = reachable(log_prior, statistics.shape[-2], causal), (log_prior != -math.inf).any(-2)
        values = torch.where(present.unsqueeze(-1), values, 0.0)
        here = present.repeat_interleave(components, -1)
        each = here if each is None else each & here
        if log_prior.shape[-2] == 1:
            bias = bias + log_prior.squeeze(-2).masked_fill(~present, 0.0).repeat_interleave(components, -1)
        else:
            mask = log_prior.masked_fill(~allowed, 0.0)
    if each is not None:
        parameters, bias = torch.where(each.unsqueeze(-1), parameters, 0.0), torch.where(each, bias, 0.0)
        bias = torch.where(each, bias, _below(statistics, parameters, bias))
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


@torch.no_grad()
def _below(statistics: Tensor, parameters: Tensor, bias: Tensor) -> Tensor:
    """Return a bias at which a unit has weight 0 exactly: 10,000 nats below all logits, by Cauchy and Schwarz.

    It takes the place of -inf in a product, whose gradient would be NaN (0 times -inf), so far as the dtype has such a
    number.
    """
    largest = [x.norm(dim=-1).amax() if x.numel() else x.new_zeros(()) for x in (statistics, parameters)]
    low = -1e4 - 2 * (largest[0] * largest[1] + bias.abs().amax() if bias.numel() else bias.new_zeros(()))
    return low.to(bias.dtype).clamp_min(torch.finfo(bias.dtype).min)


def _attend_in_chunks(
    factor: Factor, values: Tensor, log_prior: Tensor | None, components: int, causal: bool, dropout: float
) -> Tensor:
    """Return `attend` of a factor whose logits are no product, some queries at a time,
    recomputed in the backward pass.
    """
    if causal:
        log_prior = causal_prior(log_prior, factor.statistics.shape[-2], values.shape[-2], factor.bias)
    each = factor.bias > -math.inf
    if log_prior is not None:
        present = (log_prior > -math.inf).any(-2)
        values = torch.where(present.unsqueeze(-1), values, 0.0)
        log_prior, each = log_prior.repeat_interleave(components, -1), each & present.repeat_interleave(components, -1)
    log_prior = torch.where(
        each.unsqueeze(-2), factor.bias.new_zeros(()) if log_prior is None else log_prior, -math.inf
    )
    kept = (x._replace(centers=torch.where(each.unsqueeze(-1), x.centers, 0.0)) for x in factor.squares)
    parameters, bias = torch.where(each.unsqueeze(-1), factor.parameters, 0.0), torch.where(each, factor.bias, 0.0)
    factor = factor._replace(parameters=parameters, bias=bias, squares=tuple(kept))
    empty = (log_prior == -math.inf).all(-1, keepdim=True)

    def pooled(scores: Tensor, values: Tensor) -> Tensor:
        weights, evidence = safe_softmax(scores)
        weights = drop(weights.unflatten(-1, (-1, components)).sum(-1), dropout).to(values.dtype)
        return beside(weights @ values, evidence.detach().unsqueeze(-1).to(values.dtype))

    found = by_scores(pooled, factor, log_prior, values)
    return torch.where((found[..., -1:] == -math.inf) & ~empty, math.nan, found[..., :-1])


def require_reached(log_evidence: Tensor) -> None:
    """Refuse queries whose log density overflows under every unit, so that no attention is known.

    Raises
    ------
    ValueError
        Naming the dtype and the repair.
    """
    if known((log_evidence == -math.inf).any(), otherwise=False):
        raise ValueError(
            f"queries: some lie so far from every unit that their log densities overflow {log_evidence.dtype}, "
            "or have an answer that no unit gives, and there is no attention; drop those with log_evidence -inf, "
            "or divide queries and keys by their scale"
        )


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


def gaussian_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    precision: Tensor,
    log_prior: LogPrior | None = None,
    key_weights: Tensor | None = None,
    components: int = 1,
    root: Tensor | None = None,
) -> Outputs:
    """Return expected values under the posterior over units, ``Σ_j p(unit=j | q_i) values_j``,
    by the lowering and `attend`.

    Queries and keys are centred on the mean key first. Without gradients, on a CPU, large problems are lowered one at a
    time and some thousands of queries at a time, so that the lowered copies stay small beside the output.

    Parameters
    ----------
    queries
        (..., Q, D).
    keys
        (..., U·R, D).
    values
        (..., U, M).
    precision
        Scalar or (..., U·R or 1).
    log_prior
        (..., Q or 1, U); None is 0.
    key_weights
        (..., U·R): log weights of a unit's keys; None is 0.
    components
        R, the keys of a unit.
    root
        Of the metric, as in `key_factor`.

    Returns
    -------
    outputs
        (..., Q, M).
    """
    row = precision.unsqueeze(-2) if precision.dim() else precision
    weights = None if key_weights is None else key_weights.unsqueeze(-2)
    tensors: list[Any] = [queries, keys, values, row, log_prior, weights, root]

    def lowered(q: Tensor, k: Tensor, v: Tensor, row: Tensor, prior: Any, weights: Any, root: Any) -> Tensor:
        factor = key_factor(q, k, row.squeeze(-2) if row.dim() else row, root)
        if weights is not None:
            factor = factor._replace(bias=factor.bias + weights.squeeze(-2))
        return attend(factor, v, prior, components=components)

    given = [x for x in tensors if x is not None]
    num_queries, features = queries.shape[-2:]
    # a GPU has the memory, and is idle between small calls
    at_once = num_queries * features < ONE_AT_A_TIME or not queries.is_cpu
    if at_once or (torch.is_grad_enabled() and any(x.requires_grad for x in given)):
        return lowered(*tensors)
    batch = common_shape(*(x.shape[:-2] for x in given))
    output, size = values.new_empty(*batch, num_queries, values.shape[-1]), max(1, ONE_AT_A_TIME // features)
    each = [x.expand(*batch, *x.shape[-2:]) if x is not None and x.dim() else x for x in tensors]
    for index in itertools.product(*map(range, batch)):
        q, k, v, row, prior, weights, root = (x[index] if x is not None and x.dim() else x for x in each)
        for start in range(0, num_queries, size):
            part = slice(start, start + size)
            rows = prior if prior is None or len(prior) == 1 else prior[part]
            output[index][part] = lowered(q[part], k, v, row, rows, weights, root)
    return output


def key_factor(queries: Tensor, keys: Tensor, precision: Tensor, root: Tensor | None = None) -> Factor:
    """Return the narrowest factor under which attention is exact, centred on the mean key:
    D wide where the units share a precision.

    Parameters
    ----------
    queries
        (..., Q, D).
    keys
        (..., U, D).
    precision
        Scalar or (..., U or 1).
    root
        L of a metric ``L L'`` that the units share: lower triangular (..., D, D), or (..., 1, D) of a diagonal one.
        None is the identity.

    Returns
    -------
    factor
        An `isotropic_factor` or a `gaussian_factor`, less what is equal for all units.
    """
    center = center_of(keys)
    flat = root if root is None or root.shape[-2] == 1 else root.flatten(-2).unsqueeze(-2)
    shared = precision.dim() == 0 or precision.shape[-1] == 1
    near, around = queries - center, keys - center
    if far_apart(near, around, precision, flat) is not None:
        bias = keys.new_zeros(()) if shared else 0.5 * keys.shape[-1] * precision.log()
        precision = precision.expand(common_shape(precision.shape, keys.shape[-2:-1])).unsqueeze(-1)
        far = squares_apart(single(queries), single(keys), single(precision), flat, single(center))
        return Factor(
            far.points[..., :0], far.centers[..., :0], single(bias).expand(precision.shape[:-1]), squares=(far,)
        )
    if root is None and not shared and queries.dtype in HALF:
        return _half_factor(near, around, precision)
    if not shared:
        return gaussian_factor(near, around, precision, root=flat, expanded=True)
    if root is None:
        return isotropic_factor(near, around, precision)
    whitened = whiten(single(around), flat)
    plain = isotropic_factor(near, whitened, precision)
    back = root.mT if root.shape[-2] > 1 else root
    return plain._replace(parameters=whitened @ back if root.shape[-2] > 1 else whitened * back)  # the queries stay


def _half_factor(queries: Tensor, keys: Tensor, precision: Tensor) -> Factor:
    """Return `gaussian_factor` in numbers that half precision holds, for precisions that differ.

    Products ``α_j k_j`` are rounded before they are squared, so that what is added up is the square of a difference
    from a key that is off by its last bit. The product of ``|q|²`` and ``α``, which cancels against it, keeps twice the
    bits in three columns.
    """
    dtype, (queries, keys, precision) = queries.dtype, map(single, (queries, keys, precision))
    precision = precision.expand(common_shape(precision.shape, (keys.shape[-2],)))
    scaled = (precision.unsqueeze(-1) * keys).to(dtype).to(keys.dtype)
    bias = 0.5 * keys.shape[-1] * precision.log() - 0.5 * scaled.square().sum(-1) / precision
    square = as_columns(-0.5 * queries.square().sum(-1), dtype)[..., [0, 0, 1]]
    strength = as_columns(precision, dtype)[..., [0, 1, 0]]
    return Factor(beside(queries, square), beside(scaled, strength), bias)
