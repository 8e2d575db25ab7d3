"""Adapt a trained model to other text with a few annotated sentences: Normal priors are centred on what it has learnt.

probtx train tagger --data ewt --channels 4 --iterations 3 --distances 2,3,4 --out runs/tags
probtx adapt tagger runs/tags ten_sentences.conllu --out runs/adapted
probtx adapt tagger --help                                       what moves, how far, and what chooses it

The adapted tagger stays near the trained one: a parameter moves as far as the sentences say and its prior lets it.
"""

import argparse
import inspect
from pathlib import Path
from typing import Any

from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _texts as texts

SUMMARY = "adapt a trained tagger with a few annotated sentences"
NAMES = {"move": "--move", "spread": "--spread", "folds": "--folds"}


def positive(text: str) -> float:
    """Read a positive number.

    >>> positive("0.5")
    0.5
    """
    if not 0 < (number := options.real(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def add_tagger(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx adapt tagger``."""
    add = parser.add_argument
    add("model", type=Path, metavar="RUN", help="folder of a run of probtx train tagger")
    add("sentences", type=Path, metavar="FILE", help="CoNLL-U, or a word and its tag a line; also .gz")
    add("--out", required=True, type=Path, metavar="DIR", help="folder of the adapted tagger")
    add("--column", choices=("upos", "xpos"), default="upos", help="tags of CoNLL-U (default upos)")
    add("--move", type=lambda text: text.split(","), metavar="NAMES", help="what moves, like ternary,words,tags")
    add("--spread", type=positive, metavar="S", help="standard deviation of the priors")
    add("--folds", type=options.count, default=5, metavar="N", help="parts in cross-validation (default 5)")
    add("--test", type=Path, metavar="FILE", help="other annotated sentences, to test on")
    options.add_shared(parser, "--seed", "--no-progress", "--threads")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``probtx adapt tagger``."""
    parser.set_defaults(run=lambda _: options.no_command(parser), names=NAMES)
    tasks = parser.add_subparsers(title="models", metavar="MODEL")
    what, how = "a tagger of words, of probtx train tagger", inspect.cleandoc(run.__doc__ or "")
    tasks.add_parser("tagger", help=what, description=how, fill=add_tagger).set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Adapt a trained tagger with a few annotated sentences:
    the mode of its parameters under Normal priors centred on them.

      probtx adapt tagger runs/tags ten.conllu --out runs/adapted     cross-validation on ten.conllu chooses
      probtx adapt tagger runs/tags ten.conllu --out runs/adapted --test more.conllu   and tests
      probtx adapt tagger runs/tags ten.tsv --out runs/adapted --move ternary,words,tags --spread 0.1

    What may move: the potentials of the dependency CRF (ternary; of low rank left and right), words (their unary
    scores; words that the tagger does not know get scores of their own) and tags (the readout). The spread is the
    standard deviation of the priors: the smaller, the nearer to what was trained. What is not named is chosen by
    cross-validation on the sentences, and the tagger as it is competes: it may win. A word with the tag _ is context
    without a tag. The folder is one as probtx train makes it; probtx parse reads it, too.
    """
    out = options.folder(arguments.out)

    from probtx_pyro import train

    before = texts.load(arguments.model, "cpu")
    sentences = train.annotated_sentences(arguments.sentences, arguments.column)
    test = train.annotated_sentences(arguments.test, arguments.column) if arguments.test else []
    chosen: dict[str, Any] = {name: getattr(arguments, name) for name in ("move", "spread", "folds", "seed")}
    after = train.adapt_tagger(before, sentences, out, progress=False if arguments.no_progress else None, **chosen)
    found = after.results
    for row in found["validation"]:
        what = f"{','.join(row['move'])} {row['spread']:g}" if row["move"] else "as it is"
        print(f"held out, {what}: {row['nats']:.4f} nats a word")
    moved = (
        f"{','.join(found['move'])} within {found['spread']:g}" if found["move"] else "nothing: no choice does better"
    )
    print(f"moved: {moved}; {found['sentences']} sentences, {found['new_words']} new words, {found['seconds']:.0f} s")
    if not found["converged"]:
        options.warn("warning: the mode was not reached; give a smaller --spread")
    for name, tagger in {"before": before, "after": after}.items() if test else ():
        scores = train.score_tagger(tagger, test)
        print(f"test {name}: accuracy {scores.right.double().mean():.4f}, {scores.nats.double().mean():.4f} nats a tag")
    print(out / train.RESULTS)
    print(f"Next: in Python: probtx_pyro.train.load_run({str(out)!r}) loads the tagger")
    texts.say_unfinished(arguments.model, before)
