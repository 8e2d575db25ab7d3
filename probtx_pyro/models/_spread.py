"""Distances of rows of numbers from their middle, found without squares, so that they overflow last."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def middle(data: NDArray) -> NDArray:
    """Return the median of each column of (N, D), of two in the middle the larger, (D,)."""
    return np.partition(data, len(data) // 2, axis=0)[len(data) // 2]


def away_from_middle(data: NDArray) -> NDArray:
    """Return the largest distance of each row of (N, D) from the median in any column, (N,);
    infinite where it overflows.
    """
    with np.errstate(over="ignore"):
        return np.abs(data - middle(data)).max(1)


def check_squares(data: NDArray, given: str) -> None:
    """Refuse rows whose squared distances overflow, or vanish.

    Parameters
    ----------
    data
        (N, D), finite.
    given
        What they are called.

    Raises
    ------
    ValueError
        Numbers that differ by so much, or so little, that the sum of all squares is no normal number of their dtype.
    """
    widest, limits = float(away_from_middle(data).max()), np.finfo(data.dtype)
    low, high = (float(limits.tiny) * data.size) ** 0.5, (float(limits.max) / data.size) ** 0.5
    if widest > 0 and not low < widest < high:
        raise ValueError(
            f"{given} varies by {widest:.1g}, whose square {data.dtype} does not hold; leave out what stands for missing values, or divide "
            "all by a number of about this size"
        )


def within(data: NDArray, dtype: Any) -> NDArray:
    """Return finite numbers in another precision, the largest that it has in the place of larger ones."""
    if data.dtype == dtype:
        return data
    largest = np.finfo(dtype).max
    return data.clip(-largest, largest).astype(dtype)
