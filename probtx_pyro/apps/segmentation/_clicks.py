"""Clicks: marks from clicks, the next click to ask for, the game of clicks that scores a method; and answers drawn over
their picture.

Labels are positive integers here; 0 is "unmarked" in marks and "not scored" in a true mask. Protocol: one click in the
middle of each class, then, again and again, one in the middle of the largest wrong piece (4-connected), with its true
label. The middle of a piece is its pixel farthest from the piece's border, the picture's frame being a border too; of
equals the first in reading order, so the game has no chance in it.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from scipy import ndimage

from probtx_pyro.apps.segmentation._segmenter import Segmentation, depths
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
            raise ValueError(f"click {y},{x},{label} lies outside; y is 0..{shape[0] - 1}, x is 0..{shape[1] - 1}")
        if label < 1:
            raise ValueError(f"click {y},{x},{label} has a label below 1; 0 stands for unmarked")
        marks[y, x] = label
    return marks


def middle(region: np.ndarray) -> tuple[int, int]:
    """Return the pixel (y, x) of a boolean region (H, W) farthest from the region's border.

    >>> middle(np.ones((5, 9), bool))
    (2, 2)
    """
    y, x = np.unravel_index(np.argmax(depths(region)), region.shape)
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


_SHARE = 0.5  # of the largest uncertainty; from so much on a pixel belongs to a piece


def uncertainty(answer: Segmentation) -> np.ndarray:
    """Calibrated probability that the label of each pixel is wrong, ``u_i = 1 - max_c p_ic``, shape (H, W)."""
    return _doubt(answer.probabilities)


def _doubt(probabilities: np.ndarray) -> np.ndarray:
    """Return ``1 - max_c p_ic``, by planes: numpy's maximum over a short last axis takes ten times as long."""
    return 1 - np.maximum.reduce([probabilities[..., c] for c in range(probabilities.shape[-1])])


def suggest_click(answer: Segmentation, marks: np.ndarray) -> tuple[int, int] | None:
    """Return the pixel (y, x) whose class is most worth asking for; None where every pixel is marked.

    It is the middle of the piece in which most pixels are expected to be wrong: pixels of one label with at least half
    of the largest ``u_i = 1 - max_c p_ic``, of the belief before calibration, by which the rule was chosen, make pieces
    (4-connected), and the piece with the largest ``Σ_i u_i``, which is the expected number of its wrong labels, is
    chosen; its middle is its pixel farthest from its border, as in the click protocol. `benchmarks.next_click` compares
    this with the least sure pixel, and with any.

    Parameters
    ----------
    answer
        Answer of `InteractiveSegmenter.segment`.
    marks
        (H, W), 0 for unmarked; what is marked is not asked again.

    Raises
    ------
    ValueError
        Marks of another shape than the answer.

    Examples
    --------
    >>> probabilities = np.full((3, 5, 2), (0.9, 0.1), np.float32)
    >>> probabilities[:, 2:] = 0.5
    >>> answer = Segmentation(np.ones((3, 5), int), probabilities, np.array([1, 2]))
    >>> suggest_click(answer, np.zeros((3, 5), int))
    (1, 3)
    """
    doubt = _doubt(answer.probabilities if answer.belief is None else answer.belief)
    free = np.asarray(marks) == 0
    if free.shape != doubt.shape:
        raise ValueError(f"marks must have the answer's shape {doubt.shape}, not {free.shape}")
    if not free.any():
        return None
    unsure = free & (doubt >= _SHARE * doubt[free].max())
    pieces = np.zeros(doubt.shape, int)
    for label in answer.classes:
        found, _ = ndimage.label(unsure & (answer.mask == label))
        pieces[found > 0] = found[found > 0] + pieces.max()
    chosen = int(np.argmax(ndimage.sum_labels(doubt, pieces, range(1, pieces.max() + 1))))
    return middle(pieces == 1 + chosen)


# Okabe and Ito's colours, told apart by people who confuse red and green.
_OKABE_ITO = (0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0), (240, 228, 66)
COLOURS = np.array(_OKABE_ITO, np.uint8)


_SHADES = np.concatenate([COLOURS, COLOURS * 0.5 + 127.5, COLOURS * 0.6]).round().astype(np.uint8)
LABEL_COLOURS = np.concatenate([np.zeros((1, 3), np.uint8), np.resize(_SHADES, (255, 3))])
"""Colour of each label, uint8 (256, 3): black for 0, then seven colours pure, lighter and darker, over and over."""


def overlay(
    image: np.ndarray, answer: Segmentation, marks: np.ndarray | None = None, palette: np.ndarray | None = None
) -> np.ndarray:
    """Return the picture tinted by class (the surer, the stronger), edges white, marks as dots of their class;
    uint8 (H, W, 3).

    Parameters
    ----------
    image
        uint8 (H, W, 3).
    answer
        Answer of `InteractiveSegmenter.segment`.
    marks
        (H, W), 0 for unmarked.
    palette
        uint8 (256, 3): the colour of each label. Without it colours go round `COLOURS` in the order of the classes.
    """
    colours = COLOURS[np.arange(len(answer.classes)) % len(COLOURS)] if palette is None else palette[answer.classes]
    best = answer.probabilities.argmax(-1)
    strength = 0.55 * (1 - uncertainty(answer))[..., None]
    drawn = (1 - strength) * image + strength * colours[best]
    mask, edge = answer.mask, np.zeros(best.shape, bool)
    edge[:, 1:] |= mask[:, 1:] != mask[:, :-1]
    edge[1:] |= mask[1:] != mask[:-1]
    drawn[edge] = 255
    if marks is not None:
        for class_number, label in enumerate(answer.classes):
            given = marks == label
            drawn[ndimage.binary_dilation(given, iterations=3)] = 255  # by 4-connected steps
            drawn[ndimage.binary_dilation(given, iterations=2)] = colours[class_number]
    return drawn.round().clip(0, 255).astype(np.uint8)
