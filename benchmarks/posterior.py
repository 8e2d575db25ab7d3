"""Smallest effective sample size per second on one posterior: our Gibbs and NUTS, Pyro's NUTS and NumPyro's NUTS, in one run.

``python -m benchmarks.posterior [--quick] [--case NAME] [--sampler NAME ...]``, on one thread: 8 keys in two dimensions, 200 queries
drawn around them with variance 1/4, Normal prior of precision 4 around the true keys, uniform weights; seed 0. The key precisions are known ("conjugate"), or
have a LogNormal prior around the truth, log sd 1/2 ("not conjugate"), where there is no Gibbs sampler. NumPyro and what is
"compiled" are timed after the compilation. Pyro's NUTS samples the same collapsed program, one chain. The effective sample size is ArviZ's bulk ESS of each
number, over all chains, of the draws after warmup; the seconds are those of the draws and of the warmup. Chains of `inference.nuts`
have its defaults; the others start at the prior means: from random starts NumPyro's chains were caught in other modes.

Samplers take turns, so that a slow minute of the machine is nobody's own. Each run is kept in a file with its machine, and not made again:
delete the file to measure anew. NumPyro comes with ``pip install -e ".[bench]"``, and so with ``make test``.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import arviz
import numpy as np
import torch
from pyro.distributions import LogNormal, Normal
from pyro.infer import MCMC, NUTS

from benchmarks.reports import Tables, rows_of, write_tables
from benchmarks.timing import RESULTS, keep, machine
from probtx_pyro import inference, models

UNITS, FEATURES, QUERIES, PRIOR_PRECISION, PRECISION, SPREAD = 8, 2, 200, 4.0, 4.0, 0.5
CASES = {"conjugate": False, "not conjugate": True}  # whether precisions have a prior
FOLDER, SEEDS = RESULTS / "posterior", (0, 1, 2)
Arrays = Mapping[str, np.ndarray]
Run = Callable[[int], Arrays]  # draws by a seed


class Problem(NamedTuple):
    """Prior means of the keys (U, D), and queries (Q, D)."""

    keys: torch.Tensor
    queries: torch.Tensor


def problem() -> Problem:
    draw = torch.Generator().manual_seed(0)
    keys = 3 * torch.randn(UNITS, FEATURES, generator=draw)
    own = keys[torch.randint(UNITS, (QUERIES,), generator=draw)]
    return Problem(keys, own + PRECISION**-0.5 * torch.randn(QUERIES, FEATURES, generator=draw))


def bayesian(posed: Problem, free: bool) -> models.Bayesian:
    mixture = models.GaussianMixture(posed.keys, key_precision=posed.keys.new_full((UNITS,), PRECISION))
    priors = {"key_precision": LogNormal(np.log(PRECISION), SPREAD)} if free else {}
    return models.bayesian(mixture, keys=Normal(posed.keys, PRIOR_PRECISION**-0.5), **priors)


def ours(sampler: Callable[..., inference.Draws], posed: Problem, free: bool, **options: Any) -> Run:
    def run(seed: int) -> Arrays:
        draws = sampler(bayesian(posed, free), posed.queries, seed=seed, progress=False, **options)
        found = {name: x.numpy() for name, x in draws.samples.items()}
        compiling = np.asarray(draws.record.get("compile_seconds", 0.0))
        found |= {name: x.numpy() for name, x in draws.statistics.items() if name == "diverging"}
        return found | {"compiling": compiling}

    return run


def pyro_nuts(posed: Problem, free: bool, draws: int, warmup: int) -> Run:
    def run(seed: int) -> Arrays:
        torch.manual_seed(seed)
        start = {
            "keys": posed.keys,
            **({"key_precision": posed.keys.new_full((UNITS,), np.log(PRECISION))} if free else {}),
        }
        chain = MCMC(
            NUTS(bayesian(posed, free)),
            num_samples=draws,
            warmup_steps=warmup,
            initial_params=start,
            disable_progbar=True,
        )
        chain.run(posed.queries)
        return {name: x.numpy() for name, x in chain.get_samples(group_by_chain=True).items()}

    return run


def numpyro_nuts(posed: Problem, free: bool, chains: int, draws: int, warmup: int) -> Run:
    """A sampler that has been compiled as a whole: ``MCMC.run`` alone compiles its loops again whenever it is called."""
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer import MCMC, NUTS, init_to_value

    prior, queries = jnp.asarray(posed.keys.numpy()), jnp.asarray(posed.queries.numpy())
    start: dict[str, Any] = {"keys": prior, **({"key_precision": jnp.full(UNITS, PRECISION)} if free else {})}

    def model() -> None:
        keys = numpyro.sample("keys", dist.Normal(prior, PRIOR_PRECISION**-0.5).to_event(2))
        precision = PRECISION * jnp.ones(UNITS)
        if free:
            precision = numpyro.sample(
                "key_precision", dist.LogNormal(np.log(PRECISION), SPREAD).expand([UNITS]).to_event(1)
            )
        square = jnp.square(queries[:, None] - keys[None]).sum(-1)
        log_joint = -0.5 * precision * square + 0.5 * FEATURES * jnp.log(precision / (2 * np.pi)) - np.log(UNITS)
        numpyro.factor("queries", jax.scipy.special.logsumexp(log_joint, -1).sum())

    @jax.jit
    def compiled(key: Any) -> Arrays:
        sampler = MCMC(
            NUTS(model, init_strategy=init_to_value(values=start)), num_warmup=warmup, num_samples=draws, num_chains=chains,
            chain_method="vectorized" if chains > 1 else "sequential", progress_bar=False,
        )  # fmt: skip
        sampler.run(key)
        found: Arrays = sampler.get_samples(group_by_chain=True)
        return found

    def run(seed: int) -> Arrays:
        return {name: np.asarray(x) for name, x in compiled(jax.random.PRNGKey(seed)).items()}

    run(99)  # compiles
    return run


def measured(case: str, name: str, run: Run, seed: int) -> dict[str, Any]:
    start = time.perf_counter()
    draws = dict(run(seed))
    compiling = float(draws.pop("compiling", np.zeros(())))
    seconds = time.perf_counter() - start - compiling
    diverging = draws.pop("diverging", None)
    data = arviz.convert_to_dataset(draws)
    keys = draws["keys"]
    ess = min(float(x.min()) for x in arviz.ess(data).data_vars.values())
    rhat = max(float(x.max()) for x in arviz.rhat(data).data_vars.values()) if len(keys) > 1 else None
    row = {
        "case": case, "sampler": name, "seed": seed, "chains": len(keys), "draws": keys.shape[1], "seconds": round(seconds, 3),
        "smallest ESS": round(ess), "smallest ESS per second": round(ess / seconds, 1), "R-hat": rhat and round(rhat, 4),
        "divergences": None if diverging is None else int(diverging.sum()), "compiling": round(compiling, 1),
        "seconds per 1000 draws": round(1000 * seconds / keys.shape[0] / keys.shape[1], 4),
        "mean": keys.mean((0, 1)).ravel().round(4).tolist(),
    }  # fmt: skip
    print(
        f"  seed {seed} {name:28s} {seconds:8.2f} s {ess / seconds:10.1f} ESS/s  R-hat {row['R-hat']}  divergences {row['divergences']}",
        flush=True,
    )
    return row


def samplers(case: str, scale: int) -> dict[str, Callable[[], Run]]:
    """Makers of the samplers of one case, by name; that of NumPyro compiles."""
    free = CASES[case]
    single = Problem(*(x.float() for x in problem()))
    double = Problem(*(x.double() for x in problem()))
    draws, warmup = 1000 // scale, 500 // scale

    def nuts(posed: Problem, chains: int, **options: Any) -> Callable[[], Run]:
        short = {} if scale == 1 else {"num_samples": draws, "num_warmup": warmup}
        return partial(ours, inference.nuts, posed, free, num_chains=chains, **short, **options)

    found: dict[str, Callable[[], Run]] = {
        "NUTS, 64 chains": nuts(single, 64),
        "NUTS, 64 chains, float64": nuts(double, 64),
        "NUTS, 4 chains": nuts(single, 4),
        "NUTS, 1 chain": nuts(single, 1),
        "NUTS, 64 chains, compiled": nuts(single, 64, compile=True),
        "NUTS, 4 chains, compiled": nuts(single, 4, compile=True),
        "Pyro NUTS, 1 chain": partial(pyro_nuts, single, free, draws, warmup),
    }
    if not free:
        short = {"num_samples": draws // 2, "num_chains": 128, "num_warmup": 100 // scale}
        found["Gibbs, 128 chains"] = partial(ours, inference.gibbs, single, free, **short)
        found["Gibbs, 128 chains, float64"] = partial(ours, inference.gibbs, double, free, **short)
    for chains in (1, 4, 16, 64):
        found[f"NumPyro NUTS, {chains} chain{'s' * (chains > 1)}"] = partial(
            numpyro_nuts, single, free, chains, 2 * draws, warmup
        )
    return found


def kept(case: str, name: str, seed: int) -> Path:
    """The file of a run."""
    return FOLDER / f"{f'{case} {name}'.replace(',', '').replace(' ', '-').lower()}-seed-{seed}.json"


def rows() -> list[dict[str, Any]]:
    """What is kept, in the order of cases, samplers and seeds."""
    paths = (kept(case, name, seed) for case in CASES for name in samplers(case, 1) for seed in SEEDS)
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def report_tables() -> Tables:
    """A table of ``docs/reports/posteriors.md``: effective samples a second, median and range of the seeds, and how far a run's
    posterior means of the keys are from the average of all runs of the case: samplers of one posterior agree.
    """
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows():
        found.setdefault((row["case"], row["sampler"]), []).append(row)
    lines = []
    for (case, name), own in found.items():
        speed = [row["smallest ESS per second"] for row in own]
        rhat = [row["R-hat"] for row in own if row["R-hat"] is not None]
        shown = f"{np.median(speed):,.0f} ({min(speed):,.0f} to {max(speed):,.0f})"
        everyone = np.mean([row["mean"] for (of, _), runs in found.items() if of == case for row in runs], 0)
        gap = np.abs(np.array([row["mean"] for row in own]) - everyone).max()
        lines.append([case, name, shown, f"{max(rhat):g}" if rhat else "", f"{gap:.3f}", str(len(own))])
    head = ["case", "sampler", "smallest ESS a second", "largest R-hat", "largest gap of a mean", "seeds"]
    return {"samplers": rows_of(head, *lines)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, a fiftieth of the draws, nothing written")
    parser.add_argument("--case", choices=CASES, help="one of the two alone")
    parser.add_argument("--sampler", nargs="+", choices=samplers("conjugate", 1), help="these alone")
    args = parser.parse_args(argv)
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    torch.set_num_threads(1)
    numpyro = find_spec("numpyro") is not None
    if not numpyro:
        print("numpyro is not installed, so its runs are left out")
    for case in [args.case] if args.case else CASES:
        print(f"  {case}")
        makers = samplers(case, 50 if args.quick else 1)
        names = [x for x in makers if x in (args.sampler or makers) and (numpyro or not x.startswith("NumPyro"))]
        turns = [(seed, name) for seed in (SEEDS[:1] if args.quick else SEEDS) for name in names]
        turns = [(seed, name) for seed, name in turns if args.quick or not kept(case, name, seed).exists()]
        runs = {name: makers[name]() for name in dict.fromkeys(name for _, name in turns)}
        for seed, name in turns:
            row = measured(case, name, runs[name], seed)
            if not args.quick:
                keep(kept(case, name, seed), row | {"machine": machine()})
    if not args.quick:
        write_tables("posteriors.md", report_tables())


if __name__ == "__main__":
    main()
