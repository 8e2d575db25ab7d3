"""Starts of chains: at the MAP, at the formulation's own parameters, at draws of the prior, or at values given."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.distributions import Dirichlet, ImproperUniform
from torch import Tensor

from probtx_pyro.inference._program import Parameters
from probtx_pyro.inference.em import climb_from, climbed, require_inside
from probtx_pyro.models._distributions import FaceDirichlet
from probtx_pyro.models.priors import bare, without_mode
from probtx_pyro.ops._numerics import enable_grad

#: sd in unconstrained coordinates, in units: identical starts would hide from R-hat that chains never move
JITTER = 0.1
STARTS = ("map", "formulation", "prior")
STREAMS = ("starts", "chains", "simulations", "variational", "annealing", "importance", "trees")


def seeds(seed: int, number: int, stream: str) -> list[int]:
    """Seeds of ``number`` independent generators, the first ones whatever the number; one stream for each purpose.

    Raises
    ------
    ValueError
        A seed that is not a non-negative integer.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"seed must be a non-negative integer, not {seed!r}; choose one, so the run can be repeated")
    sequence = np.random.SeedSequence((seed, STREAMS.index(stream)))
    return [int(word) >> 1 for word in sequence.generate_state(number, np.uint64)]


def starts(
    found: Parameters,
    num_chains: int,
    how: str | Mapping[str, Tensor],
    seed: int,
    jitter: float = JITTER,
) -> dict[str, Tensor]:
    """A start for each chain: constrained values by site, (chain, *shape of the parameter).

    Parameters
    ----------
    found
        The parameters of a `models.bayesian` program; of any other Pyro program, too. In units, see `_units`.
    how
        - ``"map"``: what `inference.adapt` finds from the formulation's own parameters; where a prior has no
          closed-form update or no mode, the maximum over unconstrained coordinates. Of a hierarchy, or of a program
          without a formulation, as "formulation".
        - ``"formulation"``: the formulation's own parameters; the prior's median of what it does not hold.
        - ``"prior"``: a draw of the prior for each chain.
        - a mapping of every parameter to a tensor (*shape), or (chain, *shape), used as it is.
    jitter
        Standard deviation, in unconstrained coordinates, around the one point of "map" and "formulation". Such chains
        know one mode, and R-hat over them cannot see another; "prior", or values far apart, can.

    Returns
    -------
    dict

    Raises
    ------
    ValueError
        An unknown ``how``, values that are missing, unknown, of the wrong shape or off their support; parameters of the
        formulation that lie outside of their priors' supports, or on a bound; a flat prior to draw.
    """
    if isinstance(how, Mapping):
        return _given(found, num_chains, how)
    if how not in STARTS:
        raise ValueError(f"start must be one of {', '.join(map(repr, STARTS))} or a mapping of tensors, not {how!r}")
    own = seeds(seed, num_chains, "starts")
    chains = []
    with torch.random.fork_rng():
        torch.manual_seed(own[0])
        if how == "prior":
            start = _from_prior(found)
        else:
            require_inside(found.sites)
            start = _around(found, _map(found) if how == "map" else _held(found), jitter)
        for seed_of_chain in own:
            torch.manual_seed(seed_of_chain)
            chains.append(start())
    return {name: torch.stack([chain[name] for chain in chains]) for name in found.sites}


def _given(found: Parameters, num_chains: int, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if values.keys() != found.sites.keys():
        raise ValueError(f"start gives {sorted(values)} but parameters are {sorted(found.sites)}; give each a tensor")
    ready = {}
    for name, (distribution, present) in found.sites.items():
        support: Any = distribution.support
        x = torch.as_tensor(values[name], dtype=present.dtype, device=present.device)
        if x.shape not in (present.shape, (num_chains, *present.shape)):
            raise ValueError(
                f"start of {name} has shape {tuple(x.shape)}; "
                f"it must be {tuple(present.shape)}, or {(num_chains, *present.shape)} with one for each chain"
            )
        if not torch.isfinite(x).all() or not support.check(x).all():
            raise ValueError(f"start of {name} is off the support of its prior; give values inside")
        ready[name] = x.expand(num_chains, *present.shape).clone()
    return ready


def _held(found: Parameters) -> dict[str, Tensor]:
    return {name: site.initial for name, site in found.sites.items()}


def _map(found: Parameters) -> dict[str, Tensor]:
    posterior = found.posterior
    if posterior is None or posterior.hierarchical:  # of hyperparameters the mode is no good place
        return _held(found)
    problem = found.problem
    assert problem is not None
    if not problem.closed or without_mode(problem.sites) is not None:
        return _climb(found)
    with torch.no_grad():
        fit = climbed(posterior, problem, num_steps=200, tol=1e-4, progress=False)
    adapted = fit.formulation.parameters()
    mode = {name: adapted[name].reshape(site.initial.shape) for name, site in found.sites.items()}
    for name, site in found.sites.items():
        prior = bare(site.distribution)
        if isinstance(prior, Dirichlet | FaceDirichlet):  # a mode on the boundary is infinitely far away, unconstrained
            mode[name] = 0.99 * mode[name] + 0.01 * prior.mean
    return mode


def _climb(found: Parameters) -> dict[str, Tensor]:
    """L-BFGS over unconstrained coordinates, where every proper posterior has a mode inside."""
    potential, transforms = found.unconstrained()
    free = {name: transforms[name](site.initial).clone().requires_grad_() for name, site in found.sites.items()}
    optimizer = torch.optim.LBFGS(list(free.values()), max_iter=100, line_search_fn="strong_wolfe")
    lowest = [potential(free).detach()]

    def loss() -> Tensor:
        optimizer.zero_grad()
        return climb_from(potential(free), lowest, free.values())

    with enable_grad(), pyro.validation_enabled(False):  # a step may go too far
        optimizer.step(loss)  # type: ignore[arg-type]
    return {name: transforms[name].inv(x.detach()) for name, x in free.items()}


def _around(found: Parameters, point: Mapping[str, Tensor], jitter: float) -> Callable[[], dict[str, Tensor]]:
    """Return what draws the start of a chain about one point."""
    _, transforms = found.unconstrained()
    free = {name: transforms[name](x) for name, x in point.items()}
    return lambda: {name: transforms[name].inv(z + jitter * torch.randn_like(z)) for name, z in free.items()}


def _from_prior(found: Parameters) -> Callable[[], dict[str, Tensor]]:
    """Return what draws the start of a chain from the priors."""
    flat = [name for name, site in found.sites.items() if isinstance(bare(site.distribution), ImproperUniform)]
    if flat:
        raise ValueError(f"start='prior': the prior on {flat[0]} is flat and cannot be drawn; use start='map'")

    def draw() -> dict[str, Tensor]:
        if found.closed:
            with torch.no_grad():
                return {name: site.distribution().to(site.initial.dtype) for name, site in found.sites.items()}
        with torch.no_grad(), poutine.block():
            nodes: dict[str, Any] = poutine.trace(found.program).get_trace(*found.arguments).nodes
        return {name: nodes[name]["value"].to(site.initial.dtype) for name, site in found.sites.items()}

    return draw
