"""Linear attention over mixtures of keys in O(N): features are mixed over the components first,
then summed over the units.

``h_i = φ(q_i)'Σ_j w_j Σ_r π_jr φ(k_jr) v_j' / φ(q_i)'Σ_j w_j Σ_r π_jr
φ(k_jr)`` (MLK) needs one mixed feature vector for each unit, ``ψ_j = w_j Σ_r π_jr
φ(k_jr)``, and then the two sums ``Σ_j ψ_j v_j'`` and ``Σ_j ψ_j``. `explicit_linear_attention` is the definition with
its Q x U matrix; `linear_attention` computes the same without it, for a causal mask by running sums.

The ratio is invariant to a factor of the query's features, and that is used: each query's largest feature becomes 1. In
the full form features of keys trade scale with those of queries, too. Not in the causal form, where a scale common to
all units would let later ones move earlier answers. What remains: a product of features below the smallest normal
number (in float32 with elu + 1: from a key at -87, coordinates against a query's largest feature) counts as 0, and a
query whose products all do gives 0, as one whose units are all masked.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from probtx_pyro.ops._numerics import exporting, single
from probtx_pyro.typing import (
    Attention,
    ComponentKeys,
    ComponentWeights,
    Outputs,
    PerUnit,
    Queries,
    QueryBasis,
    UnitBasis,
    Values,
)

CHUNK = 128  # positions between which the causal form keeps its running sums
CHUNKS = 16  # chunks worked on together, so that what lies between two matrix products stays in the cache
PIECE = CHUNK * CHUNKS  # rows whose features are made at a time, for the same reason
FeatureMap = Callable[[Tensor], Tensor]


def elu_plus_one(x: Tensor) -> Tensor:
    """``exp(x)`` below 0 and ``x + 1`` from there on: positive where ``elu(x) + 1`` has rounded to 0.

    >>> elu_plus_one(torch.tensor([-20.0, 0.0, 2.0])), torch.nn.functional.elu(torch.tensor(-20.0)) + 1
    (tensor([2.0612e-09, 1.0000e+00, 3.0000e+00]), tensor(0.))
    """
    above = torch.relu(x)  # its slope at 0 is 0 in every version of torch, that of a clamp is not
    return (x - above).exp_() + above


def query_features(queries: Queries, feature_map: FeatureMap | None = None) -> QueryBasis:
    """Return ``φ(q_i)`` up to a factor for each query.

    A query that is negative throughout is moved up to 0 before the default map, where φ is the exponential: a factor.

    Parameters
    ----------
    queries
        (..., Q, D).
    feature_map
        From (..., D) to features (..., F) that are not negative; None is `elu_plus_one`.

    Returns
    -------
    features
        (..., Q, F).
    """
    queries = single(queries)
    if feature_map is not None:
        return feature_map(queries)
    return _joined([elu_plus_one(x - x.detach().amax(-1, keepdim=True).clamp_max(0)) for x in _pieces(queries)])


def unit_features(
    keys: ComponentKeys,
    component_weights: ComponentWeights | None = None,
    unit_weights: PerUnit | None = None,
    feature_map: FeatureMap | None = None,
) -> UnitBasis:
    """Return ``ψ_j = w_j Σ_r π_jr φ(k_jr)``.

    A unit of weight 0 has features 0 whatever its keys hold, NaN included.

    Parameters
    ----------
    keys
        (..., U, R, D).
    component_weights
        π, (..., U or 1, R); None is uniform.
    unit_weights
        w, (..., U); None is 1.
    feature_map
        As in `query_features`.

    Returns
    -------
    features
        (..., U, F).
    """
    keys = single(keys)
    if unit_weights is not None:
        keys = torch.where((unit_weights == 0)[..., None, None], 0.0, keys)
    parts = [(feature_map or elu_plus_one)(x) for x in _pieces(keys, -3)]
    if component_weights is None:
        mixed = _joined([features.mean(-2) for features in parts])
    else:
        shares = component_weights.to(parts[0].dtype).expand(*component_weights.shape[:-2], keys.shape[-3], -1)
        each = zip(_pieces(shares.unsqueeze(-1), -3), parts, strict=True)
        mixed = _joined([(weights * features).sum(-2) for weights, features in each])
    return mixed if unit_weights is None else mixed * unit_weights.to(mixed.dtype).unsqueeze(-1)


def linear_attention(queries: QueryBasis, units: UnitBasis, values: Values, causal: bool = False) -> Outputs:
    """Return ``Σ_j (φ_i·ψ_j) values_j / Σ_j φ_i·ψ_j`` in O(Q + U) time and memory, its gradient too;
    sums in float32 at least.

    Values are finite, those of absent units, too; a query without a positive product gives 0, with zero gradients.

    Parameters
    ----------
    queries
        φ, (..., Q, F), from `query_features`.
    units
        ψ, (..., U, F), from `unit_features`.
    values
        (..., U, M).
    causal
        Let query i see the units up to i only; then Q = U.

    Returns
    -------
    outputs
        (..., Q, M), in the dtype of the values.

    Raises
    ------
    ValueError
        ``causal`` with more or fewer units than queries.
    """
    dtype, queries, units, values = values.dtype, *map(single, (queries, units, values))
    if causal:
        if queries.shape[-2] != units.shape[-2]:
            raise ValueError(f"causal needs as many units as queries, not {units.shape[-2]} for {queries.shape[-2]}")
        numerator, total = _running_sums(_largest_one(queries), units, values)
    else:
        queries, units = _balanced(queries, units)
        numerator = queries @ (units.transpose(-1, -2) @ values)
        total = queries @ units.sum(-2).unsqueeze(-1)
    return _divided(numerator, total).to(dtype)


def explicit_linear_attention(
    queries: QueryBasis, units: UnitBasis, values: Values, causal: bool = False, row_weights: Attention | None = None
) -> tuple[Outputs, Attention]:
    """Return output and weights by the definition, with its Q x U matrix.

    Parameters
    ----------
    queries, units, values, causal
        As in `linear_attention`.
    row_weights
        (..., Q, U), not negative; they multiply the products of features before these are normalised. None is 1.

    Returns
    -------
    outputs, weights
        (..., Q, M) and (..., Q, U); rows of the weights sum to 1, or to 0 where nobody can be attended to.
    """
    dtype, queries, units, values = values.dtype, *map(single, (queries, units, values))
    queries, units = (_largest_one(queries), units) if causal else _balanced(queries, units)
    products = queries @ units.transpose(-1, -2)
    products = products.tril() if causal else products
    products = products if row_weights is None else products * row_weights
    weights = _divided(products, products.sum(-1, keepdim=True))
    return (weights @ values).to(dtype), weights.to(dtype)


def _pieces(x: Tensor, axis: int = -2) -> tuple[Tensor, ...]:
    """Cut into pieces of `PIECE` rows; not for a compiler, which would fix their number."""
    return (x,) if torch.compiler.is_compiling() else x.split(PIECE, axis)


def _joined(pieces: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """Join pieces along the rows."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -2)


def _largest_one(features: Tensor) -> Tensor:
    """Divide features by the largest of each row, a factor that the ratio does not see."""
    return features / _positive(_largest(features, -1))


def _balanced(queries: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
    """Move the largest of each feature over the units to the queries, and divide these by their own largest."""
    scale = _largest(units, -2)
    largest = _positive(_largest(scale, -1))
    return _largest_one(_largest_one(queries) * (scale / largest)), units / _positive(scale)


def _largest(features: Tensor, axis: int) -> Tensor:
    """Return the largest of features along an axis, held constant; 0 where there are none."""
    reduce = torch.amax if features.shape[axis] else torch.sum
    return reduce(features.detach(), axis, keepdim=True)


def _positive(scale: Tensor) -> Tensor:
    return torch.where(scale > 0, scale, 1.0)


def _divided(numerator: Tensor, total: Tensor) -> Tensor:
    """Return the ratio, and 0 where the total is so small that its reciprocal, which the gradient needs,
    would overflow.
    """
    limits = torch.finfo(total.dtype)
    none = total <= limits.tiny / limits.eps
    return numerator * torch.where(none, 0.0, torch.where(none, 1.0, total).reciprocal())


def _running_sums(queries: Tensor, units: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``Σ_{j<=i} (φ_i·ψ_j) values_j`` and ``Σ_{j<=i} φ_i·ψ_j``, block after block of chunks,
    with the sums so far.
    """
    numerators, totals = [], []
    products: Tensor | None = None
    features: Tensor | None = None
    for block in zip(*map(_pieces, (queries, units, values)), strict=True):
        rows = block[0].shape[-2]
        size = CHUNK if torch.compiler.is_compiling() else max(1, min(CHUNK, rows))
        q, k, v = (_chunks(x, size) for x in block)
        products = _cumsum(k.mT @ v, -3, products)
        features = _cumsum(k.sum(-2), -2, features)
        inside = (q @ k.mT).tril_()  # the units of the query's own chunk
        numerator = (inside @ v).add_(q @ products[..., :-1, :, :])
        total = inside.sum(-1, keepdim=True).add_(q @ features[..., :-1, :].unsqueeze(-1))
        numerators.append(_first(numerator.flatten(-3, -2), rows))
        totals.append(_first(total.flatten(-3, -2), rows))
    return _joined(numerators), _joined(totals)


def _chunks(x: Tensor, size: int) -> Tensor:
    """Split (..., N, X) into (..., N / size, size, X), the last ones filled with zeros."""
    rows = x.shape[-2]
    spare = size if exporting() or not rows else 0  # a program exported with one chunk would always have one
    number = (rows + spare + size - 1) // size
    return pad(x, (0, 0, 0, number * size - rows)).unflatten(-2, (number, size))


def _first(x: Tensor, rows: int) -> Tensor:
    """Return the first rows; by their numbers where a length is exported,
    of which a slice would ask what cannot be proved.
    """
    return x.index_select(-2, torch.arange(rows, device=x.device)) if exporting() else x[..., :rows, :]


def _cumsum(x: Tensor, dim: int, before: Tensor | None) -> Tensor:
    """Return the running sums on from the last of those ``before`` (None is 0), which comes first:
    one more than ``x`` has along ``dim``.
    """
    first = torch.zeros_like(x.narrow(dim, 0, 1)) if before is None else before.narrow(dim, -1, 1)
    return torch.cat([first, x], dim).cumsum(dim)
