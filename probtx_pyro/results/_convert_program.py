"""Draws of any Pyro program as groups of named arrays: its plates name the axes, its observed sites are the data."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.distributions.unit import Unit
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from probtx_pyro.inference import Draws
from probtx_pyro.inference._program import untouched
from probtx_pyro.results._arviz import SAMPLES, Variable
from probtx_pyro.results._dims import names_of_axes, refuse_unused

Groups = dict[str, dict[str, Variable]]
Sites = dict[str, dict[str, Any]]
Dims = Mapping[str, list[str | None]]


def program_groups(
    draws: Draws, dims: Mapping[str, Sequence[str]] | None, likelihood: bool
) -> tuple[Groups, dict[str, str | int | float]]:
    """Return the posterior, the observed data and their pointwise log likelihood, and why there is none where that is so.

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
    """The sample sites of one run of the program at a draw, with their log densities; those of the draw are latent still."""
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
    """True for an observed site; ``pyro.deterministic``, ``pyro.factor`` and ``poutine.reparam`` make sites that look like one."""
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
            continue
        labels = [", ".join(f"{axis}={i}" for axis, i in zip(dims[2:], at, strict=True)) for at in np.argwhere(counted)]
        found[name] = ((*SAMPLES, f"{name}_observation"), array[..., counted])
        found[f"{name}_observation"] = ((f"{name}_observation",), np.asarray(labels))
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


__all__ = ["program_groups"]
