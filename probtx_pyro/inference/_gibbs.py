"""Gibbs sampling of a formulation's parameters: latents drawn from the attention,
then each parameter from its conditional.

The sums are those of an M-step, and Gibbs draws from the conditionals whose modes ECM takes. Without
priors, only the formulation's latent choices are drawn. Chains, like heads and examples, are axes of one batch, on the
CPU or a GPU.
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from pyro.distributions import ImproperUniform
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.inference._checkpoint import Checkpoint
from probtx_pyro.inference._draws import Draws
from probtx_pyro.inference._program import identity, of_problem, require_counts, require_finite
from probtx_pyro.inference._start import seeds, starts
from probtx_pyro.inference.em import require_posterior
from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models._problem import Problem
from probtx_pyro.models.formulation import Formulation, Latents
from probtx_pyro.models.priors import bare
from probtx_pyro.ops._progress import progress_bar

SAVED_EVERY = 30.0  # seconds between two checkpoints
State = Mapping[str, Tensor]


def gibbs(
    posterior: Bayesian | Formulation,
    *data: Tensor | None,
    num_samples: int = 1000,
    num_chains: int = 4,
    seed: int,
    num_warmup: int | None = None,
    thin: int = 1,
    start: str | Mapping[str, Tensor] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    **named: Tensor | None,
) -> Draws:
    """Draw from the posterior of every parameter that has a prior, or of latent choices alone, given data.

    Parameters
    ----------
    posterior
        `models.bayesian` with proper, conjugate priors; or a formulation whose latent choices are the posterior, a
        dependency CRF.
    data, named
        The data of the formulation, by place or by name, as in `inference.adapt`; weights of the queries are 1 or 0, an
        absent query.
    num_samples, num_chains, num_warmup, thin
        Draws kept of each chain, chains, sweeps before the first draw (if None as many as come after it, at least 200),
        and sweeps for each draw. All chains are one batch: a thousand cost little more than ten.
    seed
        A non-negative integer, which fixes every draw to the bit on one device.
    start
        Of latent choices None, a draw in which they do not depend on each other, or a mapping of all that sweeps move.
        Of parameters ``"map"``, or None: what `inference.adapt` finds, with some jitter for each chain;
        ``"formulation"``: the formulation's own parameters, with the same jitter; ``"prior"``: a draw for each chain;
        or a mapping of every parameter to a tensor (*shape) or (chain, *shape). Chains from "map" know one mode.
    checkpoint
        A file that keeps the state every half minute: the same call goes on there, to the same draws. Delete it when
        done.
    progress
        True shows a bar, False none; None shows one on a terminal after a second.

    Returns
    -------
    Draws
        ``statistics`` holds ``lp``, the log joint of parameters and data (assignments summed out), as `inference.adapt`
        climbs it; of latent choices their unnormalised log density, summed over the problems.

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
    options = ("Gibbs", num_samples, num_chains, num_warmup, thin, seed)
    (own,) = seeds(seed, 1, "chains")
    problem = None
    if isinstance(posterior, Formulation) and posterior.offers("latents"):
        given = posterior.bind(*data, **named)
        latents, like = posterior.latents(given), next(iter(posterior.parameters().values()))
        generator = torch.Generator(like.device).manual_seed(own)
        first = begin(latents, num_chains, start, generator, "start")
        step = _of_latents(posterior, latents, generator)
    else:
        require_posterior(posterior, "inference.gibbs")
        assert isinstance(posterior, Bayesian)
        _require_conjugate(posterior)
        problem = posterior.problem(*data, **named)
        given, weights = problem.data, problem.weights
        if weights is not None and not ((weights == 0) | (weights == 1)).all():
            raise ValueError(
                "query_weights: a query is there or absent in Gibbs sampling, so weights must be 1 or 0; "
                "repeat queries, or use inference.nuts"
            )
        generator = torch.Generator(problem.like.device).manual_seed(own)
        points = starts(of_problem(posterior, problem).in_units(), num_chains, "map" if start is None else start, seed)
        first = {name: points[name].reshape(num_chains, *x.shape) for name, x in problem.start.items()}
        step = _of_parameters(problem, generator)
    run = Checkpoint(checkpoint, {**identity(posterior), "data": given, "start": first, "options": options})
    samples, lp, seconds = _drawn(step, first, num_samples, num_warmup, thin, generator, run, progress)
    if problem is not None:
        samples = {name: x.reshape(*x.shape[:2], *problem.sites[name].initial.shape) for name, x in samples.items()}
        for name, density in problem.log_priors(samples).items():
            if bool(density.isnan().any()):
                raise ValueError(
                    f"inference.gibbs: draws of {name} have no log density under their prior; "
                    "bring the data to order one, or give a stronger prior"
                )
            lp = lp + density
    record = {"seed": seed, "num_warmup": num_warmup, "thin": thin, "seconds": seconds}
    return Draws(samples, {"lp": lp}, posterior, given, "Gibbs", record)


# from a state, and whether it is kept, to the next state, what is kept of this one, and its log density "lp" (chain,)
Step = Callable[[State, bool], tuple[State, State, State]]


def _drawn(
    step: Step,
    first: State,
    num_samples: int,
    num_warmup: int,
    thin: int,
    generator: torch.Generator,
    run: Checkpoint,
    progress: bool | None,
) -> tuple[dict[str, Tensor], Tensor, float]:
    """Return what a chain of steps keeps, (chain, draw, ...), its log densities (chain, draw),
    and the seconds it took.
    """
    kept: dict[str, Any] = {"sweep": 0, "seconds": 0.0, "samples": {}, "evidence": {}}
    kept |= {"state": first, "random": generator.get_state()} | (run.load() or {})
    generator.set_state(kept["random"])
    samples, state, evidence = (
        {name: x.to(generator.device) for name, x in kept[what].items()} for what in ("samples", "state", "evidence")
    )
    total, begun, saved = num_warmup + num_samples * thin, kept["sweep"], time.perf_counter()
    clock = saved - kept["seconds"]
    bar = progress_bar(range(begun, total), label="Gibbs", progress=progress, total=total, initial=begun)
    with torch.no_grad(), pyro.validation_enabled(False):
        for done in bar:
            index, between = divmod(done - num_warmup, thin)
            keep = index >= 0 and between == 0
            new, drawn, density = step(state, keep)
            if keep:
                for rows, found in ((samples, drawn), (evidence, density)):
                    for name, x in found.items():
                        rows.setdefault(name, x.new_empty((num_samples, *x.shape)))[index] = x
            state = dict(new)
            if run.path is not None and (time.perf_counter() - saved > SAVED_EVERY or done == total - 1):
                saved = time.perf_counter()
                kept |= {"sweep": done + 1, "seconds": saved - clock, "state": state, "random": generator.get_state()}
                run.save(kept | {"samples": samples, "evidence": evidence})
    laid = {name: x.transpose(0, 1).contiguous() for name, x in samples.items()}
    return laid, evidence["lp"].T, time.perf_counter() - clock


def _of_parameters(problem: Problem, generator: torch.Generator) -> Step:
    """Sweeps over parameters; the density is that of the data, known after a sweep's draw of latents."""
    origins = problem.formulation.origins()

    def step(state: State, keep: bool) -> tuple[State, State, State]:
        new, evidence = problem.gibbs_step(state, origins, generator)
        if not bool(torch.isfinite(evidence).all()):
            problem.require_numbers("inference.gibbs", state, problem.objective(state))
        return new, state, {"lp": evidence}

    return step


def _of_latents(formulation: Formulation, latents: Latents, generator: torch.Generator) -> Step:
    """Sweeps over latent choices; what they sum out is drawn for the states that are kept."""

    def step(state: State, keep: bool) -> tuple[State, State, State]:
        if not keep:
            return latents.sweep(state, generator), {}, {}
        density = latents.log_density(state, 1.0)[0].reshape(len(next(iter(state.values()))), -1).sum(1)
        require_finite("inference.gibbs", formulation, density)
        return latents.sweep(state, generator), latents.complete(state, generator), {"lp": density}

    return step


def begin(
    latents: Latents, num_chains: int, given: str | State | None, generator: torch.Generator, name: str
) -> dict[str, Tensor]:
    """Return the first state of latent choices: drawn at β = 0, or ``given``, which errors call ``name``."""
    drawn = latents.start(num_chains, generator)
    if given is None:
        return drawn
    if isinstance(given, str) or given.keys() != drawn.keys():
        said = repr(given) if isinstance(given, str) else f"a mapping of {', '.join(map(repr, given))}"
        raise ValueError(f"{name} must be None or a mapping of {', '.join(map(repr, drawn))}, not {said}")
    for key, x in drawn.items():
        own = given[key]
        if own.shape not in (x.shape, x.shape[1:]) or own.dtype != x.dtype:
            raise ValueError(
                f"{name} of {key} is {own.dtype} of shape {tuple(own.shape)}; "
                f"it must be {x.dtype} {tuple(x.shape[1:])}, or {tuple(x.shape)} with one for each chain"
            )
        drawn[key] = own.expand(x.shape).clone()
    if not torch.isfinite(latents.log_density(drawn, 1.0)).all():
        raise ValueError(f"{name} has no density: it differs from what is known; give the known choices as they are")
    return drawn


def _require_conjugate(posterior: Bayesian) -> None:
    if not posterior.priors:
        raise ValueError("priors are empty, so there is nothing to draw; give models.bayesian at least one prior")
    posterior.require_plain("closed-form conditional")
    for name in posterior.priors:
        if posterior.formulation.row(name).conjugate is None:
            posterior.formulation.refuse("conditional")
    if not posterior.conjugate():
        raise ValueError(f"priors: not all of {posterior.described()} are conjugate; draw with inference.nuts")
    for name, prior in posterior.priors.items():
        real = posterior.formulation.row(name).support is constraints.real
        if isinstance(bare(prior), ImproperUniform) and real:
            raise ValueError(
                f"priors: a flat prior on {name} has no posterior where nobody attends; "
                "give it Normal(0, scale) with a large scale"
            )
