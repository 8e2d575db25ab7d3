"""The answer drawn over the picture."""

import numpy as np
from scipy import ndimage

from probtx_pyro.apps.segmentation._segmenter import Segmentation

# Okabe and Ito's colours, told apart by people who confuse red and green.
COLOURS = np.array(
    [(0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0), (240, 228, 66)],
    np.uint8,
)  # fmt: skip


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
    strength = 0.55 * answer.probabilities.max(-1, keepdims=True)
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
