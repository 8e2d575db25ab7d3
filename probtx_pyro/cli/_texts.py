"""Lines of a file or of standard input, and the run they need: shared by commands that use a trained model of words.

Every line in is told in what comes out. Where the answers are one for each line (``classify``, ``translate``, ``tag``)
a blank line has an empty one; where they are not (``fill``, ``parse``) they have the number of their line, and a blank
line has none.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from probtx_pyro.cli import _options as options

if TYPE_CHECKING:
    from probtx_pyro.data import Sentence
    from probtx_pyro.train import Run

KINDS = {
    "TransformerLM": "probtx train lm",
    "WordTagger": "probtx train tagger",
    "MaskedLanguageModel": "probtx train mlm",
    "TextClassifier": "probtx train classifier",
    "EncoderDecoder": "probtx train translation",
}
CONLLU = re.compile(r"(1|1-[0-9]+|0\.1)\t")  # how the first line of words begins


class Lines(list[str]):
    """Lines of a file that is called ``name`` in errors."""

    name = ""


class Sentences(NamedTuple):
    """Sentences of a file.

    items: a `data.Sentence`, or None for a blank line of plain text.
    kind: what an item is in the file, ``"line"`` of plain text or ``"sentence"`` of CoNLL-U.
    """

    items: "Sequence[Sentence | None]"
    kind: str

    @property
    def words(self) -> list[tuple[str, ...]]:
        """Words of each item; none of a blank line."""
        return [() if item is None else item.words for item in self.items]


def lines(path: Path) -> list[str]:
    """Return every line of a text file, plain or .gz, or of standard input where the path is ``-``,
    without spaces about it.

    Parameters
    ----------
    path
        File, or ``-``.

    Raises
    ------
    ValueError
        All are blank, or what `data.read_lines` refuses.
    """
    return _stripped(*_read(path))


def _read(path: Path) -> tuple[str, list[str]]:
    from probtx_pyro.data import read_lines

    return read_lines(path)


def _stripped(name: str, read: list[str]) -> list[str]:
    found = [line.strip() for line in (read if read[-1] else read[:-1])]  # behind the last line end there is no line
    if not any(found):
        raise ValueError(f"{name} has no text")
    return found


def sentences(path: Path, check_tree: bool = False) -> Sentences:
    """Return the sentences of a file of plain text, a sentence a line and words between spaces, or of CoNLL-U.

    A name that ends in ``.txt`` is of plain text, one in ``.conllu`` of CoNLL-U, both also with ``.gz``; any other file
    is what its first line of words looks like, which is said on stderr, and so is standard input.

    Parameters
    ----------
    path, check_tree
        As for `data.read_conllu`.

    Raises
    ------
    ValueError
        As `lines` and `data.read_conllu`.
    """
    from probtx_pyro.data import read_conllu

    name, read = _read(path)
    ending = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    conllu = ending == "conllu"
    if ending not in ("txt", "conllu"):
        first = next((line for line in read if line.strip() and not line.startswith("#")), "")
        conllu = bool(CONLLU.match(first))
        if conllu or str(path) != "-":
            why = "begins with 1 and a tab" if conllu else "is none of CoNLL-U, which begins with 1 and a tab"
            what = "CoNLL-U" if conllu else "plain text, a sentence a line"
            print(f"probtx: {name} is read as {what}: its first line of words {why}", file=sys.stderr)
    if conllu:
        named = Lines(read)
        named.name = name
        return Sentences(read_conllu(named, check_tree=check_tree), "sentence")
    items = []
    for number, line in enumerate(_stripped(name, read), 1):
        words = enumerate(line.split(), 1)
        rows = [f"# sent_id = {number}", *("\t".join([str(place), word, *"_" * 8]) for place, word in words)]
        items.append(read_conllu(rows)[0] if line else None)
    return Sentences(items, "line")


@contextmanager
def named_rows(path: Path, kind: str = "line") -> Iterator[None]:
    """Name the file, and the line or sentence, in an error of one of several rows.

    Parameters
    ----------
    path
        File, or ``-``.
    kind
        What a row is in the file.
    """
    from probtx_pyro.apps._batches import BadRow
    from probtx_pyro.data.files import named

    try:
        yield
    except BadRow as error:
        raise ValueError(f"{named(path)}, {kind} {error.number} {error.wrong}") from None


def load(folder: Path, device: str, kind: str | None = None) -> "Run":
    """Return the run in a folder.

    Parameters
    ----------
    folder, device
        As for `train.load_run`.
    kind
        Name of the class that its model needs, of `KINDS`; None takes any.

    Raises
    ------
    ValueError
        Another kind of model.
    """
    with options.imports():
        from probtx_pyro.train import load_run

    run = load_run(folder, options.device(device))
    found = type(run.model).__name__
    if kind is not None and found != kind:
        raise ValueError(f"{folder} is a run of {KINDS.get(found, found)}; give one of {KINDS[kind]}")
    return run


def say_unfinished(folder: Path, run: "Run") -> None:
    """Warn on stderr where a run has stopped before its end.

    Parameters
    ----------
    folder, run
        Of `load`.
    """
    steps = run.settings.num_steps
    done = run.results.get("steps", steps) if run.results else 0  # none where it was killed before it could write them
    if done < steps:
        how = f"{KINDS[type(run.model).__name__]} --resume --out {folder} goes on"
        options.warn(f"warning: {folder} is a run that stopped before its {steps} steps were done; {how}")


def say_unknown(run: "Run", words: Iterable[str], where: Path, what: str = "words") -> None:
    """Print the share of words that the model of a run does not know on stderr,
    and warn where it is large and spellings say nothing.

    Parameters
    ----------
    run
        Of `load`.
    words
        All words, or the lines that a tokenizer divides.
    where
        File they come from.
    what
        Tokens that are counted.
    """
    from probtx_pyro.data.files import named

    share = run.vocabulary.unknown_share(words)
    print(f"unknown {what}: {share:.1%}", file=sys.stderr)
    if getattr(run.vocabulary, "spellings", 0):  # unknown words are told apart
        return
    options.warn_unknown(share, named(where), what)
