"""Train a classifier of texts: from the mean word of a dependency CRF or of a transformer with any attention,
or from the root of a CRF.

  probtx train classifier --data texts.csv --out runs/texts              a CSV or TSV file with the header text,category
  probtx train classifier --data banking77 --channels 8 --steps 4000 --out runs/banking
  probtx train classifier --data banking77 --summary root --head-temperature 1 --out runs/root
  probtx train classifier --data folder --encoder transformer --heads 4 --out runs/transformer
  probtx train classifier --data folder --encoder transformer --attention gaussian-keys --heads 4 --head-dim 16 --out runs/mgk
  probtx train classifier --data listops --encoder transformer --attention linear-keys --context 1000 --out runs/listops

The parameters with the best validation accuracy are kept, and tested where there is a test part. Resume, several
processes and results as in `probtx train --help`.
"""

import argparse
from statistics import fmean
from typing import Any

from probtx_pyro.cli import _training as training

SUMMARY = "a classifier of texts"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx train classifier``."""
    from probtx_pyro.nn import SUMMARIES
    from probtx_pyro.train import ClassifierSettings

    kinds = "a CSV or TSV file, a folder with train, dev and test files, banking77, or listops (or files of its form)"
    training.add_data(parser, "--data", "banking77", kinds)
    training.add_words(parser, ClassifierSettings)
    what = f"how a text is read from its words; root is for crf (default {ClassifierSettings.summary})"
    parser.add_argument("--summary", choices=SUMMARIES, default=ClassifierSettings.summary, help=what)


def run(arguments: argparse.Namespace, how: dict[str, Any]) -> None:
    """Train as ``how`` says, and say where the results are."""
    from probtx_pyro import train

    settings = training.settings(train.ClassifierSettings, arguments)
    texts = train.classified_texts(arguments.data)
    with training.threads(arguments, settings, fmean(len(words) for words, _ in texts["train"])):
        results = train.train_classifier(settings, texts, **how).results
    training.report(arguments, results, "probtx classify RUN texts.txt --out classes.csv")
