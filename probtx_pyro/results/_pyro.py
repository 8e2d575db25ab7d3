"""Results of Pyro's own inference as `Draws`: Markov chains of ``MCMC``, draws of an ``AutoGuide``."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from pyro import poutine
from pyro.infer import MCMC
from pyro.infer.autoguide import AutoGuide
from pyro.poutine.messenger import Messenger
from torch import Tensor

from probtx_pyro.inference import Draws
from probtx_pyro.inference._program import bound, parameters, untouched

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
    if isinstance(result, MCMC):
        samples, statistics = _chains(result)
        method, record = type(result.kernel).__name__, {}
    else:
        if seed is None:
            raise ValueError("seed: draws of a guide need one; give seed, an integer")
        samples, statistics, method, record = (
            _of_guide(result, arguments, seed),
            {},
            type(result).__name__,
            {"seed": seed},
        )
    found = parameters(program, arguments)
    samples = {name: samples[name] for name in found.sites}
    potential, transforms = found.unconstrained()
    with torch.no_grad():
        lp = [
            [
                -potential({name: transforms[name](x[i, j]) for name, x in samples.items()}).double()
                for j in range(draws)
            ]
            for i, draws in enumerate([next(iter(samples.values())).shape[1]] * len(next(iter(samples.values()))))
        ]
    statistics["lp"] = torch.stack([torch.stack(chain) for chain in lp])
    return Draws(samples, statistics, program, arguments, method, record)


def _unwrapped(program: Any) -> Any:
    """The program inside the handlers that Pyro wraps around it, which are partial applications."""
    while isinstance(program, partial):
        program = next((x for x in program.args if callable(x) and not isinstance(x, Messenger)), program.func)
    return program


def _chains(mcmc: MCMC) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Samples (chain, draw, ...) and which of them diverged, where the sampler says so."""
    if mcmc._samples is None:
        raise ValueError("fit: the MCMC has not run; call its run with the data first")
    samples = mcmc.get_samples(group_by_chain=True)
    shape = next(iter(samples.values())).shape[:2]
    diverging = torch.zeros(shape, dtype=torch.bool)
    said = mcmc.diagnostics().get("divergences")
    for chain in range(shape[0]):
        diverging[chain, (said or {}).get(f"chain {chain}", [])] = True
    return dict(samples), {} if said is None else {"diverging": diverging}


def _of_guide(guide: AutoGuide, arguments: tuple[Any, ...], seed: int) -> dict[str, Tensor]:
    with untouched(), torch.no_grad():
        torch.manual_seed(seed)
        traces = [poutine.trace(guide).get_trace(*arguments) for _ in range(NUM_SAMPLES)]
    nodes: list[Any] = [trace.nodes for trace in traces]
    names = [name for name, _ in traces[0].iter_stochastic_nodes()]
    return {name: torch.stack([node[name]["value"] for node in nodes]).unsqueeze(0) for name in names}
