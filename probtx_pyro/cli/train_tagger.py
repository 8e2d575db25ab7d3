"""Train a tagger: a tag for every word of a sentence, from a dependency CRF, or a transformer with any attention.

  probtx train tagger --data treebank.conllu --column upos --out runs/tags    a CoNLL-U file or folder
  probtx train tagger --data entities.tsv --out runs/names                    a word and its BIO tag a line
  probtx train tagger --data conll2003 --characters 16384 --out runs/ner      a folder of files of columns; unknown words have a spelling
  probtx train tagger --data ewt --column xpos --channels 8 --distances 2,3,4 --out runs/ewt
  probtx train tagger --data ewt --encoder transformer --attention gaussian-keys --components 3 --out runs/mgk
  probtx train tagger --data cogs --rank 16 --out runs/cogs                   five tags a word; the whole sentence must be right

The parameters with the best validation are kept (by accuracy; by span F1 for entities, by whole sentences for cogs),
and tested where there is a test part. Resume, several processes and results as in `probtx train --help`.
"""

import argparse
from statistics import fmean
from typing import Any

from probtx_pyro.cli import _training as training

SUMMARY = "a tagger of words: parts of speech, named entities, COGS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx train tagger``."""
    from probtx_pyro.train import LabellingSettings

    kinds = "a CoNLL-U file or folder, a file of words and tags, small (comes with the library), ewt, wnut17 or cogs"
    training.add_data(parser, "--data", "small", kinds)
    parser.add_argument("--column", choices=("upos", "xpos"), default="upos", help="tags of a treebank (default upos)")
    training.add_words(parser, LabellingSettings)


def run(arguments: argparse.Namespace, how: dict[str, Any]) -> None:
    """Train as ``how`` says, and say where the results are."""
    from probtx_pyro import train

    data = train.tagged_sentences(arguments.data, arguments.column)
    settings = training.settings(train.LabellingSettings, arguments, select=data.select)
    with training.threads(arguments, settings, fmean(len(row.words) for row in data.parts["train"])):
        results = train.train_tagger(settings, data.parts, metrics=data.metrics, **how).results
    training.report(
        arguments, results, "probtx tag sentences.txt --model RUN", *[training.PARSE] * (arguments.encoder == "crf")
    )
