"""Gibbs sampling of a mixture's parameters: assignments drawn from the attention, then each parameter from its conditional.

The sums are those of an M-step (`ops.sampled_statistics`), and what ECM takes the mode of, Gibbs draws from
(`inference.conditionals`). Chains, like heads and examples, are axes of one batch, on the CPU or a GPU.
"""

import os
import time
from collections.abc import Mapping
from typing import Any

import pyro
import torch
from pyro.distributions import ImproperUniform
from torch import Tensor
from torch.nn.functional import one_hot

from probtx_pyro.inference._checkpoint import Checkpoint, fingerprint
from probtx_pyro.inference._conditionals import centers, draw, update
from probtx_pyro.inference._draws import Draws
from probtx_pyro.inference._log_joint import Data, Posterior
from probtx_pyro.inference._program import identity
from probtx_pyro.inference._start import seeds, starts
from probtx_pyro.models import GaussianKeys, GaussianMixture, MixturePriors, bayesian
from probtx_pyro.models.priors import bare
from probtx_pyro.ops import sampled_statistics
from probtx_pyro.ops._progress import progress_bar

SAVED_EVERY = 30.0  # seconds between two checkpoints


def gibbs(
    mixture: GaussianMixture | GaussianKeys,
    queries: Tensor,
    priors: MixturePriors,
    outputs: Tensor | None = None,
    observed: Tensor | None = None,
    *,
    num_samples: int,
    num_chains: int,
    seed: int,
    num_warmup: int | None = None,
    thin: int = 1,
    start: str | Mapping[str, Tensor] = "map",
    query_weights: Tensor | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Draws:
    """Draws from the posterior of every parameter that has a prior, given queries and any annotated answers.

    Parameters
    ----------
    mixture, queries, priors, outputs, observed
        As in `inference.adapt`; the priors must be proper and conjugate.
    num_samples, num_chains, num_warmup, thin
        Draws kept of each chain, chains, sweeps before the first draw (if None as many as come after it, at least 200), and
        sweeps for each draw.
        All chains are one batch: a thousand cost little more than ten.
    start
        ``"map"``, ``"mixture"``, ``"prior"`` or values; see `inference.start.starts`. Chains from "map" know one mode.
    query_weights
        (..., Q), 1 or 0: an absent query.
    checkpoint
        A file that keeps the state every half minute: the same call goes on there, to the same draws. Delete it when done.
    progress
        True shows a bar, False none; None shows one on a terminal after a second.

    Returns
    -------
    Draws
        ``statistics`` holds ``lp``, the log joint of parameters and data (assignments summed out), as `inference.adapt` climbs it.

    Raises
    ------
    ValueError
        As `inference.adapt`; priors that are flat or not conjugate, weights of queries other than 0 and 1.

    Examples
    --------
    >>> import torch
    >>> from pyro.distributions import Normal
    >>> mixture = GaussianMixture(torch.tensor([[-1.0], [1.0]]), key_precision=10.0)
    >>> priors = MixturePriors(keys=Normal(mixture.keys, 0.3))
    >>> queries = torch.tensor([[-1.5], [-1.1], [1.0]])
    >>> draws = gibbs(mixture, queries, priors, num_samples=200, num_chains=20, num_warmup=100, seed=0)
    >>> draws.samples["keys"].shape, [round(float(key), 1) for key in draws.samples["keys"].mean((0, 1))]
    (torch.Size([20, 200, 2, 1]), [-1.2, 1.0])

    References
    ----------
    Diebolt & Robert 1994 (data augmentation for mixtures); Geman & Geman 1984.
    """
    for name, number, least in (("num_samples", num_samples, 1), ("num_chains", num_chains, 1), ("thin", thin, 1)):
        if number < least:
            raise ValueError(f"{name} must be {least} or more, not {number}")
    num_warmup = max(200, num_samples * thin) if num_warmup is None else num_warmup
    if num_warmup < 0:
        raise ValueError(f"num_warmup must be 0 or more, not {num_warmup}")
    _require_conjugate(priors)
    if query_weights is not None and not ((query_weights == 0) | (query_weights == 1)).all():
        raise ValueError(
            "query_weights: a query is there or absent in Gibbs sampling, so weights must be 1 or 0; repeat queries, or use inference.nuts"
        )
    posterior = Posterior(mixture, priors, Data(queries, outputs, observed, query_weights))
    program, (own,) = bayesian(mixture, priors), seeds(seed, 1, "chains")
    generator = torch.Generator(queries.device).manual_seed(own)
    points = starts(program, tuple(posterior.data), num_chains, start, seed)
    begin = {name: points[name].reshape(num_chains, *x.shape) for name, x in posterior.start.items()}
    options = (num_samples, num_chains, num_warmup, thin, seed)
    what = {**identity(program), "data": posterior.data, "start": begin, "options": options}
    run = Checkpoint(checkpoint, "" if checkpoint is None else fingerprint(method="Gibbs", **what))
    kept = run.load() or {
        "sweep": 0,
        "seconds": 0.0,
        "state": begin,
        "random": generator.get_state(),
        "samples": {name: x.new_empty((num_samples, *x.shape)) for name, x in begin.items()},
        "evidence": queries.new_empty(num_samples, num_chains),
    }
    generator.set_state(kept["random"])
    samples, state = ({name: x.to(queries.device) for name, x in kept[what].items()} for what in ("samples", "state"))
    evidence = kept["evidence"].to(queries.device)
    total, fixed = num_warmup + num_samples * thin, centers(mixture)
    clock = saved = time.perf_counter()
    begun = kept["sweep"]
    bar = progress_bar(range(begun, total), label="Gibbs", progress=progress, total=total, initial=begun)
    with torch.no_grad(), pyro.validation_enabled(False):
        for done in bar:
            new, seen = sweep(posterior, state, fixed, generator)
            index, between = divmod(done - num_warmup, thin)
            if index >= 0 and between == 0:
                evidence[index] = seen
                for name, x in state.items():
                    samples[name][index] = x
            state = new
            if checkpoint is not None and (time.perf_counter() - saved > SAVED_EVERY or done == total - 1):
                saved = time.perf_counter()
                run.save({"sweep": done + 1, "seconds": kept["seconds"] + saved - clock, "state": state,
                          "random": generator.get_state(), "samples": samples, "evidence": evidence})  # fmt: skip
    laid = {
        name: x.transpose(0, 1).reshape(num_chains, num_samples, *posterior.sites[name].initial.shape)
        for name, x in samples.items()
    }
    record = {
        "seed": seed,
        "num_warmup": num_warmup,
        "thin": thin,
        "seconds": kept["seconds"] + time.perf_counter() - clock,
    }
    lp = evidence.T + log_prior(posterior, laid)
    return Draws(laid, {"lp": lp}, program, tuple(posterior.data), "Gibbs", record)


def sweep(
    posterior: Posterior, state: Mapping[str, Tensor], fixed: Mapping[str, Tensor], generator: torch.Generator
) -> tuple[dict[str, Tensor], Tensor]:
    """The next state of every chain, and the log evidence of the data, (chain,), in the state given.

    ``fixed``: what keys and values are centred on, the same in all sweeps and chains, so that the statistics are, too.
    """
    data, mixture = posterior.data, posterior.mixture.with_parameters(state)
    flat = {name: x.flatten(-1 - len(mixture.unit_shape), -2) if name == "keys" else x for name, x in fixed.items()}
    lower: Any = mixture.lowered
    factor, log_weights = lower(*data.observations(), centers=flat)
    chains = next(iter(state.values())).shape[0]
    batch = (chains, *posterior.batch, data.queries.shape[-2])
    uniforms = torch.rand(batch, generator=generator, dtype=data.queries.dtype, device=data.queries.device)
    statistics, unit = sampled_statistics(factor, log_weights, uniforms, data.query_weights)

    def assigned() -> Tensor:
        own = unit if len(mixture.unit_shape) == 1 else unit // mixture.unit_shape[-1]
        chosen = one_hot(own, mixture.num_units).to(data.queries.dtype)
        return chosen if data.query_weights is None else chosen * data.query_weights.unsqueeze(-1)

    seen = posterior.seen(statistics, fixed, assigned)
    weights, evidence = data.query_weights, statistics.log_evidence
    evidence = evidence if weights is None else torch.where(weights > 0, evidence, 0.0)
    return update(posterior.sites, mixture, state, seen, draw(generator)), evidence.flatten(1).sum(1)


def log_prior(posterior: Posterior, samples: Mapping[str, Tensor]) -> Tensor:
    """Log density of parameters (chain, draw, *shape) under their priors, (chain, draw)."""
    each = [
        posterior.sites[name].distribution.log_prob(x).reshape(*x.shape[:2], -1).sum(2) for name, x in samples.items()
    ]
    return torch.stack(each).sum(0)


def _require_conjugate(priors: MixturePriors) -> None:
    if not priors.given():
        raise ValueError("priors are empty, so there is nothing to draw; give at least one prior")
    if not priors.conjugate():
        others = ", ".join(f"{name} ~ {type(bare(prior)).__name__}" for name, prior in priors.given().items())
        raise ValueError(
            f"priors: not all of {others} are conjugate; draw with inference.nuts(models.bayesian(mixture, priors), queries, ...)"
        )
    for name, prior in priors.given().items():
        if isinstance(bare(prior), ImproperUniform) and name in ("keys", "values"):
            raise ValueError(
                f"priors: a flat prior on {name} has no posterior where nobody attends; give it Normal(0, scale) with a large scale"
            )


__all__ = ["gibbs"]
