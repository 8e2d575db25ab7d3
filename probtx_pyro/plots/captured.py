"""Heads of trained transformers: how well their queries fit the mixture that softmax assumes, and their ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style
from probtx_pyro.plots._given import Result
from probtx_pyro.plots.attention import MOST_CELLS, attention_map, attention_of

DIVERGING = "PuOr_r"  # safe for colour-blind readers: orange above what was replicated, purple below
CELL = 0.62  # inches of a side
EVIDENCE = "log evidence"  # the statistic of `inspection.query_check` that has a panel of its own
MOST_NAMES = 40  # of queries that can be read at the side of a map


def head_report(
    attention: "ArrayLike | Result",
    effective_units: "ArrayLike | None" = None,
    observed_evidence: float | None = None,
    replicated_evidence: "ArrayLike | None" = None,
    p_values: Mapping[str, float] | None = None,
    query_labels: Sequence | None = None,
    unit_labels: Sequence | None = None,
    *,
    check: Result = None,
    head: Sequence[int] | None = None,
    example: int = 0,
    title: str = "",
    level: float = 0.05,
) -> Figure:
    """Show one head: its attention, over how many units each query spreads, and two views of the check of its queries.

    Parameters
    ----------
    attention
        What `inspection.capture`, `inspection.captured` or `inspection.capture_data` returned; or (Q, U), of one
        example and head.
    effective_units
        (Q,), as ``captured.effective_units()``; the exponential of the entropy of ``attention`` if None. The upper axis
        reads their logarithm, the entropy in nats.
    observed_evidence, replicated_evidence
        Mean log evidence of the real queries, and of each replicate, (draw,): one head of ``check.observed`` and
        ``check.replicated``. Those of ``check`` if None; without either, and without p-values, the lower panels are
        left out.
    p_values
        By name of the statistic: one head of ``check.p_values``. Those below ``level`` are filled.
    query_labels, unit_labels
        Tokens, one for each row and column; a long text is drawn without.
    check
        The result of `inspection.query_check` on what was captured. Grey marks beside the p-values are those of its
        controls; under the evidence stands the mean log density of the real queries under each.
    head
        Which head of what was captured: an index for each of its axes but those of the batch, such as
        ``check.ranking[1]``. The worst one of ``check`` if None, or the first.
    example
        Which example of the batch.
    title
        Written above; the names of the layer and the head of what was captured if empty.
    level
        Where the line in the panel of p-values stands.

    Returns
    -------
    Figure

    Raises
    ------
    ValueError
        Shapes that do not fit, a head that is not there, no statistic or replicate, p-values outside (0, 1], or a check
        without the log evidence.
    """
    attention = attention_of(attention, "captured")
    if isinstance(attention, xarray.DataArray) and (attention.ndim > 2 or check is None):
        sizes = {str(dim): attention.sizes[dim] for dim in attention.dims[:-2]}
        batch = {dim: example for dim in sizes if dim.startswith("batch")}
        chosen = _head(head, {dim: n for dim, n in sizes.items() if dim not in batch}, check)
        _inside("example", [*batch.values()], [sizes[dim] for dim in batch])
        title = title or ", ".join(f"{dim} {attention[dim].values[i]}" for dim, i in chosen.items())
        attention = attention.isel(chosen | batch)
    elif check is not None:
        chosen = _head(head, dict(zip(check.dims, np.shape(check.discrepancy), strict=True)), check)
    if check is not None:
        observed_evidence, replicated_evidence, p_values = _of_check(check, tuple(chosen.values()))
    weights = _given.numbers("attention", attention, "(query, unit)")
    query_labels = _given.labels_of(attention, 0) if query_labels is None else query_labels
    unit_labels = _given.labels_of(attention, 1) if unit_labels is None else unit_labels
    if effective_units is None:
        effective_units = np.exp(-(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)) * (weights.sum(-1) > 0)
    spread = _given.numbers("effective_units", effective_units, "(query,)")
    _given.counted("effective_units", spread, len(weights), "queries")
    rows, columns = ([] if x is None or len(x) > MOST_NAMES else [*map(str, x)] for x in (query_labels, unit_labels))
    missing = [x is None for x in (observed_evidence, replicated_evidence, p_values)]
    if any(missing) and not all(missing):
        raise ValueError("observed_evidence, replicated_evidence and p_values belong together; give all, or check=")
    tall = 2.2 + min(max(0.16 * len(weights), 2.2), 5.0)
    heights = [tall] if all(missing) else [tall, 2.2]
    ratios: dict[str, Any] = {"height_ratios": heights, "width_ratios": [1.7, 1]}
    size = 9.5, sum(heights)
    figure, panels = pyplot.subplots(len(heights), 2, figsize=size, layout="constrained", squeeze=False, **ratios)
    attention_map(weights, rows or None, columns or None, panels[0, 0])
    _spread(spread, rows, panels[0, 1])
    if observed_evidence is not None and p_values is not None:
        replicated = _given.numbers("replicated_evidence", replicated_evidence, "(draw,)")
        values = _given.numbers("p_values", list(p_values.values()), "(statistic,)")
        if not len(values) or not len(replicated) or (values <= 0).any() or (values > 1).any():
            raise ValueError("p_values must be in (0, 1] and at least one, replicated_evidence at least one draw")
        _evidence(float(observed_evidence), replicated, panels[1, 0])
        _p_values(list(p_values), values, level, panels[1, 1])
        if check is not None and check.controls:
            _controls(check, tuple(chosen.values()), panels[1, 0], panels[1, 1])
    figure.suptitle(title)
    return figure


def _head(head: Sequence[int] | None, axes: Mapping[str, int], check: Result) -> dict[str, int]:
    """The index of the head along each of the axes, of which the sizes are given."""
    there = tuple(axes), tuple(axes.values())
    if check is not None and (tuple(check.dims), np.shape(check.discrepancy)) != there:
        other = f"{tuple(check.dims)} {np.shape(check.discrepancy)}"
        raise ValueError(f"check is of heads {other} but captured are {there[0]} {there[1]}; check what is drawn")
    if head is None:
        head = [0] * len(axes) if check is None else check.ranking[0]
    chosen = np.ravel(head).astype(int).tolist()
    _given.counted("head", chosen, len(axes), f"axes ({', '.join(axes)})")
    _inside("head", chosen, [*axes.values()])
    return dict(zip(axes, chosen, strict=True))


def _inside(name: str, chosen: list[int], sizes: list[int]) -> None:
    if any(not -n <= i < n for i, n in zip(chosen, sizes, strict=True)):
        raise ValueError(f"{name}: {tuple(chosen)} is outside {tuple(sizes)}; count from 0")


def _of_check(check: Result, head: tuple[int, ...]) -> tuple[float, np.ndarray, dict[str, float]]:
    """Observed and replicated log evidence of a head, and its p-values by statistic."""
    if EVIDENCE not in check.statistics:
        raise ValueError(f"check has no statistic {EVIDENCE!r}, only {check.statistics}; give it to query_check")
    row = check.statistics.index(EVIDENCE)
    p_values = {name: float(p[head]) for name, p in zip(check.statistics, check.p_values, strict=True)}
    return float(check.observed[row][head]), check.replicated[(row, slice(None), *head)], p_values


def _spread(spread: np.ndarray, labels: list[str], ax: Axes) -> None:
    """Beside the map, so that rows agree."""
    edges = np.arange(len(spread) + 1) - 0.5
    ax.stairs(spread, edges, orientation="horizontal", color=_style.unit_color(0), baseline=None)
    ax.set(ylim=(len(spread) - 0.5, -0.5), xlim=(0, 1.05 * max(spread.max(), 2.0)), xlabel="effective units")
    _style.ticks(ax, labels, [])
    entropy = ax.secondary_xaxis("top", functions=(lambda x: np.log(np.maximum(x, 1e-3)), np.exp))
    entropy.set_xlabel("entropy (nats)")
    marks = np.arange(0, np.log(ax.get_xlim()[1]), 1.0 if spread.max() > 5 else 0.5)
    entropy.set_xticks(marks, [f"{mark:g}" for mark in marks])
    ax.spines["right"].set_visible(False)


def _evidence(observed: float, replicated: np.ndarray, ax: Axes) -> None:
    bins = min(30, max(5, len(replicated) // 8))
    ax.hist(replicated, bins, color=_style.UNIT_COLORS[4], label="drawn from the mixture")
    ax.axvline(observed, color=_style.INK, linewidth=2, linestyle="--", label="real queries")
    ax.locator_params(axis="x", nbins=4)
    ax.legend(fontsize=8, frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    _style.finished(ax, "log evidence, mean over queries (nats)", "replicates")


def _p_values(names: list[str], values: np.ndarray, level: float, ax: Axes) -> None:
    place, low = np.arange(len(names)), values < level
    ax.axvline(level, color=_style.INK, linestyle=":", linewidth=1)
    ax.hlines(place, values, 1, color=_style.unit_color(0), linewidth=1)
    for face, chosen in ((_style.unit_color(0), low), ("white", ~low)):
        ax.plot(values[chosen], place[chosen], "o", color=_style.unit_color(0), markerfacecolor=face)
    _style.ticks(ax, names, [])
    ax.set(xscale="log", xlim=(min(values.min(), level) / 2, 1.2), ylim=(len(names) - 0.5, -0.5))
    _style.finished(ax, "p-value", "")


def _controls(check: Result, head: tuple[int, ...], evidence: Axes, p_values: Axes) -> None:
    """Add the controls of a check of a head: p-values as grey marks, and log densities in words."""
    told = [f"{name}: {float(each.log_density[head]):.1f}" for name, each in check.rows.items()]
    lines = ["   ".join(told[i : i + 2]) for i in range(0, len(told), 2)]
    evidence.set_xlabel("\n".join([evidence.get_xlabel(), *lines]), fontsize=8)
    for (name, each), marker in zip(check.controls.items(), _style.MARKERS[1:] * len(check.controls), strict=False):
        values = each.p_values[(slice(None), *head)]
        p_values.scatter(values, np.arange(len(values)), marker=marker, s=24, color="0.55", label=name, zorder=0)
    low = min(p_values.get_xlim()[0], *(float(each.p_values.min()) / 2 for each in check.controls.values()))
    p_values.set_xlim(left=low)
    p_values.legend(fontsize=7, frameon=False, loc="lower center", bbox_to_anchor=(0.4, 1.0))


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
    """Show where attention sinks are, a grid of layers and heads, and how far a constant mass and a constant logit are from them.

    Parameters
    ----------
    mass
        The result of `inspection.sinks`, which brings the rest; or the mass of the unit by head, (layer, head).
    constant_mass, constant_logit
        Total variation of attention from what each predicts, (layer, head): the medians over heads are drawn, in a band from the
        first to the last quartile.
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
