"""Train a tagger: a tag for every word of a sentence, from a dependency CRF or a transformer.

  probtx train tagger --data treebank.conllu --column upos --out runs/tags    a CoNLL-U file or folder
  probtx train tagger --data entities.tsv --out runs/names                    a word and its BIO tag a line
  probtx train tagger --data ewt --column xpos --channels 8 --distances 2,3,4 --out runs/ewt
  probtx train tagger --data cogs --rank 16 --out runs/cogs                   five tags a word; the whole sentence must be right

The parameters with the best validation are kept (by accuracy; by span F1 for entities, by whole sentences for cogs), and tested
where there is a test part. Resume, several processes and results as in `probtx train --help`.
"""

import argparse

from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _training as training

SUMMARY = "a tagger of words: parts of speech, named entities, COGS"
NUMBERS: training.Numbers = {
    "context": (options.count, 256, "most words of a sentence, for transformer"),
    "unknown": (float, 0.25, "a word that occurs c times is made unknown with probability N / (N + c)"),
    **training.WORDS,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx train tagger``."""
    parser.add_argument(
        "--data",
        default="small",
        metavar="FILE",
        help="a CoNLL-U file or folder, a file of words and tags, or small (default, comes with the library), "
        "ewt, wnut17, cogs ($PROBTX_DATA, or downloaded)",
    )
    parser.add_argument("--column", choices=("upos", "xpos"), default="upos", help="tags of a treebank (default upos)")
    training.add_encoder(parser)
    training.add_numbers(parser, NUMBERS)
    training.add_run(parser)


def run(arguments: argparse.Namespace) -> None:
    """Train, and say where the results are."""
    of_encoder, how = training.encoder_settings(arguments), training.run_options(arguments)

    from probtx_pyro import train

    data = train.tagged_sentences(arguments.data, arguments.column)
    settings = train.LabellingSettings(unknown=arguments.unknown, select=data.select, **of_encoder)
    results = train.train_tagger(settings, data.parts, metrics=data.metrics, **how).results
    training.report(arguments.encoder, training.scores(results), results, arguments.out, arguments.encoder == "crf")


__all__ = ["SUMMARY", "add_arguments", "run"]
