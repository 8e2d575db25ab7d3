"""How near samplers and guides come to ten posteriors whose draws are known, and effective draws a second.

``python -m benchmarks.reference [--quick] [--timed] [--only POSTERIOR] [--method METHOD]``. Protocol, fixed before any run:

- Posteriors: `benchmarks.reference.posteriors`. Each method runs once for each of the seeds 0, 1, 2. Nothing is tuned for a posterior.
- Our samplers with their defaults: NUTS (4 chains of 1,000), also from draws of the prior (16 chains of 500); Gibbs from draws of the
  prior (16 chains of 500), where the priors are conjugate. Guides: `inference.variational` with its defaults and 1,000 draws.
- Pyro's NUTS on our collapsed program, 1 chain of 1,000 after 500, from Pyro's own start; NumPyro's on a program of its own, 4 vectorised chains of
  1,000 after 500, from its own start. NumPyro comes with ``pip install -e ".[bench]"``, and so with ``make test``; without it its runs are
  left out, with a sentence.
- A method that raises ValueError is "refused": that is its result.
- Distance: the energy distance ``2 E|X-Y| - E|X-X'| - E|Y-Y'|`` (Székely & Rizzo 2013) between 1,000 draws of the method, evenly spaced in the
  run (fewer where it has fewer), and 1,000 exact ones, of the `summary` that does not know the names of exchangeable units, each coordinate divided by its exact
  standard deviation. It is given over the mean of 40 distances that independent exact sets have from the same 1,000: the floor, 1
  with exact independent draws. The table also has the largest of those 40. Draws of a chain depend on each other, so that a right sampler lies a
  little above 1.
- Effective draws: the smallest bulk size of the summary's coordinates, by ArviZ. R-hat is the largest.
- Times are kept with ``--timed`` alone, which a quiet machine is asked for: seconds of one run of seed 0, its warmup or fit included; NumPyro's is
  the second, so that it has compiled. The row is that of the run that was timed, with the machine. Effective draws a second are given
  where the distance is at most twice the largest of the 40: draws of something else have no speed. Elsewhere the cell says "far".
- A run that is kept is not repeated, except for its time.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import arviz
import numpy as np
import pyro
import torch
from pyro.distributions import Dirichlet, Gamma, LogNormal, Normal
from pyro.infer import MCMC, NUTS
from scipy.spatial.distance import cdist

from benchmarks.reference.posteriors import CRF, POSTERIORS, RATE, SHAPE, exact, summary
from benchmarks.reports import Tables, rows_of, write_tables
from benchmarks.timing import RESULTS, keep, machine
from probtx_pyro import inference, models

FOLDER = RESULTS / "reference"
SEEDS, COMPARED, FLOOR = (0, 1, 2), 1000, 40
Chains = dict[str, np.ndarray]  # (chain, draw, *shape) by site


# -- methods ---------------------------------------------------------------------------------------------------------------


def program(name: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """Our form of a posterior, and its data."""
    posterior = POSTERIORS[name]
    if isinstance(posterior, CRF):
        return models.DependencyCRF(torch.tensor(posterior.unary), torch.tensor([posterior.ternary])), ()
    means, spread, precision = torch.tensor(posterior.means), posterior.spread, posterior.precision
    priors: dict[str, Any] = {"keys": Normal(means, spread)} if spread else {"keys": partial(_by_spread, means)}
    start = torch.tensor(SHAPE / RATE) if isinstance(precision, str) else torch.tensor(precision)
    if precision == "own":
        start = start.expand(len(means))
    if isinstance(precision, str):
        priors["key_precision"] = Gamma(SHAPE, RATE)
    if posterior.weights:
        priors["weights"] = Dirichlet(torch.ones(1, len(means)))
    mixture = models.GaussianMixture(means, key_precision=start)
    return models.bayesian(mixture, **priors), (torch.tensor(posterior.queries),)


def _by_spread(means: torch.Tensor) -> Normal:
    return Normal(means, pyro.sample("spread", LogNormal(0.0, 1.0)))


def ours(verb: Callable[..., inference.Draws], name: str, seed: int, scale: int, **options: Any) -> Chains:
    given, data = program(name)
    if isinstance(given, models.DependencyCRF):
        options.pop("start")
    options["num_samples"] = options["num_samples"] // scale
    return _numbers(verb(given, *data, seed=seed, progress=False, **options).samples)


def guide(kind: str, name: str, seed: int, scale: int) -> Chains:
    given, data = program(name)
    steps = 2000 // scale
    return _numbers(
        inference.variational(given, *data, guide=kind, num_steps=steps, seed=seed, progress=False).draws.samples
    )


def pyro_nuts(name: str, seed: int, scale: int) -> Chains:
    given, data = program(name)
    pyro.set_rng_seed(seed)
    chain = MCMC(NUTS(given), num_samples=1000 // scale, warmup_steps=500 // scale, disable_progbar=True)
    chain.run(*data)
    return _numbers(chain.get_samples(group_by_chain=True))


def numpyro_nuts(name: str, seed: int, scale: int) -> Chains:
    import jax

    return _numbers(_numpyro_sampler(name, scale)(jax.random.PRNGKey(seed)))


@cache
def _numpyro_sampler(name: str, scale: int) -> Callable[[Any], Mapping[str, Any]]:
    """A run by its random key, compiled as a whole: ``MCMC.run`` alone compiles its loops again whenever it is called."""
    import jax
    from numpyro.infer import MCMC
    from numpyro.infer import NUTS as Kernel

    @jax.jit
    def run(key: Any) -> Mapping[str, Any]:
        sampler = MCMC(
            Kernel(numpyro_program(name)), num_warmup=500 // scale, num_samples=1000 // scale, num_chains=4,
            chain_method="vectorized", progress_bar=False,
        )  # fmt: skip
        sampler.run(key)
        return sampler.get_samples(group_by_chain=True)

    return run


def numpyro_program(name: str) -> Callable[[], None]:
    """A posterior as a program of NumPyro."""
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist

    posterior: Any = POSTERIORS[name]
    queries, means = jnp.array(posterior.queries), jnp.array(posterior.means, float)
    units, size = means.shape

    def model() -> None:
        spread = posterior.spread or numpyro.sample("spread", dist.LogNormal(0.0, 1.0))
        keys = numpyro.sample("keys", dist.Normal(means, spread).to_event(2))
        alpha = posterior.precision
        if isinstance(alpha, str):
            law = dist.Gamma(SHAPE, RATE)
            alpha = numpyro.sample("key_precision", law.expand([units]).to_event(1) if alpha == "own" else law)
        weights = jnp.ones(units) / units
        if posterior.weights:
            weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(units)))
        square = jnp.square(queries[:, None] - keys).sum(-1)
        log_joint = 0.5 * size * jnp.log(alpha / (2 * jnp.pi)) - 0.5 * alpha * square + jnp.log(weights)
        numpyro.factor("queries", jax.scipy.special.logsumexp(log_joint, -1).sum())

    return model


def _numbers(samples: Any) -> Chains:
    """A scalar's axes are as in the exact draws: those of one row are left out."""
    found = {name: np.asarray(x) for name, x in samples.items()}
    return {name: x[:, :, 0] if name == "weights" and x.ndim == 4 else x for name, x in found.items()}


MANY: dict[str, Any] = {"num_chains": 16, "num_samples": 500, "start": "prior"}
METHODS: dict[str, Callable[[str, int, int], Chains]] = {
    "NUTS": partial(ours, inference.nuts, num_samples=1000),
    "NUTS, 16 chains": partial(ours, inference.nuts, **MANY),
    "Gibbs, 16 chains": partial(ours, inference.gibbs, **MANY),
    "guide normal": partial(guide, "normal"),
    "guide low_rank": partial(guide, "low_rank"),
    "guide laplace": partial(guide, "laplace"),
    "Pyro NUTS": pyro_nuts,
    "NumPyro NUTS": numpyro_nuts,
}
COMPILED = {"NumPyro NUTS"}  # by their first run


def serves(method: str, name: str) -> bool:
    """Whether a method can have a posterior at all."""
    posterior = POSTERIORS[name]
    if isinstance(posterior, CRF):
        return method.startswith("Gibbs")
    return posterior.spread is not None or not method.startswith("Gibbs")


# -- measures --------------------------------------------------------------------------------------------------------------


def energy_distance(x: np.ndarray, y: np.ndarray) -> float:
    """``2 E|X-Y| - E|X-X'| - E|Y-Y'|`` of two sets of rows (draw, coordinate): 0 or more, and 0 for equal sets alone."""
    return float(2 * cdist(x, y).mean() - cdist(x, x).mean() - cdist(y, y).mean())


@cache
def yardstick(name: str) -> tuple[np.ndarray, np.ndarray, tuple[float, ...]]:
    """Exact summary (draw, coordinate) in units of its standard deviations, these, and the distances of other exact sets."""
    posterior = POSTERIORS[name]
    sd = summary(posterior, exact(posterior, 10_000, 0)).std(0)
    own = summary(posterior, exact(posterior, COMPARED, 0)) / sd
    others = (summary(posterior, exact(posterior, COMPARED, 1 + i)) / sd for i in range(FLOOR))
    return own, sd, tuple(energy_distance(own, x) for x in others)


def measured(name: str, draws: Chains) -> dict[str, Any]:
    """Distance over the floor, and where there are chains the smallest effective size and the largest R-hat."""
    own, sd, floor = yardstick(name)
    chains, length = next(iter(draws.values())).shape[:2]
    flat = {site: x.reshape(chains * length, *x.shape[2:]) for site, x in draws.items()}
    found = summary(POSTERIORS[name], flat) / sd
    taken = found[np.linspace(0, len(found) - 1, min(COMPARED, len(found))).round().astype(int)]
    row: dict[str, Any] = {"chains": chains, "draws": length, "floor": float(np.mean(floor))}
    row |= {"largest of the floor": max(floor) / row["floor"], "distance": energy_distance(own, taken) / row["floor"]}
    by_chain = arviz.convert_to_dataset({"x": found.reshape(chains, length, -1)})
    row["ESS"] = float(arviz.ess(by_chain)["x"].min())
    row["R-hat"] = float(arviz.rhat(by_chain)["x"].max()) if chains > 1 else None
    return row


# -- runs and tables -------------------------------------------------------------------------------------------------------


def one_run(name: str, method: str, seed: int, timed: bool, scale: int = 1) -> dict[str, Any]:
    row = {"posterior": name, "method": method, "seed": seed}
    if timed and method in COMPILED:
        METHODS[method](name, seed, scale)
    start = time.perf_counter()
    try:
        draws = METHODS[method](name, seed, scale)
    except ValueError as error:  # a result, too: a guide that has no maximum to be fitted at says so
        return row | {"refused": str(error)}
    seconds = time.perf_counter() - start
    return row | measured(name, draws) | ({"seconds": seconds, "machine": machine()} if timed else {})


def missing(path: Path, timed: bool) -> bool:
    """Whether a run is to be made: it is not kept, or has no time and is to have one."""
    if not path.exists():
        return True
    kept = json.loads(path.read_text())
    return timed and "seconds" not in kept and "refused" not in kept


def _kept(name: str, method: str, seed: int) -> Path:
    words = f"{name} {method}".replace(",", "").replace(" ", "-").replace("_", "-").lower()
    return FOLDER / f"{words}-seed-{seed}.json"


def rows() -> list[dict[str, Any]]:
    """What is kept."""
    return [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]


def report_tables() -> Tables:
    """Tables of ``docs/reports/reference_posteriors.md``: smallest and largest of the seeds that are kept, a cell a method and posterior."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    kept = rows()
    refused = {(row["posterior"], row["method"]) for row in kept if "refused" in row}
    kept = [row for row in kept if "refused" not in row]
    for row in kept:
        found.setdefault((row["posterior"], row["method"]), []).append(row)

    def table(cell: Callable[[list[dict[str, Any]]], str]) -> list[str]:
        lines = [
            [
                name,
                *(
                    cell(found[name, method])
                    if (name, method) in found
                    else "refused"
                    if (name, method) in refused
                    else ""
                    for method in METHODS
                ),
            ]
            for name in POSTERIORS
        ]
        return rows_of(["posterior", *METHODS], *lines)

    def distance(own: list[dict[str, Any]]) -> str:
        ends = sorted({f"{x['distance']:,.1f}" for x in own}, key=lambda x: float(x.replace(",", "")))
        return " to ".join(ends[:: max(len(ends) - 1, 1)]) + f" ({len(own)})"

    def speed(own: list[dict[str, Any]]) -> str:
        timed = [x for x in own if "seconds" in x]
        if any(x["distance"] > 2 * x["largest of the floor"] for x in timed):
            return "far"
        return f"{np.median([x['ESS'] / x['seconds'] for x in timed]):,.0f}" if timed else ""

    def size(own: list[dict[str, Any]]) -> str:
        rhat = [x["R-hat"] for x in own if x["R-hat"] is not None]
        return f"{min(x['ESS'] for x in own):,.0f}" + (f", {max(rhat):.3f}" if rhat else "")

    floors = []
    for name in POSTERIORS:
        if own := [row for row in kept if row["posterior"] == name]:
            drawn = [row for row in own if not row["method"].startswith("guide")]
            beyond = sum(row["distance"] > row["largest of the floor"] for row in drawn)
            first = own[0]
            floors.append([
                name, f"{1000 * first['floor']:.2f}", f"{first['largest of the floor']:.1f}", f"{beyond} of {len(drawn)}",
            ])  # fmt: skip
    tables = {"distance": table(distance), "effective draws": table(size), "speed": table(speed)}
    tables["floor"] = rows_of(
        ["posterior", "floor, thousandths", "largest of 40 over it", "runs of samplers beyond that"], *floors
    )
    return tables


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, a tenth of the draws, nothing written")
    parser.add_argument("--timed", action="store_true", help="keep seconds, too: on a quiet machine")
    parser.add_argument("--only", choices=POSTERIORS, help="one posterior alone")
    parser.add_argument("--method", choices=METHODS, help="one method alone")
    args = parser.parse_args(argv)
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    torch.set_num_threads(1)
    if find_spec("numpyro") is None:
        print("numpyro is not installed, so its runs are left out")
    for seed in SEEDS[:1] if args.quick or args.timed else SEEDS:
        for method in [args.method] if args.method else METHODS:
            if method.startswith("NumPyro") and find_spec("numpyro") is None:
                continue
            for name in [args.only] if args.only else POSTERIORS:
                path = _kept(name, method, seed)
                if not serves(method, name) or not (args.quick or missing(path, args.timed)):
                    continue
                row = one_run(name, method, seed, args.timed, 10 if args.quick else 1)
                told = row.get("refused") or f"distance {row['distance']:8.2f}  ESS {row['ESS']:8.0f}"
                print(f"  {name:18s} {method:18s} seed {seed}  {told}", flush=True)
                if not args.quick:
                    keep(path, row)
    if not args.quick:
        write_tables("reference_posteriors.md", report_tables())
