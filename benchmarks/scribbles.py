"""Scribbles like a person's, drawn from a true mask by a rule with a seed."""

import numpy as np
from scipy import ndimage
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import dijkstra
from skimage.morphology import medial_axis

WIDTH = 3  # pixels across
SMOOTHING = 4.0  # standard deviation along the stroke, pixels


def scribbles(truth: np.ndarray, strokes: int, seed: int) -> np.ndarray:
    """Draw marks (H, W), int32: ``strokes`` strokes of each class.

    The rule. Of the medial axis of a class (the frame is a border) those points count whose depth is at least a third of the
    deepest point's: strokes keep off borders. A stroke begins at one of them, drawn at random with weight ∝ depth, and goes
    along the axis to another one of the same piece, drawn evenly; a random part of it, 30 to 100 % of its points, is
    smoothed, and drawn 3 pixels wide inside the class.

    Parameters
    ----------
    truth
        (H, W), 0 where nothing is scored.
    strokes
        Strokes of a class.
    seed
        Seed of the draws.
    """
    rng = np.random.default_rng(seed)
    marks = np.zeros(truth.shape, np.int32)
    for label in np.unique(truth[truth > 0]):
        axis, depth = medial_axis(np.pad(truth == label, 1), return_distance=True, rng=0)
        points = np.argwhere(axis & (depth >= depth.max() / 3)) - 1
        depths = depth[tuple((points + 1).T)]
        gaps = np.abs(points[:, None] - points[None]).max(-1)
        j, k = np.nonzero(gaps == 1)
        graph = coo_matrix((np.hypot(*(points[j] - points[k]).T), (j, k)), (len(points), len(points))).tocsr()
        for _ in range(strokes):
            start = rng.choice(len(points), p=depths / depths.sum())
            length, before = dijkstra(graph, indices=start, return_predecessors=True)
            end = rng.choice(np.flatnonzero(np.isfinite(length)))
            stroke = [end]
            while stroke[-1] != start:
                stroke.append(before[stroke[-1]])
            kept = max(1, round(rng.uniform(0.3, 1) * len(stroke)))
            first = rng.integers(len(stroke) - kept + 1)
            line = points[stroke[first : first + kept]].astype(float)
            y, x = np.rint(ndimage.gaussian_filter1d(line, SMOOTHING, 0, mode="nearest")).astype(int).T
            drawn = np.zeros(truth.shape, bool)
            drawn[y, x] = True
            marks[ndimage.binary_dilation(drawn, np.ones((WIDTH, WIDTH))) & (truth == label)] = label
    return marks
