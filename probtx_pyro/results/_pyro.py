"""Results of Pyro's own inference as `Draws`: Markov chains of ``MCMC``, draws of an ``AutoGuide``."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
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
    found = parameters(program, arguments)
    statistics, record = dict[str, Tensor](), dict[str, Any]()
    if isinstance(result, MCMC):
        samples, method = result.get_samples(group_by_chain=True), type(result.kernel).__name__
        samples = {name: samples[name] for name in found.sites}
        divergences = result.diagnostics().get("divergences")
        if divergences is not None:
            statistics["diverging"] = _diverging(divergences, next(iter(samples.values())).shape[:2])
    elif seed is None:
        raise ValueError("seed: draws of a guide need one; give seed, an integer")
    else:
        with untouched():
            torch.manual_seed(seed)
            samples, method, record = found.drawn(result, NUM_SAMPLES), type(result).__name__, {"seed": seed}
    statistics["lp"] = found.log_density(samples)
    return Draws(samples, statistics, program, arguments, method, record)


def _unwrapped(program: Any) -> Any:
    """The program inside the handlers that Pyro wraps around it, which are partial applications."""
    while isinstance(program, partial):
        program = next((x for x in program.args if callable(x) and not isinstance(x, Messenger)), program.func)
    return program


def _diverging(divergences: Mapping[str, list[int]], shape: torch.Size) -> Tensor:
    """Which draws diverged, (chain, draw), of Pyro's lists of them by chain."""
    diverging = torch.zeros(shape, dtype=torch.bool)
    for chain in range(shape[0]):
        diverging[chain, divergences.get(f"chain {chain}", [])] = True
    return diverging
