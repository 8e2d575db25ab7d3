"""Rows of a table that are made one by one and kept, and differences between methods that were scored on the same cases."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks.timing import RESULTS, write

Row = dict[str, Any]


def kept(
    name: str, jobs: Iterable[Mapping[str, Any]], run: Callable[..., Iterable[Row]], quick: bool = False
) -> list[Row]:
    """Make the rows of every job that has none in ``benchmarks/results``, and return those of all jobs.

    Parameters
    ----------
    name
        Of the file of results, which is written after each job.
    jobs
        Arguments of ``run``, which every row of the job holds.
    run
        From a job to its rows.
    quick
        True reads and writes nothing.
    """
    path = RESULTS / f"{name}.json"
    rows: list[Row] = [] if quick or not path.exists() else json.loads(path.read_text())["rows"]
    own: list[Row] = []
    for job in jobs:
        if not any(job.items() <= row.items() for row in rows):
            rows += [{**job, **row} for row in run(**job)]
            if not quick:
                write(name, rows)
            print(job, flush=True)
        own += [row for row in rows if job.items() <= row.items()]
    return own


class Difference(NamedTuple):
    """The best of the others, and the mean and standard error of ours less it, over seeds; above 0 ours is better."""

    other: str
    mean: float
    error: float


def against_best(ours: np.ndarray, others: Mapping[str, np.ndarray], larger_is_better: bool = True) -> Difference:
    """Compare with the other of the best mean, seed by seed.

    Parameters
    ----------
    ours
        (seed,).
    others
        (seed,) each.
    larger_is_better
        False for errors and losses.
    """
    sign = 1.0 if larger_is_better else -1.0
    best = max(others, key=lambda name: sign * others[name].mean())
    gains = sign * (ours - others[best])
    return Difference(
        best, float(gains.mean()), float(gains.std(ddof=1) / len(gains) ** 0.5) if len(gains) > 1 else np.nan
    )


def shown(numbers: np.ndarray, digits: int = 3) -> str:
    """Mean and standard deviation over seeds, as in ``.812 ± .010``."""
    spread = numbers.std(ddof=1) if len(numbers) > 1 else 0.0
    return " ± ".join(f"{x:.{digits}f}".removeprefix("0") for x in (numbers.mean(), spread))
