"""What ``probtx segment`` refuses, each in one line that says what to do."""

import struct

import numpy as np
import pytest
from made_pictures import SHAPE
from PIL import Image
from segment_commands import CLICKS, refused, run, scribbles

from probtx_pyro import cli


def test_marks_need_a_place_for_the_mask(photo, capsys):
    assert cli.main(["segment", str(photo), *CLICKS]) == 2
    refused(capsys, "give --out MASK")


@pytest.mark.parametrize("values", [np.full(SHAPE, 0.5, np.float32), np.full(SHAPE, 70_000, np.int32)])
def test_pictures_of_numbers_that_no_viewer_knows_are_refused(values, tmp_path, capsys):
    Image.fromarray(values).save(tmp_path / "photo.tif")
    assert run(tmp_path / "photo.tif", tmp_path / "mask.png", *CLICKS) == 2
    refused(capsys, "convert it to 8 or 16 bits")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--click", "20,25,7"), "1 class"),
        (("--click", "20,25,7", "--click", "21,25,7"), "1 class"),
        (("--click", "20,25,7", "--click", "20,25,8"), "1 class(es): a later click overrules --click 20,25,7"),
        (("--click", "20,25"), "y,x,label"),
        (("--click", "20,25,cat"), "y,x,label"),
        (("--click", "20.5,25,1"), "y,x,label"),
        (("--click", ""), "y,x,label"),
        (("--click", "20,25,0"), "1 to 255"),
        (("--click", "20,25,256"), "1 to 255"),
        (("--click", "40,25,1"), "y is 0..39, x is 0..59"),
        (("--click", "20,60,1"), "outside"),
        (("--click=-1,5,1",), "outside"),
        (("--scribbles", "missing.png"), "there is no file"),
    ],
)
def test_bad_marks_are_one_line(words, message, photo, tmp_path, capsys):
    assert run(photo, tmp_path / "mask.png", *words) == 2
    refused(capsys, message)
    assert not (tmp_path / "mask.png").exists()


def empty(path):
    path.write_bytes(b"")


def text(path):
    path.write_text("not a picture")


def heic(path):
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")


def avif(path):
    path.write_bytes(b"\0\0\0\x1cftypavif\0\0\0\0avifmif1")


def tiff_of_float_colours(path):
    """Write two pixels of three 32-bit floats, which Pillow does not read."""
    entries = [
        (256, 3, 2),
        (257, 3, 1),
        (258, 3, 110),
        (259, 3, 1),
        (262, 3, 2),
        (273, 4, 128),
        (277, 3, 3),
        (339, 3, 116),
    ]
    counts = {258: 3, 339: 3}
    head = struct.pack("<2sHIH", b"II", 42, 8, len(entries))
    body = b"".join(struct.pack("<HHII", tag, kind, counts.get(tag, 1), value) for tag, kind, value in entries)
    assert len(head + body) + 4 == 110
    path.write_bytes(
        head + body + bytes(4) + struct.pack("<6H", 32, 32, 32, 3, 3, 3) + bytes(6) + struct.pack("<6f", *[0.5] * 6)
    )


def truncated(path):
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 50, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:3000])


def corrupt(path):
    truncated(path)
    content = bytearray(path.read_bytes())
    content[60:400] = bytes(340)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "there is no file"),
        (lambda path: path.mkdir(), "folder"),
        (empty, "not a PNG, JPEG, WEBP, TIFF, BMP or GIF picture"),
        (text, "not a PNG, JPEG, WEBP, TIFF, BMP or GIF picture"),
        (heic, "is a picture in HEIC, not in PNG, JPEG, WEBP, TIFF, BMP or GIF; save it as JPEG or PNG first"),
        (avif, "is a picture in AVIF"),
        (
            tiff_of_float_colours,
            "a TIFF picture of a kind that is not read; convert it to 8 or 16",
        ),
        (truncated, "damaged"),
        (corrupt, "damaged"),
    ],
    ids=["missing", "folder", "empty", "text", "HEIC", "AVIF", "TIFF of floats", "truncated", "corrupt"],
)
def test_bad_pictures_are_one_line(make, message, tmp_path, capsys):
    make(tmp_path / "photo.png")
    assert run(tmp_path / "photo.png", tmp_path / "mask.png", *CLICKS) == 2
    refused(capsys, message)


def test_standard_input_holds_no_picture(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("-", tmp_path / "mask.png", *CLICKS) == 2
    refused(capsys, "no picture is read; name a file")


def test_one_pixel_cannot_hold_two_classes(tmp_path, capsys):
    Image.fromarray(np.zeros((1, 1, 3), np.uint8)).save(tmp_path / "photo.png")
    assert run(tmp_path / "photo.png", tmp_path / "mask.png", "--click", "0,0,1", "--click", "0,0,2") == 2
    refused(capsys, "1 class")


def test_too_large_pictures_are_refused_before_decoding(photo, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("probtx_pyro.cli._pictures.MAX_PIXELS", 1000)
    assert run(photo, tmp_path / "mask.png", *CLICKS) == 2
    refused(capsys, "60 x 40")


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (Image.new("L", (59, 40)), "59 x 40 but the picture is 60 x 40"),
        (Image.new("RGB", (60, 40)), "0 class"),
        (
            Image.fromarray(np.arange(40 * 60 * 3, dtype=np.uint32).astype(np.uint8).reshape(40, 60, 3)),
            "colours; marks have at most 16",
        ),
        (Image.fromarray(np.full(SHAPE, 300, np.uint16)), "label 300"),
        (Image.new("L", (60, 40)), "0 class"),
        (Image.new("L", (60, 40), 5), "1 class"),
    ],
    ids=["size", "one colour", "many colours", "16-bit label", "empty", "one class"],
)
def test_bad_scribbles_are_one_line(picture, message, photo, tmp_path, capsys):
    picture.save(tmp_path / "marks.png")
    assert run(photo, tmp_path / "mask.png", "--scribbles", str(tmp_path / "marks.png")) == 2
    refused(capsys, message)


def test_lossy_scribbles_are_refused(photo, tmp_path, capsys):
    Image.new("L", (60, 40)).save(tmp_path / "marks.jpg")
    assert run(photo, tmp_path / "mask.png", "--scribbles", str(tmp_path / "marks.jpg")) == 2
    refused(capsys, "not a PNG picture")


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("mask.jpg", "must be a .png"),
        ("mask", "must be a .png"),
        ("nowhere/mask.png", "there is no folder"),
        ("folder.png", "is a folder"),
        ("photo.png", "would overwrite"),
    ],
)
def test_bad_outputs_are_one_line(out, message, photo, tmp_path, capsys):
    (tmp_path / "folder.png").mkdir()
    before = photo.read_bytes()
    assert run(photo, tmp_path / out, *CLICKS) == 2
    refused(capsys, message)
    assert photo.read_bytes() == before


def test_marks_are_not_overwritten_by_a_second_output(photo, tmp_path, capsys):
    marks = scribbles(tmp_path).rename(tmp_path / "m_overlay.png")
    assert run(photo, tmp_path / "m.png", "--scribbles", str(marks)) == 2
    refused(capsys, "would overwrite")


@pytest.mark.parametrize("words", [[], ["photo.png", "--out", "m.png", "--klick", "1,1,1"]])
def test_wrong_usage_is_exit_code_two(words, capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["segment", *words])
    assert done.value.code == 2
    assert "error:" in capsys.readouterr().err
