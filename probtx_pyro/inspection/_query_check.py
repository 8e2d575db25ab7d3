"""Do the queries of a trained transformer look like draws from a mixture whose posterior is its attention?

A posterior predictive check, head by head. The mixture says ``p(q_i) = Σ_j π_ij N(q_i; ξ_j, P⁻¹)``, query by query
independently given the keys (a causal mask gives every query a prior of its own). Queries are drawn from it again and
again, and test statistics of the real ones are compared with those of the replicates. Gelman, Meng & Stern 1996,
*Posterior predictive assessment of model fitness via realized discrepancies*.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pyro import poutine
from torch import Tensor

from probtx_pyro._brief import in_brief
from probtx_pyro.inspection._captured import Captured, Coords, stack_layers
from probtx_pyro.inspection.redundancy import Array
from probtx_pyro.ops._progress import progress_bar

Statistic = Callable[[Captured], Tensor]


def squared_norm(one: Captured) -> Tensor:
    """``|q_i|²``, (..., Q)."""
    return one.queries.square().sum(-1)


def nearest_key(one: Captured) -> Tensor:
    """Distance of each query, in the mixture's metric, to the nearest key that it may attend to, (..., Q);
    infinite where there is none.
    """
    distances = torch.cdist(*one.placed(), compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distances.masked_fill(one.mixture.log_weights() == -torch.inf, torch.inf).amin(-1)
    return nearest.reshape(one.queries.shape[:-1])


def principal_coordinate(one: Captured) -> Tensor:
    """Coordinate of each query along the direction in which the mixture's keys vary most, from their mean, (..., Q)."""
    queries, keys = one.placed()
    center = keys.mean(-2, keepdim=True)
    direction = torch.linalg.eigh((keys - center).mT @ (keys - center))[1][..., -1:]
    return ((queries - center) @ direction).reshape(one.queries.shape[:-1])


QUERY_STATISTICS: Mapping[str, Statistic] = {
    "log evidence": Captured.log_evidence,
    "squared norm": squared_norm,
    "nearest key": nearest_key,
    "entropy": Captured.entropy,
    "principal coordinate": principal_coordinate,
}
"""Statistics of a set of queries that `query_check` compares with those of simulated queries, by name."""


class QueryCheck(NamedTuple):
    """Real queries against replicates; T statistics, S draws, ``heads`` the leading axes that are not pooled.

    statistics: their names, T.
    observed: mean of each statistic over the queries of a head, (T, *heads).
    replicated: the same mean of each replicate, (T, S, *heads).
    p_values: two-sided, ``2 min(P(replicated <= observed), P(replicated >= observed))``, at least 2/(S + 1); uniform on
        its steps where a mixture that was not fitted to these queries is true, (T, *heads).
    z_scores: ``(observed - mean of replicated) / sd of replicated``, (T, *heads): goes on where p-values end.
    pit: rank of each single query among its own replicates, in (0, 1), ties broken at random; uniform where such a
        mixture is true, NaN for a query that does not count, (T, ..., Q).
    discrepancy: the largest |z| over the statistics, (*heads).
    ranking: indices of the heads, the worst first, (number of heads, number of head axes).
    dims: names of the head axes.
    coords: labels of dimensions, such as the names of the layers.
    """

    statistics: tuple[str, ...]
    observed: Array
    replicated: Array
    p_values: Array
    z_scores: Array
    pit: Array
    discrepancy: Array
    ranking: NDArray[np.int64]
    dims: tuple[str, ...]
    coords: Coords

    def __repr__(self) -> str:
        return in_brief(self)


def query_check(
    captured: Captured | Mapping[str, Captured],
    *,
    num_draws: int,
    seed: int,
    statistics: Mapping[str, Statistic] | None = None,
    progress: bool | None = None,
) -> QueryCheck:
    """Compare the real queries of every head with draws from the mixture whose posterior is its attention.

    The mixture is the best equivalent of what was captured (`best_equivalent`, scalar metric), the one chosen of a
    `BestEquivalent` or by ``captured.equivalent(...)``, or, asked for by name, the one that the layer's weights write:
    ``query_check(captured.raw, ...)``.

    Parameters
    ----------
    captured
        One `Captured`, or what `inspection.capture` returned, if its layers have one shape. Axes named ``batch`` are
        pooled.
    num_draws
        Replicates, S; the smallest p-value possible is 2/(S + 1).
    seed
        Of the replicates and of the ties; the random state is restored afterwards.
    statistics
        Functions of a `Captured` that give one number a query, (..., Q); None are `QUERY_STATISTICS`. Extend them with
        ``{**inspection.QUERY_STATISTICS, "first coordinate": lambda one: one.queries[..., 0]}``.
    progress
        True shows a bar, False none; None shows one on a terminal after a second.

    Returns
    -------
    QueryCheck

    Raises
    ------
    ValueError
        ``num_draws`` below 1, no statistic or one of another shape, a head without a query that counts, or with too few
        for the best equivalent; an attention that is the posterior of no density.

    Notes
    -----
    With many heads and statistics some p-values are small by chance: 0.05 divided by their number is a safe level for
    all.

    The best equivalent is fitted to the queries that are checked: it matches their mean and mean square, so "squared
    norm" passes, and the other p-values are the larger for it. Where that matters, fit it to other queries of the head:
    ``best = best_equivalent(others); query_check(captured.equivalent(best.tilt, best.precision), ...)``.

    Examples
    --------
    >>> from probtx_pyro.data.text_transformer import load
    >>> from probtx_pyro.inspection import captured
    >>> heads = load().heads("The for statement is used to iterate over the elements of a sequence")
    >>> future = torch.full((68, 68), -torch.inf).triu(1)
    >>> real = captured(heads.queries, heads.keys, heads.values, future, dims=("layer", "head"))
    >>> as_written = query_check(real.raw, num_draws=99, seed=0)
    >>> as_written.p_values.shape, bool((as_written.p_values[0] == 0.02).all())
    ((5, 2, 4), True)
    >>> best = query_check(real, num_draws=99, seed=0)
    >>> bool((best.discrepancy < as_written.discrepancy).all())
    True
    """
    one = captured if isinstance(captured, Captured) else stack_layers(captured)
    statistics = QUERY_STATISTICS if statistics is None else statistics
    if num_draws < 1 or not statistics:
        raise ValueError(f"num_draws must be 1 or more and statistics not empty, not {num_draws} and {len(statistics)}")
    present = one.present.cpu().numpy()
    pooled = (*(i - present.ndim for i, name in enumerate(one.dims) if name.startswith("batch")), -1)  # and the queries
    counted = present.sum(pooled)
    if (counted == 0).any():
        raise ValueError("captured has a head without a query that counts; leave it out")

    def evaluated(of: Captured) -> Array:
        every = []
        for name, statistic in statistics.items():
            values = statistic(of).detach().cpu().numpy()
            if values.shape != present.shape:
                raise ValueError(f"statistics: {name!r} gave shape {values.shape}, queries have {present.shape}")
            every.append(np.where(present, values, 0.0))
        return np.stack(every)

    def means(values: Array) -> Array:
        return values.sum(pooled) / counted

    one = replace(one, chosen=one.mixture)  # that of the real queries, for the replicates too
    real = evaluated(one)
    below, equal = np.zeros(real.shape), np.zeros(real.shape)
    replicates = []
    with poutine.seed(rng_seed=seed), torch.no_grad():
        for _ in progress_bar(range(num_draws), label="replicates", progress=progress):
            values = evaluated(one.replicate())
            below += values < real
            equal += values == real
            replicates.append(means(values))
    ties = np.random.default_rng(seed).uniform(size=real.shape)
    pit = np.where(present, (below + ties * (equal + 1)) / (num_draws + 1), np.nan)
    observed, replicated = means(real), np.stack(replicates, 1)
    center, spread = replicated.mean(1), replicated.std(1)
    low = (1 + (replicated <= observed[:, None]).sum(1)) / (num_draws + 1)
    high = (1 + (replicated >= observed[:, None]).sum(1)) / (num_draws + 1)
    off = observed - center
    z_scores = np.divide(off, spread, out=np.where(off == 0, 0.0, np.copysign(np.inf, off)), where=spread > 0)
    discrepancy = np.abs(z_scores).max(0)
    order = np.argsort(-discrepancy, axis=None, kind="stable")
    heads = tuple(name for name in one.dims if not name.startswith("batch"))
    p_values, ranking = np.minimum(1.0, 2 * np.minimum(low, high)), np.argwhere(np.ones_like(discrepancy))[order]
    found = observed, replicated, p_values, z_scores, pit, discrepancy, ranking
    return QueryCheck(tuple(statistics), *found, heads, {name: x for name, x in one.coords.items() if name in heads})
