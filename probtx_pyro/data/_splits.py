"""Train, dev and test parts of a corpus: a published one, the user's folder by its file names,
or a share of one file.
"""

import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from probtx_pyro.data._fetch import Remote, fetch

Item = TypeVar("Item")
Published = Mapping[str, Mapping[str, Remote | Path]]
_IN_NAMES = {"train": "train(?:ing)?", "dev": "dev|val(?:id(?:ation)?)?", "test": "test"}


class Splits(NamedTuple, Generic[Item]):
    """The parts of a corpus.

    train: to fit.
    dev: to choose by.
    test: to report on; empty where the corpus has none.
    """

    train: list[Item]
    dev: list[Item]
    test: list[Item]


def part_paths(source: str | Path, published: Published) -> dict[str, Path]:
    """The file of each part.

    Parameters
    ----------
    source
        A name in ``published``; a folder, whose files belong to the part that their names tell as a word of its own
        (``train``, ``dev`` or ``valid``, ``test``: ``en_ewt-ud-dev.conllu``); or a file, which is then the train part.
    published
        Corpora by name, each with its parts by name: files to fetch, or installed ones.

    Raises
    ------
    ValueError
        Neither a name, a folder nor a file; a folder without a train file or with two files of one part.
    """
    if source in published:
        parts = published[str(source)]
        return {part: fetch(file) if isinstance(file, Remote) else file for part, file in parts.items()}
    path = Path(source)
    if path.is_file():
        return {"train": path}
    if not path.is_dir():
        raise ValueError(f"there is no file or folder {source}; give one, or one of {', '.join(published)}")
    found: dict[str, Path] = {}
    for file in sorted(path.iterdir()):
        for part, pattern in _IN_NAMES.items():
            if file.is_file() and re.search(f"(?<![a-z])(?:{pattern})(?![a-z])", file.name.lower()):
                if part in found:
                    raise ValueError(f"{path} has two {part} files, {found[part].name} and {file.name}; keep one")
                found[part] = file
    if "train" not in found:
        raise ValueError(f"{path} has no file with 'train' in its name; rename one, or give the file itself")
    return found


def load_splits(
    source: str | Path,
    published: Published,
    read: Callable[[Path], list[Item]],
    dev_share: float,
    seed: int | None = None,
) -> Splits[Item]:
    """The parts, read; without a dev part, a share of train becomes one.

    Parameters
    ----------
    source, published
        See `part_paths`.
    read
        From a file to its items.
    dev_share
        How much of train is held out where there is no dev file.
    seed
        Hold out at random (the order of the file is kept within the parts); ``None`` takes the end of the file.

    Raises
    ------
    ValueError
        Of `part_paths` and of ``read``; a share that leaves one of the two parts empty.
    """
    parts = {part: read(path) for part, path in part_paths(source, published).items()}
    if "dev" not in parts:
        parts["train"], parts["dev"] = held_out(parts["train"], dev_share, seed)
    return Splits(parts["train"], parts["dev"], parts.get("test", []))


def held_out(items: list[Item], share: float, seed: int | None = None) -> tuple[list[Item], list[Item]]:
    """Return ``items`` in two parts.

    Parameters
    ----------
    items
        What is divided.
    share
        Share of the second part.
    seed
        Draw the second part at random; None takes the last items.

    Raises
    ------
    ValueError
        A part that would be empty.

    Examples
    --------
    >>> held_out(list("abcdefghij"), 0.2)[1]
    ['i', 'j']
    """
    number = round(len(items) * share)
    if not 0 < number < len(items):
        raise ValueError(
            f"dev_share {share} of {len(items)} items leaves a part empty; give a dev file, more items or another share"
        )
    order = list(range(len(items)))
    if seed is not None:
        random.Random(seed).shuffle(order)
    cut = len(items) - number
    return [items[i] for i in sorted(order[:cut])], [items[i] for i in sorted(order[cut:])]
