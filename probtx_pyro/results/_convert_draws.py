"""Draws of a posterior as groups of named arrays: see `results.to_inference_data`."""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from pyro import poutine
from pyro.distributions import ImproperUniform
from torch import Tensor

from probtx_pyro.inference import Draws
from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models.formulation import Formulation
from probtx_pyro.models.priors import bare
from probtx_pyro.results._arviz import SAMPLES, Variable
from probtx_pyro.results._convert_program import program_groups
from probtx_pyro.results._dims import Layout
from probtx_pyro.results._evaluation import LIKELIHOODS, Likelihood, over_draws, prior_samples
from probtx_pyro.results._exchangeable import draws_relabelled, exchangeable

Groups = dict[str, dict[str, Variable]]
Attrs = dict[str, str | int | float]
LARGE = 2**27  # bytes of attention above which a user should know that there is a choice
MARKOV_CHAINS = ("NUTS", "Gibbs")  # other methods are guides, whose draws are independent


def draws_groups(
    posterior: Draws,
    dims: Mapping[str, Sequence[str]] | None = None,
    *,
    attention: bool | int,
    likelihood: str | None,
    seed: int | None,
    prior: int,
    relabel: bool,
) -> tuple[Groups, Attrs]:
    """All groups of draws, and the attributes of the file."""
    attrs: Attrs = {"method": posterior.method, **posterior.record}
    if posterior.method not in MARKOV_CHAINS and posterior.num_chains == 1:
        attrs["approximation"] = posterior.method
    statistics: dict[str, Variable] = {
        name: (SAMPLES, x.detach().cpu().numpy()) for name, x in posterior.statistics.items()
    }
    if attention < 0:
        raise ValueError(f"attention must be True, False or n for every n-th draw, not {attention}")
    if likelihood not in (None, *LIKELIHOODS):
        raise ValueError(f"likelihood must be one of {', '.join(LIKELIHOODS)} or None, not {likelihood!r}")
    if isinstance(posterior.program, Formulation):
        if seed is not None or prior or likelihood == "answers":
            raise ValueError(
                "seed, prior and likelihood: draws of latent choices alone explain no data; leave them out"
            )
        return _latent_groups(posterior, posterior.program, dims, int(attention)) | {"sample_stats": statistics}, attrs
    if not isinstance(posterior.program, Bayesian):
        if seed is not None or prior:
            raise ValueError("seed and prior: new data come from a program made by models.bayesian; leave them out")
        if likelihood == "answers":
            raise ValueError(
                "likelihood: only a program made by models.bayesian says what its answers are; take 'joint', every observed site"
            )
        groups: Groups
        groups, said = program_groups(posterior, dims, likelihood is not None)
        return groups | {"sample_stats": statistics}, attrs | said
    if not posterior.program.priors:
        raise ValueError(
            "these draws are of the assignments alone, because the program has no priors; take results.gap, or the formulation's attention"
        )
    if prior and seed is None:
        raise ValueError("prior: draws from the priors need a seed; give seed, an integer")
    program, data = posterior.program, posterior.program.bind(*posterior.arguments)
    formulation, kind = program.formulation, Likelihood(data, likelihood == "answers")
    given = {name: x for name, x in zip(formulation.DATA, data, strict=True) if x is not None}
    explained = [name for name in kind.explains(formulation) if name in given]
    if kind.answers and len(formulation.asked(data)) > 1:
        raise ValueError(
            f"likelihood: the data of a {type(formulation).__name__} are no questions with answers; take likelihood='joint'"
        )
    if not explained:
        raise ValueError("likelihood: there are no answers in these draws' arguments; take likelihood='joint'")
    if relabel:
        posterior = draws_relabelled(posterior)
        attrs["labels"] = posterior.record["labels"]
    if formulation.evidence_kind != "posterior":
        attrs["evidence_kind"] = formulation.evidence_kind
    problem = program.problem(*data)
    layout = Layout(formulation, data, problem.batch, given=dims)

    def laid_out(samples: Mapping[str, Tensor]) -> dict[str, Variable]:
        return {name: layout.variable(name, x, samples=SAMPLES) for name, x in samples.items()}

    groups = {"posterior": laid_out(posterior.samples), "sample_stats": statistics}
    compared = [name for name in posterior.samples if name in formulation.PARAMETERS]
    attrs["logarithmic"] = " ".join(name for name in compared if formulation.row(name).logarithmic)
    if not program.hierarchical:  # a flat prior has no density
        flat = [name for name, site in problem.sites.items() if isinstance(bare(site.distribution), ImproperUniform)]
        proper = problem.log_priors({name: x for name, x in posterior.samples.items() if name not in flat})
        groups["log_prior"] = {name: (SAMPLES, x.detach().cpu().numpy()) for name, x in proper.items()}
    asked = [name for name in formulation.AT_DRAWS if formulation.offers(name)]
    if attention and asked:
        observations, every = formulation.observations(data), int(attention)
        thinned = {name: x[:, ::every] for name, x in posterior.samples.items()}
        found = over_draws(
            lambda adapted: {name: getattr(adapted, name)(*observations) for name in asked}, program, data, thinned
        )
        groups |= _at_draws(groups, layout, found, posterior.num_draws, every)
        attrs["derived"] = " ".join(asked)
    if likelihood:
        (pointwise,) = over_draws(kind.log_density, program, data, posterior.samples).values()
        label = explained[0] if len(explained) == 1 else "joint"
        groups["log_likelihood"] = _pointwise(layout, label, kind.counted(formulation), pointwise)
    if seed is not None:
        first, second = (int(x) for x in np.random.SeedSequence(seed).generate_state(2))
        with poutine.seed(rng_seed=first):
            groups["posterior_predictive"] = laid_out(over_draws(kind.replicate, program, data, posterior.samples))
        if prior:
            with poutine.seed(rng_seed=second):
                samples = prior_samples(program, data, prior)
                own: dict[str, Variable] = {"chain": (("chain",), np.arange(1)), "draw": (("draw",), np.arange(prior))}
                groups["prior"] = laid_out(samples) | own
                groups["prior_predictive"] = laid_out(over_draws(kind.replicate, program, data, samples)) | own
    observed = {name: layout.variable(name, x) for name, x in given.items()}
    groups["observed_data"] = {name: x for name, x in observed.items() if name in explained}
    groups["constant_data"] = {name: x for name, x in observed.items() if name not in explained}
    for name, x in formulation.parameters().items():
        if name not in posterior.samples:
            groups["constant_data"][name] = layout.variable(name, x)
    for name, classes in exchangeable(program, data).classes.items():
        groups["constant_data"][f"exchangeable_{name}s"] = classes
    layout.finish()
    return groups, attrs


def _latent_groups(
    draws: Draws, formulation: Formulation, dims: Mapping[str, Sequence[str]] | None, every: int
) -> Groups:
    """Groups of draws of latent choices alone: these, the posterior of the assignment given each, and what was known."""
    data = formulation.bind(*draws.arguments)
    layout = Layout(formulation, data, given=dims)
    groups = {"posterior": {name: layout.variable(name, x, samples=SAMPLES) for name, x in draws.samples.items()}}
    if every:
        latents = formulation.latents(data)
        rows = [
            latents.attention({name: x[i, ::every] for name, x in draws.samples.items()})
            for i in range(draws.num_chains)
        ]
        groups |= _at_draws(groups, layout, {"attention": torch.stack(rows)}, draws.num_draws, every)
    given = [(name, row, x) for (name, row), x in zip(formulation.DATA.items(), data, strict=True) if x is not None]
    for group, masks in (("observed_data", False), ("constant_data", True)):
        groups[group] = {name: layout.variable(name, x) for name, row, x in given if (row.role == "mask") == masks}
    groups["constant_data"] |= {name: layout.variable(name, x) for name, x in formulation.parameters().items()}
    layout.finish()
    return groups


def _at_draws(groups: Groups, layout: Layout, found: Mapping[str, Tensor], num_draws: int, every: int) -> Groups:
    """Attention, and what goes with it, in the posterior, or that of every n-th draw in a group of its own."""
    if (size := sum(x.nbytes for x in found.values())) > LARGE and every == 1:
        warnings.warn(
            f"attention of every draw takes {size / 2**20:.0f} MiB; attention=n keeps that of every n-th draw, attention=False none",
            stacklevel=4,
        )
    variables: dict[str, Variable] = {name: layout.variable(name, x, samples=SAMPLES) for name, x in found.items()}
    if every == 1:
        return {"posterior": groups["posterior"] | variables}
    return {"attention": variables | {"draw": (("draw",), np.arange(num_draws)[::every])}}


def _pointwise(layout: Layout, name: str, counted: Tensor, pointwise: Tensor) -> dict[str, Variable]:
    """The log likelihood along the observations; along ``observation`` where some are absent."""
    counted = counted.expand(pointwise.shape[len(SAMPLES) :])
    if bool(counted.all()):
        return {name: layout.variable(name, pointwise, like="log_evidence", samples=SAMPLES)}
    axes = layout.axes("log_evidence")
    labels = [
        ", ".join(f"{axis}={i}" for axis, i in zip(axes, index, strict=True)) for index in counted.nonzero().tolist()
    ]
    return {
        name: ((*SAMPLES, "observation"), pointwise[..., counted].cpu().numpy()),
        "observation": (("observation",), np.asarray(labels)),
    }
