"""Do NUTS and Gibbs draw from the same posterior: means within 4 Monte Carlo errors, standard deviations within 5 %, three problems.

``python -m benchmarks.agreement [--quick]``. Keys, precisions and weights have priors that separate the units; the third problem is the
queries that a head of a trained transformer asks (`data.text_transformer`, on the English text of ``pydoc_data.topics``), its units
six of the head's own keys. Errors of means and of standard deviations are ArviZ's MCSE of both samplers together; the ratio of
standard deviations must differ from 1 by at most 5 % for every scalar, so runs are long enough that its error is about 1 %.
"""

import argparse
import time
from typing import Any, NamedTuple

import arviz
import numpy as np
import torch
from pyro.distributions import Dirichlet, Gamma, Normal

from benchmarks.reports import Tables, rows_kept, rows_of, write_tables
from benchmarks.timing import machine, write
from probtx_pyro import inference, models
from probtx_pyro.data import load_text, text_transformer

DTYPE = torch.float64


class Problem(NamedTuple):
    """A mixture, its priors, and the queries."""

    mixture: models.GaussianMixture
    priors: dict[str, Any]
    queries: torch.Tensor


def toy(units: int, features: int, queries: int, spread: float, seed: int) -> Problem:
    """Queries drawn from the mixture at its own parameters."""
    draw = torch.Generator().manual_seed(seed)
    keys = spread * torch.randn(units, features, generator=draw, dtype=DTYPE)
    mixture = models.GaussianMixture(keys, key_precision=torch.full((units,), 2.0, dtype=DTYPE))
    own = keys[torch.randint(units, (queries,), generator=draw)]
    points = own + 2.0**-0.5 * torch.randn(queries, features, generator=draw, dtype=DTYPE)
    priors = dict(
        keys=Normal(keys, 0.4), key_precision=Gamma(6.0, 3.0), weights=Dirichlet(torch.full((units,), 3.0, dtype=DTYPE))
    )
    return Problem(mixture, priors, points)


def captured() -> Problem:
    """A head's real queries, with six of its keys as units and priors on the scale that the queries have."""
    text = load_text("topics").validation[:128]
    heads = text_transformer.load().heads(text)
    queries, keys = heads.queries[1, 2].to(DTYPE), heads.keys[1, 2].to(DTYPE)
    scale = float(queries.var(0).mean()) ** 0.5
    chosen = keys[torch.linspace(0, len(keys) - 1, 6).long()]
    centers = queries.mean(0) + (chosen - chosen.mean(0)) * scale / float(chosen.std())
    precision = torch.full((6,), 2.0 / scale**2, dtype=DTYPE)
    mixture = models.GaussianMixture(centers, key_precision=precision)
    priors = dict(keys=Normal(centers, 0.1 * scale), key_precision=Gamma(6.0, 3.0 * scale**2), weights=Dirichlet(torch.full((6,), 3.0, dtype=DTYPE)))  # fmt: skip
    return Problem(mixture, priors, queries)


PROBLEMS = {
    "two units in a line": lambda: toy(2, 1, 60, 2.0, 0),
    "four units in a plane": lambda: toy(4, 2, 120, 2.5, 1),
    "queries of a trained head": captured,
}


def compared(name: str, scale: int) -> dict[str, Any]:
    posed = PROBLEMS[name]()
    start = time.perf_counter()
    nuts = inference.nuts(
        models.bayesian(posed.mixture, **posed.priors), posed.queries, num_samples=4000 // scale, num_warmup=600, num_chains=2, seed=0
    )  # fmt: skip
    between = time.perf_counter()
    gibbs = inference.gibbs(
        models.bayesian(posed.mixture, **posed.priors),
        posed.queries,
        num_samples=1500 // scale,
        num_warmup=300,
        num_chains=64,
        seed=0,
    )
    seconds = {"NUTS": between - start, "Gibbs": time.perf_counter() - between}
    gaps, ratios, rhat, ess = [], [], 0.0, {"NUTS": np.inf, "Gibbs": np.inf}
    for parameter in nuts.samples:
        both = {
            n: arviz.convert_to_dataset({"x": d.samples[parameter].numpy()})
            for n, d in (("NUTS", nuts), ("Gibbs", gibbs))
        }
        mean = {n: x["x"].mean(("chain", "draw")).values for n, x in both.items()}
        sd = {n: x["x"].std(("chain", "draw")).values for n, x in both.items()}
        error = np.sqrt(sum(arviz.mcse(x)["x"].values ** 2 for x in both.values()))
        gaps.append(np.abs(mean["NUTS"] - mean["Gibbs"]).ravel() / error.ravel())
        ratios.append((sd["NUTS"] / sd["Gibbs"]).ravel())
        rhat = max([rhat, *(float(arviz.rhat(x)["x"].max()) for x in both.values())])
        ess = {n: min(ess[n], float(arviz.ess(x)["x"].min())) for n, x in both.items()}
    gap, ratio = np.concatenate(gaps), np.concatenate(ratios)
    row = {
        "problem": name, "scalars": len(gap), "largest gap of means in MCSE": round(float(gap.max()), 2),
        "ratio of sd": [round(float(ratio.min()), 3), round(float(ratio.max()), 3)], "R-hat": round(rhat, 4),
        "divergences": int(nuts.statistics["diverging"].sum()), "smallest ESS": {n: round(x) for n, x in ess.items()},
        "seconds": {n: round(x, 1) for n, x in seconds.items()},
    }  # fmt: skip
    row["agree"] = bool(gap.max() < 4 and np.abs(ratio - 1).max() < 0.05 and rhat < 1.01)
    print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return row


def report_tables() -> Tables:
    """A table of ``docs/reports/posteriors.md``."""
    lines = [
        [
            row["problem"], str(row["scalars"]), f"{row['largest gap of means in MCSE']:.2f}", " to ".join(f"{x:.3f}" for x in row["ratio of sd"]),
            f"{row['R-hat']:g}", str(row["divergences"]),
        ]
        for row in rows_kept("agreement")
    ]  # fmt: skip
    head = ["problem", "scalars", "largest gap of means, Monte Carlo errors", "ratio of standard deviations", "R-hat", "divergences"]  # fmt: skip
    return {"agreement": rows_of(head, *lines)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the draws, nothing written")
    args = parser.parse_args(argv)
    rows = [compared(name, 10 if args.quick else 1) for name in PROBLEMS]
    if not args.quick:
        print(write("agreement", rows), machine())
        write_tables("posteriors.md", report_tables())


if __name__ == "__main__":
    main()
