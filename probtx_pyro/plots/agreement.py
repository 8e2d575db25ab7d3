"""Approximate marginals against exact ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style

MARKERS = "o^sDv<>P"


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
    names = _given.names("labels", labels, len(exact), f"exact has {len(exact)} arrays")
    ax = _style.axes(ax, 3.8, 3.8)
    ax.plot([0, 1], [0, 1], color="#999999", linewidth=1, zorder=0)
    for i, pair in enumerate(zip(exact, approximate, strict=True)):
        x, y = (_probabilities(f"{name}[{i}]", p) for name, p in zip(("exact", "approximate"), pair, strict=True))
        if x.shape != y.shape:
            raise ValueError(f"exact[{i}] has shape {x.shape} but approximate[{i}] {y.shape}; give the same variables")
        look: dict[str, Any] = {"color": _style.unit_color(i), "markersize": 4.5, "alpha": 0.6}
        ax.plot(x.ravel(), y.ravel(), MARKERS[i % 8], label=names and names[i], **look)
    return _style.finished(ax, "exact probability", "approximate probability", labels is not None, aspect="equal")


def _probabilities(name: str, given: ArrayLike) -> np.ndarray:
    array = _given.array(name, given)
    array = _given.numbers(name, array, array.ndim, "(...)")
    return _given.shares(name, array, "give probabilities, not logits", least=-1e-6)


__all__ = ["marginal_agreement"]
