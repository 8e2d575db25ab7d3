"""Peers of the segmentation benchmark: the paper's model alone, GrabCut, random walker, label spreading; each takes marks."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from pyro.distributions import Dirichlet, Normal
from scipy import ndimage

from probtx_pyro import models
from probtx_pyro.apps import segmentation
from probtx_pyro.inference import adapt


class Method(NamedTuple):
    """Work on the image once, then turn marks (H, W) into a mask of their labels."""

    prepare: Callable[[np.ndarray], Any]
    answer: Callable[[Any, np.ndarray], np.ndarray]


def paper(num_units: int = 60) -> Method:
    """The map transformer of Movellan & Gabbur without additions (PT 29 and 31 to 38): every pixel asks all of some units.

    Keys are colour and position, adapted to the pixels by ECM; answers of the units follow from the marked pixels in one step.
    """

    def prepare(image):
        step = round((image.shape[0] * image.shape[1] / num_units) ** 0.5)
        where = np.stack(np.mgrid[: image.shape[0], : image.shape[1]], -1) / step
        features = np.concatenate([segmentation.lab_colours(image) / 20, where], -1)
        centres = torch.from_numpy(features[step // 2 :: step, step // 2 :: step].reshape(-1, 5).copy())
        pixels = torch.from_numpy(features.reshape(-1, 5))
        start = models.GaussianMixture(centres, key_precision=4.0)
        every = pixels[::5]  # each stands for five
        posterior = models.bayesian(start, keys=Normal(centres, 1.0))
        fit = adapt(posterior, every, query_weights=torch.full(every.shape[:1], 5.0), num_steps=3, progress=False)
        return pixels, fit.formulation.keys

    def answer(state, marks):
        pixels, keys = state
        classes, given = np.unique(marks[marks > 0]), torch.from_numpy(marks.ravel() > 0)
        labels = torch.from_numpy(np.searchsorted(classes, marks.ravel()))[given]
        even = keys.new_full((len(keys), len(classes)), 1 / len(classes))
        units = models.GaussianMixture.categorical(keys, even, 4.0)
        prior = {
            "answer_probs": Dirichlet(even.new_ones(len(classes))),
            "weights": Dirichlet(keys.new_ones(1, len(keys))),
        }
        fit = adapt(models.bayesian(units, **prior), pixels[given], labels, num_steps=1, progress=False).formulation
        return classes[fit.expected_outputs(pixels).argmax(-1).numpy().reshape(marks.shape)]

    return Method(prepare, answer)


def grab_cut(radius: int, iterations: int, colour: float) -> Method:
    """OpenCV's GrabCut (Rother et al. 2004), with the marks as sure pixels and the rest probable by the nearest mark.

    Parameters
    ----------
    radius
        A mark is sure for the pixels so near to it; 0: all others are probable background, OpenCV's own start.
    iterations
        Rounds of colour mixtures and cut.
    colour
        Weight of a Lab difference against a distance in pixels, in the search of the nearest mark.
    """
    import cv2
    from scipy.spatial import cKDTree

    def prepare(image):
        where = np.stack(np.mgrid[: image.shape[0], : image.shape[1]], -1)
        return image, np.concatenate([where, colour * segmentation.lab_colours(image)], -1)

    def answer(state, marks):
        image, features = state
        y, x = np.nonzero(marks)
        object_ = marks.max()
        nearest = cKDTree(features[y, x]).query(features.reshape(-1, 5))[1].reshape(marks.shape)
        wanted = np.where(marks[y, x][nearest] == object_, cv2.GC_PR_FGD, cv2.GC_PR_BGD).astype(np.uint8)
        if radius == 0:
            wanted[:] = cv2.GC_PR_BGD
        distance, (row, column) = ndimage.distance_transform_edt(marks == 0, return_indices=True)
        sure = distance <= radius
        wanted[sure] = np.where(marks[row, column] == object_, cv2.GC_FGD, cv2.GC_BGD)[sure]
        cv2.setRNGSeed(0)
        cut, *_ = cv2.grabCut(
            image[..., ::-1].copy(),
            wanted,
            None,
            np.zeros((1, 65)),
            np.zeros((1, 65)),
            iterations,
            cv2.GC_INIT_WITH_MASK,
        )
        return np.where((cut == cv2.GC_FGD) | (cut == cv2.GC_PR_FGD), object_, marks[marks > 0].min())

    return Method(prepare, answer)


def random_walker(beta: float) -> Method:
    """scikit-image (Grady 2006); its default beta is 130."""
    from skimage.segmentation import random_walker as walk

    def answer(image, marks):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return walk(image / 255, marks, beta=beta, mode="cg_j", tol=1e-4, channel_axis=-1)

    return Method(lambda image: image, answer)


def label_spreading(position: float, side: int = 32, **options) -> Method:
    """scikit-learn on a lattice of ``side`` points along the longer side, colour and position; each pixel takes its nearest point."""
    from scipy.spatial import cKDTree
    from sklearn.semi_supervised import LabelSpreading

    def prepare(image):
        height, width = image.shape[:2]
        where = np.stack(np.mgrid[:height, :width], -1) / max(height, width) * 2
        features = np.concatenate([segmentation.lab_colours(image) / 50, position * where], -1)
        step = max(height, width) / side
        y, x = ((np.arange(int(size / step)) * step + step / 2).astype(int) for size in (height, width))
        points = features[np.ix_(y, x)].reshape(-1, features.shape[-1])
        return features, points, cKDTree(points).query(features.reshape(-1, features.shape[-1]))[1]

    def answer(state, marks):
        features, points, nearest = state
        y, x = np.nonzero(marks)
        labels = np.r_[np.full(len(points), -1), marks[y, x]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = LabelSpreading(max_iter=100, **options).fit(np.concatenate([points, features[y, x]]), labels)
        shares = np.nan_to_num(fit.label_distributions_[: len(points)])
        return fit.classes_[shares.argmax(-1)][nearest].reshape(features.shape[:2])

    return Method(prepare, answer)


# Chosen on the tuning half, among what docs/reports/segmentation.md lists.
PEERS: dict[str, Callable[[], Method]] = {
    "GrabCut, 5 rounds": lambda: grab_cut(4, 5, 1.0),
    "GrabCut, 1 round": lambda: grab_cut(1, 1, 3.0),
    "GrabCut, its own start": lambda: grab_cut(0, 5, 1.0),
    "LabelSpreading kNN": lambda: label_spreading(2.0, kernel="knn", n_neighbors=10, alpha=0.2),
    "LabelSpreading RBF": lambda: label_spreading(1.0, kernel="rbf", gamma=30.0, alpha=0.9),
    "random_walker beta=130": lambda: random_walker(130),
    "random_walker beta=1000": lambda: random_walker(1000),
}
