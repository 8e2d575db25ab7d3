"""Do heads repeat each other: spectra and ranks of attention matrices, and distances between heads."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style

DASHES = ("-", "--", "-.", ":")
MARKERS = "os^Dv<>P"
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
    for i, (matrices, name) in enumerate(zip(sets, names, strict=True)):
        place = np.arange(1, matrices.shape[-1] + 1)
        low, middle, high = np.quantile(matrices, [0.1, 0.5, 0.9], axis=0)
        ax.fill_between(place, low, high, color=_style.unit_color(i), alpha=0.15, linewidth=0)
        ax.plot(place, middle, color=_style.unit_color(i), linestyle=DASHES[i % 4], linewidth=1.6, label=name)
    if labels is not None:
        ax.legend(fontsize=8, frameon=False)
    ax.set_yscale("log")
    ax.set(ylim=(max(min(float(np.quantile(x, 0.1)) for x in sets), 1e-6) / 2, 1.5))
    ax.set(xlabel="singular value, from the largest", ylabel="share of the largest")
    return _style.bare(ax)


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
    for i, (x, name) in enumerate(zip(sets, names, strict=True)):
        color = _style.unit_color(i)
        shares = np.histogram(x, edges)[0] / len(x)
        ax.stairs(shares, edges, color=color, linestyle=DASHES[i % 4], linewidth=1.6, label=name)
        ax.plot(x.mean(), 0, MARKERS[i % 8], color=color, clip_on=False, markersize=6)
    if labels is not None:
        ax.legend(fontsize=8, frameon=False)
    ax.set(xlabel="rank", ylabel="share of attention matrices", ylim=(0, None))
    return _style.bare(ax)


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
        raise ValueError(
            f"distances must have shape (head, head) but has shape {array.shape}; give one row for each head"
        )
    names = _names(range(heads) if labels is None else labels, heads, "distances")
    ax = _style.axes(ax, 1.8 + 0.36 * heads, 1.0 + 0.36 * heads)
    largest = float(array.max()) or 1.0 if largest is None else largest
    image = ax.imshow(array, vmin=0, vmax=largest, cmap=_style.SEQUENTIAL)
    ax.figure.colorbar(image, ax=ax, label="distance", shrink=0.9)
    ax.set_xticks(range(heads), names)
    ax.set_yticks(range(heads), names)
    ax.set(xlabel="head", ylabel="head")
    if array.size <= MOST_CELLS:
        for (i, j), x in np.ndenumerate(array):
            if i != j:
                color = "white" if x < 0.55 * largest else "black"
                ax.text(j, i, f"{x:.2f}".lstrip("0"), ha="center", va="center", color=color, fontsize=7)
    return ax


def _flat(name: str, x: ArrayLike) -> np.ndarray:
    """(matrix, value), finite and not empty."""
    array = _given.array(name, x, shape="(..., value)")
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"{name} must have shape (..., value) but has shape {array.shape}; give at least one matrix")
    return _given.numbers(name, array.reshape(-1, array.shape[-1]), 2, "(matrix, value)")


def _names(labels: Sequence | None, count: int, what: str) -> list[str]:
    if count == 0:
        raise ValueError(f"{what} is empty; give an array for each set of matrices")
    if labels is not None and len(labels) != count:
        raise ValueError(f"labels has {len(labels)} names but {what} has {count} entries; give one for each")
    return [""] * count if labels is None else [str(label) for label in labels]


__all__ = ["head_distance_matrix", "rank_histogram", "rank_spectra"]
