"""Inference results as ArviZ data: named dimensions by one table, EM iterations never disguised as draws.

=========================  ===========================================================================================
group                      what it holds
=========================  ===========================================================================================
``iterations``             of a fit or a mean field: ``objective`` (iteration, problems), ``converged`` and ``num_steps`` (problems)
``point_estimate``         of a fit: the parameters; given queries also ``attention`` and ``log_evidence``. Of a mean field: its
                           marginals, such as ``attention`` and ``label_marginals``, and the parameters
``posterior``              of draws: the parameters drawn and ``attention`` (chain, draw, .., query, unit)
``attention``              ``attention`` of every n-th draw, where only those are asked for
``posterior_predictive``   ``queries``, and ``outputs`` where they have a density, drawn anew for every draw
``prior``                  the parameters drawn from their priors, and ``prior_predictive``: the data these make
``log_prior``              log density of each parameter under its prior (chain, draw), for `results.prior_sensitivity`
``log_likelihood``         one variable, pointwise over the queries, the units summed out
``sample_stats``           what the sampler recorded (chain, draw)
``observed_data``          ``outputs``; of draws also the ``queries``, which the model explains
``constant_data``          ``observed`` and ``query_weights``; of draws also the parameters without a prior and which units
                           may change places (equal numbers in ``exchangeable_units``, ``exchangeable_components``)
=========================  ===========================================================================================
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.distributions import ImproperUniform
from pyro.distributions.unit import Unit
from pyro.infer import MCMC
from pyro.infer.autoguide import AutoGuide
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from probtx_pyro.inference import Adaptation, Approximation, Draws
from probtx_pyro.inference._program import bound, parameters, untouched
from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models.formulation import Data, Field, Formulation
from probtx_pyro.models.priors import bare
from probtx_pyro.results._arviz import SAMPLES, Variable, from_arrays
from probtx_pyro.results._dims import Layout, names_of_axes, refuse_unused
from probtx_pyro.results._evaluation import LIKELIHOODS, Likelihood, over_draws, prior_samples
from probtx_pyro.results._exchangeable import draws_relabelled, exchangeable

Groups = dict[str, dict[str, Variable]]
Attrs = dict[str, str | int | float]


@dataclass(frozen=True)
class Options:
    """Options of the conversion of draws, as `to_inference_data` documents them."""

    attention: bool | int = True
    likelihood: str | None = "joint"
    seed: int | None = None
    prior: int = 0
    relabel: bool = True

    def __post_init__(self) -> None:
        if self.attention < 0:
            raise ValueError(f"attention must be True, False or n for every n-th draw, not {self.attention}")
        if self.likelihood not in (None, *LIKELIHOODS):
            raise ValueError(f"likelihood must be one of {', '.join(LIKELIHOODS)} or None, not {self.likelihood!r}")

    def refuse_given(self, kind: str) -> None:
        """Refuse an option that a result without draws cannot serve."""
        for option in fields(self):
            if getattr(self, option.name) != option.default:
                raise ValueError(f"{option.name}: an option of draws, but this is a {kind}; leave it out")


def to_inference_data(
    fit: Adaptation | Formulation | Field | Draws | Approximation | MCMC | AutoGuide,
    *data: Tensor | None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    attention: bool | int = Options.attention,
    likelihood: str | None = Options.likelihood,
    seed: int | None = Options.seed,
    prior: int = Options.prior,
    relabel: bool = Options.relabel,
    **named: Tensor | None,
) -> Any:
    """Convert a result of inference to ``arviz.InferenceData`` (``xarray.DataTree`` under ArviZ 1.x).

    Parameters
    ----------
    fit
        What `inference.adapt` returned, a formulation, a mean field, the `Draws` of a sampler, or what
        `inference.variational` returned, which stands for its draws; or Pyro's own ``MCMC`` or ``AutoGuide``.
        Dimensions are called as the formulation's tables say.
    data, named
        The data, by place or by name: of a formulation or a fit as given to `inference.adapt`, such as queries (..., Q,
        D); of a mean field what was known when it was made, which it does not keep; of Pyro's own results what they
        were run on. Draws bring their own.
    coords
        Labels of dimensions, such as ``{"query": tokens, "unit": tokens}``; integers where none are given.
    dims
        Names of the axes of a variable in place of those of the table: ``{"keys": ["layer", "unit", "feature"]}``,
        without ``chain`` and ``draw``. The leading axes are called as the Pyro plates, ``batch`` and ``head``.
    attention
        Of draws, as all options below: True makes attention a variable of the posterior, (chain, draw, .., query, unit)
        numbers; a number n puts that of every n-th draw into a group ``attention``; False leaves it out.
    likelihood
        What LOO leaves out with a query: "joint" is ``log p(q_i, v_i)``, or ``log p(q_i)`` where no answer is observed;
        "answers" is ``log p(v_i | q_i)`` of the answers observed. None for no such group. Of a Pyro program of your own
        "joint" is one variable for each observed site, which takes a run of the program for each draw.
    seed
        With a seed, every draw makes new data (with "answers": new answers to the same queries),
        ``posterior_predictive``.
    prior
        How many draws from the priors, with the data that they make; needs a seed.
    relabel
        True numbers units that may change places alike in all draws, see `relabel`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        An axis along which a parameter is shared is absent. Attributes: method, inference_library and its version; of a
        fit converged (1 where all problems did) and num_steps (the largest); of draws the sampler's record, ``labels``,
        which says what became of exchangeable units, and ``approximation``, the guide, where draws are not of a Markov
        chain.

    Raises
    ------
    ValueError
        Outputs without queries; shapes, dims or coords that do not fit; options that this result cannot serve.

    Notes
    -----
    Of a Pyro program of your own the plates name the axes, and masked observations lie outside ``site_observation`` as
    those of weight 0 do below. Where a latent site has no draws, such as one that NUTS enumerates, the likelihood is
    left out; the attribute ``log_likelihood`` says so. It also says where the log likelihood is prequential, each
    observation given those before it, as of a regression memory: `diagnose` then leaves Pareto k out.

    A query of weight 0 has no likelihood: where there are such (or unobserved answers, for "answers"), the others lie
    along ``observation``, whose labels say which they are, so that ``arviz.loo`` meets no NaN. Other weights multiply
    the log likelihood, as in the program.

    Examples
    --------
    >>> import torch
    >>> from probtx_pyro import models
    >>> mixture = models.GaussianMixture(torch.tensor([[-1.0], [1.0]]))
    >>> data = to_inference_data(mixture, torch.zeros(3, 1), coords={"query": ["a", "cat", "sat"]})
    >>> data["point_estimate"]["attention"].sel(query="cat").values.round(4).tolist()
    [0.5, 0.5]

    References
    ----------
    Vehtari, Gelman & Gabry 2017, *Practical Bayesian model evaluation using leave-one-out cross-validation and WAIC*.
    """
    library = {"inference_library": "probtx_pyro", "inference_library_version": version("probtx_pyro")}
    options = Options(attention, likelihood, seed, prior, relabel)
    fit = fit.draws if isinstance(fit, Approximation) else fit
    if isinstance(fit, MCMC | AutoGuide):
        fit, data, named = as_draws(fit, data, named, seed), (), {}
    if isinstance(fit, Draws):
        if data or named:
            raise ValueError("data: draws bring the data they were made from; leave them out")
        groups, attrs = draws_groups(fit, dims, options)
        return from_arrays(groups, coords, library | attrs)
    formulation = fit.formulation if isinstance(fit, Adaptation | Field) else fit
    if not isinstance(formulation, Formulation):
        raise ValueError(
            "fit must be a result of inference, a formulation, a mean field, or "
            f"Pyro's MCMC or AutoGuide, not a {type(fit).__name__}"
        )
    options.refuse_given(type(fit).__name__)
    groups, attrs = _point_groups(fit, formulation, formulation.bind(*data, **named), dims)
    return from_arrays(groups, coords, library | attrs)


def _point_groups(
    fit: Any, formulation: Formulation, data: Data, dims: Mapping[str, Sequence[str]] | None
) -> tuple[Groups, Attrs]:
    """The groups and attributes of one value of the parameters, with how it was found."""
    given = {name: x for name, x in zip(formulation.DATA, data, strict=True) if x is not None}
    latent = not data or next(iter(formulation.DATA.values())).role == "latent"
    if given and data[0] is None and not latent:
        first = next(iter(formulation.DATA))
        raise ValueError(f"{' and '.join(given)} belong to {first}, which are missing; give {first} as well")
    field = isinstance(fit, Field)
    layout = Layout(formulation, data, fit.converged.shape if isinstance(fit, Adaptation | Field) else (), dims)
    estimate = {name: layout.variable(name, x) for name, x in formulation.parameters().items()}
    groups: Groups = {"iterations": {}, "point_estimate": estimate, "constant_data": {}, "observed_data": {}}
    attrs: Attrs = {}
    if isinstance(fit, Adaptation | Field):
        attrs |= {
            "method": fit.method if isinstance(fit, Adaptation) else "mean field",
            "converged": int(fit.converged.all()),
            "num_steps": int(fit.num_steps.max()) if fit.num_steps.numel() else 0,
        }
        groups["iterations"] = {name: layout.variable(name, getattr(fit, name)) for name in ("converged", "num_steps")}
        steps = [] if fit.objective is None else [layout.variable("objective", row) for row in fit.objective]
        if steps:
            groups["iterations"]["objective"] = (("iteration", *steps[0][0]), np.stack([array for _, array in steps]))
    if field:
        formulation.latents(data)  # refuses what cannot have been known
        estimate |= {name: layout.variable(name, x) for name, x in fit.marginals().items()}
    if latent or data[0] is not None:
        observations = formulation.observations(data)
        with torch.no_grad():
            for name in ("attention", "log_evidence"):
                if not field and formulation.offers(name) and (name == "attention" or formulation.explains(data)):
                    estimate[name] = layout.variable(name, getattr(formulation, name)(*observations))
        # what the estimate is conditional on, and the answers that it explains
        for i, (name, x) in enumerate(given.items()):
            role = formulation.DATA[name].role
            group = "observed_data" if role == "latent" or (role == "explained" and i) else "constant_data"
            groups[group][name] = layout.variable(name, x)
    layout.finish()
    return groups, attrs


LARGE = 2**27  # bytes of attention above which a user should know that there is a choice
MARKOV_CHAINS = ("NUTS", "Gibbs")  # other methods are guides, whose draws are independent


def draws_groups(
    posterior: Draws, dims: Mapping[str, Sequence[str]] | None = None, options: Options = Options()
) -> tuple[Groups, Attrs]:
    """All groups of draws, and the attributes of the file."""
    attention, likelihood, seed, prior = options.attention, options.likelihood, options.seed, options.prior
    attrs: Attrs = {"method": posterior.method, **posterior.record}
    if posterior.method not in MARKOV_CHAINS and posterior.num_chains == 1:
        attrs["approximation"] = posterior.method
    statistics: dict[str, Variable] = {
        name: (SAMPLES, x.detach().cpu().numpy()) for name, x in posterior.statistics.items()
    }
    if isinstance(posterior.program, Formulation):
        if seed is not None or prior or likelihood == "answers":
            raise ValueError("seed, prior and likelihood: draws of latent choices alone explain no data; drop them")
        return _latent_groups(posterior, posterior.program, dims, int(attention)) | {"sample_stats": statistics}, attrs
    if not isinstance(posterior.program, Bayesian):
        if seed is not None or prior:
            raise ValueError("seed and prior: new data come from a program made by models.bayesian; leave them out")
        if likelihood == "answers":
            raise ValueError(
                "likelihood: only a program made by models.bayesian says what its answers are; "
                "take 'joint', every observed site"
            )
        groups: Groups
        groups, said = program_groups(posterior, dims, likelihood is not None)
        return groups | {"sample_stats": statistics}, attrs | said
    if not posterior.program.priors:
        raise ValueError(
            "these draws are of the assignments alone, because the program has no priors; "
            "take results.gap, or the formulation's attention"
        )
    if prior and seed is None:
        raise ValueError("prior: draws from the priors need a seed; give seed, an integer")
    program, data = posterior.program, posterior.program.bind(*posterior.arguments)
    formulation, kind = program.formulation, Likelihood(data, likelihood == "answers")
    given = {name: x for name, x in zip(formulation.DATA, data, strict=True) if x is not None}
    explained = [name for name in kind.explains(formulation) if name in given]
    if kind.answers and len(formulation.asked(data)) > 1:
        raise ValueError(f"likelihood: a {type(formulation).__name__} answers no questions; take likelihood='joint'")
    if not explained:
        raise ValueError("likelihood: there are no answers in these draws' arguments; take likelihood='joint'")
    if options.relabel:
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
        if formulation.PREQUENTIAL:
            attrs["log_likelihood"] = PREQUENTIAL
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
    """Groups of draws of latent choices alone: these, the posterior of the assignment given each,
    and what was known.
    """
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
            f"attention of every draw takes {size / 2**20:.0f} MiB; "
            "attention=n keeps that of every n-th draw, attention=False none",
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
    places = layout.axes("log_evidence")
    return _present(name, "observation", places, pointwise.cpu().numpy(), counted.cpu().numpy())


def _present(name: str, axis: str, dims: Sequence[str], array: np.ndarray, counted: np.ndarray) -> dict[str, Variable]:
    """The log likelihood of the observations that count, (*SAMPLES, axis), with their places among ``dims`` as labels."""
    labels = [", ".join(f"{dim}={i}" for dim, i in zip(dims, at, strict=True)) for at in np.argwhere(counted)]
    return {name: ((*SAMPLES, axis), array[..., counted]), axis: ((axis,), np.asarray(labels))}


PREQUENTIAL = "prequential: each observation given those before it; arviz.loo, which leaves out one, does not apply"
Sites = dict[str, dict[str, Any]]
Dims = Mapping[str, list[str | None]]


def program_groups(draws: Draws, dims: Mapping[str, Sequence[str]] | None, likelihood: bool) -> tuple[Groups, Attrs]:
    """Return the posterior, the observed data and their pointwise log likelihood,
    and why there is none where that is so.

    Parameters
    ----------
    draws
        Their program was called with their arguments; None where the parameters are all there is.
    dims
        Names of the axes of a site, in place of those of its plates.
    likelihood
        False leaves it out, and the one run of the program for each draw that it takes.

    Returns
    -------
    (dict, dict)
        Groups and attributes. An axis that no plate names is called as ArviZ does, ``site_dim_0``.
    """
    given: Dims = {name: list(axes) for name, axes in names_of_axes(dims).items()}
    sites = {} if draws.program is None else _run(draws, 0, 0)
    posterior = {name: _variable(name, x, sites.get(name, {}), given, SAMPLES) for name, x in draws.samples.items()}
    observed = {name: site for name, site in sites.items() if _is_data(site)}
    data = {name: _variable(name, site["value"], site, given) for name, site in observed.items()}
    refuse_unused(set(given) - posterior.keys() - data.keys())
    groups: Groups = {"posterior": posterior, "observed_data": data}
    unknown = [name for name, site in sites.items() if not site["is_observed"] and name not in draws.samples]
    if not likelihood or not observed:
        return groups, {}
    if unknown:
        return groups, {
            "log_likelihood": f"left out: {unknown[0]} is a latent site without draws, which has to be summed out in the program"
        }
    groups["log_likelihood"] = _log_likelihood(draws, observed, given)
    return groups, {}


def _run(draws: Draws, chain: int, draw: int) -> Sites:
    """The sample sites of one run of the program at a draw, with their log densities;
    those of the draw are latent still.
    """
    values = {name: x[chain, draw] for name, x in draws.samples.items()}
    program: Any = draws.program
    with untouched(), torch.no_grad(), poutine.block(), pyro.validation_enabled(False):
        trace = poutine.trace(poutine.condition(program, values)).get_trace(*draws.arguments)
        trace.compute_log_prob(lambda name, site: name not in values and site["is_observed"])
    nodes: Mapping[str, Any] = trace.nodes
    return {
        name: {**node, "is_observed": node["is_observed"] and name not in values}
        for name, node in nodes.items()
        if node["type"] == "sample" and not site_is_subsample(node)
    }


def _is_data(site: Mapping[str, Any]) -> bool:
    """True for an observed site; ``pyro.deterministic``,
    ``pyro.factor`` and ``poutine.reparam`` make sites that look like one.
    """
    masked = getattr(site["fn"], "_mask", None) is False  # as that of every site in other coordinates
    computed = site["infer"].get("_deterministic") or masked or isinstance(site["fn"], Unit)
    return site["is_observed"] and not computed


def _log_likelihood(draws: Draws, observed: Sites, given: Dims) -> dict[str, Variable]:
    """The log density of every observation, scaled as in the program; masked ones are left out."""
    rows: dict[str, list[Tensor]] = {name: [] for name in observed}
    for chain, draw in np.ndindex(draws.num_chains, draws.num_draws):
        sites = _run(draws, chain, draw)
        for name, row in rows.items():
            row.append(sites[name]["log_prob"])
    found: dict[str, Variable] = {}
    for name, site in observed.items():
        density = torch.stack(rows[name]).unflatten(0, (draws.num_chains, draws.num_draws))
        dims, array = _variable(name, density, site, given, SAMPLES, event=0)
        masks = [x for x in (site["mask"], getattr(site["fn"], "_mask", None)) if x is not None]
        counted = np.ones(density.shape[2:], bool)
        for mask in masks:
            counted &= torch.as_tensor(mask).cpu().numpy()
        counted = counted.reshape(array.shape[2:])
        if counted.all():
            found[name] = (dims, array)
        else:
            found |= _present(name, f"{name}_observation", dims[2:], array, counted)
    return found


def _variable(
    name: str, x: Tensor, site: Mapping[str, Any], given: Dims, samples: Sequence[str] = (), event: int | None = None
) -> Variable:
    """The array of a site under the names of its plates; a batch axis of size 1 outside of all plates is dropped.

    ``event``: how many axes belong to the event, those of the site if None.
    """
    array = x.detach().cpu().numpy()
    shape = array.shape[len(samples) :]
    batch = len(shape) - (len(site["fn"].event_shape) if event is None and site else event or 0)
    frames = {frame.dim: frame.name for frame in site.get("cond_indep_stack", ()) if frame.dim is not None}
    plates = [frames.get(i - batch) if i < batch else None for i in range(len(shape))]
    kept = [i for i, plate in enumerate(plates) if plate or i >= batch or shape[i] != 1 or not site]
    names = given.get(name, [plates[i] for i in kept])
    names = names[: len(kept)] if event == 0 else names
    dims = [names[k] if k < len(names) and names[k] else f"{name}_dim_{k}" for k in range(max(len(kept), len(names)))]
    return (*samples, *dims), array.reshape(*array.shape[: len(samples)], *(shape[i] for i in kept))


NUM_SAMPLES = 1000  # of a guide


def as_draws(result: MCMC | AutoGuide, data: tuple[Any, ...], named: Mapping[str, Any], seed: int | None) -> Draws:
    """Return draws of a result, with the program and the data that it belongs to.

    Raises
    ------
    ValueError
        Chains that have not run, a program without its data, a guide without a seed.
    """
    program: Any = _unwrapped(result.kernel.model if isinstance(result, MCMC) else result.model)
    if program is None:
        raise ValueError("fit: an MCMC on a potential function has no program; run it on models.bayesian(...)")
    if not data and not named:
        raise ValueError("data: Pyro's results do not bring their data; give those that they were run on")
    arguments = bound(program, data, named)
    found = parameters(program, arguments)
    statistics, record = dict[str, Tensor](), dict[str, Any]()
    if isinstance(result, MCMC):
        if result._samples is None:
            raise ValueError("fit: the MCMC has not run; call its run with the data first")
        samples, method = result.get_samples(group_by_chain=True), type(result.kernel).__name__
        samples = {name: samples[name] for name in found.sites}
        divergences = result.diagnostics().get("divergences")
        if divergences is not None:
            statistics["diverging"] = _diverging(divergences, next(iter(samples.values())).shape[:2])
    elif seed is None:
        raise ValueError("seed: draws of a guide need one; give seed, an integer")
    else:
        with untouched():
            torch.manual_seed(seed)
            samples, method, record = found.drawn(result, NUM_SAMPLES), type(result).__name__, {"seed": seed}
    statistics["lp"] = found.log_density(samples)
    return Draws(samples, statistics, program, arguments, method, record)


def _unwrapped(program: Any) -> Any:
    """The program inside the handlers that Pyro wraps around it, which are partial applications."""
    while isinstance(program, partial):
        program = next((x for x in program.args if callable(x) and not isinstance(x, Messenger)), program.func)
    return program


def _diverging(divergences: Mapping[str, list[int]], shape: torch.Size) -> Tensor:
    """Which draws diverged, (chain, draw), of Pyro's lists of them by chain."""
    diverging = torch.zeros(shape, dtype=torch.bool)
    for chain in range(shape[0]):
        diverging[chain, divergences.get(f"chain {chain}", [])] = True
    return diverging
