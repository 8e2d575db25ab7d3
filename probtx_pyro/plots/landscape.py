"""The energy of a memory over a plane, with the ways states take on it; and how sure a retrieved vector is."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.patches import Ellipse, FancyArrowPatch
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style
from probtx_pyro.plots.plane import HALO, framed, over, regular

LEVELS = 14
SHORTEST = 0.04  # of the frame's diagonal: a step below that gets no arrow


def energy_landscape(
    grid: "ArrayLike",
    energy: "ArrayLike",
    ax: Axes | None = None,
    *,
    patterns: "ArrayLike | None" = None,
    pattern_labels: Sequence | None = None,
    paths: "ArrayLike | None" = None,
) -> Axes:
    """Draw contours of the energy, dark where it is low, stored patterns as stars, and retrieval as arrows from start to end.

    The contours are closer where the energy is low, so that shallow valleys show beside steep walls.

    Parameters
    ----------
    grid, energy
        (H, W, 2) points, regular, as `query_grid` makes them, and the energy (H, W) there.
    ax
        Axes to draw on; a new figure if None.
    patterns, pattern_labels
        (N, 2) and their N names. Of a ``DataArray`` the coordinate of its first dim is the names.
    paths
        (step, state, 2): every state before the first step and after each.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Shapes or labels that do not fit, NaN or infinity.

    References
    ----------
    Ramsauer et al. 2021, *Hopfield Networks is All You Need*, arXiv 2008.02217, section 2.
    """
    grid = regular(grid)
    height = over(grid, "energy", energy, "ask the memory at grid.reshape(-1, 2)")
    points = np.zeros((0, 2)) if patterns is None else _in_plane("patterns", patterns, 2, "(N, 2)")
    pattern_labels = _given.labels_of(patterns, 0) if pattern_labels is None else pattern_labels
    names = _given.names("pattern_labels", pattern_labels, len(points), f"there are {len(points)} patterns", "labels")
    ax = _style.axes(ax, 5.0, 4.0)
    levels = height.min() + max(float(np.ptp(height)), 1e-12) * np.linspace(0, 1, LEVELS) ** 2
    even = BoundaryNorm(levels, colormaps[_style.SEQUENTIAL].N)  # one shade for each band
    bands = ax.contourf(grid[..., 0], grid[..., 1], height, levels=levels, cmap=_style.SEQUENTIAL, norm=even)
    ax.contour(grid[..., 0], grid[..., 1], height, levels=levels[1:-1], colors="white", linewidths=0.3, alpha=0.6)
    bar = ax.figure.colorbar(bands, ax=ax, label="energy", shrink=0.9, ticks=levels[::3])
    bar.ax.set_yticklabels([f"{level:.2g}" for level in levels[::3]])
    framed(ax, grid)
    if paths is not None:
        _arrows(ax, _in_plane("paths", paths, 3, "(step, state, 2)"), SHORTEST * float(np.hypot(*np.ptp(grid, (0, 1)))))
    if len(points):
        ax.plot(*points.T, "*", color="#E69F00", markeredgecolor=_style.INK, markersize=13, zorder=5, label="pattern")
    for point, name in zip(points, names or [], strict=False):
        ax.annotate(name, point, (6, 5), textcoords="offset points", weight="bold", path_effects=HALO, zorder=6)
    return ax


def _in_plane(name: str, x: ArrayLike, rank: int, shape: str) -> np.ndarray:
    array = _given.numbers(name, x, rank, shape)
    if array.shape[-1] != 2:
        raise _given.misfit(name, shape, array.shape, "choose two coordinates")
    return array


def _arrows(ax: Axes, paths: np.ndarray, shortest: float) -> None:
    """Each path as a line with an arrowhead in the middle of every step that is long enough to carry one."""
    ax.plot(*paths.transpose(2, 0, 1), "-", color="white", linewidth=1.3, zorder=3)
    for before, step in zip(paths[:-1].reshape(-1, 2), np.diff(paths, axis=0).reshape(-1, 2), strict=True):
        if np.hypot(*step) >= shortest:
            look: dict = {"color": "white", "linewidth": 0, "shrinkA": 0, "shrinkB": 0, "zorder": 4}
            ends = ((before + share * step).tolist() for share in (0.5, 0.55))
            ax.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=10, **look))
    ax.plot(*paths[0].T, "o", markerfacecolor="none", markeredgecolor="white", markersize=5, zorder=4, label="start")
    ax.plot(*paths[-1].T, "o", color="white", markeredgecolor=_style.INK, markersize=5, zorder=4, label="end")


def credible_ellipses(
    means: "ArrayLike", covariances: "ArrayLike", ax: Axes | None = None, *, mass: float = 0.9
) -> Axes:
    """Draw retrieved vectors in the plane with their uncertainty: the ellipse that holds ``mass`` of the Normal with these moments.

    Parameters
    ----------
    means, covariances
        (Q, 2) and (Q, 2, 2), positive semi-definite: gradient and Hessian of the log normaliser at Q queries.
    ax
        Axes to draw on; a new figure if None.
    mass
        Between 0 and 1. Exact for one Gaussian; the tilted distribution of another base measure has its own shape.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Shapes that do not fit, NaN or infinity, a negative variance, a mass that is no share.
    """
    centers = _given.numbers("means", means, 2, "(Q, 2)")
    spreads = _given.numbers("covariances", covariances, 3, "(Q, 2, 2)")
    if centers.shape[-1] != 2 or spreads.shape != (*centers.shape, 2):
        raise ValueError(
            f"means has shape {centers.shape} and covariances {spreads.shape}; give (Q, 2) and (Q, 2, 2), one plane"
        )
    if not 0 < mass < 1:
        raise ValueError(f"mass must be between 0 and 1, not {mass}; it is the share inside the ellipse")
    variances, directions = np.linalg.eigh(spreads)
    if (variances < -1e-9 * (1 + np.abs(variances).max(initial=0))).any():
        raise ValueError("covariances has a negative variance; give positive semi-definite matrices")
    ax = _style.axes(ax, 4.6, 4.2)
    across = 2 * np.sqrt(-2 * np.log1p(-mass) * variances.clip(0))  # a chi-square of two degrees of freedom
    for query in np.argsort(-across.sum(-1), kind="stable"):  # the large ones behind
        center, size, axis = centers[query], across[query], directions[query, :, 0]
        color, turn = _style.unit_color(query), float(np.degrees(np.arctan2(axis[1], axis[0])))
        ellipse: dict = {"facecolor": (*color, 0.2), "edgecolor": color, "linewidth": 1.6, "zorder": 2}
        ax.add_patch(Ellipse((center[0], center[1]), size[0], size[1], angle=turn, **ellipse))
        ax.plot(*center, "o", color=color, markersize=5, zorder=4)
    ax.set_aspect("equal")
    return ax


__all__ = ["credible_ellipses", "energy_landscape"]
