"""The picture of `benchmarks.retrieval`, from its rows alone."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes

from probtx_pyro.plots import unit_color

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "retrieval.png"
KINDS = ("alone, the right one", "alone, another", "metastable average", "global average")
Rows = list[dict[str, Any]]


def draw(rows: Rows) -> None:
    """Write ``docs/figures/retrieval.png``: Fashion images over β and load, where states end, and capacity against D."""
    figure, panels = pyplot.subplots(2, 3, figsize=(14, 8), layout="constrained")
    fashion = [row for row in rows if row.get("data") == "fashion"]
    _corruptions(fashion, panels[0, 0])
    _maps(fashion, panels[0, 1])
    _loads(fashion, panels[0, 2])
    _steps(fashion, panels[1, 0])
    _ends(fashion, panels[1, 1])
    _capacity(rows, panels[1, 2])
    for ax in panels.flat:
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURE, dpi=100)
    pyplot.close(figure)


def _corruptions(rows: Rows, ax: Axes) -> None:
    """One step of softmax; the band reaches down to the worst seed."""
    plain = [
        r
        for r in rows
        if r["what"] == "beta" and (r["transformation"], r["type"], r["steps"]) == ("softmax", "float64", 1)
    ]
    for place, row in enumerate(plain):
        color = unit_color(place)
        ax.plot(row["beta"], row["retrieved"], color=color, linewidth=1.5, label=row["corruption"])
        ax.fill_between(row["beta"], row["least"], row["retrieved"], color=color, alpha=0.2, linewidth=0)
    (known,) = (r for r in rows if r["what"] == "beta, lower half known to be erased")
    ax.plot(
        known["beta"],
        known["retrieved"],
        color=unit_color(1),
        linewidth=1.3,
        linestyle="--",
        label="lower half, known to be",
    )
    ax.set(xscale="log", xlabel="β", ylabel="share retrieved in one step", ylim=(-0.02, 1.02))
    ax.set_title("100 Fashion images, of length 1")
    ax.legend(fontsize=8, frameon=False, loc="lower right")


def _maps(rows: Rows, ax: Axes) -> None:
    """Maps onto the simplex, and five steps of softmax, a random half erased."""
    half = [
        r for r in rows if r["what"] == "beta" and r["corruption"] == "random half erased" and r["type"] == "float64"
    ]
    for place, row in enumerate(half):
        steps = "" if row["steps"] == 1 else f", {row['steps']} steps"
        ax.plot(
            row["beta"],
            row["retrieved"],
            color=unit_color(place),
            linewidth=1.5,
            label=f"{row['transformation']}{steps}",
        )
    ax.set(xscale="log", xlabel="β", ylabel="share retrieved", ylim=(-0.02, 1.02))
    ax.set_title("a random half erased")
    ax.legend(fontsize=8, frameon=False)


def _loads(rows: Rows, ax: Axes, beta: float = 1000.0) -> None:
    """Share retrieved over the number stored, for each share erased."""
    (row,) = (r for r in rows if r["what"] == "load" and r["transformation"] == "softmax" and r["beta"] == beta)
    for place, share in enumerate(row["erased"]):
        found = np.array(row["retrieved"])[:, place]
        ax.plot(row["stored"], found, color=unit_color(place), marker="o", markersize=4, label=f"{share:.0%} erased")
    ax.set(xscale="log", xlabel="images stored", ylabel="share retrieved in one step", ylim=(-0.02, 1.02))
    ax.set_title(f"softmax, β = {beta:g}")
    ax.legend(fontsize=8, frameon=False, loc="lower left")


def _steps(rows: Rows, ax: Axes) -> None:
    """Steps until a state moves by less than 1e-6: the median, and the slowest state dashed."""
    for place, load in enumerate(sorted({r["stored"] for r in rows if r["what"] == "steps"})):
        mine = [r for r in rows if r["what"] == "steps" and r["stored"] == load]
        betas, color = [r["beta"] for r in mine], unit_color(place)
        ax.plot(betas, [r["median steps"] for r in mine], color=color, linewidth=1.5, label=f"{load} stored")
        ax.plot(betas, [r["most steps"] for r in mine], color=color, linewidth=1, linestyle="--")
    ax.set(xscale="log", yscale="log", xlabel="β", ylabel="steps to 1e-6 (dashed: most)")
    ax.set_title("a random half erased: convergence")
    ax.legend(fontsize=8, frameon=False)


def _ends(rows: Rows, ax: Axes) -> None:
    """What the states are in the end, for the largest load."""
    load = max(r["stored"] for r in rows if r["what"] == "steps")
    mine = [r for r in rows if r["what"] == "steps" and r["stored"] == load]
    ax.stackplot(
        [r["beta"] for r in mine], [[r[kind] for r in mine] for kind in KINDS],
        labels=KINDS, colors=[unit_color(place) for place in (0, 5, 1, 4)], alpha=0.85,
    )  # fmt: skip
    ax.set(xscale="log", xlabel="β", ylabel="share of states", ylim=(0, 1))
    ax.margins(x=0)
    ax.set_title(f"where they end, {load} stored")
    ax.legend(fontsize=8, loc="center right")


def _capacity(rows: Rows, ax: Axes) -> None:
    """Capacity for each seed, the fitted laws, what theory says for large β (dotted), and the classical network's 0.138 D."""
    for place, row in enumerate(r for r in rows if r["what"] == "capacity"):
        dims, color = np.array(row["D"]), unit_color(place)
        for seed in np.array(row["N"], dtype=float).T:
            ax.plot(dims, seed, color=color, marker="o", markersize=3, linestyle="none")
        fitted = dims[dims >= row["fitted from D"]]
        label = f"noise {row['noise']:g}, K = {row['K']:g}: c = {row['c']:.2f}"
        ax.plot(fitted, row["a"] * row["c"] ** fitted, color=color, linewidth=1.5, label=label)
    for place, row in enumerate(r for r in rows if r["what"] == "capacity" and r["K"] == 3):
        label = None if place else "for β → ∞, by theory"
        ax.plot(row["D"], row["N for large beta"], color="black", linewidth=1, linestyle=":", label=label)
    far = np.linspace(6, 28, 50)
    ax.plot(far, 0.138 * far, color="black", linewidth=1, linestyle="--", label="classical, 0.138 D")
    ax.set(yscale="log", xlabel="D", ylabel="capacity (99 % in one step)", ylim=(0.5, 1e7))
    ax.set_title("random patterns: N = a cᴰ")
    ax.legend(fontsize=7, frameon=False, loc="upper left", ncols=2)


__all__ = ["draw"]
