"""IDX files, odd and broken; and Fashion images out of a folder and out of the publisher's picture."""

import gzip
import hashlib
import os
import struct
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from probtx_pyro import data
from probtx_pyro.data import images as pictures

# Two images of 1 x 3 pixels, byte by byte: the format's own example of a header, three axes of unsigned bytes.
SMALL = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 128, 255, 7, 8, 9])


@pytest.mark.parametrize("name", ["images-idx3-ubyte", "images.gz"])
def test_images_plain_and_compressed(name, tmp_path):
    (tmp_path / name).write_bytes(gzip.compress(SMALL) if name.endswith("gz") else SMALL)
    found = data.read_idx(str(tmp_path / name))
    assert found.tolist() == [[[0, 128, 255]], [[7, 8, 9]]] and found.dtype == np.uint8
    found[0] = 1  # the array is the caller's own


@pytest.mark.parametrize(
    ("code", "letter", "numbers"),
    [
        (0x08, "B", [0, 255]),
        (0x09, "b", [-128, 127]),
        (0x0B, "h", [-258, 1]),
        (0x0C, "i", [-65538, 3]),
        (0x0D, "f", [-0.5, 3.25]),
        (0x0E, "d", [0.1, -2.0]),
    ],
)
def test_every_type_of_number_is_read_in_the_order_of_this_machine(code, letter, numbers, tmp_path):
    (tmp_path / "a").write_bytes(bytes([0, 0, code, 1]) + struct.pack(f">I2{letter}", 2, *numbers))
    found = data.read_idx(tmp_path / "a")
    assert found.tolist() == numbers and found.dtype == np.dtype(letter) and found.dtype.isnative


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no IDX file: it begins with nothing"),
        (b"\0\0\x08", "is no IDX file: it begins with 00 00 08"),
        (b"P5 28 28 255 ", "is no IDX file: it begins with 50 35 20 32"),
        (b"\0\1" + SMALL[2:], "is no IDX file: it begins with 00 01 08 03"),
        (b"\0\0\x0a" + SMALL[3:], "is no IDX file: it begins with 00 00 0a 03"),
        (SMALL[:15], "is no IDX file"),
        (SMALL[:-1], "has 5 bytes; its header says (2, 1, 3) numbers of 1"),
        (SMALL + b"\0", "has 7 bytes; its header says"),
    ],
)
def test_files_that_do_not_parse(content, message, tmp_path):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ValueError) as error:
        data.read_idx(tmp_path / "a")
    assert str(error.value).startswith(str(tmp_path / "a")) and message in str(error.value)


def test_files_that_are_not_there_or_damaged(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file .*a; give a file in IDX format"):
        data.read_idx(tmp_path / "a")
    with pytest.raises(ValueError, match="is a folder"):
        data.read_idx(tmp_path)
    (tmp_path / "a.gz").write_bytes(gzip.compress(SMALL)[:-9])
    with pytest.raises(ValueError, match=r"a.gz cannot be read: "):
        data.read_idx(tmp_path / "a.gz")


def sprite_of(images, path):
    """A picture of 30 x 30 tiles, put together tile by tile."""
    picture = Image.new("L", (840, 840))
    for i, image in enumerate(images):
        picture.paste(Image.fromarray(image), (28 * (i % 30), 28 * (i // 30)))
    picture.save(path)


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """No folder, and a pooch whose downloads are this picture."""
    path, asked = tmp_path / "sprite.png", []

    def retrieve(url, known_hash, path):
        asked.append((url, known_hash))
        return str(tmp_path / "sprite.png")

    monkeypatch.delenv("PROBTX_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", SimpleNamespace(retrieve=retrieve, os_cache=lambda name: name))
    return path, asked


@pytest.mark.parametrize("inverted", [False, True], ids=["", "dark on white"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_tiles_of_a_picture_are_cut_row_by_row(mode, inverted, downloads, monkeypatch):
    path, asked = downloads
    images = np.random.default_rng(0).integers(0, 256, (900, 28, 28), dtype=np.uint8)
    monkeypatch.setitem(pictures.SHA256, "pixels", hashlib.sha256(images.tobytes()).hexdigest())
    sprite_of(255 - images if inverted else images, path)
    Image.open(path).convert(mode).save(path)
    found = data.load_fashion()
    assert np.array_equal(found.images, images / 255) and found.labels.tolist() == [
        c for c in range(10) for _ in range(90)
    ]
    assert asked == [(pictures.SPRITE, None)] and found.names[9] == "ankle boot"


def test_other_pictures_are_refused(downloads):
    path, _ = downloads
    message = r"sprite.png does not hold the published images \(other pixels, \(840, 840\)\); delete it"
    sprite_of(np.zeros((900, 28, 28), np.uint8), path)
    with pytest.raises(ValueError, match=message):
        data.load_fashion()
    Image.new("L", (840, 28)).save(path)
    with pytest.raises(ValueError, match=r"other pixels, \(28, 840\)"):
        data.load_fashion()
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"sprite.png cannot be read as a picture"):
        data.load_fashion()
    path.write_text("404: Not Found")
    with pytest.raises(ValueError, match=r"sprite.png cannot be read as a picture"):
        data.load_fashion()


def test_a_folder_without_the_images_or_with_others(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBTX_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"there is no file .*fashion_mnist_900/images-idx3-ubyte.gz"):
        data.load_fashion()
    (tmp_path / "fashion_mnist_900").mkdir()
    (tmp_path / "fashion_mnist_900" / "images-idx3-ubyte").write_bytes(SMALL)
    with pytest.raises(ValueError, match=r"images-idx3-ubyte is not the published file \(its SHA-256 differs\)"):
        data.load_fashion()


@pytest.mark.skipif("PROBTX_DATA" not in os.environ, reason="needs $PROBTX_DATA")
def test_the_published_images_and_the_picture_made_of_them(tmp_path):
    found = data.load_fashion()
    assert found.images.shape == (900, 28, 28) and found.images.min() == 0 and found.images.max() == 1
    assert found.labels.dtype == np.int64 and found.labels.tolist() == [c for c in range(10) for _ in range(90)]
    sprite_of((found.images * 255).round().astype(np.uint8), tmp_path / "sprite.png")
    assert np.array_equal(pictures.cut_sprite(tmp_path / "sprite.png") / 255, found.images)
