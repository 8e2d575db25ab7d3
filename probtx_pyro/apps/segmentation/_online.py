"""One mark after another: the answer before is the prior, and the place of a mark says how far it reaches."""

import numpy as np
from scipy import ndimage

from probtx_pyro.apps.segmentation._settings import SegmentationSettings

_SURE = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
_LEAST = 1e-4
_AHEAD = 0.8  # the class that stays has (1 + 0.8) / 2 of what both have


def after(before: np.ndarray, found: np.ndarray, fresh: np.ndarray, settings: SegmentationSettings) -> np.ndarray:
    """Return the answer after new marks, given the one before them.

    The belief is ``p_i ∝ before_i^ω found_i``. Three rules bound what a mark of class c changes in the mask. It turns pixels to c
    and to nothing else. It turns those that one piece with the mark holds, of the pixels where p_ic > τ. And it lies in the
    middle of that piece, since people click in the middle of what is wrong: τ is the least of a few values for which the
    deepest pixel of the piece is at most κ times as deep as the mark (depth: distance from the border of the piece, the frame
    being one); where that is less, or no τ does, the piece of the least τ is taken, and ends at the mark's depth about it.
    Elsewhere, where the belief would change the class, the one before stays, and gets nine tenths of what both have.

    Parameters
    ----------
    before, found
        (H, W, class) answer to the marks before, and to all marks without regard to their order.
    fresh
        (H, W) class number of each new mark, -1 elsewhere.
    settings
        ω is ``previous_weight`` and κ ``middle_ratio``.
    """
    belief = before.clip(_LEAST, 1) ** np.float32(settings.previous_weight) * found
    belief /= belief.sum(-1, keepdims=True)
    old = before.argmax(-1)
    result = _held(belief, old)
    for number in np.unique(fresh[fresh >= 0]):
        marks = (fresh == number) & (old != number)
        if not marks.any():
            continue
        about = np.zeros_like(marks)
        for sure in _SURE:
            turned = _pieces((old != number) & ((belief[..., number] > sure) | marks), marks)
            depth = _depth(turned)
            reach = depth[marks].max()
            if depth.max() <= settings.middle_ratio * reach + 1:
                break
            if sure == _SURE[0]:
                about = turned & (ndimage.distance_transform_edt(~marks) <= reach)
        else:
            turned = about
        if about.sum() > turned.sum():
            turned = about
        result[turned] = belief[turned]
    return result


def _held(belief: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Return the belief (H, W, class) with the classes (H, W) of before: where it prefers another, the old one gets the most of what both have."""
    result, contested = belief.copy(), belief.argmax(-1) != old
    rows, kept = belief[contested], old[contested]
    each, new = np.arange(len(rows)), rows.argmax(-1)
    half = (rows[each, new] + rows[each, kept]) / 2
    rows[each, new], rows[each, kept] = half * (1 - _AHEAD), half * (1 + _AHEAD)
    result[contested] = rows
    return result


def _pieces(region: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """Return the 4-connected pieces of a region (H, W) that hold marks."""
    pieces, count = ndimage.label(region)
    kept = np.zeros(count + 1, bool)
    kept[pieces[marks]] = True
    return kept[pieces]


def _depth(region: np.ndarray) -> np.ndarray:
    """Return the distance of each pixel of a region (H, W) from its border; computed in its bounding box, for speed."""
    ((down, across),) = ndimage.find_objects(region.astype(np.int8))
    depth = np.zeros(region.shape)
    depth[down, across] = ndimage.distance_transform_edt(np.pad(region[down, across], 1))[1:-1, 1:-1]
    return depth
