"""What a sampler or a guide must know of a Pyro program: its parameters, their unconstrained coordinates, and who it is."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import InitMessenger, init_to_median, init_to_value
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor

from probtx_pyro.inference._log_joint import Data, Posterior
from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models.priors import Site, bare

Program = Callable[..., Any]
Potential = Callable[[Mapping[str, Tensor]], Tensor]


@contextmanager
def untouched() -> Iterator[None]:
    """Leave the global generator and Pyro's parameter store as they were; as a decorator, too."""
    store = pyro.get_param_store()
    with torch.random.fork_rng(), store.scope(store.get_state()):
        yield


class Parameters(NamedTuple):
    """The continuous latent sites of a program called with ``arguments``.

    program: the program, answers that nobody gave hidden in it.
    arguments: what it is called with.
    sites: distribution and present value by name: what the mixture holds, or the prior's median where there is no mixture.
    discrete: names of the latent sites that Pyro sums out.
    plate_depth: how many plates nest.
    closed: the program itself where it is a collapsed `models.bayesian`, whose density has a closed form.
    """

    program: Program
    arguments: tuple[Any, ...]
    sites: dict[str, Site]
    discrete: list[str]
    plate_depth: int
    closed: Bayesian | None = None

    def unconstrained(self) -> tuple[Potential, dict[str, Any]]:
        """Minus the log density over R^n, Jacobians included and discrete sites summed out, and each site's map to R^n.

        By the closed form where there is one, which takes two thirds of the time of running the program, or by the program.
        """
        present = init_to_value(
            values={name: site.initial for name, site in self.sites.items()}, fallback=init_to_median
        )
        with torch.random.fork_rng():
            _, potential, transforms, _ = initialize_model(
                self.program,
                self.arguments,
                max_plate_nesting=self.plate_depth,
                init_strategy=present,
                initial_params={},
            )
        return potential if self.closed is None else _closed_form(self.closed, self.arguments, transforms), transforms

    def require_finite(self, values: Mapping[str, Tensor], where: str) -> None:
        """Refuse a point at which some site has no finite log density, naming the first such site and the repair."""
        with torch.random.fork_rng(), torch.no_grad(), poutine.block(), pyro.validation_enabled(False):
            trace = poutine.trace(poutine.condition(self.program, dict(values))).get_trace(*self.arguments)
            trace.compute_log_prob()
        for name, node in trace.nodes.items():
            if node["type"] == "sample" and not torch.isfinite(node["log_prob_sum"]):
                repair = (
                    "start well inside its prior's support: start='prior', or values of your own"
                    if name in values
                    else "look for extreme data and parameters, or start elsewhere"
                )
                raise ValueError(f"{where}: log density of site {name!r} is {float(node['log_prob_sum'])}; {repair}")


def _closed_form(program: Bayesian, arguments: tuple[Any, ...], transforms: Mapping[str, Any]) -> Potential:
    """The potential by `Posterior.objective`, the log density that ECM climbs."""
    posterior = Posterior(program.mixture, program.priors, Data(*arguments))

    def potential(free: Mapping[str, Tensor]) -> Tensor:
        values, volume = {}, torch.zeros(())
        for name, z in free.items():
            inverse = transforms[name].inv
            x = inverse(z)
            volume = volume + inverse.log_abs_det_jacobian(z, x).sum()
            values[name] = x.reshape(posterior.start[name].shape)
        return -(posterior.objective(values).sum() + volume)

    return potential


def parameters(program: Program, arguments: tuple[Any, ...]) -> Parameters:
    """The parameters of a program.

    Of a `models.bayesian` program, a latent site ``outputs`` (answers that nobody gave) is hidden: it is a prediction and
    adds nothing to the density of the parameters.

    Raises
    ------
    ValueError
        A program without continuous latent sites; query weights that Pyro's enumeration cannot serve.
    """
    present: dict[str, Tensor] = {}
    hidden: Program = program
    if isinstance(program, Bayesian):
        _refuse_fractions(program, *arguments)
        plates = program.mixture.plates(*arguments)
        sites = program.priors.sites(program.mixture, plates.batch, arguments[0].shape[-2])
        present = {name: site.initial.detach() for name, site in sites.items()}
        if len(arguments) < 2 or arguments[1] is None:  # a value that nobody reads spares the draw
            unread = poutine.condition(program, {"outputs": arguments[0].new_zeros(())})
            hidden = poutine.block(unread, hide=["outputs"])
    strategy = InitMessenger(init_to_value(values=present, fallback=init_to_median))
    with torch.random.fork_rng(), torch.no_grad(), poutine.block():
        torch.manual_seed(0)  # a median is estimated from draws: always the same ones
        trace = poutine.trace(strategy(hidden)).get_trace(*arguments)
    latent: dict[str, Any] = {
        name: node for name, node in trace.iter_stochastic_nodes() if type(node["fn"]).__name__ != "_Subsample"
    }
    discrete = [name for name, node in latent.items() if node["fn"].has_enumerate_support]
    found = {name: Site(node["fn"], node["value"]) for name, node in latent.items() if name not in discrete}
    if not found:
        raise ValueError(
            "program has no continuous latent site, so there is nothing to infer; give a parameter a prior"
        )
    observed_too: list[Any] = [node for node in trace.nodes.values() if node["type"] == "sample"]
    depths = [-frame.dim for node in observed_too for frame in node["cond_indep_stack"] if frame.vectorized]
    closed = program if isinstance(program, Bayesian) and program.collapsed else None
    return Parameters(hidden, arguments, found, discrete, max(depths, default=0), closed)


def _refuse_fractions(program: Bayesian, queries: Tensor, outputs=None, observed=None, query_weights=None) -> None:
    """Enumeration multiplies each factor by its weight before it sums over units, instead of their sum."""
    if program.collapsed or query_weights is None:
        return
    if ((query_weights != 0) & (query_weights != 1)).any():
        raise ValueError(
            "query_weights other than 0 and 1 have no enumerated program; use models.bayesian(..., collapsed=True)"
        )


def identity(program: Program) -> dict[str, Any]:
    """What tells one program from another across processes: tensors of mixture and priors, or a function's full name."""
    if not isinstance(program, Bayesian):
        named: Any = program if hasattr(program, "__qualname__") else type(program)
        return {"program": f"{named.__module__}.{named.__qualname__}"}
    priors = {}
    for name, given in program.priors.given().items():
        prior = bare(given)
        priors[name] = {"family": type(prior).__name__, **{key: getattr(prior, key) for key in prior.arg_constraints}}
    tensors = {name: x for name, x in vars(program.mixture).items() if isinstance(x, Tensor)}
    return {
        "kind": type(program.mixture).__name__,
        "mixture": tensors,
        "priors": priors,
        "collapsed": program.collapsed,
    }


__all__ = ["Parameters", "Potential", "Program", "identity", "parameters", "untouched"]
