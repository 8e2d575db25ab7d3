"""Parameters drawn from their priors, and data drawn with them: many problems at once, as one more leading axis."""

from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models.formulation import Data, Formulation


class Simulated(NamedTuple):
    """Parameters and data that were drawn.

    posterior: the program whose parameters have the axis of the simulations in front. truth: parameters, (simulation,
    *shape), and hyperparameters. data: (simulation, ..., Q, D) and so on.
    """

    posterior: Bayesian
    truth: dict[str, Tensor]
    data: Data


def simulate(posterior: Bayesian, like: Data, count: int, seed: int) -> Simulated:
    """Draw ``count`` sets of parameters and data of the shapes of ``like``, whose numbers do not matter.

    Explained data are drawn where ``like`` has some; masks and weights are kept as they are.
    """
    formulation, problem = posterior.formulation, posterior.problem(*like)
    batch, sites = problem.batch, problem.sites
    many = posterior.copies(count, *like)
    expanded = [
        None if x is None else x.expand(count, *(1,) * (len(batch) + len(formulation.axes(name)) - x.dim()), *x.shape)
        for name, x in zip(formulation.DATA, like, strict=True)
    ]
    drawn, data = _draw(Bayesian(many.formulation, many.priors, collapsed=False), tuple(expanded), seed)
    return Simulated(many, {name: x.reshape(count, *sites[name].initial.shape) for name, x in drawn.items()}, data)


def simulate_one(posterior: Bayesian, like: Data, seed: int) -> Simulated:
    """Draw one set of parameters, hyperparameters and data, without an axis of simulations."""
    truth, data = _draw(Bayesian(posterior.formulation, posterior.priors, collapsed=False), like, seed)
    return Simulated(posterior, truth, data)


def simulate_data(formulation: Formulation, like: Data, seed: int) -> Data:
    """Draw the explained data that ``like`` has from a formulation as it is, in the shapes of ``like``."""
    return _draw(Bayesian(formulation, {}, collapsed=False), like, seed)[1]


def _draw(program: Bayesian, like: Data, seed: int) -> tuple[dict[str, Tensor], Data]:
    """Parameters and data."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        trace = poutine.trace(poutine.uncondition(program)).get_trace(*like)
    nodes: Any = trace.nodes
    rows = zip(program.formulation.DATA.items(), like, strict=True)
    data = tuple(nodes[name]["value"] if row.role == "explained" and x is not None else x for (name, row), x in rows)
    drawn: dict[str, Any] = {
        name: node["value"]
        for name, node in trace.iter_stochastic_nodes()
        if not (
            site_is_subsample(node)
            or getattr(node["fn"], "has_enumerate_support", False)
            or name in program.formulation.DATA
            or name in program.formulation.LATENTS
        )
    }
    return drawn, data
