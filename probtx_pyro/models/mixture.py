"""Everything that holds for any mixture over units: from the density of a unit to attention, evidence,
programs and conditionals.

``u_i ~ Categorical(π_i)``, ``x_i | u_i=j ~ p_j``. Attention is the posterior of u, ``w_ij ∝ π_ij p_j(x_i)``, and the
E-step of EM. A subclass says what a unit emits, twice: as a Pyro distribution (`Mixture.emission`) and as a closed form
(`Mixture.factor`).

======  ==============================  ==================  =======================================
symbol  name                            shape               support
======  ==============================  ==================  =======================================
x_i     ``queries``                     (..., Q, D)         that of the units' density
π_ij    ``log_prior``, ``weights``      (..., Q or 1, U)    log of rows on the simplex, -inf masks
u_i     site ``unit``                   (..., Q)            0..U-1
w_ij    ``attention``                   (..., Q, U)         rows on the simplex
·       ``query_weights``               (..., Q)            >= 0: multiplicities, 0 is absent
======  ==============================  ==================  =======================================
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import pyro
import torch
from pyro import poutine
from pyro.distributions import Categorical, Dirichlet, TorchDistribution
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import one_hot

from probtx_pyro.models import _validation as check
from probtx_pyro.models._distributions import MixtureDensity
from probtx_pyro.models._plates import PARALLEL, Plates, given_unit, weighted_queries
from probtx_pyro.models.formulation import Data, Datum, DirichletTerms, Formulation, Parameter, Terms
from probtx_pyro.ops import (
    Factor,
    attend,
    expected_statistics,
    log_evidence,
    log_joint,
    safe_log,
    safe_softmax,
    sampled_statistics,
)
from probtx_pyro.ops._numerics import log_sum
from probtx_pyro.ops.attention import require_reached
from probtx_pyro.ops.statistics import Total

Maybe = Tensor | None  # an argument that may be left out


if TYPE_CHECKING:

    class Number:
        """A field that takes a tensor or a number, and holds a tensor once `Mixture._tensors` has made it one."""

        def __init__(self, default: float | None = ...) -> None: ...
        def __get__(self, instance: object, owner: type) -> Tensor: ...
        def __set__(self, instance: object, value: Tensor | float | None) -> None: ...

else:

    class Number:
        """Default of such a field, as a dataclass takes it; ``help()`` and signatures show the types that it takes."""

        def __new__(cls, *default: float | None) -> Any:
            """Return the default, or a field without one."""
            return default[0] if default else field()

    Number.__module__, Number.__qualname__ = "builtins", "Tensor | float"


Centers = Mapping[str, Tensor] | None  # what statistics are centred on, by name; None is the own `origins`
WEIGHTS: Mapping[str, Parameter] = {
    "weights": Parameter("query unit", constraints.simplex, Dirichlet, field="log_prior")
}
"""Row of the parameter table for the prior weights of units, which every mixture has."""


class Sums(NamedTuple):
    """Sums that parameters are updated from, over the queries, under the attention or under assignments drawn from it.

    log_evidence: ``log p(x_i)``, (..., Q). counts: ``Σ_i w_ij``, (..., U). sums: ``Σ_i w_ij t(x_i)`` of the factor's
    statistics, (..., U, T). assigned: makes w_ij, (..., Q, U). scatter: of numbers a (..., U) makes
    ``Σ_i (Σ_j a_j w_ij) t_i t_i'`` of the first so many statistics. centers: what the statistics are centred on.
    answers: which answers are known, "none", "some" (a statistic counts them) or "all". each: whether each unit has
    centers of its own, (..., U, T), as where points lie far apart.
    """

    log_evidence: Tensor
    counts: Tensor
    sums: Tensor
    assigned: Callable[[], Tensor]
    scatter: Callable[[Tensor, int], Tensor]
    centers: Mapping[str, Tensor]
    answers: str
    each: bool = False


class Seen:
    """Statistics of a mixture: `Sums`, made when one of them is first asked for,
    and then over all processes at once.
    """

    def __init__(self, make: Callable[[Total | None], Sums], total: Total | None = None):
        self._make, self._total = make, total

    def reduced(self, total: Total) -> "Seen":
        """The same over all processes, all of which ask."""
        return Seen(self._make, total)

    @cached_property
    def _made(self) -> Sums:
        return self._make(self._total)

    def _replace(self, **changes: Any) -> Any:
        return self._made._replace(**changes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._made, name)


class Mixture(Formulation):
    """Base of the mixtures over units; data are ``queries, outputs, observed, query_weights``.

    A subclass is a frozen dataclass with a field ``log_prior`` and a table ``PARAMETERS``, the weights last: ``{"rate":
    Parameter("unit feature", constraints.positive, Gamma), **WEIGHTS}``. It defines `factor` and `emission`, and
    `conditional` where a parameter has a conjugate prior. Parameters are updated in the order of the table.
    """

    DATA: ClassVar[Mapping[str, Datum]] = {
        "queries": Datum("query feature"),
        "outputs": Datum("query answer"),
        "observed": Datum("query", "mask"),
        "query_weights": Datum("query", "weights"),
    }
    RESULTS: ClassVar[Mapping[str, str]] = {
        "attention": "query unit",
        "log_evidence": "query",
        "expected_outputs": "query answer",
    }
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "conditional": "draw with inference.nuts, or fit a guide with inference.variational",
        "latents": "its assignments have a closed form: take attention and log_evidence",
        "outputs": "drop them",
        "output_distribution": "its answers have no density; take expected_outputs",
    }
    GUIDED_BY_ATTENTION: ClassVar[bool] = True
    log_prior: Maybe

    # -- what a subclass defines ---------------------------------------------------------------------------------------

    def factor(self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None, centers: Centers = None) -> Factor:
        """Return ``log p_j(x_i)`` as a product of statistics of the queries and parameters of the units,
        the closed form.

        Where it has squares, ``expanded=False`` asks for them.
        """
        raise NotImplementedError

    def emission(self, unit: Tensor) -> TorchDistribution:
        """Return the distribution of a query given its unit, for the program; ``unit`` has any shape."""
        raise NotImplementedError

    def answer(self, unit: Tensor) -> TorchDistribution:
        """Return the distribution of an answer given its unit, where answers have a density."""
        raise NotImplementedError

    @property
    def answer_density(self) -> bool:
        """True if answers have a density."""
        return False

    @property
    def flat(self) -> "Mixture":
        """The mixture whose units are those of the factor: itself, unless a unit is a mixture of its own."""
        return self

    @property
    def unit_shape(self) -> tuple[int, ...]:
        """(U,): what the units of the factor are counted by."""
        return (self.num_units,)

    def of_unit(self, name: str, unit: Tensor) -> Tensor:
        """Return a parameter of the unit drawn, for the program: ``unit`` (...) of any shape gives (...,
        own axes but the first).
        """
        return given_unit(getattr(self, name), unit, len(self.PARAMETERS[name].names) - 1)

    # -- parameters ----------------------------------------------------------------------------------------------------

    @property
    def num_units(self) -> int:
        """U."""
        name, row = next((name, row) for name, row in self.PARAMETERS.items() if row.names[:1] == ("unit",))
        return getattr(self, row.field or name).shape[-len(row.names)]

    def parameter(self, name: str, batch: Sequence[int] = ()) -> Maybe:
        """The present value of a parameter; weights that are None are uniform, for each problem of ``batch``."""
        if name != "weights":
            return super().parameter(name, batch)
        if self.log_prior is not None:
            return self.log_prior.exp()
        return self._like().new_full((), 1 / self.num_units).expand(*batch, 1, self.num_units)

    def with_parameters(self, parameters: Mapping[str, Maybe]) -> Self:
        """The mixture with some parameters changed (``weights``, not their log, or ``log_prior``); not validated."""
        changes = dict(parameters)
        if "weights" in changes:
            weights = changes.pop("weights")
            changes["log_prior"] = None if weights is None else safe_log(weights)
        return super().with_parameters(changes)

    def check_prior(self, name: str) -> None:
        """Refuse a prior on a parameter that is not there, or on answers without a density, which inform nothing."""
        super().check_prior(name)
        without = not self.answer_density or getattr(self, "values", None) is None
        if name in ("values", "value_precision") and without:
            raise ValueError(f"priors: nothing informs {name}, as answers have no density; give value_precision > 0")

    def allowed(self, name: str) -> Maybe:
        """Boolean entries of a parameter on the simplex that are not masked; None where there is no mask."""
        return None if name != "weights" or self.log_prior is None else self.log_prior > -torch.inf

    def log_weights(self) -> Tensor:
        """``log π``, shape (..., Q or 1, U)."""
        if self.log_prior is not None:
            return self.log_prior
        return self._like().new_full((1, self.num_units), -math.log(self.num_units))

    def _like(self) -> Tensor:
        """A parameter whose dtype and device the others share, and whose last axis counts the features of a query."""
        return getattr(self, self._featured())

    @classmethod
    def _featured(cls) -> str:
        return next(name for name, row in cls.PARAMETERS.items() if row.names[-1:] == ("feature",))

    def _tensors(self, *names: str) -> None:
        """Numbers among the constructor arguments become tensors."""
        like = self._like()
        check.floating(self._featured(), like)
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, Tensor):
                object.__setattr__(self, name, check.number(name, value, like.dtype, like.device))

    def _validate_weights(self) -> None:
        if self.num_units < 1:
            raise ValueError(f"{self._featured()} has no units; give at least one")
        if self.log_prior is not None:
            check.log_weights(self.log_prior, self._featured(), self.num_units)
            check.normalized_log("log_prior", self.log_prior)
        _ = self.batch_shape

    # -- data ----------------------------------------------------------------------------------------------------------

    def check_data(
        self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None, query_weights: Maybe = None
    ) -> torch.Size:
        """Return the problems that mixture and data make together; refuse data that the mixture cannot explain."""
        check.floating("queries", queries)
        check.at_least("queries", queries, 2, "(..., Q, D)")
        like, name = self._like(), self._featured()
        check.same_dtype(queries=queries, **{name: like})
        check.same_size("queries", queries.shape[-1], name, like.shape[-1], "features")
        self._fit_rows(queries.shape[-2])
        check.finite(queries=queries)
        if observed is not None:
            if getattr(observed, "dtype", None) != torch.bool or observed.shape[-1:] != queries.shape[-2:-1]:
                raise ValueError(f"observed must be a boolean tensor (..., {queries.shape[-2]}), one for each query")
            if outputs is None:
                raise ValueError("observed is given without outputs; pass the outputs that it marks")
        if outputs is not None:
            self._check_outputs(queries, outputs, observed)
        if query_weights is not None:
            _check_query_weights(queries, query_weights)
        given = zip(self.DATA, (queries, outputs, observed, query_weights), strict=True)
        shapes = {name: x.shape[: x.dim() - len(self.axes(name))] for name, x in given if x is not None}
        return check.broadcastable(mixture=self.batch_shape, **shapes)

    def _fit_rows(self, num_queries: int) -> None:
        """Refuse a prior with a row for each query where there is another number of them."""
        if self.log_prior is not None and self.log_prior.shape[-2] not in (1, num_queries):
            rows = self.log_prior.shape[-2]
            raise ValueError(f"log_prior has rows for {rows} queries but there are {num_queries} queries; give one row")

    def _check_outputs(self, queries: Tensor, outputs: Tensor, observed: Maybe) -> None:
        raise ValueError(f"outputs are given, but answers have no density; {self.INSTEAD['outputs']}")

    def plates(self, *data: Any, num_queries: int | None = None) -> Plates:  # type: ignore[override]
        """The plates of the problem that mixture and data make, both checked;
        ``num_queries`` where no queries are given.
        """
        queries, *_ = data = self.bind(*data)
        if queries is None:
            if num_queries is None:
                raise ValueError("queries are None, so that the program draws them; say how many with num_queries=")
            if not isinstance(num_queries, int) or num_queries < 1:
                raise ValueError(f"num_queries must be a whole number from 1, not {num_queries!r}")
            self._fit_rows(num_queries)
            return Plates(self.batch_shape, query=num_queries, units=self.num_units)
        if num_queries not in (None, queries.shape[-2]):
            raise ValueError(f"num_queries is {num_queries} but there are {queries.shape[-2]} queries; leave it out")
        return Plates(self.check_data(*data), query=queries.shape[-2], units=self.num_units)

    # -- the program ---------------------------------------------------------------------------------------------------

    def model(  # type: ignore[override]
        self,
        queries: Maybe = None,
        outputs: Maybe = None,
        observed: Maybe = None,
        *,
        query_weights: Maybe = None,
        num_queries: int | None = None,
    ) -> None:
        """``unit ~ Categorical(π)``, ``queries | unit``, ``outputs | unit``: three sites in the plates of the problem.

        ``outputs`` is a latent site where answers have a density and none are given, and absent where they have none;
        ``observed`` marks the answers that count. A query of weight 0 is absent; other weights multiply its log
        density. Without queries the program draws ``num_queries`` of them.
        """
        data = (queries, outputs, observed, query_weights)
        self.generate(self.plates(*data, num_queries=num_queries), data, collapsed=False)

    def collapsed(  # type: ignore[override]
        self,
        queries: Maybe = None,
        outputs: Maybe = None,
        observed: Maybe = None,
        *,
        query_weights: Maybe = None,
        num_queries: int | None = None,
    ) -> None:
        """The same joint density of queries and outputs with ``unit`` summed out: ``p(q)``, then ``p(v | q)``."""
        data = (queries, outputs, observed, query_weights)
        self.generate(self.plates(*data, num_queries=num_queries), data, collapsed=True)

    def generate(self, plates: Plates, data: Data, collapsed: bool) -> None:
        """Sites of `model`, or of `collapsed`, within plates that the caller has made."""
        queries, outputs, observed, query_weights = data
        with weighted_queries(plates, query_weights):
            if collapsed:
                density = MixtureDensity(self.flat, plates.last["query"])
                asked = pyro.sample("queries", density, obs=queries)
                if self.answer_density:
                    _sample_outputs(self.output_distribution(asked), outputs, observed)
                return
            unit = self.draw_unit()
            pyro.sample("queries", self.emission(unit), obs=queries)
            if self.answer_density:
                _sample_outputs(self.answer(unit), outputs, observed)

    def sample(self, num_queries: int, *, seed: int) -> dict[str, Tensor]:
        """Draw queries and their answers from the program, by the name of the site.

        Parameters
        ----------
        num_queries
            Q, how many.
        seed
            A non-negative integer; the draws of the surrounding program go on as if nothing had been drawn.

        Returns
        -------
        dict
            ``queries`` (..., Q, D), the latent ``unit`` (..., Q), and ``outputs`` (..., Q, M) or labels (..., Q) where
            they have a density.
        """
        self.plates(None, num_queries=num_queries)  # refuses a bad number by itself, outside of the program
        with torch.random.fork_rng(), torch.no_grad(), poutine.block():
            torch.manual_seed(seed)
            trace = poutine.trace(self.model).get_trace(num_queries=num_queries)
        nodes: list[tuple[str, Any]] = list(trace.iter_stochastic_nodes())
        return {name: node["value"] for name, node in nodes if not site_is_subsample(node)}

    def draw_unit(self) -> Tensor:
        """Sample the latent site ``unit`` from its prior, for the program."""
        return pyro.sample("unit", Categorical(logits=self.log_weights()), infer=PARALLEL)

    def guide(
        self,
        queries: Tensor,
        outputs: Maybe = None,
        observed: Maybe = None,
        attention: Maybe = None,
        *,
        query_weights: Maybe = None,
    ) -> None:
        """``unit ~ Categorical(attention)``: with the exact E-step ELBO = log evidence,
        else it falls short by ``Σ_i KL(A_i || W_i)``.

        Answers that the model leaves latent are drawn from the unit's emission, their exact posterior given the unit.
        """
        plates = self.plates(queries, outputs, observed, query_weights)
        if attention is None:
            attention = self.attention(*self.observations((queries, outputs, observed, query_weights)))
        else:
            expected = (queries.shape[-2], self.num_units)
            if attention.shape[-2:] != expected:
                raise ValueError(f"attention has shape {tuple(attention.shape)} but must end in {expected}")
            check.simplex("attention", attention)
        with weighted_queries(plates, query_weights):
            unit = self.guide_unit(attention, queries)
            if outputs is None and self.answer_density:
                pyro.sample("outputs", self.answer(unit))

    def guide_unit(self, attention: Tensor, queries: Tensor) -> Tensor:
        """Sample the latent site ``unit`` from ``attention`` (..., Q, U), for the guide."""
        return pyro.sample("unit", Categorical(logits=safe_log(attention)), infer=PARALLEL)

    # -- closed forms --------------------------------------------------------------------------------------------------

    def lowered(
        self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None, centers: Centers = None, **how: Any
    ) -> tuple[Factor, Tensor]:
        """`factor` and log weights (..., Q or 1, units): all that an E-step needs."""
        return self.factor(queries, outputs, observed, centers, **how), self.log_weights()

    def log_joint(self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None) -> Tensor:
        """``log p(x_i, unit=j)``, (..., Q, U): the log density of the Pyro program at every unit.

        ``outputs`` count where ``observed`` (..., Q) is True, everywhere if None.
        """
        self.check_data(queries, outputs, observed)
        return log_joint(*self.lowered(queries, outputs, observed)).unflatten(-1, self.unit_shape)

    def attention(self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None) -> Tensor:
        """``p(unit=j | x_i)``, (..., Q, U): the exact E-step."""
        return attention_of(self.log_joint(queries, outputs, observed))[0]

    def log_evidence(self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None) -> Tensor:
        """``log p(x_i)`` with the unit summed out, (..., Q), in chunks of queries."""
        self.check_data(queries, outputs, observed)
        return self.log_density(queries, outputs, observed)

    def log_density(self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None) -> Tensor:  # type: ignore[override]
        """`log_evidence` of data that have been checked."""
        return log_evidence(*self.lowered(queries, outputs, observed))

    def unit_answers(self) -> Tensor:
        """Answers of the units, (..., U, M)."""
        answers = getattr(self, "values", None)
        if answers is None:
            raise ValueError(f"values is None, so this {type(self).__name__} has no answers; build it with values=")
        return answers

    def expected_outputs(self, queries: Tensor) -> Tensor:
        """``Σ_j p(unit=j | x_i) v_j``, (..., Q, M), by fused attention: no Q x U tensor."""
        self.check_data(queries)
        factor, log_weights = self.lowered(queries)
        return answers_of(attend(factor, self.unit_answers(), log_weights))

    def explicit_outputs(self, queries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Expected outputs (..., Q, M), attention (..., Q, U) and log evidence (..., Q) by the Q x U path;
        twice differentiable.
        """
        attention, evidence = attention_of(self.log_joint(queries))
        return attention @ self.unit_answers(), attention, evidence

    # -- one step of EM or of Gibbs: sums, and conditionals from them --------------------------------------------------

    def expect(self, data: Data, centers: Centers = None) -> Seen:
        """The sums of an E-step."""
        return Seen(partial(self._expected, data, self.origins() if centers is None else centers))

    def _expected(self, data: Data, centers: Mapping[str, Tensor], total: Total | None) -> Sums:
        queries, outputs, observed, query_weights = data
        factor, log_weights = self.lowered(queries, outputs, observed, centers)
        if total is not None:
            factor = self._like_all(
                factor, total, lambda: self.lowered(queries, outputs, observed, centers, expanded=False)[0]
            )
        statistics = expected_statistics(factor, log_weights, query_weights, total)

        def mean(per_unit: Tensor) -> Tensor:
            return attend(factor, per_unit.unsqueeze(-1), log_weights).squeeze(-1)

        def assigned() -> Tensor:
            joint = self.log_joint(queries, outputs, observed)
            for _ in self.unit_shape[1:]:  # the components of a unit
                joint = log_sum(joint)
            attention = safe_softmax(joint)[0]  # an absent query may be out of reach
            return attention if query_weights is None else attention * query_weights.unsqueeze(-1)

        scatter = partial(_scatter, factor, mean, query_weights)
        added = scatter if total is None else lambda a, columns: total(scatter(a, columns))[0]
        return self._sums(data, statistics, assigned, added, centers)

    @staticmethod
    def _like_all(factor: Factor, total: Total, apart: Callable[[], Factor]) -> Factor:
        """A factor of the same kind in all processes: as it is, with squares from ``apart``,
        or with squares by differences.
        """
        plain = all(x.origin is not None for x in factor.squares)
        some, far = total(factor.bias.new_tensor([bool(factor.squares), not plain]))[0].tolist()
        if some and not factor.squares:
            factor = apart()
        return factor._replace(squares=tuple(x._replace(origin=None) for x in factor.squares)) if far else factor

    def draw_latents(
        self, data: Data, leading: Sequence[int], generator: torch.Generator, centers: Mapping[str, Tensor]
    ) -> Seen:
        """The same sums with each query assigned to a unit drawn from its attention, (*leading, Q)."""
        queries, outputs, observed, query_weights = data
        shape, like = (*leading, queries.shape[-2]), self._like()
        uniforms = torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device)
        factor, log_weights = self.lowered(queries, outputs, observed, centers)
        statistics, unit = sampled_statistics(factor, log_weights, uniforms, query_weights)

        def mean(per_unit: Tensor) -> Tensor:
            return per_unit.expand(*unit.shape[:-1], -1).gather(-1, unit)

        def assigned() -> Tensor:
            own = unit // math.prod(self.unit_shape[1:])
            chosen = one_hot(own, self.num_units).to(uniforms.dtype)
            return chosen if query_weights is None else chosen * query_weights.unsqueeze(-1)

        sums = self._sums(data, statistics, assigned, partial(_scatter, factor, mean, query_weights), centers)
        return Seen(lambda _: sums)

    def _sums(
        self,
        data: Data,
        statistics: Any,
        assigned: Callable[[], Tensor],
        scatter: Callable[[Tensor, int], Tensor],
        centers: Mapping[str, Tensor],
    ) -> Sums:
        _, outputs, observed, _ = data
        counts = statistics.counts.unflatten(-1, self.unit_shape)
        sums = statistics.sums.unflatten(-2, self.unit_shape)
        known = "none" if outputs is None else "all" if observed is None else "some"
        if statistics.scatter is not None:
            each, own = statistics.scatter, dict(centers)
            for name, x in zip(centers, statistics.centers, strict=False):
                own[name] = x.unflatten(-2, self.unit_shape)
            return Sums(statistics.log_evidence, counts, sums, assigned, lambda a, _: each(a), own, known, True)
        return Sums(statistics.log_evidence, counts, sums, assigned, scatter, centers, known)

    def conditional(self, name: str, seen: Seen) -> Terms:
        """The likelihood of a parameter given the others and assignments, as terms of its conjugate family."""
        if name != "weights":
            self.refuse("conditional")
        if self.log_prior is not None and self.log_prior.shape[-2] != 1:
            return DirichletTerms(seen.assigned())
        counts = seen.counts.flatten(-len(self.unit_shape)).unflatten(-1, (self.num_units, -1)).sum(-1)
        return DirichletTerms(counts.unsqueeze(-2))


def _sample_outputs(distribution: TorchDistribution, outputs: Maybe, observed: Maybe) -> None:
    if outputs is None or observed is None:
        pyro.sample("outputs", distribution, obs=outputs)
        return
    marked = observed.reshape(observed.shape + (1,) * len(distribution.event_shape))
    pyro.sample("outputs", distribution.mask(observed), obs=torch.where(marked, outputs, torch.zeros_like(outputs)))


def answers_of(outputs: Tensor) -> Tensor:
    """Return answers (..., Q, M); refuse those that are NaN,
    of queries whose log densities overflow under every unit.
    """
    if check.violated(outputs.isnan()):
        require_reached(torch.where(outputs.isnan().any(-1), -math.inf, 0.0))
    return outputs


def attention_of(log_joint: Tensor) -> tuple[Tensor, Tensor]:
    """Return attention over the last axis and the log evidence;
    refuse rows without either (no prior masks a whole row).
    """
    attention, evidence = safe_softmax(log_joint)
    require_reached(evidence)
    return attention, evidence


def _scatter(
    factor: Factor, mean: Callable[[Tensor], Tensor], query_weights: Maybe, per_unit: Tensor, columns: int
) -> Tensor:
    """``Σ_i (Σ_j a_j w_ij) t_i t_i'``, (..., T, T), of the first so many statistics, given what averages over units."""
    points, strength = factor.statistics[..., :columns], mean(per_unit)
    strength = strength if query_weights is None else strength * query_weights
    return (strength.unsqueeze(-1) * points).mT @ points


def _check_query_weights(queries: Tensor, query_weights: Tensor) -> None:
    if query_weights.shape[-1:] != queries.shape[-2:-1] or not query_weights.is_floating_point():
        raise ValueError(f"query_weights must be floating point (..., {queries.shape[-2]}), one for each query")
    check.finite(query_weights=query_weights)
    if check.violated(query_weights < 0):
        raise ValueError("query_weights must be non-negative; 0 leaves a query out")
