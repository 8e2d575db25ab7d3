"""Pictures of a posterior: credible bands on attention and on answers, and the calibration of its sampler."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style
from probtx_pyro.plots._given import Result
from probtx_pyro.plots.attention import attention_map
from probtx_pyro.results._ecdf import counts_below


def attention_band(
    attention: "ArrayLike | Result",
    units: Sequence | None = None,
    prob: float = 0.9,
    reference: "ArrayLike | None" = None,
    ax: Axes | None = None,
    *,
    query: object = None,
) -> Axes:
    """Show how sure a query's attention is: mean and central credible interval of its weight on each unit.

    Parameters
    ----------
    attention
        (chain, draw, unit), such as ``data["posterior"]["attention"].sel(query="cat")``; or ArviZ data, with ``query``.
    units
        Names of the units; of labelled arrays their coordinate if None.
    prob
        Of the interval, between equal tails.
    reference
        (unit,) weights to compare with, such as those of the point estimate; drawn as crosses.
    ax
        Axes to draw on; a new figure if None.
    query
        Label of the query to choose where ``attention`` has several.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Another shape, NaN or infinity, a query that is not there, ``prob`` off the unit interval, or names that do not
        count the units.
    """
    if not 0 < prob < 1:
        raise ValueError(f"prob must be between 0 and 1, not {prob}")
    found = _given.field(attention, "attention", "posterior", "attention")
    found = found if query is None else _given.entry("query", found, {"query": query})
    draws = _draws(found, "unit")
    units = _given.labels_of(found, -1) if units is None else units
    low, high = np.quantile(draws, [(1 - prob) / 2, (1 + prob) / 2], 0)
    mean, at = draws.mean(0), np.arange(draws.shape[1])
    names = _given.names("units", units, len(at), "units", range(len(at)))
    ax = _style.axes(ax)
    ax.vlines(at, low, high, color=_style.UNIT_COLORS[0], linewidth=5, alpha=0.35, label=f"{prob:.0%} interval")
    ax.plot(at, mean, "o", color=_style.UNIT_COLORS[0], markersize=5, label="posterior mean")
    if reference is not None:
        ax.plot(at, _given.numbers("reference", reference, "(unit,)"), "x", color=_style.INK, label="point estimate")
    _style.ticks(ax, [], names)
    return _style.finished(ax, "unit", "attention", True, ylim=(-0.02, 1.02), xlim=(-0.6, len(at) - 0.4))


def attention_uncertainty(
    attention: "ArrayLike | Result", queries: Sequence | None = None, units: Sequence | None = None
) -> np.ndarray:
    """Show the mean of the attention matrix and, beside it, its posterior standard deviation.

    Parameters
    ----------
    attention
        (chain, draw, query, unit), or ArviZ data with that variable in the posterior.
    queries, units
        Names of rows and columns; of labelled arrays their coordinates if None.

    Returns
    -------
    array
        The two axes, of a new figure.

    Raises
    ------
    ValueError
        Another shape, NaN or infinity, or names that do not count rows or columns.
    """
    found = _given.field(attention, "attention", "posterior", "attention")
    draws = _draws(found, "query, unit")
    queries = _given.labels_of(found, -2) if queries is None else queries
    units = _given.labels_of(found, -1) if units is None else units
    figure, pair = pyplot.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
    shown = {"posterior mean": draws.mean(0), "posterior standard deviation": draws.std(0)}
    for ax, (title, values) in zip(pair, shown.items(), strict=True):
        attention_map(values, queries, units, ax=ax).set_title(title, fontsize=10)
    figure.axes[-1].set_ylabel("standard deviation")  # of the colour bar
    return pair


def _draws(x: ArrayLike, axes: str) -> np.ndarray:
    """Put the draws of all chains in one axis, (draw, ...)."""
    array = _given.numbers("attention", x, f"(chain, draw, {axes})")
    return array.reshape(-1, *array.shape[2:])


def calibration(found: Result, level: float = 0.99, ax: Axes | None = None) -> Axes:
    """Show whether ranks are uniform: their distribution function minus its expectation,
    and the band for all lines at once.

    There is a line for every quantity, with the colour and the dashes of its parameter. Lines that leave the band are
    drawn thick.

    Parameters
    ----------
    found
        Ranks of the truths: the result of `results.calibrate`.
    level
        Of the band, for all lines together.
    ax
        Axes to draw on; a new figure if None.

    Returns
    -------
    Axes
    """
    band = found.band(level)
    count, ax = found.num_simulations, _style.axes(ax, 5.2, 3.6)
    bounds = (bound / count - band.edges for bound in (band.lower, band.upper))
    ax.fill_between(band.edges, *bounds, label=f"{level:.0%} for all together", color="#999999", alpha=0.3, linewidth=0)
    for i, (name, ranks) in enumerate(found.ranks.items()):
        below = counts_below(ranks.reshape(len(ranks), -1), found.num_draws)
        outside = np.any((below < band.lower[:, None]) | (below > band.upper[:, None]), 0, keepdims=True).ravel()
        look: dict[str, Any] = {"color": _style.unit_color(i), "linestyle": _style.DASHES[(i + i // 8) % 4]}
        for j, line in enumerate(below.T):
            look |= {"alpha": 1.0, "linewidth": 2.4} if outside[j] else {"alpha": 0.6, "linewidth": 0.9}
            ax.plot(band.edges, line / count - band.edges, label=None if j else name, **look)
    ax.axhline(0, color="#666666", linewidth=0.8)
    ax.legend(fontsize=7, frameon=False, ncols=2)
    return _style.finished(ax, "rank of the truth among the draws, as a share", "ECDF − uniform")


def martingale_check(checks: Result, ax: Axes | None = None) -> Axes:
    """Show how far predictions drift, in standard errors, by function; two errors about 0 are shaded.

    Parameters
    ----------
    checks
        By name, results of `results.martingale_check`, or one result.
    ax
        Axes to draw on; a new figure if None.

    Returns
    -------
    Axes
    """
    named = checks if isinstance(checks, Mapping) else {"": checks}
    ax = _style.axes(ax, 5.2, 1.2 + 0.35 * len(named))
    ax.axvspan(-2, 2, color="#999999", alpha=0.3, linewidth=0)
    functions = list(dict.fromkeys(name for check in named.values() for name in check.z_scores))
    for i, function in enumerate(functions):
        z = [check.z_scores.get(function, np.nan) for check in named.values()]
        _style.points(ax, i, z, np.arange(len(z)), label=function)
    labels = [f"{name}\np = {check.p_value:.2g}".strip() for name, check in named.items()]
    ax.set_yticks(np.arange(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.legend(fontsize=7, frameon=False)
    return _style.finished(ax, "mean drift, in standard errors", "")


def answer_band(
    queries: "ArrayLike",
    answers: "ArrayLike",
    band: "ArrayLike",
    points: "tuple[ArrayLike, ArrayLike] | None" = None,
    ax: Axes | None = None,
    *,
    label: str = "band",
) -> Axes:
    """Show the mean answer to queries of one dimension, and a band around it.

    Parameters
    ----------
    queries, answers
        (Q,): places of the queries, in any order, and one coordinate of the answers, such as
        ``said.expected_outputs[:, 0]``.
    band
        (2, Q): its lower and upper end, ``said.band("expected_outputs")[..., 0]`` for the mean answer, or quantiles of
        ``said.output_distribution.sample((n,))`` for the answers themselves.
    points
        Queries and answers of data to draw among them, (n,) each.
    ax
        Axes to draw on, such as those of another band; a new figure if None.
    label
        Name of the band, for the legend.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Other shapes, NaN or infinity, or a lower end above the upper one.
    """
    at = _given.numbers("queries", queries, "(Q,)")
    mean = _given.numbers("answers", answers, f"({len(at)},)", "give one for each query")
    ends = _given.numbers("band", band, f"(2, {len(at)})", "give one for each query")
    if (ends[0] > ends[1]).any():
        raise ValueError("band: its lower end lies above the upper one; give the lower one first")
    ax, order, color = _style.axes(ax), np.argsort(at), _style.UNIT_COLORS[0]
    ax.fill_between(at[order], *ends[:, order], color=color, alpha=0.25, linewidth=0, label=label)
    (line,) = ax.plot(at[order], mean[order], color=color)
    if "mean answer" not in ax.get_legend_handles_labels()[1]:
        line.set_label("mean answer")
    if points is not None:
        places, seen = (_given.numbers("points", x, "(n,)") for x in points)
        _given.counted("points", seen, len(places), "queries")
        ax.plot(places, seen, "o", color=_style.INK, markersize=3.5, label="data")
    return _style.finished(ax, "query", "answer", True)
