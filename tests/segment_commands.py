"""``probtx segment`` in this process, for tests: what is asked of it, and how it refuses."""

import numpy as np
from made_pictures import SHAPE
from PIL import Image

from probtx_pyro import cli

CLICKS = ("--click", "20,25,7", "--click", "3,55,9")


def run(photo, out, *words):
    return cli.main(["segment", str(photo), *words, "--out", str(out)])


def scribbles(tmp_path, palette=None, size=SHAPE):
    marks = np.zeros(size, np.uint8)
    marks[20, 20:30], marks[3, 5:55] = 7, 9
    picture = Image.fromarray(marks)
    if palette is not None:
        picture.putpalette(palette)
    picture.save(tmp_path / "marks.png")
    return tmp_path / "marks.png"


def refused(capsys, message):
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("probtx: error: ")
    assert shown.err.count("\n") == 1
    assert message in shown.err
