"""Seeded results of every verb for every formulation of the contract, to the bit: what a change of the house may not move.

``PYTHONPATH=tests .venv/bin/python tests/contract/test_fingerprints.py`` writes the file anew, for a change that is meant to move them. Another processor or
another torch rounds otherwise: there the results are those of the file to a millionth.
"""

import hashlib
import json
import platform
import warnings
from pathlib import Path

import numpy as np
import pyro
import pytest
import torch
from formulations import ROWS, priors_of
from strategies import generator

from probtx_pyro import inference, models

KEPT = Path(__file__).with_suffix(".json")
DENSITIES = {name: row for name, row in ROWS.items() if row.density}
BATCHES = {"one problem": (), "two problems": (2,)}
SHORT = {"seed": 0, "progress": False}


def machine():
    """What the bits depend on besides the code."""
    told = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = next((line.split(":")[1].strip() for line in told.splitlines() if line.startswith("model name")), "unknown")
    wide = " with AVX-512" if "avx512f" in told else ""
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, numpy {np.__version__}{wide}, {platform.machine()} {name}"


def adapted(posterior, data):
    with warnings.catch_warnings(action="ignore"):
        fit = inference.adapt(posterior, *data, num_steps=4, progress=False)
    return {"objective": fit.objective, **fit.formulation.parameters()}


def gibbs(start):
    def run(posterior, data):
        found = inference.gibbs(posterior, *data, num_samples=4, num_warmup=2, num_chains=2, start=start, **SHORT)
        return {**found.samples, **found.statistics}

    return run


def nuts(start):
    def run(posterior, data):
        how = {"num_samples": 4, "num_warmup": 3, "num_chains": 2, "max_tree_depth": 3, "start": start}
        with warnings.catch_warnings(action="ignore"):
            return inference.nuts(posterior, *data, **how, **SHORT).samples

    return run


def variational(posterior, data):
    found = inference.variational(posterior, *data, num_steps=5, num_samples=4, **SHORT)
    return {"losses": found.losses, **found.draws.samples}


VERBS = {
    "adapt": adapted,
    **{f"gibbs from {start}": gibbs(start) for start in ("map", "prior", "formulation")},
    **{f"nuts from {start}": nuts(start) for start in ("map", "formulation")},
    "variational": variational,
}


def of_row(name, verb, batch):
    def run():
        row = DENSITIES[name]
        formulation, *data = row.draw(generator(31), batch=BATCHES[batch])
        posterior = models.bayesian(formulation, **priors_of(formulation))
        return VERBS[verb](posterior, data[: max(row.parts)])

    return run


def found_from(metric):
    def run():
        g = generator(7)
        points, values = torch.randn(2, 60, 2, generator=g), torch.randn(2, 60, 1, generator=g)
        found = models.from_points(points, 3, values=values, metric=metric, num_steps=20, tol=None, seed=0)
        return found.parameters()

    return run


def clustered():
    points = torch.randn(2, 60, 2, generator=generator(8))
    found = models.SoftKMeans(points[:, :3], 2.0).em(points, 10)
    return {"centers": found.model.centers, "objective": found.objective}


RUNS = {
    f"{verb}, {batch}: {name}": of_row(name, verb, batch)
    for name, row in DENSITIES.items()
    for batch in BATCHES
    for verb in VERBS
    if row.conjugate or not verb.startswith("gibbs")
}
RUNS |= {f"from_points, metric {metric}": found_from(metric) for metric in (None, "scalar", "diagonal", "full")}
RUNS["em of soft k-means"] = clustered


def fingerprint(run):
    """The hash of all numbers, and the norm and a projection of each tensor."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    pyro.clear_param_store()
    pyro.set_rng_seed(20)
    found = {name: x.detach().double() for name, x in sorted(run().items()) if isinstance(x, torch.Tensor)}
    digest = hashlib.sha256()
    for name, x in found.items():
        digest.update(f"{name}{tuple(x.shape)}".encode())
        digest.update(x.contiguous().numpy().tobytes())
    told = {}
    for name, x in found.items():
        x = x.nan_to_num(0.0, 0.0, 0.0).flatten()
        along = torch.linspace(-1.0, 1.0, len(x), dtype=torch.float64)
        told[name] = [float(f"{float(x.norm()):.12g}"), float(f"{float(x @ along):.12g}")]
    return {"bits": digest.hexdigest()[:16], "numbers": told}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_seeded_result_is_that_of_the_file(name):
    kept = json.loads(KEPT.read_text())
    now, then = fingerprint(RUNS[name]), kept["runs"][name]
    if machine() in kept["machines"]:
        assert now["bits"] == then["bits"]
    assert now["numbers"].keys() == then["numbers"].keys()
    for site, numbers in then["numbers"].items():
        # a millionth of the norm: chains are too short for rounding to grow into other draws
        assert now["numbers"][site] == pytest.approx(numbers, rel=0.0, abs=1e-6 * max(numbers[0], 1e-3)), site


if __name__ == "__main__":
    runs = {name: fingerprint(run) for name, run in RUNS.items()}
    KEPT.write_text(json.dumps({"machines": [machine()], "runs": runs}, indent=0) + "\n")
    print(f"{len(runs)} fingerprints, {machine()}")
