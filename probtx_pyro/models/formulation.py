"""The contract of the library: tables of parameters and data, and the methods that every formulation offers or refuses.

Inference and results read these tables and call these methods; they know no class. A formulation is an immutable value
of tensors. Leading axes of its tensors are independent problems (batch, head) and broadcast.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol, Self, runtime_checkable

import torch
from pyro.distributions import Beta, Dirichlet, Gamma, Normal, TorchDistribution, Wishart
from torch import Tensor
from torch.distributions.constraints import Constraint, simplex
from torch.serialization import add_safe_globals

from probtx_pyro._brief import in_brief
from probtx_pyro.models import _validation as check
from probtx_pyro.models._plates import Plates, plate_names
from probtx_pyro.models._supports import inner, lies_inside

Data = tuple[Any, ...]  # tensors or None, in the order of the formulation's ``DATA``


@dataclass(frozen=True)
class Parameter:
    """A row of a formulation's table of parameters.

    Parameters
    ----------
    axes
        Names of its own axes, those after the leading ones: ``"unit feature"``. A parameter with fewer axes is shared
        along those it lacks. ``""`` is one number for each problem.
    support
        Where a value of it lies; a simplex is over the last axis.
    conjugate
        The family of priors under which `Formulation.conditional` is exact, one of `CONJUGATE`; None where there is
        none.
    field
        The constructor argument that holds it, where that has another name; one that begins with ``log_`` holds its
        logarithm.
    logarithmic
        True if units are compared by the logarithm of it, as of a precision.
    plate
        True if the first axis is a plate of the Pyro program; the others belong to the event. False for one event.
    mask
        The value of an entry that is masked, which a prior could not keep; None where there are none.
    """

    axes: str
    support: Constraint
    conjugate: type | None = None
    field: str | None = None
    logarithmic: bool = False
    plate: bool = True
    mask: float | None = None

    @property
    def event_rank(self) -> int:
        """Number of axes that belong to the event."""
        return max(0, len(self.names) - self.plate)

    @property
    def names(self) -> tuple[str, ...]:
        """The axes, one by one."""
        return tuple(self.axes.split())


@dataclass(frozen=True)
class Datum:
    """A row of a formulation's table of data, in the order in which its methods take them.

    Parameters
    ----------
    axes
        Names of its own axes: ``"query feature"``.
    role
        ``"explained"``: the model is a density of it; ``"given"``: the model is conditional on it; ``"latent"``: latent
        choices, so far as they are known; ``"mask"``: says which of the explained or latent ones are known;
        ``"weights"``: how often each observation counts, 0 for an absent one.
    integer
        True if its numbers are integers.
    """

    axes: str
    role: str = "explained"
    integer: bool = False


class NormalTerms(NamedTuple):
    """A likelihood ``exp(-precision x²/2 + pull x)`` of ``x = parameter - center``, for a Normal prior."""

    precision: Tensor
    pull: Tensor
    center: Tensor | float = 0.0


class GammaTerms(NamedTuple):
    """A likelihood ``x^shape exp(-rate x)``, for a Gamma prior: what observations add to its shape and rate."""

    shape: Tensor
    rate: Tensor


class CorrelatedTerms(NamedTuple):
    """A likelihood ``exp(-x'Px/2 + pull'x)`` of ``x = parameter - center``, P (..., D, D), for a Normal prior."""

    precision: Tensor
    pull: Tensor
    center: Tensor | float = 0.0


class DirichletTerms(NamedTuple):
    """A likelihood ``Π_k x_k^counts_k``, for a Dirichlet prior."""

    counts: Tensor


class WishartTerms(NamedTuple):
    """A likelihood ``|Λ|^(degrees/2) exp(-½ tr(Λ R))``, for a Wishart prior;
    R in the coordinates of a root L: ``scatter = L'RL``.
    """

    degrees: Tensor
    scatter: Tensor
    root: Tensor


class BetaTerms(NamedTuple):
    """A likelihood ``x^successes (1 - x)^failures``, for a Beta prior."""

    successes: Tensor
    failures: Tensor


Terms = NormalTerms | CorrelatedTerms | GammaTerms | DirichletTerms | WishartTerms | BetaTerms
CONJUGATE: Mapping[type, tuple[type, ...]] = {
    Normal: (NormalTerms, CorrelatedTerms),
    Gamma: (GammaTerms,),
    Dirichlet: (DirichletTerms,),
    Wishart: (WishartTerms,),
    Beta: (BetaTerms,),
}
"""The families of priors that have closed-form conditionals, all there are,
each with what `Formulation.conditional` returns for it."""


class SufficientStatistics(Protocol):
    """Sums over the observations, expected or of drawn latents: all that `Formulation.conditional` reads of data."""

    @property
    def log_evidence(self) -> Tensor:
        """Log density of each observation at the parameters that the step was made with, (..., *observations)."""

    def reduced(self, total: Callable[..., tuple[Tensor, ...]]) -> Self:
        """The same with the sums added up over processes; ``total`` adds up each of the tensors it is given."""


class Latents(Protocol):
    """Latent choices of a formulation given data, as Gibbs sampling and annealing draw them.

    A state is a mapping of tensors (chain, *problems, ...), by the names of Pyro's sites; those that have closed
    conditionals of all others may be absent until `complete`. β between 0 and 1 tempers the density: at 0 it can be
    drawn from exactly, 1 is the posterior.
    """

    def start(self, num_chains: int, generator: torch.Generator) -> dict[str, Tensor]:
        """An exact draw at β = 0 for every chain."""

    def sweep(self, state: Mapping[str, Tensor], generator: torch.Generator, beta: float = 1.0) -> dict[str, Tensor]:
        """The next state of every chain, by a step that leaves the density at β as it is."""

    def log_density(self, state: Mapping[str, Tensor], *betas: float) -> Tensor:
        """The unnormalised log density of every problem at some β, (len(betas), chain, *problems)."""

    def log_partition(self) -> Tensor:
        """The log normaliser at β = 0, (*problems)."""

    def complete(self, state: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The state with the choices drawn that sweeps sum out."""

    def attention(self, state: Mapping[str, Tensor]) -> Tensor:
        """The posterior of the assignment given the state, (chain, *problems, ...)."""


@runtime_checkable
class Field(Protocol):
    """A distribution of a formulation's latent choices that iterations have found: its marginals,
    and how they were found.

    objective: at the start and after every iteration, (iteration, *problems), or None. converged, num_steps:
    (*problems).
    """

    objective: Tensor | None
    converged: Tensor
    num_steps: Tensor

    @property
    def formulation(self) -> "Formulation":
        """The formulation whose latent choices these are."""

    def marginals(self) -> dict[str, Tensor]:
        """Marginals, by names of the formulation's ``RESULTS``."""


class Formulation:
    """Base of all formulations: immutable values of tensors, with closed forms and Pyro programs.

    A subclass is a frozen dataclass with the two tables and those of the methods that it can serve. What it cannot
    serve raises `NotImplementedError` in one line that says what to use instead, from the table ``INSTEAD``.
    ``torch.load(weights_only=True)`` reads what ``torch.save`` wrote of it, once its class has been imported.

    Of numbers in half precision, answers come back in their dtype, and log densities in float32, which keeps their
    digits; so does the attention of a mixture, made of them.
    """

    PARAMETERS: ClassVar[Mapping[str, Parameter]]
    DATA: ClassVar[Mapping[str, Datum]]
    RESULTS: ClassVar[Mapping[str, str]] = {}  # axes of what the methods return
    AT_DRAWS: ClassVar[tuple[str, ...]] = ("attention",)  # methods that converted draws of parameters are given by
    LATENTS: ClassVar[
        tuple[str, ...]
    ] = ()  # sites of `model` that are latents of observations and cannot be enumerated: no parameters
    PREQUENTIAL: ClassVar[bool] = False  # whether an observation's evidence is given those before it, dependent on them
    GUIDED_BY_ATTENTION: ClassVar[bool] = False  # whether `guide` takes another attention than the exact one
    INSTEAD: ClassVar[Mapping[str, str]] = {}  # by name of a method that is missing: what to use in its place
    #: by name, what makes it a formulation that is a density of data; none where it is one already, or cannot be
    LIKELIHOODS: ClassVar[dict[str, Callable[[Any], "Formulation"]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        add_safe_globals([cls])
        for name, row in getattr(cls, "PARAMETERS", {}).items():
            _require_family(cls, name, row)

    def __repr__(self) -> str:
        return in_brief(self)

    # -- parameters ----------------------------------------------------------------------------------------------------

    def replace(self, **changes: Any) -> Self:
        """The formulation with some constructor arguments changed, validated."""
        return type(self)(**{**vars(self), **changes})

    def with_parameters(self, parameters: Mapping[str, Tensor | None]) -> Self:
        """The formulation with some parameters changed, by the names of its table or its fields; not validated."""
        fields = {name: row.field or name for name, row in self.PARAMETERS.items()}
        return check.unchecked(
            type(self), **{**vars(self), **{fields.get(name, name): x for name, x in parameters.items()}}
        )

    def held(self, name: str) -> Tensor | None:
        """The tensor that a parameter is kept in, with the axes of its row (those shared of size 1, or absent);
        None where it is not there.
        """
        return getattr(self, self.row(name).field or name)

    def parameter(self, name: str, batch: Sequence[int] = ()) -> Tensor | None:
        """The present value of a parameter; one that stands for a default is made for problems of shape ``batch``."""
        return self.held(name)

    def parameters(self) -> dict[str, Tensor]:
        """All parameters that the formulation has, by name."""
        return {name: x for name in self.PARAMETERS if (x := self.parameter(name)) is not None}

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move and convert every tensor, as ``torch.Tensor.to``; those of truths and of integers keep their dtype.

        Rows on the simplex that change their dtype are normalised anew, so that they are rows on the simplex in that
        dtype.
        """
        fields = {k: x for k, x in vars(self).items() if hasattr(x, "to") and not _keeps_dtype(x)}
        moved = {k: x.to(*args, **kwargs) for k, x in fields.items()}
        device = next(x.device for x in moved.values() if isinstance(x, Tensor))
        masks = {k: x.to(device) for k, x in vars(self).items() if isinstance(x, Tensor) and k not in moved}
        for name in self.PARAMETERS:
            row = self.row(name)
            field = row.field or name
            if isinstance(inner(row.support), type(simplex)) and moved.get(field) is not None:
                if moved[field].dtype != fields[field].dtype:
                    moved[field] = _normalized(moved[field], field.startswith("log_"))
        return check.unchecked(type(self), **{**vars(self), **moved, **masks})

    def check_prior(self, name: str) -> None:
        """Refuse a prior on a parameter that the formulation does not have, or some of which is masked."""
        row, present = self.row(name), self.parameter(name)
        if present is None:
            kind = type(self).__name__
            raise ValueError(f"priors: there is a prior on {name}, but the {kind} has no {name}; give it {name}")
        if row.mask is not None and bool((present == row.mask).any()):
            raise ValueError(f"priors: some of {name} are {row.mask:g}, a mask that no prior keeps; leave them out")

    def allowed(self, name: str) -> Tensor | None:
        """Boolean entries of a parameter on the simplex that are not masked; None where there is no mask."""
        return None

    def traits(self) -> dict[str, tuple[str, Tensor]]:
        """Further tensors that distinguish units,
        each with the names of its own axes: ``{"the mask": ("unit", mask)}``.
        """
        return {}

    @property
    def batch_shape(self) -> torch.Size:
        """The problems: the leading axes of all parameters, broadcast."""
        leading = {}
        for name in self.PARAMETERS:
            x, row = self.held(name), self.row(name)
            if x is not None and x.dim() > len(row.names):
                leading[row.field or name] = x.shape[: x.dim() - len(row.names)]
        return check.broadcastable(**leading)

    def row(self, name: str) -> Parameter:
        """The row of a parameter, as it is in this value; an error with the nearest name where there is none."""
        if name not in self.PARAMETERS:
            kind = type(self).__name__
            raise ValueError(f"priors: a {kind} has no parameter {name!r}; {nearest(name, self.PARAMETERS)}")
        return self.PARAMETERS[name]

    @classmethod
    def problem_axes(cls, rank: int) -> list[str]:
        """Names of ``rank`` leading axes, as plates and results call them."""
        return plate_names(rank)

    @property
    def evidence_kind(self) -> str:
        """Name of what priors and `log_evidence` make together:
        another word than "posterior" where that is no log density of data.
        """
        return "posterior"

    # -- axes ----------------------------------------------------------------------------------------------------------

    def axes(self, name: str) -> tuple[str, ...]:
        """Names of the own axes of a parameter, of a datum, or of what the method ``name`` returns."""
        if name in self.PARAMETERS:
            return self.row(name).names
        return tuple((self.DATA[name].axes if name in self.DATA else self.RESULTS[name]).split())

    def sizes(self, *data: Tensor | None) -> dict[str, int]:
        """Number of entries of each axis, as far as parameters and data tell."""
        found: dict[str, int] = {}
        tensors = {name: self.held(name) for name in self.PARAMETERS}
        tensors |= dict(zip(self.DATA, data, strict=False))
        for name, x in tensors.items():
            if x is not None:
                axes = self.axes(name)[-x.dim() or len(self.axes(name)) :]
                for axis, size in zip(axes, x.shape[x.dim() - len(axes) :], strict=True):
                    found[axis] = max(size, found.get(axis, 1))
        return found

    # -- data ----------------------------------------------------------------------------------------------------------

    @classmethod
    def bind(cls, *data: object, **named: object) -> Data:
        """The data in the order of the table, None for what is not given.

        Raises
        ------
        ValueError
            More data than the table has, a name that it lacks, or a datum given twice.
        """
        names = list(cls.DATA)
        if len(data) > len(names):
            raise ValueError(f"data: {len(data)} are given, but a {cls.__name__} takes {', '.join(names)}")
        given = dict(zip(names, data, strict=False))
        for name, x in named.items():
            if name not in cls.DATA:
                no = f"{name} is no option of the call, whose help() lists them, and no datum of a {cls.__name__}"
                raise ValueError(f"{no}; {nearest(name, names)}")
            if name in given:
                raise ValueError(f"{name} is given twice, by place and by name; give it once")
            given[name] = x
        return tuple(given.get(name) for name in names)

    @classmethod
    def datum(cls, data: Data, role: str) -> Any:
        """The first datum of a role, None where there is none."""
        return next((x for (_, row), x in zip(cls.DATA.items(), data, strict=True) if row.role == role), None)

    @classmethod
    def observations(cls, data: Data) -> Data:
        """The arguments of the closed forms: the data without their weights, and without trailing None."""
        kept = [x for row, x in zip(cls.DATA.values(), data, strict=True) if row.role != "weights"]
        while len(kept) > 1 and kept[-1] is None:
            kept.pop()
        return tuple(kept)

    @classmethod
    def asked(cls, data: Data) -> Data:
        """The arguments of `expected_outputs`: the first datum alone, such as the queries."""
        return data[:1]

    def counted(self, data: Data) -> Tensor | None:
        """True for the observations that are there, (..., observations); None for all."""
        weights = self.datum(data, "weights")
        return None if weights is None else weights > 0

    @classmethod
    def explains(cls, data: Data) -> bool:
        """True if some of the data are explained;
        data that the model only conditions on carry no information about its parameters.
        """
        rows = zip(cls.DATA.values(), data, strict=False)
        return any(row.role == "explained" and x is not None for row, x in rows)

    @classmethod
    def require_given(cls, first: object, sizes: Mapping[str, object]) -> None:
        """Refuse to draw the first datum, or a number of them, where the model is conditional on it."""
        name = next(iter(cls.DATA))
        if first is None or sizes:
            raise ValueError(f"{name}: a {cls.__name__} is conditional on {name}; give {name}, leave num_queries out")

    # -- what a formulation offers, or refuses -------------------------------------------------------------------------

    def plates(self, *data: Any, **sizes: int | None) -> Plates:
        """The plates of the problem that formulation and data make, both checked;
        ``sizes`` stand for data not given.
        """
        self.refuse("plates")

    def generate(self, plates: Plates, data: Data, collapsed: bool) -> None:
        """Sites of `model`, or of `collapsed`, within plates that the caller has made."""
        self.refuse("generate")

    def model(self, *data: Any) -> None:
        """The Pyro program: latent assignments, then the data given them."""
        self.refuse("model")

    def collapsed(self, *data: Any) -> None:
        """The Pyro program with the latent assignments summed out."""
        self.refuse("collapsed")

    def attention(self, *data: Any) -> Tensor:
        """The posterior of the latent assignment."""
        self.refuse("attention")

    def log_evidence(self, *data: Any) -> Tensor:
        """The log density of each observation, latent assignments summed out:
        `log_density` of data that are checked.
        """
        if type(self).log_density is Formulation.log_density:
            self.refuse("log_evidence")
        self.plates(*data)
        return self.log_density(*data)

    def log_density(self, *data: Any) -> Tensor:
        """`log_evidence` of data that have been checked."""
        return self.log_evidence(*data)

    def expected_outputs(self, *data: Any) -> Tensor:
        """The posterior mean of the answers."""
        self.refuse("expected_outputs")

    def output_distribution(self, *data: Any) -> TorchDistribution:
        """The distribution of each answer, where answers have a density."""
        self.refuse("output_distribution")

    def origins(self) -> dict[str, Tensor]:
        """Points that the sums of `expect` and `draw_latents` are centred on, so that they keep their digits."""
        return {}

    def expect(self, data: Data, centers: Mapping[str, Tensor] | None = None) -> SufficientStatistics:
        """Take an E-step: the statistics that `conditional` reads, centred on ``centers``, by default `origins`."""
        self.refuse("expect")

    def draw_latents(
        self, data: Data, leading: Sequence[int], generator: torch.Generator, centers: Mapping[str, Tensor]
    ) -> SufficientStatistics:
        """The same with latents drawn from their posterior, by ``generator``: ``leading`` axes (chains,
        then problems) before their own.
        """
        self.refuse("draw_latents")

    def conditioned(self, data: Data) -> "Formulation":
        """The formulation that has absorbed these data: what answers new queries. Itself,
        where parameters are all that it knows.
        """
        return self

    def draw_trees(
        self,
        data: Data,
        state: Mapping[str, Tensor],
        generator: torch.Generator,
        channels: Sequence[int] | None,
        single_root: bool,
    ) -> tuple[Tensor, Tensor]:
        """Draw a tree of heads given the other latent choices, in each of some channels,
        and say how probable trees are.
        """
        self.refuse("draw_trees")

    def latents(self, data: Data) -> Latents:
        """Latent choices that Gibbs sampling draws without any prior on parameters, given what data know of them."""
        self.refuse("latents")

    def conditional(self, name: str, statistics: Any) -> Terms:
        """The likelihood of a parameter given the others and what `expect` or `draw_latents` left,
        as terms of its conjugate family.

        The terms broadcast against the parameter: they may lack its leading axes, such as chains.
        """
        self.refuse("conditional")

    def lacks(self) -> Collection[str]:
        """Methods of the class that this value refuses, such as the density of a measure on points."""
        return ()

    def offers(self, method: str) -> bool:
        """True if the formulation has the method, False if it refuses it."""
        kinds = ("log_evidence", "log_density") if method == "log_evidence" else (method,)
        own = any(getattr(type(self), kind) is not getattr(Formulation, kind, None) for kind in kinds)
        return own and method not in self.lacks()

    @classmethod
    def refuse(cls, method: str) -> NoReturn:
        """Raise the one error of a missing capability."""
        raise NotImplementedError(
            f"{cls.__name__} has no {method}; {cls.INSTEAD.get(method, cls.INSTEAD.get('', 'see its documentation'))}"
        )


def _keeps_dtype(x: object) -> bool:
    """True for a tensor of truths or of integers."""
    return isinstance(x, Tensor) and not x.is_floating_point()


def _normalized(x: Tensor, logarithms: bool) -> Tensor:
    """Rows (..., U) divided by their sums."""
    return x - x.logsumexp(-1, keepdim=True) if logarithms else x / x.sum(-1, keepdim=True)


def _require_family(kind: type[Formulation], name: str, row: Parameter) -> None:
    """Refuse a row whose conjugate family has no closed-form conditional, or one on another set."""
    if row.conjugate is None:
        return
    if row.conjugate not in CONJUGATE:
        known = ", ".join(family.__name__ for family in CONJUGATE)
        raise ValueError(
            f"{kind.__name__}: conjugate={row.conjugate.__name__} of {name} is none of {known}; leave it out, then inference.adapt climbs by gradients, and nuts and variational serve any prior"
        )
    family: Any = row.conjugate
    if not lies_inside(family.support, row.support):
        raise ValueError(
            f"{kind.__name__}: conjugate={row.conjugate.__name__} of {name} does not lie on its support, {row.support}; give {name} the family of its support, or leave it out"
        )
    if kind.conditional is Formulation.conditional:
        raise ValueError(
            f"{kind.__name__}: {name} has the conjugate family {row.conjugate.__name__}, but there is no conditional; define it, or leave the family out"
        )


def nearest(name: str, known: Collection[str]) -> str:
    """The repair for a name that is not known."""
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known) or 'none'}"
