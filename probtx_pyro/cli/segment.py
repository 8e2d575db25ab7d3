"""Segment a picture from a few marks: every pixel gets a class, with a probability.

Click in the browser, on a page that this machine serves to itself alone (pip install -e '.[page]' in the folder of the
repository):

  probtx segment cat.jpg                   a button downloads the mask; with --out mask.png it writes it there
  probtx segment cat.jpg --scribbles cat_marks.png       goes on with marks that were saved
  probtx segment --example pagoda          a photograph of an installed package, where none is at hand

or name the marks, at least two classes (object and background, say), by clicks, by a label picture, or by both:

  probtx segment cat.jpg --click 120,200,1 --click 10,10,2 --out mask.png
  probtx segment cat.jpg --scribbles marks.png --out mask.png

Look at mask_overlay.png, and add a click in the middle of what is wrong; where the answer is least sure is printed.
Clicks count in their order: each answer is the prior of the next. Which class is the background, which goes on outside
the frame, is told by where the marks lie; --background names it. Written beside mask.png (the labels of the marks, in
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
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from probtx_pyro._lazy import install_advice
from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _pictures as pictures
from probtx_pyro.cli._segment_file import segment_picture, several, shares

if TYPE_CHECKING:
    import numpy as np

# ends of the names of pictures, in small letters
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif")
_MARKS = "_marks"
# photographs by the package that carries them: where in it, and the extra that installs it
EXAMPLES = {
    "cat": ("skimage", "data/chelsea.png", "bench"),
    "flower": ("sklearn", "datasets/images/flower.jpg", "tour"),
    "pagoda": ("sklearn", "datasets/images/china.jpg", "tour"),
}
SUMMARY = "segment a picture from clicks or scribbles, in the browser or by name; or a folder of pictures"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx segment``."""
    add = parser.add_argument
    formats = pictures.FORMATS
    scribbles = (
        "PNG of the picture's size, grey or palette: 0 is unmarked, every other value a class; or in a few colours, "
        "each a class, on a transparent layer or a ground of one colour; of a folder, the folder of such pictures"
    )
    clicks = (
        "a marked pixel of the upright picture, row and column from 0, label 1 to 255; repeat it; a click overrules "
        "scribbles and earlier clicks"
    )
    image = f"{', '.join(formats[:-1])} or {formats[-1]}, or a folder of them"
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("image", type=Path, nargs="?", metavar="IMAGE", help=image)
    which.add_argument("--example", choices=EXAMPLES, help="a photograph that an installed package carries")
    add("--scribbles", type=Path, metavar="MARKS", help=scribbles)
    add("--click", action="append", default=[], metavar="Y,X,LABEL", help=clicks)
    outside = "the label that goes on outside the frame, 0 for none; without it the marks tell"
    add("--background", type=int, metavar="LABEL", help=outside)
    add("--out", type=Path, metavar="MASK", help="the mask, a .png file; of a folder, a folder of masks")
    add("--overwrite", action="store_true", help="of a folder: masks that are there are made again")
    add("--no-browser", action="store_true", help="print the address of the page, and open no browser")


def run(arguments: argparse.Namespace) -> int:
    """Choose between a folder, one picture with marks, and the page; return the exit code."""
    if arguments.example is not None:
        arguments.image = example(arguments.example)
    if arguments.image.is_dir():
        return _folder(arguments)
    if arguments.overwrite:
        raise ValueError(f"--overwrite is for folders; the mask of {arguments.image} is always made again")
    if not arguments.click and (arguments.scribbles is None or arguments.out is None):
        if arguments.background is not None:
            raise ValueError("--background goes with marks given by name; give --click, or --scribbles and --out")
        return _page(arguments)
    if arguments.no_browser:
        raise ValueError("--no-browser is for the page, which opens without --click, and without --scribbles and --out")
    if arguments.out is None:
        raise ValueError("give --out MASK, a .png file, for these marks; or no --click, to mark in the browser")
    return _picture(arguments)


def example(name: str) -> Path:
    """Return the file of a photograph of `EXAMPLES`.

    Raises
    ------
    ModuleNotFoundError
        The package that carries it is not installed.
    """
    package, place, extra = EXAMPLES[name]
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        others = [other for other, (package, *_) in EXAMPLES.items() if find_spec(package) is not None]
        instead = f"; or take --example {others[0]}" if others else ""
        raise ModuleNotFoundError(f"--example {name} comes with {package}: {install_advice(extra)}{instead}")
    return Path(found.submodule_search_locations[0]) / place


def _folder(arguments: argparse.Namespace) -> int:
    """Segment a folder."""
    if arguments.click or arguments.no_browser:
        raise ValueError(f"{arguments.image} is a folder, whose marks are files; name a picture for clicks or the page")
    if arguments.out is None:
        raise ValueError("give --out FOLDER, for the masks")
    return segment_folder(
        arguments.image,
        arguments.scribbles,
        options.folder(arguments.out),
        arguments.overwrite,
        arguments.background,
    )


def pictures_of(folder: Path) -> list[Path]:
    """Return the pictures of a folder in the order of their names; hidden files and marks are none."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in ENDINGS and not path.name.startswith(".") and not path.stem.endswith(_MARKS)
    )


def segment_folder(folder: Path, marks: Path | None, out: Path, overwrite: bool, background: int | None = None) -> int:
    """Segment every picture of a folder, a line for each; return 1 if one failed, else 0.

    Parameters
    ----------
    folder
        Pictures, the marks of ``cat.jpg`` in ``cat_marks.png`` unless ``marks`` is given.
    marks
        Folder with the marks of ``cat.jpg`` in ``cat.png``, or None.
    out
        Folder of the masks, ``cat.png``, and of what `_pictures.outputs` names beside; made where it is not there.
    overwrite
        True to make masks again that are there.
    background
        ``--background``, or None.

    Raises
    ------
    ValueError
        No pictures; folders that are the same; pictures that would write the same files.
    """
    if marks is not None and not marks.is_dir():
        raise ValueError(f"--scribbles {marks} is no folder; {folder} is one, so its marks are a folder of PNG files")
    if out.resolve() in [path.resolve() for path in (folder, marks) if path is not None]:
        raise ValueError(f"--out {out} holds the pictures or the marks; name another folder for the masks")
    found = pictures_of(folder)
    if not found:
        raise ValueError(f"there are no pictures in {folder}; their names end in {', '.join(ENDINGS)}")
    out.mkdir(parents=True, exist_ok=True)
    targets = [pictures.outputs(out / f"{image.stem}.png") for image in found]
    twice = [path for path, times in Counter(path for paths in targets for path in paths).items() if times > 1]
    if twice:
        raise ValueError(f"two pictures of {folder} would both write {twice[0].name}; rename one")
    counts = Counter[str]()
    for number, (image, paths) in enumerate(zip(found, targets, strict=True), 1):
        place = f"{number} of {len(found)}"
        given = image.with_name(f"{image.stem}{_MARKS}.png") if marks is None else marks / f"{image.stem}.png"
        if not overwrite and all(path.exists() for path in paths):
            counts["skipped"] += 1
            print(f"{place}  {paths[0]}  is there, skipped", flush=True)
            continue
        try:
            if not given.exists():
                raise ValueError(f"{image} has no marks, {given}")
            picture = pictures.read_image(image)
            labels, palette = pictures.read_marks(given, picture[0].shape[:2])
            answer = segment_picture(picture, [labels], palette, paths, background)
        except (ValueError, OSError, MemoryError) as error:
            counts["failed"] += 1
            options.warn(f"{place}: {image.name}: {' '.join(str(error).split())}")
            continue
        counts["written"] += 1
        print(f"{place}  {paths[0]}  ({shares(answer)})", flush=True)
    print(", ".join(f"{counts[what]} {what}" for what in ("written", "skipped", "failed")))
    return 1 if counts["failed"] else 0


def _page(arguments: argparse.Namespace) -> int:
    """Serve the page until it is interrupted."""
    try:
        with options.imports():
            from probtx_pyro.cli._segment_page import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        how = (
            f"no marks: to mark in the browser {install_advice('page')}; or give --click y,x,label or --scribbles MARKS"
        )
        raise ModuleNotFoundError(how) from None
    paths = None if arguments.out is None else pictures.outputs(arguments.out)
    return serve(arguments.image, paths, not arguments.no_browser, arguments.scribbles)


def _picture(arguments: argparse.Namespace) -> int:
    """Read, check, segment, write one picture."""
    paths = pictures.outputs(arguments.out)
    pictures.keep((arguments.image, arguments.scribbles), paths)
    clicks = [_click(text) for text in arguments.click]
    picture = pictures.read_image(arguments.image)
    shape = picture[0].shape[:2]
    marks, palette = pictures.read_marks(arguments.scribbles, shape)

    with options.imports():
        import numpy as np

        from probtx_pyro.apps.segmentation import marks_from_clicks, suggest_click

    steps = [marks.astype(np.uint8)]
    for click in clicks:
        clicked = marks_from_clicks(shape, [click])
        steps.append(np.where(clicked > 0, clicked, steps[-1]).astype(np.uint8))
    _check_clicks(clicks, steps[-1])
    answer = segment_picture(picture, steps, palette, paths, arguments.background)
    print(f"{paths[0]}  ({shares(answer)})")
    print(*paths[1:], sep="\n")
    if (place := suggest_click(answer, steps[-1])) is not None:
        print(f"least sure at row {place[0]}, column {place[1]}: click there next")
    return 0


def _check_clicks(clicks: list[tuple[int, int, int]], marks: "np.ndarray") -> None:
    """Refuse marks of one class where a later click on the same pixel has overruled the only one of another."""
    lost = [f"{y},{x},{label}" for y, x, label in clicks if marks[y, x] != label]
    if lost and not several(marks):
        raise ValueError(f"the marks have 1 class(es): a later click overrules --click {lost[0]}; click beside it")


def _click(text: str) -> tuple[int, int, int]:
    """Read ``y,x,label``."""
    try:
        y, x, label = (int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--click {text}: write y,x,label, three whole numbers, such as --click 120,200,1") from None
    if not 1 <= label <= 255:
        raise ValueError(f"--click {text}: the label must be 1 to 255 (0 stands for unmarked)")
    return y, x, label
