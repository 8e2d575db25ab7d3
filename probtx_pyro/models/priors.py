"""Priors on the parameters of a formulation: any Pyro distribution, laid out on the axes that the formulation's table names."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from pyro.distributions import Dirichlet, ImproperUniform, TorchDistribution, Wishart
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    MixtureSameFamily,
    TransformedDistribution,
    biject_to,
    constraints,
)

from probtx_pyro.models._distributions import FaceDirichlet, PlainWishart, on_face
from probtx_pyro.models._positive_definite import CholeskyCoordinates
from probtx_pyro.models._validation import broadcastable, violated
from probtx_pyro.models.formulation import Formulation

FLAT = ImproperUniform(constraints.real, (), ())
"""The flat prior, a density of 1 wherever its parameter may lie; it is improper."""
Prior = TorchDistribution | Callable[[], Distribution]
ALTERNATIVES = ({"probs", "logits"}, {"covariance_matrix", "precision_matrix", "scale_tril"})  # of one parameter
_NEEDED = {
    "real": "real vectors", "positive": "positive numbers", "simplex": "the simplex", "positive definite": "positive definite matrices",
}  # fmt: skip


@biject_to.register(constraints.MixtureSameFamilyConstraint)
def _coordinates_of_a_mixture(support: Any) -> Any:
    """A mixture of one family is unconstrained as its components are."""
    return biject_to(support.base_constraint)


@biject_to.register(constraints.positive_definite)
def _coordinates_of_a_matrix(support: Any) -> CholeskyCoordinates:
    """Coordinates of a positive definite matrix, which torch can make but not take apart."""
    return CholeskyCoordinates()


class Site(NamedTuple):
    """A prior expanded to its parameter.

    distribution: its batch and event shape together are the parameter's shape.
    initial: the parameter's present value, expanded to that shape.
    """

    distribution: TorchDistribution
    initial: Tensor


def as_pyro(prior: Any) -> TorchDistribution:
    """Return a distribution of torch as its namesake in Pyro, with the same arguments.

    Raises
    ------
    ValueError
        A distribution that Pyro does not have.
    """
    if isinstance(prior, TorchDistributionMixin):
        return prior
    kind = type(prior).__name__
    if isinstance(prior, Independent):
        return as_pyro(prior.base_dist).to_event(prior.reinterpreted_batch_ndims)
    if isinstance(prior, TransformedDistribution) and type(prior) is TransformedDistribution:
        return dist.TransformedDistribution(as_pyro(prior.base_dist), prior.transforms)
    if isinstance(prior, MixtureSameFamily):
        return dist.MixtureSameFamily(as_pyro(prior.mixture_distribution), as_pyro(prior.component_distribution))
    namesake = getattr(dist, kind, None)
    if namesake is None:
        raise ValueError(f"priors: Pyro has no {kind}; give a distribution of pyro.distributions")
    arguments = arguments_of(prior)
    try:
        return namesake(**arguments, validate_args=False)
    except TypeError:
        raise ValueError(
            f"priors: Pyro's {kind} cannot be made from {', '.join(arguments)} alone; give pyro.distributions.{kind}"
        ) from None


def arguments_of(prior: Distribution) -> dict[str, Any]:
    """Return the arguments a distribution was made with; where it has several parametrisations, of the one given."""
    names = [name for name in vars(prior) if name in prior.arg_constraints] or list(prior.arg_constraints)
    for same in ALTERNATIVES:  # the first is the one given, others were computed from it when they were read
        names = [name for i, name in enumerate(names) if name not in same or not same & set(names[:i])]
    return {name: getattr(prior, name) for name in names}


class Saved(NamedTuple):
    """A prior as a file keeps it: the name of its family in Pyro, and its arguments; `FLAT` has none."""

    family: str
    arguments: Mapping[str, Any]


def saved(prior: Any) -> Any:
    """Return a distribution as tensors and text; what is no family of Pyro, such as a function, as it is."""
    if prior is FLAT:
        return Saved("FLAT", {})
    if isinstance(prior, Independent):
        inner = {"base_distribution": saved(prior.base_dist)}
        return Saved("Independent", {**inner, "reinterpreted_batch_ndims": prior.reinterpreted_batch_ndims})
    if isinstance(prior, MixtureSameFamily):
        parts = {"mixture": prior.mixture_distribution, "component": prior.component_distribution}
        return Saved("MixtureSameFamily", {f"{name}_distribution": saved(part) for name, part in parts.items()})
    kind, family = type(prior), _family(type(prior).__name__)
    known = family is not None and (
        kind is family or not isinstance(prior, TorchDistributionMixin)
    )  # of torch: its namesake
    arguments = arguments_of(prior) if known and isinstance(prior, Distribution) else {}
    return Saved(kind.__name__, arguments) if arguments else prior


def restored(kept: Any) -> Any:
    """Return the prior that `saved` kept."""
    if not isinstance(kept, Saved):
        return kept
    if kept.family == "FLAT":
        return FLAT
    family = _family(kept.family)
    if family is None:
        raise ValueError(
            f"priors: Pyro has no family {kept.family!r}, which the file names; save it again with this Pyro"
        )
    return family(**{name: restored(x) for name, x in kept.arguments.items()}, validate_args=False)


def _family(name: str) -> Any:
    kind = getattr(dist, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, TorchDistributionMixin) else None


def in_dtype(prior: Any, dtype: torch.dtype) -> Any:
    """Return a distribution with its floating point arguments converted; `FLAT` and functions as they are."""
    if prior is FLAT or not isinstance(prior, Distribution):
        return prior
    if isinstance(prior, Independent):
        return as_pyro(in_dtype(prior.base_dist, dtype)).to_event(prior.reinterpreted_batch_ndims)
    prior = as_pyro(prior)
    arguments = {key: x.to(dtype) if x.is_floating_point() else x for key, x in arguments_of(prior).items()}
    return type(prior)(**arguments, validate_args=False) if arguments else prior


def require_prior(formulation: Formulation, name: str, prior: Any) -> None:
    """Refuse a prior that can never fit: a name that is unknown, a parameter that is not there, something that is no prior."""
    row = formulation.row(name)
    formulation.check_prior(name)
    if isinstance(prior, type) or (not isinstance(prior, Distribution) and not callable(prior)):
        raise ValueError(
            f"priors: {name}={prior!r} is a {'class' if isinstance(prior, type) else type(prior).__name__}; give a Pyro distribution, models.FLAT, or a function that samples hyperparameters and returns a distribution"
        )
    if prior is FLAT and _kind(row.support).startswith("positive"):
        near = (
            "Wishart(D + 1, matrix) with a large matrix"
            if row.support is constraints.positive_definite
            else "Gamma(shape, rate) with a small rate"
        )
        raise ValueError(
            f"priors: the likelihood is unbounded in {name} (a unit on a single query), or tells it up to a factor only, so it cannot be flat; give it {near}"
        )


def bare(prior: TorchDistribution) -> TorchDistribution:
    """Return the distribution inside ``Independent``."""
    while isinstance(prior, Independent):
        prior = prior.base_dist
    return prior


def is_conjugate(formulation: Formulation, name: str, prior: Any) -> bool:
    """Return True if the prior has a closed-form conditional: the family of the table, or flat."""
    family = formulation.row(name).conjugate
    return family is not None and (
        prior is FLAT or (isinstance(prior, Distribution) and isinstance(bare(as_pyro(prior)), family))
    )


def lay_out(formulation: Formulation, name: str, prior: Any, batch: torch.Size, sizes: Mapping[str, int]) -> Site:
    """Return a prior expanded to its parameter, for problems of shape ``batch``.

    Parameters
    ----------
    formulation, name, prior
        The parameter of the formulation, and a distribution over it.
    batch
        Leading axes of the problem.
    sizes
        Entries of the axes of the data, such as ``{"query": Q}``.

    Raises
    ------
    ValueError
        A support, shape or dtype that does not fit the parameter.
    """
    row, initial = formulation.row(name), formulation.parameter(name, batch)
    assert initial is not None  # by `require_prior`
    if not isinstance(prior, Distribution):
        raise ValueError(f"priors: the function for {name} returned a {type(prior).__name__}, not a distribution")
    own = len(row.names)
    event = min(row.event_rank, initial.dim())
    prior = bare(as_pyro(prior))
    if prior is FLAT and _kind(row.support) == "simplex":
        prior = Dirichlet(torch.ones_like(initial))
    prior = _cast(name, prior, initial)
    if type(prior) is Wishart:
        prior = PlainWishart(**arguments_of(prior), validate_args=False)
    if not _fits(_kind(row.support), prior):
        raise ValueError(
            f"priors: {type(prior).__name__} on {name} has the wrong support; {name} needs a distribution on {_NEEDED[_kind(row.support)]}"
            + (f", such as {row.conjugate.__name__}" if row.conjugate else "")
        )
    if isinstance(prior, MixtureSameFamily) and not _same_bounds(prior.component_distribution.support):
        raise ValueError(
            f"priors: the components of the mixture on {name} have bounds of their own, between which no gradient leads; give components with one support"
        )
    if prior.event_dim > event:
        return _correlated(name, prior, initial, own)
    shape = prior.batch_shape + prior.event_shape
    if row.names[:1] == ("query",):
        shape = _rows(name, shape, initial, sizes["query"])
    shape = broadcastable(**{name: initial.shape, f"prior on {name}": shape})
    shape = torch.Size((1,) * max(0, own - len(shape) if len(shape) else 0) + tuple(shape))
    distribution = prior.expand(shape[: len(shape) - prior.event_dim])
    distribution = distribution.to_event(event - prior.event_dim)
    allowed = formulation.allowed(name)
    if isinstance(distribution, Dirichlet) and allowed is not None and not bool(allowed.all()):
        distribution = on_face(distribution, allowed)
    return Site(distribution, initial.expand(shape))


def _correlated(name: str, prior: TorchDistribution, initial: Tensor, own: int) -> Site:
    """A prior that ties units together: one distribution over the whole parameter."""
    shape = prior.batch_shape + prior.event_shape
    fits = len(shape) == own and all(n == m or m == 1 for n, m in zip(shape[::-1], initial.shape[::-1], strict=False))
    if prior.batch_shape or initial.dim() > own or not fits:
        raise ValueError(
            f"priors: {type(prior).__name__} on {name} has event shape {tuple(prior.event_shape)}, more than the axes of one unit; a prior across units must have the shape of {name}, {tuple(initial.shape)}, as one event, and the parameter no leading axes"
        )
    return Site(prior, initial.expand(shape))


def _rows(name: str, shape: torch.Size, initial: Tensor, num_queries: int) -> torch.Size:
    """The shape of a prior whose rows are queries, or one row that they share."""
    shape = shape if len(shape) > 1 else torch.Size((1, *shape))
    if shape[-2] == 1 and initial.shape[-2] != 1:
        raise ValueError(
            f"priors: {name} shared by the queries have no closed form or meaning where log_prior differs between queries; give {name} a concentration of shape (..., Q, U)"
        )
    if shape[-2] not in (1, num_queries):
        raise ValueError(
            f"priors: {name} has concentration rows for {shape[-2]} queries but there are {num_queries}; use 1 row (shared) or one for each query"
        )
    return shape


def _kind(support: Any) -> str:
    """The kind of set that a parameter lies in, a key of `_NEEDED`."""
    if support is constraints.simplex:
        return "simplex"
    if support is constraints.positive_definite:
        return "positive definite"
    return "positive" if getattr(support, "lower_bound", None) == 0 else "real"


def _fits(kind: str, prior: TorchDistribution) -> bool:
    support: Any = prior.support
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    if support.is_discrete:
        return False
    if kind == "positive":
        return bool((torch.as_tensor(getattr(support, "lower_bound", -1)) >= 0).all())
    if kind == "positive definite":
        return support is constraints.positive_definite
    return (support is constraints.simplex) == (kind == "simplex")


def _same_bounds(support: Any) -> bool:
    """True if all components of a mixture have the same bounds, which are then numbers."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return not any(isinstance(getattr(support, bound, None), Tensor) for bound in ("lower_bound", "upper_bound"))


def _cast(name: str, prior: TorchDistribution, like: Tensor) -> TorchDistribution:
    """Numbers take the dtype of the parameter; tensors of another dtype are refused, not promoted."""
    arguments = arguments_of(prior)
    for key, x in arguments.items():
        if isinstance(x, Tensor) and x.dim() and x.is_floating_point() and x.dtype != like.dtype:
            raise ValueError(
                f"priors: {key} of the prior on {name} is {x.dtype} but {name} is {like.dtype}; convert it with .to({like.dtype})"
            )
    tensors = [x for x in arguments.values() if isinstance(x, Tensor)]
    if len(tensors) < len(arguments) or all(x.dtype == like.dtype and x.device == like.device for x in tensors):
        return prior
    return type(prior)(**{key: x.to(like) for key, x in arguments.items()}, validate_args=False)


def require_modes(sites: Mapping[str, Site]) -> None:
    """Refuse priors whose density has no mode inside the support, so that MAP does not exist."""
    for name, (distribution, _) in sites.items():
        base = bare(distribution)
        if isinstance(base, dist.Gamma | Dirichlet | FaceDirichlet) and violated(base.concentration < 1):
            raise ValueError(
                f"priors: the prior on {name} has a concentration below 1, so its density has no mode; raise it to 1 or more, or draw from the posterior instead with inference.nuts"
            )
        if isinstance(base, Wishart) and violated(base.df < base.event_shape[-1] + 1):
            raise ValueError(
                f"priors: the prior on {name} has fewer than D + 1 = {base.event_shape[-1] + 1} degrees of freedom, so its density has no mode; raise df, or draw from the posterior instead with inference.gibbs"
            )
