"""Pictures of an approximation: its objective at every iteration, its marginals beside exact ones."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style
from probtx_pyro.plots._given import Result


def objective_trace(objective: "ArrayLike | Result", labels: Sequence | None = None, ax: Axes | None = None) -> Axes:
    """Show the objective at the start and after every step, one line for each problem, labelled at its end.

    Parameters
    ----------
    objective
        (iteration,) or (iteration, ...); or what has it: a result with ``.objective`` such as that of
        `inference.adapt`, or ArviZ data with the group ``iterations``.
    labels
        One for each problem; without them several lines stay unnamed.
    ax
        Axes to draw on; a new figure if None.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Not numbers, NaN or infinity, no iteration, or labels that do not count the problems.
    """
    trace = _given.field(objective, "objective", "iterations")
    trace = _given.numbers("objective", trace, "(iteration, ...)", "give fit.objective")
    if not len(trace):
        raise ValueError("objective has no iteration; give fit.objective")
    trace = trace.reshape(len(trace), -1)
    names = _given.names("labels", labels, trace.shape[1], "problems")
    ax = _style.axes(ax)
    for problem, line in enumerate(trace.T):
        ax.plot(line, color=_style.unit_color(problem), marker="o", markersize=2.5, linewidth=1.4)
    if names:
        ax.set_xlim(right=(len(trace) - 1) * 1.25 + 0.5)  # room for the names
        for problem, height in enumerate(_apart(trace[-1], 0.06 * float(np.ptp(trace)))):
            end = (len(trace) - 1, trace[-1, problem])
            color, place = _style.unit_color(problem), (1.03 * end[0] + 0.2, height)
            ax.annotate(names[problem], end, place, color=color, va="center", fontsize=8)
    return _style.finished(ax, "iteration", "objective (log joint)")


def _apart(heights: np.ndarray, least: float) -> np.ndarray:
    """The heights, pushed up where needed so that neighbours are ``least`` apart and their names do not overlap."""
    placed = heights.copy()
    order = np.argsort(heights, kind="stable")
    for lower, upper in pairwise(order):
        placed[upper] = max(placed[upper], placed[lower] + least)
    return placed - (placed - heights).mean()


def marginal_agreement(
    exact: "Sequence[ArrayLike]",
    approximate: "Sequence[ArrayLike]",
    labels: Sequence | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Show each probability of an approximation over the exact one; on the diagonal they agree.

    Above it on the right and below it on the left the approximation is too sure of itself.

    Parameters
    ----------
    exact, approximate
        Arrays of probabilities, pair by pair of one shape: of heads, of labels.
    labels
        One for each pair.
    ax
        Axes to draw on; a new figure if None.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Nothing to draw, shapes that differ, probabilities off the unit interval, or labels that do not count the pairs.

    Examples
    --------
    >>> ax = marginal_agreement([[0.2, 0.8]], [[0.1, 0.9]], ["heads"])
    >>> ax.get_legend().get_texts()[0].get_text()
    'heads'
    >>> from matplotlib import pyplot
    >>> pyplot.close(ax.figure)
    """
    if len(exact) == 0 or len(exact) != len(approximate):
        raise ValueError(f"exact has {len(exact)} arrays and approximate {len(approximate)}; give one of each a pair")
    names = _given.names("labels", labels, len(exact), "pairs", [""] * len(exact))
    ax = _style.axes(ax, 3.8, 3.8)
    ax.plot([0, 1], [0, 1], color="#999999", linewidth=1, zorder=0)
    for i, label in enumerate(names):
        pair = {f"exact[{i}]": exact[i], f"approximate[{i}]": approximate[i]}
        x, y = (_given.shares(name, p, "(...)", "give probabilities, not logits") for name, p in pair.items())
        if x.shape != y.shape:
            raise ValueError(f"exact[{i}] has shape {x.shape} but approximate[{i}] {y.shape}; give the same variables")
        _style.points(ax, i, x.ravel(), y.ravel(), markersize=4.5, alpha=0.6, label=label)
    return _style.finished(ax, "exact probability", "approximate probability", labels is not None, aspect="equal")
