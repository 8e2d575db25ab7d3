"""Colours and checks that all pictures share."""

from typing import Any

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

# Okabe & Ito 2008: eight colours that colour-blind readers can tell apart; black last, since it draws data points.
UNIT_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
SEQUENTIAL = "cividis"  # perceptually uniform, and the same for red-green colour-blind readers
INK = "#222222"


def unit_color(unit: int) -> tuple[float, float, float]:
    """RGB colour of a unit; after eight units the colours repeat, so label the units as well.

    >>> unit_color(0) == unit_color(8)
    True
    """
    return to_rgb(UNIT_COLORS[unit % len(UNIT_COLORS)])


def axes(ax: Axes | None, width: float = 4.5, height: float = 3.4) -> Axes:
    """The axes given, or those of a new figure."""
    return pyplot.subplots(figsize=(width, height), layout="constrained")[1] if ax is None else ax


def numbers(name: str, x: Any, rank: int, shape: str) -> np.ndarray:
    """An array of ``rank`` axes, or a ValueError that names the argument."""
    array = np.asarray(x, dtype=float)
    if array.ndim != rank:
        raise ValueError(
            f"{name} must have shape {shape} but has shape {array.shape}; select or add the axes that differ"
        )
    if not np.isfinite(array).all():
        raise ValueError(f"{name} contains NaN or infinity; leave such entries out of the picture")
    return array


def bare(ax: Axes) -> Axes:
    """Drop the frame's upper and right sides."""
    ax.spines[["top", "right"]].set_visible(False)
    return ax


__all__ = ["INK", "SEQUENTIAL", "UNIT_COLORS", "axes", "bare", "numbers", "unit_color"]
