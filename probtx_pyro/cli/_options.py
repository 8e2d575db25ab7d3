"""Parsers of commands, options that several commands share, and errors in the words of the command line."""

import argparse
import gc
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, TextIO

from probtx_pyro._lazy import install_advice

MANY_UNKNOWN = 0.3


class Parser(argparse.ArgumentParser):
    """Parser that gets its options when it is first used, and says in one line what is wrong.

    Parameters
    ----------
    fill
        Adds the options; it may import what is heavy, as the help of other commands does not call it.
    earlier
        Returns options of an earlier command from those of this one: they take the place of the defaults.
    options
        As in ``argparse.ArgumentParser``.
    """

    def __init__(
        self,
        *,
        fill: Callable[[argparse.ArgumentParser], None] | None = None,
        earlier: Callable[[argparse.Namespace], Mapping[str, object]] | None = None,
        **options: Any,
    ):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self._fill, self._earlier = fill, earlier

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Add the options, then parse as usual."""
        if self._fill is not None:
            fill, self._fill = self._fill, None
            fill(self)
        found = super().parse_known_args(args, namespace)
        if self._earlier is not None and (had := self._earlier(found[0])):
            self.set_defaults(**had)
            return super().parse_known_args(args, namespace)
        return found

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 after one line on stderr."""
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def seed(text: str) -> int:
    """Read a seed, a whole number from 0 to 2^32 - 1.

    >>> seed("7")
    7
    """
    if not (text.isascii() and text.isdecimal()) or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed; give a whole number from 0 to 4294967295")
    return int(text)


def whole(text: str, least: int) -> int:
    """Read a whole number.

    Parameters
    ----------
    text
        Word of the command line.
    least
        Smallest number that is taken.

    Examples
    --------
    >>> whole("3", 1)
    3
    """
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least}")
    return int(text)


def real(text: str) -> float:
    """Read a number in digits that everybody writes: no underscores, which Python would skip.

    >>> real("-1e3")
    -1000.0
    """
    try:
        if text.isascii() and "_" not in text:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a number")


count, natural = partial(whole, least=1), partial(whole, least=0)

SHARED: Mapping[str, Mapping[str, Any]] = {
    "--seed": {"type": seed, "default": 0, "metavar": "N", "help": "seed of every random choice (default 0)"},
    "--no-progress": {"action": "store_true", "help": "no progress bar"},
    "--device": {"default": "cpu", "metavar": "NAME", "help": "cpu (default), cuda, cuda:1 or mps"},
    "--threads": {
        "type": count,
        "metavar": "N",
        "help": "CPU threads (default: one if all matrix products are small, else as many as torch chooses). Give 1 "
        "when other programs use the same cores: threads that wait for each other can cost ten times the time",
    },
}


def add_shared(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add options of `SHARED`.

    Parameters
    ----------
    parser
        Parser of a command.
    names
        Names of the options, in the order of the help.
    """
    for name in names:
        parser.add_argument(name, **SHARED[name])


def folder(path: Path) -> Path:
    """Return the folder that ``--out`` names, which need not be there.

    Raises
    ------
    ValueError
        It is a file, or ``-``.
    """
    if str(path) == "-":
        raise ValueError("--out - is standard output, and several files are written; give the name of a folder")
    if path.exists() and not path.is_dir():
        raise ValueError(f"--out {path} is a file; give the name of a folder")
    return path


def out_file(path: Path | None, *sources: Path) -> Path | None:
    """Return the file that is to be written, checked before anything is computed; None, also for ``-``,
    is standard output.

    Parameters
    ----------
    path
        File that an option names.
    sources
        Files that are read.

    Raises
    ------
    ValueError
        It is one of these, a folder, in none, or cannot be written.
    """
    if path is None or str(path) == "-":
        return None
    if any(path.resolve() == source.resolve() for source in sources):
        raise ValueError(f"{path} is the file to read; choose another name")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} to write {path.name} in; make it, or choose another")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{path} may not be written here; choose another place")
    return path


def write(path: Path | None, content: str) -> None:
    """Write answers to a file, whole or not at all, and print its name; or to standard output.

    Parameters
    ----------
    path
        Of `out_file`.
    content
        The answers.

    Raises
    ------
    ValueError
        The file cannot be written.
    """
    if path is None:
        sys.stdout.write(content)
        return
    from probtx_pyro.data.files import write_bytes

    write_bytes(path, content.encode())
    print(path)


def beside(path: Path | None) -> TextIO:
    """Return where to say what is no answer: stderr where the answers are on standard output."""
    return sys.stderr if path is None else sys.stdout


def require(module: str, called: str, what: str, extra: str) -> None:
    """Refuse to begin where a package is missing.

    Parameters
    ----------
    module, called
        Its import name, and its English one.
    what
        What needs it.
    extra
        Extra that installs it.

    Raises
    ------
    ModuleNotFoundError
        It is not installed.
    """
    if find_spec(module) is None:
        raise ModuleNotFoundError(f"{what} needs {called}, which is not installed: {install_advice(extra)}")


def no_command(parser: argparse.ArgumentParser) -> int:
    """Print the help of a parser that needs a command and was given none, on stderr;
    return the exit code of wrong usage.
    """
    parser.print_help(sys.stderr)
    return 2


def device(name: str) -> str:
    """Return the torch name of a device that this machine has.

    Raises
    ------
    ValueError
        Not the name of a device, or one that is not here.
    """
    with imports():
        import torch

    try:
        found = torch.device(name)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(f"--device {name}: this torch cannot use it here; try --device cpu") from None
    return str(found)


@contextmanager
def imports() -> Iterator[None]:
    """Import inside the block what stays to the end of the process: no garbage is looked for in it, neither now nor
    when the process ends, which takes a quarter of a short command.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def threads(number: int | None) -> AbstractContextManager[None]:
    """Compute with so many CPU threads inside the block; None leaves torch's choice, and does not import torch."""
    if number is None:
        return nullcontext()
    from probtx_pyro.ops._progress import computed_with

    return computed_with(number)


def with_options(message: str, names: Mapping[str, str]) -> str:
    """Put options in the place of the library's names: of English words only as the subject, or after a bracket.

    Parameters
    ----------
    message
        Message of the library.
    names
        Option of each name.

    Examples
    --------
    >>> with_options("embed_dim 8 is not a multiple of num_heads 3", {"embed_dim": "--width", "num_heads": "--heads"})
    '--width 8 is not a multiple of --heads 3'
    >>> with_options("batch 5 is not a batch", {"batch": "--batch"})
    '--batch 5 is not a batch'
    """
    for name, option in names.items():
        place = r"(?<![\w./-])" if "_" in name or name == "lr" else r"(?:^|(?<=\())"
        message = re.sub(rf"{place}{name}(?![\w./])", option, message)
    return message


def warn(message: str) -> None:
    """Print one line on stderr."""
    print(f"probtx: {message}", file=sys.stderr)


def warn_unknown(share: float, where: str, what: str = "words") -> None:
    """Warn when more than `MANY_UNKNOWN` of the words are unknown to a model.

    Parameters
    ----------
    share
        Share of the words that are unknown.
    where
        Name of the file or of the part of the data.
    what
        Tokens that are counted.
    """
    if share > MANY_UNKNOWN:
        warn(
            f"warning: {share:.0%} of the {what} of {where} are unknown to the model, which reads them all as the same "
            "one; it was trained on other text, or on too little"
        )
