"""Adapt a trained model to other text with a few annotated sentences: Normal priors are centred on what it has learnt.

probtx train tagger --data ewt --channels 4 --iterations 3 --distances 2,3,4 --out runs/tags
probtx adapt tagger runs/tags ten_sentences.conllu --out runs/adapted
probtx adapt tagger --help                                       what moves, how far, and what chooses it

The adapted tagger stays near the trained one: a parameter moves as far as the sentences say and its prior lets it.
"""

import argparse

from probtx_pyro.cli import _options as options
from probtx_pyro.cli import adapt_tagger

SUMMARY = "adapt a trained tagger with a few annotated sentences"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``probtx adapt tagger``."""
    parser.set_defaults(run=lambda _: options.no_command(parser), names=adapt_tagger.NAMES)
    tasks = parser.add_subparsers(title="models", metavar="MODEL")
    tagger = tasks.add_parser(
        "tagger", help=adapt_tagger.SUMMARY, description=adapt_tagger.__doc__, fill=adapt_tagger.add_arguments
    )
    tagger.set_defaults(run=run)


run = adapt_tagger.run
