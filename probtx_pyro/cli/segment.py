"""Segment a picture from a few marks: every pixel gets a class, with a probability.

Click in the browser, on a page that this machine serves to itself alone (pip install -e '.[page]' in the folder of the
repository):

  probtx segment cat.jpg                   a button downloads the mask; with --out mask.png it writes it there

or name the marks, at least two classes (object and background, say), by clicks, by a label picture, or by both:

  probtx segment cat.jpg --click 120,200,1 --click 10,10,2 --out mask.png
  probtx segment cat.jpg --scribbles marks.png --out mask.png

Look at mask_overlay.png, and add a click in the middle of what is wrong; where the answer is least sure is printed.
Clicks count in their order: each answer is the prior of the next. Written beside mask.png (the labels of the marks, in
full size, as a palette picture that --scribbles reads too): mask_overlay.png (the picture, tinted),
mask_probability.png (the probability of the chosen class, white is sure) and mask_probability.npz (probabilities
(height, width, class) and classes).

A folder of pictures, the marks of cat.jpg in cat_marks.png beside it (the page's name for them), or in marks/cat.png:

  probtx segment photos --out masks
  probtx segment photos --scribbles marks --out masks

What has a mask already is left alone (--overwrite); a picture that fails is named, the others go on, and the exit code
is 1.

Rows and columns of clicks and marks are those of the upright picture, as viewers show it: a camera's rotation tag is
obeyed. Grey pictures keep 16 bits; of colours of 16 bits the upper 8 are used.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from probtx_pyro._lazy import install_advice
from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _pictures as pictures
from probtx_pyro.cli._segment_file import segment_picture, several, shares

if TYPE_CHECKING:
    import numpy as np

SUMMARY = "segment a picture from clicks or scribbles, in the browser or by name; or a folder of pictures"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx segment``."""
    formats = pictures.FORMATS
    parser.add_argument(
        "image", type=Path, metavar="IMAGE", help=f"{', '.join(formats[:-1])} or {formats[-1]}, or a folder of them"
    )
    parser.add_argument(
        "--scribbles",
        type=Path,
        metavar="MARKS",
        help="PNG of the picture's size, grey or palette: 0 is unmarked, every other value a class; or in a few colours, each a class, "
        "on a transparent layer or a ground of one colour; of a folder, the folder of such pictures",
    )
    parser.add_argument(
        "--click",
        action="append",
        default=[],
        metavar="Y,X,LABEL",
        help="a marked pixel of the upright picture, row and column from 0, label 1 to 255; repeat it; a click overrules "
        "scribbles and earlier clicks",
    )
    parser.add_argument(
        "--out", type=Path, metavar="MASK", help="the mask, a .png file; of a folder, a folder of masks"
    )
    parser.add_argument("--overwrite", action="store_true", help="of a folder: masks that are there are made again")
    parser.add_argument("--no-browser", action="store_true", help="print the address of the page, and open no browser")
    options.add_shared(parser, "--threads")


def run(arguments: argparse.Namespace) -> int:
    """Choose between a folder, one picture with marks, and the page; return the exit code."""
    marked = arguments.scribbles is not None or bool(arguments.click)
    if arguments.image.is_dir():
        return _folder(arguments)
    if arguments.overwrite:
        raise ValueError(f"--overwrite is for folders; the mask of {arguments.image} is always made again")
    if not marked:
        return _page(arguments)
    if arguments.no_browser:
        raise ValueError("--no-browser is for the page, which opens where no marks are given")
    if arguments.out is None:
        raise ValueError("give --out MASK, a .png file, for these marks; or no marks, to mark in the browser")
    return _picture(arguments)


def _folder(arguments: argparse.Namespace) -> int:
    """Segment a folder."""
    from probtx_pyro.cli._segment_folder import segment_folder

    if arguments.click or arguments.no_browser:
        raise ValueError(f"{arguments.image} is a folder, whose marks are files; name a picture for clicks or the page")
    if arguments.out is None:
        raise ValueError("give --out FOLDER, for the masks")
    return segment_folder(
        arguments.image, arguments.scribbles, options.folder(arguments.out), arguments.overwrite, arguments.threads
    )


def _page(arguments: argparse.Namespace) -> int:
    """Serve the page until it is interrupted."""
    try:
        from probtx_pyro.cli._segment_page import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise ModuleNotFoundError(
            f"no marks: to mark in the browser {install_advice('page')}; or give --click y,x,label (at least two "
            "classes) or --scribbles MARKS"
        ) from None
    paths = None
    if arguments.out is not None:
        paths = pictures.outputs(arguments.out)
    return serve(arguments.image, paths, arguments.threads, browser=not arguments.no_browser)


def _picture(arguments: argparse.Namespace) -> int:
    """Read, check, segment, write one picture."""
    paths = pictures.outputs(arguments.out)
    pictures.keep((arguments.image, arguments.scribbles), paths)
    clicks = [_click(text) for text in arguments.click]
    picture = pictures.read_image(arguments.image)
    shape = picture[0].shape[:2]
    marks, palette = pictures.read_marks(arguments.scribbles, shape)

    import numpy as np

    from probtx_pyro.apps.segmentation import marks_from_clicks, suggest_click

    steps = [marks.astype(np.uint8)]
    for click in clicks:
        clicked = marks_from_clicks(shape, [click])
        steps.append(np.where(clicked > 0, clicked, steps[-1]).astype(np.uint8))
    _check_clicks(clicks, steps[-1])
    answer = segment_picture(picture, steps, palette, paths, arguments.threads)
    print(f"{paths[0]}  ({shares(answer)})")
    print(*paths[1:], sep="\n")
    if (place := suggest_click(answer, steps[-1])) is not None:
        print(f"least sure at row {place[0]}, column {place[1]}: click there next")
    return 0


def _check_clicks(clicks: list[tuple[int, int, int]], marks: "np.ndarray") -> None:
    """Refuse marks of one class where a later click on the same pixel has overruled the only one of another."""
    lost = [f"{y},{x},{label}" for y, x, label in clicks if marks[y, x] != label]
    if lost and not several(marks):
        raise ValueError(
            f"the marks have 1 class(es), as --click {lost[0]} is overruled by a later click on its pixel; click beside it"
        )


def _click(text: str) -> tuple[int, int, int]:
    """Read ``y,x,label``."""
    try:
        y, x, label = (int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--click {text}: write y,x,label, three whole numbers, such as --click 120,200,1") from None
    if not 1 <= label <= 255:
        raise ValueError(f"--click {text}: the label must be 1 to 255 (0 stands for unmarked)")
    return y, x, label
