"""Attention of queries over units, as a picture."""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style
from probtx_pyro.plots._given import Result
from probtx_pyro.results._arviz import SAMPLES

MOST_CELLS = 150  # beyond that the numbers in the cells cannot be read


def attention_map(
    attention: "ArrayLike | Result",
    query_labels: Sequence | None = None,
    unit_labels: Sequence | None = None,
    ax: Axes | None = None,
    *,
    largest: float | None = None,
) -> Axes:
    """Show the attention of every query (row) over the units (columns); small maps carry their numbers.

    Parameters
    ----------
    attention
        (Q, U), rows on the simplex; what `inspection.captured` returned for one head; or ArviZ data: the attention of
        its point estimate, or the mean over the draws of its posterior. Of a ``DataArray`` the coordinates of its two
        dims are the labels and its dims the titles.
    query_labels, unit_labels
        Tokens or names, one for each row and column.
    ax
        Axes to draw on; a new figure if None.
    largest
        Attention at the end of the colour scale; the largest entry if None.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Not a matrix of numbers, or labels that do not count its rows or columns.
    """
    found = attention_of(attention, "captured", "point_estimate", "posterior")
    found = found.mean(SAMPLES) if {*SAMPLES} <= {*getattr(found, "dims", ())} else found
    weights = _given.numbers("attention", found, "(query, unit)")
    titles = [str(dim) for dim in getattr(found, "dims", ("query", "unit"))]
    rows, columns = weights.shape
    query_names = _given.names("query_labels", query_labels, rows, "rows", _given.labels_of(found, 0))
    unit_names = _given.names("unit_labels", unit_labels, columns, "columns", _given.labels_of(found, 1))
    ax = _style.axes(ax, 1.6 + min(0.42 * columns, 7), 1.0 + min(0.32 * rows, 6))
    largest = float(weights.max()) if largest is None else largest
    image = ax.imshow(weights, vmin=0, vmax=largest, cmap=_style.SEQUENTIAL)
    ax.figure.colorbar(image, ax=ax, label="attention", shrink=0.9)
    if weights.size <= MOST_CELLS:
        for (row, column), x in np.ndenumerate(weights):
            _style.cell(ax, row, column, "1" if x == 1 else f"{x:.2f}".lstrip("0"), dark=x < 0.55 * largest)
    _style.ticks(ax, query_names, unit_names)
    if unit_names and (columns > 12 or max(map(len, unit_names)) > 3):
        ax.set_xticks(range(columns), unit_names, rotation=60, ha="right")
    ax.set(ylabel=titles[0], xlabel=titles[1], aspect="auto")
    return ax


def attention_of(given: Result, *groups: str) -> Result:
    """Return the attention of a result, its axes named; anything else comes back as it is.

    Parameters
    ----------
    given
        A `Captured`, layers of it by name, ArviZ data, or an array.
    groups
        Of ArviZ data: the first of these that has attention gives it.

    Returns
    -------
    DataArray, (..., query, unit), or ``given``
    """
    if isinstance(given, Mapping) and given and all(hasattr(x, "mixture") for x in given.values()):
        from probtx_pyro.inspection import stack_layers  # and torch, which has made what is given

        given = stack_layers(given)
    if not hasattr(given, "mixture"):
        return _given.field(given, "attention", *groups)
    dims = (*given.dims, "query", "unit")
    coords = {dim: list(labels) for dim, labels in given.coords.items() if dim in dims}
    return xarray.DataArray(_given.array("attention", given.attention()), dims=dims, coords=coords)
