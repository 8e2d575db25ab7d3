"""Lines of a file or of standard input, and the run they need: shared by commands that use a trained model of words."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from probtx_pyro.cli import _options as options

KINDS = {
    "TransformerLM": "probtx train lm",
    "WordTagger": "probtx train tagger",
    "MaskedLanguageModel": "probtx train mlm",
    "TextClassifier": "probtx train classifier",
    "EncoderDecoder": "probtx train translation",
}


def lines(path: Path, blank: bool = False) -> list[str]:
    """Return the lines that are not blank, of a text file, plain or .gz, or of standard input where the path is ``-``.

    Parameters
    ----------
    path
        File, or ``-``.
    blank
        Keep blank lines, as empty texts, but for what stands behind the last that is not.

    Raises
    ------
    ValueError
        There is none.
    """
    from probtx_pyro.data import read_lines

    read = read_lines(sys.stdin.read().split("\n") if str(path) == "-" else path)[1]
    stripped = "\n".join(line.strip() for line in read).rstrip("\n").split("\n")
    if not any(stripped):
        raise ValueError(f"{'standard input' if str(path) == '-' else path} has no text")
    return [line for line in stripped if line or blank]


def sentences(path: Path, check_tree: bool = False) -> list[Any]:
    """Return the sentences of a file.

    Where it is ``-`` or ends in ``.txt`` or ``.txt.gz`` it is plain text, a sentence a line and words between spaces; else CoNLL-U.

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

    if str(path) != "-" and not path.name.endswith((".txt", ".txt.gz")):
        return read_conllu(path, check_tree=check_tree)
    rows = []
    for line in lines(path):
        rows += ["\t".join([str(number), word, *"_" * 8]) for number, word in enumerate(line.split(), 1)] + [""]
    return read_conllu(rows)


def load(folder: Path, device: str, kind: str) -> Any:
    """Return the run in a folder.

    Parameters
    ----------
    folder, device
        As for `train.load_run`.
    kind
        Name of the class that its model needs, of `KINDS`.

    Raises
    ------
    ValueError
        Another kind of model.
    """
    from probtx_pyro.train import load_run

    run = load_run(folder, options.device(device))
    found = type(run.model).__name__
    if found != kind:
        raise ValueError(f"{folder} is a run of {KINDS.get(found, found)}; give one of {KINDS[kind]}")
    return run


def say_unknown(run: Any, words: Iterable[str], where: Path, what: str = "words") -> None:
    """Print the share of words that the model of a run does not know on stderr, and warn where it is large and spellings say nothing.

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
    share = run.vocabulary.unknown_share(words)
    print(f"unknown {what}: {share:.1%}", file=sys.stderr)
    if getattr(run.vocabulary, "spellings", 0):  # unknown words are told apart
        return
    options.warn_unknown(share, "standard input" if str(where) == "-" else str(where), what)
