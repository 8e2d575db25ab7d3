"""Smallest effective sample size per second on one posterior: our Gibbs, Pyro's NUTS and NumPyro's NUTS, in one run.

``python -m benchmarks.posterior [--quick]``: 8 keys in two dimensions, 200 queries drawn around them with variance 1/4, prior
precision 4 around the true keys, known key precision and uniform weights; seed 0. NumPyro is timed after its compilation, with as
many vectorised chains as help it; Pyro's NUTS samples the collapsed program. The effective sample size is ArviZ's bulk ESS of each
coordinate of each key, over all chains, of the draws after warmup; the seconds are those of the draws and of the warmup. All chains
start at the prior means: from random starts NumPyro's chains were caught in other modes, in which keys have changed places.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import arviz
import numpy as np
import torch
from pyro.distributions import Normal

from benchmarks.timing import machine, write
from probtx_pyro import inference, models

UNITS, FEATURES, QUERIES, PRIOR_PRECISION, PRECISION = 8, 2, 200, 4.0, 4.0


class Problem(NamedTuple):
    """Prior means of the keys (U, D), and queries (Q, D)."""

    keys: torch.Tensor
    queries: torch.Tensor


def problem() -> Problem:
    draw = torch.Generator().manual_seed(0)
    keys = 3 * torch.randn(UNITS, FEATURES, generator=draw)
    own = keys[torch.randint(UNITS, (QUERIES,), generator=draw)]
    return Problem(keys, own + PRECISION**-0.5 * torch.randn(QUERIES, FEATURES, generator=draw))


def bayesian(posed: Problem) -> models.bayesian:
    mixture = models.GaussianMixture(posed.keys, key_precision=PRECISION)
    return models.bayesian(mixture, keys=Normal(posed.keys, PRIOR_PRECISION**-0.5))


def gibbs(posed: Problem, chains: int, draws: int, warmup: int, seed: int) -> np.ndarray:
    program = bayesian(posed)
    found = inference.gibbs(
        program.mixture, posed.queries, program.priors, num_samples=draws, num_chains=chains, num_warmup=warmup, seed=seed, start={"keys": posed.keys}, progress=False
    )  # fmt: skip
    return found.samples["keys"].numpy()


def pyro_nuts(posed: Problem, chains: int, draws: int, warmup: int, seed: int) -> np.ndarray:
    found = inference.nuts(
        bayesian(posed),
        posed.queries,
        num_samples=draws,
        num_warmup=warmup,
        num_chains=chains,
        seed=seed,
        progress=False,
    )
    return found.samples["keys"].numpy()


def numpyro_nuts(posed: Problem, chains: int, draws: int, warmup: int) -> Callable[[int], np.ndarray]:
    """A sampler that has been compiled: called again with another seed it compiles nothing."""
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer import MCMC, NUTS, init_to_value

    prior, queries = jnp.asarray(posed.keys.numpy()), jnp.asarray(posed.queries.numpy())

    def model() -> None:
        keys = numpyro.sample("keys", dist.Normal(prior, PRIOR_PRECISION**-0.5).to_event(2))
        square = jnp.square(queries[:, None] - keys[None]).sum(-1)
        log_joint = -0.5 * PRECISION * square + 0.5 * FEATURES * np.log(PRECISION / (2 * np.pi)) - np.log(UNITS)
        numpyro.factor("queries", jax.scipy.special.logsumexp(log_joint, -1).sum())

    how = "vectorized" if chains > 1 else "sequential"
    sampler = MCMC(
        NUTS(model, init_strategy=init_to_value(values={"keys": prior})),
        num_warmup=warmup,
        num_samples=draws,
        num_chains=chains,
        chain_method=how,
        progress_bar=False,
    )

    def run(seed: int) -> np.ndarray:
        sampler.run(jax.random.PRNGKey(seed))
        return np.asarray(sampler.get_samples(group_by_chain=True)["keys"])

    return run


def measured(name: str, run: Callable[[int], np.ndarray], seed: int) -> dict[str, Any]:
    start = time.perf_counter()
    draws = run(seed)
    seconds = time.perf_counter() - start
    data = arviz.convert_to_dataset({"keys": draws})
    ess, rhat = (
        float(arviz.ess(data)["keys"].min()),
        float(arviz.rhat(data)["keys"].max()) if len(draws) > 1 else np.nan,
    )
    mean = draws.mean((0, 1)).ravel()
    return {
        "sampler": name, "seed": seed, "chains": len(draws), "draws": draws.shape[1], "seconds": round(seconds, 3),
        "smallest ESS": round(ess), "smallest ESS per second": round(ess / seconds, 1), "R-hat": round(rhat, 4),
        "seconds per 1000 draws": round(1000 * seconds / draws.shape[0] / draws.shape[1], 4), "mean": mean.round(4).tolist(),
    }  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, fewer draws, nothing written")
    args = parser.parse_args(argv)
    posed = problem()
    single = Problem(*(x.float() for x in posed))
    scale = 4 if args.quick else 1
    numpyro = {chains: numpyro_nuts(posed, chains, 2000 // scale, 500 // scale) for chains in (1, 4, 16, 64)}
    samplers: dict[str, Callable[[int], np.ndarray]] = {
        "Gibbs, 128 chains": lambda seed: gibbs(models.bayesian(single, **500 // scale), 128, 100 // scale, seed),
        "Gibbs, 128 chains, float64": lambda seed: gibbs(models.bayesian(Problem(*(x.double() for x in posed)), **500 // scale), 128, 100 // scale, seed),
        "Pyro NUTS": lambda seed: pyro_nuts(single, 1, 1000 // scale, 500 // scale, seed),
        **{f"NumPyro NUTS, {chains} chains": run for chains, run in numpyro.items()},
    }  # fmt: skip
    for run in numpyro.values():
        run(99)  # compiles
    rows = []
    for seed in range(1 if args.quick else 3):
        for name, run in samplers.items():
            rows.append(measured(name, run, seed))
            row = rows[-1]
            print(
                f"  seed {seed} {name:28s} {row['seconds']:8.2f} s {row['smallest ESS per second']:10.0f} ESS/s  R-hat {row['R-hat']}",
                flush=True,
            )
    best = {name: np.median([r["smallest ESS per second"] for r in rows if r["sampler"] == name]) for name in samplers}
    ours, other = best["Gibbs, 128 chains"], max(x for name, x in best.items() if name.startswith("NumPyro"))
    print(f"  Gibbs over Pyro NUTS {ours / best['Pyro NUTS']:.0f}, over NumPyro NUTS {ours / other:.2f}")
    if not args.quick:
        print(write("posterior_cpu", rows), machine())


if __name__ == "__main__":
    main()
