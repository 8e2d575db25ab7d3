"""The answers that a posterior gives to queries along a line."""

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style


def answer_band(
    queries: "ArrayLike",
    answers: "ArrayLike",
    band: "ArrayLike",
    points: "tuple[ArrayLike, ArrayLike] | None" = None,
    ax: Axes | None = None,
    *,
    label: str = "band",
) -> Axes:
    """Show the mean answer to queries of one dimension, and a band around it.

    Parameters
    ----------
    queries, answers
        (Q,): places of the queries, in any order, and one coordinate of the answers, such as
        ``said.expected_outputs[:, 0]``.
    band
        (2, Q): its lower and upper end, ``said.band("expected_outputs")[..., 0]`` for the mean answer, or quantiles of
        ``said.output_distribution.sample((n,))`` for the answers themselves.
    points
        Queries and answers of data to draw among them, (n,) each.
    ax
        Axes to draw on, such as those of another band; a new figure if None.
    label
        Name of the band, for the legend.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Other shapes, NaN or infinity, or a lower end above the upper one.
    """
    at = _given.numbers("queries", queries, "(Q,)")
    mean = _given.numbers("answers", answers, f"({len(at)},)", "give one for each query")
    ends = _given.numbers("band", band, f"(2, {len(at)})", "give one for each query")
    if (ends[0] > ends[1]).any():
        raise ValueError("band: its lower end lies above the upper one; give the lower one first")
    ax, order, color = _style.axes(ax), np.argsort(at), _style.UNIT_COLORS[0]
    ax.fill_between(at[order], *ends[:, order], color=color, alpha=0.25, linewidth=0, label=label)
    (line,) = ax.plot(at[order], mean[order], color=color)
    if "mean answer" not in ax.get_legend_handles_labels()[1]:
        line.set_label("mean answer")
    if points is not None:
        places, seen = (_given.numbers("points", x, "(n,)") for x in points)
        _given.counted("points", seen, len(places), f"there are {len(places)} queries", "answers")
        ax.plot(places, seen, "o", color=_style.INK, markersize=3.5, label="data")
    return _style.finished(ax, "query", "answer", True)


__all__ = ["answer_band"]
