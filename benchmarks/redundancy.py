"""How much the heads repeat each other and how many ranks they use; and how near K Gaussians of one width come to a density.

Run with ``python -m benchmarks.redundancy [--text wikitext2]``: shows what the runs of `benchmarks.language_modelling` have measured,
all models and seeds that are there, and measures the approximation. That is against p convolved with N(0, σ²I), and against p itself
with σ → 0, since at a fixed σ no mixture exceeds ``(2πσ²)^(-d/2)`` (erratum 20).
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot
from numpy.typing import NDArray

from benchmarks.approximation import approximation, draw_approximation
from benchmarks.reports import rows_of, write_table
from benchmarks.timing import RESULTS, write
from probtx_pyro.inspection import attention_rank, effective_keys, effective_rank, head_distances
from probtx_pyro.plots import unit_color

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "redundancy.png"
MEASURES = {
    "rank": "singular values that hold 90 % of the sum of squares",
    "effective rank": "effective rank",
    "keys": "keys attended to",
    "distance": "Jensen-Shannon distance between heads",
}


def redundancy(attention: NDArray[np.float32]) -> dict[str, Any]:
    """Means over rows and heads, by layer, of what `probtx_pyro.inspection` measures of (layer, row, head, query, unit)."""
    distances = head_distances(attention)
    apart = ~np.eye(distances.shape[-1], dtype=bool)
    found = {
        "rank": attention_rank(attention).mean((1, 2)),
        "effective rank": effective_rank(attention).mean((1, 2)),
        "keys": effective_keys(attention).mean((1, 2, 3)),
        "distance": distances[..., apart].mean((1, 2)),
    }
    return {name: [round(float(x), 4) for x in of_layers] for name, of_layers in found.items()}


def runs(text: str) -> dict[str, dict[int, dict[str, list[float]]]]:
    """What was measured, by model and seed."""
    found: dict[str, dict[int, dict[str, list[float]]]] = {}
    for path in sorted((RESULTS / "language_modelling").glob(f"{text}-*.json")):
        run = json.loads(path.read_text())
        if "redundancy" in run:
            found.setdefault(run["model"], {})[run["settings"]["seed"]] = run["redundancy"]
    return found


def means(found: dict[str, dict[int, dict[str, list[float]]]]) -> list[dict[str, Any]]:
    """Mean over the layers, for each model: mean over the seeds, and each seed."""
    rows = []
    for model, seeds in sorted(found.items(), key=lambda each: (each[0].partition(",")[0], each[0])):
        row: dict[str, Any] = {"model": model, "seeds": sorted(seeds)}
        for name, what in MEASURES.items():
            of_seeds = [round(statistics.fmean(seeds[seed][name]), 4) for seed in sorted(seeds)]
            row |= {what: round(statistics.fmean(of_seeds), 4), f"{what}, each seed": of_seeds}
        rows.append(row)
    return rows


def printed(rows: list[dict[str, Any]]) -> list[str]:
    """The table as the report has it: the mean, and the range of the seeds."""
    lines = []
    for row in rows:
        cells = [row["model"]]
        for what in MEASURES.values():
            digits = 2 if row[what] < 1 else 1
            ends = f"{min(row[f'{what}, each seed']):.{digits}f} - {max(row[f'{what}, each seed']):.{digits}f}"
            cells.append(f"{row[what]:.{digits}f}" + (f" ({ends})" if len(row["seeds"]) > 1 else ""))
        lines.append([*cells, str(len(row["seeds"]))])
    return rows_of(["model", *MEASURES.values(), "seeds"], *lines)


def draw(rows: list[dict[str, Any]], approximated: list[dict[str, Any]]) -> None:
    """Each measure of every model, a mark for each seed; and the approximation."""
    figure, panels = pyplot.subplots(2, 2, figsize=(12, 8.5), layout="constrained")
    names = [row["model"] for row in rows]
    for ax, name in zip(panels.flat, ("rank", "keys", "distance"), strict=False):
        what = MEASURES[name]
        for place, row in enumerate(rows):
            of_seeds = row[f"{what}, each seed"]
            ax.plot(of_seeds, [place] * len(of_seeds), "o", color=unit_color(0), alpha=0.6)
            ax.plot(row[what], place, "|", color="black", markersize=16)
        ax.set(yticks=range(len(names)), yticklabels=names if ax in panels[:, 0] else [], xlabel=what)
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.grid(axis="y", alpha=0.3)
    draw_approximation(approximated, panels[1, 1])
    figure.savefig(FIGURE, dpi=100)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default="wikitext2")
    parser.add_argument("--quick", action="store_true", help="a coarse approximation; writes nothing")
    args = parser.parse_args(argv)
    rows, approximated = means(runs(args.text)), approximation(args.quick)
    for row in rows + approximated:
        print(" ", row)
    if not args.quick:
        print(f"written to {write('redundancy', [{'text': args.text, **row} for row in rows] + approximated)}")
        draw(rows, approximated)
        write_table("performance.md", "redundancy", printed(rows))


if __name__ == "__main__":
    main()
