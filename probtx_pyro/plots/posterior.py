"""What a posterior says about attention, what it learned from the data, and whether its sampler is calibrated."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from probtx_pyro.plots import style
from probtx_pyro.plots.attention import attention_map
from probtx_pyro.results._ecdf import Band, counts_below

Array = NDArray[np.floating[Any]]


class Ranks(Protocol):
    """What `results.calibrate` returns."""

    @property
    def ranks(self) -> Mapping[str, NDArray[np.int64]]:
        """(simulation, *shape) by quantity."""

    @property
    def num_draws(self) -> int:
        """Draws that each truth is ranked among."""

    @property
    def num_simulations(self) -> int:
        """Simulations."""

    def band(self, level: float = 0.99) -> Band:
        """Bounds of counts at all edges."""


def _draws(name: str, x: ArrayLike, rank: int, shape: str) -> Array:
    """Draws of all chains in one axis, (draw, ...)."""
    array = style.numbers(name, x, rank + 2, f"(chain, draw, {shape})")
    return array.reshape(-1, *array.shape[2:])


def attention_band(
    attention: ArrayLike,
    units: Sequence | None = None,
    prob: float = 0.89,
    reference: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """How sure is a query's attention: mean and central credible interval of its weight on each unit.

    Parameters
    ----------
    attention
        (chain, draw, unit): ``data["posterior"]["attention"].sel(query="cat")``.
    units
        Names of the units.
    prob
        Of the interval, between equal tails.
    reference
        (unit,) weights to compare with, such as those of the point estimate; drawn as crosses.

    Returns
    -------
    Axes
    """
    if not 0 < prob < 1:
        raise ValueError(f"prob must be between 0 and 1, not {prob}")
    draws = _draws("attention", attention, 1, "unit")
    low, high = np.quantile(draws, [(1 - prob) / 2, (1 + prob) / 2], 0)
    mean, at = draws.mean(0), np.arange(draws.shape[1])
    ax = style.axes(ax)
    ax.vlines(at, low, high, color=style.UNIT_COLORS[0], linewidth=5, alpha=0.35, label=f"{prob:.0%} interval")
    ax.plot(at, mean, "o", color=style.UNIT_COLORS[0], markersize=5, label="posterior mean")
    if reference is not None:
        ax.plot(at, style.numbers("reference", reference, 1, "(unit,)"), "x", color=style.INK, label="point estimate")
    ax.set(xlabel="unit", ylabel="attention", ylim=(-0.02, 1.02), xlim=(-0.6, len(at) - 0.4))
    ax.set_xticks(at, [str(i) for i in (at if units is None else units)])
    ax.legend(fontsize=8, frameon=False)
    return style.bare(ax)


def attention_uncertainty(
    attention: ArrayLike, queries: Sequence | None = None, units: Sequence | None = None
) -> NDArray[Any]:
    """The mean of the attention matrix and, beside it, its posterior standard deviation.

    ``attention`` (chain, draw, query, unit). Returns the two axes.
    """
    draws = _draws("attention", attention, 2, "query, unit")
    _, pair = pyplot.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
    attention_map(draws.mean(0), queries, units, ax=pair[0])
    image = pair[1].imshow(draws.std(0), cmap=style.SEQUENTIAL, aspect="auto", vmin=0)
    pair[1].figure.colorbar(image, ax=pair[1], label="standard deviation")
    for axis, names in (("x", units), ("y", queries)):
        if names is not None:
            getattr(pair[1], f"set_{axis}ticks")(range(len(names)), [str(name) for name in names])
    pair[1].set(xlabel="unit", ylabel="query")
    pair[0].set_title("posterior mean", fontsize=10)
    pair[1].set_title("posterior standard deviation", fontsize=10)
    return pair


def prior_posterior(
    prior: ArrayLike, posterior: ArrayLike, name: str = "", truth: float | None = None, ax: Axes | None = None
) -> Axes:
    """What the data taught: draws of one scalar under the prior and under the posterior, as densities in equal bins.

    ``prior`` and ``posterior`` have any shape; bins span the central 99.8 % of both. ``truth`` is marked where it is known.
    """
    before, after = (
        style.numbers(n, np.ravel(x), 1, "(draw,)") for n, x in (("prior", prior), ("posterior", posterior))
    )
    low, high = np.quantile(np.concatenate([before, after]), [0.001, 0.999])
    bins = np.linspace(low, high if high > low else low + 1, 60).tolist()
    ax = style.axes(ax)
    ax.hist(before, bins, density=True, histtype="step", color=style.INK, linestyle="--", label="prior")
    ax.hist(after, bins, density=True, color=style.UNIT_COLORS[0], alpha=0.55, label="posterior")
    if truth is not None:
        ax.axvline(truth, color=style.UNIT_COLORS[5], linewidth=1.5, label="truth")
    ax.set(xlabel=name, ylabel="density")
    ax.legend(fontsize=8, frameon=False)
    return style.bare(ax)


def calibration(found: Ranks, level: float = 0.99, ax: Axes | None = None) -> Axes:
    """Are the ranks uniform: distribution function minus its expectation, a line for every quantity, and the band for all at once.

    ``found`` is what `results.calibrate` returns. Lines that leave the band are drawn thick, and named once for each parameter.
    """
    band = found.band(level)
    count, ax = found.num_simulations, style.axes(ax, 5.2, 3.6)
    ax.fill_between(
        band.edges, band.lower / count - band.edges, band.upper / count - band.edges,
        color="#999999", alpha=0.3, linewidth=0, label=f"{level:.0%} for all together",
    )  # fmt: skip
    for i, (name, ranks) in enumerate(found.ranks.items()):
        below = counts_below(ranks.reshape(len(ranks), -1), found.num_draws)
        outside = np.any((below < band.lower[:, None]) | (below > band.upper[:, None]), 0, keepdims=True).ravel()
        for j, line in enumerate(below.T):
            ax.plot(
                band.edges, line / count - band.edges, color=style.unit_color(i), alpha=1.0 if outside[j] else 0.6,
                linewidth=2.4 if outside[j] else 0.9, linestyle=("-", "--", "-.", ":")[i // 8 % 4], label=None if j else name,
            )  # fmt: skip
    ax.axhline(0, color="#666666", linewidth=0.8)
    ax.set(xlabel="rank of the truth among the draws, as a share", ylabel="ECDF − uniform")
    ax.legend(fontsize=7, frameon=False, ncols=2)
    return style.bare(ax)


__all__ = ["attention_band", "attention_uncertainty", "calibration", "prior_posterior"]
