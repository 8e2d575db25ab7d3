"""Are ranks uniform: simultaneous bands of an empirical distribution function, exact for discrete ranks.

How many of N ranks lie below each of some edges is a Markov chain with binomial steps, so the chance that it stays
between two bounds at all edges at once is a product of small matrices; nothing is simulated. Säilynoja, Bürkner &
Vehtari 2022, *Graphical test for discrete uniformity and its applications in goodness-of-fit evaluation and multiple
sample comparison*, section 2.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom

Array = NDArray[np.floating[Any]]
EDGES = 50  # at most so many places at which the distribution function is looked at


class Band(NamedTuple):
    """Bounds that hold at all edges at once.

    edges: the share of uniform ranks below each edge, (edge,), in (0, 1). lower, upper: counts of ranks below it,
    inclusive.
    """

    edges: Array
    lower: NDArray[np.int64]
    upper: NDArray[np.int64]


def rank_edges(num_draws: int) -> NDArray[np.int64]:
    """Ranks 1..num_draws at which to look, evenly spread, at most `EDGES` of them."""
    return np.unique(np.linspace(1, num_draws, min(num_draws, EDGES)).round().astype(int))


def counts_below(ranks: ArrayLike, num_draws: int) -> NDArray[np.int64]:
    """Number of ranks (simulation, ...) below each edge, (edge, ...)."""
    array = np.asarray(ranks)
    return np.stack([(array < edge).sum(0) for edge in rank_edges(num_draws)])


def simultaneous_band(num_ranks: int, num_draws: int, level: float = 0.99) -> Band:
    """The narrowest band of pointwise central intervals that holds ``num_ranks``
    uniform ranks 0..num_draws with chance ``level``.

    Parameters
    ----------
    num_ranks, num_draws
        Simulations, and draws that each truth is ranked among.
    level
        Chance, between 0 and 1, that the band holds at all edges at once.

    Returns
    -------
    Band

    Raises
    ------
    ValueError
        ``level`` not between 0 and 1.

    Examples
    --------
    >>> band = simultaneous_band(100, 3, level=0.95)
    >>> band.edges.tolist(), band.lower.tolist(), band.upper.tolist()
    ([0.25, 0.5, 0.75], [15, 39, 65], [35, 61, 85])
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, not {level}")
    shares = rank_edges(num_draws) / (num_draws + 1)

    def bounds(tail: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return binom.ppf(tail, num_ranks, shares).astype(int), binom.isf(tail, num_ranks, shares).astype(int)

    low, high = np.log((1 - level) / (2 * len(shares)) / 4), np.log((1 - level) / 2)  # of the tail at each edge
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _stays(num_ranks, shares, *bounds(np.exp(middle))) >= level else (low, middle)
    return Band(shares, *bounds(np.exp(low)))


def uniformity(ranks: ArrayLike, num_draws: int) -> Array:
    """p-values of the hypothesis that ranks are uniform on 0..num_draws.

    The test statistic is the smallest pointwise two-sided tail over the edges; its distribution is exact.

    Parameters
    ----------
    ranks
        Whole numbers (simulation, ...).
    num_draws
        Draws that each truth was ranked among.

    Returns
    -------
    array
        (...): for each scalar by itself.

    Raises
    ------
    ValueError
        Ranks that are NaN, no whole numbers, or out of range.
    """
    given = np.asarray(ranks)
    if not ((given >= 0) & (given <= num_draws) & (given == np.floor(given))).all():
        raise ValueError(f"ranks must be integers from 0 to num_draws={num_draws}; count the draws below each truth")
    counts = counts_below(ranks, num_draws)
    num_ranks, shares = len(np.asarray(ranks)), rank_edges(num_draws) / (num_draws + 1)
    every = np.arange(num_ranks + 1)
    tails = np.stack([_tail(every, num_ranks, share) for share in shares])
    found = np.take_along_axis(tails, counts.reshape(len(shares), -1), 1).min(0)
    smallest, where = np.unique(found, return_inverse=True)
    values = []
    for level in smallest:
        inside = tails > level * (1 + 1e-12)
        first = np.where(inside.any(1), inside.argmax(1), 1)
        last = np.where(inside.any(1), num_ranks - inside[:, ::-1].argmax(1), 0)
        values.append(1 - _stays(num_ranks, shares, first, last))
    return np.asarray(values)[where].clip(0, 1).reshape(counts.shape[1:])


def _tail(counts: NDArray[np.int64], num_ranks: int, share: float) -> Array:
    """The smaller of the chances to see so few, and so many."""
    return np.minimum(binom.cdf(counts, num_ranks, share), binom.sf(counts - 1, num_ranks, share))


def _stays(num_ranks: int, shares: Array, lower: NDArray[np.int64], upper: NDArray[np.int64]) -> float:
    """The chance that the counts of uniform ranks lie in [lower, upper] at every edge."""
    if (lower > upper).any():
        return 0.0
    reached, chance, before = np.zeros(1, int), np.ones(1), 0.0
    for share, low, high in zip(shares, lower, upper, strict=True):
        now = np.arange(low, high + 1)
        step = (share - before) / (1 - before)
        chance = chance @ binom.pmf(now[None, :] - reached[:, None], num_ranks - reached[:, None], step)
        reached, before = now, share
    return float(chance.sum())
