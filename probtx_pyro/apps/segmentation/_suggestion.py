"""The next click: where an answer is least sure."""

import numpy as np
from scipy import ndimage

from probtx_pyro.apps.segmentation._clicks import middle
from probtx_pyro.apps.segmentation._segmenter import Segmentation

_SHARE = 0.5  # of the largest uncertainty; from so much on a pixel belongs to a piece


def uncertainty(answer: Segmentation) -> np.ndarray:
    """Calibrated probability that the label of each pixel is wrong, ``u_i = 1 - max_c p_ic``, shape (H, W)."""
    return 1 - answer.probabilities.max(-1)


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
    doubt = 1 - (answer.probabilities if answer.belief is None else answer.belief).max(-1)
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
    box = ndimage.find_objects(pieces)[chosen]
    y, x = middle(pieces[box] == 1 + chosen)
    return box[0].start + y, box[1].start + x
