"""The attention matrix as a picture."""

from collections.abc import Sequence

import numpy as np
import xarray
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from probtx_pyro.plots import style

MOST_CELLS = 150  # beyond that the numbers in the cells cannot be read


def attention_map(
    attention: ArrayLike | xarray.DataArray,
    query_labels: Sequence | None = None,
    unit_labels: Sequence | None = None,
    ax: Axes | None = None,
    *,
    largest: float | None = None,
) -> Axes:
    """Attention of every query (row) over the units (columns); small maps carry their numbers.

    Parameters
    ----------
    attention
        (Q, U), rows on the simplex. Of a ``DataArray`` the coordinates of its two dims are the labels and its dims the titles.
    query_labels, unit_labels
        Tokens or names, one for each row and column.
    largest
        Attention at the end of the colour scale; the largest entry if None.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Not a matrix, or labels that do not count its rows or columns.
    """
    weights = style.numbers("attention", attention, 2, "(query, unit)")
    titles = ["query", "unit"]
    if isinstance(attention, xarray.DataArray):
        titles = [str(dim) for dim in attention.dims]
        known = [attention.coords[dim].values if dim in attention.coords else None for dim in attention.dims]
        query_labels, unit_labels = (
            x if x is not None else y for x, y in zip((query_labels, unit_labels), known, strict=True)
        )
    for name, labels, n, axis in (
        ("query_labels", query_labels, 0, "rows"),
        ("unit_labels", unit_labels, 1, "columns"),
    ):
        if labels is not None and len(labels) != weights.shape[n]:
            raise ValueError(
                f"{name} has {len(labels)} labels but attention has {weights.shape[n]} {axis}; give one for each"
            )
    rows, columns = weights.shape
    ax = style.axes(ax, 1.6 + min(0.42 * columns, 7), 1.0 + min(0.32 * rows, 6))
    largest = float(weights.max()) if largest is None else largest
    image = ax.imshow(weights, vmin=0, vmax=largest, cmap=style.SEQUENTIAL, aspect="auto")
    ax.figure.colorbar(image, ax=ax, label="attention", shrink=0.9)
    if query_labels is not None:
        ax.set_yticks(range(rows), [str(x) for x in query_labels])
    if unit_labels is not None:
        long = columns > 12 or max(len(str(x)) for x in unit_labels) > 3
        ax.set_xticks(
            range(columns), [str(x) for x in unit_labels], rotation=60 if long else 0, ha="right" if long else "center"
        )
    ax.set(ylabel=titles[0], xlabel=titles[1])
    if weights.size <= MOST_CELLS:
        for (i, j), w in np.ndenumerate(weights):
            color = "white" if w < 0.55 * largest else "black"
            ax.text(j, i, f"{w:.2f}".lstrip("0") if w < 1 else "1", ha="center", va="center", color=color, fontsize=7)
    return ax


__all__ = ["attention_map"]
