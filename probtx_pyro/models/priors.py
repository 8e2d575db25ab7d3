"""Priors on the parameters of a formulation: any Pyro distribution,
laid out on the axes that the formulation's table names.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import lru_cache
from typing import Any, NamedTuple, cast

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import Dirichlet, ImproperUniform, TorchDistribution, Wishart
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.ops.gaussian import Gaussian
from torch import Tensor
from torch.distributions import Distribution, Independent, Transform, biject_to, constraints
from torch.distributions.transforms import _InverseTransform

from probtx_pyro.models._distributions import FaceDirichlet, PlainWishart
from probtx_pyro.models._supports import bounds, described, inner, is_declared, is_proper_when_flat, lies_inside
from probtx_pyro.models._validation import broadcastable, violated
from probtx_pyro.models.formulation import Formulation, Parameter

FLAT = ImproperUniform(constraints.real, (), ())
"""The flat prior, a density of 1 wherever its parameter may lie; it is improper."""
Prior = TorchDistribution | Callable[[], Distribution]
HOLDERS = Distribution | Transform | constraints.Constraint | torch.nn.Module | Gaussian  # what a prior is made of
#: conjugate families whose density has no mode where one of these arguments is below 1
PEAKED = dist.Beta | dist.Gamma | Dirichlet | FaceDirichlet
SHAPES = ("concentration", "concentration1", "concentration0")
MATRICES = {"covariance_matrix", "precision_matrix", "scale_tril"}
ALTERNATIVES = ({"probs", "logits"}, {"gate", "gate_logits"}, MATRICES)  # of one parameter
NEARLY_FLAT = {
    "Gamma": "Gamma(shape, rate) with a small rate",
    "Wishart": "Wishart(D + 1, matrix) with a large matrix",
}


class Site(NamedTuple):
    """A prior expanded to its parameter.

    distribution: its batch and event shape together are the parameter's shape.
    initial: the parameter's present value, expanded to that shape.
    """

    distribution: TorchDistribution
    initial: Tensor


def unchecked(prior: Any) -> Any:
    """Return a distribution that does not look whether numbers are on its support, nor do those within it."""
    other = copy(prior)
    vars(other).update({name: unchecked(x) for name, x in vars(prior).items() if isinstance(x, Distribution)})
    other._validate_args = False
    return other


def as_pyro(prior: Distribution) -> TorchDistribution:
    """Return a distribution of torch as its namesake in Pyro, with the same arguments.

    Raises
    ------
    ValueError
        A distribution that Pyro does not have, or that does not keep what it was made with.
    """
    if isinstance(prior, TorchDistributionMixin):
        return prior
    kind, arguments = type(prior).__name__, arguments_of(prior)
    family = _family(kind)
    if family is None:
        raise ValueError(f"priors: Pyro has no {kind}; give a distribution of pyro.distributions")
    if not arguments:
        raise ValueError(f"priors: a {kind} of torch does not keep its arguments; give pyro.distributions.{kind}")
    return _made(family, {key: as_pyro(x) if isinstance(x, Distribution) else x for key, x in arguments.items()})


def arguments_of(prior: Distribution) -> dict[str, Any]:
    """Return the arguments a distribution was made with; where it has several parametrisations, of the one given.

    None at all where it does not keep one that its constructor needs.
    """
    found: dict[str, Any] = {}
    own = vars(prior)
    for name, parameter in _parameters(cast(Any, type(prior))).items():
        if name in ("self", "validate_args") or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        same = next((names for names in ALTERNATIVES if name in names), {name})
        # the first is the one given, others were computed from it when they were read
        given = next((key for key in own if key in same), name)
        if given != name or same & found.keys():
            continue
        places = (name, f"_{name}", "base_dist" if name == "base_distribution" else name)
        held = (place for place in places if place in own)  # before what is computed, and before a method: `mask`
        place = next(held, next((place for place in places if hasattr(prior, place)), None))
        if place is not None:
            found[name] = getattr(prior, place)
        elif parameter.default is parameter.empty:
            return {}
    return found


@lru_cache
def _parameters(kind: Any) -> Mapping[str, inspect.Parameter]:
    """The arguments of a constructor."""
    return inspect.signature(kind.__init__).parameters


def _made(family: Any, arguments: Mapping[str, object]) -> Any:
    """A distribution made without its checks, from arguments that were those of a valid one."""
    known = "validate_args" in _parameters(family)
    return family(**arguments, **({"validate_args": False} if known else {}))


class Saved(NamedTuple):
    """A prior as a file keeps it: the name of its family in Pyro, and its arguments; `FLAT` has none."""

    family: str
    arguments: Mapping[str, object]


def saved(prior: object) -> object:
    """Return a distribution as tensors and text; what is no family of Pyro, or holds code, as it is."""
    if prior is FLAT:
        return Saved("FLAT", {})
    kind, family = type(prior), _family(type(prior).__name__)
    known = kind is family or (family is not None and not isinstance(prior, TorchDistributionMixin))  # or its namesake
    if not known or not isinstance(prior, Distribution):
        return prior
    arguments = {name: saved(x) if isinstance(x, Distribution) else x for name, x in arguments_of(prior).items()}
    plain = all(isinstance(x, Tensor | Saved | float | int | str | tuple | None) for x in arguments.values())
    return Saved(kind.__name__, arguments) if arguments and plain else prior


def restored(kept: object) -> object:
    """Return the prior that `saved` kept."""
    if not isinstance(kept, Saved):
        return kept
    if kept.family == "FLAT":
        return FLAT
    family = _family(kept.family)
    if family is None:
        raise ValueError(f"priors: Pyro has no family {kept.family!r}, which the file names; save it again")
    return _made(family, {name: restored(x) for name, x in kept.arguments.items()})


def _family(name: str) -> Any:
    kind = getattr(dist, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, TorchDistributionMixin) else None


def in_dtype(prior: Any, dtype: torch.dtype) -> Any:
    """Return a distribution with its floating point numbers converted; `FLAT` and functions as they are."""
    return _changed(as_pyro(prior), lambda x: x.to(dtype)) if isinstance(prior, Distribution) else prior


def _changed(x: Any, change: Callable[[Tensor], Tensor], floating: bool = False) -> Any:
    """Return what a distribution holds, all the way down, with floating point tensors changed;
    itself where nothing changes.

    Whole numbers given for a continuous argument (``floating``) are changed, too.
    """
    if isinstance(x, Tensor):
        return change(x) if floating or x.is_floating_point() else x
    if isinstance(x, list | tuple) and type(x) in (list, tuple):
        new = type(x)(_changed(item, change) for item in x)
        return x if all(a is b for a, b in zip(x, new, strict=True)) else new
    if not isinstance(x, HOLDERS):
        return x
    if isinstance(x, Distribution) and (given := arguments_of(x)):  # made anew, so that what it computes is, too
        rows = {key: row for key, row in x.arg_constraints.items() if not row.is_discrete}
        arguments = {key: _changed(value, change, key in rows) for key, value in given.items()}
        return x if all(arguments[key] is value for key, value in given.items()) else _made(type(x), arguments)
    # a transform and its inverse hold each other, and a transform may hold its last numbers
    old: dict[str, Any] = {key: None for key in ("_inv",) if key in vars(x) and not isinstance(x, _InverseTransform)}
    old |= {"_cached_x_y": (None, None)} if "_cached_x_y" in vars(x) else {}
    kept = {key: value for key, value in vars(x).items() if key not in old}
    fields = {key: _changed(value, change) for key, value in kept.items()}
    if all(fields[key] is value for key, value in kept.items()):
        return x
    made = object.__new__(type(x))
    vars(made).update({key: old.get(key, fields.get(key)) for key in vars(x)})
    return made


def require_prior(formulation: Formulation, name: str, prior: object) -> None:
    """Refuse a prior that can never fit: a name that is unknown, a parameter that is not there,
    something that is no prior, a support.
    """
    formulation.check_prior(name)
    if isinstance(prior, type) or (not isinstance(prior, Distribution) and not callable(prior)):
        kind = "class" if isinstance(prior, type) else type(prior).__name__
        raise ValueError(f"priors: {name}={prior!r} is a {kind}; give a Pyro distribution, models.FLAT, or a function")
    if isinstance(prior, Distribution):
        own, like = _supported(formulation, name, prior), formulation.parameter(name)
        assert like is not None  # by `check_prior`
        if not is_conjugate(formulation, name, prior) and not isinstance(own, ImproperUniform):
            _require_density(name, _cast(name, own, like), like)


def _require_density(name: str, prior: TorchDistribution, like: Tensor) -> None:
    """Refuse a family that cannot say its density in the dtype of the parameter, or not be laid out:
    Pyro has some of each.
    """
    try:
        to_support = biject_to(cast(constraints.Constraint, prior.support))
        point = to_support(like.new_zeros(to_support.inverse_shape(prior.event_shape)))
        with pyro.validation_enabled(False):
            prior.expand(prior.batch_shape).log_prob(point)
    except (NotImplementedError, RuntimeError, TypeError) as error:
        kind = type(prior).__name__
        raise ValueError(f"priors: {kind} on {name} has no density of {like.dtype}; give another family") from error


def _supported(formulation: Formulation, name: str, prior: Distribution) -> TorchDistribution:
    """The prior as Pyro's, without ``to_event``;
    refused where it has no density inside the support of its parameter.
    """
    row, own = formulation.row(name), bare(as_pyro(prior))
    (words, family), kind = described(row.support), type(own).__name__
    masked = isinstance(own, dist.MaskedDistribution) and not torch.as_tensor(own._mask).all()
    # likelihoods of a few points have no maximum in positive numbers and positive definite matrices
    if family in NEARLY_FLAT and (masked or isinstance(own, ImproperUniform)):
        raise ValueError(f"priors: the likelihood is unbounded in {name}, so give it {NEARLY_FLAT[family]}")
    if own is FLAT or is_conjugate(formulation, name, prior):  # of the same set, or the table had been refused
        return own
    try:
        support = own.support
    except NotImplementedError:
        support = None
    for part in _parts(own):
        if isinstance(part, dist.Delta | dist.Empirical):
            point = f"{type(part).__name__} on {name} has no density"
            raise ValueError(f"priors: {point}; to hold {name} fixed leave out its prior")
        if not is_declared(part):
            domain = part.transforms[0].domain
            raise ValueError(f"priors: the prior on {name} is declared wider than it is; begin it on all of {domain}")
    if support is None or not lies_inside(support, row.support):
        fitting = row.conjugate.__name__ if row.conjugate else family
        needs = f"{name} needs a distribution on {words}" + (f", such as {fitting}" if fitting else "")
        raise ValueError(f"priors: {kind} on {name} has the wrong support; {needs}")
    mixed = [part.component_distribution for part in _parts(own) if hasattr(part, "component_distribution")]
    if any(isinstance(x, Tensor) for part in mixed for x in bounds(part.support) or ()):
        raise ValueError(f"priors: components of the mixture on {name} have bounds of their own; give them one support")
    return own


def _parts(prior: object) -> Iterator[Any]:
    """A distribution, those that it is made of, and its transforms."""
    yield prior
    for x in arguments_of(prior).values() if isinstance(prior, Distribution) else ():
        for part in x if isinstance(x, list | tuple) else (x,):
            if isinstance(part, Distribution | Transform):
                yield from _parts(part)


def bare(prior: TorchDistribution) -> TorchDistribution:
    """Return the distribution inside ``Independent``."""
    while isinstance(prior, Independent):
        prior = prior.base_dist
    return prior


def is_conjugate(formulation: Formulation, name: str, prior: object) -> bool:
    """Return True if the prior has a closed-form conditional: the family of the table, or flat."""
    family = formulation.row(name).conjugate
    return family is not None and (
        prior is FLAT or (isinstance(prior, Distribution) and isinstance(bare(as_pyro(prior)), family))
    )


def lay_out(formulation: Formulation, name: str, prior: object, batch: torch.Size, sizes: Mapping[str, int]) -> Site:
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
    prior = _cast(name, _laid(row, _supported(formulation, name, prior), initial), initial)
    if type(prior) is Wishart:
        prior = PlainWishart(**arguments_of(prior), validate_args=False)
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
        distribution = FaceDirichlet(distribution.concentration, allowed)
    return Site(distribution, initial.expand(shape))


def _correlated(name: str, prior: TorchDistribution, initial: Tensor, own: int) -> Site:
    """A prior that ties units together: one distribution over the whole parameter."""
    shape = prior.batch_shape + prior.event_shape
    fits = len(shape) == own and all(n == m or m == 1 for n, m in zip(shape[::-1], initial.shape[::-1], strict=False))
    if prior.batch_shape or initial.dim() > own or not fits:
        raise ValueError(
            f"priors: the prior on {name} has event shape {tuple(prior.event_shape)}, more than the axes of one unit; "
            f"across units it must have the shape of {name}, {tuple(initial.shape)}, as one event"
        )
    return Site(prior, initial.expand(shape))


def _rows(name: str, shape: torch.Size, initial: Tensor, num_queries: int) -> torch.Size:
    """The shape of a prior whose rows are queries, or one row that they share."""
    shape = shape if len(shape) > 1 else torch.Size((1, *shape))
    if shape[-2] == 1 and initial.shape[-2] != 1:
        raise ValueError(f"priors: {name} are shared but log_prior has rows; give concentration of shape (..., Q, U)")
    if shape[-2] not in (1, num_queries):
        raise ValueError(f"priors: {name} has concentration rows for {shape[-2]} of {num_queries} queries; use 1 row")
    return shape


def _laid(row: Parameter, prior: TorchDistribution, like: Tensor) -> TorchDistribution:
    """The flat prior as the distribution that it is on the support of its parameter; every other prior as it is."""
    if prior is not FLAT or isinstance(inner(row.support), type(constraints.real)):
        return prior
    if isinstance(inner(row.support), type(constraints.simplex)):
        return Dirichlet(torch.ones_like(like))
    if not is_proper_when_flat(row.support):
        return ImproperUniform(row.support, (), like.shape[like.dim() - row.support.event_dim :])
    low, high = (torch.as_tensor(x, dtype=like.dtype, device=like.device) for x in bounds(row.support) or ())
    return dist.Beta(like.new_ones(()), like.new_ones(())) if row.conjugate is dist.Beta else dist.Uniform(low, high)


def _cast(name: str, prior: TorchDistribution, like: Tensor) -> TorchDistribution:
    """The prior in the dtype of its parameter, and on its device: widened, which is exact;
    only single numbers are narrowed.
    """
    for part in _parts(prior):
        fields = (isinstance(part, Distribution) and arguments_of(part)) or vars(part)
        for key, x in fields.items():
            if not isinstance(x, Tensor) or not x.is_floating_point() or _is_one_number(x):
                continue
            if torch.promote_types(x.dtype, like.dtype) != like.dtype:
                kinds = f"{x.dtype} but {name} is {like.dtype}, which would lose digits"
                raise ValueError(f"priors: {key} of the prior on {name} is {kinds}; convert it with .to({like.dtype})")
    return _changed(prior, lambda x: x.to(like))


def _is_one_number(x: Tensor) -> bool:
    """True of a number, however expanded."""
    return all(size == 1 or stride == 0 for size, stride in zip(x.shape, x.stride(), strict=True))


def without_mode(sites: Mapping[str, Site]) -> str | None:
    """Return what to say of the first prior whose density has no mode inside the support; None where all have one."""
    for name, (distribution, _) in sites.items():
        base = bare(distribution)
        shapes = [getattr(base, key) for key in SHAPES if isinstance(base, PEAKED) and hasattr(base, key)]
        if any(violated(~(shape >= 1)) for shape in shapes):
            return f"the prior on {name} has a concentration below 1, so no mode; raise it, or draw with inference.nuts"
        if isinstance(base, Wishart) and violated(~(base.df >= base.event_shape[-1] + 1)):
            fewer = f"fewer than D + 1 = {base.event_shape[-1] + 1} degrees of freedom"
            return f"the prior on {name} has {fewer}, so no mode; raise df, or draw with inference.gibbs"
    return None


def require_modes(sites: Mapping[str, Site]) -> None:
    """Refuse priors whose density has no mode inside the support, so that MAP does not exist."""
    if (wrong := without_mode(sites)) is not None:
        raise ValueError(f"priors: {wrong}")
