"""Pictures made for tests of segmentation, and what is right about their masks."""

import numpy as np
from PIL import Image

SHAPE = (40, 60)


def disc(times=1):
    """A bright disc (inside) on a dark ground; ``times`` as large."""
    y, x = np.mgrid[: SHAPE[0] * times, : SHAPE[1] * times] / times
    inside = (y - 20) ** 2 + (x - 25) ** 2 < 11**2
    image = np.where(inside[..., None], (230, 200, 60), (30, 60, 110)).astype(np.uint8)
    return image, inside


def read(path):
    """Mode and values of a picture file."""
    with Image.open(path) as picture:
        return picture.mode, np.asarray(picture)


def right(mask, inside, labels=(7, 9)):
    """Whether a mask has the disc, but for 3 % of the pixels, some along the border between two units."""
    return (mask == np.where(inside, *labels)).mean() > 0.97
