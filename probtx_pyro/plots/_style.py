"""Colours and axes that all pictures share."""

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

# Okabe & Ito 2008: eight colours that colour-blind readers can tell apart; black last, since it draws data points.
UNIT_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
SEQUENTIAL = "cividis"  # perceptually uniform, and the same for red-green colour-blind readers
INK = "#222222"


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


def bare(ax: Axes) -> Axes:
    """Drop the frame's upper and right sides."""
    ax.spines[["top", "right"]].set_visible(False)
    return ax


__all__ = ["INK", "SEQUENTIAL", "UNIT_COLORS", "axes", "bare", "unit_color"]
