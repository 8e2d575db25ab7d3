"""How near a mixture of K Gaussians of one width comes to a bounded density on [-1, 1]^d, in the sup norm (MGK's theorem).

At a fixed σ a mixture never exceeds ``(2πσ²)^(-d/2)`` and cannot come near a p that is narrower than N(0, σ²I): the theorem as
printed cannot hold (erratum 20). What holds is measured: against p convolved with N(0, σ²I) the error falls at least geometrically in
``K^(1/d)``; against p itself it stops at a floor; with σ -> 0 as K grows it falls on. Components by a deterministic rule:
``θ`` the nodes of a Gauss-Legendre rule and ``π ∝ weight · p(θ)``, for p convolved with a Gaussian *is* a mixture, with p as its
mixing density; and, in one dimension, by EM (`inference.adapt`) started there.
"""

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from pyro.distributions import Dirichlet, Normal

from probtx_pyro import inference, models
from probtx_pyro.plots import unit_color

Array = NDArray[np.float64]
SIGMA = 0.5
EDGE = 1 + 6 * SIGMA  # of the cube in which the largest error is looked for
POINTS = {1: 801, 2: 81}  # of it, an axis
FINE = 120  # nodes an axis that stand for the integral
NODES = {1: (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64), 2: (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32)}
KINDS = {
    "convolved": f"against p convolved with N(0, σ²), σ = {SIGMA}",
    "itself": f"against p itself, σ = {SIGMA}",
    "narrowing": "against p itself, σ = π / K^(1/d)",
    "em": f"against p convolved, fitted by EM, σ = {SIGMA}",
}


def density(x: Array) -> Array:
    """A wavy bump that is 0 outside [-1, 1]^d and differentiable on its edge, not normalised; (..., d) -> (...)."""
    bump = np.maximum(1 - x**2, 0).prod(-1) ** 2
    return bump * (1 + 0.8 * np.sin(x @ np.array([5.0, 3.0])[: x.shape[-1]]))


def grid(axis: Array, dims: int) -> Array:
    """All points whose coordinates are on ``axis``, (point, d)."""
    return np.stack(np.meshgrid(*[axis] * dims, indexing="ij"), -1).reshape(-1, dims)


def rule(nodes: int, dims: int) -> tuple[Array, Array]:
    """Locations (K, d) and weights (K,) of the mixture with ``nodes`` components an axis."""
    axis, weights = np.polynomial.legendre.leggauss(nodes)
    places = grid(axis, dims)
    weight = grid(weights, dims).prod(-1) * density(places)
    return places, weight / weight.sum()


def mixture(x: Array, places: Array, weights: Array, sigma: float) -> Array:
    """Density of the mixture at ``x`` (point, d), some thousand points at a time."""
    norm = (2 * np.pi * sigma**2) ** (-x.shape[-1] / 2)
    parts = [((part[:, None] - places) ** 2).sum(-1) for part in np.array_split(x, 1 + len(x) // 1000)]
    return norm * np.concatenate([np.exp(-square / (2 * sigma**2)) @ weights for square in parts])


def fitted(places: Array, weights: Array, target: Array, x: Array, num_steps: int) -> tuple[Array, Array]:
    """Locations and weights after EM from the given ones, on the points ``x`` weighted by the density ``target`` there."""
    keys, start = torch.from_numpy(places), torch.from_numpy(weights).log().unsqueeze(0)
    flat = dict(keys=Normal(torch.zeros_like(keys), 1e6), weights=Dirichlet(torch.ones_like(start)))
    fit = inference.adapt(models.bayesian(models.GaussianMixture(keys, key_precision=SIGMA**-2, log_prior=start), **flat), torch.from_numpy(x), num_steps=num_steps, query_weights=torch.from_numpy(target * len(x) / target.sum()), progress=False).formulation  # fmt: skip
    return fit.keys.numpy(), fit.log_weights().exp().squeeze(0).numpy()


def approximation(quick: bool = False) -> list[dict[str, Any]]:
    """Largest error, over the largest of p, for every kind, number of dimensions and K."""
    rows: list[dict[str, Any]] = []
    for dims, counts in NODES.items():
        x = grid(np.linspace(-EDGE, EDGE, POINTS[dims]), dims)
        fine, weights = np.polynomial.legendre.leggauss(FINE)
        total = float(grid(weights, dims).prod(-1) @ density(grid(fine, dims)))
        p, convolved = density(x) / total, mixture(x, *rule(FINE, dims), SIGMA)

        def add(kind: str, errors: list[float], dims: int = dims, counts: Any = counts, p: Array = p) -> None:
            shares = [float(f"{error / p.max():.3g}") for error in errors]
            row = {"what": KINDS[kind], "kind": kind, "d": dims, "K": [n**dims for n in counts], "error": shares}
            if kind == "itself":
                least = max(0.0, 1 - (2 * np.pi * SIGMA**2) ** (-dims / 2) / float(p.max()))
                row["no mixture of this width can be nearer than"] = round(least, 4)
            rows.append(row)

        found = [mixture(x, *rule(n, dims), SIGMA) for n in counts]
        narrow = [mixture(x, *rule(n, dims), np.pi / n) for n in counts]
        add("convolved", [float(abs(y - convolved).max()) for y in found])
        add("itself", [float(abs(y - p).max()) for y in found])
        add("narrowing", [float(abs(y - p).max()) for y in narrow])
        if dims == 1:
            steps = 20 if quick else 2000
            by_em = [mixture(x, *fitted(*rule(n, dims), convolved, x, steps), SIGMA) for n in counts]
            add("em", [float(abs(y - convolved).max()) for y in by_em])
    return rows


def draw_approximation(rows: list[dict[str, Any]], ax: Axes) -> None:
    """Errors against the number of components an axis, so that geometric is a straight line."""
    names = {"convolved": "convolved", "itself": "p itself", "narrowing": "p itself, σ → 0", "em": "convolved, by EM"}
    for row in rows:
        place = list(names).index(row["kind"])
        ax.plot(
            np.array(row["K"]) ** (1 / row["d"]), row["error"], color=unit_color(place), linestyle=("-", "--")[row["d"] - 1],
            marker="os^D"[place], markersize=4, linewidth=1.3, label=f"{names[row['kind']]}, d = {row['d']}",
        )  # fmt: skip
    ax.set(yscale="log", xlabel="K^(1/d)", ylabel="largest error / largest p", ylim=(1e-14, 3))
    ax.set_title("K components of one width")
    ax.legend(fontsize=7, frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
