"""A formulation with some of its parameters drawn from priors, as one Pyro program:
the object of every verb of inference.

The first axis of a parameter is a plate (``units`` at dim -1 of a mixture's), left of it the leading axes of the
problem; what comes after it is event. A parameter that lacks an axis is shared along it and drawn outside that plate;
one of the whole problem, a number, a shift or a metric, is drawn outside of all plates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import pyro
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Distribution

from probtx_pyro.models._plates import Plates, plate_of
from probtx_pyro.models._problem import Problem
from probtx_pyro.models.formulation import Data, Formulation, nearest
from probtx_pyro.models.priors import Site, as_pyro, bare, is_conjugate, lay_out, require_prior, restored, saved
from probtx_pyro.ops._numerics import common_shape

F = TypeVar("F", bound=Formulation)


@dataclass(frozen=True, eq=False, repr=False)
class Bayesian(Generic[F]):
    """A posterior program: a formulation with ``priors`` on some of its parameters. Made by `bayesian`,
    called with data.
    """

    formulation: F
    priors: Mapping[str, Any]
    collapsed: bool = True

    def __call__(self, *data: object, num_queries: int | None = None, **named: object) -> None:
        """Sample the parameters from their priors, then the data from the formulation that they make.

        Parameters
        ----------
        data, named
            The data of the formulation, by place or by name; None for what is not known.
        num_queries
            How many queries to draw where none are given: ``Predictive(posterior, samples)(None, num_queries=7)``.
        """
        bound = self.bind(*data, **named)
        sizes = {} if num_queries is None else {"num_queries": num_queries}
        plates, drawn = self._sample(self.formulation.plates(*bound, **sizes))
        self.formulation.with_parameters(drawn).generate(plates, bound, self.collapsed)

    def _sample(self, plates: Plates) -> tuple[Plates, dict[str, Tensor]]:
        """Sample the parameters in the plates of the problem."""
        plates, sites = self._laid_out(plates)
        return plates, self.sample_sites(plates, {name: site.distribution for name, site in sites.items()})

    def sample_sites(self, plates: Plates, distributions: Mapping[str, TorchDistribution]) -> dict[str, Tensor]:
        """Sample parameters by name in the plates of the problem, as the program does;
        a guide gives its own distributions.
        """
        drawn = {}
        for name, distribution in distributions.items():
            row = self.formulation.row(name)
            if row.event_rank == len(row.names):
                drawn[name] = pyro.sample(name, distribution.to_event())
                continue
            with plates.enter(plate_of(row.names[0]), like=distribution.batch_shape):
                drawn[name] = pyro.sample(name, distribution)
        return drawn

    def copies(self, count: int, *data: object, **named: object) -> "Bayesian[F]":
        """Return the same priors for ``count`` problems, each with parameters of its own: one more leading axis.

        ``data`` are those of one problem, whose numbers do not matter.
        """
        problem, wide = self.problem(*data, **named), {}
        for name, (_, initial) in problem.sites.items():
            rank = len(problem.batch) + len(self.formulation.axes(name))
            wide[name] = initial.expand(count, *(1,) * (rank - initial.dim()), *initial.shape)
        return Bayesian(self.formulation.with_parameters(wide), self.priors, self.collapsed)

    def _laid_out(self, plates: Plates) -> tuple[Plates, dict[str, Site]]:
        """The priors laid out, and plates with the leading axes that only they have;
        hyperparameters are sampled on the way.
        """
        sites = {}
        for name, prior in self.priors.items():
            given = prior if isinstance(prior, Distribution) else prior()
            sites[name] = lay_out(self.formulation, name, given, plates.batch, plates.last)
        ranks = {name: len(self.formulation.axes(name)) for name in sites}
        leading = [site.initial.shape[: max(0, site.initial.dim() - ranks[name])] for name, site in sites.items()]
        batch = common_shape(plates.batch, *leading)
        return (plates if batch == plates.batch else Plates(batch, **plates.last)), sites

    def __repr__(self) -> str:
        kind = self.formulation.evidence_kind
        said = "" if kind == "posterior" else f", {kind}"
        return f"Bayesian({type(self.formulation).__name__}{said}: {self.described() or 'no priors'})"

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "priors": {name: saved(prior) for name, prior in self.priors.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, priors={name: restored(prior) for name, prior in state["priors"].items()})

    def bind(self, *data: object, **named: object) -> Data:
        """Return the data in the order of the formulation's table, None for what is not given."""
        return self.formulation.bind(*data, **named)

    def problem(self, *data: object, **named: object) -> Problem:
        """Check data, and lay each prior out on its parameter for them: what every verb of inference begins with.

        A prior that is a function is laid out at one draw of its hyperparameters, always the same.
        """
        given = self.bind(*data, **named)
        plates = self.formulation.plates(*given)
        if self.hierarchical:  # outside of any program that is running
            with poutine.block(), poutine.seed(rng_seed=0):
                plates, sites = self._laid_out(plates)
        else:
            plates, sites = self._laid_out(plates)
        return Problem(self.formulation, given, plates, sites, self.conjugate())

    def sample_parameters(self, data: Data) -> dict[str, Tensor]:
        """Draw the parameters, and hyperparameters, from their priors, for these data; by name of the site."""
        with torch.no_grad():
            trace = poutine.trace(self._sample).get_trace(self.formulation.plates(*data))
        nodes: list[tuple[str, Any]] = list(trace.iter_stochastic_nodes())
        return {name: node["value"] for name, node in nodes if not site_is_subsample(node)}

    @property
    def hierarchical(self) -> list[str]:
        """The parameters whose prior is a function that samples hyperparameters."""
        return [name for name, prior in self.priors.items() if not isinstance(prior, Distribution)]

    def require_plain(self, what: str) -> None:
        """Refuse a hierarchy where ``what`` needs fixed priors."""
        for name in self.hierarchical:
            raise NotImplementedError(f"priors: {name} has hyperparameters, so there is no {what}; take inference.nuts")

    def described(self) -> str:
        """Return the priors in words: ``keys ~ Normal, weights ~ Dirichlet``."""
        named = {
            name: type(bare(as_pyro(prior))).__name__ if isinstance(prior, Distribution) else "hyperparameters"
            for name, prior in self.priors.items()
        }
        return ", ".join(f"{name} ~ {kind}" for name, kind in named.items())

    def conjugate(self) -> bool:
        """Return True if every prior has a closed-form conditional, so that ECM and Gibbs sampling serve it."""
        return all(is_conjugate(self.formulation, name, prior) for name, prior in self.priors.items())


def bayesian(formulation: F, /, *, collapsed: bool = True, likelihood: str | None = None, **priors: Any) -> Bayesian[F]:
    """Make a Pyro program whose parameters are drawn from priors; the others stay as they are in ``formulation``.

    Parameters
    ----------
    formulation
        A value of `probtx_pyro.models`, such as a `GaussianMixture`.
    collapsed
        True sums the latent assignments out in closed form; False leaves them as sites that Pyro enumerates.
    likelihood
        Of a formulation that is a density of data only if it is said how: of a `DependencyCRF` ``"exact"``, or
        ``"pseudo"``, whose posterior is called a pseudo-posterior. None for all others.
    priors
        By name of the parameter (``formulation.PARAMETERS``): a Pyro distribution; a torch distribution, taken as its
        namesake; `FLAT` for maximum likelihood; or a function without arguments that samples hyperparameters by
        ``pyro.sample`` and returns a distribution. A Dirichlet on ``weights`` of shape (..., 1, U) is one weight vector
        shared by the queries, (..., Q, U) one for each query.

    Returns
    -------
    Bayesian
        ``posterior(*data)``, with sites named as the parameters and then those of the formulation's ``collapsed`` or
        ``model``. Its log density is what `inference.adapt` climbs; `inference.gibbs`, `nuts` and `variational` draw
        from it.

    Raises
    ------
    ValueError
        A name that the formulation does not have, a parameter that is not there, or something that is no prior; a prior
        whose support does not lie in the parameter's; a conjugate family that the formulation declares and has no
        conditional for; a likelihood that it does not have.
    NotImplementedError
        A formulation without a log density of its data.

    Examples
    --------
    >>> import torch
    >>> from pyro import poutine
    >>> from pyro.distributions import Normal
    >>> from probtx_pyro import models
    >>> posterior = bayesian(models.GaussianMixture(torch.zeros(3, 2)), keys=Normal(0.0, 1.0))
    >>> poutine.trace(posterior).get_trace(torch.ones(5, 2)).nodes["keys"]["value"].shape
    torch.Size([3, 2])
    >>> poutine.trace(posterior).get_trace(None, num_queries=4).nodes["queries"]["value"].shape
    torch.Size([4, 2])
    """
    if not isinstance(formulation, Formulation):
        raise ValueError(f"formulation must be a value of probtx_pyro.models, not a {type(formulation).__name__}")
    if likelihood is not None:
        formulation = cast(F, with_likelihood(formulation, likelihood))
    if not formulation.offers("log_evidence"):
        formulation.refuse("log_evidence")
    for name, prior in priors.items():
        require_prior(formulation, name, prior)
        if is_conjugate(formulation, name, prior):
            _require_conditional(formulation, name)
    order = {name: priors[name] for name in formulation.PARAMETERS if name in priors}
    return Bayesian(formulation, order, collapsed)


def _require_conditional(formulation: Formulation, name: str) -> None:
    """Refuse a table that declares a family for which `conditional` refuses the parameter,
    before inference asks for it.
    """
    try:
        formulation.conditional(name, None)
    except NotImplementedError:
        family: Any = formulation.row(name).conjugate
        raise ValueError(
            f"priors: the table of {type(formulation).__name__} declares {name} conjugate to {family.__name__}, but its conditional refuses {name}; return the terms there, or leave the family out of the table"
        ) from None
    except (AttributeError, TypeError):  # it went on to read the sums, which nobody has yet
        pass


def with_likelihood(formulation: Formulation, name: str) -> Formulation:
    """Return the formulation that is a density of data in the way that ``name``, a key of its ``LIKELIHOODS``, says."""
    kind, known = type(formulation).__name__, formulation.LIKELIHOODS
    if not known:
        raise ValueError(f"likelihood: a {kind} has no likelihoods to choose from; leave likelihood out")
    if name not in known:
        repair = nearest(name, known) if isinstance(name, str) else f"choose from {', '.join(known)}"
        raise ValueError(f"likelihood: {name!r} is none that a {kind} has; {repair}")
    return known[name](formulation)
