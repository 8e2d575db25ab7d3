"""Guides as `variational` takes them: by name, as a class, as a module or as a plain function."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide import (
    AutoDelta,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoNormal,
    init_to_value,
)
from pyro.nn import PyroModule
from torch import Tensor

from probtx_pyro.inference._program import Parameters

GUIDES: dict[str, Callable[..., Any]] = {
    "delta": AutoDelta,
    "normal": AutoNormal,
    "low_rank": AutoLowRankMultivariateNormal,
    "laplace": AutoLaplaceApproximation,
}
Guide = str | Callable[..., Any]


def make_guide(found: Parameters, guide: Guide, point: Mapping[str, Tensor]) -> Any:
    """The guide, not yet fitted; those made here leave enumerated sites alone. It owns its parameters, which are written in place."""
    hidden = poutine.block(found.program, hide=found.discrete)
    if isinstance(guide, str):
        return GUIDES[guide](hidden, init_loc_fn=init_to_value(values={name: x.clone() for name, x in point.items()}))
    made: Any
    if isinstance(getattr(guide, "func", guide), type):
        made = cast(Any, guide)(hidden)
    elif isinstance(guide, FunctionGuide):
        made = FunctionGuide(guide.function)
        pyro.get_param_store().set_state(copy.deepcopy(cast(Any, guide.parameters)))
    else:
        made = copy.deepcopy(guide) if isinstance(guide, torch.nn.Module) else FunctionGuide(guide)
    if isinstance(made, torch.nn.Module):
        made.train()
        if not isinstance(made, PyroModule) and _register not in made._forward_pre_hooks.values():
            made.register_forward_pre_hook(_register)
    return made


def _register(module: torch.nn.Module, _: Any) -> None:
    """Let Pyro see the parameters of a module that is no PyroModule."""
    pyro.module("guide", module)


class FunctionGuide:
    """A guide that is a plain function, with the ``pyro.param`` that it uses as its own state."""

    def __init__(self, function: Callable[..., Any]):
        self.function, self.__name__ = function, getattr(function, "__name__", type(function).__name__)
        self.parameters: dict[str, Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if self.parameters is None:  # while it is fitted, in the parameter store of the fit
            return self.function(*args)
        store = pyro.get_param_store()
        with store.scope():
            store.set_state(cast(Any, self.parameters))
            return self.function(*args)

    def state_dict(self) -> dict[str, Tensor]:
        """The unconstrained parameters."""
        return {name: x for name, x in pyro.get_param_store().get_state()["params"].items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take other parameters, of the same supports."""
        kept = pyro.get_param_store().get_state()
        self.parameters = {**kept, "params": {name: x.requires_grad_() for name, x in state.items()}}


def require_complete(found: Parameters, guide: Any) -> list[str]:
    """Return the sites that a guide draws, assignments among them.

    Refuse one that leaves a parameter to its prior, or whose network nobody would keep, and a program with a ``pyro.param``.
    """
    trace = poutine.trace(guide).get_trace(*found.arguments)
    missing = [name for name in found.sites if name not in trace.nodes]
    if missing:
        raise ValueError(f"guide has no site {missing[0]!r}; it must draw every parameter: {', '.join(found.sites)}")
    drawn = [name for name in (*found.sites, *found.discrete) if name in trace.nodes]
    if not drawn:
        raise ValueError(f"guide has no site {found.discrete[0]!r}; there is nothing else to draw")
    if isinstance(guide, FunctionGuide) and any("$$$" in name for name in trace.param_nodes):
        raise ValueError(
            "guide is a function with a network that pyro.module registers, which would not be saved with it; make the guide a torch.nn.Module that holds the network"
        )
    hidden = poutine.block(found.program, hide=found.discrete)
    replayed = poutine.replay(hidden, trace=trace)  # a flat prior cannot be drawn
    nodes = poutine.trace(replayed).get_trace(*found.arguments).nodes
    learned = [name for name, node in nodes.items() if node["type"] == "param"]
    if learned:
        raise ValueError(f"program has the pyro.param {learned[0]!r}, which is no part of a posterior; give it a prior")
    return drawn


def finished(guide: Any, arguments: tuple[Any, ...]) -> Any:
    """The guide to draw from: for Laplace's approximation, the normal around the mode that was found."""
    if isinstance(guide, FunctionGuide) and guide.parameters is None:
        guide.load_state_dict({name: x.detach().clone() for name, x in guide.state_dict().items()})
    if isinstance(guide, torch.nn.Module):
        guide.eval()
    if not isinstance(guide, AutoLaplaceApproximation):
        return guide
    try:
        with torch.enable_grad():
            return guide.laplace_approximation(*arguments)
    except torch.linalg.LinAlgError as error:
        raise ValueError(
            "guide='laplace': the log density is not concave where the climb ended; raise num_steps, or start='map'"
        ) from error
