"""Attention, pointwise log likelihood and new data at every draw of a formulation's parameters, in chunks of draws."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.distributions import ImproperUniform
from torch import Tensor

from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models.formulation import Data, Formulation
from probtx_pyro.models.priors import bare

LIKELIHOODS = ("joint", "answers")
CHUNK = 2**24  # numbers of one tensor, over draws, problems, queries and units; a few such are held at a time


def over_draws(
    function: Callable[[Formulation], Mapping[str, Tensor]],
    posterior: Bayesian,
    data: Data,
    samples: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return ``function`` of the formulation at every draw: (chain, draw, *problems, ...) each.

    Parameters
    ----------
    function
        From a formulation with a leading axis of draws to tensors (draw or absent, *problems, own axes), by name; the
        own axes are those of the formulation's tables.
    posterior, data
        The posterior and the data, of problems that they share.
    samples
        (chain, draw, *shape of the parameter), by name; hyperparameters among them are passed over.

    Returns
    -------
    dict
    """
    return at_draws(function, posterior.formulation, posterior.problem(*data).batch, data, samples)


def at_draws(
    function: Callable[[Formulation], Mapping[str, Tensor]],
    formulation: Formulation,
    batch: torch.Size,
    data: Data,
    samples: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """`over_draws` of a formulation whose parameters take the values of ``samples``,
    with data of problems ``batch``.
    """
    chains, draws = next(iter(samples.values())).shape[:2]
    flat = flattened(formulation, samples, len(batch))
    size = max(1, CHUNK // max(1, batch.numel() * width(formulation, data)))
    parts: dict[str, list[Tensor]] = {}
    for rows in torch.arange(chains * draws).split(size):
        with torch.no_grad():
            found = function(formulation.with_parameters({name: x[rows] for name, x in flat.items()}))
        for name, x in found.items():
            own = x.shape[x.dim() - len(formulation.axes(name)) :]
            parts.setdefault(name, []).append(x.expand(len(rows), *batch, *own))
    return {name: torch.cat(part).unflatten(0, (chains, draws)) for name, part in parts.items()}


def flattened(formulation: Formulation, samples: Mapping[str, Tensor], problems: int) -> dict[str, Tensor]:
    """The draws of all chains in one axis, by name of the parameter, each `led` by it."""
    return {
        name: led(formulation, name, x.flatten(0, 1), problems)
        for name, x in samples.items()
        if name in formulation.PARAMETERS
    }


def width(formulation: Formulation, data: Data) -> int:
    """Numbers of the largest result of one problem: the attention, as a rule."""
    sizes, results = formulation.sizes(*data), (*formulation.DATA, *formulation.RESULTS)
    return max(math.prod(sizes.get(axis, 1) for axis in formulation.axes(name)) for name in results)


def led(formulation: Formulation, name: str, x: Tensor, problems: int) -> Tensor:
    """Draws (draw, ...) of a parameter with axes of size 1 where it has no axis of the problems,
    so that they broadcast.
    """
    rank = problems + len(formulation.axes(name))
    return x.reshape(x.shape[0], *(1,) * (rank - (x.dim() - 1)), *x.shape[1:])


class Likelihood(NamedTuple):
    """A way to count observations: by all data that the model explains, or only by the answers, given the queries."""

    data: Data
    answers: bool

    def explains(self, formulation: Formulation) -> list[str]:
        """Names of the data that it is a density of."""
        names = [name for name, row in formulation.DATA.items() if row.role == "explained"]
        return names[1:] if self.answers else names

    def log_density(self, formulation: Formulation) -> dict[str, Tensor]:
        """The log density of each observation, (..., observations), times its weight."""
        density = formulation.log_evidence(*formulation.observations(self.data))
        if self.answers:
            density = density - formulation.log_evidence(self.data[0])
        weights = formulation.datum(self.data, "weights")
        return {"log_evidence": density if weights is None else density * weights}

    def counted(self, formulation: Formulation) -> Tensor:
        """True where there is such an observation, (..., observations)."""
        counted, observed = formulation.counted(self.data), formulation.datum(self.data, "mask")
        sizes, axes = formulation.sizes(*self.data), formulation.axes("log_evidence")
        every = torch.ones([sizes[axis] for axis in axes], dtype=torch.bool, device=self.data[0].device)
        present = every if counted is None else counted
        return present & observed if self.answers and observed is not None else present

    def replicate(self, formulation: Formulation) -> dict[str, Tensor]:
        """New observations, by name of the datum, from the program itself."""
        program = formulation.collapsed if self.answers else poutine.uncondition(formulation.model)
        given = formulation.asked(self.data) if self.answers else formulation.observations(self.data)
        nodes: Mapping[str, Any] = poutine.trace(program).get_trace(*given).nodes
        return {name: nodes[name]["value"] for name in self.explains(formulation) if name in nodes}


def prior_samples(posterior: Bayesian, data: Data, count: int) -> dict[str, Tensor]:
    """Parameters, and hyperparameters, from their priors, as one chain: (1, count, *shape of the parameter)."""
    for name, prior in posterior.priors.items():
        if name not in posterior.hierarchical and isinstance(bare(prior), ImproperUniform):
            raise ValueError(f"prior: the prior on {name} is flat, so nothing can be drawn from it; give prior=0")
    if not posterior.hierarchical:
        sites = posterior.problem(*data).sites
        return {name: distribution.sample(torch.Size((1, count))) for name, (distribution, _) in sites.items()}
    drawn: dict[str, list[Tensor]] = {}
    for _ in range(count):
        for name, x in posterior.sample_parameters(data).items():
            drawn.setdefault(name, []).append(x)
    return {name: torch.stack(x).unsqueeze(0) for name, x in drawn.items()}
