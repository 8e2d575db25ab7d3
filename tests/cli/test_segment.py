"""``probtx segment`` on files: what it writes, what it accepts, what it refuses in one line."""

import os
import re
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from made_pictures import SHAPE, disc, read, right
from PIL import Image
from segment_commands import CLICKS, run, scribbles

from probtx_pyro import cli
from probtx_pyro.apps import segmentation
from probtx_pyro.cli import _pictures, segment


@pytest.mark.slow
def test_end_to_end_as_a_command(photo, tmp_path):
    out = tmp_path / "mask.png"
    done = subprocess.run(
        [sys.executable, "-m", "probtx_pyro", "segment", str(photo), *CLICKS, "--out", str(out)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    written = [
        tmp_path / name for name in ("mask.png", "mask_overlay.png", "mask_probability.png", "mask_probability.npz")
    ]
    *files, suggestion = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in files] == [str(path) for path in written]
    y, x = map(int, re.fullmatch(r"least sure at row (\d+), column (\d+): click there next", suggestion).groups())
    assert 0 <= y < SHAPE[0] and 0 <= x < SHAPE[1]
    _, inside = disc()
    mode, mask = read(out)
    assert mode == "P"
    assert mask.dtype == np.uint8
    assert right(mask, inside)
    with np.load(written[3]) as saved:
        assert saved["classes"].tolist() == [7, 9]
        probabilities = saved["probabilities"]
    assert probabilities.shape == (*SHAPE, 2)
    np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-5)
    np.testing.assert_array_equal(np.array([7, 9])[probabilities.argmax(-1)], mask)
    assert read(written[1])[1].shape == (*SHAPE, 3)
    np.testing.assert_array_equal(read(written[2])[1], (probabilities.max(-1) * 255).round())


@pytest.mark.slow
def test_heavy_packages_that_it_does_not_need_stay_out(photo, tmp_path):
    code = (
        "import sys\nfrom probtx_pyro import cli\n"
        f"code = cli.main(['segment', {str(photo)!r}, '--click', '20,25,7', '--click', '3,55,9', '--out', {str(tmp_path / 'm.png')!r}])\n"
        "print(code, [m for m in ('matplotlib', 'arviz', 'sklearn', 'skimage', 'pandas', 'xarray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 []"


@pytest.mark.slow
def test_scribbles_equal_the_same_clicks(photo, tmp_path):
    drawn, played = tmp_path / "drawn.png", tmp_path / "played.png"
    clicks = [f"20,{x},7" for x in range(20, 30)] + [f"3,{x},9" for x in range(5, 55)]
    assert run(photo, drawn, "--scribbles", str(scribbles(tmp_path))) == 0
    assert run(photo, played, *[word for click in clicks for word in ("--click", click)]) == 0
    np.testing.assert_array_equal(read(drawn)[1], read(played)[1])


def test_clicks_overrule_scribbles_and_add_classes(photo, tmp_path):
    out = tmp_path / "mask.png"
    assert run(photo, out, "--scribbles", str(scribbles(tmp_path)), "--click", "20,25,3") == 0
    mask = read(out)[1]
    assert mask[20, 25] == 3
    assert mask[20, 21] == 7
    assert mask[3, 10] == 9


def test_palette_of_the_marks_is_kept(photo, tmp_path):
    palette = [0] * 768
    palette[21:24], palette[27:30] = (250, 10, 20), (10, 20, 250)
    out = tmp_path / "mask.png"
    assert run(photo, out, "--scribbles", str(scribbles(tmp_path, palette))) == 0
    with Image.open(out) as picture:
        assert picture.mode == "P"
        assert picture.getpalette()[21:24] == [250, 10, 20]
        assert right(np.asarray(picture), disc()[1])
    overlay = read(tmp_path / "mask_overlay.png")[1]
    assert overlay[20, 25].tolist() == [250, 10, 20]


def test_a_mask_can_be_seen_and_marks_the_same_picture_again(photo, tmp_path):
    first, second = tmp_path / "first.png", tmp_path / "second.png"
    assert run(photo, first, "--click", "20,25,1", "--click", "3,55,2") == 0
    with Image.open(first) as picture:
        seen = np.asarray(picture.convert("RGB")).astype(int)
    mask, drawn = read(first)[1], read(tmp_path / "first_overlay.png")[1]
    colours = [np.unique(seen[mask == label], axis=0) for label in (1, 2)]
    assert [colour.tolist() for colour in colours] == [
        [[0, 114, 178]],
        [[230, 159, 0]],
    ]  # Okabe and Ito's blue and orange
    assert drawn[20, 25].tolist() == [0, 114, 178]
    assert run(photo, second, "--scribbles", str(first), "--click", "38,58,3") == 0
    again = read(second)[1]
    assert again[38, 58] == 3 and ((again == mask) | (again == 3)).all()
    with Image.open(second) as picture:
        assert picture.convert("RGB").getpixel((58, 38)) == (0, 158, 115)


def test_labels_differ_in_colour():
    colours = {tuple(colour) for colour in segmentation.LABEL_COLOURS[:22].tolist()}
    assert len(colours) == 22 and segmentation.LABEL_COLOURS.shape == (256, 3)


def grey(image):
    return Image.fromarray(image).convert("L")


def sixteen(image):
    return Image.fromarray(np.asarray(grey(image)).astype(np.uint16) * 257)


def alpha(image):
    """The disc opaque on a transparent ground: seen on white."""
    opaque = (image[..., 0] > 100).astype(np.uint8) * 255
    return Image.fromarray(np.dstack([image // 2, opaque]))


KINDS = {
    "grey": (grey, "png"),
    "16 bit": (sixteen, "png"),
    "alpha": (alpha, "png"),
    "grey with alpha": (lambda image: alpha(image).convert("LA"), "png"),
    "palette": (lambda image: Image.fromarray(image).quantize(16), "png"),
    "1 bit": (lambda image: grey(image).point(lambda v: 255 * (v > 100)).convert("1"), "png"),
    "jpeg": (Image.fromarray, "jpg"),
    "cmyk jpeg": (lambda image: Image.fromarray(image).convert("CMYK"), "jpg"),
    "webp": (Image.fromarray, "webp"),
    "webp with alpha": (alpha, "webp"),
    "tiff": (Image.fromarray, "tif"),
    "16 bit tiff": (sixteen, "tif"),
    "bitmap": (Image.fromarray, "bmp"),
    "gif": (Image.fromarray, "gif"),
}
OF_PILLOW = ("jpeg", "webp", "tiff", "bitmap")  # plain colours, which Pillow gives alike from every format


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind in OF_PILLOW else ()) for kind in KINDS]
)
def test_every_kind_of_picture_is_segmented(kind, tmp_path):
    convert, suffix = KINDS[kind]
    image, inside = disc()
    path, out = tmp_path / f"photo.{suffix}", tmp_path / "mask.png"
    convert(image).save(path)
    assert run(path, out, *CLICKS) == 0
    assert right(read(out)[1], inside)


def png_of_16_bits(path, image):
    """A PNG of 16 bits a channel, which Pillow reads and does not write."""
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in image * np.uint16(257))
    blocks = [
        (b"IHDR", struct.pack(">IIBBBBB", *image.shape[1::-1], 16, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    ]
    content = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in blocks
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)


def test_colours_of_16_bits_are_read_with_8_and_warned_of(tmp_path, capsys):
    image, inside = disc()
    path = tmp_path / "photo.png"
    png_of_16_bits(path, image)
    assert run(path, tmp_path / "mask.png", *CLICKS) == 0
    assert right(read(tmp_path / "mask.png")[1], inside)
    np.testing.assert_array_equal(_pictures.read_image(path)[1], image)
    assert capsys.readouterr().err == f"probtx: {path} has 16 bits a channel; the upper 8 are used\n" * 2
    sixteen(image).save(path)
    assert _pictures.read_image(path)[1].dtype == np.float32  # grey keeps them all
    assert capsys.readouterr().err == ""


def test_of_several_pictures_the_first_is_taken_with_a_warning(tmp_path, capsys):
    image, inside = disc()
    path = tmp_path / "photo.gif"
    Image.fromarray(image).save(path, save_all=True, append_images=[Image.new("RGB", SHAPE[::-1])])
    assert run(path, tmp_path / "mask.png", *CLICKS) == 0
    assert right(read(tmp_path / "mask.png")[1], inside)
    assert capsys.readouterr().err == f"probtx: {path} holds several pictures; the first is segmented\n"


def test_a_large_picture_warns_how_long_it_takes(photo, tmp_path, capsys, monkeypatch):
    assert run(photo, tmp_path / "mask.png", *CLICKS) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("probtx_pyro.cli._segment_file._LARGE", SHAPE[0] * SHAPE[1])
    assert run(photo, tmp_path / "mask.png", *CLICKS) == 0
    shown = capsys.readouterr().err
    assert (
        shown.startswith("probtx: 0.0 million pixels take about 6 s on an idle machine, and 0.4 GB")
        and shown.count("\n") == 1
    )


def test_the_background_can_be_named(photo, tmp_path, capsys):
    """A disc that is marked far from the middle, and ground that is marked in it, are told apart by name."""
    clicks = ("--click", "20,35,7", "--click", "20,45,9")
    path, inside = tmp_path / "mask.png", disc()[1]
    assert run(photo, path, *clicks, "--background", "9") == 0
    assert right(read(path)[1], inside)
    assert run(photo, path, *clicks, "--background", "5") == 2
    assert "--background 5 is the label of no mark" in capsys.readouterr().err
    assert cli.main(["segment", str(photo), "--background", "9"]) == 2
    assert "--background goes with marks" in capsys.readouterr().err


def test_help_explains_that_clicks_follow_the_upright_picture(capsys):
    with pytest.raises(SystemExit):
        cli.main(["segment", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "upright picture" in shown and "a camera's rotation tag is obeyed" in shown and "WEBP" in shown


@pytest.mark.parametrize("suffix", ["jpg", "webp", "tif", "png"])
def test_a_camera_rotation_tag_is_obeyed(suffix, tmp_path):
    image, inside = disc()
    lying = Image.fromarray(image).transpose(Image.Transpose.ROTATE_90)
    exif = lying.getexif()
    exif[0x0112] = 6  # turn by 270 degrees to view
    lying.save(tmp_path / f"photo.{suffix}", exif=exif, quality=95)
    assert run(tmp_path / f"photo.{suffix}", tmp_path / "mask.png", *CLICKS) == 0
    assert right(read(tmp_path / "mask.png")[1], inside)


def test_one_row_of_two_pixels_is_segmented(tmp_path):
    Image.fromarray(np.array([[0, 255]], np.uint8)).save(tmp_path / "photo.png")
    assert run(tmp_path / "photo.png", tmp_path / "mask.png", "--click", "0,0,1", "--click", "0,1,2") == 0
    assert read(tmp_path / "mask.png")[1].tolist() == [[1, 2]]


@pytest.mark.slow
def test_a_photograph_takes_less_than_two_more_starts(tmp_path):
    """500 x 375 pixels, in processor time, in units of a start of Python with what the command needs, on the same machine."""
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 255, (12, 16, 3), np.uint8))
    small.resize((500, 375), Image.Resampling.BICUBIC).save(tmp_path / "photo.jpg")
    words = ["segment", str(tmp_path / "photo.jpg"), "--click", "30,250,1", "--click", "300,250,2"]

    def seconds(*arguments):
        before = os.times()
        subprocess.run([sys.executable, *arguments], check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    start = seconds("-c", "import torch, pyro, scipy.ndimage, PIL")
    assert seconds("-m", "probtx_pyro", *words, "--out", str(tmp_path / "m.png")) < 3 * start


def painted(tmp_path, ground, first, second):
    """Strokes as a paint program writes them, on a ground of one colour; RGBA where colours have four numbers."""
    marks = np.full((*SHAPE, len(ground)), ground, np.uint8)
    marks[20, 20:30], marks[3, 5:55] = first, second
    if len(ground) == 4:
        marks[30, 30] = (9, 9, 9, 0)  # a colour that nobody sees
    Image.fromarray(marks).save(tmp_path / "painted.png")
    return tmp_path / "painted.png"


@pytest.mark.parametrize(
    ("colours", "said"),
    [
        (((255, 255, 255), (0, 160, 0), (250, 10, 20)), "#ffffff is unmarked, #00a000 is 1, #fa0a14 is 2"),
        (((0, 0, 0), (0, 160, 0), (250, 10, 20)), "#000000 is unmarked, #00a000 is 1, #fa0a14 is 2"),
        (
            ((200, 0, 0, 0), (0, 160, 0, 255), (250, 10, 20, 255)),
            "what is transparent is unmarked, #00a000 is 1, #fa0a14 is 2",
        ),
    ],
    ids=["on white", "on black", "on a transparent layer"],
)
def test_strokes_in_colours_are_labels_in_the_order_of_the_colours(colours, said, photo, tmp_path, capsys):
    assert run(photo, tmp_path / "mask.png", "--scribbles", str(painted(tmp_path, *colours))) == 0
    assert capsys.readouterr().err == f"probtx: {tmp_path / 'painted.png'} is in colour: {said}\n"
    mask = read(tmp_path / "mask.png")[1]
    assert right(mask, disc()[1], (1, 2)) and mask[20, 25] == 1
    with Image.open(tmp_path / "mask.png") as picture:  # the mask has the colours of the strokes
        assert picture.getpalette()[3:9] == [0, 160, 0, 250, 10, 20]
    grey = np.zeros(SHAPE, np.uint8)
    grey[20, 20:30], grey[3, 5:55] = 1, 2
    Image.fromarray(grey).save(tmp_path / "grey.png")
    assert run(photo, tmp_path / "same.png", "--scribbles", str(tmp_path / "grey.png")) == 0
    np.testing.assert_array_equal(read(tmp_path / "same.png")[1], mask)


@pytest.mark.parametrize("values", [np.full((*SHAPE, 3), 90, np.uint8), np.full(SHAPE, 900, np.uint16)])
def test_a_picture_of_one_colour_is_warned_of(values, tmp_path, capsys):
    Image.fromarray(values).save(tmp_path / "flat.png")
    assert run(tmp_path / "flat.png", tmp_path / "mask.png", *CLICKS) == 0
    assert "flat.png has one colour everywhere" in capsys.readouterr().err


@pytest.mark.parametrize("name", segment.EXAMPLES)
def test_examples_are_photographs_of_installed_packages(name, tmp_path):
    pytest.importorskip(segment.EXAMPLES[name][0])
    assert min(_pictures.read_image(segment.example(name))[0].shape[:2]) >= 300


def test_an_example_is_segmented_like_a_picture_of_ones_own(photo, tmp_path, monkeypatch):
    monkeypatch.setattr(segment, "example", lambda name: photo)
    out = tmp_path / "mask.png"
    assert cli.main(["segment", "--example", "cat", *CLICKS, "--out", str(out)]) == 0
    assert right(read(out)[1], disc()[1])


def test_an_example_that_is_not_installed_is_one_line(monkeypatch, capsys):
    found = segment.find_spec
    monkeypatch.setattr(segment, "find_spec", lambda name: None if name == "skimage" else found(name))
    assert cli.main(["segment", "--example", "cat"]) == 2
    error = capsys.readouterr().err
    assert "--example cat comes with skimage: pip install" in error and error.count("\n") == 1
    assert ("or take --example" in error) == (found("sklearn") is not None)


def test_a_picture_and_an_example_are_one_too_many(capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["segment", "photo.png", "--example", "cat"])
    assert done.value.code == 2 and "not allowed with argument" in capsys.readouterr().err
