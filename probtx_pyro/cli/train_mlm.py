"""Train a masked language model: hidden words, predicted from those around them by a dependency CRF,
or a transformer with any attention.

  probtx train mlm --text novel.txt --steps 5000 --rarest 2 --out runs/masked
  probtx train mlm --text wikitext2 --rows sentence --mask 0.3 --channels 8 --distances 2,3,4 --out runs/crf
  probtx train mlm --encoder transformer --heads 4 --layers 2 --out runs/transformer
  probtx train mlm --encoder transformer --attention linear-keys --out runs/linear

Words are what stands between spaces; the output weights are the words' own unary scores. The perplexity is that of
hidden words of the validation part, chosen once for a seed. Resume, several processes and results as in
`probtx train --help`.
"""

import argparse
from typing import Any

from probtx_pyro.cli import _training as training

SUMMARY = "a masked language model of words"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx train mlm``."""
    from probtx_pyro.train import MaskedSettings

    training.add_data(parser, "--text", "topics", "UTF-8 text (plain or .gz), topics, tinyshakespeare or wikitext2")
    parser.add_argument(
        "--rows", choices=("fixed", "sentence"), default="fixed", help="fixed (default): --context words; or the lines"
    )
    training.add_words(parser, MaskedSettings)


def run(arguments: argparse.Namespace, how: dict[str, Any]) -> None:
    """Train as ``how`` says, and say where the results are."""
    from probtx_pyro import train
    from probtx_pyro.data import load_text

    settings = training.settings(train.MaskedSettings, arguments)
    with training.threads(arguments, settings, settings.context):
        results = train.train_masked_language_model(settings, load_text(arguments.text), **how).results
    training.report(
        arguments, results, "probtx fill sentences.txt --model RUN", *[training.PARSE] * (arguments.encoder == "crf")
    )
