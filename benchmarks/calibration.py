"""Simulation-based calibration of Gibbs (1,000 simulations a case) and of NUTS (200), and Geweke's joint test of Gibbs.

``python -m benchmarks.calibration [--quick]``. Each parameter alone, keys with weights, and all of them; a memory of three units whose
priors separate them, 40 queries with answers; a mixture with two keys a unit; labels as answers. A case passes if all its
quantities, the log likelihood among them, are inside the 99 % band of their family (Bonferroni). NUTS gives every third of
297 draws of nine chains, 50 simulations in one batch. A right sampler fails one case in a hundred, so each case has one seed, which is not chosen again. Interrupted cases go on where they stopped.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyro.distributions import Dirichlet, Gamma, Normal

from benchmarks.reports import Tables, rows_kept, rows_of, write_tables
from benchmarks.timing import machine, write
from probtx_pyro import inference, models, results

CACHE = Path(__file__).parent / "cache"
DTYPE = torch.float64
KEYS = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.5]], dtype=DTYPE)
VALUES = torch.tensor([[-1.0], [0.0], [1.0]], dtype=DTYPE)


def full(*shape: int, value: float) -> torch.Tensor:
    return torch.full(shape, value, dtype=DTYPE)


PRIORS = {
    "keys": Normal(KEYS, 0.3),
    "key_precision": Gamma(3.0, 2.0),
    "values": Normal(VALUES, 0.3),
    "value_precision": Gamma(6.0, 2.0),
    "weights": Dirichlet(full(3, value=3.0)),
}
GAUSSIAN = models.GaussianMixture(KEYS, VALUES, full(3, value=2.0), full(3, value=3.0))
LABELS = models.GaussianMixture.categorical(KEYS, full(3, 4, value=0.25), 2.0)
TWO_KEYS = models.GaussianKeys(
    torch.stack([KEYS, KEYS + torch.tensor([0.0, 4.0], dtype=DTYPE)], 1), None, full(3, 2, value=2.0), full(3, 2, value=0.5)
)  # fmt: skip
QUERIES = torch.zeros(40, 2, dtype=DTYPE)
CASES: dict[str, tuple[Any, dict[str, Any], tuple[torch.Tensor, ...]]] = {
    **{f"{name} alone": (GAUSSIAN, {name: prior}, (QUERIES, QUERIES[:, :1])) for name, prior in PRIORS.items()},
    "keys and weights": (GAUSSIAN, {name: PRIORS[name] for name in ("keys", "weights")}, (QUERIES, QUERIES[:, :1])),
    "all together": (GAUSSIAN, PRIORS, (QUERIES, QUERIES[:, :1])),
    "labels as answers": (
        LABELS, {"keys": PRIORS["keys"], "answer_probs": Dirichlet(full(4, value=1.5))},
        (QUERIES, torch.zeros(40, dtype=torch.long)),
    ),
    "two keys a unit": (
        TWO_KEYS,
        {"keys": Normal(TWO_KEYS.keys, 0.3), "component_weights": Dirichlet(full(2, value=3.0)), "weights": PRIORS["weights"]},
        (QUERIES,),
    ),
}  # fmt: skip


def calibrated(name: str, sampler: str, simulations: int) -> dict[str, Any]:
    mixture, priors, arguments = CASES[name]
    program = models.bayesian(mixture, **priors)
    options: dict[str, Any] = {
        "Gibbs": {"sampler": partial(inference.gibbs, num_chains=99, num_samples=1, num_warmup=200, progress=False), "batch_size": 50},
        "NUTS": {"sampler": partial(inference.nuts, num_chains=9, num_samples=33, num_warmup=200, progress=False), "batch_size": 50},
    }[sampler]  # fmt: skip
    kept = CACHE / f"calibration-{sampler}-{name.replace(' ', '-')}-{simulations}"
    found = results.calibrate(
        program, *arguments, num_simulations=simulations, num_draws=99, seed=0, checkpoint=kept, **options
    )
    worst, p = found.smallest()
    row = {
        "case": name, "sampler": sampler, "simulations": simulations, "quantities": found.num_quantities, "inside": found.ok(),
        "least uniform": worst, "p after Bonferroni": round(p, 4),
    }  # fmt: skip
    print(f"  {sampler:5s} {name:22s} {found}", flush=True)
    return row


def joint(name: str, chains: int) -> dict[str, Any]:
    mixture, priors, arguments = CASES[name]
    program = models.bayesian(mixture, **priors)
    scores = results.joint_test(program, *arguments, num_chains=chains, num_steps=50, seed=0)
    worst = max(float(np.abs(x).max()) for x in scores.values())
    count = sum(x.size for x in scores.values())
    print(
        f"  joint test of Gibbs, {name}: largest of {count} |z| is {worst:.2f} in {chains} chains of 50 steps",
        flush=True,
    )
    return {"case": name, "joint test, largest |z|": round(worst, 2), "scores": count, "chains": chains}


def report_tables() -> Tables:
    """Tables of ``docs/reports/posteriors.md``."""
    rows = rows_kept("calibration")
    ranks = [
        [x["sampler"], x["case"], f"{x['simulations']:,}", str(x["quantities"]), "yes" if x["inside"] else "no", x["least uniform"], f"{x['p after Bonferroni']:.2f}"]
        for x in rows if "sampler" in x
    ]  # fmt: skip
    joint = [[x["case"], str(x["scores"]), f"{x['joint test, largest |z|']:.2f}"] for x in rows if "scores" in x]
    return {
        "calibration": rows_of(
            ["sampler", "drawn", "simulations", "quantities", "inside", "least uniform", "p"], *ranks
        ),
        "joint test": rows_of(["drawn", "scores", "largest \\|z\\|"], *joint),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="50 simulations, no NUTS, nothing written")
    args = parser.parse_args(argv)
    rows = [calibrated(name, "Gibbs", 50 if args.quick else 1000) for name in CASES]
    rows += [joint(name, 500 if args.quick else 5000) for name in CASES]
    if not args.quick:
        rows += [calibrated(name, "NUTS", 200) for name in ("keys and weights", "all together")]
        print(write("calibration", rows), machine())
        write_tables("posteriors.md", report_tables())


if __name__ == "__main__":
    main()
