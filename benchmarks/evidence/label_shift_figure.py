"""The picture of `benchmarks.evidence.label_shift`, from its rows alone."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes

from probtx_pyro.plots import unit_color

FIGURE = Path(__file__).parents[2] / "docs" / "figures" / "evidence_label_shift.png"
CORRECTED = ("nothing", "BBSE", "RLLS", "EM after BCTS", "ours, learned")
INTERVALS = ("BBSE", "ours, Dirichlet(1)", "ours, learned")
COLORS = dict(zip((*CORRECTED, "ours, Dirichlet(1)"), (7, 1, 2, 5, 0, 4), strict=True))
MARKERS = {"logistic": "s", "memory": "o"}


def draw(rows: list[dict[str, Any]]) -> Path:
    """Write ``docs/figures/evidence_label_shift.png``: accuracy, and coverage of the 90 % intervals, of each set and shift."""
    sets = list(dict.fromkeys(row["data"] for row in rows))
    figure, panels = pyplot.subplots(
        2, len(sets), figsize=(4.6 * len(sets) + 1, 8), layout="constrained", squeeze=False
    )
    for column, data in enumerate(sets):
        own = [row for row in rows if row["data"] == data]
        _series(own, CORRECTED, 0, panels[0, column])
        panels[0, column].set(title=data, ylabel="accuracy")
        panels[1, column].axhspan(0.85, 0.95, color="#dddddd")
        _series(own, INTERVALS, 5, panels[1, column])
        panels[1, column].set(ylabel="shares inside their 90 % interval", ylim=(0, 1.02))
    for row in panels:
        row[-1].legend(
            *row[-1].get_legend_handles_labels(), fontsize=9, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5)
        )
    figure.savefig(FIGURE, dpi=110)
    pyplot.close(figure)
    return FIGURE


def _series(rows: list[dict[str, Any]], methods: tuple[str, ...], place: int, ax: Axes) -> None:
    """Draw mean and standard deviation over seeds of a score, by its place, over shifts; squares are the logistic regression."""
    shifts = list(dict.fromkeys(row["shift"] for row in rows))
    names = [(who, method) for method in methods for who in MARKERS if f"{who}, {method}" in rows[0]["test"]]
    for number, (who, method) in enumerate(names):
        values = [
            np.array([row["test"][f"{who}, {method}"][place] for row in rows if row["shift"] == shift], float)
            for shift in shifts
        ]
        x = np.arange(len(shifts)) + (number - (len(names) - 1) / 2) * 0.8 / len(names)
        ax.errorbar(
            x, [v.mean() for v in values], yerr=[v.std(ddof=1) if len(v) > 1 else 0.0 for v in values], linestyle="none",
            marker=MARKERS[who], markersize=7, color=unit_color(COLORS[method]), mfc="white" if who == "logistic" else None,
            label=f"{who}, {method.removeprefix('ours, ')}",
        )  # fmt: skip
    ax.set_xticks(range(len(shifts)), shifts)
    ax.grid(axis="y", linewidth=0.5, alpha=0.5)
    ax.spines[["top", "right"]].set_visible(False)


__all__ = ["draw"]
