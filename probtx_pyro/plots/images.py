"""Small pictures side by side: those stored, shown, retrieved; and a mask over its photograph,
with the clicks that made it.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style

INKED = "gray_r"  # large is dark, as on paper
FOREGROUND, BACKGROUND = "#E69F00", "#0072B2"


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
        From titles to pictures (N, H, W), all of one shape. One grey scale serves all rows, so that they can be
        compared.
    column_labels
        N names, written above.
    ax
        Axes to draw on; a new figure if None.
    own_scale
        Titles of rows that measure something else (an uncertainty): in colour, from 0 to their largest entry, which the
        title tells.

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
    pictures = {title: _given.numbers(f"rows[{title!r}]", x, "(N, H, W)") for title, x in rows.items()}
    shapes = {title: x.shape for title, x in pictures.items()}
    if len({*shapes.values()}) > 1:
        raise ValueError(f"rows must hold pictures of one shape but have {shapes}; give every row the same (N, H, W)")
    if unknown := {*own_scale} - {*rows}:
        raise ValueError(f"own_scale names {sorted(unknown)} but the rows are {list(rows)}; use their titles")
    count, height, width = next(iter(shapes.values()))
    names = _given.names("column_labels", column_labels, count, "columns")
    shared = np.concatenate([x.ravel() for title, x in pictures.items() if title not in own_scale] or [np.zeros(1)])
    gap = max(1, width // 8)
    ax = _style.axes(ax, 1.3 + 0.75 * count, 0.3 + 0.75 * len(pictures) * height / width)
    lines, titles = [], []
    for title, x in pictures.items():
        own = title in own_scale
        low, high = (0.0, float(x.max())) if own else (float(shared.min()), float(shared.max()))
        shades = colormaps[_style.SEQUENTIAL if own else INKED](((x - low) / (high - low or 1.0)).clip(0, 1))[..., :3]
        lines.append(np.hstack([*np.pad(shades, ((0, 0), (0, gap), (0, gap), (0, 0)), constant_values=1)]))
        titles.append(f"{title}\n(0 to {high:.2g})" if own else title)
    ax.imshow(np.vstack(lines)[:-gap, :-gap], interpolation="nearest")
    ax.set_yticks([row * (height + gap) + (height - 1) / 2 for row in range(len(pictures))], titles)
    ax.set_xticks([column * (width + gap) + (width - 1) / 2 for column in range(len(names))], names)
    ax.tick_params(length=0, labeltop=True, labelbottom=False)
    ax.spines[:].set_visible(False)
    return ax


def segmentation_overlay(
    image: "ArrayLike", mask: "ArrayLike", clicks: "ArrayLike | None" = None, ax: Axes | None = None
) -> Axes:
    """Show a photograph dimmed to grey where the object is not, with the object's outline and numbered clicks.

    Parameters
    ----------
    image
        (H, W, 3) or (H, W): bytes 0..255, or real numbers in [0, 1].
    mask
        (H, W): boolean, or the probability of the object, whose line at 1/2 is the outline.
    clicks
        (N, 3) rows (row, column, label), label 1 on the object (+) and 0 off it (-), numbered in this order.
    ax
        Axes to draw on; a new figure if None.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Shapes that do not fit, or entries of the image or the mask off their scale.
    """
    scale = 255 if np.issubdtype(_given.array("image", image, None).dtype, np.integer) else 1
    pixels = _given.numbers("image", image, "(H, W, 3) or (H, W)", "drop other channels") / scale
    pixels = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, -1)
    if pixels.min() < 0 or pixels.max() > 1:
        raise ValueError("image has real entries outside [0, 1]; scale it, or give bytes 0..255")
    probability = _given.shares("mask", mask, "(H, W)", "compare scores with a threshold first")
    if probability.shape != pixels.shape[:2]:
        raise ValueError(f"mask has shape {probability.shape}, image {pixels.shape[:2]} pixels; resize one of them")
    clicks = np.zeros((0, 3)) if clicks is None else clicks
    points = _given.numbers("clicks", clicks, "(N, 3)", "give row, column and label of each")
    height, width = probability.shape
    ax = _style.axes(ax, 4.5, 4.5 * height / width)
    grey = 0.35 * pixels.mean(-1, keepdims=True) + 0.15
    ax.imshow(probability[..., None] * pixels + (1 - probability[..., None]) * grey, interpolation="nearest")
    if probability.min() < 0.5 < probability.max():
        ax.contour(probability, levels=[0.5], colors=[FOREGROUND], linewidths=1.2)
    for number, (row, column, label) in enumerate(points, start=1):
        color = to_rgb(FOREGROUND if label else BACKGROUND)
        ax.plot(column, row, "o", color=color, markeredgecolor="white", markeredgewidth=1.2, markersize=13)
        text, size = f"{number}{'+' if label else '−'}", 7 if number < 10 else 5.5
        ax.text(column, row, text, color="white", ha="center", va="center", fontsize=size, weight="bold")
    ax.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), xticks=[], yticks=[])
    return ax
