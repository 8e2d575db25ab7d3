"""ECM: the parameters of a formulation adapt to data under Pyro priors; of a mixture keys, precisions,
answers and weights.

One step is one E-step, then the locations, then the precisions (with the *new* locations), then the weights (PT eq. 29,
30, 35, 37, 38 with errata 2, 3, 8, 15). Every conditional maximisation is exact, so that the objective, the log joint
of the Pyro program ``models.bayesian(formulation, ...)``, never falls.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, cast

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import biject_to, constraints

from probtx_pyro.inference._units import measured_sites, units_of
from probtx_pyro.inference.distributed import Together
from probtx_pyro.models._bayesian import Bayesian, F
from probtx_pyro.models._problem import Problem
from probtx_pyro.models._supports import bounds, inner
from probtx_pyro.models._validation import violated
from probtx_pyro.models.formulation import Data, Formulation
from probtx_pyro.models.priors import FLAT, Site, arguments_of, as_pyro, bare, in_dtype, require_modes
from probtx_pyro.ops import FixedPoint, fixed_point, safe_softmax
from probtx_pyro.ops._numerics import enable_grad

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Adaptation(NamedTuple, Generic[F]):
    """A formulation adapted to data.

    formulation: the adapted one; parameters without a prior are those of the formulation given.
    objective: ``log p(parameters) + Σ_i log p(x_i | parameters)`` at the start and after every step, shape (num_steps +
        1, *problems); the leading axes along which a parameter is shared count as one problem.
    converged: which problems met ``tol``, boolean (*problems,); without ``tol``, those that the last step moved by no
        more than the square root of the precision of their numbers.
    num_steps: steps that each problem took, integer (*problems,).
    method: "ECM", or "gradient MAP" where a prior has no closed-form update.
    """

    formulation: F
    objective: Tensor
    converged: Tensor
    num_steps: Tensor
    method: str

    def summary(self) -> str:
        """Return the run in a line: method, steps, objective, and how many problems converged."""
        done, of = int(self.converged.sum()), self.converged.numel()
        kind = self.formulation.evidence_kind
        said = "" if kind == "posterior" else f", {kind}"
        return (
            f"{self.method} of a {type(self.formulation).__name__}{said}: {int(self.num_steps.max())} steps, "
            f"objective {float(self.objective[0].sum()):.6g} to {float(self.objective[-1].sum()):.6g}, {done} of {of} "
            "problems converged"
        )

    def __repr__(self) -> str:
        return self.summary()


def adapt(
    posterior: Bayesian[F],
    *data: Tensor | None,
    num_steps: int = 10,
    tol: float | None = None,
    implicit: bool = False,
    progress: bool | None = None,
    causal: bool = False,
    process_group: "ProcessGroup | None" = None,
    **named: Tensor | None,
) -> Adaptation[F]:
    """Find the MAP of every parameter that has a prior, given data.

    Parameters
    ----------
    posterior
        `models.bayesian`; the adaptation starts at its formulation. A parameter that lacks a leading axis is shared
        along it and its statistics are summed over it; weights that are None stand for uniform ones of each problem.
    data, named
        The data of the formulation, by place or by name. Of a mixture: queries (..., Q, D); outputs, answers (..., Q,
        M) or labels (..., Q); observed, a boolean (..., Q) that says which of them are known (all if None);
        query_weights (..., Q), non-negative multiplicities, 0 for an absent query (ragged batches).
    num_steps, tol
        At most so many ECM steps (L-BFGS iterations for gradient MAP). With ``tol``, a problem stops when no parameter
        moves by more than ``tol`` times the largest magnitude in its tensor, for keys and values from their mean at the
        start.
    implicit
        Gradients of the result by the implicit function theorem at the fixed point, instead of through the steps;
        they are not differentiable in their turn.
    progress
        True shows a bar, False none; None shows one on a terminal after a second.
    causal
        Query i uses the statistics of queries 1..i only, each prefix adapting its own copy: parameters gain a query
        axis, keys become (..., Q, U, D), to be asked with queries (..., Q, 1, D). Costs O(Q² U) a step.
    process_group
        Each process of this ``torch.distributed`` group calls with the same posterior and options, and with its own
        share of the queries (at least one; shares may differ in size) and of what goes with them; all get the result of
        one process with all the queries, weights with a row for each query the rows of theirs. Gradients through the
        steps: `inference.distributed`. Not with ``causal``, ``implicit`` or priors without closed-form updates.

    Returns
    -------
    Adaptation

    Raises
    ------
    ValueError
        Bad shapes or values; a prior without a mode or on a parameter that the formulation lacks; parameters or an
        objective that come to be NaN or infinite, naming the problem and the parameter.
    NotImplementedError
        A prior with hyperparameters, whose MAP is no summary of the posterior.

    Examples
    --------
    >>> import torch
    >>> from pyro.distributions import Normal
    >>> from probtx_pyro import models
    >>> mixture = models.GaussianMixture(torch.tensor([[-1.0], [1.0]]), key_precision=10.0)
    >>> queries = torch.tensor([[-2.0], [-2.2], [2.0]])
    >>> fit = adapt(models.bayesian(mixture, keys=Normal(mixture.keys, 1.0)), queries)
    >>> [round(float(key), 3) for key in fit.formulation.keys]
    [-2.048, 1.909]

    References
    ----------
    Movellan & Gabbur 2020, eq. 26-38; Nguyen et al. 2022, E-step and M-step; Meng & Rubin 1993 for ECM.
    """
    require_posterior(posterior, "inference.adapt")
    if num_steps < 0 or (tol is not None and not tol > 0):
        raise ValueError(f"num_steps must be 0 or more and tol positive, not num_steps={num_steps}, tol={tol}")
    if not posterior.priors:
        raise ValueError("priors are empty, so nothing adapts; give a prior, or models.FLAT for maximum likelihood")
    posterior.require_plain("MAP estimate that summarises the posterior")
    problem, together = posterior.problem(*data, **named), Together(process_group)
    if process_group is not None and (causal or implicit or not problem.closed):
        raise ValueError("process_group needs plain ECM; choose conjugate priors, causal=False and implicit=False")
    if causal and not problem.closed:
        raise ValueError("causal adaptation needs closed-form updates; choose conjugate priors, or adapt each prefix")
    if implicit and not problem.closed:
        raise ValueError("implicit differentiation needs closed-form updates; give conjugate priors or implicit=False")
    return climbed(posterior, problem, num_steps, tol, implicit, progress, causal, together)


def climbed(
    posterior: Bayesian[F],
    problem: Problem,
    num_steps: int,
    tol: float | None,
    implicit: bool = False,
    progress: bool | None = None,
    causal: bool = False,
    together: Together | None = None,
) -> Adaptation[F]:
    """Return `adapt` of a problem that the posterior made of data; what its other arguments ask for is there."""
    how: dict[str, Any] = {"implicit": implicit, "progress": progress}
    if (half := _half(posterior.formulation)) is not None:
        priors = {name: in_dtype(prior, torch.float32) for name, prior in posterior.priors.items()}
        low = Bayesian(posterior.formulation.to(torch.float32), priors, posterior.collapsed)
        wide = low.problem(*_cast(problem.data, torch.float32))
        fit = climbed(low, wide, num_steps, tol, causal=causal, together=together, **how)
        rounded = fit.formulation.to(half)
        for name in priors:
            if violated(~torch.isfinite(cast(Tensor, rounded.parameter(name)).detach())):
                raise ValueError(f"inference.adapt: {name} left the range of {half}; adapt in torch.float32")
        return fit._replace(formulation=rounded)
    if causal:
        prefixes, data = prefix_problem(posterior, problem.data)
        fit = climbed(prefixes, prefixes.problem(*data), num_steps, tol, **how)
        return fit._replace(formulation=prefix_result(fit.formulation))
    require_modes(problem.sites)
    together = together or Together()
    if together.group is not None:
        problem = problem.over(together.sum)
        together.agree_on(problem, num_steps=num_steps, tol=tol)
    options: dict[str, Any] = {"num_steps": num_steps, "tol": tol, "progress": progress, "problems": problem.problems}
    if problem.closed:
        options |= {"together": together.largest, "origins": problem.formulation.origins(), "implicit": implicit}
        found = fixed_point(problem.ecm_step, problem.start, objective=problem.objective, label="ECM", **options)
    else:
        names = posterior.described()
        warnings.warn(f"no closed-form update for all of {names}: gradient MAP (L-BFGS) instead of ECM", stacklevel=3)
        require = partial(problem.require_numbers, "inference.adapt")
        found = gradient_map(problem.objective, problem.start, problem.sites, problem.count, require=require, **options)
    assert found.objective is not None
    problem.require_numbers("inference.adapt", found.state, _worst(found.objective))
    formulation, method = cast(F, problem.adapted(found.state)), "ECM" if problem.closed else "gradient MAP"
    return Adaptation(formulation, found.objective, found.converged, found.num_steps, method)


def _worst(objective: Tensor) -> Tensor:
    """The last objective of each problem, NaN where one before it was NaN or +infinity; a start may have no density."""
    return torch.where((objective < torch.inf).all(0), objective[-1], torch.nan)


def require_posterior(posterior: object, verb: str) -> None:
    """Refuse what is not made by `models.bayesian`."""
    if not isinstance(posterior, Bayesian):
        if isinstance(posterior, Formulation) and not posterior.offers("log_evidence"):
            posterior.refuse("log_evidence")
        raise ValueError(
            f"{verb} takes models.bayesian(formulation, ...), not a {type(posterior).__name__}; "
            "put priors on its parameters first"
        )


def _half(formulation: Formulation) -> torch.dtype | None:
    """The dtype of a formulation in half precision, in which sums would be lost; None of others."""
    kind = next(iter(formulation.parameters().values())).dtype
    return kind if kind in (torch.float16, torch.bfloat16) else None


def _cast(data: Data, dtype: torch.dtype) -> Data:
    return tuple(x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in data)


AXIS = "query"  # along which prefixes are taken


def prefix_problem(posterior: Bayesian[F], data: Data) -> tuple[Bayesian[F], Data]:
    """The posterior and data with an axis of Q prefixes before the own axes of every parameter and datum."""
    formulation = posterior.formulation
    if formulation.axes("log_evidence") != (AXIS,) or all(row.role != "weights" for row in formulation.DATA.values()):
        raise NotImplementedError(
            f"causal adaptation goes query by query, which a {type(formulation).__name__} does not have; "
            "use causal=False"
        )
    queries = data[0]
    num = queries.shape[-2]
    inside = torch.ones(num, num, dtype=queries.dtype, device=queries.device).tril()
    prefixes: list[Any] = []
    for (name, datum), x in zip(formulation.DATA.items(), data, strict=True):
        if datum.role == "weights":
            prefixes.append(inside if x is None else inside * x.unsqueeze(-2))
        else:
            prefixes.append(None if x is None else _insert(x, len(formulation.axes(name))))
    changes = {}
    for name in formulation.PARAMETERS:
        row = formulation.row(name)
        if (x := formulation.held(name)) is not None:
            rank = len(formulation.axes(name))
            changes[row.field or name] = (
                _grown(_insert(x, rank), num, rank) if name in posterior.priors else _insert(x, rank)
            )
    wide = formulation.with_parameters(changes)
    priors = {name: _wide(prior, len(formulation.axes(name))) for name, prior in posterior.priors.items()}
    return Bayesian(wide, priors, posterior.collapsed), tuple(prefixes)


def prefix_result(adapted: F) -> F:
    """The adapted formulation, to be asked with queries (..., Q, 1, D):
    query i is answered with the parameters fitted to queries 1..i.
    """
    changes = {}
    for name, row in adapted.PARAMETERS.items():
        x = adapted.held(name)
        if x is not None and row.names[:1] == (AXIS,) and x.shape[-2] != 1:  # query i's row in prefix i
            several = x.shape[-3] != 1  # (..., prefix or 1, Q, U)
            own = torch.diagonal(x, dim1=-3, dim2=-2).transpose(-1, -2) if several else x.squeeze(-3)
            changes[row.field or name] = own.unsqueeze(-2)
    return adapted.with_parameters(changes)


def _insert(x: Tensor, rank: int) -> Tensor:
    """A prefix axis of size 1 before the last ``rank`` axes; a scalar stays a scalar."""
    return x.unsqueeze(-1 - rank) if x.dim() >= rank else x


def _grown(x: Tensor, num: int, rank: int) -> Tensor:
    """The axis of prefixes at its full size: each prefix adapts its own copy."""
    if x.dim() == 0:
        return x.expand(num, *(1,) * rank)
    return x.expand(*x.shape[: x.dim() - rank - 1], num, *x.shape[x.dim() - rank :])


def _wide(prior: Any, rank: int) -> Any:
    """A conjugate prior with the prefix axis."""
    if prior is FLAT:
        return prior
    prior = bare(as_pyro(prior))
    own = rank - prior.event_dim  # axes of the parameter that are no event
    arguments = arguments_of(prior)
    ranks = {key: own + prior.arg_constraints[key].event_dim for key in arguments}
    wide = {key: x.unsqueeze(-1 - ranks[key]) if x.dim() > ranks[key] else x for key, x in arguments.items()}
    return type(prior)(**wide, validate_args=False)


WALL = 1e3  # in units of the lowest loss so far
LOWEST_LOGIT = -30.0  # where a weight of 0 starts: e^-30, from which gradients can still bring it back


def gradient_map(
    objective: Callable[[Mapping[str, Tensor]], Tensor],
    start: Mapping[str, Tensor],
    sites: Mapping[str, Site],
    count: float,
    *,
    problems: torch.Size,
    num_steps: int,
    tol: float | None,
    progress: bool | None = None,
    require: Callable[[Mapping[str, Tensor], Tensor], None] = lambda *_: None,
) -> FixedPoint:
    """Maximise ``objective(state)``, a log density of the *constrained* parameters, summed over its problems.

    Parameters move in unconstrained coordinates (the support's bijection, in units that the ``count`` of observations
    tells; logits for a simplex, masked units left out),
    but the density is that of the constrained ones, without a Jacobian, so that the optimum is the MAP that ECM finds.
    A density with kinks (Laplace) may stall the line search; ``converged`` also asks for a vanishing gradient, so it
    says so. ``require`` refuses a constrained state and its objective, in the first step that is not finite, before it
    spoils the others.

    Raises
    ------
    ValueError
        If a tensor involved requires a gradient: the result would silently lose it. A start outside a prior's support,
        or on a bound.
    """
    require_inside(sites)
    if (begun := objective(start)).requires_grad:
        raise ValueError("gradient MAP is not differentiable; detach all (torch.no_grad()), or choose conjugate priors")
    require(start, begun)
    sites = _measured(objective, start, sites, count)
    free = {
        name: _unconstrain(x.detach(), sites[name]).clone(memory_format=torch.contiguous_format).requires_grad_()
        for name, x in start.items()
    }
    # one iteration at a time: `fixed_point` says when to stop
    alone: dict[str, Any] = {"max_iter": 1, "tolerance_grad": 0, "tolerance_change": 0}
    optimizer = torch.optim.LBFGS(
        [*free.values()], max_eval=25, line_search_fn="strong_wolfe", history_size=20, **alone
    )

    lowest = [-begun.sum().detach()]

    def constrained(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: _constrain(x, sites[name]) for name, x in values.items()}

    def climbed(values: Mapping[str, Tensor]) -> Tensor:
        return objective(constrained(values))

    def loss() -> Tensor:
        optimizer.zero_grad()
        with enable_grad():
            state = constrained(free)
            found = objective(state)
            value = -found.sum()
        if not value > -math.inf and not (value.isnan() and lowest[0].isfinite()):
            require(state, found)
        return climb_from(value, lowest, free.values())

    def step(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        with torch.no_grad():
            before = climbed(state)
        optimizer.step(loss)
        return {name: x.detach().clone() for name, x in free.items()}, before

    detached = {name: x.detach().clone() for name, x in free.items()}
    with torch.no_grad():
        found = fixed_point(
            step, detached, num_steps=num_steps, tol=tol, objective=climbed, progress=progress, label="gradient MAP"
        )
    value = loss()
    slope = float(torch.stack([x.grad.abs().max() for x in free.values() if x.grad is not None]).max())
    precision = torch.finfo(value.dtype).eps ** 0.5 if tol is None else tol
    level = precision**0.5 * (1 + abs(float(value.detach())))  # a stalled line search (a kink) is not convergence
    with torch.no_grad():
        return found._replace(
            state=constrained(found.state),
            converged=(found.converged & (slope <= level)).expand(problems),
            num_steps=found.num_steps.expand(problems),
        )


def climb_from(value: Tensor, lowest: list[Tensor], free: Iterable[Tensor]) -> Tensor:
    """Leave the slopes of a loss in ``free`` and return it; where it is no number, a wall above the lowest loss so far.

    A line search that has gone too far comes back from a wall, and from nothing else.
    """
    if not value.isfinite() and lowest[0].isfinite():
        for x in free:
            x.grad = torch.zeros_like(x)
        return lowest[0] + WALL * (1 + lowest[0].abs())
    value.backward()
    lowest[0] = torch.minimum(lowest[0], value.detach())
    return value


def _measured(
    objective: Callable[[Mapping[str, Tensor]], Tensor],
    start: Mapping[str, Tensor],
    sites: Mapping[str, Site],
    count: float,
) -> Mapping[str, Site]:
    """The sites in units; weights on the simplex have none."""
    at = {name: x.detach() for name, x in start.items()}
    free = {name: _unconstrain(x, sites[name]) for name, x in at.items() if not is_simplex(sites[name].distribution)}

    def potential(moved: Mapping[str, Tensor]) -> Tensor:
        return -objective(at | {name: _constrain(x, sites[name]) for name, x in moved.items()}).sum()

    return measured_sites(sites, units_of(potential, free, sites, count))


def _allowed(site: Site) -> Tensor | None:
    return getattr(site.distribution, "allowed", None)


def _unconstrain(x: Tensor, site: Site) -> Tensor:
    if is_simplex(site.distribution):
        return x.log().clamp_min(LOWEST_LOGIT)
    return biject_to(site.distribution.support).inv(x)


def _constrain(x: Tensor, site: Site) -> Tensor:
    if is_simplex(site.distribution):
        allowed = _allowed(site)
        return safe_softmax(x if allowed is None else x.masked_fill(~allowed, -math.inf))[0]
    return biject_to(site.distribution.support)(x)


def require_inside(sites: Mapping[str, Site]) -> None:
    """Refuse present values that have no density under their priors,
    or lie on a bound where no gradient brings them back.

    Every verb that begins at the formulation's own parameters asks this; rows on the simplex are brought there by each.
    """
    for name, (distribution, x) in sites.items():
        support: Any = distribution.support
        if not is_simplex(distribution) and not bool(support.check(x).all()):
            raise ValueError(f"{name} starts outside the support of its prior, {support}; {_repair(name)}")
        if _on_a_bound(x, support):
            raise ValueError(f"{name} starts on a bound of its support, where gradients vanish; {_repair(name)}")


def is_simplex(distribution: TorchDistributionMixin) -> bool:
    """True if the rows are on the simplex, or on a face of it."""
    return isinstance(inner(distribution.support), type(constraints.simplex)) or hasattr(distribution, "allowed")


def _repair(name: str) -> str:
    return f"start inside it, formulation.replace({name}=...), or chains at start='prior' or values"


def _on_a_bound(x: Tensor, support: Any) -> bool:
    """True if an entry is not known to be so far from the bounds of its support that gradients bring it back."""
    limits = bounds(support)
    if limits is None:
        return False
    inside = torch.minimum(x - limits[0], limits[1] - x) > torch.finfo(x.dtype).eps ** 0.5 * x.abs()
    return not bool(inside.all())
