"""Attention, pointwise log likelihood and new data at every draw of a formulation's parameters, in chunks of draws."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.distributions import ImproperUniform
from torch import Tensor

from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models.formulation import Data, Formulation
from probtx_pyro.models.priors import bare

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
        From a formulation with a leading axis of draws to tensors (draw or absent, *problems, own axes), by name; the own axes are
        those of the formulation's tables.
    posterior, data
        The posterior and the data, of problems that they share.
    samples
        (chain, draw, *shape of the parameter), by name; hyperparameters among them are passed over.
    """
    return at_draws(function, posterior.formulation, posterior.plates(data).batch, data, samples)


def at_draws(
    function: Callable[[Formulation], Mapping[str, Tensor]],
    formulation: Formulation,
    batch: torch.Size,
    data: Data,
    samples: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """`over_draws` of a formulation whose parameters take the values of ``samples``, with data of problems ``batch``."""
    chains, draws = next(iter(samples.values())).shape[:2]
    flat = flattened(formulation, samples, len(batch))
    size = max(1, CHUNK // max(1, batch.numel() * _width(formulation, data)))
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


def _width(formulation: Formulation, data: Data) -> int:
    """Numbers of the largest result of one problem: the attention, as a rule."""
    sizes, width = formulation.sizes(*data), 1
    for name in (*formulation.DATA, *formulation.RESULTS):
        entries = 1
        for axis in formulation.axes(name):
            entries *= sizes.get(axis, 1)
        width = max(width, entries)
    return width


def led(formulation: Formulation, name: str, x: Tensor, problems: int) -> Tensor:
    """Draws (draw, ...) of a parameter with axes of size 1 where it has no axis of the problems, so that they broadcast."""
    rank = problems + len(formulation.axes(name))
    return x.reshape(x.shape[0], *(1,) * (rank - (x.dim() - 1)), *x.shape[1:])


class Likelihood(NamedTuple):
    """One way to count observations.

    variable: what its log density is called, given the data. log_density: (..., observations) of a formulation and the data.
    counted: where there is such an observation, (..., observations). replicate: new observations in its place, by the name of the
    variable. explains: the data it is a density of, given the formulation.
    """

    variable: Callable[[Formulation, Data], str]
    log_density: Callable[[Formulation, Data], Tensor]
    counted: Callable[[Formulation, Data], Tensor]
    replicate: Callable[[Formulation, Data], Mapping[str, Tensor]]
    explains: Callable[[Formulation], tuple[str, ...]]


def explained(formulation: Formulation) -> tuple[str, ...]:
    """Names of the data that the model is a density of."""
    return tuple(name for name, row in formulation.DATA.items() if row.role == "explained")


def _present(formulation: Formulation, data: Data) -> Tensor:
    weights = formulation.datum(data, "weights")
    if weights is not None:
        return weights > 0
    sizes = formulation.sizes(*data)
    return torch.ones(
        [sizes[axis] for axis in formulation.axes("log_evidence")], dtype=torch.bool, device=data[0].device
    )


def _answered(formulation: Formulation, data: Data) -> Tensor:
    observed = formulation.datum(data, "mask")
    present = _present(formulation, data)
    return present if observed is None else present & observed


def _given_first(formulation: Formulation, data: Data) -> list[str]:
    """The explained data that are there."""
    return [
        name for name, x in zip(formulation.DATA, data, strict=True) if x is not None and name in explained(formulation)
    ]


def _joint_name(formulation: Formulation, data: Data) -> str:
    there = _given_first(formulation, data)
    return there[0] if len(there) == 1 else "joint"


def _new_data(formulation: Formulation, data: Data) -> dict[str, Tensor]:
    """Everything that the model explains, from the generative program itself."""
    first = data[:1]
    nodes: Mapping[str, Any] = poutine.trace(poutine.uncondition(formulation.model)).get_trace(*first).nodes
    return {name: nodes[name]["value"] for name in explained(formulation) if name in nodes}


def _new_answers(formulation: Formulation, data: Data) -> dict[str, Tensor]:
    """Answers to the queries that are there."""
    nodes: Mapping[str, Any] = poutine.trace(formulation.collapsed).get_trace(*data[:1]).nodes
    return {"outputs": nodes["outputs"]["value"]}


LIKELIHOODS: dict[str, Likelihood] = {
    "joint": Likelihood(
        _joint_name,
        lambda formulation, data: formulation.log_evidence(*formulation.observations(data)),
        _present,
        _new_data,
        explained,
    ),
    "answers": Likelihood(
        lambda formulation, data: "outputs",
        lambda formulation, data: (
            formulation.log_evidence(*formulation.observations(data)) - formulation.log_evidence(data[0])
        ),
        _answered,
        _new_answers,
        lambda formulation: ("outputs",),
    ),
}


def log_likelihood(kind: Likelihood, formulation: Formulation, data: Data) -> dict[str, Tensor]:
    """The pointwise log density, times the weights of the observations."""
    density, weights = kind.log_density(formulation, data), formulation.datum(data, "weights")
    return {"log_evidence": density if weights is None else density * weights}


def prior_samples(posterior: Bayesian, data: Data, count: int) -> dict[str, Tensor]:
    """Parameters, and hyperparameters, from their priors, as one chain: (1, count, *shape of the parameter)."""
    for name, prior in posterior.priors.items():
        if name not in posterior.hierarchical and isinstance(bare(prior), ImproperUniform):
            raise ValueError(f"prior: the prior on {name} is flat, so nothing can be drawn from it; give prior=0")
    if not posterior.hierarchical:
        sites = posterior.sites(data)
        return {name: distribution.sample(torch.Size((1, count))) for name, (distribution, _) in sites.items()}
    drawn: dict[str, list[Tensor]] = {}
    for _ in range(count):
        for name, x in posterior.sample_parameters(data).items():
            drawn.setdefault(name, []).append(x)
    return {name: torch.stack(x).unsqueeze(0) for name, x in drawn.items()}
