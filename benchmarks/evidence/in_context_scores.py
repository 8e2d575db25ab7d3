"""Scores of next characters: a mean with the error of its blocks, calibration, nats by position."""

import numpy as np


def clustered(x: np.ndarray, block: np.ndarray) -> tuple[float, float]:
    """Return the mean of numbers (row,) and its standard error, rows of one block (row,) being one observation.

    The mean is a ratio, of the sum of the blocks' sums to the sum of their numbers of rows, and so is its error, to first order.
    """
    x = np.asarray(x, float)
    _, place, count = np.unique(block, return_inverse=True, return_counts=True)
    mean = float(x.mean())
    over = np.bincount(place, weights=x) - mean * count
    blocks = len(count)
    return mean, float(np.sqrt(blocks / max(1, blocks - 1) * np.square(over).sum()) / len(x))


def calibration_error(top: np.ndarray, right: np.ndarray, bins: int = 15) -> float:
    """Return the expected calibration error: over bins of equal width of the largest probability, mean |share right - mean probability|."""
    top, right = top.ravel().astype(float), right.ravel().astype(float)
    place = np.minimum((top * bins).astype(int), bins - 1)
    return float(np.abs(np.bincount(place, weights=right - top)).sum() / len(top))


def by_position(nats: np.ndarray, bins: int = 16) -> np.ndarray:
    """Return mean nats in bins of equally many positions, in their order; as many bins as there are positions if those are fewer."""
    each = np.array_split(nats.mean(0, dtype=float), min(bins, nats.shape[1]))
    return np.array([part.mean() for part in each])


__all__ = ["by_position", "calibration_error", "clustered"]
