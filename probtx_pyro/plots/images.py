"""Small pictures side by side: those stored, those shown, those retrieved."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style

INKED = "gray_r"  # large is dark, as on paper


def image_rows(
    rows: "Mapping[str, ArrayLike]",
    column_labels: Sequence | None = None,
    ax: Axes | None = None,
    *,
    own_scale: Collection[str] = (),
) -> Axes:
    """Show a titled row of grey pictures for each entry, one column for each picture: original, corrupted, retrieved.

    Parameters
    ----------
    rows
        From titles to pictures (N, H, W), all of one shape. One grey scale serves all rows, so that they can be compared.
    column_labels
        N names, written above.
    ax
        Axes to draw on; a new figure if None.
    own_scale
        Titles of rows that measure something else (an uncertainty): in colour, from 0 to their largest entry, which the title tells.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Shapes or labels that do not fit, NaN or infinity, a title in ``own_scale`` that no row has.
    """
    if not rows:
        raise ValueError("rows is empty; give at least one row of pictures (N, H, W)")
    pictures = {title: _given.numbers(f"rows[{title!r}]", x, 3, "(N, H, W)") for title, x in rows.items()}
    shapes = {title: x.shape for title, x in pictures.items()}
    if len({*shapes.values()}) > 1:
        raise ValueError(f"rows must hold pictures of one shape but have {shapes}; give every row the same (N, H, W)")
    if unknown := {*own_scale} - {*rows}:
        raise ValueError(f"own_scale names {sorted(unknown)} but the rows are {list(rows)}; use their titles")
    count, height, width = next(iter(shapes.values()))
    names = _given.names("column_labels", column_labels, count, f"there are {count} columns") or []
    shared = np.concatenate([x.ravel() for title, x in pictures.items() if title not in own_scale] or [np.zeros(1)])
    gap = max(1, width // 8)
    ax = _style.axes(ax, 1.3 + 0.75 * count, 0.3 + 0.75 * len(pictures) * height / width)
    canvas = np.ones((len(pictures) * (height + gap) - gap, count * (width + gap) - gap, 3))
    titles = []
    for row, (title, x) in enumerate(pictures.items()):
        own = title in own_scale
        low, high = (0.0, float(x.max())) if own else (float(shared.min()), float(shared.max()))
        shades = colormaps[_style.SEQUENTIAL if own else INKED](((x - low) / (high - low or 1.0)).clip(0, 1))[..., :3]
        for column in range(count):
            top, left = row * (height + gap), column * (width + gap)
            canvas[top : top + height, left : left + width] = shades[column]
        titles.append(f"{title}\n(0 to {high:.2g})" if own else title)
    ax.imshow(canvas, interpolation="nearest")
    ax.set_yticks([row * (height + gap) + (height - 1) / 2 for row in range(len(pictures))], titles)
    ax.set_xticks([column * (width + gap) + (width - 1) / 2 for column in range(len(names))], names)
    ax.tick_params(length=0, labeltop=True, labelbottom=False)
    ax.spines[:].set_visible(False)
    return ax


__all__ = ["image_rows"]
