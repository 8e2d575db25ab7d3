"""The photograph of the page "One click on a picture": its units, to which no click matters, as a script in base64.

``python site/explorer/photograph.py`` prints it; `site/build.py` writes it beside the page, which alone loads it. The library finds the
units in single precision; `segmenter` answers clicks from the same units in double precision, and the page must say what it says.
"""

import base64
import dataclasses
import json
from typing import TypeVar

import numpy as np
import torch

from probtx_pyro.apps import InteractiveSegmenter, SegmentationSettings, lab_colours
from probtx_pyro.data import load_pagoda

SIDE = 7  # pixels of the photograph that make one of the page's, a side
REST, PAGODA = 1, 2
Group = TypeVar("Group")  # a named tuple
FLOATS = ("keys", "counts", "colours", "shares", "coupling")


def averaged(picture: np.ndarray) -> np.ndarray:
    """Return the means of squares of ``SIDE`` x ``SIDE`` pixels, without the columns that are left over."""
    height, width = (size // SIDE for size in picture.shape[:2])
    part = picture[: height * SIDE, : width * SIDE]
    return part.reshape(height, SIDE, width, SIDE, *picture.shape[2:]).mean((1, 3))


def rounded_colours(image: np.ndarray) -> np.ndarray:
    """Return CIE Lab in whole numbers, which a byte holds; a difference of about 2 is just noticeable."""
    return lab_colours(image).round()


def in_double(group: Group) -> Group:
    """Return a tuple of tensors in double precision; whole numbers stay."""
    floating = {name: x.double() for name, x in group._asdict().items() if torch.is_tensor(x) and x.is_floating_point()}
    return group._replace(**floating)


def segmenter(**settings: float) -> InteractiveSegmenter:
    """Return the library's segmenter of the page's picture, which answers in double precision."""
    found = InteractiveSegmenter.from_image(picture(), rounded_colours, SegmentationSettings(num_units=150, **settings))
    units = in_double(found.units)
    units = units._replace(log_prior=units.log_prior.log_softmax(-1))  # sums to 1 in double precision, too
    return dataclasses.replace(found, cells=in_double(found.cells), units=units)


def picture() -> np.ndarray:
    """Return the picture of the page, uint8 (61, 91, 3)."""
    return averaged(load_pagoda().image).round().astype(np.uint8)


def truth() -> np.ndarray:
    """Return the mask that was drawn by hand, `REST` and `PAGODA`."""
    return np.where(averaged(load_pagoda().mask) > 0.5, PAGODA, REST)


def script() -> str:
    """Return ``globalThis.PHOTOGRAPH = {height, width, down, across, step, settings, arrays: name -> [type, start, count], data}``."""
    found, lab, drawn = segmenter(), rounded_colours(picture()), np.packbits(truth() == PAGODA)
    units, pairs = found.units, found.units.edges.pairs.numpy()
    order = torch.cat([group.places for group in units.edges.groups]).numpy()  # in which units are updated
    whole = {"home": units.home, "pairs": pairs, "order": order, "rim": units.rim, "truth": drawn}
    kept = {
        "hops": ("Float64Array", "<f8", np.asarray(units.hops[pairs[:, 0], pairs[:, 1]])),
        **{name: ("Float32Array", "<f4", getattr(units, name).numpy()) for name in FLOATS},
        "lab": ("Int8Array", "i1", lab),
        **{name: ("Uint8Array", "u1", x) for name, x in whole.items()},
    }  # the widest numbers first, so that each array begins at a multiple of their size
    arrays, parts, start = {}, [], 0
    for name, (kind, dtype, x) in kept.items():
        own = x.astype(dtype)
        if not np.array_equal(own.astype(x.dtype), x):
            raise ValueError(f"{name} does not fit into {dtype}")
        arrays[name] = (kind, start, own.size)
        parts.append(own.tobytes())
        start += own.nbytes
    (height, width), (down, across) = found.shape, found.cells.shape
    size = {"height": height, "width": width, "down": down, "across": across, "step": found.cells.step}
    data = base64.b64encode(b"".join(parts)).decode()
    page = {**size, "settings": vars(found.settings), "arrays": arrays, "data": data}
    return f"globalThis.PHOTOGRAPH = {json.dumps(page)};\n"


if __name__ == "__main__":
    print(script(), end="")
