"""Colours and axes that all pictures share."""

from collections.abc import Sequence
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from numpy.typing import ArrayLike

UNIT_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Colours of units, in their order (Okabe & Ito 2008): colour-blind readers can tell them apart; black is last,
since it draws data points."""
SEQUENTIAL = "cividis"  # perceptually uniform, and the same for red-green colour-blind readers
INK = "#222222"
DASHES = ("-", "--", "-.", ":")
MARKERS = "os^Dv<>P"


def unit_color(unit: int) -> tuple[float, float, float]:
    """Return the RGB colour of a unit; after eight units the colours repeat, so label the units as well.

    >>> unit_color(0) == unit_color(8)
    True
    """
    return to_rgb(UNIT_COLORS[unit % len(UNIT_COLORS)])


def axes(ax: Axes | None, width: float = 4.5, height: float = 3.4) -> Axes:
    """Return the axes given, or those of a new figure.

    Parameters
    ----------
    ax
        Axes, or None.
    width, height
        Of a new figure, in inches.

    Returns
    -------
    Axes
    """
    return pyplot.subplots(figsize=(width, height), layout="constrained")[1] if ax is None else ax


def finished(ax: Axes, xlabel: str, ylabel: str, legend: bool = False, **properties: object) -> Axes:
    """Name the axes and drop the frame's upper and right sides.

    Parameters
    ----------
    ax
        Axes with all series drawn.
    xlabel, ylabel
        Names of the axes.
    legend
        Whether to write one inside the frame.
    properties
        Passed to ``ax.set``, such as limits.

    Returns
    -------
    Axes
    """
    ax.set(xlabel=xlabel, ylabel=ylabel, **properties)
    if legend:
        ax.legend(fontsize=8, frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def points(ax: Axes, series: int, x: ArrayLike, y: ArrayLike, **look: Any) -> None:
    """Draw one of several series of points, in its own colour and with its own marker.

    Parameters
    ----------
    ax
        Axes to draw on.
    series
        Number of the series.
    x, y
        Coordinates.
    look
        Properties that differ from those of other pictures, and the label.
    """
    own: dict[str, Any] = {"color": unit_color(series), "markersize": 5, "alpha": 0.8}
    ax.plot(x, y, MARKERS[series % 8], **(own | look))


def cell(ax: Axes, row: int, column: int, text: str, dark: bool) -> None:
    """Write the number of a matrix into its cell.

    Parameters
    ----------
    ax
        Axes that show the matrix as an image.
    row, column
        Place of the cell.
    text
        What is written.
    dark
        Whether the cell is dark, and its number white.
    """
    ax.text(column, row, text, ha="center", va="center", color="white" if dark else "black", fontsize=7)


def ticks(ax: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Name the rows and columns of an image; without names an axis stays as it is.

    Parameters
    ----------
    ax
        Axes that show a matrix as an image.
    rows, columns
        Names.
    """
    for axis, names in ((ax.yaxis, rows), (ax.xaxis, columns)):
        if names:
            axis.set_ticks(range(len(names)), names)
