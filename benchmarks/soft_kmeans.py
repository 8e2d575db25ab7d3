"""Soft k-means beside scikit-learn's ``KMeans`` and ``GaussianMixture`` (spherical): time of an iteration, and what is reached.

``python -m benchmarks.soft_kmeans [--quick]``. Timed: 10,000 points around 256 centers in 32 dimensions, all from one k-means++
start; an iteration is the difference of twelve steps and two, over ten, so that what a call costs once does not count. Where the
algorithm is the same the objectives are compared after the same number of steps. Quality: the digits of scikit-learn, ten seeds.
"""

import argparse
import dataclasses
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pyro.distributions import Gamma
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from benchmarks.reports import Tables, rows_kept, rows_of, write_tables
from benchmarks.timing import machine, rounds, write
from probtx_pyro import inference, models

POINTS, CENTERS, FEATURES = 10_000, 256, 32
FEW, MANY = 2, 12
REST = 0.25  # seconds
TARGET = 3.0


def problem(points: int, centers: int, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, models.SoftKMeans]:
    """Points, and a k-means++ start with the precision that its distances suggest."""
    draw = torch.Generator().manual_seed(seed)
    means = 0.6 * torch.randn(centers, FEATURES, generator=draw, dtype=torch.float64)
    x = means[torch.randint(centers, (points,), generator=draw)]
    x = (x + torch.randn(points, FEATURES, generator=draw, dtype=torch.float64)).to(dtype)
    start = models.SoftKMeans.plus_plus(x, centers, 1.0, seed=seed)
    return x, start.replace(gamma=0.5 * FEATURES / start.distances(x).amin(-1).mean())


def spherical(x: torch.Tensor, start: models.SoftKMeans, steps: int) -> Any:
    """Our EM for keys, a precision for each, and weights; the Gamma prior is as flat as a number can be."""
    each = start.mixture.key_precision.expand(len(start.centers)).clone()
    flat = Gamma(each.new_tensor(1.0), each.new_tensor(1e-12))
    priors = dataclasses.replace(dict(keys=models.FLAT, weights=models.FLAT), key_precision=flat)
    return inference.adapt(
        models.bayesian(models.GaussianMixture(start.centers, key_precision=each), **priors),
        x,
        num_steps=steps,
        progress=False,
    )


def reference(x: torch.Tensor, start: models.SoftKMeans, steps: int) -> GaussianMixture:
    """The same EM by scikit-learn."""
    count, kind = len(start.centers), x.numpy().dtype
    return GaussianMixture(
        count, covariance_type="spherical", reg_covar=0.0, tol=0.0, max_iter=steps, init_params="random_from_data",
        weights_init=np.full(count, 1 / count, kind), means_init=start.centers.numpy(),
        precisions_init=np.full(count, 2 * float(start.gamma), kind), random_state=0,
    ).fit(x.numpy())  # fmt: skip


def lloyd(x: torch.Tensor, start: models.SoftKMeans, steps: int) -> Any:
    return start.replace(gamma=torch.inf).em(x, num_steps=steps, tol=None, progress=False)


def lloyd_reference(x: torch.Tensor, start: models.SoftKMeans, steps: int) -> KMeans:
    return KMeans(
        len(start.centers), init=start.centers.numpy(), n_init=1, max_iter=steps, tol=0.0, algorithm="lloyd"
    ).fit(x.numpy())


CANDIDATES: dict[str, Callable[..., Any]] = {
    "spherical mixture, ours": spherical,
    "spherical mixture, scikit-learn": reference,
    "soft k-means, gamma learned": lambda x, start, n: start.em(
        x, num_steps=n, tol=None, learn_gamma=True, progress=False
    ),
    "soft k-means, gamma fixed": lambda x, start, n: start.em(x, num_steps=n, tol=None, progress=False),
    "k-means, ours": lloyd,
    "k-means, scikit-learn": lloyd_reference,
}
PAIRS = {
    "spherical mixture": ("spherical mixture, scikit-learn", "spherical mixture, ours"),
    "k-means": ("k-means, scikit-learn", "k-means, ours"),
}


def iterations(points: int, centers: int, dtype: torch.dtype, repeats: int) -> list[dict[str, object]]:
    """Milliseconds of an iteration, the ratios, and the objectives of the pairs."""
    x, start = problem(points, centers, dtype)
    calls: dict[str, Callable[[], object]] = {}
    for name, run in CANDIDATES.items():
        for n in (FEW, MANY):
            # the threads of the library that ran before still spin for a while, in the way of those of the next
            calls[f"rest before {name}, {n}"] = lambda: time.sleep(REST)
            calls[f"{name}, {n}"] = lambda run=run, n=n: run(x, start, n)
    times = rounds(calls, repeats)
    each = {
        name: [(b - a) / (MANY - FEW) for a, b in zip(times[f"{name}, {FEW}"], times[f"{name}, {MANY}"], strict=True)]
        for name in CANDIDATES
    }
    kind = str(dtype).removeprefix("torch.")
    rows: list[dict[str, object]] = [
        {"what": name, "dtype": kind, "milliseconds an iteration": round(1e3 * statistics.median(seconds), 2)}
        for name, seconds in each.items()
    ]
    reached = {
        "spherical mixture": (
            float(reference(x, start, MANY).score(x.numpy())),
            float(spherical(x, start, MANY).mixture.log_evidence(x).mean()),
        ),
        "k-means": (
            lloyd_reference(x, start, MANY).inertia_ / points,
            float(lloyd(x, start, MANY).objective[-1]) / points,
        ),
    }
    for name, (theirs, ours) in PAIRS.items():
        faster = [a / b for a, b in zip(each[theirs], each[ours], strict=True)]
        low, high = min(faster), max(faster)
        rows.append(
            {
                "what": f"{name}: times faster than scikit-learn", "dtype": kind, "ratio": round(statistics.median(faster), 2),
                "lowest": round(low, 2), "highest": round(high, 2),
                "objective a point, scikit-learn": reached[name][0], "objective a point, ours": reached[name][1],
            }
        )  # fmt: skip
    return rows


def quality(seeds: int) -> list[dict[str, object]]:
    """Inertia and agreement with the digits' labels from k-means++ starts: mean and range over seeds."""
    digits = load_digits()
    x, labels = digits.data / 16, digits.target
    methods: dict[str, Callable[[int], Any]] = {
        "KMeans": lambda seed: KMeans(10, n_init=1, random_state=seed),
        "SoftKMeansEstimator, gamma = inf": lambda seed: models.SoftKMeansEstimator(10, gamma=np.inf, random_state=seed),
        "SoftKMeansEstimator, gamma learned": lambda seed: models.SoftKMeansEstimator(10, random_state=seed),
        "GaussianMixture, spherical": lambda seed: GaussianMixture(10, covariance_type="spherical", init_params="k-means++", random_state=seed, max_iter=300),
    }  # fmt: skip
    rows: list[dict[str, object]] = []
    for name, make in methods.items():
        fits = [make(seed).fit(x) for seed in range(seeds)]
        agreement = [adjusted_rand_score(labels, fit.predict(x)) for fit in fits]
        row: dict[str, object] = {"what": f"digits, 10 centers: {name}", "seeds": seeds}
        row |= {"adjusted Rand index": round(statistics.mean(agreement), 3)}
        row |= {"lowest": round(min(agreement), 3), "highest": round(max(agreement), 3)}
        if hasattr(fits[0], "inertia_"):
            row["inertia"] = round(statistics.mean(fit.inertia_ for fit in fits), 1)
        rows.append(row)
    return rows


def report_tables() -> Tables:
    """Tables of ``docs/reports/retrieval.md`` from the file of this benchmark."""
    rows = rows_kept("soft_kmeans_cpu")
    kinds = list(dict.fromkeys(row["dtype"] for row in rows if "dtype" in row))
    lines = []
    for what in dict.fromkeys(row["what"] for row in rows if "dtype" in row):
        own = [row for row in rows if row["what"] == what]
        timed = "milliseconds an iteration"
        cells = (
            f"{x[timed]:.1f}" if timed in x else f"{x['ratio']:.1f} ({x['lowest']:.1f} - {x['highest']:.1f})"
            for x in own
        )
        lines.append([what, *cells])
    objectives = [
        [row["what"].partition(":")[0], row["dtype"], *(f"{row[f'objective a point, {who}']:.12g}" for who in ("scikit-learn", "ours"))]
        for row in rows if "objective a point, ours" in row
    ]  # fmt: skip
    agreed = [
        [row["what"].partition(": ")[2], f"{row['adjusted Rand index']:.3f} ({row['lowest']:.3f} - {row['highest']:.3f})", str(row.get("inertia", ""))]
        for row in rows if "adjusted Rand index" in row
    ]  # fmt: skip
    return {
        "k-means": rows_of(["what", *kinds], *lines),
        "objectives": rows_of(["objective a point after the same steps", "dtype", "scikit-learn", "ours"], *objectives),
        "digits": rows_of(
            ["ten centers, ten seeds", "adjusted Rand index, mean (least - largest)", "inertia"], *agreed
        ),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer points, repeats and seeds, nothing written")
    args = parser.parse_args(argv)
    warnings.filterwarnings("ignore", category=UserWarning, module="sklearn")  # that so few steps have not converged
    points, centers, repeats, seeds = (1000, 32, 2, 2) if args.quick else (POINTS, CENTERS, 7, 10)
    rows = [row for kind in (torch.float64, torch.float32) for row in iterations(points, centers, kind, repeats)]
    rows += quality(seeds)
    for row in rows:
        print(
            f"  {row['what']!s:56s}",
            "  ".join(f"{name} {value}" for name, value in row.items() if name != "what"),
            flush=True,
        )
    print(f"  target: EM for spherical mixtures at least {TARGET} times faster an iteration")
    if not args.quick:
        print(write("soft_kmeans_cpu", rows), machine())
        write_tables("retrieval.md", report_tables())


if __name__ == "__main__":
    main()
