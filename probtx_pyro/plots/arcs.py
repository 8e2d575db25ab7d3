"""Dependency trees as arcs over a sentence, and those that the channels of attention suggest."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style

Arc: TypeAlias = tuple[int, int, str, str, float]  # word, head, kind (of ARC_STYLES), name, weight
ARC_STYLES: dict[str, dict[str, Any]] = {  # told apart in black and white as well
    "as gold": {"color": _style.UNIT_COLORS[0], "linestyle": "-"},
    "not gold": {"color": _style.UNIT_COLORS[5], "linestyle": (0, (4, 1.5))},
    "gold, missed": {"color": "#777777", "linestyle": (0, (1, 1.5))},
}
WIDEST, PANEL = 11.0, 5.5  # inches of a sentence alone, and in a panel; words that need more stand upright
LETTER, GAP, TURNED = 0.085, 0.2, 0.34  # inches: a letter, between words, and from one upright word to the next


def dependency_arcs(
    words: Sequence[str],
    heads: "ArrayLike",
    gold: "ArrayLike | None" = None,
    labels: Sequence[str] | None = None,
    weights: "ArrayLike | None" = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw words on a line and an arc from each head to its dependent, where the arrow points;
    the root comes from above.

    Parameters
    ----------
    words
        The sentence.
    heads
        (N,): 0 for the root, j for the j-th word, counted from 1; -1 for a word without an arc.
    gold
        (N,) heads to compare with, -1 where there is none: arcs that differ are dashed and in another colour, and the
        gold arcs that they miss are dotted.
    labels
        One for each arc, such as its dependency relation; an empty one is not drawn.
    weights
        (N,) from 0 to 1, such as the probability of each arc: from faint and thin to opaque and thick.
    ax
        Axes to draw on; a new figure if None.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Words that are no strings, arguments that do not count them, something that is no head, or weights off the unit
        interval.
    """
    words = _given.words("words", words, "heads")
    count = len(words)
    chosen = _heads("heads", heads, count)
    truth = _heads("gold", np.full(count, -1) if gold is None else gold, count)
    weights = np.ones(count) if weights is None else weights
    strength = _given.shares("weights", weights, "(word,)", "divide by the largest")
    names = _given.names("labels", labels, count, "words", [""] * count)
    _given.counted("weights", strength, count, "words")
    arcs = _compared(chosen, truth, names, strength)
    wrong = np.flatnonzero((truth >= 0) & (truth != chosen)).tolist()
    missed = [(i + 1, int(truth[i]), "gold, missed", "", 0.5) for i in wrong]
    room = WIDEST if ax is None else ax.get_window_extent().width / ax.figure.dpi
    ax = _draw(words, arcs + missed, room, ax)
    if gold is not None:
        _legend(ax, list(ARC_STYLES))
    return ax


def channel_arcs(words: Sequence[str], marginals: "ArrayLike", gold: "ArrayLike | None" = None) -> np.ndarray:
    """Draw a panel for each channel of attention, two side by side: the likeliest head of each word,
    the stronger the more probable.

    Parameters
    ----------
    words
        The sentence.
    marginals
        (C, N, N), or (C, N, N + 1) with the root first: how probable each head of each word is. A word without any has
        no arc.
    gold
        As in `dependency_arcs`.

    Returns
    -------
    array
        (C,) of Axes, of a new figure.

    Raises
    ------
    ValueError
        Words that are no strings, marginals of another shape or off the unit interval, or a ``gold`` that does not
        count the words.
    """
    words = _given.words("words", words, "marginals")
    array = _given.shares("marginals", marginals, "(channel, word, head)", "divide by the largest")
    channels, count, slots = array.shape
    if channels == 0 or count != len(words) or slots - count not in (0, 1):
        raise ValueError(f"marginals must have shape (C, N, N) or (C, N, N + 1), N = {len(words)}, not {array.shape}")
    root = slots - count
    others = np.where(np.eye(count, slots, root, dtype=bool), 0, array)
    strongest = others.max(-1)
    heads = np.where(strongest > 0, others.argmax(-1) + 1 - root, -1)
    columns = min(2, channels)
    rows = -(-channels // columns)
    truth = _heads("gold", np.full(count, -1) if gold is None else gold, count)
    width = min(PANEL, float(_widths(words, PANEL)[0].sum()))
    size = columns * (width + 0.4), rows * 2.2 + 0.3
    grid = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)[1].ravel()
    panels = grid[:channels]
    for unused in grid[channels:]:
        unused.remove()
    for channel, ax in enumerate(panels):
        _draw(words, _compared(heads[channel], truth, [""] * count, strongest[channel]), PANEL, ax)
        ax.set_title(f"channel {channel}", fontsize=9, loc="right")
    if gold is not None:
        _legend(panels[0], ["as gold", "not gold"])
    return panels


def _compared(heads: np.ndarray, gold: np.ndarray, names: Sequence[str], weights: np.ndarray) -> list[Arc]:
    """The arcs of words that have a head, and whether the gold ones are others."""
    kinds = np.where((gold >= 0) & (gold != heads), "not gold", "as gold")
    rows = zip(heads.tolist(), kinds.tolist(), names, weights.tolist(), strict=True)
    return [(word, *row) for word, row in enumerate(rows, start=1) if row[0] >= 0]


def _draw(words: Sequence[str], arcs: Sequence[Arc], room: float, ax: Axes | None) -> Axes:
    """Words and arcs in inches, as long as the words are not wider than the room."""
    level: dict[tuple[int, int], int] = {}  # how high each arc goes: above all arcs inside it
    spans = {(min(word, head), max(word, head)) for word, head, *_ in arcs if head}
    for low, high in sorted(spans, key=lambda span: span[1] - span[0]):
        level[low, high] = 1 + max((level[a, b] for a, b in level if low <= a and b <= high), default=0)
    top = max(level.values(), default=0) + 1
    width, upright = _widths(words, room)
    place = np.append(0, np.cumsum(width) - width / 2)  # of the root, which has none, and of the words
    ax = _style.axes(ax, max(2.0, width.sum() + 0.3), 0.9 + 0.32 * top + 0.5 * upright)
    for word, head, kind, name, weight in arcs:
        end = place[word]
        start = place[head] + np.sign(word - head) * 0.05 if head else end
        height = level.get((min(word, head), max(word, head)), top)
        points = [(start, 0), (start, height * 4 / 3), (end, height * 4 / 3), (end, 0)]  # a curve of that height
        path = Path(points, [Path.MOVETO] + [Path.CURVE4] * 3) if head else Path([(end, height), (end, 0)])
        look = {"linewidth": 0.7 + 0.9 * weight, "alpha": 0.3 + 0.7 * weight, **ARC_STYLES[kind]}
        ax.add_patch(FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=7, gid=f"{head}-{word}", **look))
        if name:
            look = {"color": _style.INK, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.6}}
            ax.text((start + end) / 2, height, name, ha="center", va="center", fontsize=7, **look)
    ax.set_xticks(place[1:], words, rotation=90 if upright else 0, fontsize=9)
    ax.set(xlim=(-0.15, width.sum() + 0.15), ylim=(0, top + 0.3), yticks=[])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def _widths(words: Sequence[str], room: float) -> tuple[np.ndarray, bool]:
    """Inches for each word, and whether they have to stand upright."""
    width = np.array([GAP + LETTER * max(len(word), 2) for word in words])
    upright = bool(width.sum() > room)
    return (np.full(len(words), TURNED) if upright else width), upright


def _legend(ax: Axes, kinds: Sequence[str]) -> None:
    lines = [Line2D([], [], label=kind, **ARC_STYLES[kind]) for kind in kinds]
    ax.legend(handles=lines, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=7, frameon=False)


def _heads(name: str, given: ArrayLike, count: int) -> np.ndarray:
    heads = _given.array(name, given, None, "(word,)")
    if heads.shape != (count,) or heads.dtype.kind not in "iu":
        raise ValueError(f"{name} must be {count} whole numbers, one a word, not {heads.dtype} of shape {heads.shape}")
    if ((heads < -1) | (heads > count) | (heads == np.arange(1, count + 1))).any():
        raise ValueError(f"{name} has a head that is none of the other words; count words from 1, the root is 0")
    return heads
