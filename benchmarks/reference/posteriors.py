"""Ten small posteriors of attention, and independent draws from each that use nothing of the library.

Nine are of a mixture whose units j explain Q queries, ``q_i | u_i=j ~ N(ξ_j, 1/α_j)``, ``u_i ~ Categorical(π)``, with

    keys       ξ_j ~ N(m_j, τ²)         τ known, or one of its own for all with ``log τ ~ N(0, 1)``
    precision  α_j                      known, or ``Gamma(3, 1)`` each, or one of that law for all
    weights    π                        uniform, or ``Dirichlet(1)``

All U^Q assignments are listed. Given one of them the keys are integrated out in closed form, a precision or τ on a grid of `CELLS`
equal cells of its logarithm, the weights by the Dirichlet-multinomial law. An assignment and a cell are drawn from the table, a place
in the cell uniformly, keys and weights from their conjugate laws. Draws are independent; what is not exact is the density inside a
cell, of width 0.025, which adds at most 0.025²/12 to the variance of a logarithm.

The tenth is discrete: labels and heads of a dependency CRF of three words, two labels and one channel (Wu & Tu 2023, eq. 1-3), from the
table of all 64.

Draws are made anew from a seed instead of kept. ``moments.json`` has the means and standard deviations of the 10,000 of seed 0, to which a
test holds them (``python -m benchmarks.reference.posteriors`` writes them): a checksum of the draws would change with the last bit of a processor's exponential function.
"""

import json
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp

Draws = dict[str, np.ndarray]  # (draw, *shape) by site
CELLS, WIDTH = 400, 0.025
SHAPE, RATE = 3.0, 1.0  # of the Gamma prior of a precision
MOMENTS = Path(__file__).with_name("moments.json")


class Mixture(NamedTuple):
    """queries (Q, D); means m of the keys (U, D); spread: τ, None if unknown; precision: α, or whose it is; weights: whether unknown;
    exchangeable: whether units may change names.
    """

    queries: list[list[float]]
    means: list[list[float]]
    spread: float | None = 1.0
    precision: float | str = 4.0
    weights: bool = False
    exchangeable: bool = False


class CRF(NamedTuple):
    """unary (word, label) and ternary (head to the right or to the left, label, label of the head)."""

    unary: list[list[float]]
    ternary: list[list[list[float]]]
    exchangeable: bool = False


def _line(*x: float) -> list[list[float]]:
    return [[value] for value in x]


PLANE = [[-1.0, 0.2], [-0.7, -0.1], [0.9, 0.8], [1.2, 0.5], [0.1, -1.1], [0.3, -0.8]]
POSTERIORS: dict[str, Mixture | CRF] = {
    "one mode": Mixture(_line(-1.7, -1.4, -1.1, -0.2, 1.2, 1.6, 2.0), _line(-1.5, 1.5), 0.7),
    "two names": Mixture(_line(-1.3, -0.9, -0.6, 0.2, 0.9, 1.1, 1.6), _line(0.0, 0.0), 1.5, exchangeable=True),
    "three names": Mixture(PLANE, [[0.0, 0.0]] * 3, 1.0, exchangeable=True),
    "two modes": Mixture(_line(-1.8, -1.5, 1.4, 1.7, 2.0), _line(-0.1, 0.1), 2.0, 6.0),
    "weights": Mixture(_line(-1.6, -1.2, -0.1, 0.2, 0.4, 1.5), _line(-1.2, 0.0, 1.2), 0.5, weights=True),
    "a precision each": Mixture(_line(-1.5, -1.3, -1.2, 0.3, 1.0, 1.9), _line(-1.0, 1.0), 1.0, "own"),
    "one precision": Mixture(_line(-1.5, -1.0, -0.4, 0.3, 1.0, 1.9), _line(-1.0, 1.0), 1.0, "shared"),
    "funnel": Mixture(_line(-0.3, 0.1, 0.4, 0.2), _line(0.0, 0.0, 0.0, 0.0), None, 1.0, exchangeable=True),
    "all unknown": Mixture(
        _line(-1.2, -0.9, -0.5, 0.4, 0.9, 1.3), _line(0.0, 0.0), 1.0, "own", True, exchangeable=True
    ),
    "labels and heads": CRF(
        [[0.8, -0.2], [0.0, 0.3], [-0.5, 0.4]], [[[1.0, -0.6], [0.2, 0.5]], [[-0.4, 0.9], [0.7, 0.1]]]
    ),
}


def exact(posterior: Mixture | CRF, num_draws: int, seed: int) -> Draws:
    """Independent draws: of a mixture ``keys``, and ``key_precision``, ``spread`` and ``weights`` where unknown; of a CRF ``label`` and
    ``head``.
    """
    random = np.random.default_rng([seed, 71])
    if isinstance(posterior, CRF):
        return _of_crf(posterior, num_draws, random)
    return _of_mixture(posterior, num_draws, random)


def _of_crf(crf: CRF, num_draws: int, random: np.random.Generator) -> Draws:
    words = range(len(crf.unary))
    labels = list(product(range(len(crf.unary[0])), repeat=len(words)))
    heads = list(product(*([j for j in words if j != i] for i in words)))
    table = np.array([
        sum(crf.unary[i][y[i]] + crf.ternary[int(h[i] < i)][y[i]][y[h[i]]] for i in words) for y, h in product(labels, heads)
    ])  # fmt: skip
    drawn = random.choice(len(table), num_draws, p=np.exp(table - logsumexp(table)))
    return {"label": np.array(labels)[drawn // len(heads)], "head": np.array(heads)[drawn % len(heads), None]}


def _of_mixture(posterior: Mixture, num_draws: int, random: np.random.Generator) -> Draws:
    queries, means = np.array(posterior.queries, float), np.array(posterior.means, float)
    units = len(means)
    assigned = np.array(list(product(range(units), repeat=len(queries))))
    own = (assigned[:, :, None] == np.arange(units)).astype(float)  # (assignment, query, unit)
    count, total = own.sum(1), np.einsum("aqu,qd->aud", own, queries)
    square = np.einsum("aqu,qd->au", own, queries**2)
    grid = WIDTH * (np.arange(CELLS) - CELLS / 2 + 0.5)  # logarithms
    alpha = np.exp(grid) if isinstance(posterior.precision, str) else np.array([posterior.precision])
    spread = np.exp(grid) if posterior.spread is None else np.array([posterior.spread])
    # log of the integral over a key, (assignment, unit, cell)
    strength, n = spread**-2.0, count[..., None]
    pull = alpha * total[..., None] + strength * means[:, :, None]  # (assignment, unit, feature, cell)
    left = (
        alpha * square[..., None] + strength * (means**2).sum(-1)[:, None] - (pull**2).sum(2) / (strength + n * alpha)
    )
    size = queries.shape[1]
    evidence = 0.5 * size * (n * np.log(alpha / (2 * np.pi)) + np.log(strength / (strength + n * alpha))) - 0.5 * left
    of_alpha = SHAPE * grid - RATE * np.exp(grid)  # of the logarithm, up to a constant
    if posterior.precision == "own":
        evidence = evidence + of_alpha
        joint = logsumexp(evidence, 2).sum(1)[:, None]
    else:
        law = of_alpha if posterior.precision == "shared" else -0.5 * grid**2 if posterior.spread is None else 0.0
        joint = evidence.sum(1) + law
    if posterior.weights:  # Dirichlet(1): Π n_j! up to a constant
        joint = joint + gammaln(count + 1).sum(1)[:, None]
    place = random.choice(joint.size, num_draws, p=np.exp(joint - logsumexp(joint)).ravel())
    a, cell = np.divmod(place, joint.shape[1])
    if posterior.precision == "own":  # the cell of each unit, by its distribution function
        reached = np.exp(evidence - logsumexp(evidence, 2, keepdims=True)).cumsum(2)
        cell = (reached[a] < random.random((num_draws, units, 1))).sum(-1).clip(max=CELLS - 1)
    logs = np.exp(grid[cell] + WIDTH * (random.random(cell.shape) - 0.5))
    found = {}
    if isinstance(posterior.precision, str):
        found["key_precision"] = logs
    if posterior.spread is None:
        found["spread"] = logs
    precision = np.asarray(found.get("key_precision", alpha))
    precision = precision if posterior.precision == "own" else precision[:, None]
    strength = found.get("spread", spread)[:, None] ** -2.0
    stiff = strength + count[a] * precision
    center = (precision[..., None] * total[a] + strength[..., None] * means) / stiff[..., None]
    found["keys"] = center + random.standard_normal(center.shape) * stiff[..., None] ** -0.5
    if posterior.weights:
        gammas = random.standard_gamma(count[a] + 1)
        found["weights"] = gammas / gammas.sum(-1, keepdims=True)
    return found


def summary(posterior: Mixture | CRF, draws: Draws) -> np.ndarray:
    """Numbers (draw, coordinate) that do not know the names of units, where these may change: units in the order of their first feature,
    logarithms of what is positive; label and head by number.
    """
    if isinstance(posterior, CRF):
        return np.concatenate([draws["label"], draws["head"].reshape(len(draws["head"]), -1)], 1).astype(float)
    keys = draws["keys"]
    order = np.argsort(keys[..., 0], 1) if posterior.exchangeable else np.tile(np.arange(keys.shape[1]), (len(keys), 1))
    parts = [np.take_along_axis(keys, order[..., None], 1).reshape(len(keys), -1)]
    for name in ("key_precision", "spread", "weights"):
        if name in draws:
            x = draws[name].reshape(len(keys), -1)
            x = np.take_along_axis(x, order, 1) if x.shape[1] == keys.shape[1] else x
            parts.append(x if name == "weights" else np.log(x))
    return np.concatenate(parts, 1)


def moments(name: str) -> dict[str, list[float]]:
    """Means and standard deviations of the summary of 10,000 draws of seed 0."""
    found = summary(POSTERIORS[name], exact(POSTERIORS[name], 10_000, 0))
    return {"mean": found.mean(0).round(6).tolist(), "sd": found.std(0).round(6).tolist()}


if __name__ == "__main__":
    MOMENTS.write_text(json.dumps({name: moments(name) for name in POSTERIORS}, indent=1) + "\n")
