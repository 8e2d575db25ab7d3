"""Heads of trained transformers: how well their queries fit the mixture that softmax assumes, and their ranks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style
from probtx_pyro.plots._given import Result
from probtx_pyro.plots.attention import MOST_CELLS

DIVERGING = "PuOr_r"  # safe for colour-blind readers: orange above what was replicated, purple below
CELL = 0.62  # inches of a side


def query_check(
    z_scores: "ArrayLike | Result",
    statistics: Sequence | None = None,
    *,
    p_values: "ArrayLike | None" = None,
    level: float = 0.05,
    largest: float = 10.0,
) -> Figure:
    """Show how far the real queries are from replicates: a grid of layers and heads for each statistic,
    and a row of grids for each control.

    Parameters
    ----------
    z_scores
        The result of `inspection.query_check`, which brings statistics, p-values, controls and the names of its axes;
        or (statistic, layer, head). (statistic, head) is one layer.
    statistics
        Their names.
    p_values
        As ``z_scores``: cells whose p-value is at least ``level`` are framed: there the mixture is not refuted.
    level
        Below which a p-value refutes the mixture.
    largest
        |z| at the ends of the colour scale; cells beyond keep its end colour and their number.

    Returns
    -------
    Figure

    Raises
    ------
    ValueError
        Shapes or labels that do not fit, NaN or infinity, ``largest`` not positive.
    """
    axes, coords, controls = ["layer", "head"], dict[str, Sequence](), dict[str, Any]()
    if hasattr(z_scores, "z_scores"):
        check: Result = z_scores
        z_scores = check.z_scores
        statistics = check.statistics if statistics is None else statistics
        p_values = check.p_values if p_values is None else p_values
        axes, coords, controls = [*axes, *check.dims][-2:], check.coords, check.controls
    elif statistics is None:
        raise ValueError("statistics is missing; name those of z_scores, or give what inspection.query_check returned")
    given = _given.numbers("z_scores", z_scores, "(statistic, layer, head) or (statistic, head)")
    scores = given[:, None] if given.ndim == 2 else given
    kinds, layers, heads = scores.shape
    titles = _given.names("statistics", statistics, kinds, "statistics")
    names = [coords.get(name, range(n)) for name, n in zip(axes, (layers, heads), strict=True)]
    if not largest > 0 or not scores.size:
        raise ValueError(f"largest must be positive and z_scores not empty, not {largest} and shape {given.shape}")
    known = np.full(given.shape, -np.inf) if p_values is None else _given.array("p_values", p_values)
    if known.shape != given.shape:
        raise ValueError(f"p_values has shape {known.shape} but z_scores has {given.shape}; give one for each")
    rows = [("mixture", scores, known.reshape(scores.shape))]
    rows += [
        (name, *(x.reshape(scores.shape) for x in (each.z_scores, each.p_values))) for name, each in controls.items()
    ]
    size = 1.6 + kinds * (CELL * heads + 0.5), 1.0 + len(rows) * (0.5 + CELL * layers)
    layout: dict[str, Any] = {"figsize": size, "layout": "constrained", "sharex": True, "sharey": True}
    figure, panels = pyplot.subplots(len(rows), kinds, squeeze=False, **layout)
    for beside, (name, z, p) in zip(panels, rows, strict=True):
        for panel, grid, low in zip(beside, z, p < level, strict=True):
            image = _grid(panel, grid, low, largest)
            _style.ticks(panel, *names)
        beside[0].set_ylabel(f"{name}\n{axes[0]}" if controls else axes[0])
    for column, name in zip(panels.T, titles, strict=True):
        column[0].set_title(name, fontsize=9)
        column[-1].set_xlabel(axes[1])
    figure.colorbar(image, ax=list(panels.flat), label="z, real against drawn", extend="both", shrink=0.9)
    return figure


def _grid(panel: Axes, grid: np.ndarray, low: np.ndarray, largest: float) -> AxesImage:
    """One statistic of all heads; cells that are not ``low`` are framed."""
    image = panel.imshow(grid, cmap=DIVERGING, vmin=-largest, vmax=largest)
    for (i, j), z in np.ndenumerate(grid):
        if grid.size <= MOST_CELLS:
            _style.cell(panel, i, j, f"{z:.0f}" if abs(z) >= 10 else f"{z:.1f}", dark=abs(z) > 0.7 * largest)
        if not low[i, j]:
            frame: dict[str, Any] = {"fill": False, "color": _style.INK, "linewidth": 1.5}
            panel.add_patch(pyplot.Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, **frame))
    return image


def sinks(
    mass: "ArrayLike | Result",
    constant_mass: "ArrayLike | None" = None,
    constant_logit: "ArrayLike | None" = None,
    labels: Sequence | None = None,
) -> Figure:
    """Show where attention sinks are, a grid of layers and heads, and how far a constant mass and a constant logit are
    from them.

    Parameters
    ----------
    mass
        The result of `inspection.sinks`, which brings the rest; or the mass of the unit by head, (layer, head).
    constant_mass, constant_logit
        Total variation of attention from what each predicts, (layer, head): the medians over heads are drawn, in a band
        from the first to the last quartile.
    labels
        Of the layers; None is their numbers.

    Returns
    -------
    Figure

    Raises
    ------
    ValueError
        Shapes that do not fit, NaN or infinity.
    """
    given: Result = mass
    parts = {"mass": mass, "constant_mass": constant_mass, "constant_logit": constant_logit}
    if hasattr(given, "constant_logit"):
        parts = {name: getattr(given, name) for name in parts}
    axes = "(layer, head) or (head)"
    shown = {name: np.atleast_2d(_given.numbers(name, x, axes)) for name, x in parts.items() if x is not None}
    grid = shown["mass"]
    for name, each in shown.items():
        if each.shape != grid.shape:
            raise ValueError(f"{name} has shape {each.shape} but mass has {grid.shape}; give one for each head")
    rows = range(len(grid)) if labels is None else _given.names("labels", labels, len(grid), "layers")
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(9.5, 1.8 + 0.16 * len(grid)), layout="constrained", width_ratios=(1, 1.6)
    )
    image = left.imshow(grid, cmap=_style.SEQUENTIAL, vmin=0, vmax=1, aspect="auto")
    left.set(xlabel="head", ylabel="layer")
    if labels is not None:
        left.set_yticks(range(len(grid)), rows, fontsize=7)
    figure.colorbar(image, ax=left, label="attention to the unit")
    place = np.arange(len(grid))
    names = {"mass": "without the unit", "constant_mass": "constant mass", "constant_logit": "constant logit"}
    for i, (name, each) in enumerate(shown.items()):
        low, middle, high = np.quantile(each, [0.25, 0.5, 0.75], axis=1)
        right.fill_between(place, low, high, color=_style.unit_color(i), alpha=0.15, linewidth=0)
        right.plot(place, middle, label=names[name], marker=_style.MARKERS[i], markersize=4, **_line(i))
    _style.finished(right, "layer", "total variation", legend=True, ylim=(0, None))
    return figure


def rank_spectra(spectra: "Sequence[ArrayLike]", labels: Sequence | None = None, ax: Axes | None = None) -> Axes:
    """Show the singular values of several sets of attention matrices: the median matrix,
    and a band from the first to the last decile.

    Parameters
    ----------
    spectra
        One array (..., N) for each set, as `inspection.rank_spectrum` gives them; the leading axes count matrices.
    labels
        One for each set.
    ax
        Axes to draw on; a new figure if None.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Nothing to draw, a spectrum without values, or labels that do not count the sets.
    """
    sets = [_given.numbers(f"spectra[{i}]", x, "(..., value)") for i, x in enumerate(spectra)]
    if not sets:
        raise ValueError("spectra is empty; give an array for each set of matrices")
    for i, matrices in enumerate(sets):
        if not matrices.size:
            raise ValueError(f"spectra[{i}] must have shape (..., value) but is empty; give at least one matrix")
    names = _given.names("labels", labels, len(sets), "spectra", [""] * len(sets))
    ax = _style.axes(ax)
    for i, matrices in enumerate(sets):
        place = np.arange(1, matrices.shape[-1] + 1)
        low, middle, high = np.quantile(matrices.reshape(-1, len(place)), [0.1, 0.5, 0.9], axis=0)
        ax.fill_between(place, low, high, color=_style.unit_color(i), alpha=0.15, linewidth=0)
        ax.plot(place, middle, label=names[i], **_line(i))
    ax.set_yscale("log")
    ax.set(ylim=(max(min(float(np.quantile(x, 0.1)) for x in sets), 1e-6) / 2, 1.5))
    return _style.finished(ax, "singular value, from the largest", "share of the largest", labels is not None)


def _line(series: int) -> dict[str, Any]:
    return {"color": _style.unit_color(series), "linestyle": _style.DASHES[series % 4], "linewidth": 1.6}
