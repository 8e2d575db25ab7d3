"""Do heads repeat each other: spectra and ranks of attention matrices, and distances between heads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style

MOST_CELLS = 100  # of a matrix of distances that carries its numbers


def rank_spectra(spectra: "Sequence[ArrayLike]", labels: Sequence | None = None, ax: Axes | None = None) -> Axes:
    """Show the singular values of several sets of attention matrices: the median matrix,
    and a band from the first to the last decile.

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
    sets, names = _sets("spectra", spectra, "(..., value)", labels)
    ax = _style.axes(ax)
    for i, matrices in enumerate(sets):
        place = np.arange(1, matrices.shape[-1] + 1)
        low, middle, high = np.quantile(matrices.reshape(-1, len(place)), [0.1, 0.5, 0.9], axis=0)
        ax.fill_between(place, low, high, color=_style.unit_color(i), alpha=0.15, linewidth=0)
        ax.plot(place, middle, label=names[i], **_line(i))
    ax.set_yscale("log")
    ax.set(ylim=(max(min(float(np.quantile(x, 0.1)) for x in sets), 1e-6) / 2, 1.5))
    return _style.finished(ax, "singular value, from the largest", "share of the largest", labels is not None)


def rank_histogram(ranks: "Sequence[ArrayLike]", labels: Sequence | None = None, ax: Axes | None = None) -> Axes:
    """Show how often each rank occurs in several sets of attention matrices, as shares of each set,
    its mean marked at the foot.

    Parameters
    ----------
    ranks
        One array of positive ranks for each set, as `inspection.attention_rank` or `inspection.effective_rank` give
        them.
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
    sets, names = _sets("ranks", ranks, "(...)", labels)
    ax = _style.axes(ax)
    largest = int(np.ceil(max(x.max() for x in sets)))
    width = max(1, -(-largest // 40))
    edges = np.arange(0, largest + 1 + width, width) + 0.5
    for i, x in enumerate(sets):
        ax.stairs(np.histogram(x, edges)[0] / x.size, edges, label=names[i], **_line(i))
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
        Distance at the end of the colour scale, the same for pictures that are to be compared; the largest entry if
        None.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Not a square matrix, or labels that do not count its rows.
    """
    array = _given.numbers("distances", distances, "(head, head)", "give one row for each head")
    heads = len(array)
    names = _given.names("labels", labels, heads, f"distances has {heads} entries", default=range(heads))
    ax = _style.axes(ax, 1.8 + 0.36 * heads, 1.0 + 0.36 * heads)
    written = ~np.eye(heads, dtype=bool) & (array.size <= MOST_CELLS)
    _style.matrix(ax, array, "distance", written, float(array.max()) or 1.0 if largest is None else largest)
    _style.ticks(ax, names, names)
    ax.set(xlabel="head", ylabel="head")
    return ax


def _sets(
    name: str, given: "Sequence[ArrayLike]", shape: str, labels: Sequence | None
) -> tuple[list[np.ndarray], list[str]]:
    """The arrays, none of them empty, and a name for each."""
    sets = [_given.numbers(f"{name}[{i}]", x, shape) for i, x in enumerate(given)]
    if not sets:
        raise ValueError(f"{name} is empty; give an array for each set of matrices")
    for i, x in enumerate(sets):
        if not x.size:
            raise ValueError(f"{name}[{i}] must have shape {shape} but is empty; give at least one matrix")
    count = len(sets)
    return sets, _given.names("labels", labels, count, f"{name} has {count} entries", default=[""] * count)


def _line(series: int) -> dict[str, Any]:
    return {"color": _style.unit_color(series), "linestyle": _style.DASHES[series % 4], "linewidth": 1.6}
