"""The only iteration loop of the library: tolerance, progress, objective trace, and two ways to differentiate it.

*Unrolled*: autograd through the steps taken. *Implicit*: at ``x* = F(x*)`` the gradient solves ``u = g + J'u`` with
``J = ∂F/∂x``, by the same iteration (EM contracts, so its transpose does): memory does not grow with the number of
steps.
"""

import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probtx_pyro.ops._numerics import known
from probtx_pyro.ops._progress import progress_bar

State = Mapping[str, Tensor]
Step = Callable[[State], tuple[State, Tensor | None]]


class FixedPoint(NamedTuple):
    """The state in which the iteration ended.

    state: the last state, its tensors keyed by name.
    objective: the trace, shape (num_steps + 1, *problems): at every state visited, the last included; None without one.
    converged: which problems met the tolerance, a boolean tensor of shape (*problems,); without one, which problems the
        last step moved by no more than the square root of the precision of their numbers.
    num_steps: steps that each problem took, an integer tensor of shape (*problems,).
    """

    state: dict[str, Tensor]
    objective: Tensor | None
    converged: Tensor
    num_steps: Tensor


def fixed_point(
    step: Step,
    state: State,
    *,
    problems: torch.Size | tuple[int, ...] = (),
    num_steps: int,
    tol: float | None = None,
    objective: Callable[[State], Tensor] | None = None,
    implicit: bool = False,
    progress: bool | None = None,
    label: str = "",
    together: Callable[[Tensor], Tensor] | None = None,
    origins: State | None = None,
) -> FixedPoint:
    """Iterate ``state <- step(state)``, each problem until it stops by itself.

    Parameters
    ----------
    step
        Returns the next state and the objective *at the state given* (or None).
    state
        Tensors whose leading axes are ``problems`` (or 1 along them); the axes that follow are the problem's own.
    problems
        Shape of the independent problems; one that has converged is frozen, so that a batch is the stack of its
        singles.
    num_steps, tol
        At most so many steps; a problem has converged when no entry of its state moves by more than ``tol`` times the
        largest magnitude that entry's tensor has shown; one that has become NaN never has. ``tol=None`` takes all the
        steps.
    objective
        Evaluates the objective at the final state, the trace's last entry.
    implicit
        Differentiate at the fixed point instead of through the steps; warns where the fixed point was not reached. A
        RuntimeError refuses second derivatives.
    progress
        True shows a bar, False none, None shows one on a terminal after a second.
    label
        Text beside the bar.
    together
        Where several processes iterate, returns the entrywise largest over them of the sizes that the tolerance
        compares, so that all stop together. Not with ``implicit``, whose own iteration stops by itself.
    origins
        By name, what magnitudes are measured from, where that is not 0: times since 1970 are not large for being late.

    Returns
    -------
    found
        The last state, its trace, and which problems converged in how many steps.

    Raises
    ------
    RuntimeError
        In the backward pass of an ``implicit`` iteration whose equations are singular.
    """
    if implicit:
        iterated = partial(fixed_point, step, state, problems=problems, num_steps=num_steps, tol=tol)
        with torch.no_grad():
            found = iterated(objective=objective, progress=progress, label=label, origins=origins)
        return _differentiable(step, found, objective)
    state, before, some = dict(state), None, next(iter(state.values()))
    active = torch.ones(problems, dtype=torch.bool, device=some.device)
    taken = torch.zeros(problems, dtype=torch.long, device=some.device)
    over_all = together or torch.Tensor.detach
    precision = torch.finfo(some.dtype).eps
    rounding = 4 * precision / (precision**0.5 if tol is None else tol)

    def sizes(proposed: State, state: State) -> tuple[Tensor, Tensor]:
        """Magnitudes of every tensor of a state, and of how far it has moved, shape (tensors, *problems) each."""
        moved = {name: x.detach() - state[name].detach() for name, x in proposed.items()}
        size, moved = over_all(torch.stack([magnitudes(proposed), _magnitudes(moved, active)]))
        return size, moved

    def magnitudes(state: State) -> Tensor:
        """Largest magnitudes from the origins, and not below what rounding moves, shape (tensors, *problems)."""
        plain = _magnitudes(state, active)
        if not origins:
            return plain
        away = {name: x - origins[name] if name in origins else x for name, x in state.items()}
        return torch.maximum(_magnitudes(away, active), rounding * plain)

    scale = magnitudes(state) if tol is None else over_all(magnitudes(state))
    trace: list[Tensor] = []
    quiet = progress is False  # then no bar is made at all: compilers cannot follow one
    with nullcontext() if quiet else progress_bar(label=label, progress=progress, total=num_steps) as bar:
        for _ in range(num_steps):
            after, value = step(state)
            proposed = {name: after[name] for name in state}  # in the order of the scales
            if value is not None:
                trace.append(value)
            taken = taken + active
            if tol is None:
                before, state = state, proposed
            else:
                size, moved = sizes(proposed, state)
                scale = torch.maximum(scale, size)
                state = {name: torch.where(_like(active, x), x, state[name]) for name, x in proposed.items()}
                active = active & ~(moved <= tol * scale).all(0)  # what is NaN has not converged
                lost = ~torch.isfinite(moved).all(0)
            if bar is not None:
                bar.update()
            if tol is not None and not known((active & ~lost).any(), otherwise=True):
                break
    if objective is not None:
        trace.append(objective(state))
    if before is not None:  # without a tolerance: did the last step move by more than the root of the precision?
        size, moved = sizes(state, before)
        active = ~(moved <= precision**0.5 * size).all(0)
    return FixedPoint(state, torch.stack(trace) if trace else None, ~active, taken)


def _like(mask: Tensor, x: Tensor) -> Tensor:
    return mask.reshape(mask.shape + (1,) * (x.dim() - mask.dim()))


def _magnitudes(state: State, active: Tensor) -> Tensor:
    """`_largest` of every tensor of a state, shape (tensors, *problems)."""
    return torch.stack([_largest(x, active) for x in state.values()])


def _largest(x: Tensor, active: Tensor) -> Tensor:
    """Largest magnitude within each problem; an axis along which the problems are one is part of each."""
    axes = [i for i in range(x.dim()) if i >= active.dim() or active.shape[i] == 1]
    magnitude = x.detach().abs()
    magnitude = magnitude.amax(axes, keepdim=True) if axes else magnitude
    return magnitude.reshape(magnitude.shape[: active.dim()]).expand(active.shape)


def _differentiable(step: Step, found: FixedPoint, objective: Callable[[State], Tensor] | None) -> FixedPoint:
    """One more step, with autograd, whose backward pass is replaced by the implicit function theorem."""
    names = list(found.state)
    if not torch.is_grad_enabled():  # the same numbers, inside torch.inference_mode, too
        after, _ = step(found.state)
        return _ended(found, {name: after[name] for name in names}, objective)
    inputs = [x.detach().requires_grad_() for x in found.state.values()]
    with torch.enable_grad():
        again, _ = step(dict(zip(names, inputs, strict=True)))
        outer, _ = step({name: x.detach() for name, x in found.state.items()})
    outputs, precision = [again[name] for name in names], torch.finfo(inputs[0].dtype).eps
    pairs = [(x.detach(), y.detach()) for x, y in zip(inputs, outputs, strict=True)]
    residual = float(torch.stack([(y - x).abs().max() / x.abs().max().clamp_min(1.0) for x, y in pairs]).max())
    if not residual <= precision**0.5:
        warnings.warn(
            f"implicit gradient away from the fixed point (the last step still moves by {residual:.1e}): "
            "raise num_steps, or differentiate unrolled (implicit=False)",
            stacklevel=4,
        )

    def solve(gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        solution = gradients
        for _ in range(10_000):
            pulled = torch.autograd.grad(outputs, inputs, solution, retain_graph=True, materialize_grads=True)
            updated = tuple(g + p for g, p in zip(gradients, pulled, strict=True))
            change = torch.stack([(u - s).abs().max() for u, s in zip(updated, solution, strict=True)]).max()
            solution = updated
            if bool(change <= 64 * precision * torch.stack([s.abs().max() for s in solution]).max()):
                return solution
            if not bool(torch.isfinite(change)):
                break
        raise RuntimeError(
            "implicit gradient: I - dF/dx is singular here (a flat direction), or the gradient that comes in is NaN; "
            "give the adapted parameters a prior, or use implicit=False"
        )

    state = dict(zip(names, _Implicit.apply(solve, *(outer[name] for name in names)), strict=True))
    return _ended(found, state, objective)


def _ended(found: FixedPoint, state: State, objective: Callable[[State], Tensor] | None) -> FixedPoint:
    """Replace the last state of what was found."""
    trace = found.objective
    if objective is not None and trace is not None:
        trace = torch.cat([trace[:-1], objective(state).unsqueeze(0)])
    return found._replace(state=dict(state), objective=trace)


class _Implicit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, solve: Callable, *state: Tensor) -> tuple[Tensor, ...]:
        ctx.solve = solve
        return tuple(x.clone() for x in state)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("implicit gradients cannot be differentiated again (create_graph); use implicit=False")
        return (None, *ctx.solve(gradients))
