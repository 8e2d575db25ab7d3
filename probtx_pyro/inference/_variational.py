"""Variational inference: one call for every guide, draws in the form of the samplers.

Sites that Pyro can enumerate are summed out of the ELBO exactly (``TraceEnum_ELBO``): those that the guide draws under
the guide, so that their part of the gradient has no noise, and the others under their posterior.
"""

import copy
import math
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import pyro
import torch
from pyro import poutine
from pyro.distributions import is_validation_enabled
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import (
    AutoDelta,
    AutoGuide,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoNormal,
    init_to_value,
)
from pyro.nn import PyroModule
from pyro.optim import ClippedAdam
from torch import Tensor

from probtx_pyro.inference._checkpoint import Checkpoint
from probtx_pyro.inference._draws import Draws
from probtx_pyro.inference._program import (
    Arguments,
    Parameters,
    Program,
    bound,
    identity,
    parameters,
    require_counts,
    untouched,
)
from probtx_pyro.inference._start import seeds, starts
from probtx_pyro.inference._units import UNIT_OF, MeasuredSites
from probtx_pyro.models.formulation import Formulation
from probtx_pyro.ops._numerics import enable_grad
from probtx_pyro.ops._progress import progress_bar

GUIDES: dict[str, Callable[..., Any]] = {
    "delta": AutoDelta,
    "normal": AutoNormal,
    "low_rank": AutoLowRankMultivariateNormal,
    "laplace": AutoLaplaceApproximation,
}
Guide = str | Callable[..., Any]


def make_guide(found: Parameters, guide: Guide, point: Mapping[str, Tensor]) -> Any:
    """The guide, not yet fitted; those made here leave enumerated sites alone. It owns its parameters,
    which are written in place.
    """
    hidden = poutine.block(found.program, hide=found.discrete)
    start = init_to_value(values={name: x.clone() for name, x in point.items()})
    given: Any = partial(GUIDES[guide], init_loc_fn=start) if isinstance(guide, str) else guide
    made: Any
    if is_automatic(guide):
        made = given(MeasuredSites(found.units)(hidden))
        for name, unit in found.units.items():
            made.register_buffer(UNIT_OF + name, unit)  # what is saved of the guide is told in them
    elif isinstance(given, FunctionGuide):
        made = FunctionGuide(given.function)
        pyro.get_param_store().set_state(copy.deepcopy(cast(Any, given.parameters)))
    else:
        made = copy.deepcopy(given) if isinstance(given, torch.nn.Module) else FunctionGuide(given)
    if isinstance(made, torch.nn.Module):
        made.train()
        if not isinstance(made, PyroModule) and _register not in made._forward_pre_hooks.values():
            made.register_forward_pre_hook(_register)
    return made


def is_automatic(guide: Guide) -> bool:
    """True of what makes a guide of the program: a name, a class or a `functools.partial` of one."""
    return isinstance(guide, str) or isinstance(getattr(guide, "func", guide), type)


def _register(module: torch.nn.Module, _: object) -> None:
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

    Refuse one that leaves a parameter to its prior, or whose network nobody would keep, and a program with a
    ``pyro.param``.
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
            "guide is a function with a network that pyro.module registers, which would not be saved with it; "
            "make the guide a torch.nn.Module that holds the network"
        )
    hidden = poutine.block(found.program, hide=found.discrete)
    replayed = poutine.replay(hidden, trace=trace)  # a flat prior cannot be drawn
    nodes = poutine.trace(replayed).get_trace(*found.arguments).nodes
    learned = [name for name, node in nodes.items() if node["type"] == "param"]
    if learned:
        raise ValueError(f"program has the pyro.param {learned[0]!r}, which is no part of a posterior; give it a prior")
    return drawn


def finished(guide: Any, arguments: Arguments) -> Any:
    """The guide to draw from: for Laplace's approximation, the normal around the mode that was found."""
    if isinstance(guide, FunctionGuide) and guide.parameters is None:
        guide.load_state_dict({name: x.detach().clone() for name, x in guide.state_dict().items()})
    if isinstance(guide, torch.nn.Module):
        guide.eval()
    if not isinstance(guide, AutoLaplaceApproximation):
        return guide
    try:
        with enable_grad():
            return guide.laplace_approximation(*arguments)
    except torch.linalg.LinAlgError as error:
        raise ValueError(
            "guide='laplace': the log density is not concave where the climb ended; raise num_steps, or start='map'"
        ) from error


SAVED_EVERY = 30.0  # seconds between checkpoints
LAST_RATE = 0.01  # of the first learning rate: steps must die out for a noisy gradient to settle


class Approximation(NamedTuple):
    """A guide fitted to a posterior.

    draws: draws of the guide, one chain, so that R-hat says nothing about them; its ``method`` names the guide's class.
        They are of the parameters, or of the latent assignments where the program has no unknown parameters.
    losses: the negative ELBO of every step, estimated by its particles; shape (num_steps,).
    guide: the fitted Pyro guide. Calling it fills Pyro's parameter store: do so inside
        ``pyro.get_param_store().scope()``. A fit with ``guide=fit.guide`` goes on from it.
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

    def applied(
        self, *data: Any, posterior: Program | None = None, num_samples: int = 1000, seed: int, **named: Any
    ) -> "Approximation":
        """Draw for other data from the trained guide, without training it again: what an amortised guide is for.

        Parameters
        ----------
        data, named
            As of `variational`; of as many queries as the guide takes.
        posterior
            The program of these data where it is another, such as that of another number of problems.
        num_samples, seed
            As of `variational`.

        Returns
        -------
        Approximation
            `results.gap` says what it lacks of the exact posterior of these data.

        Raises
        ------
        ValueError
            A guide that does not read the data, or one without some parameter of the program.
        """
        if isinstance(self.guide, AutoGuide):
            raise ValueError(
                f"applied: an {self.draws.method} does not read the data, so it is a guide of its own data alone; "
                "call inference.variational with these"
            )
        require_counts(num_samples=num_samples)
        program: Any = posterior or self.draws.program
        args = bound(program, data, named)
        (own,) = seeds(seed, 1, "variational")
        with untouched():
            found = parameters(program, args, assignments=True)
            names = require_complete(found, self.guide)
            torch.manual_seed(own)
            samples, lp, median = _drawn(found, self.guide, names, num_samples)
        record = {"seed": seed, "guide": self.draws.record["guide"]}
        return self._replace(draws=Draws(samples, {"lp": lp}, program, args, self.draws.method, record), median=median)

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
        """Read what was saved, in another process too: the program and its arguments are made again,
        the guide from them.

        Parameters
        ----------
        path
            As given to `save`.
        program, args
            As given to `variational`, the arguments by place.
        guide
            Needed only where it was one of your own; a module of the same layers.

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
            found = parameters(program, args, assignments=True)
            found = found.measured(
                {name: x for name in found.sites if (x := kept["state"].get(UNIT_OF + name)) is not None}
            )
            made = make_guide(found, kind, {name: site.initial for name, site in found.sites.items()})
            made(*args)  # an automatic guide has no parameters before its first call
            made.load_state_dict(kept["state"])
            fitted = finished(made, args)
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
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    **named: Any,
) -> Approximation:
    """Find the member of a family of distributions that is nearest to the posterior,
    by stochastic gradients of the ELBO.

    Parameters
    ----------
    program, args, named
        Usually `models.bayesian`, and its data, by place or by name; any Pyro program without ``pyro.param``, with its
        arguments by place.
    guide
        - ``"delta"``: a point, the maximum of the constrained density, which `inference.adapt` climbs, too;
        - ``"normal"``: independent normals in unconstrained coordinates; too narrow where parameters are dependent;
        - ``"low_rank"``: one normal with a covariance of low rank plus diagonal;
        - ``"laplace"``: the normal with mode and curvature of the unconstrained density; needs a collapsed program;
        - a class of guides, or a ``functools.partial`` of one, made with the program, its enumerated sites hidden: any
          ``AutoGuide``;
        - a guide, called with the data: a ``torch.nn.Module`` or ``PyroModule``, of which a copy is trained, such as
          `AttentionGuide` and `ParameterGuide`; or a plain function that uses ``pyro.param``. It may draw the latent
          assignments, too, where the program has them (``models.bayesian(..., collapsed=False)``), and nothing else
          where it has no priors.
    num_steps, learning_rate
        Steps of Adam; the rate falls geometrically from ``learning_rate`` to a hundredth of it. It is told in units that
        suit the data, powers of 1000, so that keys may be of any size.
    num_samples
        Draws from the fitted guide.
    seed
        Fixes the result to the bit on one device; the global generator and Pyro's parameter store are left as they
        were.
    num_particles
        Draws of the guide for each gradient.
    start
        Where the guide is centred at first: ``"formulation"`` (its own parameters), ``"map"``, ``"prior"`` or values,
        as in `inference.gibbs`. A guide of one's own starts where it likes.
    checkpoint
        A file that keeps the state every half minute: the same call goes on there, to the same numbers. Delete it when
        done.
    progress
        True shows a bar, False none, None shows one on a terminal after a second.

    Returns
    -------
    Approximation
        Its draws have ``lp``, the log density of the posterior (not of the guide) over unconstrained coordinates.

    Raises
    ------
    ValueError
        Bad options, a start without a finite density, a loss that is not finite, a guide without some parameter or
        without its network.

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
            f"num_steps, num_samples and num_particles must be 1 or more and learning_rate positive, not {num_steps}, "
            f"{num_samples}, {num_particles} and {learning_rate}"
        )
    if isinstance(guide, str) and guide not in GUIDES:
        raise ValueError(f"guide must be one of {', '.join(map(repr, GUIDES))} or a callable, not {guide!r}")
    began = time.monotonic()
    (own,) = seeds(seed, 1, "variational")
    found = parameters(program, args, assignments=not isinstance(guide, str))
    if is_automatic(guide):
        found = found.in_units()
    if guide == "laplace" and found.discrete:
        raise ValueError(
            f"guide='laplace' differentiates the program twice, which does not sum out {', '.join(found.discrete)}; "
            "use models.bayesian(..., collapsed=True)"
        )
    point = {}
    if found.sites:
        point = {name: x[0] for name, x in starts(found, 1, start, seed, jitter=0.0).items()}
        found.require_finite(point, "start")
    record: dict[str, str | int | float] = {"seed": seed, "num_steps": num_steps, "learning_rate": learning_rate}
    record["num_particles"] = num_particles
    with enable_grad(), pyro.get_param_store().scope():
        torch.manual_seed(own)  # a guide of low rank begins at random numbers
        made = make_guide(found, guide, point)
        name = getattr(made, "__name__", type(made).__name__)
        record["guide"] = guide if isinstance(guide, str) else name
        drawn = require_complete(found, made)
        begin = {key: x.detach() for key, x in pyro.get_param_store().get_state()["params"].items()}
        run = Checkpoint(
            checkpoint, {**identity(program), "arguments": args, "options": record, "begin": begin, "start": point}
        )
        torch.manual_seed(own)
        losses = _fit(found, made, drawn, num_steps, learning_rate, num_particles, run, progress)
        state = {key: x.detach().clone() for key, x in made.state_dict().items()}
        fitted = finished(made, args)
        samples, lp, median = _drawn(found, fitted, drawn, num_samples)
    record["seconds"] = time.monotonic() - began
    draws = Draws(samples, {"lp": lp}, program, args, name, record)
    return Approximation(draws, losses, fitted, median, state)


def _file(path: str | os.PathLike[str], program: Program | Formulation, arguments: Arguments) -> Checkpoint:
    return Checkpoint(path, {**identity(program), "arguments": arguments})


def _fit(
    found: Parameters,
    guide: Any,
    drawn: list[str],
    num_steps: int,
    learning_rate: float,
    num_particles: int,
    run: Checkpoint,
    progress: bool | None,
) -> Tensor:
    elbo: Any = Trace_ELBO(num_particles)
    if found.discrete:
        elbo = TraceEnum_ELBO(num_particles, max_plate_nesting=found.plate_depth)
    enumerated = config_enumerate(guide) if set(drawn) & set(found.discrete) else guide
    # without a bound on the gradient, which would bias its mean
    options = {"lr": learning_rate, "lrd": LAST_RATE ** (1 / num_steps), "clip_norm": math.inf}
    svi, losses = SVI(found.program, enumerated, ClippedAdam(options), elbo), list[float]()
    if (kept := run.load()) is not None:
        losses = kept["losses"]
        svi.optim.set_state(kept["optimizer"])
        _set_state(kept)
    validated, saved = is_validation_enabled(), time.monotonic()
    with progress_bar(label=type(guide).__name__, progress=progress, total=num_steps, initial=len(losses)) as bar:
        for step in range(len(losses), num_steps):
            with pyro.validation_enabled(validated and step == 0):  # later, a loss that is not finite says enough
                losses.append(float(svi.step(*found.arguments)))
            if not math.isfinite(losses[-1]):
                raise ValueError(
                    f"variational: the loss is {losses[-1]} at step {step + 1}; "
                    f"lower learning_rate, or start='map'{_lost()}"
                )
            bar.update()
            bar.set_postfix(loss=f"{losses[-1]:.5g}", refresh=step + 1 == num_steps)
            if run.path is not None and (time.monotonic() - saved > SAVED_EVERY or step + 1 == num_steps):
                saved = time.monotonic()
                run.save({"losses": losses, "optimizer": svi.optim.get_state(), **_state()})
    return torch.tensor(losses, dtype=torch.float64)


def _lost() -> str:
    """Name the numbers of the guide that are not finite."""
    params = pyro.get_param_store().get_state()["params"]
    names = [name for name, x in params.items() if not bool(torch.isfinite(x).all())]
    return f" ({', '.join(names)} not finite)" if names else ""


def _state() -> dict[str, Any]:
    """The parameters in the store, and the generators."""
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    params = {name: x.detach() for name, x in pyro.get_param_store().get_state()["params"].items()}
    return {"params": params, "random": torch.get_rng_state(), "on_devices": on_devices}


def _set_state(kept: Mapping[str, Any]) -> None:
    """Go back to what `_state` was, in place: modules own their parameters."""
    with torch.no_grad():
        for name, x in pyro.get_param_store().get_state()["params"].items():
            x.copy_(kept["params"][name])
    torch.set_rng_state(kept["random"])
    if kept["on_devices"]:
        torch.cuda.set_rng_state_all(kept["on_devices"])


def _drawn(
    found: Parameters, guide: Any, names: list[str], num_samples: int
) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
    """Draws of parameters, or of assignments where there are none, (1, draw, *shape), their log density,
    and medians.
    """
    names = list(found.sites) or names
    samples = found.drawn(guide, num_samples, names)
    for name, x in samples.items():
        if not bool(torch.isfinite(x).all()):
            raise ValueError(f"variational: draws of {name} from the guide are NaN or infinite; lower learning_rate")
    median = {name: x[0].median(0).values for name, x in samples.items()}
    if isinstance(guide, AutoGuide):
        median = {name: x.detach() for name, x in guide.median(*found.arguments).items()}
    if found.sites:
        return samples, found.log_density(samples), median
    exact = TraceEnum_ELBO(max_plate_nesting=found.plate_depth)  # all is summed out: the log evidence
    evidence = -exact.loss(found.program, lambda *_: None, *found.arguments)
    return samples, torch.full((1, num_samples), evidence, dtype=torch.float64), median
