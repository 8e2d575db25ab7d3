"""Pictures that several chapters draw: rows of digits, and the units of a memory in a plane."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from probtx_pyro import models, plots

Memory: TypeAlias = models.GaussianMixture | models.GaussianKeys


def principal(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of pictures (N, P) and their first two principal components, (P,) and (P, 2)."""
    center = images.mean(0)
    return center, np.linalg.svd(images - center, full_matrices=False)[2][:2].T


def digit_rows(rows: Mapping[str, Tensor], height: float) -> tuple[Figure, Any]:
    """Draw a row of ten digits for each entry.

    Parameters
    ----------
    rows
        From names to pictures, (at least 10, 64), ink in [0, 1].
    height
        Of the figure, in inches.

    Returns
    -------
    figure, axes
        The axes as an array (row, 10).
    """
    figure, panels = pyplot.subplots(len(rows), 10, figsize=(8.5, height), layout="constrained")
    for (name, digits), line in zip(rows.items(), panels, strict=True):
        for digit, ax in zip(digits, line, strict=False):
            ax.imshow(digit.reshape(8, 8).numpy(force=True), cmap="Greys", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
        line[0].set_ylabel(name)
    return figure, panels


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
