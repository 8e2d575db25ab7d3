"""How much the draws of labels are worth where heads must be trees: ``python -m benchmarks.tree_weights``.

Random potentials: S, T and the root's scores standard Normal, T times the scale said; LABELS labels, a root of one label, distances 2,
3, 4, SEEDS. CHAINS chains of DRAWS draws (thin 2, warmup 100), float32. By words, channels and scale: the log probability that heads
make trees in all channels, the effective share of the draws, and Pareto's k of their weights; means and ranges over the seeds.
"""

import argparse
import math
from collections.abc import Sequence

import torch

from benchmarks.reports import Tables, rows_kept, rows_of, write_tables
from benchmarks.timing import write
from probtx_pyro import inference, models, ops, results

LABELS, SEEDS, CHAINS, DRAWS = 8, range(3), 20, 50


def random_crf(words: int, channels: int, scale: float, seed: int) -> models.DependencyCRF:
    g = torch.Generator().manual_seed(seed)
    unary, ternary = torch.randn(words, LABELS, generator=g), torch.randn(channels, 8, LABELS, LABELS, generator=g)
    root = torch.randn(channels, LABELS, 1, generator=g)
    return models.DependencyCRF(unary, scale * ternary, distances=(2, 3, 4), root_ternary=root)


def weights(crf: models.DependencyCRF, draws: inference.Draws) -> torch.Tensor:
    """Those of `inference.draw_trees`, by the formula, because drawing the trees themselves takes N times as long."""
    labels, root = (draws.samples[name].flatten(0, 1).unsqueeze(1) for name in ("label", "root_label"))
    arcs = crf.potentials().slot_scores(labels, root).log_softmax(-1)
    return ops.tree_log_partition(arcs).sum(-1).squeeze(-1)


def report_tables() -> Tables:
    """The table of ``docs/reports/dependency_crf.md``."""
    lines = []
    for row in rows_kept("tree_weights"):
        chances, shares, ks = zip(*row["found"], strict=True)
        ranges = (f"{min(x):.2f} to {max(x):.2f}" for x in (shares, ks))
        size = [str(row["words"]), f"{row['channels']}, {row['scale']:g}"]
        lines.append([*size, f"{sum(chances) / len(chances):.1f}", *ranges])
    head = ["words", "channels, scale", "mean log P(trees)", "effective share of the draws", "Pareto's k"]
    return {"tree weights": rows_of(head, *lines)}


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "").parse_args(arguments)
    rows = []
    for words in (10, 20):
        for channels in (1, 4):
            for scale in (0.5, 1.0, 2.0):
                found = []
                for seed in SEEDS:
                    crf = random_crf(words, channels, scale, seed)
                    draws = inference.gibbs(
                        crf, num_samples=DRAWS, num_chains=CHAINS, num_warmup=100, thin=2, seed=seed
                    )
                    log_weights = weights(crf, draws)
                    k, shares = results.pareto_k(log_weights), log_weights.softmax(0)
                    chance = float(log_weights.logsumexp(0)) - math.log(len(log_weights))
                    found.append([chance, 1 / float(shares.square().sum()) / len(shares), float(k)])
                rows.append({"words": words, "channels": channels, "scale": scale, "found": found})
                print(rows[-1], flush=True)
    write("tree_weights", rows)
    write_tables("dependency_crf.md", report_tables())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
