"""A Pyro program as a sampler or a guide sees it: its parameters, their unconstrained coordinates,
and an identity that tells programs apart.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import InitMessenger, init_to_median, init_to_value
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor
from torch.distributions import Distribution, Transform, biject_to

from probtx_pyro.inference._units import FromUnits, measured_sites, unit_of, units_of, volume
from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models._problem import Problem
from probtx_pyro.models.formulation import Formulation
from probtx_pyro.models.priors import Site, arguments_of, as_pyro, bare

Program = Callable[..., Any]
Arguments = tuple[Any, ...]  # of a program, by place
Potential = Callable[[Mapping[str, Tensor]], Tensor]


@contextmanager
def untouched() -> Iterator[None]:
    """Leave the global generator and Pyro's parameter store as they were; as a decorator, too."""
    store = pyro.get_param_store()
    with torch.random.fork_rng(), store.scope(store.get_state()):
        yield


class Parameters(NamedTuple):
    """The continuous latent sites of a program called with ``arguments``.

    program: the program, explained data that nobody gave hidden in it.
    arguments: what it is called with.
    sites: distribution and present value by name: what the formulation holds, or the prior's median where it holds
    nothing.
    discrete: names of the latent sites that Pyro sums out.
    plate_depth: how many plates nest.
    posterior, problem: of a `models.bayesian` program.
    closed: True where that is collapsed and without hyperparameters: the problem's density, of many chains and problems
    at once, is that of the program, which need not run.
    num_observations: of a problem.
    """

    program: Program
    arguments: Arguments
    sites: dict[str, Site]
    discrete: list[str]
    plate_depth: int
    posterior: Bayesian | None = None
    problem: Problem | None = None
    closed: bool = False
    num_observations: float = 1.0

    def unconstrained(self) -> tuple[Potential, dict[str, Any]]:
        """Minus the log density over R^n, Jacobians included and discrete sites summed out, and each site's map to R^n.

        By the closed form where there is one, which takes two thirds of the time of running the program, or by the
        program.
        """
        if self.closed:
            assert self.problem is not None
            transforms: dict[str, Any] = {
                name: biject_to(cast(Any, site.distribution.support)).inv for name, site in self.sites.items()
            }
            return _potential(_of_problem(self.problem), transforms), transforms
        units = self.units
        values = {name: site.initial for name, site in self.sites.items()}
        with torch.random.fork_rng():
            _, potential, transforms, _ = initialize_model(
                self.program,
                self.arguments,
                max_plate_nesting=self.plate_depth,
                init_strategy=init_to_value(values=values, fallback=init_to_median),
                initial_params={},
            )
        transforms |= {name: FromUnits(transforms[name].inv, unit).inv for name, unit in units.items()}
        if not self.discrete:
            return _potential(self._of_program, transforms), transforms
        return lambda free: potential(
            {name: z * units[name] if name in units else z for name, z in free.items()}
        ), transforms

    def in_units(self) -> "Parameters":
        """The same, with the units that `units_of` finds."""
        potential, transforms = self.unconstrained()
        try:
            free = {name: transforms[name](site.initial) for name, site in self.sites.items()}
        except torch.linalg.LinAlgError:  # the formulation's own matrix is none that has coordinates
            return self
        return self.measured(units_of(potential, free, self.sites, self.num_observations))

    def measured(self, units: Mapping[str, Tensor]) -> "Parameters":
        """The same, the coordinates of some parameters in units."""
        return self._replace(sites=measured_sites(self.sites, units))

    @property
    def units(self) -> dict[str, Tensor]:
        """The units of the parameters that are measured in others than 1."""
        each = {name: unit_of(site.distribution) for name, site in self.sites.items()}
        return {name: unit for name, unit in each.items() if unit is not None}

    def _of_program(self, values: Mapping[str, Tensor]) -> Tensor:
        """The log density by one run of the program, without Pyro's enumeration, which cannot be vectorised."""
        total = poutine.trace(poutine.condition(self.program, dict(values))).get_trace(*self.arguments).log_prob_sum()
        return torch.as_tensor(total)  # a sum over no site is the number 0

    def log_density(self, samples: Mapping[str, Tensor]) -> Tensor:
        """The log density over R^n of draws (chain, draw, *shape), (chain, draw)."""
        potential, transforms = self.unconstrained()
        shape = next(iter(samples.values())).shape[:2]
        with torch.no_grad():
            free = ({name: transforms[name](x[index]) for name, x in samples.items()} for index in np.ndindex(shape))
            return torch.stack([-potential(point).double() for point in free]).reshape(shape)

    def drawn(self, guide: Any, num_draws: int, names: Collection[str] = ()) -> dict[str, Tensor]:
        """Draws of a guide by site, the parameters if no names are given, as one chain: (1, num_draws, *shape)."""
        with torch.no_grad():
            rows: list[Any] = [poutine.trace(guide).get_trace(*self.arguments).nodes for _ in range(num_draws)]
        return {name: torch.stack([row[name]["value"] for row in rows]).unsqueeze(0) for name in names or self.sites}

    def require_finite(self, values: Mapping[str, Tensor], where: str) -> None:
        """Refuse a point at which some site has no finite log density, naming the first such site and the repair."""
        with torch.random.fork_rng(), torch.no_grad(), poutine.block(), pyro.validation_enabled(False):
            trace = poutine.trace(poutine.condition(self.program, dict(values))).get_trace(*self.arguments)
            trace.compute_log_prob()
        for name, node in trace.nodes.items():
            if node["type"] == "sample" and not torch.isfinite(node["log_prob_sum"]):
                repair = (
                    "start well inside its prior's support: start='prior', or values of your own"
                    if name in values
                    else "look for extreme data and parameters, or start elsewhere"
                )
                raise ValueError(f"{where}: log density of site {name!r} is {float(node['log_prob_sum'])}; {repair}")


def _of_problem(problem: Problem) -> Callable[[Mapping[str, Tensor]], Tensor]:
    """The log density that ECM climbs, summed over the problems."""

    def log_density(values: Mapping[str, Tensor]) -> Tensor:
        return problem.objective({name: x.reshape(problem.start[name].shape) for name, x in values.items()}).sum()

    return log_density


def _potential(log_density: Callable[[Mapping[str, Tensor]], Tensor], transforms: Mapping[str, Any]) -> Potential:
    """Minus a log density over R^n, given one of constrained values."""

    def potential(free: Mapping[str, Tensor]) -> Tensor:
        values, total = {}, torch.zeros(())
        for name, z in free.items():
            inverse = transforms[name].inv
            values[name] = inverse(z)
            total = total + volume(inverse, z, values[name]).sum()
        return -(log_density(values) + total)

    return potential


def parameters(program: Program, arguments: Arguments, assignments: bool = False) -> Parameters:
    """Return the parameters of a program; with ``assignments`` it may have none, if it has discrete sites.

    Of a `models.bayesian` program, an explained datum that nobody gave (such as outputs) is hidden: it is a prediction
    and adds nothing to the density of the parameters.

    Raises
    ------
    ValueError
        A program without continuous latent sites, or without its first datum; query weights that Pyro's enumeration
        cannot serve.
    """
    present, problem = dict[str, Tensor](), None
    hidden: Program = program
    arguments = bound(program, arguments, {})
    if isinstance(program, Bayesian):
        formulation = program.formulation
        if arguments[0] is None:
            raise ValueError(f"{next(iter(formulation.DATA))} are None, but a posterior is drawn from data; give them")
        _refuse_fractions(program, arguments)
        problem = program.problem(*arguments)
        if problem.sites and program.collapsed and not program.hierarchical:
            return of_problem(program, problem)
        present = {name: site.initial.detach() for name, site in problem.sites.items()}
        hidden = _without_predictions(program, arguments, next(iter(present.values()), arguments[0]))
    strategy = InitMessenger(init_to_value(values=present, fallback=init_to_median))
    with torch.random.fork_rng(), torch.no_grad(), poutine.block():
        torch.manual_seed(0)  # a median is estimated from draws: always the same ones
        trace = poutine.trace(strategy(hidden)).get_trace(*arguments)
    latent: dict[str, Any] = {
        name: node for name, node in trace.iter_stochastic_nodes() if type(node["fn"]).__name__ != "_Subsample"
    }
    if isinstance(program, Bayesian):
        drawn = [name for name in program.formulation.LATENTS if name in latent]
        if drawn:
            raise ValueError(
                f"{drawn[0]} are latents of the observations, which are no parameters and cannot be enumerated; "
                "sum them out by models.bayesian(..., collapsed=True)"
            )
    discrete = [name for name, node in latent.items() if node["fn"].has_enumerate_support]
    found = {name: Site(node["fn"], node["value"]) for name, node in latent.items() if name not in discrete}
    if not found and not (assignments and discrete):
        raise ValueError("program has no continuous latent site, and nothing to infer; give a parameter a prior")
    observed_too: list[Any] = [node for node in trace.nodes.values() if node["type"] == "sample"]
    depths = [-frame.dim for node in observed_too for frame in node["cond_indep_stack"] if frame.vectorized]
    posterior = program if isinstance(program, Bayesian) else None
    sizes = [math.prod(x["fn"].batch_shape) for x in observed_too if x["is_observed"]]
    count = float(max(sizes, default=1)) if problem is None else problem.count
    return Parameters(
        hidden, arguments, found, discrete, max(depths, default=0), posterior, problem, num_observations=count
    )


def of_problem(posterior: Bayesian, problem: Problem) -> Parameters:
    """Return the parameters of a problem, without running the program."""
    sites = {name: Site(site.distribution, site.initial.detach()) for name, site in problem.sites.items()}
    hidden = _without_predictions(posterior, problem.data, problem.like)
    return Parameters(
        hidden,
        problem.data,
        sites,
        [],
        len(problem.batch) + 1,
        posterior,
        problem,
        closed=True,
        num_observations=problem.count,
    )


def _without_predictions(posterior: Bayesian, data: Arguments, like: Tensor) -> Program:
    """The program, explained data that nobody gave hidden; a value that nobody reads spares their draw."""
    rows = zip(posterior.formulation.DATA.items(), data, strict=True)
    unread = [name for (name, row), x in rows if row.role == "explained" and x is None]
    nothing = dict.fromkeys(unread, like.new_zeros(()))
    return poutine.block(poutine.condition(posterior, nothing), hide=unread) if unread else posterior


def bound(program: Program, arguments: Arguments, named: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a program by place: the data of a `models.bayesian` may be given by name."""
    if isinstance(program, Bayesian):
        return program.bind(*arguments, **named)
    require_priors(program)
    if named:
        raise ValueError(f"{min(named)} is no option; give the arguments of a program of your own by place")
    return arguments


def require_priors(program: object) -> None:
    """Refuse a formulation by itself: with what it offers instead of a density of data,
    or with the call that gives it priors.
    """
    if isinstance(program, Formulation):
        if not program.offers("log_evidence"):
            program.refuse("log_evidence")
        raise ValueError(
            f"a {type(program).__name__} has no priors; give models.bayesian(formulation, ...) with those to infer"
        )


def require_counts(**numbers: int) -> None:
    """Refuse a number below 1, by name."""
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} must be 1 or more, not {number}")


def require_finite(verb: str, formulation: Formulation, density: Tensor) -> None:
    """Refuse log densities of latent choices that are not finite, naming the parameters that make them so."""
    if bool(torch.isfinite(density).all()):
        return
    numbers = {name: x for name, x in formulation.parameters().items() if isinstance(x, Tensor)}
    wrong = [name for name, x in numbers.items() if not bool((x < torch.inf).all())]
    largest = {name: float(x[torch.isfinite(x)].abs().amax()) for name, x in numbers.items() if torch.isfinite(x).any()}
    reach = ", ".join(f"{x:.3g} ({name})" for name, x in largest.items())
    repair = (
        f"{' and '.join(wrong)} hold NaN or infinity; mend them" if wrong else f"they reach {reach}; scale them down"
    )
    first = density[~torch.isfinite(density)][0]
    raise ValueError(f"{verb}: the log density of the latent choices is {float(first)}: {repair}")


def _refuse_fractions(program: Bayesian, data: Arguments) -> None:
    """Enumeration multiplies each factor by its weight before it sums over units, instead of their sum."""
    weights = program.formulation.datum(data, "weights")
    if not program.collapsed and weights is not None and ((weights != 0) & (weights != 1)).any():
        raise ValueError("query_weights other than 0 and 1 have no enumerated program; take one with collapsed=True")


def identity(program: Program | Formulation) -> dict[str, Any]:
    """Return what tells one program from another across processes: tensors of formulation and priors,
    or a function's full name.
    """
    if isinstance(program, Formulation):
        return {"kind": type(program).__name__, "formulation": _options(program) | program.parameters()}
    if not isinstance(program, Bayesian):
        return {"program": _full_name(program)}
    priors: dict[str, Any] = {}
    for name, given in program.priors.items():
        if name in program.hierarchical:
            priors[name] = _full_name(given)
            continue
        priors[name] = _told(bare(as_pyro(given)))
    formulation = program.formulation
    kind = type(formulation).__name__
    return {"kind": kind, "formulation": _options(formulation), "priors": priors, "collapsed": program.collapsed}


def _told(x: object) -> object:
    """A distribution as its family and arguments, all the way down; whatever else as it is."""
    if isinstance(x, Distribution):
        return {"family": type(x).__name__, **{key: _told(value) for key, value in arguments_of(x).items()}}
    if isinstance(x, Transform):
        return {"family": type(x).__name__, **{key: _told(value) for key, value in vars(x).items() if key[0] != "_"}}
    return [_told(item) for item in x] if isinstance(x, list | tuple) else x


def _options(formulation: Formulation) -> dict[str, Any]:
    kinds = Tensor | str | float | int | bool | tuple
    return {name: x for name, x in vars(formulation).items() if isinstance(x, kinds)}


def _full_name(function: object) -> str:
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
