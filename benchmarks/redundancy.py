"""How much the heads repeat each other and how many ranks they use; and how near K Gaussians of one width come to a density.

Run with ``python -m benchmarks.redundancy [--text tinyshakespeare] [--steps 300] [--seed 0] [--quick]``. The weights of runs that
`benchmarks.language_modelling` has finished are read from ``benchmarks/cache``; a run that is missing is trained first, with
all settings of the table but ``--steps``. The approximation is measured against p convolved with N(0, σ²I), and against p itself
with σ → 0, since at a fixed σ no mixture exceeds ``(2πσ²)^(-d/2)`` (erratum 20).
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot
from numpy.typing import NDArray

from benchmarks.approximation import approximation, draw_approximation
from benchmarks.language_modelling import keep_weights, settings_of, weights_file, with_weights
from benchmarks.timing import write
from probtx_pyro import plots
from probtx_pyro.data import Vocabulary, load_text
from probtx_pyro.inspection import attention_rank, effective_keys, effective_rank, head_distances, rank_spectrum
from probtx_pyro.train import LanguageModelSettings, train_language_model

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "redundancy.png"
COMPARED = ("softmax, 8 heads", "MGK, 4 heads", "one Gaussian key, 4 heads")
ROWS = 16  # of the validation text, side by side from its start


def attention_of(text: str, name: str, base: LanguageModelSettings, seed: int) -> NDArray[np.float32]:
    """Attention (layer, row, head, query, unit) of a trained model on the first rows of the validation text."""
    settings, parts = settings_of(name, base, seed), load_text(text)
    vocabulary = Vocabulary.of(parts.training, settings.level, settings.rarest)
    path = weights_file(text, name, settings)
    if not path.exists():
        print(f"training {name}, {settings.num_steps} steps", flush=True)
        keep_weights(train_language_model(settings, parts).model, path)
    model = with_weights(settings, len(vocabulary.tokens), path)
    tokens = vocabulary.encode(parts.validation)[: ROWS * settings.context].view(ROWS, -1)
    return model.attention_weights(tokens).numpy()


def redundancy(name: str, attention: NDArray[np.float32]) -> dict[str, Any]:
    """Means over layers, rows and heads, and by layer, of what `probtx_pyro.results` measures."""
    ranks, distances = attention_rank(attention), head_distances(attention)
    apart = ~np.eye(distances.shape[-1], dtype=bool)
    by_layer = distances[..., apart].mean((1, 2))
    return {
        "model": name,
        "rank that holds 90 % of the sum of squares": round(float(ranks.mean()), 3),
        "the same by layer": [round(float(x), 3) for x in ranks.mean((1, 2))],
        "deciles of the rank": [float(x) for x in np.quantile(ranks, [0.1, 0.5, 0.9])],
        "effective rank": round(float(effective_rank(attention).mean()), 3),
        "keys attended to": round(float(effective_keys(attention).mean()), 3),
        "distance between heads": round(float(by_layer.mean()), 4),
        "distance by layer": [round(float(x), 4) for x in by_layer],
    }


def draw(steps: int, found: dict[str, NDArray[np.float32]], approximated: list[dict[str, Any]]) -> None:
    """Spectra and ranks of attention matrices, distances between the heads of the last layer, and the approximation."""
    figure, panels = pyplot.subplots(2, 3, figsize=(14, 8), layout="constrained")
    plots.rank_spectra([rank_spectrum(x) for x in found.values()], list(found), ax=panels[0, 0])
    plots.rank_histogram([attention_rank(x) for x in found.values()], list(found), ax=panels[0, 1])
    panels[0, 0].set_title(f"attention after {steps} steps, all layers and heads")
    panels[0, 1].set_title("singular values that hold 90 % of the sum of squares")
    draw_approximation(approximated, panels[0, 2])
    distances = {name: head_distances(x[-1]).mean(0) for name, x in found.items()}
    largest = max(float(x.max()) for x in distances.values())
    for ax, (name, matrix) in zip(panels[1], distances.items(), strict=True):
        plots.head_distance_matrix(matrix, ax=ax, largest=largest)
        ax.set_title(f"{name}: Jensen-Shannon distance, last layer", fontsize=10)
    figure.savefig(FIGURE, dpi=100)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default="tinyshakespeare")
    parser.add_argument("--steps", type=int, default=300, help="of training; the runs of the table have 2000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--quick", action="store_true", help="two steps on the text that comes with Python; writes nothing"
    )
    args = parser.parse_args(argv)
    text, base = (
        ("topics", LanguageModelSettings(num_steps=2, batch=2))
        if args.quick
        else (args.text, LanguageModelSettings(num_steps=args.steps))
    )
    found = {name: attention_of(text, name, base, args.seed) for name in COMPARED}
    shared: dict[str, Any] = {"text": text, "steps": base.num_steps, "seed": args.seed, "rows of 128 tokens": ROWS}
    rows = [{**shared, **redundancy(name, x)} for name, x in found.items()]
    approximated = approximation(args.quick)
    for row in rows + approximated:
        print(" ", row)
    if not args.quick:
        print(f"written to {write('redundancy', rows + approximated)}")
        draw(args.steps, found, approximated)


if __name__ == "__main__":
    main()
