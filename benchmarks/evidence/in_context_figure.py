"""The picture of `benchmarks.evidence.in_context`, from its rows alone."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes

from probtx_pyro.plots import unit_color

FIGURE = Path(__file__).parents[2] / "docs" / "figures" / "in_context.png"
TITLES = {"own": "its own text: tiny Shakespeare, test part", "other": "another text: Python's help topics"}
LOOKS = {  # way to read: colour, dash, marker
    "softmax": (7, "-", "o"),
    "Gaussian": (4, "-", "s"),
    "keys": (0, "-", "^"),
    "shift": (5, "-", "D"),
    "keys afterwards": (0, "--", "v"),
    "shift afterwards": (5, "--", "P"),
}
CONTEXT = 32


def draw(rows: list[dict[str, Any]], file: Path = FIGURE) -> None:
    """Draw perplexity by position above, and below it the change from the Gaussian model without a step, in per cent."""
    found = {(row["way"], row["text"]): np.array(row["nats by position"]) for row in rows}
    figure, panels = pyplot.subplots(2, 2, figsize=(12, 8), sharex=True, layout="constrained")
    for column, (text, title) in enumerate(TITLES.items()):
        bins = found["Gaussian", text].shape[1]
        middle = (np.arange(bins) + 0.5) * CONTEXT / bins
        for way, (color, dash, marker) in LOOKS.items():
            nats, base = found[way, text], found["Gaussian", text]
            look = {"color": unit_color(color), "linestyle": dash, "marker": marker, "markersize": 6, "linewidth": 2}
            panels[0, column].plot(middle, np.exp(nats.mean(0)), label=way, **look)
            if way != "Gaussian":
                _change(panels[1, column], middle, 100 * np.expm1(nats - base), look)
        panels[0, column].set_title(title, fontsize=15)
        panels[1, column].axhline(0, color=unit_color(4), linewidth=2)
        panels[1, column].set_xlabel("position in the context", fontsize=14)
    panels[0, 0].set_ylabel("perplexity of a character", fontsize=14)
    panels[1, 0].set_ylabel("change from Gaussian, %", fontsize=14)
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=13, frameon=False
    )
    for ax in panels.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=13)
    figure.savefig(file, dpi=100)
    pyplot.close(figure)


def _change(ax: Axes, middle: np.ndarray, change: np.ndarray, look: dict[str, Any]) -> None:
    """Draw the mean over the seeds, the smallest to the largest as a band."""
    ax.plot(middle, change.mean(0), **look)
    ax.fill_between(middle, change.min(0), change.max(0), color=look["color"], alpha=0.15, linewidth=0)


__all__ = ["draw"]
