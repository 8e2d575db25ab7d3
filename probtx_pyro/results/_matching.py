"""The permutation of units (and components) that brings every draw nearest to the centres: linear assignment, in numpy.

Centres and spreads follow from the draws as renumbered, and the draws are renumbered again, until nothing moves: the
likelihood of draws that are normal about the centre of their unit, with one variance for each feature, never falls.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from probtx_pyro.results._arviz import Variable

Array = NDArray[Any]
DERIVED = ("attention",)  # follows the parameters, and is not matched
NUM_STEPS = 20
CHUNK = 2**22  # distances held at a time, over draws and pairs


class Permutations(NamedTuple):
    """Which old unit every new one is, and which old component of that unit: (draw, problem, U) and (draw, problem, U, R).

    problems: names of the axes that ``problem`` counts.
    """

    problems: tuple[str, ...]
    units: Array
    components: Array


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
    dims, array = list(variable[0]), variable[1]
    kept = [dim for dim in order if dim in dims]
    array = np.moveaxis(array, [dims.index(dim) for dim in kept], range(len(kept)))
    sizes = dict(zip(kept, array.shape, strict=False))
    return array.reshape(*(sizes.get(dim, 1) for dim in order), -1)


def matched(
    variables: Mapping[str, Variable],
    classes: Mapping[str, Variable],
    start: tuple[int, int],
    reference: Mapping[str, ArrayLike] | None = None,
    logarithmic: Collection[str] = (),
) -> Permutations:
    """The permutation of every draw, for every problem.

    ``classes``: of units (*problems, unit) and, if need be, of components (*problems, unit, component); only equal numbers may
    change places. The numbering is that of draw ``start`` (chain, draw), or of the reference. Variables named in ``logarithmic`` are
    compared by their logarithm.
    """
    problems = problem_axes(variables)
    given = {
        name: (dims, _scaled(name, x, logarithmic)) for name, (dims, x) in variables.items() if _matters(name, dims)
    }
    draws = _features(given, problems)
    if reference is None:
        aims = {name: (dims, x[start][None, None]) for name, (dims, x) in given.items()}
    else:
        if unknown := set(reference) - set(given):
            raise ValueError(f"reference: {min(unknown)} is no parameter of units here; choose from {', '.join(given)}")
        aims = {
            name: (dims, _reference(name, reference, x.shape[2:], logarithmic)) for name, (dims, x) in given.items()
        }
    (units, components), sizes = draws.within.shape[2:4], [given_size(given, dim) for dim in problems]
    of_units = arranged(classes["unit"], (*problems, "unit"))
    of_components = arranged(
        classes.get("component", (("component",), np.arange(components))), (*problems, "unit", "component")
    )
    unit_classes = np.broadcast_to(of_units[..., 0], (*sizes, units)).reshape(-1, units)
    component_classes = np.broadcast_to(of_components[..., 0], (*sizes, units, components))
    component_classes = component_classes.reshape(-1, units, components)
    aim = _features(aims, problems)
    found = [
        _match(
            Features(draws.own[:, p], draws.within[:, p]),
            Features(aim.own[:, p], aim.within[:, p]),
            unit_classes[p][:, None] == unit_classes[p],
            component_classes[p][:, None, :, None] == component_classes[p][None, :, None, :],
        )
        for p in range(len(unit_classes))
    ]
    return Permutations(problems, *(np.stack(arrays, 1) for arrays in zip(*found, strict=True)))


class Features(NamedTuple):
    """Numbers that are compared: of units, ``own`` (draw, [problem,] U, F); of their components, ``within`` (draw, [problem,] U, R, G)."""

    own: Array
    within: Array


def given_size(variables: Mapping[str, Variable], dim: str) -> int:
    """Entries along a dimension."""
    return next(x.shape[dims.index(dim)] for dims, x in variables.values() if dim in dims)


def _scaled(name: str, x: Array, logarithmic: Collection[str]) -> Array:
    if not np.isfinite(x).all():
        raise ValueError(f"{name} contains NaN or infinity; look at the run before its units are relabelled")
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
    order = ("chain", "draw", *problems, "unit", "component")
    blocks = [arranged(variable, order) for variable in variables.values()]
    components = max(block.shape[-2] for block in blocks)
    *leading, units, _, _ = blocks[0].shape
    shape = (leading[0] * leading[1], int(np.prod(leading[2:], dtype=int)), units)
    none = np.zeros((*leading, units, components, 0))
    own = [none[..., :1, :], *(x for x in blocks if x.shape[-2] < components or components == 1)]
    within = [none, *(x for x in blocks if x.shape[-2] == components > 1)]
    own_shape, within_shape = (*shape, -1 if len(own) > 1 else 0), (*shape, components, -1 if len(within) > 1 else 0)
    return Features(np.concatenate(own, -1).reshape(own_shape), np.concatenate(within, -1).reshape(within_shape))


def _match(draws: Features, aim: Features, units_may: Array, components_may: Array) -> tuple[Array, Array]:
    """Permutations of one problem, (draw, U) and (draw, U, R); the booleans say who may take whose place."""
    count, units, components = draws.within.shape[:3]
    same = (
        np.broadcast_to(np.arange(units), (count, units)),
        np.broadcast_to(np.arange(components), (count, units, components)),
    )
    if (
        not (units_may & ~np.eye(units, dtype=bool)).any()
        and components_may[range(units), range(units)].sum() == units * components
    ):
        return same
    centres, spread = aim, Features(*(_variance(x, x.mean((0, 1) if x is draws.own else (0, 1, 2))) for x in draws))
    found = same
    for step in range(NUM_STEPS):
        new = _assigned(draws, centres, spread, units_may, components_may)
        if step and all(np.array_equal(x, y) for x, y in zip(new, found, strict=True)):
            break
        found, moved = new, _moved(draws, *new)
        centres = Features(*(x.mean(0, keepdims=True) for x in moved))
        spread = Features(*(_variance(x, centre) for x, centre in zip(moved, centres, strict=True)))
    to_unit, to_component = _assigned(centres, aim, spread, units_may, components_may)
    unit, component = found
    unit, component = unit[:, to_unit[0]], component[:, to_unit[0]]
    return unit, np.take_along_axis(component, np.broadcast_to(to_component, component.shape), -1)


def _variance(x: Array, centre: Array) -> Array:
    """Variance of each feature, over draws, units and components; infinite, so that it does not count, where it is constant."""
    axes = tuple(range(x.ndim - 1))
    variance, size = ((x - centre) ** 2).mean(axes), (x**2).mean(axes)
    return np.where(variance > (64 * np.finfo(float).eps) ** 2 * size, variance, np.inf)


def _moved(draws: Features, unit: Array, component: Array) -> Features:
    own = np.take_along_axis(draws.own, unit[..., None], 1)
    within = np.take_along_axis(draws.within, unit[..., None, None], 1)
    return Features(own, np.take_along_axis(within, component[..., None], 2))


def _distances(x: Array, centre: Array, spread: Array) -> Array:
    """Squared, (draw, A, B) between the rows of x (draw, A, F) and of one centre (B, F); features without a centre do not count."""
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


def highest(lp: np.ndarray) -> tuple[int, int]:
    """Chain and draw of the highest log density (chain, draw)."""
    chain, draw = np.unravel_index(int(np.argmax(lp)), lp.shape)
    return int(chain), int(draw)


def permuted(variables: Mapping[str, Variable], permutations: Permutations) -> dict[str, Variable]:
    """Every variable with an axis ``unit`` in the new numbering."""
    result: dict[str, Variable] = {}
    for name, (dims, array) in variables.items():
        if "unit" not in dims:
            result[name] = (dims, array)
            continue
        order = ("chain", "draw", *permutations.problems, "unit", "component")
        kept = [dim for dim in order if dim in dims]
        axes = [dims.index(dim) for dim in kept]
        front = np.moveaxis(array, axes, range(len(axes)))
        work = arranged((dims, array), order)
        shape = work.shape
        unit = permutations.units.reshape(*shape[:-2], 1, 1)
        work = np.take_along_axis(work, unit, -3)
        if shape[-2] > 1:
            work = np.take_along_axis(work, permutations.components.reshape(*shape[:-1], 1), -2)
        result[name] = (dims, np.moveaxis(work.reshape(front.shape), range(len(axes)), axes))
    return result


def statement(
    permutations: Permutations,
    classes: Mapping[str, Variable],
    separated_by: Mapping[str, tuple[str, ...]] | None = None,
) -> str:
    """Say in words what was done."""
    said = []
    for name, found in (("unit", permutations.units), ("component", permutations.components)):
        if name in classes and found.shape[-1] > 1:
            dims, numbers = classes[name]
            ordered = np.sort(np.moveaxis(numbers, list(dims).index(name), -1), -1)
            if not (ordered[..., 1:] == ordered[..., :-1]).any():
                why = ", ".join((separated_by or {}).get(name, ()))
                said.append(
                    f"{name}s are not exchangeable{f' (they differ in {why})' if why else ''}: left as they are"
                )
                continue
            moved = (found != np.arange(found.shape[-1])).reshape(len(found), -1).any(-1)
            said.append(f"exchangeable {name}s relabelled: {moved.sum()} of {len(moved)} draws changed")
    return "; ".join(said) or "a single unit: nothing to relabel"
