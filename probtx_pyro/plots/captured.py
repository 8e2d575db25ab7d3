"""A head of a trained transformer, and how well its queries fit the mixture that softmax assumes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from probtx_pyro.plots import style
from probtx_pyro.plots.attention import attention_map

DIVERGING = "PuOr_r"  # safe for colour-blind readers: orange above what was replicated, purple below
MOST_CELLS = 150  # of a grid that carries its numbers
MOST_NAMES = 40  # of queries that can be read at the side of a map


def head_report(
    attention: ArrayLike,
    effective_units: ArrayLike,
    observed_evidence: float,
    replicated_evidence: ArrayLike,
    p_values: Mapping[str, float],
    query_labels: Sequence | None = None,
    unit_labels: Sequence | None = None,
    *,
    title: str = "",
    level: float = 0.05,
) -> Figure:
    """One head in four panels: its attention, over how many units each query spreads, and two views of the check of its queries.

    Parameters
    ----------
    attention
        (Q, U): of one example and head.
    effective_units
        (Q,), as ``captured.effective_units()``; the upper axis reads their logarithm, the entropy in nats.
    observed_evidence, replicated_evidence
        Mean log evidence of the real queries, and of each replicate, (draw,): one head of ``check.observed`` and ``check.replicated``.
    p_values
        By name of the statistic: one head of ``check.p_values``. Those below ``level`` are filled.
    query_labels, unit_labels
        Tokens, one for each row and column; a long text is drawn without.
    title
        Such as the names of the layer and the head.
    level
        Where the line in the panel of p-values stands.

    Returns
    -------
    Figure

    Raises
    ------
    ValueError
        Shapes that do not fit, no statistic or replicate, p-values outside (0, 1].
    """
    weights = style.numbers("attention", attention, 2, "(query, unit)")
    spread = style.numbers("effective_units", effective_units, 1, "(query,)")
    replicated = style.numbers("replicated_evidence", replicated_evidence, 1, "(draw,)")
    if len(spread) != len(weights):
        raise ValueError(
            f"effective_units has {len(spread)} queries but attention has {len(weights)}; give one for each"
        )
    values = style.numbers("p_values", list(p_values.values()), 1, "(statistic,)")
    if not len(values) or not len(replicated) or (values <= 0).any() or (values > 1).any():
        raise ValueError("p_values must hold at least one value in (0, 1], and replicated_evidence at least one draw")
    rows, columns = (x if x is None or len(x) <= MOST_NAMES else None for x in (query_labels, unit_labels))
    tall = 2.2 + min(max(0.16 * len(weights), 2.2), 5.0)
    figure, panels = pyplot.subplots(
        2, 2, figsize=(9.5, tall + 2.2), layout="constrained", height_ratios=[tall, 2.2], width_ratios=[1.7, 1]
    )
    attention_map(weights, rows, columns, panels[0, 0])
    _spread(spread, rows, panels[0, 1])
    _evidence(float(observed_evidence), replicated, panels[1, 0])
    _p_values(list(p_values), values, level, panels[1, 1])
    figure.suptitle(title)
    return figure


def _spread(spread: np.ndarray, labels: Sequence | None, ax: Axes) -> None:
    """Beside the map, so that rows agree."""
    ax.stairs(
        spread, np.arange(len(spread) + 1) - 0.5, orientation="horizontal", color=style.unit_color(0), baseline=None
    )
    ax.set(ylim=(len(spread) - 0.5, -0.5), xlim=(0, 1.05 * max(spread.max(), 2.0)), xlabel="effective units")
    if labels is not None:
        ax.set_yticks(range(len(spread)), [str(x) for x in labels])
    to_units: Any = (_log, np.exp)
    entropy = ax.secondary_xaxis("top", functions=to_units)
    entropy.set_xlabel("entropy (nats)")
    marks = np.arange(0, np.log(ax.get_xlim()[1]), 1.0 if spread.max() > 5 else 0.5)
    entropy.set_xticks(marks, [f"{mark:g}" for mark in marks])
    ax.spines["right"].set_visible(False)


def _log(x: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(x, 1e-3))


def _evidence(observed: float, replicated: np.ndarray, ax: Axes) -> None:
    ax.hist(
        replicated,
        bins=min(30, max(5, len(replicated) // 8)),
        color=style.UNIT_COLORS[4],
        label="drawn from the mixture",
    )
    ax.axvline(observed, color=style.INK, linewidth=2, linestyle="--", label="real queries")
    ax.set(xlabel="log evidence, mean over queries (nats)", ylabel="replicates")
    ax.locator_params(axis="x", nbins=4)
    ax.legend(fontsize=8, frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    style.bare(ax)


def _p_values(names: list[str], values: np.ndarray, level: float, ax: Axes) -> None:
    place, low = np.arange(len(names)), values < level
    ax.axvline(level, color=style.INK, linestyle=":", linewidth=1)
    ax.hlines(place, values, 1, color=style.unit_color(0), linewidth=1)
    for filled, chosen in ((True, low), (False, ~low)):
        face = style.unit_color(0) if filled else "white"
        ax.plot(values[chosen], place[chosen], "o", color=style.unit_color(0), markerfacecolor=face)
    ax.set(xscale="log", xlim=(min(values.min(), level) / 2, 1.2), ylim=(len(names) - 0.5, -0.5), xlabel="p-value")
    ax.set_yticks(place, names)
    style.bare(ax)


def query_check(
    z_scores: ArrayLike,
    statistics: Sequence,
    layer_labels: Sequence | None = None,
    head_labels: Sequence | None = None,
    *,
    p_values: ArrayLike | None = None,
    level: float = 0.05,
    largest: float = 10.0,
) -> Figure:
    """How far the real queries are from replicates: a grid of layers and heads for each statistic.

    Parameters
    ----------
    z_scores
        (statistic, layer, head), as ``check.z_scores``; (statistic, head) is one layer.
    statistics
        Their names, as ``check.statistics``.
    layer_labels, head_labels
        Names of rows and columns; numbers from 0 if None.
    p_values
        As ``z_scores``: cells whose p-value is at least ``level`` are framed: there the mixture is not refuted.
    level
        Of the p-values.
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
    given = np.asarray(z_scores, dtype=float)
    scores = style.numbers("z_scores", given[:, None] if given.ndim == 2 else given, 3, "(statistic, layer, head)")
    kinds, layers, heads = scores.shape
    wanted = {
        "statistics": (statistics, kinds),
        "layer_labels": (layer_labels, layers),
        "head_labels": (head_labels, heads),
    }
    for name, (labels, n) in wanted.items():
        if labels is not None and len(labels) != n:
            raise ValueError(f"{name} has {len(labels)} names but z_scores has {n}; give one for each")
    if p_values is not None and np.shape(p_values) != given.shape:
        raise ValueError(f"p_values has shape {np.shape(p_values)} but z_scores has {given.shape}; give one for each")
    if not largest > 0 or not scores.size:
        raise ValueError(f"largest must be positive and z_scores not empty, not {largest} and shape {given.shape}")
    refuted = np.ones(scores.shape, bool) if p_values is None else np.reshape(p_values, scores.shape) < level
    side = 0.62
    figure, panels = pyplot.subplots(
        1, kinds, figsize=(1.6 + kinds * (side * heads + 0.5), 1.5 + side * layers), layout="constrained",
        sharey=True, squeeze=False,
    )  # fmt: skip
    for panel, name, grid, known in zip(panels[0], statistics, scores, refuted, strict=True):
        image = panel.imshow(grid, cmap=DIVERGING, vmin=-largest, vmax=largest)
        panel.set_title(str(name), fontsize=9)
        panel.set_xticks(range(heads), [str(x) for x in (range(heads) if head_labels is None else head_labels)])
        panel.set_yticks(range(layers), [str(x) for x in (range(layers) if layer_labels is None else layer_labels)])
        panel.set(xlabel="head")
        for (i, j), z in np.ndenumerate(grid):
            if grid.size <= MOST_CELLS:
                color = "white" if abs(z) > 0.7 * largest else "black"
                panel.text(
                    j, i, f"{z:.0f}" if abs(z) >= 10 else f"{z:.1f}", ha="center", va="center", color=color, fontsize=7
                )
            if not known[i, j]:
                panel.add_patch(
                    pyplot.Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, fill=False, color=style.INK, linewidth=1.5)
                )
    panels[0, 0].set(ylabel="layer")
    figure.colorbar(image, ax=list(panels[0]), label="z, real against drawn", extend="both", shrink=0.9)
    return figure


__all__ = ["head_report", "query_check"]
