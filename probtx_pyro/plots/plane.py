"""Pictures over a plane: responsible units, the energy of a memory, the ways of states and answers on them,
and ellipses.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps, patheffects
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.patches import Ellipse, FancyArrowPatch
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style

LEVELS = 14
PLANE = "choose two coordinates, one plane"
SHORTEST = 0.04  # of the frame's diagonal: a step below that gets no arrow
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
    points = _given.numbers("points", points, "(N, 2)", PLANE)
    low, high = points.min(0), points.max(0)
    low, high = low - margin * (high - low), high + margin * (high - low)
    return np.stack(np.meshgrid(*np.linspace(low, high, num, axis=1)), -1)


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
    """Show which unit explains a query at each point of the plane;
    each key is a circle of one standard deviation in its unit's colour.

    Parameters
    ----------
    grid
        (H, W, 2) points, regular, as `query_grid` makes them.
    responsibilities
        (H, W, U): attention of a query at each point.
    keys, key_precision
        (U, 2), and a scalar or (U,): centre and inverse variance of each unit; or of each of its keys, (U, R, 2) and
        (U, R).
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
    grid = _regular(grid)
    keys = _given.numbers("keys", keys, "(unit, 2) or (unit, component, 2)", PLANE)
    units = len(keys)
    shape = str((*grid.shape[:2], units))
    weights = _given.numbers("responsibilities", responsibilities, shape, "ask the model at grid.reshape(-1, 2)")
    precision = np.broadcast_to(_given.array("key_precision", key_precision, shape="(unit,)"), keys.shape[:-1])
    if (precision <= 0).any():
        raise ValueError("key_precision must be positive; it is the inverse variance of a unit")
    names = _given.names("unit_labels", unit_labels, units, "units", range(units))
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
        points = _given.numbers("queries", queries, "(Q, 2)", PLANE)
        ax.plot(*points.T, ".", color=_style.INK, markersize=3, alpha=0.5, label="queries", zorder=2)
    middle: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 4}
    for index in np.ndindex(precision.shape):
        (x, y), size, unit = keys[index], 2 / np.sqrt(precision[index]), index[0]
        circle = Ellipse((x, y), size, size, facecolor="none", edgecolor=colors[unit] * 0.7, linewidth=1.8, zorder=3)
        ax.add_patch(circle)
        ax.text(x, y, names[unit], weight="bold", fontsize=9, path_effects=HALO, **middle)
    return _framed(ax, grid)


def em_paths(
    paths: "ArrayLike",
    grid: "ArrayLike | None" = None,
    density: "ArrayLike | None" = None,
    ax: Axes | None = None,
    *,
    modes: "ArrayLike | None" = None,
    mean: "ArrayLike | None" = None,
) -> Axes:
    """Draw the way of answers under EM, from their starts (hollow) to where they rest (filled),
    over the density they climb.

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
    paths = _given.numbers("paths", paths, "(iteration, start, 2)", PLANE)
    if (grid is None) != (density is None):
        raise ValueError("grid and density belong together; give both, or neither")
    ax = _style.axes(ax, 4.6, 4.0)
    if grid is not None:
        grid = _regular(grid)
        height = _given.numbers("density", density, str(grid.shape[:2]), "evaluate it on the grid")
        ax.contourf(grid[..., 0], grid[..., 1], height, levels=12, cmap=_style.SEQUENTIAL)
        _framed(ax, grid)
    ax.plot(*paths.transpose(2, 0, 1), "-", color="white", linewidth=0.9, alpha=0.85)  # a line for each start
    ax.plot(*paths[0].T, "o", markerfacecolor="none", markeredgecolor="white", markersize=4, label="start")
    ax.plot(*paths[-1].T, "o", color="white", markeredgecolor=_style.INK, markersize=6, label="end of EM")
    if modes is not None:
        points = _given.numbers("modes", modes, "(N, 2)", PLANE)
        ax.plot(*points.T, "+", color="#D55E00", markersize=11, markeredgewidth=2.2, label="mode")
    if mean is not None:
        point = _given.numbers("mean", mean, "(2,)", PLANE)
        ax.plot(*point, "D", color="#E69F00", markeredgecolor=_style.INK, markersize=7, label="posterior mean")
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15), "ncols": 4}
    ax.legend(fontsize=7, facecolor="#9a9a9a", handletextpad=0.2, **below)
    return ax


def _regular(grid: ArrayLike) -> np.ndarray:
    """Return the grid (H, W, 2) as an array, or raise a ValueError."""
    array = _given.numbers("grid", grid, "(H, W, 2)", "use plots.query_grid")
    if min(array.shape[:2]) < 2:
        raise ValueError(f"grid must have 2 points or more a side, not {array.shape}; use plots.query_grid")
    return array


def _extent(grid: np.ndarray) -> tuple[float, float, float, float]:
    """Edges of the picture whose pixel centres are the grid points."""
    half = (grid[-1, -1] - grid[0, 0]) / (np.array(grid.shape[1::-1]) - 1) / 2
    low, high = grid[0, 0] - half, grid[-1, -1] + half
    return float(low[0]), float(high[0]), float(low[1]), float(high[1])


def _framed(ax: Axes, grid: np.ndarray) -> Axes:
    """Make the grid the frame of the axes, with one scale for both directions."""
    ax.set(xlim=(grid[..., 0].min(), grid[..., 0].max()), ylim=(grid[..., 1].min(), grid[..., 1].max()))
    ax.set_aspect("equal")  # an isotropic unit is a circle
    return ax


def energy_landscape(
    grid: "ArrayLike",
    energy: "ArrayLike",
    ax: Axes | None = None,
    *,
    patterns: "ArrayLike | None" = None,
    pattern_labels: Sequence | None = None,
    paths: "ArrayLike | None" = None,
) -> Axes:
    """Draw contours of the energy, dark where it is low, stored patterns as stars,
    and retrieval as arrows from start to end.

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
    grid = _regular(grid)
    height = _given.numbers("energy", energy, str(grid.shape[:2]), "ask the memory at grid.reshape(-1, 2)")
    points = _given.numbers("patterns", np.zeros((0, 2)) if patterns is None else patterns, "(N, 2)", PLANE)
    names = _given.names("pattern_labels", pattern_labels, len(points), "patterns", _given.labels_of(patterns, 0))
    ax = _style.axes(ax, 5.0, 4.0)
    levels = height.min() + max(float(np.ptp(height)), 1e-12) * np.linspace(0, 1, LEVELS) ** 2
    even = BoundaryNorm(levels, colormaps[_style.SEQUENTIAL].N)  # one shade for each band
    bands = ax.contourf(grid[..., 0], grid[..., 1], height, levels=levels, cmap=_style.SEQUENTIAL, norm=even)
    ax.contour(grid[..., 0], grid[..., 1], height, levels=levels[1:-1], colors="white", linewidths=0.3, alpha=0.6)
    bar = ax.figure.colorbar(bands, ax=ax, label="energy", shrink=0.9, ticks=levels[::3])
    bar.ax.set_yticklabels([f"{level:.2g}" for level in levels[::3]])
    _framed(ax, grid)
    if paths is not None:
        steps = _given.numbers("paths", paths, "(step, state, 2)", PLANE)
        _arrows(ax, steps, SHORTEST * float(np.hypot(*np.ptp(grid, (0, 1)))))
    if len(points):
        ax.plot(*points.T, "*", color="#E69F00", markeredgecolor=_style.INK, markersize=13, zorder=5, label="pattern")
    for point, name in zip(points, names, strict=False):
        ax.annotate(name, point, (6, 5), textcoords="offset points", weight="bold", path_effects=HALO, zorder=6)
    return ax


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
    """Draw retrieved vectors in the plane with their uncertainty:
    the ellipse that holds ``mass`` of the Normal with these moments.

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
    centers = _given.numbers("means", means, "(Q, 2)", PLANE)
    spreads = _given.numbers("covariances", covariances, str((*centers.shape, 2)), "give a matrix for each mean")
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
