"""Do heads repeat each other: spectra and ranks of attention matrices, and distances between heads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style

MOST_CELLS = 100  # of a matrix of distances that carries its numbers


def rank_spectra(spectra: "Sequence[ArrayLike]", labels: Sequence | None = None, ax: Axes | None = None) -> Axes:
    """Show the singular values of several sets of attention matrices: the median matrix, and a band from the first to the last decile.

    Parameters
    ----------
    spectra
        One array (..., N) for each set, as `inspection.rank_spectrum` gives them; the leading axes count matrices.
    labels
        One for each set.
    ax
        Axes to draw on; a new figure if None.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Nothing to draw, a spectrum without values, or labels that do not count the sets.
    """
    sets = [_flat(f"spectra[{i}]", spectrum) for i, spectrum in enumerate(spectra)]
    names = _names(labels, len(sets), "spectra")
    ax = _style.axes(ax)
    for i, matrices in enumerate(sets):
        place = np.arange(1, matrices.shape[-1] + 1)
        low, middle, high = np.quantile(matrices, [0.1, 0.5, 0.9], axis=0)
        ax.fill_between(place, low, high, color=_style.unit_color(i), alpha=0.15, linewidth=0)
        ax.plot(place, middle, label=names and names[i], **_line(i))
    ax.set_yscale("log")
    ax.set(ylim=(max(min(float(np.quantile(x, 0.1)) for x in sets), 1e-6) / 2, 1.5))
    return _style.finished(ax, "singular value, from the largest", "share of the largest", labels is not None)


def rank_histogram(ranks: "Sequence[ArrayLike]", labels: Sequence | None = None, ax: Axes | None = None) -> Axes:
    """Show how often each rank occurs in several sets of attention matrices, as shares of each set, its mean marked at the foot.

    Parameters
    ----------
    ranks
        One array of positive ranks for each set, as `inspection.attention_rank` or `inspection.effective_rank` give them.
    labels
        One for each set.
    ax
        Axes to draw on; a new figure if None.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Nothing to draw, or labels that do not count the sets.
    """
    every = [_given.array(f"ranks[{i}]", x)[..., None] for i, x in enumerate(ranks)]
    sets = [_flat(f"ranks[{i}]", x)[..., 0] for i, x in enumerate(every)]
    names = _names(labels, len(sets), "ranks")
    ax = _style.axes(ax)
    largest = int(np.ceil(max(x.max() for x in sets)))
    edges = np.arange(0, largest + 1, max(1, -(-largest // 40))) + 0.5
    edges = np.append(edges, 2 * edges[-1] - edges[-2]) if len(edges) > 1 else np.array([0.5, 1.5])
    for i, x in enumerate(sets):
        ax.stairs(np.histogram(x, edges)[0] / len(x), edges, label=names and names[i], **_line(i))
        _style.points(ax, i, x.mean(), 0, clip_on=False, markersize=6, alpha=1)
    return _style.finished(ax, "rank", "share of attention matrices", labels is not None, ylim=(0, None))


def head_distance_matrix(
    distances: "ArrayLike", labels: Sequence | None = None, ax: Axes | None = None, *, largest: float | None = None
) -> Axes:
    """Show distances between heads as a matrix; few heads carry their numbers.

    Parameters
    ----------
    distances
        (H, H), as `inspection.head_distances` gives them; average over examples first.
    labels
        One for each head; numbers from 0 if None.
    ax
        Axes to draw on; a new figure if None.
    largest
        Distance at the end of the colour scale, the same for pictures that are to be compared; the largest entry if None.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Not a square matrix, or labels that do not count its rows.
    """
    array = _given.numbers("distances", distances, 2, "(head, head)")
    heads = len(array)
    if array.shape != (heads, heads):
        raise _given.misfit("distances", "(head, head)", array.shape, "give one row for each head")
    names = _names(range(heads) if labels is None else labels, heads, "distances")
    ax = _style.axes(ax, 1.8 + 0.36 * heads, 1.0 + 0.36 * heads)
    largest = float(array.max()) or 1.0 if largest is None else largest
    image = ax.imshow(array, vmin=0, vmax=largest, cmap=_style.SEQUENTIAL)
    ax.figure.colorbar(image, ax=ax, label="distance", shrink=0.9)
    _style.ticks(ax, names, names)
    ax.set(xlabel="head", ylabel="head")
    if array.size <= MOST_CELLS:
        for (i, j), x in np.ndenumerate(array):
            if i != j:
                _style.cell(ax, i, j, f"{x:.2f}".lstrip("0"), dark=x < 0.55 * largest)
    return ax


def _flat(name: str, x: ArrayLike) -> np.ndarray:
    """(matrix, value), finite and not empty."""
    array = _given.array(name, x, shape="(..., value)")
    if array.ndim == 0 or array.size == 0:
        raise _given.misfit(name, "(..., value)", array.shape, "give at least one matrix")
    return _given.numbers(name, array.reshape(-1, array.shape[-1]), 2, "(matrix, value)")


def _names(labels: Sequence | None, count: int, what: str) -> list[str] | None:
    if count == 0:
        raise ValueError(f"{what} is empty; give an array for each set of matrices")
    return _given.names("labels", labels, count, f"{what} has {count} entries")


def _line(series: int) -> dict[str, Any]:
    return {"color": _style.unit_color(series), "linestyle": _style.DASHES[series % 4], "linewidth": 1.6}


__all__ = ["head_distance_matrix", "rank_histogram", "rank_spectra"]
