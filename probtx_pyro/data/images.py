"""Real pictures as numpy arrays: those that installed packages carry, and arrays in IDX files, the format of MNIST."""

import hashlib
import math
import struct
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from probtx_pyro._lazy import install_advice
from probtx_pyro.data.files import GITHUB, download, own_file, read_bytes

# The third byte of an IDX file, and the type of its numbers, which are stored with the most significant byte first.
NUMBERS = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
SPRITE = (
    GITHUB + "zalandoresearch/fashion-mnist/b2617bb6d3ffa2e429640350f613e3291e10b141/doc/img/fashion-mnist-sprite.png"
)
FASHION = "fashion_mnist_900"  # the folder under $PROBTX_DATA
SHA256 = {
    "images-idx3-ubyte": "57c4a84fd2688e0b2895a23663d04d1a2c0642125c7a45195efd411508088f9e",
    "labels-idx1-ubyte": "cd380a3a164f55d47b4e4f3a38c51267303f7a457383aebab439c4a6bdd35742",
    "pixels": "86efcd8ae29baccc34638f6a479365dfbb1b54fe1c3cac41a71a694b9d4cd220",  # the images, by label
}
CLASSES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
TILES, SIDE = 30, 28  # tiles a row and a column of the sprite, and pixels a row and a column of a tile


class Digits(NamedTuple):
    """Handwritten digits.

    images: (N, 8, 8), ink in [0, 1].
    labels: (N,), the digits 0..9.
    """

    images: np.ndarray
    labels: np.ndarray


def load_digits() -> Digits:
    """The 1797 handwritten digits of scikit-learn (UCI ML, Alpaydin & Kaynak 1998).

    Raises
    ------
    ModuleNotFoundError
        Without scikit-learn.
    """
    found = _sklearn_datasets().load_digits()
    return Digits(found.images / 16.0, found.target)


class Photograph(NamedTuple):
    """A photograph and a reference segmentation of its object.

    image: (H, W, 3) bytes.
    mask: (H, W), True on the object.
    """

    image: np.ndarray
    mask: np.ndarray


def load_pagoda() -> Photograph:
    """scikit-learn's photograph ``china.jpg``, 427 x 640,
    and a mask of its pagoda drawn for this project (see README.md).

    Raises
    ------
    ModuleNotFoundError
        Without scikit-learn.
    """
    image = np.asarray(_sklearn_datasets().load_sample_image("china.jpg"))
    with resources.files("probtx_pyro.data").joinpath("china_pagoda_mask.png").open("rb") as file:
        mask = np.asarray(Image.open(file).convert("1"))
    return Photograph(image, mask)


def _sklearn_datasets():
    try:
        from sklearn import datasets
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"these pictures come with scikit-learn: {install_advice('tour')}") from None
    return datasets


def read_idx(path: str | Path) -> np.ndarray:
    """The array in an IDX file, plain or ``.gz``, such as ``train-images-idx3-ubyte.gz``: (N, 28,
    28) bytes for MNIST's images.

    Raises
    ------
    ValueError
        No such file, a damaged ``.gz``, a first line that is no IDX header, or another number of bytes than it
        announces.

    References
    ----------
    LeCun, Cortes & Burges, *The MNIST database of handwritten digits*, "File formats".
    """
    content = read_bytes(Path(path), "file in IDX format, plain or .gz")
    try:
        zeros, code, axes = struct.unpack_from(">HBB", content)
        shape, number = struct.unpack_from(f">{axes}I", content, 4), np.dtype(NUMBERS[code])
    except (struct.error, KeyError):
        zeros = 1
    if zeros:
        raise ValueError(f"{path} is no IDX file: it begins with {content[:4].hex(' ') or 'nothing'}")
    start = 4 + 4 * axes
    if len(content) != start + number.itemsize * math.prod(shape):
        raise ValueError(
            f"{path} has {len(content) - start} bytes; its header says {shape} numbers of {number.itemsize}"
        )
    return np.frombuffer(content, number, offset=start).reshape(shape).astype(number.newbyteorder("="))


class Fashion(NamedTuple):
    """Pictures of articles of clothing.

    images: (900, 28, 28) float64, brightness in [0, 1], the article bright on black.
    labels: (900,) the classes 0..9 in this order, 90 images each.
    names: of the ten classes.
    """

    images: np.ndarray
    labels: np.ndarray
    names: tuple[str, ...]


def load_fashion() -> Fashion:
    """900 images of Fashion-MNIST (MIT licence),
    from ``$PROBTX_DATA`` or cut out of the publisher's picture, downloaded once.

    Read from ``fashion_mnist_900/{images-idx3,labels-idx1}-ubyte``, plain or with ``.gz``. Which of the publisher's
    splits they were drawn from is not stated.

    Raises
    ------
    ValueError
        Of `read_idx`; of `fetch`; or a picture whose pixels are not those expected.
    ModuleNotFoundError
        It must be downloaded, and pooch is not installed.

    References
    ----------
    Xiao, Rasul & Vollgraf 2017, *Fashion-MNIST*, arXiv 1708.07747.
    """
    files = {f"{FASHION}/{name}": SHA256[name] for name in ("images-idx3-ubyte", "labels-idx1-ubyte")}
    own = [path for name, sha256 in files.items() if (path := own_file(name, sha256))]
    if own:
        images, labels = map(read_idx, own)
    else:
        images = cut_sprite(download(SPRITE, " and ".join(files), None))
        labels = np.repeat(np.arange(len(CLASSES)), len(images) // len(CLASSES))
    return Fashion(images / 255.0, labels.astype(np.int64), CLASSES)


def cut_sprite(path: Path) -> np.ndarray:
    """Return the tiles of the publisher's picture, row by row, (900, 28, 28) bytes; see `load_fashion`.

    Raises
    ------
    ValueError
        A file that is no picture, or whose pixels have another checksum.
    """
    try:
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("L"))
    except (OSError, SyntaxError) as error:  # Pillow raises the latter for a broken PNG chunk
        raise ValueError(f"{path} cannot be read as a picture ({error}); delete it to fetch it again") from None
    if pixels.shape == (TILES * SIDE, TILES * SIDE):
        images = pixels.reshape(TILES, SIDE, TILES, SIDE).swapaxes(1, 2).reshape(-1, SIDE, SIDE)
        for tried in (images, 255 - images):  # such pictures are often printed dark on white; the checksum knows
            if hashlib.sha256(tried.tobytes()).hexdigest() == SHA256["pixels"]:
                return tried
    raise ValueError(f"{path} does not hold the published images (other pixels, {pixels.shape}); delete it")
