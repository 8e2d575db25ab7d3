"""The picture of `benchmarks.evidence.unseen`, from its rows alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot

from probtx_pyro.plots import unit_color

FIGURE = Path(__file__).parents[2] / "docs" / "figures" / "evidence_unseen.png"


def draw(rows: list[dict[str, Any]], others: Sequence[str], ours: Sequence[str]) -> Path:
    """Write ``docs/figures/evidence_unseen.png``: AUROC of every method on every set, mean and standard deviation over seeds.

    Parameters
    ----------
    rows
        Of the table.
    others, ours
        Names of the methods, from top to bottom.
    """
    sets = list(dict.fromkeys(row["data"] for row in rows))
    figure, panels = pyplot.subplots(
        1, len(sets), figsize=(3.4 * len(sets) + 2.6, 5.6), sharey=True, layout="constrained", squeeze=False
    )
    names = [*others, *ours]
    for ax, data in zip(panels[0], sets, strict=True):
        own = [row["test"] for row in rows if row["data"] == data]
        for place, name in enumerate(names):
            if name not in own[0]:
                continue
            values = np.array([row[name][0] for row in own])
            color, marker = (unit_color(1), "s") if name in others else (unit_color(0), "o")
            ax.errorbar(
                values.mean(),
                place,
                xerr=values.std(ddof=1) if len(values) > 1 else 0.0,
                color=color,
                marker=marker,
                markersize=7,
                linewidth=2,
            )
        ax.set(title=data, xlabel="AUROC", yticks=range(len(names)), yticklabels=names)
        ax.grid(axis="x", linewidth=0.5, alpha=0.5)
        ax.axhline(len(others) - 0.5, color="black", linewidth=0.8)
        ax.spines[["top", "right"]].set_visible(False)
    panels[0, 0].invert_yaxis()
    figure.savefig(FIGURE, dpi=110)
    pyplot.close(figure)
    return FIGURE


__all__ = ["draw"]
