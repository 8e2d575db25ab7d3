"""Which Pyro prior sits on which parameter of a mixture, and which of them have a closed-form MAP update."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from pyro.distributions import Dirichlet, Gamma, ImproperUniform, Normal, TorchDistribution
from torch import Tensor
from torch.distributions import Independent, constraints

from probtx_pyro.models._distributions import FaceDirichlet, on_face
from probtx_pyro.models._validation import broadcastable

if TYPE_CHECKING:
    from probtx_pyro.models.gaussian_keys import GaussianKeys
    from probtx_pyro.models.gaussian_mixture import GaussianMixture

    Mixture: TypeAlias = GaussianMixture | GaussianKeys

FLAT = ImproperUniform(constraints.real, (), ())
CONJUGATE: dict[str, Any] = {
    "keys": Normal,
    "key_precision": Gamma,
    "values": Normal,
    "value_precision": Gamma,
    "weights": Dirichlet,
    "component_weights": Dirichlet,
    "answer_probs": Dirichlet,
}


@dataclass(frozen=True)
class MixturePriors:
    """Pyro distributions over the parameters of a `GaussianMixture` or `GaussianKeys`; one without a prior stays fixed.

    The conjugate choices have closed-form updates in `inference.adapt`; any other distribution with the right support goes
    to gradient MAP or to a sampler. ``weights`` with concentration (..., 1, U) is one weight vector shared by the queries,
    with (..., Q, U) one for each query.

    ==================  =======================================  =========================
    parameter           shape                                    conjugate prior
    ==================  =======================================  =========================
    keys                (..., U, D)                              Normal
    key_precision       (..., U), or one scalar for all units    Gamma (shape, rate)
    values              (..., U, M)                              Normal
    value_precision     (..., U), or one scalar for all units    Gamma (shape, rate)
    weights             (..., 1 or Q, U), rows on the simplex    Dirichlet
    answer_probs        (..., U, K), rows on the simplex         Dirichlet
    component_weights   (..., U, R), rows on the simplex         Dirichlet
    ==================  =======================================  =========================

    A `GaussianKeys` adapts keys (..., U, R, D), key_precision (..., U, R), weights and component_weights; a `GaussianMixture`
    all but component_weights.

    >>> from pyro.distributions import Gamma
    >>> priors = MixturePriors.flat("keys", key_precision=Gamma(2.0, 1.0))
    >>> list(priors.given())
    ['keys', 'key_precision']
    """

    keys: TorchDistribution | None = None
    key_precision: TorchDistribution | None = None
    values: TorchDistribution | None = None
    value_precision: TorchDistribution | None = None
    weights: TorchDistribution | None = None
    answer_probs: TorchDistribution | None = None
    component_weights: TorchDistribution | None = None

    @classmethod
    def flat(cls, *names: str, **others: TorchDistribution) -> "MixturePriors":
        """Maximum likelihood for the parameters named; other parameters may get a prior by keyword.

        A precision cannot be flat: a unit that sits on a single query makes the likelihood unbounded.
        """
        known = {field.name for field in fields(cls)}
        for name in names:
            if name not in known:
                raise ValueError(f"flat: no parameter {name!r}; choose from {', '.join(sorted(known))}")
            if "precision" in name:
                raise ValueError(
                    f"flat: the likelihood is unbounded in {name} (a unit on a single query); give it Gamma(shape, rate) with a small rate"
                )
        return cls(**dict.fromkeys(names, FLAT), **others)

    def given(self) -> dict[str, TorchDistribution]:
        """The priors that are there, by parameter name."""
        return {field.name: prior for field in fields(self) if (prior := getattr(self, field.name)) is not None}

    def conjugate(self) -> bool:
        """Whether every prior given has a closed-form update."""
        return all(prior is FLAT or isinstance(bare(prior), CONJUGATE[name]) for name, prior in self.given().items())

    def sites(self, mixture: "Mixture", batch: torch.Size, num_queries: int) -> "dict[str, Site]":
        """Each prior laid out on its parameter of ``mixture``, for problems of shape ``batch``."""
        return {name: _site(name, prior, mixture, batch, num_queries) for name, prior in self.given().items()}


class Site(NamedTuple):
    """A prior expanded to its parameter.

    distribution: its batch and event shape together are the parameter's shape.
    initial: the parameter's present value, expanded to that shape.
    """

    distribution: TorchDistribution
    initial: Tensor


def bare(prior: TorchDistribution) -> TorchDistribution:
    while isinstance(prior, Independent):
        prior = prior.base_dist
    return prior


def event_dim(mixture: "Mixture", name: str) -> int:
    """How many axes of a parameter belong to one unit (one row of weights): coordinates, components."""
    if name not in mixture.adapts:
        raise ValueError(
            f"priors: there is a prior on {name}, but a {type(mixture).__name__} has no {name} to adapt; drop it, or choose from {', '.join(mixture.adapts)}"
        )
    return mixture.axes["log_prior" if name == "weights" else name] - 1


def _site(name: str, prior: TorchDistribution, mixture: "Mixture", batch: torch.Size, num_queries: int) -> Site:
    event = event_dim(mixture, name)
    initial = mixture.parameter(name, batch)
    if initial is None:
        raise ValueError(
            f"priors: there is a prior on {name}, but the mixture has no {name}; give the mixture {name} or drop the prior"
        )
    prior, event = bare(prior), min(event, initial.dim())
    if prior is FLAT and CONJUGATE[name] is Dirichlet:
        prior = Dirichlet(torch.ones_like(initial))
    elif isinstance(prior, CONJUGATE[name]):
        prior = _cast(name, prior, initial)
    if prior.event_dim > event or not _fits(CONJUGATE[name], prior.support):
        needed = {Normal: "real vectors", Gamma: "positive numbers", Dirichlet: "the simplex"}[CONJUGATE[name]]
        raise ValueError(
            f"priors: {type(prior).__name__} on {name} has the wrong support; {name} needs a distribution on {needed}, such as {CONJUGATE[name].__name__}"
        )
    own = prior.batch_shape + prior.event_shape
    if name == "weights":
        own = own if len(own) > 1 else torch.Size((1, *own))
        if own[-2] == 1 and initial.shape[-2] != 1:
            raise ValueError(
                "priors: weights shared by the queries have no closed form or meaning where log_prior differs between queries; give weights a concentration of shape (..., Q, U)"
            )
        if own[-2] not in (1, num_queries):
            raise ValueError(
                f"priors: weights has concentration rows for {own[-2]} queries but there are {num_queries}; use 1 row (shared) or one for each query"
            )
    shape = broadcastable(**{name: initial.shape, f"prior on {name}": own})
    missing = mixture.axes[name] - len(shape) if name in mixture.axes and len(shape) else 0
    shape = torch.Size((1,) * max(0, missing) + tuple(shape))
    distribution = prior.expand(shape[: len(shape) - prior.event_dim])
    distribution = distribution.to_event(event - prior.event_dim)
    if isinstance(distribution, Dirichlet) and (allowed := _allowed(name, mixture)) is not None and not allowed.all():
        distribution = on_face(distribution, allowed)
    return Site(distribution, initial.expand(shape))


def _allowed(name: str, mixture: "Mixture") -> Tensor | None:
    """Which units (of a row) or components (of a unit) are not masked; None where there is no mask."""
    if name == "weights":
        return None if mixture.log_prior is None else mixture.log_prior > -torch.inf
    weights = getattr(mixture, name) if name == "component_weights" else None
    return None if weights is None else weights > 0


def _fits(family: type, support: constraints.Constraint) -> bool:
    if family is Gamma:
        return bool(getattr(support, "lower_bound", -1) >= 0)
    return (support is constraints.simplex) == (family is Dirichlet)


def _cast(name: str, prior: TorchDistribution, like: Tensor) -> TorchDistribution:
    """Scalars take the data's dtype; tensors of another dtype are refused, not promoted."""
    arguments = {key: getattr(prior, key) for key in CONJUGATE[name].arg_constraints}
    for key, x in arguments.items():
        if x.dim() and x.dtype != like.dtype:
            raise ValueError(
                f"priors: {key} of the prior on {name} is {x.dtype} but the mixture is {like.dtype}; convert it with .to({like.dtype})"
            )
    return CONJUGATE[name](**{key: x.to(like) for key, x in arguments.items()}, validate_args=False)


def require_modes(sites: Mapping[str, Site]) -> None:
    """Refuse priors whose density has no mode inside the support, so that MAP does not exist."""
    for name, (distribution, _) in sites.items():
        base = bare(distribution)
        if isinstance(base, Gamma | Dirichlet | FaceDirichlet) and (base.concentration < 1).any():
            raise ValueError(
                f"priors: the prior on {name} has a concentration below 1, so its density has no mode; raise it to 1 or more, or draw from the posterior instead: MCMC(NUTS(models.bayesian(mixture, priors)))"
            )


__all__ = ["FLAT", "MixturePriors", "Site", "event_dim", "require_modes"]
