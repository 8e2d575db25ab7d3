"""Pictures, marks and masks in files."""

import struct
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from probtx_pyro.cli import _options as options

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from probtx_pyro.apps.segmentation import Segmentation

MAX_PIXELS = 64_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF")
# marks in colour have no more colours; a soft brush leaves hundreds
MOST_COLOURS = 16
# four letters of a file of the HEIF family, from its eighth byte on, and what people call it
_HEIF = {b"avif": "AVIF", b"avis": "AVIF"} | dict.fromkeys(
    (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1"), "HEIC"
)
# what is written beside a mask, by the end of its name
BESIDE = ("_overlay.png", "_probability.png", "_probability.npz")
# what PIL raises on a damaged file
_BROKEN = (OSError, SyntaxError, ValueError, TypeError, KeyError, EOFError, struct.error, zlib.error)


def outputs(mask: Path) -> tuple[Path, ...]:
    """Return the paths of mask, overlay, probability picture and probabilities;
    refused before any work if they cannot be written.
    """
    if mask.suffix.lower() != ".png":
        raise ValueError(f"--out {mask}: a mask must be a .png file, as labels do not survive other formats")
    if not mask.parent.is_dir():
        raise ValueError(f"--out {mask}: there is no folder {mask.parent}")
    paths = (mask, *(mask.with_name(mask.stem + end) for end in BESIDE))
    for path in paths:
        if path.is_dir():
            raise ValueError(f"--out: {path} is a folder; choose another name")
    return paths


def keep(inputs: tuple[Path | None, ...], written: tuple[Path, ...]) -> None:
    """Refuse to write over what is read.

    Parameters
    ----------
    inputs
        Files that are read; None stands for none.
    written
        Files that will be written.
    """
    for given in inputs:
        if given is not None and given.resolve() in {path.resolve() for path in written}:
            raise ValueError(f"--out would overwrite {given}; choose another name")


def _open(path: Path, formats: tuple[str, ...]) -> "Image.Image":
    """Decode a file; one that is too large is refused before."""
    from PIL import Image, UnidentifiedImageError

    if str(path) == "-":
        raise ValueError("- is standard input, from which no picture is read; name a file")
    try:
        # the limit below is lower than Pillow's and says what to do
        with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
            picture = Image.open(path, formats=formats)
        with picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise Image.DecompressionBombError(f"{picture.width} x {picture.height}")
            several = picture.format in ("GIF", "TIFF", "WEBP") and getattr(picture, "n_frames", 1) > 1
            halved = picture.mode in ("RGB", "RGBA", "LA") and ";16" in str([tile[3] for tile in picture.tile])
            picture.load()
    except UnidentifiedImageError:
        raise ValueError(f"{path} is {_instead(path, formats)}") from None
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
    if halved:
        options.warn(f"{path} has 16 bits a channel; the upper 8 are used")
    return picture


def _instead(path: Path, formats: tuple[str, ...]) -> str:
    """Say what a file is that is none of the formats, and what to do."""
    with path.open("rb") as file:
        head = file.read(12)
    wanted = " or ".join(", ".join(formats).rsplit(", ", 1))
    if head[4:8] == b"ftyp" and head[8:12] in _HEIF:
        return f"a picture in {_HEIF[head[8:12]]}, not in {wanted}; save it as JPEG or PNG first"
    if "TIFF" in formats and head[:4] in (b"II*\0", b"MM\0*"):
        return "a TIFF picture of a kind that is not read; convert it to 8 or 16 bits a channel"
    return f"not a {wanted} picture"


def read_image(path: Path) -> "tuple[np.ndarray, np.ndarray]":
    """Return the picture as people see it, uint8 (H, W, 3), and as it is computed with (16-bit grey keeps its depth).

    A camera's rotation tag is obeyed; transparent pixels are seen on white.
    """
    import numpy as np
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(_open(path, FORMATS))
    if picture.mode.startswith(("I", "F")):
        values = np.asarray(picture)
        if picture.mode == "F" or values.min() < 0 or values.max() > 65535:
            raise ValueError(f"{path} has values from {values.min():g} to {values.max():g}; convert it to 8 or 16 bits")
        _warn_if_flat(path, values)
        grey = values.astype(np.float32) / 65535
        return np.repeat((grey * 255).round().astype(np.uint8)[..., None], 3, -1), grey
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, (255, 255, 255, 255)), picture)
    rgb = np.asarray(picture.convert("RGB"))
    _warn_if_flat(path, rgb)
    return rgb, rgb


def _warn_if_flat(path: Path, values: "np.ndarray") -> None:
    """Say where a picture (H, W) or (H, W, 3) of several pixels has one colour."""
    if values.shape[:2] != (1, 1) and (values == values[0, 0]).all():
        options.warn(f"{path} has one colour everywhere, so that nothing but their places tells its pixels apart")


def read_marks(path: Path | None, shape: tuple[int, ...]) -> "tuple[np.ndarray, np.ndarray | None]":
    """Return labels (H, W), and the palette (256, 3) if there is one.

    Parameters
    ----------
    path
        A PNG, grey or palette, its values the labels, or in colour: what is transparent is unmarked, or if nothing is
        the most frequent colour, and the other colours are the labels 1, 2, ... in the order of their red, green and
        blue; None is a picture without marks.
    shape
        Height and width of the picture that is marked.
    """
    import numpy as np

    if path is None:
        return np.zeros(shape, np.uint8), None
    picture = _open(path, ("PNG",))
    if picture.size != (shape[1], shape[0]):
        raise ValueError(
            f"{path} is {picture.width} x {picture.height} but the picture is {shape[1]} x {shape[0]}; resize it"
        )
    if picture.mode not in ("L", "P", "1") and not picture.mode.startswith("I"):
        return _by_colour(path, picture)
    marks = np.asarray(picture)
    if marks.max() > 255:
        raise ValueError(f"{path} has the label {marks.max()}; labels must be 0 (unmarked) to 255")
    if picture.mode != "P":
        return marks.astype(np.uint8), None
    colours = np.array(picture.getpalette("RGB"), np.uint8).reshape(-1, 3)
    return marks, np.pad(colours, ((0, 256 - len(colours)), (0, 0)))


def _by_colour(path: Path, picture: "Image.Image") -> "tuple[np.ndarray, np.ndarray]":
    """Return labels (H, W) and palette (256, 3) of marks in colour, and say which colour is which label."""
    import numpy as np

    values = np.array(picture.convert("RGBA")).view(">u4")[..., 0]
    values[values % 256 == 0] = 0  # colours that nobody sees
    colours, counts = np.unique(values, return_counts=True)
    if len(colours) > MOST_COLOURS:
        raise ValueError(
            f"{path} has {len(colours):,} colours; marks have at most {MOST_COLOURS}, one for each label, or are grey "
            "or palette: paint with a pencil, whose edges are sharp"
        )
    unmarked = 0 if colours[0] == 0 else int(counts.argmax())
    order = [unmarked, *(number for number in range(len(colours)) if number != unmarked)]
    labels = np.argsort(order)[np.searchsorted(colours, values)].astype(np.uint8)
    palette = np.zeros((256, 3), np.uint8)
    palette[: len(order)] = colours[order].astype(">u4").view(np.uint8).reshape(-1, 4)[:, :3]
    if len(order) > 2:
        name, *names = ("#" + bytes(colour).hex() for colour in palette[: len(order)])
        said = ", ".join(f"{other} is {label}" for label, other in enumerate(names, 1))
        options.warn(
            f"{path} is in colour: {'what is transparent' if colours[unmarked] == 0 else name} is unmarked, {said}"
        )
    return labels, palette


def write_labels(target: Path | BinaryIO, labels: "np.ndarray", palette: "np.ndarray") -> None:
    """Write labels (H, W) as a palette PNG, which `read_marks` reads.

    Parameters
    ----------
    target
        File to write.
    labels
        uint8 (H, W).
    palette
        uint8 (256, 3).
    """
    from PIL import Image

    picture = Image.fromarray(labels)
    picture.putpalette(palette.ravel().tolist())
    picture.save(target, format="PNG")


def write(paths: tuple[Path, ...], answer: "Segmentation", drawn: "np.ndarray", palette: "np.ndarray") -> None:
    """Write the files of `outputs`, the mask last, so that it is there only when the others are.

    Parameters
    ----------
    paths
        As `outputs` returns them.
    answer
        Mask and probabilities.
    drawn
        The overlay, uint8 (H, W, 3).
    palette
        uint8 (256, 3), the colour of each label.
    """
    import numpy as np
    from PIL import Image

    from probtx_pyro.apps.segmentation import uncertainty

    mask, overlay, sureness, probabilities = paths
    # level 6 takes three times as long, for a quarter less
    Image.fromarray(drawn).save(overlay, compress_level=1)
    Image.fromarray(((1 - uncertainty(answer)) * 255).round().astype(np.uint8)).save(sureness, compress_level=1)
    np.savez_compressed(probabilities, probabilities=answer.probabilities, classes=answer.classes)
    write_labels(mask, answer.mask, palette)
