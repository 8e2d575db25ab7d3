"""The settings that a chapter is given, the text, figures and data that it hands back, and the pictures that several draw."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from probtx_pyro import models, plots

Memory: TypeAlias = models.GaussianMixture | models.GaussianKeys


class Context(NamedTuple):
    """Settings that every chapter is given.

    Parameters
    ----------
    seed
        The only source of randomness.
    device
        Where the tensors live.
    smoke
        Small sizes, for tests of the plumbing.
    """

    seed: int
    device: str = "cpu"
    smoke: bool = False

    def tensor(self, array: Any) -> Tensor:
        """Return real numbers in double precision on the device."""
        return torch.as_tensor(np.asarray(array, dtype=float, order="C"), device=self.device)

    def rng(self) -> np.random.Generator:
        """Make a generator that starts from the seed; each chapter takes its own."""
        return np.random.default_rng(self.seed)

    def size(self, full: int, smoke: int) -> int:
        """Return the full size, or in a smoke run the small one."""
        return smoke if self.smoke else full

    def parts(self, count: int, *sizes: tuple[int, int]) -> list[np.ndarray]:
        """Draw disjoint rows out of ``count``: an array for each pair of a full and a small size."""
        ends = np.cumsum([self.size(*pair) for pair in sizes])
        return np.split(self.rng().permutation(count)[: ends[-1]], ends[:-1])


class Number(NamedTuple):
    """A number behind a figure.

    quantity: what it is, with its unit.
    value: as computed in this run.
    how: how it was computed.
    """

    quantity: str
    value: float
    how: str


class Picture(NamedTuple):
    """A figure with the numbers behind it.

    name: of its file, without the ending.
    figure: the matplotlib figure.
    caption: what is to be seen.
    numbers: what the reader can check.
    """

    name: str
    figure: Figure
    caption: str
    numbers: list[Number]


Row: TypeAlias = tuple[str, Any, str]  # quantity, value and how it was computed; the value a number, or a tensor of one


def picture(name: str, figure: Figure, caption: str, *numbers: Row) -> Picture:
    """Put a figure and its numbers together.

    Parameters
    ----------
    name, figure, caption
        As `Picture` has them.
    numbers
        Rows of the table below the figure.

    Returns
    -------
    Picture
    """
    return Picture(name, figure, caption, [Number(quantity, float(value), how) for quantity, value, how in numbers])


class Chapter(NamedTuple):
    """A question and its answer on real data.

    Parameters
    ----------
    title, question
        One line each.
    text
        Paragraphs of plain text.
    pictures
        Figures in reading order.
    inference_data
        ArviZ data by the name of the NetCDF file, without the ending.
    """

    title: str
    question: str
    text: list[str]
    pictures: list[Picture]
    inference_data: Mapping[str, Any] = MappingProxyType({})


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
