"""Files of corpora: published ones with their checksum, train, dev and test parts, and text from disk and to it."""

import errno
import gzip
import hashlib
import os
import random
import re
import sys
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from probtx_pyro._lazy import install_advice

GITHUB = "https://raw.githubusercontent.com/"
Block = list[tuple[int, str]]
Item = TypeVar("Item")


class Remote(NamedTuple):
    """A published file.

    name: where it lies under ``$PROBTX_DATA``, as it is or with ``.gz`` behind it.
    url: its address.
    sha256: of its content, uncompressed.
    """

    name: str
    url: str
    sha256: str


def on_github(folder: str, place: str, **files: tuple[str, str]) -> dict[str, Remote]:
    """Return files of a GitHub repository by their parts of a corpus.

    Parameters
    ----------
    folder
        Folder under ``$PROBTX_DATA``.
    place
        Owner, repository, commit and folder there, between slashes.
    files
        Name and SHA-256 of the file of each part.
    """
    return {
        part: Remote(f"{folder}/{name}", f"{GITHUB}{place}/{name}", sha256) for part, (name, sha256) in files.items()
    }


def fetch(remote: Remote) -> Path:
    """The file's place on this machine, its content checked.

    Raises
    ------
    ValueError
        As in `own_file`; or ``$PROBTX_DATA`` is not set and there is no connection.
    ModuleNotFoundError
        It must be downloaded, and pooch is not installed.
    """
    return own_file(remote.name, remote.sha256) or download(remote.url, remote.name, remote.sha256)


def own_file(name: str, sha256: str) -> Path | None:
    """Return the file under ``$PROBTX_DATA``, plain or with ``.gz`` behind its name, its content checked;
    None if that is not set.

    Parameters
    ----------
    name
        Path in the folder, without ``.gz``.
    sha256
        SHA-256 of the content, uncompressed.

    Raises
    ------
    ValueError
        No such file, or another content.
    """
    if (folder := os.environ.get("PROBTX_DATA")) is None:
        return None
    plain = Path(folder) / name
    path = plain if plain.is_file() else plain.with_name(f"{plain.name}.gz")
    if hashlib.sha256(read_bytes(path)).hexdigest() != sha256:
        raise ValueError(f"{path} is not the published file (its SHA-256 differs); fetch it again")
    return path


def download(url: str, names: str, sha256: str | None) -> Path:
    """Return the file at an address, downloaded once.

    Parameters
    ----------
    url
        Address.
    names
        Files in ``$PROBTX_DATA`` that would do instead, for errors.
    sha256
        SHA-256 of the file; with None the caller checks what it reads.

    Raises
    ------
    ValueError
        There is no connection.
    ModuleNotFoundError
        Pooch is not installed.
    """
    try:
        import pooch
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"downloads need pooch: {install_advice('tour')}; or set PROBTX_DATA") from None
    try:
        return Path(pooch.retrieve(url, sha256 and f"sha256:{sha256}", path=pooch.os_cache("probtx_pyro")))
    except OSError as error:
        raise ValueError(
            f"{url} cannot be downloaded ({type(error).__name__}); set PROBTX_DATA to a folder with {names}"
        ) from None


def named(path: str | Path) -> str:
    """Return the name of a source in errors; ``-`` is standard input."""
    return "standard input" if str(path) == "-" else str(path)


def read_bytes(path: Path, wanted: str = "file") -> bytes:
    """Return the content of a file, plain or ``.gz``, or of standard input where the path is ``-``.

    Parameters
    ----------
    path
        The file.
    wanted
        What errors ask for.

    Raises
    ------
    ValueError
        No such file, a folder, or a damaged ``.gz``.
    """
    if str(path) == "-":
        return sys.stdin.buffer.read()
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}; give a {wanted}") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder; give a {wanted}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def read_text(path: Path, wanted: str = "text file") -> str:
    """Return UTF-8 text, of what `read_bytes` takes, without a byte-order mark; every line, ended by CR LF,
    CR or LF, ends in LF.

    Parameters
    ----------
    path
        The file.
    wanted
        What errors ask for.

    Raises
    ------
    ValueError
        As in `read_bytes`; not UTF-8, or a NUL character, which no text has (the line is named).
    """
    content = read_bytes(path, wanted)
    try:
        text = content.decode("utf-8")
        wrong, place = "no text: it has a NUL character", content.find(b"\0")
    except UnicodeDecodeError as error:
        wrong, place = "not UTF-8 text", error.start
    if place >= 0:
        line = len(re.findall(rb"\r\n|\r|\n", content[:place])) + 1
        raise ValueError(f"{named(path)}, line {line}: this is {wrong} (byte {place}); convert the file first")
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def read_lines(source: str | Path | Iterable[str], wanted: str = "text file") -> tuple[str, list[str]]:
    r"""Return a name of the source for errors, and its lines without their ends; a byte-order mark is dropped.

    Parameters
    ----------
    source
        A path, plain or ``.gz``, ``-`` for standard input, or the lines themselves, such as an open file.
    wanted
        What errors ask for.

    Raises
    ------
    ValueError
        A file that cannot be read, or that is not UTF-8 text (the line is named).

    Examples
    --------
    >>> read_lines(["a\r\n", "b"])
    ('the lines', ['a', 'b'])
    """
    if isinstance(source, (str, Path)):
        return named(source), read_text(Path(source), wanted).split("\n")
    lines = [line.removesuffix("\n").removesuffix("\r") for line in source]
    return str(getattr(source, "name", "the lines")), [line.removeprefix("\ufeff") for line in lines[:1]] + lines[1:]


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Parameters
    ----------
    path
        Where to.
    content
        What.

    Raises
    ------
    ValueError
        It cannot be written, as on a full disk: what was written of it is removed.
    """
    try:
        with path.open("wb") as file:
            try:
                file.write(content)
                file.flush()
            except OSError:
                if path.is_file():  # and no device or pipe
                    path.unlink()
                raise
    except OSError as error:
        if error.errno == errno.EPIPE:  # whoever reads it has stopped
            raise
        raise ValueError(f"{path} cannot be written ({error.strerror}); mend that, or give another place") from None


class BadLine(ValueError):
    """Error in a line of a file: its arguments are the number of the line and what is wrong with it."""


def read_blocks(
    source: str | Path | Iterable[str], wanted: str, read: Callable[[Block], Item], spaces: str | None = None
) -> list[Item]:
    """Return what ``read`` makes of each block of lines between blank ones.

    Parameters
    ----------
    source, wanted
        As in `read_lines`.
    read
        From the numbered lines of a block to an item; it refuses a line by `BadLine`.
    spaces
        Characters that a blank line may have; None are all white space.

    Raises
    ------
    ValueError
        ``FILE, line N: what is wrong``; see also `read_text`.
    """
    name, lines = read_lines(source, wanted)
    blocks = groupby(enumerate(lines, 1), lambda numbered: bool(numbered[1].strip(spaces)))
    try:
        return [read(list(block)) for has_words, block in blocks if has_words]
    except BadLine as error:
        number, wrong = error.args
        raise ValueError(f"{name}, line {number}: {wrong}") from None


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
        How much of train is held out where there is no dev file; see `held_out`.
    seed
        Hold out at random (the order of the file is kept within the parts); ``None`` takes the end of the file.

    Raises
    ------
    ValueError
        Of `part_paths` and of ``read``; a share that leaves one of the two parts empty.
    """
    parts = {part: read(path) for part, path in part_paths(source, published).items()}
    if "dev" not in parts:
        parts |= held_out(parts["train"], {"dev": dev_share}, seed)
    return Splits(parts["train"], parts["dev"], parts.get("test", []))


def held_out(
    items: Sequence[Item],
    shares: Mapping[str, float],
    seed: int | None = None,
    texts: Callable[[Item], Iterable[Hashable]] = lambda item: item[:1],  # type: ignore[index]
) -> dict[str, list[Item]]:
    """Return ``items`` in parts, the order kept; what is left is ``"train"``.

    No text is in two parts: items that have a text in common stay together, and with them what has one in common with
    any of these.

    Parameters
    ----------
    items
        What is divided.
    shares
        Share of each part, at least; all but dev may be 0.
    seed
        Draw the parts at random; None takes the last items.
    texts
        The texts of an item, those of the same place compared; without it the first field.

    Raises
    ------
    ValueError
        A part that would be empty.

    Examples
    --------
    >>> held_out([("a", 1), ("b", 2), ("c", 3), ("b", 4)], {"dev": 0.25})
    {'train': [('a', 1), ('c', 3)], 'dev': [('b', 2), ('b', 4)]}
    """
    groups = _together(items, texts)
    if seed is not None:
        random.Random(seed).shuffle(groups)
    part_of: dict[int, str] = {}
    for part, share in shares.items():
        number, wanted = len(part_of), round(len(items) * share)
        while groups and len(part_of) < number + wanted:
            part_of |= dict.fromkeys(groups.pop(), part)
        if (not wanted and (share or part == "dev")) or share < 0 or len(part_of) == len(items):
            left = (
                f"{part}_share {share} of {len(items)} items, of which equal texts stay together, leaves a part empty"
            )
            raise ValueError(f"{left}; give a {part} file")
    found: dict[str, list[Item]] = {part: [] for part in ("train", *shares)}
    for i, item in enumerate(items):
        found[part_of.get(i, "train")].append(item)
    return found


def _together(items: Sequence[Item], texts: Callable[[Item], Iterable[Hashable]]) -> list[list[int]]:
    """The items of each group that no text leaves, groups in the order of their last items."""
    number: dict[tuple[int, Hashable], int] = {}
    pairs = [(i, number.setdefault(text, len(number))) for i, x in enumerate(items) for text in enumerate(texts(x))]
    rows, columns = np.array(pairs).T
    nodes = len(items) + len(number)
    graph = coo_array((np.ones(len(pairs)), (rows, len(items) + columns)), shape=(nodes, nodes))
    groups: dict[int, list[int]] = {}
    for i, group in enumerate(connected_components(graph, directed=False)[1][: len(items)].tolist()):
        groups.setdefault(group, []).append(i)
    return sorted(groups.values(), key=max)
