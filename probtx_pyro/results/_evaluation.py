"""What a mixture says at every draw of its parameters: attention, pointwise log likelihood, new data. In chunks of draws."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from pyro import poutine
from pyro.distributions import ImproperUniform
from torch import Tensor

from probtx_pyro.inference._log_joint import Data
from probtx_pyro.models import GaussianKeys, GaussianMixture
from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models.priors import bare

Mixture: TypeAlias = GaussianMixture | GaussianKeys
CHUNK = 2**24  # numbers of one tensor, over draws, problems, queries and units; a few such are held at a time


def over_draws(
    function: Callable[[Mixture], Mapping[str, Tensor]], mixture: Mixture, data: Data, samples: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """``function`` of the mixture at every draw, its draws a leading axis: (chain, draw, *problems, query, ...) each.

    Parameters
    ----------
    function
        From a mixture with a leading axis of draws to tensors (draw or absent, *problems, query, ...), by name.
    mixture, data
        The mixture and the data, of problems that they share.
    samples
        (chain, draw, *shape of the parameter), by name.
    """
    batch = mixture.plates(*data).batch
    chains, draws = next(iter(samples.values())).shape[:2]
    flat = {name: _led(mixture, name, x.flatten(0, 1), len(batch)) for name, x in samples.items()}
    width = max(math.prod(mixture.unit_shape), data.queries.shape[-1])
    size = max(1, CHUNK // max(1, batch.numel() * data.queries.shape[-2] * width))
    parts: dict[str, list[Tensor]] = {}
    for rows in torch.arange(chains * draws).split(size):
        with torch.no_grad():
            found = function(mixture.with_parameters({name: x[rows] for name, x in flat.items()}))
        for name, x in found.items():
            own = x.shape[x.dim() - _own_axes(name, mixture) :]
            parts.setdefault(name, []).append(x.expand(len(rows), *batch, *own))
    return {name: torch.cat(part).unflatten(0, (chains, draws)) for name, part in parts.items()}


def _own_axes(name: str, mixture: Mixture) -> int:
    """The axes of a result after those of draws and problems: the query, and what belongs to it."""
    labels = name == "outputs" and isinstance(mixture, GaussianMixture) and mixture.answer_probs is not None
    return 1 if labels or name == "log_likelihood" else 2


def _led(mixture: Mixture, name: str, x: Tensor, problems: int) -> Tensor:
    """Draws (draw, ...) of a parameter with axes of size 1 where it has no axis of the problems, so that they broadcast."""
    rank = problems + mixture.axes["log_prior" if name == "weights" else name]
    return x.reshape(x.shape[0], *(1,) * (rank - (x.dim() - 1)), *x.shape[1:])


def attention(mixture: Mixture, data: Data) -> dict[str, Tensor]:
    """``p(unit | q_i, v_i)`` at every draw."""
    return {"attention": mixture.attention(*data.observations())}


class Likelihood(NamedTuple):
    """What counts as one observation of a query.

    variable: what its log density is called, given whether there are answers.
    log_density: (..., Q) of a mixture and the data.
    counted: where there is such an observation, (..., Q).
    replicate: new observations in its place, by the name of the variable.
    explains: the data it is a density of.
    """

    variable: Callable[[Data], str]
    log_density: Callable[[Mixture, Data], Tensor]
    counted: Callable[[Data], Tensor]
    replicate: Callable[[Mixture, Data], Mapping[str, Tensor]]
    explains: tuple[str, ...]


def _present(data: Data) -> Tensor:
    return data.queries.new_ones(data.queries.shape[-2]) > 0 if data.query_weights is None else data.query_weights > 0


def _answered(data: Data) -> Tensor:
    return _present(data) if data.observed is None else _present(data) & data.observed


def _new_queries(mixture: Mixture, data: Data) -> dict[str, Tensor]:
    """Queries and answers from the generative program itself."""
    nodes: Mapping[str, Any] = poutine.trace(poutine.uncondition(mixture.model)).get_trace(data.queries).nodes
    return {name: nodes[name]["value"] for name in ("queries", "outputs") if name in nodes}


def _new_answers(mixture: Mixture, data: Data) -> dict[str, Tensor]:
    """Answers to the queries that are there."""
    nodes: Mapping[str, Any] = poutine.trace(mixture.collapsed).get_trace(data.queries).nodes
    return {"outputs": nodes["outputs"]["value"]}


LIKELIHOODS: dict[str, Likelihood] = {
    "joint": Likelihood(
        lambda data: "queries" if data.outputs is None else "joint",
        lambda mixture, data: mixture.log_evidence(*data.observations()),
        _present,
        _new_queries,
        ("queries", "outputs"),
    ),
    "answers": Likelihood(
        lambda data: "outputs",
        lambda mixture, data: mixture.log_evidence(*data.observations()) - mixture.log_evidence(data.queries),
        _answered,
        _new_answers,
        ("outputs",),
    ),
}


def log_likelihood(kind: Likelihood, mixture: Mixture, data: Data) -> dict[str, Tensor]:
    """The pointwise log density, times the weights of the queries."""
    density = kind.log_density(mixture, data)
    return {"log_likelihood": density if data.query_weights is None else density * data.query_weights}


def prior_samples(program: Bayesian, data: Data, count: int) -> dict[str, Tensor]:
    """Parameters from their priors, as one chain: (1, count, *shape of the parameter)."""
    sites = program.priors.sites(program.mixture, program.mixture.plates(*data).batch, data.queries.shape[-2])
    for name, (distribution, _) in sites.items():
        if isinstance(bare(distribution), ImproperUniform):
            raise ValueError(f"prior: the prior on {name} is flat, so nothing can be drawn from it; give prior=0")
    return {name: distribution.sample(torch.Size((1, count))) for name, (distribution, _) in sites.items()}


__all__ = ["LIKELIHOODS", "Likelihood", "attention", "log_likelihood", "over_draws", "prior_samples"]
