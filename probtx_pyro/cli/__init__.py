"""Attention and transformers as Pyro programs: the attention matrix is a posterior.

Start with the guided run, which explains the library on real data in under two minutes:

  probtx tour                       figures, an InferenceData file and report.html, in tour_output

the explorer, a page to drag and slide, with a mixture or a CRF of your own if you like:

  probtx explore

and a task of your own, by a few clicks on a photograph, in the browser:

  probtx segment cat.jpg

Classes of the rows of a table, with their evidence:

  probtx classify train.csv --label species new.csv --out classes.csv

Language models with any of the attention layers, on any text:

  probtx train lm --attention gaussian-keys --text novel.txt --out runs/novel
  probtx generate runs/novel --prompt "It was"

Taggers, masked language models and classifiers with the dependency CRF or a transformer:

  probtx train tagger --data treebank.conllu --out runs/tags
  probtx tag sentences.txt --model runs/tags

Translation of sentences, from pairs of them:

  probtx train translation --data pairs.tsv --out runs/de
  probtx translate sentences.txt --model runs/de

A trained tagger, adapted to other text with ten annotated sentences:

  probtx adapt tagger runs/tags ten_sentences.conllu --out runs/adapted

Dependency trees of sentences, read out of such a model's attention:

  probtx parse sentences.conllu --model runs/masked --out trees.conllu

In Python:  from probtx_pyro import models, inference, nn, results, plots
"""

# A command is a file of this folder, named in COMMANDS: its docstring is the description in its help, and it has
# SUMMARY, add_arguments(parser) and run(arguments) -> None or an exit code. Heavy imports stand inside these functions.
# Exit codes: 0 done, 1 done in part, 2 wrong usage or input, 130 interrupted, 141 where the reader of the output stops.

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from probtx_pyro.cli import _options as options
from probtx_pyro.cli.explore import write_explorer_json

COMMANDS = ("tour", "explore", "segment", "classify", "train", "adapt", "generate", "tag", "fill", "translate", "parse")
"""Names of the commands of ``probtx``."""


def parser() -> options.Parser:
    """Return the parser of all commands; it imports neither torch nor matplotlib."""
    top = options.Parser(prog="probtx", description=__doc__)
    top.add_argument("--version", action="version", version=f"probtx {version('probtx_pyro')}")
    top.set_defaults(run=lambda _: options.no_command(top), threads=None, names={})
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    for name in COMMANDS:
        module = import_module(f"{__name__}.{name}")
        command = commands.add_parser(name, help=module.SUMMARY, description=module.__doc__, fill=module.add_arguments)
        command.set_defaults(run=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; bad input is one line on stderr and exit code 2, never a traceback.

    Parameters
    ----------
    argv
        The words after ``probtx``; those of the process if None.

    Returns
    -------
    int
        The exit code.
    """
    names = {}
    try:
        try:
            arguments = parser().parse_args(argv)
            names = arguments.names
            with options.threads(arguments.threads):
                code = arguments.run(arguments)
        finally:
            sys.stdout.flush()  # here, where a reader that is gone can be handled
    except BrokenPipeError:
        # else the interpreter flushes again, and complains
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError, ModuleNotFoundError) as error:
        if str(getattr(error, "name", "")).startswith("probtx_pyro"):
            raise  # one of our own modules is missing: a fault of ours
        print(f"probtx: error: {options.with_options(' '.join(str(error).split()), names)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print("; ".join(["probtx: interrupted", *map(str, interrupt.args)]), file=sys.stderr)
        return 130
    return code or 0


__all__ = ["COMMANDS", "main", "parser", "write_explorer_json"]
