"""How many random patterns a Hopfield memory holds, against the number D of dimensions: N = a cᴰ, and 0.14 D for the classical one.

Patterns are uniform on the unit sphere and β = K² (D - 1): patterns of length K √(D - 1) at β = 1, as in the theorem of Ramsauer et
al. 2021 (its example has K = 3). A query is a pattern and noise of length r in a uniform direction. It is retrieved when one step
comes as near as 0.1, a fifth of the smallest noise measured, to the pattern. The capacity is the largest N with which at least 99 %
of 2000 queries are, each of another pattern; memories with fewer are many. It is found by doubling and bisection.

What to expect for large β: a query whose noise has the cosine u with its pattern is at the angle φ from it with
``sin²φ = r² (1 - u²) / (1 + 2 r u + r²)``, and is lost to a rival inside the cap of that angle. A cap holds ``(sin φ)ᴰ`` of the
sphere and a cosine u has the density ``(1 - u²)^(D/2)``, both but for powers of D, so ``1/c² = max_u (1 - u²) sin²φ(u)``. Softmax asks
that the own score exceeds a rival's by some units of 1/β, a difference of O(1/D) in the cosine: it changes a and not c. That holds
while the nearest rivals rule the sum over all, as they do for K = 3; for K = 1 the many far ones weigh in, and K = 30 is near the limit.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betainc
from scipy.stats import linregress, t
from torch import Tensor
from torch.nn.functional import normalize

from probtx_pyro import models

QUERIES, SHARE, NEAR = 2000, 0.99, 0.1
LIMIT = 2**19  # patterns
# Noise r, K, and the numbers of dimensions: from a few patterns on to what half a minute allows.
SPHERES = (
    (0.5, 3.0, range(6, 20, 2)),
    (0.75, 3.0, range(8, 30, 2)),
    (0.75, 1.0, range(16, 30, 2)),
    (0.75, 30.0, range(10, 26, 2)),
)
CLASSICAL = (50, 100, 200, 400)


def largest(holds: Callable[[int], bool], limit: int) -> int:
    """The largest number up to ``limit`` with which ``holds`` is true, to 3 %; it is true of all smaller ones."""
    low, high = 0, 1
    while high <= limit and holds(high):
        low, high = high, 2 * high
    while high - low > max(1, 0.03 * low):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def on_sphere(count: int, dims: int, generator: torch.Generator) -> Tensor:
    return normalize(torch.randn(count, dims, generator=generator), dim=-1)


def modern(dims: int, noise: float, radius: float, seed: int) -> int:
    """Capacity of `Hopfield`. One step is the posterior mean of its mixture, which is computed without a query x pattern matrix."""
    generator = torch.Generator().manual_seed(seed)
    shift, pool = noise * on_sphere(QUERIES, dims, generator), on_sphere(LIMIT, dims, generator)

    def holds(count: int) -> bool:
        memories, asked = max(1, QUERIES // count), min(count, QUERIES)
        patterns = pool[: memories * count].view(memories, count, dims)
        own = patterns[:, :asked]
        memory = models.Hopfield(patterns, radius**2 * (dims - 1), values=patterns)
        found = memory.mixture.expected_outputs(own + shift[: memories * asked].view_as(own))
        return float(((found - own).norm(dim=-1) < NEAR).float().mean()) >= SHARE

    return largest(holds, LIMIT)


def classical(dims: int, seed: int) -> int:
    """Capacity of the Hopfield network of 1982: signs, Hebb's rule, at most 100 steps of all units at once from the stored patterns.

    It holds N patterns when the states agree with them in 97 % of the signs on average: at the known limit 0.138 D, 1.6 % are wrong.
    """
    pool = torch.randn(dims, dims, generator=torch.Generator().manual_seed(seed)).sign()

    def holds(count: int) -> bool:
        patterns = pool[:count]
        weights = (patterns.T @ patterns).fill_diagonal_(0.0)
        state = patterns
        for _ in range(100):
            before, state = state, torch.where(state @ weights >= 0, 1.0, -1.0)
            if torch.equal(state, before):
                break
        return float((state * patterns).mean()) >= 0.94  # (right - wrong) / all

    return largest(holds, dims)


def expected(dims: int, noise: float) -> float:
    """Capacity for large β: so many rivals that the chance that one of them or more is nearer to a query than its pattern is 1 %."""
    u = np.linspace(-1, 1, 20_001)[1:-1]
    density = (1 - u**2) ** ((dims - 3) / 2)
    cap = betainc((dims - 1) / 2, 0.5, sine_squared(u, noise)) / 2  # of an angle below 90 degrees, which r < 1 ensures
    return 1 + math.log(SHARE) / math.log1p(-float(cap @ density / density.sum()))


def expected_base(noise: float) -> float:
    """The c of the law for large β and D; see above."""
    u = np.linspace(-1, 1, 20_001)
    return float(((1 - u**2) * sine_squared(u, noise)).max() ** -0.5)


def sine_squared(u: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """Of the angle between a query and its pattern."""
    return noise**2 * (1 - u**2) / (1 + 2 * noise * u + noise**2)


def law(dims: list[int], found: list[list[int]], least: int = 10) -> dict[str, Any]:
    """Least squares of log N on D over all seeds, where N is ``least`` or more for each (a whole number counts as smooth there).

    The 95 % interval of c is that of the slope.
    """
    kept = [(d, math.log(n)) for d, row in zip(dims, found, strict=True) if min(row) >= least for n in row]
    fit = linregress(*zip(*kept, strict=True))
    half = float(t.ppf(0.975, len(kept) - 2)) * fit.stderr
    interval = [round(math.exp(fit.slope + side * half), 3) for side in (-1, 1)]
    return {
        "a": float(f"{math.exp(fit.intercept):.3g}"),
        "c": round(math.exp(fit.slope), 3),
        "95 % interval of c": interval,
        "fitted from D": min(d for d, _ in kept),
    }


def capacity(quick: bool = False) -> list[dict[str, Any]]:
    """Capacities of both networks for each D and seed, and the fitted laws."""
    seeds, rows = range(2 if quick else 5), []
    for noise, radius, dims in SPHERES:
        tried = list(dims)[2:6] if quick else list(dims)
        found = [[modern(d, noise, radius, seed) for seed in seeds] for d in tried]
        row = {"what": "capacity", "noise": noise, "K": radius, "D": tried, "N": found, **law(tried, found)}
        bounds = [round(expected(d, noise), 1) for d in tried]
        rows.append(row | {"N for large beta": bounds, "c for large beta and D": round(expected_base(noise), 3)})
    signs = [[classical(d, seed) for seed in seeds] for d in CLASSICAL]
    share = float(np.mean([n / d for d, row in zip(CLASSICAL, signs, strict=True) for n in row]))
    rows.append({"what": "capacity, classical", "D": list(CLASSICAL), "N": signs, "N over D": round(share, 3)})
    return rows
