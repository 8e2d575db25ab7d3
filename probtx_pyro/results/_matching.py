"""The permutation of units (and components) that brings every draw nearest to the centres: linear assignment,
without torch.

Centres and spreads follow from the draws as renumbered, and the draws are renumbered again, until nothing moves: the
likelihood of draws that are normal about the centre of their unit, with one variance for each feature, never falls.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from probtx_pyro.results._arviz import SAMPLES, Variable

Array = NDArray[Any]
DERIVED = ("attention",)  # follows the parameters, and is not matched
NUM_STEPS = 20
CHUNK = 2**22  # distances held at a time, over draws and pairs


def problem_axes(variables: Mapping[str, Variable]) -> tuple[str, ...]:
    """The axes left of ``unit`` that all parameters of units have: along these, units are numbered one by one."""
    of_units = [dims[2 : dims.index("unit")] for name, (dims, _) in variables.items() if _matters(name, dims)]
    if not of_units:
        raise ValueError("posterior has no variable with the axis 'unit', so there is nothing to relabel; name it so")
    return tuple(dim for dim in of_units[0] if dim != "query" and all(dim in dims for dims in of_units))


def _matters(name: str, dims: Sequence[str]) -> bool:
    return "unit" in dims and name not in DERIVED


def arranged(variable: Variable, order: tuple[str, ...]) -> Array:
    """The array with its axes in ``order``, of size 1 where it has none, the others flattened into the last."""
    wide = xarray.Variable(*variable).set_dims([*dict.fromkeys((*order, *variable[0]))])
    return wide.values.reshape(*wide.shape[: len(order)], -1)


def relabelled(
    variables: Mapping[str, Variable],
    classes: Mapping[str, Variable],
    lp: Array | None,
    reference: Mapping[str, ArrayLike] | None,
    logarithmic: Collection[str],
    separated_by: Mapping[str, tuple[str, ...]],
) -> tuple[dict[str, Variable], str]:
    """The variables with their units (and components) numbered alike in all draws, and what was done, in words.

    Parameters
    ----------
    variables
        Of the posterior, by name.
    classes
        Of units (*problems, unit) and, if need be, of components (*problems, unit, component); only equal numbers may
        change places.
    lp
        Log density (chain, draw): the numbering is that of the highest draw, without it that of the last.
    reference
        Values of some of the parameters, whose numbering is taken instead.
    logarithmic
        Names of the variables that are compared by their logarithm.
    separated_by
        What tells units, or components, apart, for the words.

    Returns
    -------
    (dict, str)

    Raises
    ------
    ValueError
        No parameter of units, NaN or infinity in one, or a reference that does not fit.
    """
    problems = problem_axes(variables)
    given = {name: variable for name, variable in variables.items() if _matters(name, variable[0])}
    if reference is None:
        likeliest = (
            (0, -1) if lp is None else np.unravel_index(np.argmax(np.where(np.isnan(lp), -np.inf, lp)), lp.shape)
        )
        reference = {name: x[likeliest] for name, (_, x) in given.items()}
    if unknown := set(reference) - set(given):
        raise ValueError(f"reference: {min(unknown)} is no parameter of units here; choose from {', '.join(given)}")
    scaled = {name: (dims, _scaled(name, x, logarithmic)) for name, (dims, x) in given.items()}
    aims = {name: (dims, _reference(name, reference, x.shape[2:], logarithmic)) for name, (dims, x) in given.items()}
    draws, aim = _features(scaled, problems), _features(aims, problems)
    sizes = {dim: n for dims, x in given.values() for dim, n in zip(dims, x.shape, strict=True)}
    if "component" not in sizes or "component" not in classes:  # every component stays where it is
        classes = {**classes, "component": (("component",), np.arange(sizes.setdefault("component", 1)))}
    orders = {"unit": (*problems, "unit"), "component": (*problems, "unit", "component")}
    numbers = []
    for name, order in orders.items():
        wide = xarray.Variable(*classes[name]).set_dims({dim: sizes[dim] for dim in order})
        numbers.append(wide.values.reshape(-1, *wide.shape[len(problems) :]))
    found = [
        _match(Features(*(x[:, p] for x in draws)), Features(*(x[:, p] for x in aim)), *own)
        for p, own in enumerate(zip(*numbers, strict=True))
    ]
    places: dict[str, Variable] = {}  # which old unit every new one is, and which old component of that unit
    for (name, order), x in zip(orders.items(), zip(*found, strict=True), strict=True):
        dims = (*SAMPLES, *order)
        places[name] = (dims, np.stack(x, 1).reshape([sizes[dim] for dim in dims]))
    return _permuted(variables, places), _statement(places, classes, separated_by)


class Features(NamedTuple):
    """Numbers that are compared: of units, ``own`` (draw, [problem,] U, F); of their components,
    ``within`` (draw, [problem,] U, R, G).
    """

    own: Array
    within: Array


def _scaled(name: str, x: Array, logarithmic: Collection[str]) -> Array:
    if not np.isfinite(x).all():
        raise ValueError(f"{name} contains NaN or infinity; look at the run before its units are relabelled")
    if name in logarithmic and (x < 0).any():
        raise ValueError(
            f"{name} is negative somewhere, but its logarithm is compared; drop it from the attribute logarithmic"
        )
    return np.log(x) if name in logarithmic else x


def _reference(
    name: str, reference: Mapping[str, ArrayLike], shape: tuple[int, ...], logarithmic: Collection[str]
) -> Array:
    """The value given, on the scale of the distances; NaN, which does not count, where there is none."""
    if name not in reference:
        return np.full((1, 1, *shape), np.nan)
    given = _scaled(name, np.asarray(reference[name], float), logarithmic)
    if given.size != int(np.prod(shape)):
        raise ValueError(f"reference: {name} has shape {given.shape} but a draw has {shape}; give one value of it")
    return given.reshape(1, 1, *shape)


def _features(variables: Mapping[str, Variable], problems: tuple[str, ...]) -> Features:
    """All parameters side by side, those of components apart, (draw, problem, ...)."""
    blocks = [arranged(variable, (*SAMPLES, *problems, "unit", "component")) for variable in variables.values()]
    chains, draws, *batch, units, _, _ = blocks[0].shape
    none = np.zeros((chains, draws, *batch, units, max(x.shape[-2] for x in blocks), 0))
    own = np.concatenate([none[..., 0, :], *(x[..., 0, :] for x in blocks if x.shape[-2] == 1)], -1)
    within = np.concatenate([none, *(x for x in blocks if x.shape[-2] > 1)], -1)
    leading = (chains * draws, int(np.prod(batch, dtype=int)))
    return Features(own.reshape(*leading, *own.shape[-2:]), within.reshape(*leading, *within.shape[-3:]))


def _match(draws: Features, aim: Features, units_of: Array, components_of: Array) -> tuple[Array, Array]:
    """Permutations of one problem, (draw, U) and (draw, U, R); only equal numbers, (U,) and (U, R),
    may change places.
    """
    count, units, components = draws.within.shape[:3]
    found = (
        np.broadcast_to(np.arange(units), (count, units)),
        np.broadcast_to(np.arange(components), (count, units, components)),
    )
    if not (_some_alike(units_of) or _some_alike(components_of)):
        return found
    may = (units_of[:, None] == units_of, components_of[:, None, :, None] == components_of[None, :, None, :])
    centres, spread = aim, Features(*(_variance(x, x.mean(tuple(range(x.ndim - 1)))) for x in draws))
    for step in range(NUM_STEPS):
        new = _assigned(draws, centres, spread, *may)
        if step and all(np.array_equal(x, y) for x, y in zip(new, found, strict=True)):
            break
        found, moved = new, _moved(draws, *new)
        centres = Features(*(x.mean(0, keepdims=True) for x in moved))
        spread = Features(*(_variance(x, centre) for x, centre in zip(moved, centres, strict=True)))
    to_unit, to_component = _assigned(centres, aim, spread, *may)
    unit, component = (x[:, to_unit[0]] for x in found)
    return unit, np.take_along_axis(component, np.broadcast_to(to_component, component.shape), -1)


def _some_alike(numbers: Array) -> bool:
    """True if two numbers along the last axis are equal."""
    ordered = np.sort(numbers, -1)
    return bool((ordered[..., 1:] == ordered[..., :-1]).any())


def _variance(x: Array, centre: Array) -> Array:
    """Variance of each feature, over draws, units and components; infinite, so that it does not count,
    where it is constant.
    """
    axes = tuple(range(x.ndim - 1))
    variance, size = ((x - centre) ** 2).mean(axes), (x**2).mean(axes)
    return np.where(variance > (64 * np.finfo(float).eps) ** 2 * size, variance, np.inf)


def _moved(draws: Features, unit: Array, component: Array) -> Features:
    own = np.take_along_axis(draws.own, unit[..., None], 1)
    within = np.take_along_axis(draws.within, unit[..., None, None], 1)
    return Features(own, np.take_along_axis(within, component[..., None], 2))


def _distances(x: Array, centre: Array, spread: Array) -> Array:
    """Squared, (draw, A, B) between the rows of x (draw, A, F) and of one centre (B, F);
    features without a centre do not count.
    """
    known = ~np.isnan(centre).any(0)
    scale = np.sqrt(spread[known])
    left, right = x[..., known] / scale, centre[:, known] / scale
    return (left**2).sum(-1)[..., None] - 2 * left @ right.T + (right**2).sum(-1)


def _assigned(
    draws: Features, centres: Features, spread: Features, units_may: Array, components_may: Array
) -> tuple[Array, Array]:
    """The best permutation of each draw: of components for every pair of an old and a new unit, then of units."""
    count, units, components = draws.within.shape[:3]
    if (size := max(1, CHUNK // (units * components) ** 2)) < count:
        parts = (Features(draws.own[i : i + size], draws.within[i : i + size]) for i in range(0, count, size))
        found = [_assigned(part, centres, spread, units_may, components_may) for part in parts]
        return np.concatenate([unit for unit, _ in found]), np.concatenate([component for _, component in found])
    cost = _distances(draws.own, centres.own[0], spread.own)
    flat, aim = draws.within.reshape(count, units * components, -1), centres.within[0].reshape(units * components, -1)
    pairs = _distances(flat, aim, spread.within).reshape(count, units, components, units, components).swapaxes(2, 3)
    pairs = np.where(components_may, pairs, np.inf)
    inside = np.zeros((count, units, units, components), int) + np.arange(components)
    if components > 1:
        may = np.broadcast_to(units_may, cost.shape)
        inside[may] = best = _least(pairs[may])
        cost[may] += np.take_along_axis(pairs[may], best[:, None], 1).sum((1, 2))
    unit = _least(np.where(units_may, cost, np.inf))
    return unit, inside[np.arange(count)[:, None], unit, np.arange(units)]


def _least(cost: Array) -> Array:
    """The row of every column in the one-to-one assignment of the least sum, (draw, A, A) -> (draw, A).

    Where the smallest entries of the columns lie in rows of their own they are the answer.
    """
    rows = cost.argmin(1)
    for i in np.flatnonzero((np.sort(rows, -1) != np.arange(rows.shape[-1])).any(-1)):
        _, columns = linear_sum_assignment(cost[i])
        rows[i] = np.argsort(columns)
    return rows


def _permuted(variables: Mapping[str, Variable], places: Mapping[str, Variable]) -> dict[str, Variable]:
    """Every variable with an axis ``unit`` in the new numbering."""
    result = {}
    for name, (dims, array) in variables.items():
        x = xarray.Variable(dims, array)
        for axis, old in places.items():
            if {"unit", axis} <= set(dims):
                x = x.isel({axis: xarray.Variable(*old)})
        result[name] = (dims, x.transpose(*dims).values)
    return result


def _statement(
    places: Mapping[str, Variable], classes: Mapping[str, Variable], separated_by: Mapping[str, tuple[str, ...]]
) -> str:
    """Say in words what was done."""
    said = []
    for name, (_, found) in places.items():
        if name in classes and found.shape[-1] > 1:
            dims, numbers = classes[name]
            if not _some_alike(np.moveaxis(numbers, list(dims).index(name), -1)):
                why = ", ".join(separated_by.get(name, ()))
                said.append(
                    f"{name}s are not exchangeable{f' (they differ in {why})' if why else ''}: left as they are"
                )
                continue
            moved = (found != np.arange(found.shape[-1])).any(tuple(range(2, found.ndim)))
            said.append(f"exchangeable {name}s relabelled: {moved.sum()} of {moved.size} draws changed")
    return "; ".join(said) or "a single unit: nothing to relabel"
