"""One picture and its marks: computed, written."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _pictures as pictures

if TYPE_CHECKING:
    import numpy as np

    from probtx_pyro.apps.segmentation import InteractiveSegmenter, Segmentation

# from so many pixels a hint says what it takes; measured: 16 s and 1.3 GB (4000 x 3000), 45 s and 4.1 GB (8000 x 6000)
_LARGE = 8_000_000


def segment_in_turn(
    segmenter: "InteractiveSegmenter",
    marks: "Iterable[np.ndarray]",
    previous: "Segmentation | None" = None,
    background: int | None = None,
) -> "Iterator[Segmentation]":
    """Yield the answers to marks that came one after another, each the prior of the next.

    Parameters
    ----------
    segmenter
        The picture.
    marks
        Of at least two classes each, (H, W).
    previous
        The answer before.
    background
        The label that goes on outside the frame, 0 for none; None where the marks are to tell.
    """
    import numpy as np

    for some in marks:
        if previous is not None and not np.isin(previous.classes, some).all():
            previous = None  # all marks of a class were painted over
        named = background if background is None or background == 0 or (some == background).any() else None
        previous = segmenter.segment(some, previous, named)
        yield previous


def several(marks: "np.ndarray") -> bool:
    """Return whether marks are of two classes or more."""
    import numpy as np

    return len(np.unique(marks[marks > 0])) >= 2


def segment_picture(
    picture: "tuple[np.ndarray, np.ndarray]",
    steps: "Sequence[np.ndarray]",
    palette: "np.ndarray | None",
    paths: tuple[Path, ...],
    background: int | None = None,
) -> "Segmentation":
    """Compute the answer and write its files.

    Parameters
    ----------
    picture
        As `_pictures.read_image` returns it.
    steps
        Marks as they came, uint8 (H, W) each, 0 for unmarked; the last are all. The answer to each is the prior of the
        next.
    palette
        uint8 (256, 3), the colour of each label; None for those of the package.
    paths
        As `_pictures.outputs` returns them.
    background
        As `segment_in_turn` takes it.

    Raises
    ------
    ValueError
        Marks of fewer than two classes, or none of the background.
    """
    from probtx_pyro.apps.segmentation import LABEL_COLOURS, InteractiveSegmenter, overlay

    (rgb, exact), marks = picture, steps[-1]
    if not several(marks):
        raise ValueError(f"the marks have {int(marks.any())} class(es); mark pixels of two classes or more")
    if background and not (marks == background).any():
        raise ValueError(f"--background {background} is the label of no mark; mark a pixel of it, or leave it out")
    if marks.size >= _LARGE:
        millions = marks.size / 1e6
        options.warn(
            f"{millions:.1f} million pixels take about {6 + 0.8 * millions:.0f} s on an idle machine, and "
            f"{0.4 + 0.08 * millions:.1f} GB of memory; they are worked on smaller, and answered in full size"
        )
    segmenter = InteractiveSegmenter.from_image(exact)
    *_, answer = segment_in_turn(segmenter, filter(several, steps), background=background)
    colours = LABEL_COLOURS if palette is None else palette
    pictures.write(paths, answer, overlay(rgb, answer, marks, colours), colours)
    return answer


def shares(answer: "Segmentation") -> str:
    """Return how much of the picture each label has, in words."""
    return ", ".join(f"{label}: {(answer.mask == label).mean():.0%}" for label in answer.classes)
