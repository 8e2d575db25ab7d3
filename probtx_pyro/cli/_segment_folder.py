"""A folder of pictures and their marks."""

from collections import Counter
from pathlib import Path

from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _pictures as pictures
from probtx_pyro.cli._segment_file import segment_picture, shares

# ends of the names of pictures, in small letters
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif")
_MARKS = "_marks"


def pictures_of(folder: Path) -> list[Path]:
    """Return the pictures of a folder in the order of their names; hidden files and marks are none."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in ENDINGS and not path.name.startswith(".") and not path.stem.endswith(_MARKS)
    )


def segment_folder(folder: Path, marks: Path | None, out: Path, overwrite: bool, threads: int | None) -> int:
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
    threads
        Number of ``--threads``, or None.

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
            answer = segment_picture(picture, [labels], palette, paths, threads)
        except (ValueError, OSError, MemoryError) as error:
            counts["failed"] += 1
            options.warn(f"{place}: {image.name}: {' '.join(str(error).split())}")
            continue
        counts["written"] += 1
        print(f"{place}  {paths[0]}  ({shares(answer)})", flush=True)
    print(", ".join(f"{counts[what]} {what}" for what in ("written", "skipped", "failed")))
    return 1 if counts["failed"] else 0
