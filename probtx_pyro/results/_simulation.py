"""Parameters drawn from their priors, and data drawn with them: many problems at once, as one more leading axis."""

from typing import Any, NamedTuple

import torch
from pyro import poutine
from torch import Tensor

from probtx_pyro.inference._log_joint import Data
from probtx_pyro.models import GaussianKeys, GaussianMixture, MixturePriors
from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models.priors import event_dim


class Simulated(NamedTuple):
    """What was drawn.

    program: the program whose parameters have the axis of the simulations in front. truth: parameters, (simulation, *shape).
    data: (simulation, ..., Q, D) and so on.
    """

    program: Bayesian
    truth: dict[str, Tensor]
    data: Data


def simulate(program: Bayesian, like: Data, count: int, seed: int) -> Simulated:
    """Draw ``count`` sets of parameters and data of the shapes of ``like``, whose numbers do not matter.

    Answers are drawn where ``like`` has some; ``observed`` and ``query_weights`` are kept as they are.
    """
    mixture = program.mixture
    plates = mixture.plates(*like)
    sites = program.priors.sites(mixture, plates.batch, like.queries.shape[-2])
    wide = {}
    for name, (_, initial) in sites.items():
        rank = len(plates.batch) + 1 + event_dim(mixture, name)
        wide[name] = initial.expand(count, *(1,) * (rank - initial.dim()), *initial.shape)
    many = Bayesian(mixture.with_parameters(wide), program.priors, collapsed=False)
    expanded: list[Any] = [
        None if x is None else x.expand(count, *_lead(x, like, plates.batch), *x.shape) for x in like
    ]
    template = Data(*expanded)
    drawn, data = _draw(many, template, seed)
    return Simulated(many, {name: x.reshape(count, *sites[name].initial.shape) for name, x in drawn.items()}, data)


def simulate_data(mixture: GaussianMixture | GaussianKeys, like: Data, seed: int) -> Data:
    """Draw queries, and answers where ``like`` has some, from a mixture as it is; (..., Q, D) as those of ``like``."""
    return _draw(Bayesian(mixture, MixturePriors(), collapsed=False), like, seed)[1]


def _draw(program: Bayesian, like: Data, seed: int) -> tuple[dict[str, Tensor], Data]:
    """Parameters and data."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        nodes = poutine.trace(poutine.uncondition(program)).get_trace(*like).nodes
    named = [name for name in ("queries", "outputs") if getattr(like, name) is not None]
    found: dict[str, Any] = {name: nodes[name]["value"] for name in named}
    data = like._replace(**found)
    drawn: dict[str, Any] = {name: nodes[name]["value"] for name in program.priors.given()}
    return drawn, data


def _lead(x: Tensor, like: Data, batch: torch.Size) -> tuple[int, ...]:
    """Axes of size 1 for the leading ones that a tensor of ``like`` lacks, so that the simulations stay in front."""
    own = 2 if x is like.queries or (x is like.outputs and x.is_floating_point()) else 1
    return (1,) * (len(batch) + own - x.dim())


__all__ = ["Simulated", "simulate", "simulate_data"]
