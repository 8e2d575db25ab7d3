"""What several chapters draw: the plane of principal components, and the units of a memory in it."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from probtx_pyro import models, plots

Memory: TypeAlias = models.GaussianMixture | models.GaussianKeys


def principal(images: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return the map of pictures (..., P) to the plane of the first two principal components of these, (N, P)."""
    center = images.mean(0)
    components = np.linalg.svd(images - center, full_matrices=False)[2][:2].T
    return lambda x: (x - center) @ components


def units_in_the_plane(
    ax: Axes, title: str, grid: np.ndarray, memory: Memory, names: Sequence, queries: np.ndarray | Tensor
) -> None:
    """Draw which unit of a memory is responsible where.

    Parameters
    ----------
    ax
        Axes to draw on.
    title
        Of the axes.
    grid
        (H, W, 2) points, as `plots.query_grid` makes them.
    memory
        Units with keys in the plane.
    names
        Of the units.
    queries
        (Q, 2), drawn as points.
    """
    weights = memory.attention(torch.as_tensor(grid.reshape(-1, 2)).to(memory.keys)).unflatten(0, grid.shape[:2])
    plots.responsibilities(grid, weights, memory.keys, memory.key_precision, names, ax, queries=queries)
    ax.set(title=title, xlabel="first component", ylabel="second component")
