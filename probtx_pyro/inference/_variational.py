"""Variational inference of a program's parameters: one call for every guide, draws in the form of the samplers.

Sites that Pyro can enumerate are summed out of the ELBO exactly (``TraceEnum_ELBO``), so that a guide holds parameters only.
"""

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import pyro
import torch
from pyro import poutine
from pyro.distributions import is_validation_enabled
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoGuide,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoNormal,
    init_to_value,
)
from pyro.optim import ClippedAdam
from torch import Tensor

from probtx_pyro.inference._checkpoint import Checkpoint
from probtx_pyro.inference._draws import Draws
from probtx_pyro.inference._program import Parameters, Program, bound, identity, parameters, untouched
from probtx_pyro.inference._start import seeds, starts
from probtx_pyro.models.formulation import Formulation
from probtx_pyro.ops._progress import progress_bar

GUIDES: dict[str, Callable[..., Any]] = {
    "delta": AutoDelta,
    "normal": AutoNormal,
    "low_rank": AutoLowRankMultivariateNormal,
    "laplace": AutoLaplaceApproximation,
}
Guide = str | Callable[[Program], Any]
LAST_RATE = 0.01  # of the first learning rate: steps must die out for a noisy gradient to settle


class Approximation(NamedTuple):
    """A guide fitted to a posterior.

    draws: draws of the guide, one chain, so that R-hat says nothing about them; its ``method`` names the guide's class.
    losses: the negative ELBO of every step, estimated by its particles; shape (num_steps,).
    guide: the fitted Pyro guide. Calling it fills Pyro's parameter store: do so inside ``pyro.get_param_store().scope()``.
    median: the guide's median by site (that of the draws, where a guide of one's own has none).
    state: the numbers that make the guide, by name.
    """

    draws: Draws
    losses: Tensor
    guide: Any
    median: dict[str, Tensor]
    state: dict[str, Tensor]

    def __repr__(self) -> str:
        return f"Approximation by {self.draws.method}: ELBO {-float(self.losses[-1]):.6g} after {len(self.losses)} steps; {self.draws!r}"

    def summary(self) -> str:
        """Return a table of the draws, see `Draws.summary`."""
        return self.draws.summary()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Keep everything in one file, for `load`."""
        program, arguments = self.draws.program, self.draws.arguments
        assert program is not None
        draws = {name: getattr(self.draws, name) for name in ("samples", "statistics", "method", "record")}
        _file(path, program, arguments).save(
            {"draws": draws, "losses": self.losses, "median": self.median, "state": self.state}
        )

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], program: Program, *args: Any, guide: Guide | None = None
    ) -> "Approximation":
        """Read what was saved, in another process too: the program and its arguments are made again, the guide from them.

        Parameters
        ----------
        path
            As given to `save`.
        program, args
            As given to `variational`, the arguments by place.
        guide
            Needed only where it was a callable of one's own.

        Returns
        -------
        Approximation

        Raises
        ------
        ValueError
            No such file, or one of another program or other data; a guide of one's own that is not given.
        """
        args = bound(program, args, {})
        kept = _file(path, program, args).load()
        if kept is None:
            raise ValueError(f"load: there is no {os.fspath(path)}; give the path that save was called with")
        kind = guide or kept["draws"]["record"]["guide"]
        if isinstance(kind, str) and kind not in GUIDES:
            raise ValueError(f"load: {os.fspath(path)} holds a guide of your own ({kind}); give it again, as guide=")
        with untouched(), pyro.get_param_store().scope():
            found = parameters(program, args)
            made = _made(found, kind, {name: site.initial for name, site in found.sites.items()})
            made(*args)  # an automatic guide has no parameters before its first call
            made.load_state_dict(kept["state"])
            fitted = _finished(made, args)
        draws = Draws(program=program, arguments=args, **kept["draws"])
        return cls(draws, kept["losses"], fitted, kept["median"], kept["state"])


@untouched()
def variational(
    program: Program,
    *args: Any,
    guide: Guide = "normal",
    num_steps: int = 2000,
    learning_rate: float = 0.03,
    num_samples: int = 1000,
    seed: int,
    num_particles: int = 1,
    start: str | Mapping[str, Tensor] = "formulation",
    progress: bool | None = None,
    **named: Any,
) -> Approximation:
    """Find the member of a family of distributions that is nearest to the posterior, by stochastic gradients of the ELBO.

    Parameters
    ----------
    program, args, named
        Usually `models.bayesian`, and its data, by place or by name; any Pyro program without ``pyro.param``, with its arguments
        by place.
    guide
        - ``"delta"``: a point, the maximum of the constrained density, which `inference.adapt` climbs, too;
        - ``"normal"``: independent normals in unconstrained coordinates; too narrow where parameters are dependent;
        - ``"low_rank"``: one normal with a covariance of low rank plus diagonal;
        - ``"laplace"``: the normal with mode and curvature of the unconstrained density; needs a collapsed program;
        - a callable that takes the program, its enumerated sites hidden, and returns a guide: any ``AutoGuide``, another module, or a
          plain function that uses ``pyro.param``.
    num_steps, learning_rate
        Steps of Adam; the rate falls geometrically from ``learning_rate`` to a hundredth of it.
    num_samples
        Draws from the fitted guide.
    seed
        Fixes the result to the bit on one device; the global generator and Pyro's parameter store are left as they were.
    num_particles
        Draws of the guide for each gradient.
    start
        Where the guide is centred at first: ``"formulation"`` (its own parameters), ``"map"``, ``"prior"`` or values, as in
        `inference.gibbs`. A guide of one's own starts where it likes.
    progress
        True shows a bar, False none, None shows one on a terminal after a second.

    Returns
    -------
    Approximation
        Its draws have ``lp``, the log density of the posterior (not of the guide) over unconstrained coordinates.

    Raises
    ------
    ValueError
        Bad options, a start without a finite density, a loss that is not finite, a guide without some parameter.

    Examples
    --------
    >>> import torch
    >>> from pyro.distributions import Normal
    >>> from probtx_pyro import models
    >>> mixture = models.GaussianMixture(torch.tensor([[-1.0], [1.0]]), key_precision=10.0)
    >>> posterior = models.bayesian(mixture, keys=Normal(mixture.keys, 1.0))
    >>> queries = torch.tensor([[-2.0], [-2.2], [2.0]])
    >>> fit = variational(posterior, queries, guide="delta", num_steps=300, learning_rate=0.1, num_samples=1, seed=0)
    >>> [round(float(key), 2) for key in fit.median["keys"]]
    [-2.05, 1.91]
    """
    args = bound(program, args, named)
    if num_steps < 1 or num_samples < 1 or num_particles < 1 or not learning_rate > 0:
        raise ValueError(
            f"num_steps, num_samples and num_particles must be 1 or more and learning_rate positive, not {num_steps}, {num_samples}, {num_particles} and {learning_rate}"
        )
    if isinstance(guide, str) and guide not in GUIDES:
        raise ValueError(f"guide must be one of {', '.join(map(repr, GUIDES))} or a callable, not {guide!r}")
    began = time.monotonic()
    (own,) = seeds(seed, 1, "variational")
    found = parameters(program, args)
    if guide == "laplace" and found.discrete:
        raise ValueError(
            f"guide='laplace' differentiates the program twice, which does not sum out {', '.join(found.discrete)}; use models.bayesian(..., collapsed=True)"
        )
    point = {name: x[0] for name, x in starts(program, args, 1, start, seed, jitter=0.0).items()}
    found.require_finite(point, "start")
    with torch.enable_grad(), pyro.get_param_store().scope():
        torch.manual_seed(own)  # a guide of low rank begins at random numbers
        made = _made(found, guide, point)
        _require_complete(found, made)
        torch.manual_seed(own)
        losses = _fit(found, made, num_steps, learning_rate, num_particles, progress)
        state = {name: x.detach().clone() for name, x in made.state_dict().items()}
        fitted = _finished(made, args)
        samples = found.drawn(fitted, num_samples)
        lp = found.log_density(samples)
        median = {name: x[0].median(0).values for name, x in samples.items()}
        if isinstance(fitted, AutoGuide):
            median = {name: x.detach() for name, x in fitted.median(*args).items()}
    name = getattr(made, "__name__", type(made).__name__)
    record: dict[str, str | int | float] = {
        "seed": seed, "num_steps": num_steps, "learning_rate": learning_rate, "num_particles": num_particles,
        "guide": guide if isinstance(guide, str) else name, "seconds": time.monotonic() - began,
    }  # fmt: skip
    draws = Draws(samples, {"lp": lp}, program, args, name, record)
    return Approximation(draws, losses, fitted, median, state)


def _file(path: str | os.PathLike[str], program: Program | Formulation, arguments: tuple[Any, ...]) -> Checkpoint:
    return Checkpoint(path, {**identity(program), "arguments": arguments})


def _made(found: Parameters, guide: Guide, point: Mapping[str, Tensor]) -> Any:
    """The guide, not yet fitted; enumerated sites are none of its business. It owns its parameters, which are written in place."""
    hidden = poutine.block(found.program, hide=found.discrete)
    if isinstance(guide, str):
        return GUIDES[guide](hidden, init_loc_fn=init_to_value(values={name: x.clone() for name, x in point.items()}))
    made = guide(hidden)
    return made if hasattr(made, "state_dict") else _Function(made)


class _Function:
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


def _require_complete(found: Parameters, guide: Any) -> None:
    """Refuse a guide that leaves a parameter to its prior, and a program whose ``pyro.param`` nobody would keep."""
    trace = poutine.trace(guide).get_trace(*found.arguments)
    missing = [name for name in found.sites if name not in trace.nodes]
    if missing:
        raise ValueError(f"guide has no site {missing[0]!r}; it must draw every parameter: {', '.join(found.sites)}")
    hidden = poutine.block(found.program, hide=found.discrete)
    replayed = poutine.replay(hidden, trace=trace)  # a flat prior cannot be drawn
    nodes = poutine.trace(replayed).get_trace(*found.arguments).nodes
    learned = [name for name, node in nodes.items() if node["type"] == "param"]
    if learned:
        raise ValueError(f"program has the pyro.param {learned[0]!r}, which is no part of a posterior; give it a prior")


def _fit(
    found: Parameters, guide: Any, num_steps: int, learning_rate: float, num_particles: int, progress: bool | None
) -> Tensor:
    elbo: Any = Trace_ELBO(num_particles)
    if found.discrete:
        elbo = TraceEnum_ELBO(num_particles, max_plate_nesting=found.plate_depth)
    # without a bound on the gradient, which would bias its mean
    options = {"lr": learning_rate, "lrd": LAST_RATE ** (1 / num_steps), "clip_norm": math.inf}
    svi, losses = SVI(found.program, guide, ClippedAdam(options), elbo), list[float]()
    validated = is_validation_enabled()
    with progress_bar(label=type(guide).__name__, progress=progress, total=num_steps) as bar:
        for step in range(num_steps):
            with pyro.validation_enabled(validated and step == 0):  # later, a loss that is not finite says enough
                losses.append(float(svi.step(*found.arguments)))
            if not math.isfinite(losses[-1]):
                raise ValueError(f"variational: the loss is {losses[-1]} at step {step + 1}; lower learning_rate")
            bar.update()
            bar.set_postfix(loss=f"{losses[-1]:.5g}", refresh=step + 1 == num_steps)
    return torch.tensor(losses, dtype=torch.float64)


def _finished(guide: Any, arguments: tuple[Any, ...]) -> Any:
    """The guide to draw from: for Laplace's approximation, the normal around the mode that was found."""
    if isinstance(guide, _Function) and guide.parameters is None:
        guide.load_state_dict({name: x.detach().clone() for name, x in guide.state_dict().items()})
    if not isinstance(guide, AutoLaplaceApproximation):
        return guide
    try:
        with torch.enable_grad():
            return guide.laplace_approximation(*arguments)
    except torch.linalg.LinAlgError as error:
        raise ValueError(
            "guide='laplace': the log density is not concave where the climb ended; raise num_steps, or start='map'"
        ) from error
