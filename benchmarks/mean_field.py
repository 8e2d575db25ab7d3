"""Mean field of the dependency CRF on random problems that are small enough to sum over: the gap to log Z, and sweeps that fall.

``python -m benchmarks.mean_field`` prints the tables of docs/reports/dependency_crf.md (some minutes); ``--quick`` takes one problem
of each size. 32 problems of each size, S standard Normal, T Normal with the scale said, two distance groups, seed 0.
"""

import argparse
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch

from probtx_pyro.models import DependencyCRF

SCALES = (0.3, 1.0, 3.0)
SIZES = list(product((2, 3, 4, 5), (2, 3), (1, 2)))  # words, labels, channels
WAYS: dict[str, dict[str, Any]] = {
    "asynchronous": {"num_steps": 200},
    "synchronous": {"num_steps": 200, "schedule": "synchronous"},
    "sequential": {"num_steps": 200, "schedule": "sequential"},
    "asynchronous, label_damping=0.5": {"num_steps": 400, "label_damping": 0.5},
}
ROUNDING = 1e-9  # nats: a fall is larger


class Found(NamedTuple):
    """One problem, one way. gap: log Z - ELBO at the end, nats. fall: the largest of one sweep. converged. error: of a label marginal."""

    gap: float
    fall: float
    converged: bool
    error: float


def problems(scale: float, each: int) -> list[DependencyCRF]:
    """``each`` models of every size."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for words, labels, channels in SIZES:
        unary = torch.randn(each, words, labels, generator=generator, dtype=torch.float64)
        shape = channels, 2, labels, labels
        made += [DependencyCRF(u, scale * torch.randn(shape, generator=generator, dtype=torch.float64)) for u in unary]
    return made


def solved(crf: DependencyCRF) -> list[Found]:
    """Every way on one problem."""
    log_z, exact = crf.log_partition(), crf.marginals().labels
    found = []
    for options in WAYS.values():
        field = crf.mean_field(**options, tol=1e-10, history=True, progress=False)
        fall = -float(field.objective.diff().min())
        error = float((field.label_marginals - exact).abs().max())
        found.append(Found(float(log_z - field.elbo), fall, bool(field.converged), error))
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mean_field", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one problem of each size")
    each = 1 if parser.parse_args(arguments).quick else 32
    print(
        "| T's scale | way | problems | falls (worst, nats) | not converged | log Z - ELBO: smallest, 10 %, median, 90 %, largest | error of a label: median, largest |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for scale in SCALES:
        found = [solved(crf) for crf in problems(scale, each)]
        for way, column in zip(WAYS, zip(*found, strict=True), strict=True):
            falls = [x.fall for x in column if x.fall > ROUNDING]
            gaps = ", ".join(f"{q:.3f}" for q in np.quantile([x.gap for x in column], (0, 0.1, 0.5, 0.9, 1)))
            errors = [x.error for x in column]
            print(
                f"| {scale} | {way} | {len(column)} | {len(falls)} ({max(falls, default=0.0):.1f}) | {sum(not x.converged for x in column)} "
                f"| {gaps} | {np.median(errors):.3f}, {max(errors):.3f} |", flush=True,
            )  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
