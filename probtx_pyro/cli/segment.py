"""Segment a picture from a few marks: every pixel gets a class, with a probability.

Mark at least two classes (object and background, say), by clicks, by a label picture, or by both:

  probtx segment cat.jpg --click 120,200,1 --click 10,10,2 --out mask.png
  probtx segment cat.jpg --scribbles marks.png --out mask.png

Look at mask_overlay.png, and add a mark wherever it is wrong. Written beside mask.png (the labels of the marks, in full size, as
a palette picture that --scribbles reads too): mask_overlay.png (the picture, tinted), mask_probability.png (the probability of
the chosen class, white is sure) and mask_probability.npz (probabilities (height, width, class) and classes).

Rows and columns of clicks and marks are those of the upright picture, as viewers show it: a camera's rotation tag is obeyed.
"""

import argparse
import struct
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from probtx_pyro.cli import _options as options

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

SUMMARY = "segment a picture from clicks or scribbles"
MAX_PIXELS = 24_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF")
# from so many pixels a hint says what it takes; measured: 19 s and 1.8 GB (4000 x 3000), 1.1 GB (3000 x 2000)
_LARGE = 4_000_000
# below so many pixels threads cost more than they save: 4.7 s with two, 2.5 s with one (500 x 375)
_ONE_THREAD = 2_000_000
# what PIL raises on a damaged file
_BROKEN = (OSError, SyntaxError, ValueError, TypeError, KeyError, EOFError, struct.error, zlib.error)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx segment``."""
    parser.add_argument("image", type=Path, metavar="IMAGE", help=f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    parser.add_argument(
        "--scribbles",
        type=Path,
        metavar="MARKS",
        help="PNG of the picture's size, grey or palette: 0 is unmarked, every other value a class",
    )
    parser.add_argument(
        "--click",
        action="append",
        default=[],
        metavar="Y,X,LABEL",
        help="a marked pixel of the upright picture, row and column from 0, label 1 to 255; repeat it; a click overrules "
        "scribbles and earlier clicks",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="MASK", help="the mask, a .png file")
    options.add_shared(parser, "--threads")


def run(arguments: argparse.Namespace) -> None:
    """Read, check, segment, write."""
    outputs = _outputs(arguments.out)
    for given in (arguments.image, arguments.scribbles):
        if given is not None and given.resolve() in {path.resolve() for path in outputs}:
            raise ValueError(f"--out would overwrite {given}; choose another name")
    if arguments.scribbles is None and not arguments.click:
        raise ValueError("no marks; give --click y,x,label (at least two classes) or --scribbles MARKS")
    clicks = [_click(text) for text in arguments.click]
    rgb, exact = _read_image(arguments.image)
    marks, palette = _read_marks(arguments.scribbles, rgb.shape[:2])

    import numpy as np

    from probtx_pyro.apps.segmentation import LABEL_COLOURS, InteractiveSegmenter, marks_from_clicks, overlay

    clicked = marks_from_clicks(rgb.shape[:2], clicks)
    marks = np.where(clicked > 0, clicked, marks).astype(np.uint8)
    present = np.unique(marks[marks > 0])
    if len(present) < 2:
        raise ValueError(f"the marks have {len(present)} class(es); mark pixels of two classes or more")

    if marks.size >= _LARGE:
        millions = marks.size / 1e6
        options.warn(
            f"{millions:.1f} million pixels take about {1.6 * millions:.0f} s on an idle machine, and {0.4 + 0.12 * millions:.1f} GB of memory; "
            "half the width and height take a quarter"
        )
    with options.threads(1 if arguments.threads is None and marks.size < _ONE_THREAD else None):
        answer = InteractiveSegmenter.from_image(exact).segment(marks)
    colours = LABEL_COLOURS if palette is None else palette
    _write(outputs, answer, overlay(rgb, answer, marks, colours), colours)
    shares = ", ".join(f"{label}: {(answer.mask == label).mean():.0%}" for label in answer.classes)
    print(f"{outputs[0]}  ({shares})")
    print(*outputs[1:], sep="\n")


def _outputs(mask: Path) -> tuple[Path, ...]:
    """Paths of mask, overlay, probability picture and probabilities; refused before any work if they cannot be written."""
    if mask.suffix.lower() != ".png":
        raise ValueError(f"--out {mask}: a mask must be a .png file, as labels do not survive other formats")
    if not mask.parent.is_dir():
        raise ValueError(f"--out {mask}: there is no folder {mask.parent}")
    ends = ("_overlay.png", "_probability.png", "_probability.npz")
    outputs = (mask, *(mask.with_name(mask.stem + end) for end in ends))
    for path in outputs:
        if path.is_dir():
            raise ValueError(f"--out: {path} is a folder; choose another name")
    return outputs


def _click(text: str) -> tuple[int, int, int]:
    """Read ``y,x,label``."""
    try:
        y, x, label = (int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--click {text}: write y,x,label, three whole numbers, such as --click 120,200,1") from None
    if not 1 <= label <= 255:
        raise ValueError(f"--click {text}: the label must be 1 to 255 (0 stands for unmarked)")
    return y, x, label


def _open(path: Path, formats: tuple[str, ...]) -> "Image.Image":
    """Decode a file; one that is too large is refused before."""
    from PIL import Image, UnidentifiedImageError

    try:
        # the limit below is lower than Pillow's and says what to do
        with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
            picture = Image.open(path, formats=formats)
        with picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise Image.DecompressionBombError(f"{picture.width} x {picture.height}")
            several = picture.format in ("GIF", "TIFF", "WEBP") and getattr(picture, "n_frames", 1) > 1
            picture.load()
    except UnidentifiedImageError:
        wanted = " or ".join(", ".join(formats).rsplit(", ", 1))
        raise ValueError(f"{path} is not a {wanted} picture") from None
    except Image.DecompressionBombError as error:
        millions = MAX_PIXELS // 10**6
        raise ValueError(f"{path} has more than {millions} million pixels ({error}); shrink it first") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder, not a picture") from None
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except _BROKEN as error:
        raise ValueError(f"{path} is damaged or cannot be read: {error}") from None
    if several:
        options.warn(f"{path} holds several pictures; the first is segmented")
    return picture


def _read_image(path: Path) -> "tuple[np.ndarray, np.ndarray]":
    """Return the picture as people see it, uint8 (H, W, 3), and as it is computed with (16-bit grey keeps its depth).

    A camera's rotation tag is obeyed; transparent pixels are seen on white.
    """
    import numpy as np
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(_open(path, FORMATS))
    if picture.mode.startswith(("I", "F")):
        values = np.asarray(picture)
        if picture.mode == "F" or values.min() < 0 or values.max() > 65535:
            raise ValueError(
                f"{path} has values from {values.min():g} to {values.max():g}, which no viewer knows; convert it to 8 or 16 bits"
            )
        grey = values.astype(np.float32) / 65535
        return np.repeat((grey * 255).round().astype(np.uint8)[..., None], 3, -1), grey
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, (255, 255, 255, 255)), picture)
    rgb = np.asarray(picture.convert("RGB"))
    return rgb, rgb


def _read_marks(path: Path | None, shape: tuple[int, ...]) -> "tuple[np.ndarray, np.ndarray | None]":
    """Return labels (H, W), and the palette (256, 3) if there is one."""
    import numpy as np

    if path is None:
        return np.zeros(shape, np.uint8), None
    picture = _open(path, ("PNG",))
    if picture.mode not in ("L", "P", "1") and not picture.mode.startswith("I"):
        raise ValueError(
            f"{path} is a {picture.mode} picture; marks must be grey or palette, its values the labels (0 for unmarked)"
        )
    marks = np.asarray(picture)
    if marks.shape != tuple(shape):
        raise ValueError(
            f"{path} is {marks.shape[1]} x {marks.shape[0]} but the picture is {shape[1]} x {shape[0]} (width x height); marks must have the picture's size"
        )
    if marks.max() > 255:
        raise ValueError(f"{path} has the label {marks.max()}; labels must be 0 (unmarked) to 255")
    if picture.mode != "P":
        return marks.astype(np.uint8), None
    colours = np.array(picture.getpalette("RGB"), np.uint8).reshape(-1, 3)
    return marks, np.pad(colours, ((0, 256 - len(colours)), (0, 0)))


def _write(outputs, answer, drawn: "np.ndarray", palette: "np.ndarray") -> None:
    import numpy as np
    from PIL import Image

    mask = Image.fromarray(answer.mask)
    mask.putpalette(palette.ravel().tolist())
    mask.save(outputs[0])
    Image.fromarray(drawn).save(outputs[1])
    sure = (answer.probabilities.max(-1) * 255).round().astype(np.uint8)
    Image.fromarray(sure).save(outputs[2])
    np.savez_compressed(outputs[3], probabilities=answer.probabilities, classes=answer.classes)
