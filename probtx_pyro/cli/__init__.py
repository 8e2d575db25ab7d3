"""The command line: ``probtx``, or ``python -m probtx_pyro``.

A command is a file of this folder with ``SUMMARY``, ``add_arguments(parser)`` and ``run(arguments)``, and one entry of
``COMMANDS``. Command files import what is heavy inside ``run``, so that ``--help`` answers at once. Exit codes: 0 done, 2 wrong
usage or input (one line on stderr), 130 interrupted.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

COMMANDS = ("tour", "segment", "train", "parse")

DESCRIPTION = """Attention and transformers as Pyro programs: the attention matrix is a posterior.

Start with the guided run, which explains the library on real data in under two minutes:

  probtx tour --out tour_output     figures, an InferenceData file and report.html

and a task of your own, by a few clicks on a photograph:

  probtx segment cat.jpg --click 120,200,1 --click 10,10,2 --out mask.png

Language models with any of the attention layers, on any text:

  probtx train lm --attention gaussian-keys --text novel.txt --out runs/novel

Taggers, masked language models and classifiers with the dependency CRF or a transformer:

  probtx train tagger --data treebank.conllu --out runs/tags

Dependency trees of sentences, read out of such a model's attention:

  probtx parse sentences.conllu --model runs/masked --out trees.conllu

In Python:  from probtx_pyro import models, inference, nn, results, plots
"""


def parser() -> argparse.ArgumentParser:
    """The parser of all commands; imports neither torch nor matplotlib."""
    top = argparse.ArgumentParser(
        prog="probtx", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--version", action="version", version=f"probtx {version('probtx_pyro')}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = import_module(f"{__name__}.{name}")
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
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
    try:
        arguments = parser().parse_args(argv)
        arguments.run(arguments)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"probtx: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("probtx: interrupted", file=sys.stderr)
        return 130
    return 0


__all__ = ["COMMANDS", "main", "parser"]
