"""Gradient MAP: the same objective as ECM climbed by L-BFGS, for priors that have no closed-form update."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints

from probtx_pyro.models._supports import bounds, inner
from probtx_pyro.models.priors import Site
from probtx_pyro.ops import FixedPoint, fixed_point, safe_softmax

LOWEST_LOGIT = -30.0  # where a weight of 0 starts: e^-30, from which gradients can still bring it back


def gradient_map(
    objective: Callable[[Mapping[str, Tensor]], Tensor],
    start: Mapping[str, Tensor],
    sites: Mapping[str, Site],
    *,
    problems: torch.Size,
    num_steps: int,
    tol: float | None,
    progress: bool | None = None,
    require: Callable[[Mapping[str, Tensor], Tensor], None] = lambda *_: None,
) -> FixedPoint:
    """Maximise ``objective(state)``, a log density of the *constrained* parameters, summed over its problems.

    Parameters move in unconstrained coordinates (the support's bijection; logits for a simplex, masked units left out), but
    the density is that of the constrained ones, without a Jacobian, so that the optimum is the MAP that ECM finds. A
    density with kinks (Laplace) may stall the line search; ``converged`` also asks for a vanishing gradient, so it says so.
    ``require`` refuses a constrained state and its objective, in the first step that is not finite, before it spoils the others.

    Raises
    ------
    ValueError
        If a tensor involved requires a gradient: the result would silently lose it. A start outside a prior's support, or on a bound.
    """
    require_inside(sites)
    if (begun := objective(start)).requires_grad:
        raise ValueError(
            "gradient MAP is not differentiable; detach the data, priors and mixture (torch.no_grad()), or choose conjugate priors"
        )
    require(start, begun)
    free = {
        name: _unconstrain(x.detach(), sites[name]).clone(memory_format=torch.contiguous_format).requires_grad_()
        for name, x in start.items()
    }
    # one iteration at a time: `fixed_point` says when to stop
    alone: dict[str, Any] = {"max_iter": 1, "tolerance_grad": 0, "tolerance_change": 0}
    optimizer = torch.optim.LBFGS(
        [*free.values()], max_eval=25, line_search_fn="strong_wolfe", history_size=20, **alone
    )

    def constrained(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: _constrain(x, sites[name]) for name, x in values.items()}

    def climbed(values: Mapping[str, Tensor]) -> Tensor:
        return objective(constrained(values))

    def loss() -> Tensor:
        optimizer.zero_grad()
        with torch.enable_grad():
            state = constrained(free)
            found = objective(state)
            value = -found.sum()
        if not value > -math.inf:  # a line search does not come back from it
            require(state, found)
        value.backward()
        return value

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
    """Refuse present values that have no density under their priors, or lie on a bound where no gradient brings them back.

    Every verb that begins at the formulation's own parameters asks this; rows on the simplex are brought there by each.
    """
    for name, (distribution, x) in sites.items():
        support: Any = distribution.support
        if not is_simplex(distribution) and not bool(support.check(x).all()):
            raise ValueError(f"{name} starts outside the support of its prior, {support}; {_repair(name)}")
        if _on_a_bound(x, support):
            raise ValueError(
                f"{name} starts on a bound of the support of its prior, where gradients vanish; {_repair(name)}"
            )


def is_simplex(distribution: Any) -> bool:
    """True if the rows are on the simplex, or on a face of it."""
    return isinstance(inner(distribution.support), type(constraints.simplex)) or hasattr(distribution, "allowed")


def _repair(name: str) -> str:
    return f"start the formulation inside it, formulation.replace({name}=...), or where there are chains at start='prior' or values of your own"


def _on_a_bound(x: Tensor, support: Any) -> bool:
    """True if an entry is not known to be so far from the bounds of its support that gradients bring it back."""
    limits = bounds(support)
    if limits is None:
        return False
    inside = torch.minimum(x - limits[0], limits[1] - x) > torch.finfo(x.dtype).eps ** 0.5 * x.abs()
    return not bool(inside.all())
