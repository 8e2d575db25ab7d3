"""Clicks: marks from clicks, and the game of clicks that scores a method.

Labels are positive integers here; 0 is "unmarked" in marks and "not scored" in a true mask. Protocol: one click in the
middle of each class, then, again and again, one in the middle of the largest wrong piece (4-connected), with its true
label. The middle of a piece is its pixel farthest from the piece's border, the picture's frame being a border too; of
equals the first in reading order, so the game has no chance in it.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from scipy import ndimage

from probtx_pyro.metrics import intersection_over_union

Click = tuple[int, int, int]
"""A click: row, column, class."""


class ClickGame(NamedTuple):
    """Clicks and scores of a game.

    clicks: (y, x, label) in order.
    counts: how many clicks each row of scores has seen, from the number of classes to ``num_clicks``.
    scores: intersection over union of each class, shape (count, class); repeated once nothing is wrong any more.
    """

    clicks: list[Click]
    counts: list[int]
    scores: np.ndarray


def marks_from_clicks(shape: tuple[int, int], clicks: Iterable[Click]) -> np.ndarray:
    """Return marks (H, W), int32; of two clicks on one pixel the later counts.

    Parameters
    ----------
    shape
        Height and width of the picture.
    clicks
        Row, column and label of each click.

    Raises
    ------
    ValueError
        A click outside the picture, or a label below 1.

    Examples
    --------
    >>> marks_from_clicks((2, 3), [(0, 1, 7), (1, 2, 5)]).tolist()
    [[0, 7, 0], [0, 0, 5]]
    """
    marks = np.zeros(shape, np.int32)
    for y, x, label in clicks:
        if not (0 <= y < shape[0] and 0 <= x < shape[1]):
            raise ValueError(
                f"click {y},{x},{label} lies outside the picture: y is 0..{shape[0] - 1}, x is 0..{shape[1] - 1}"
            )
        if label < 1:
            raise ValueError(f"click {y},{x},{label} has a label below 1; 0 stands for unmarked")
        marks[y, x] = label
    return marks


def middle(region: np.ndarray) -> tuple[int, int]:
    """Return the pixel (y, x) of a boolean region (H, W) farthest from the region's border.

    >>> middle(np.ones((5, 9), bool))
    (2, 2)
    """
    depth = ndimage.distance_transform_edt(np.pad(region, 1))[1:-1, 1:-1]
    y, x = np.unravel_index(np.argmax(depth), depth.shape)
    return int(y), int(x)


def first_clicks(truth: np.ndarray) -> list[Click]:
    """Return one click in the middle of each class of a true mask (H, W)."""
    return [(*middle(truth == label), int(label)) for label in np.unique(truth[truth > 0])]


def next_click(truth: np.ndarray, predicted: np.ndarray) -> Click | None:
    """Return a click in the middle of the largest piece that is wrong; None where nothing is.

    Parameters
    ----------
    truth
        (H, W) true mask.
    predicted
        (H, W) labels of a method.
    """
    pieces, count = ndimage.label((predicted != truth) & (truth > 0))
    if not count:
        return None
    y, x = middle(pieces == 1 + np.argmax(np.bincount(pieces.ravel())[1:]))
    return y, x, int(truth[y, x])


def play_clicks(segment: Callable[[list[Click]], np.ndarray], truth: np.ndarray, num_clicks: int = 10) -> ClickGame:
    """Play the protocol.

    Parameters
    ----------
    segment
        Turns the clicks so far into a mask (H, W) of their labels.
    truth
        (H, W) true mask.
    num_clicks
        Clicks of the whole game.

    Raises
    ------
    ValueError
        A true mask of fewer than two classes, or fewer clicks than classes.
    """
    clicks = first_clicks(truth)
    if not 2 <= len(clicks) <= num_clicks:
        raise ValueError(f"the game needs 2 to num_clicks={num_clicks} classes in the true mask, not {len(clicks)}")
    counts, scores = list(range(len(clicks), num_clicks + 1)), list[np.ndarray]()
    for count in counts:
        if len(clicks) < count:
            scores.append(scores[-1])
            continue
        predicted = segment(list(clicks))
        scores.append(intersection_over_union(truth, predicted))
        if count < num_clicks and (click := next_click(truth, predicted)) is not None:
            clicks.append(click)
    return ClickGame(clicks, counts, np.array(scores))
