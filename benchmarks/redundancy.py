"""How much the heads repeat each other and how many ranks they use; and how near K Gaussians of one width come to a density.

Run with ``python -m benchmarks.redundancy [--steps 2000] [--seed 0] [--quick]``. The weights of runs that
`benchmarks.language_modelling` has finished are read from ``benchmarks/cache``; a run that is missing is trained first, with
all settings of the table but ``--steps``. The approximation is measured as section 3.4 of the mathematics says it must be, since
at a fixed σ no mixture exceeds ``(2πσ²)^(-d/2)`` (erratum 20).
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import pyplot
from numpy.typing import NDArray

from benchmarks.approximation import approximation, draw_approximation
from benchmarks.language_modelling import MODELS, keep_weights, settings_of, weights_file, with_weights
from benchmarks.timing import write
from probtx_pyro import plots
from probtx_pyro.data.text import Vocabulary, load_text
from probtx_pyro.results import attention_rank, effective_keys, effective_rank, head_distances, rank_spectrum
from probtx_pyro.train import Settings, train_language_model

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "redundancy.png"
COMPARED = ("softmax, 8 heads", "MGK, 4 heads", "shifted MGK, 8 heads")
ROWS = 16  # of the validation text, side by side from its start


def attention_of(text: str, name: str, base: Settings, seed: int) -> NDArray[np.float64]:
    """Attention (layer, row, head, query, unit) of a trained model on the first rows of the validation text."""
    settings, parts = settings_of(name, base, seed), load_text(text)
    vocabulary = Vocabulary.of(parts.training, settings.level, settings.rarest)
    path = weights_file(text, name, settings)
    if not path.exists():
        print(f"training {name}, {settings.num_steps} steps", flush=True)
        keep_weights(train_language_model(settings, parts).model, path)
    model = with_weights(settings, len(vocabulary.tokens), path)
    tokens = vocabulary.encode(parts.validation)[: ROWS * settings.context].view(ROWS, -1)
    weights = model.attention_weights(tokens).double()
    return (weights / weights.sum(-1, keepdim=True)).numpy()


def redundancy(name: str, attention: NDArray[np.float64]) -> dict[str, Any]:
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
