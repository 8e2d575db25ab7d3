"""Which units may change places: those with equal priors and equal values of the parameters that are not drawn."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from pyro.distributions import Dirichlet, ImproperUniform
from torch import Tensor

from probtx_pyro.inference import Draws
from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models._distributions import FaceDirichlet
from probtx_pyro.models.formulation import Data
from probtx_pyro.models.priors import Site, bare
from probtx_pyro.results._arviz import SAMPLES, Variable
from probtx_pyro.results._dims import Layout
from probtx_pyro.results._matching import arranged, problem_axes, relabelled


class Exchangeable(NamedTuple):
    """Classes of units that are exchangeable under the prior.

    classes: ``unit`` (*problems, unit) and, of `GaussianKeys`, ``component`` (*problems, unit, component): numbers,
        equal where they may.
    separated_by: what tells units, or components, apart: ``{"unit": ("prior on keys", "fixed values"), ...}``.
    """

    classes: dict[str, Variable]
    separated_by: dict[str, tuple[str, ...]]


def exchangeable(program: Bayesian, data: Data) -> Exchangeable:
    """Compare the priors and the fixed parameters of the units (and components) of a program,
    for the data it is called with.

    Units whose hyperparameters are shared may change places; where each has its own, none may.
    """
    formulation = program.formulation
    if not any("unit" in row.names for row in formulation.PARAMETERS.values()):
        return Exchangeable({}, {})
    problem = program.problem(*data)
    layout, sites = Layout(formulation, data, problem.batch), problem.sites
    values = {
        name: layout.variable(name, site.initial.expand(1, 1, *site.initial.shape), samples=SAMPLES)
        for name, site in sites.items()
    }
    axes = problem_axes(values) if any("unit" in dims for dims, _ in values.values()) else ()
    levels = {"unit": (*axes, "unit")}
    if "component" in layout.sizes:
        levels["component"] = (*axes, "unit", "component")
    traits = [*_traits(program, layout, sites)]
    classes: dict[str, Variable] = {}
    separated: dict[str, tuple[str, ...]] = {}
    for name, order in levels.items():
        shape = tuple(layout.sizes[dim] for dim in order)
        rows = [(source, arranged(variable, order)) for source, variable in traits]  # of every unit, or component
        separated[name] = tuple(dict.fromkeys(source for source, x in rows if (x != x[..., :1, :]).any()))
        numbers = _numbered(np.concatenate([np.broadcast_to(x, (*shape, x.shape[-1])) for _, x in rows], -1))
        if name == "component" and any("component" in dims and "unit" not in dims for dims, _ in values.values()):
            numbers = np.broadcast_to(np.arange(shape[-1]), shape)  # units share them, and would have to move alike
        classes[name] = (order, numbers)
    return Exchangeable(classes, separated)


def _traits(program: Bayesian, layout: Layout, sites: Mapping[str, Site]) -> Iterator[tuple[str, Variable]]:
    """Yield everything that could tell units apart: the arguments of priors, masks, parameters that are not drawn."""
    formulation = program.formulation
    for name in formulation.PARAMETERS:
        own, value = layout.axes(name), formulation.held(name)
        if name in sites:
            rank = sites[name].initial.dim()
            for dims, x in _arguments(bare(sites[name].distribution), own[len(own) - rank :], layout.sizes["unit"]):
                yield f"the prior on {name}", (dims, x.detach().cpu().numpy())
            value, source = formulation.allowed(name), f"the mask of {name}"
        else:
            source = f"{name}, which are given"
        if value is not None:
            yield source, (own[len(own) - value.dim() :], value.detach().cpu().numpy())
    for source, (axes, x) in formulation.traits().items():
        own = (*layout.names, *axes.split())
        yield source, (own[len(own) - x.dim() :], x.detach().cpu().numpy())


def _arguments(prior: Any, dims: tuple[str, ...], units: int) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """The arguments of a distribution with the axes of its parameter; where they cannot be told apart,
    units are all different.
    """
    batch = dims[: len(dims) - prior.event_dim]
    simplex = isinstance(prior, Dirichlet | FaceDirichlet)
    lost = "unit" in dims and "unit" not in batch and not simplex
    if lost or not (prior.arg_constraints or isinstance(prior, ImproperUniform)):
        yield ("unit",), torch.arange(units)
        return
    for name, constraint in prior.arg_constraints.items():
        x, event = getattr(prior, name), constraint.event_dim
        last = dims[len(batch) :] if simplex else tuple(f"axis_{i}" for i in range(event))
        yield (*batch, *last), x.expand(prior.batch_shape + x.shape[x.dim() - event :])


def _numbered(rows: np.ndarray) -> np.ndarray:
    """Equal numbers for equal rows, (..., K, F) -> (..., K)."""
    flat = rows.reshape(-1, *rows.shape[-2:])
    numbers = [np.unique(np.pad(one, ((0, 0), (1, 0))), axis=0, return_inverse=True)[1].reshape(-1) for one in flat]
    return np.stack(numbers).reshape(rows.shape[:-1])


def draws_relabelled(posterior: Draws, reference: Mapping[str, ArrayLike] | None = None) -> Draws:
    """`results.relabel` for draws."""
    if not isinstance(posterior.program, Bayesian):
        raise ValueError(
            "these draws are not of a program made by models.bayesian, so nothing says which units may change "
            "places; convert them and give relabel(data, exchangeable={'unit': ...})"
        )
    program, data = posterior.program, posterior.program.bind(*posterior.arguments)
    layout = Layout(program.formulation, data, program.problem(*data).batch)
    variables = {name: layout.variable(name, x, samples=SAMPLES) for name, x in posterior.samples.items()}
    if not any("unit" in dims for dims, _ in variables.values()):
        return posterior._replace(record={**posterior.record, "labels": "no parameter of the units is drawn"})
    found = exchangeable(program, data)
    given = {name: torch.as_tensor(x).detach().cpu().numpy() for name, x in (reference or {}).items()} or None
    logarithmic = [name for name, row in program.formulation.PARAMETERS.items() if row.logarithmic]
    lp = posterior.statistics["lp"].detach().cpu().numpy()
    moved, labels = relabelled(variables, found.classes, lp, given, logarithmic, found.separated_by)
    samples = {name: torch.as_tensor(moved[name][1]).to(x).reshape(x.shape) for name, x in posterior.samples.items()}
    return posterior._replace(samples=samples, record={**posterior.record, "labels": labels})
