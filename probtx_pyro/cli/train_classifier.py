"""Train a classifier of texts: from the root of a dependency CRF, or the mean word of a transformer.

  probtx train classifier --data texts.csv --out runs/texts              a CSV or TSV file with the header text,category
  probtx train classifier --data banking77 --channels 8 --steps 4000 --out runs/banking
  probtx train classifier --data folder --encoder transformer --heads 4 --out runs/transformer

The parameters with the best validation accuracy are kept, and tested where there is a test part. Resume, several processes and
results as in `probtx train --help`.
"""

import argparse

from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _training as training

SUMMARY = "a classifier of texts"
NUMBERS: training.Numbers = {
    "context": (options.count, 256, "most words of a text, for transformer"),
    "unknown": (float, 0.25, "a word that occurs c times is made unknown with probability N / (N + c)"),
    **training.WORDS,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx train classifier``."""
    parser.add_argument(
        "--data",
        default="banking77",
        metavar="FILE",
        help="a CSV or TSV file, a folder with train, dev and test files, or banking77 (default; $PROBTX_DATA, or downloaded)",
    )
    training.add_encoder(parser)
    training.add_numbers(parser, NUMBERS)
    training.add_run(parser)


def run(arguments: argparse.Namespace) -> None:
    """Train, and say where the results are."""
    of_encoder, how = training.encoder_settings(arguments), training.run_options(arguments)

    from probtx_pyro import train

    settings = train.LabellingSettings(unknown=arguments.unknown, **of_encoder)
    results = train.train_classifier(settings, train.classified_texts(arguments.data), **how).results
    training.report(arguments.encoder, training.scores(results), results, arguments.out)


__all__ = ["SUMMARY", "add_arguments", "run"]
