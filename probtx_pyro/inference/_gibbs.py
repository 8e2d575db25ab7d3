"""Gibbs sampling of a formulation's parameters: latents drawn from the attention, then each parameter from its conditional.

The sums are those of an M-step, and what ECM takes the mode of, Gibbs draws from (`_conditionals`). Chains, like heads and
examples, are axes of one batch, on the CPU or a GPU.
"""

import os
import time
from collections.abc import Mapping
from typing import Any

import pyro
import torch
from pyro.distributions import ImproperUniform
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.inference._checkpoint import Checkpoint
from probtx_pyro.inference._draws import Draws
from probtx_pyro.inference._log_joint import LogJoint, log_priors
from probtx_pyro.inference._program import identity, require_counts
from probtx_pyro.inference._start import seeds, starts
from probtx_pyro.inference.em import require_posterior
from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models._conditionals import draw, update
from probtx_pyro.models.priors import bare
from probtx_pyro.ops._progress import progress_bar

SAVED_EVERY = 30.0  # seconds between two checkpoints


def gibbs(
    posterior: Bayesian,
    *data: Any,
    num_samples: int = 1000,
    num_chains: int = 4,
    seed: int,
    num_warmup: int | None = None,
    thin: int = 1,
    start: str | Mapping[str, Tensor] = "map",
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    **named: Any,
) -> Draws:
    """Draw from the posterior of every parameter that has a prior, given data.

    Parameters
    ----------
    posterior
        `models.bayesian` with proper, conjugate priors.
    data, named
        The data of the formulation, by place or by name, as in `inference.adapt`; weights of the queries are 1 or 0, an absent
        query.
    num_samples, num_chains, num_warmup, thin
        Draws kept of each chain, chains, sweeps before the first draw (if None as many as come after it, at least 200), and
        sweeps for each draw.
        All chains are one batch: a thousand cost little more than ten.
    seed
        A non-negative integer, which fixes every draw to the bit on one device.
    start
        ``"map"``: what `inference.adapt` finds, with some jitter for each chain; ``"formulation"``: the formulation's own
        parameters, with the same jitter; ``"prior"``: a draw for each chain; or a mapping of every parameter to a tensor
        (*shape) or (chain, *shape). Chains from "map" know one mode.
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
    NotImplementedError
        Priors with hyperparameters, or a formulation without closed-form conditionals.

    Examples
    --------
    >>> import torch
    >>> from pyro.distributions import Normal
    >>> from probtx_pyro import models
    >>> mixture = models.GaussianMixture(torch.tensor([[-1.0], [1.0]]), key_precision=10.0)
    >>> posterior = models.bayesian(mixture, keys=Normal(mixture.keys, 0.3))
    >>> queries = torch.tensor([[-1.5], [-1.1], [1.0]])
    >>> draws = gibbs(posterior, queries, num_samples=200, num_chains=20, num_warmup=100, seed=0)
    >>> draws.samples["keys"].shape, [round(float(key), 1) for key in draws.samples["keys"].mean((0, 1))]
    (torch.Size([20, 200, 2, 1]), [-1.2, 1.0])

    References
    ----------
    Diebolt & Robert 1994 (data augmentation for mixtures); Geman & Geman 1984.
    """
    require_counts(num_samples=num_samples, num_chains=num_chains, thin=thin)
    num_warmup = max(200, num_samples * thin) if num_warmup is None else num_warmup
    if num_warmup < 0:
        raise ValueError(f"num_warmup must be 0 or more, not {num_warmup}")
    require_posterior(posterior, "inference.gibbs")
    _require_conjugate(posterior)
    given = posterior.bind(*data, **named)
    weights = posterior.formulation.datum(given, "weights")
    if weights is not None and not ((weights == 0) | (weights == 1)).all():
        raise ValueError(
            "query_weights: a query is there or absent in Gibbs sampling, so weights must be 1 or 0; repeat queries, or use inference.nuts"
        )
    joint = LogJoint(posterior, given)
    (own,) = seeds(seed, 1, "chains")
    like = joint.like
    generator = torch.Generator(like.device).manual_seed(own)
    points = starts(posterior, given, num_chains, start, seed)
    begin = {name: points[name].reshape(num_chains, *x.shape) for name, x in joint.start.items()}
    options = ("Gibbs", num_samples, num_chains, num_warmup, thin, seed)
    run = Checkpoint(checkpoint, {**identity(posterior), "data": given, "start": begin, "options": options})
    kept = run.load() or {
        "sweep": 0,
        "seconds": 0.0,
        "state": begin,
        "random": generator.get_state(),
        "samples": {name: x.new_empty((num_samples, *x.shape)) for name, x in begin.items()},
        "evidence": like.new_empty(num_samples, num_chains),
    }
    generator.set_state(kept["random"])
    samples, state = ({name: x.to(like.device) for name, x in kept[what].items()} for what in ("samples", "state"))
    evidence = kept["evidence"].to(like.device)
    total, fixed = num_warmup + num_samples * thin, joint.formulation.origins()
    begun, saved = kept["sweep"], time.perf_counter()
    clock = saved - kept["seconds"]
    bar = progress_bar(range(begun, total), label="Gibbs", progress=progress, total=total, initial=begun)
    with torch.no_grad(), pyro.validation_enabled(False):
        for done in bar:
            new, seen = sweep(joint, state, fixed, generator)
            index, between = divmod(done - num_warmup, thin)
            if index >= 0 and between == 0:
                evidence[index] = seen
                for name, x in state.items():
                    samples[name][index] = x
            state = new
            if checkpoint is not None and (time.perf_counter() - saved > SAVED_EVERY or done == total - 1):
                saved = time.perf_counter()
                run.save({"sweep": done + 1, "seconds": saved - clock, "state": state,
                          "random": generator.get_state(), "samples": samples, "evidence": evidence})  # fmt: skip
    laid = {
        name: x.transpose(0, 1).reshape(num_chains, num_samples, *joint.sites[name].initial.shape)
        for name, x in samples.items()
    }
    record = {"seed": seed, "num_warmup": num_warmup, "thin": thin, "seconds": time.perf_counter() - clock}
    lp = evidence.T + torch.stack([*log_priors(joint.sites, laid).values()]).sum(0)
    return Draws(laid, {"lp": lp}, posterior, given, "Gibbs", record)


def sweep(
    joint: LogJoint, state: Mapping[str, Tensor], fixed: Mapping[str, Tensor], generator: torch.Generator
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the next state of every chain, and the log evidence of the data, (chain,), in the state given.

    ``fixed``: what statistics are centred on, the same in all sweeps and chains, so that the sums are comparable, too.
    """
    formulation, like = joint.formulation.with_parameters(state), joint.like
    chains = next(iter(state.values())).shape[0]
    uniforms = torch.rand((chains, *joint.observed_shape), generator=generator, dtype=like.dtype, device=like.device)
    seen = formulation.draw_latents(joint.data, uniforms, fixed)
    weights, evidence = joint.weights, seen.log_evidence
    evidence = evidence if weights is None else torch.where(weights > 0, evidence, 0.0)
    return update(joint.sites, formulation, state, seen, draw(generator)), evidence.flatten(1).sum(1)


def _require_conjugate(posterior: Bayesian) -> None:
    if not posterior.priors:
        raise ValueError("priors are empty, so there is nothing to draw; give models.bayesian at least one prior")
    posterior.require_plain("closed-form conditional")
    for name in posterior.priors:
        if posterior.formulation.row(name).conjugate is None:
            posterior.formulation.refuse("conditional")
    if not posterior.conjugate():
        raise ValueError(
            f"priors: not all of {posterior.described()} are conjugate; draw with inference.nuts(posterior, *data, ...)"
        )
    for name, prior in posterior.priors.items():
        real = posterior.formulation.row(name).support is constraints.real
        if isinstance(bare(prior), ImproperUniform) and real:
            raise ValueError(
                f"priors: a flat prior on {name} has no posterior where nobody attends; give it Normal(0, scale) with a large scale"
            )
