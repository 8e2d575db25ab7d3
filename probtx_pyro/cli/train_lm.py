"""Train a language model whose attention is a probability model, on one core or on many machines.

  probtx train lm --attention gaussian-keys --heads 4 --head-dim 16 --out runs/mgk
  probtx train lm --text novel.txt --level word --steps 5000 --out runs/novel
  probtx train lm --out runs/mgk --resume                goes on from the checkpoint, with the options that the run had
  probtx train lm --out runs/mgk --resume --steps 5000   and makes it longer
  torchrun --nproc-per-node 2 -m probtx_pyro train lm --out runs/two ...

Written to --out: checkpoint.pt, and results.json with the settings, the loss of every step, the validation
perplexities, and the machine. The text is the help that comes with Python unless --text names another. Needs Lightning:
pip install -e '.[train]' in the folder of the repository
"""

import argparse
from typing import Any

from probtx_pyro.cli import _choices as choices
from probtx_pyro.cli import _training as training

SUMMARY = "a causal language model with any of the attention layers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx train lm``."""
    from probtx_pyro import nn
    from probtx_pyro.train import LanguageModelSettings as Settings

    choices.add_choice(parser, "attention", Settings, choices.ATTENTION_OPTIONS, nn.ATTENTIONS)
    training.add_data(parser, "--text", "topics", "UTF-8 text (plain or .gz), topics, tinyshakespeare or wikitext2")
    parser.add_argument("--level", choices=("char", "word"), default="char", help="what a token is (default char)")
    map_help = "MAP training: the layers' own parameters get Pyro priors"
    parser.add_argument("--map", dest="map_training", action="store_true", help=map_help)
    training.add_settings(parser, Settings)


def run(arguments: argparse.Namespace, how: dict[str, Any]) -> None:
    """Train as ``how`` says, and say where the results are."""
    from probtx_pyro import train
    from probtx_pyro.data import load_text

    settings = training.settings(train.LanguageModelSettings, arguments)
    with training.threads(arguments, settings, settings.context):
        results = train.train_language_model(settings, load_text(arguments.text), **how).results
    training.report(arguments, results, "probtx generate RUN")
