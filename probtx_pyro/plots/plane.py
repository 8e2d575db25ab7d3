"""Pictures over a plane: which unit is responsible where, and the paths of EM over a density."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style

HALO = [patheffects.withStroke(linewidth=2.5, foreground="white")]


def query_grid(points: "ArrayLike", num: int = 100, margin: float = 0.15) -> np.ndarray:
    """Make a regular grid over the box of some points.

    Parameters
    ----------
    points
        (N, 2).
    num
        Points of the grid along each axis.
    margin
        What the box is widened by on each side, as a share of its size.

    Returns
    -------
    array
        (num, num, 2).

    Raises
    ------
    ValueError
        Not points in a plane.

    Examples
    --------
    >>> query_grid([[0.0, 0.0], [1.0, 2.0]], num=3, margin=0.0)[2, 1].tolist()
    [0.5, 2.0]
    """
    points = _given.numbers("points", points, 2, "(N, 2)")
    low, high = points.min(0), points.max(0)
    low, high = low - margin * (high - low), high + margin * (high - low)
    return np.stack(np.meshgrid(*np.linspace(low[:2], high[:2], num, axis=1)), -1)


def responsibilities(
    grid: "ArrayLike",
    responsibilities: "ArrayLike",
    keys: "ArrayLike",
    key_precision: "ArrayLike",
    unit_labels: Sequence | None = None,
    ax: Axes | None = None,
    *,
    queries: "ArrayLike | None" = None,
) -> Axes:
    """Show which unit explains a query at each point of the plane; each key is a circle of one standard deviation in its unit's colour.

    Parameters
    ----------
    grid
        (H, W, 2) points, regular, as `query_grid` makes them.
    responsibilities
        (H, W, U): attention of a query at each point.
    keys, key_precision
        (U, 2), and a scalar or (U,): centre and inverse variance of each unit; or of each of its keys, (U, R, 2) and (U, R).
    unit_labels
        Names of the units; their numbers if None.
    ax
        Axes to draw on; a new figure if None.
    queries
        (Q, 2), drawn as points.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Shapes or labels that do not fit, NaN or infinity, a precision that is not positive.
    """
    grid = regular(grid)
    weights = _given.numbers("responsibilities", responsibilities, 3, "(H, W, unit)")
    several = _given.array("keys", keys, shape="(unit, 2) or (unit, component, 2)").ndim == 3
    keys = _given.numbers("keys", keys, 2 + several, "(unit, 2) or (unit, component, 2)")
    units = len(keys)
    if weights.shape != (*grid.shape[:2], units):
        raise ValueError(
            f"responsibilities has shape {weights.shape} but grid and keys ask for {(*grid.shape[:2], units)}; ask the model at grid.reshape(-1, 2)"
        )
    precision = np.broadcast_to(_given.array("key_precision", key_precision, shape="(unit,)"), keys.shape[:-1])
    if (precision <= 0).any():
        raise ValueError("key_precision must be positive; it is the inverse variance of a unit")
    labels = range(units) if unit_labels is None else unit_labels
    names = _given.names("unit_labels", labels, units, f"there are {units} units", "labels") or []
    ax = _style.axes(ax, 4.6, 4.2)
    colors = np.array([_style.unit_color(j) for j in range(units)])
    blend = 1 - 0.6 * (1 - weights @ colors)  # paler than the units themselves
    smooth: dict[str, Any] = {"origin": "lower", "aspect": "auto", "interpolation": "bilinear", "zorder": 0}
    ax.imshow(np.clip(blend, 0, 1), extent=_extent(grid), **smooth)
    for j in range(units if units > 1 else 0):  # where unit j ties with the best of the others
        lead = weights[..., j] - np.delete(weights, j, -1).max(-1)
        if lead.min() < 0 < lead.max():
            ax.contour(grid[..., 0], grid[..., 1], lead, levels=[0], colors="white", linewidths=0.8)
    if queries is not None:
        points = _given.numbers("queries", queries, 2, "(Q, 2)")
        ax.plot(points[:, 0], points[:, 1], ".", color=_style.INK, markersize=3, alpha=0.5, label="queries", zorder=2)
    middle: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 4}
    for index in np.ndindex(precision.shape):
        (x, y), size, unit = keys[index], 2 / np.sqrt(precision[index]), index[0]
        circle = Ellipse((x, y), size, size, facecolor="none", edgecolor=colors[unit] * 0.7, linewidth=1.8, zorder=3)
        ax.add_patch(circle)
        ax.text(x, y, names[unit], weight="bold", fontsize=9, path_effects=HALO, **middle)
    return framed(ax, grid)


def em_paths(
    paths: "ArrayLike",
    grid: "ArrayLike | None" = None,
    density: "ArrayLike | None" = None,
    ax: Axes | None = None,
    *,
    modes: "ArrayLike | None" = None,
    mean: "ArrayLike | None" = None,
) -> Axes:
    """Draw the way of answers under EM, from their starts (hollow) to where they rest (filled), over the density they climb.

    Parameters
    ----------
    paths
        (iteration, start, 2).
    grid, density
        (H, W, 2) points and the density (H, W) there; both or neither.
    ax
        Axes to draw on; a new figure if None.
    modes, mean
        (N, 2) and (2,), marked and labelled.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Shapes that do not fit, NaN or infinity, a grid without its density or the other way round.
    """
    paths = _given.numbers("paths", paths, 3, "(iteration, start, 2)")
    if (grid is None) != (density is None):
        raise ValueError("grid and density belong together; give both, or neither")
    ax = _style.axes(ax, 4.6, 4.0)
    if grid is not None:
        grid = regular(grid)
        height = over(grid, "density", density, "evaluate it on the grid")
        ax.contourf(grid[..., 0], grid[..., 1], height, levels=12, cmap=_style.SEQUENTIAL)
        framed(ax, grid)
    for start in range(paths.shape[1]):
        ax.plot(paths[:, start, 0], paths[:, start, 1], "-", color="white", linewidth=0.9, alpha=0.85)
    ax.plot(*paths[0].T, "o", markerfacecolor="none", markeredgecolor="white", markersize=4, label="start")
    ax.plot(*paths[-1].T, "o", color="white", markeredgecolor=_style.INK, markersize=6, label="end of EM")
    if modes is not None:
        points = _given.numbers("modes", modes, 2, "(N, 2)")
        ax.plot(*points.T, "+", color="#D55E00", markersize=11, markeredgewidth=2.2, label="mode")
    if mean is not None:
        point = _given.numbers("mean", mean, 1, "(2,)")
        ax.plot(*point, "D", color="#E69F00", markeredgecolor=_style.INK, markersize=7, label="posterior mean")
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15), "ncols": 4}
    ax.legend(fontsize=7, facecolor="#9a9a9a", handletextpad=0.2, **below)
    return ax


def regular(grid: ArrayLike) -> np.ndarray:
    """Return the grid (H, W, 2) as an array, or raise a ValueError."""
    array = _given.numbers("grid", grid, 3, "(H, W, 2)")
    if array.shape[-1] != 2 or min(array.shape[:2]) < 2:
        raise _given.misfit("grid", "(H, W, 2), H and W at least 2,", array.shape, "use plots.query_grid")
    return array


def over(grid: np.ndarray, name: str, values: "ArrayLike | None", repair: str) -> np.ndarray:
    """Return numbers, one at each point of a grid.

    Parameters
    ----------
    grid
        (H, W, 2).
    name
        Of the argument.
    values
        (H, W).
    repair
        What the error advises.

    Returns
    -------
    array
        (H, W).

    Raises
    ------
    ValueError
        Another shape, NaN or infinity.
    """
    height = _given.numbers(name, values, 2, "(H, W)")
    if height.shape != grid.shape[:2]:
        raise ValueError(f"{name} has shape {height.shape} but grid has {grid.shape[:2]} points; {repair}")
    return height


def _extent(grid: np.ndarray) -> tuple[float, float, float, float]:
    """Edges of the picture whose pixel centres are the grid points."""
    half = (grid[-1, -1] - grid[0, 0]) / (np.array(grid.shape[1::-1]) - 1) / 2
    low, high = grid[0, 0] - half, grid[-1, -1] + half
    return float(low[0]), float(high[0]), float(low[1]), float(high[1])


def framed(ax: Axes, grid: np.ndarray) -> Axes:
    """Make the grid the frame of the axes, with one scale for both directions."""
    ax.set(xlim=(grid[..., 0].min(), grid[..., 0].max()), ylim=(grid[..., 1].min(), grid[..., 1].max()))
    ax.set_aspect("equal")  # an isotropic unit is a circle
    return ax


__all__ = ["HALO", "em_paths", "framed", "over", "query_grid", "regular", "responsibilities"]
