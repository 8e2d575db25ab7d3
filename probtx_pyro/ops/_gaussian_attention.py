"""Attention of Gaussian keys: the narrowest lowering, with or without a metric, and large problems some at a time."""

import itertools
from typing import Any

import torch
from torch import Tensor

from probtx_pyro.ops._factor import Factor, beside, far_apart, squares_apart, whiten
from probtx_pyro.ops._fused import as_columns
from probtx_pyro.ops._numerics import HALF, center_of, common_shape, single
from probtx_pyro.ops.attention import attend, gaussian_factor, isotropic_factor
from probtx_pyro.typing import LogPrior, Outputs

ONE_AT_A_TIME = 2**18  # numbers in one problem's queries from which on the batch is lowered problem by problem


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
