"""``probtx segment`` on a folder."""

import numpy as np
import pytest
from made_pictures import SHAPE, disc, read, right
from PIL import Image

from probtx_pyro import cli

PALETTE = [0, 0, 0, 250, 10, 20, 10, 20, 250, 20, 250, 10, *range(18)]  # of ten labels


def marked(path, labels=(1, 2), turned=False):
    """Marks of the disc, of its ground, and of a third class where three labels are given."""
    marks = np.zeros(SHAPE, np.uint8)
    marks[20, 20:30], marks[3, 5:55] = labels[:2]
    if len(labels) > 2:
        marks[36:39, 55:59] = labels[2]
    picture = Image.fromarray(marks)
    picture.putpalette(PALETTE)
    picture.save(path)


@pytest.fixture
def folder(tmp_path):
    """Two good pictures, one of them lying on its side, and a broken one between them; marks beside."""
    photos = tmp_path / "photos"
    photos.mkdir()
    upright = Image.fromarray(disc()[0])
    upright.save(photos / "a.png")
    (photos / "b.png").write_bytes((photos / "a.png").read_bytes()[:90])
    lying = upright.transpose(Image.Transpose.ROTATE_90)
    exif = lying.getexif()
    exif[0x0112] = 6  # turn by 270 degrees to view
    lying.save(photos / "c.jpg", exif=exif, quality=95)
    for name in "abc":
        marked(photos / f"{name}_marks.png", (1, 2, 3) if name == "a" else (1, 2))
    (photos / "notes.txt").write_text("not a picture")
    return photos


def run(folder, out, *words):
    return cli.main(["segment", str(folder), "--out", str(out), *words])


def test_every_picture_is_segmented_and_a_broken_one_named(folder, tmp_path, capsys):
    out = tmp_path / "masks"
    assert run(folder, out) == 1
    shown = capsys.readouterr()
    assert [line.split("  ")[:2] for line in shown.out.splitlines()] == [
        ["1 of 3", str(out / "a.png")],
        ["3 of 3", str(out / "c.png")],
        ["2 written, 0 skipped, 1 failed"],
    ]
    assert shown.err.startswith("probtx: 2 of 3: b.png: ") and "damaged" in shown.err and shown.err.count("\n") == 1
    mask, inside = read(out / "a.png")[1], disc()[1]
    assert right(np.where(mask == 3, 2, mask), inside, (1, 2)) and mask[37, 57] == 3
    assert right(read(out / "c.png")[1], inside, (1, 2))  # upright
    with Image.open(out / "a.png") as picture:
        assert picture.getpalette()[: len(PALETTE)] == PALETTE
    written = {
        f"{name}{end}" for name in "ac" for end in (".png", "_overlay.png", "_probability.png", "_probability.npz")
    }
    assert {path.name for path in out.iterdir()} == written


@pytest.mark.slow
def test_what_is_there_is_skipped_unless_told(folder, tmp_path, capsys):
    (folder / "b.png").unlink()
    out = tmp_path / "masks"
    assert run(folder, out) == 0
    (out / "c_overlay.png").unlink()  # as if it had been stopped there
    first = (out / "a.png").stat().st_mtime_ns
    capsys.readouterr()
    assert run(folder, out) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"1 of 2  {out / 'a.png'}  is there, skipped" and shown[-1] == "1 written, 1 skipped, 0 failed"
    assert (out / "a.png").stat().st_mtime_ns == first and (out / "c_overlay.png").exists()
    assert run(folder, out, "--overwrite") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 written, 0 skipped, 0 failed"


@pytest.mark.slow
def test_marks_in_a_folder_of_their_own(folder, tmp_path, capsys):
    marks, out = tmp_path / "marks", tmp_path / "masks"
    marks.mkdir()
    marked(marks / "a.png", (7, 9))
    assert run(folder, out, "--scribbles", str(marks)) == 1
    assert right(read(out / "a.png")[1], disc()[1])
    errors = capsys.readouterr().err
    assert f"{folder / 'c.jpg'} has no marks, {marks / 'c.png'}" in errors and errors.count("\n") == 2
    again = tmp_path / "again"  # masks are marks
    assert run(folder, again, "--scribbles", str(out)) == 1
    np.testing.assert_array_equal(read(again / "a.png")[1], read(out / "a.png")[1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--click", "1,1,1"), "is a folder, whose marks are files"),
        (("--no-browser",), "is a folder, whose marks are files"),
        (("--scribbles", "photos/a.png"), "is no folder"),
        (("--scribbles", "none"), "is no folder"),
        (("--out", "photos"), "holds the pictures"),
        (("--out", "photos/a.png"), "is a file"),
    ],
)
def test_wrong_words_are_one_line(words, message, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(folder.iterdir())
    assert cli.main(["segment", "photos", "--out", "masks", *words]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.err.count("\n") == 1 and shown.out == ""
    assert sorted(folder.iterdir()) == before


def test_a_folder_needs_out_and_pictures(folder, tmp_path, capsys):
    assert cli.main(["segment", str(folder)]) == 2
    assert "give --out FOLDER" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty", tmp_path / "masks") == 2
    assert "there are no pictures" in capsys.readouterr().err


def test_two_pictures_of_one_name_are_refused_before_any_work(folder, tmp_path, capsys):
    (folder / "a.jpg").write_bytes((folder / "c.jpg").read_bytes())
    assert run(folder, tmp_path / "masks") == 2
    assert "would both write a.png" in capsys.readouterr().err
    assert list((tmp_path / "masks").iterdir()) == []
