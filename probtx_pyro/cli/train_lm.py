"""Train a language model whose attention is a probability model, on one core or on many machines.

  probtx train lm --attention gaussian-keys --heads 4 --head-dim 16 --out runs/mgk
  probtx train lm --text novel.txt --level word --steps 5000 --out runs/novel
  probtx train lm --out runs/mgk --resume ...            the same settings again: goes on from the checkpoint
  torchrun --nproc-per-node 2 -m probtx_pyro train lm --out runs/two ...

Written to --out: checkpoint.pt, and results.json with the settings, the loss of every step, the validation perplexities, and
the machine. The text is the help that comes with Python unless --text names another. Needs Lightning:
pip install 'probtx_pyro[train]'
"""

import argparse
from typing import Any

from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _training as training

SUMMARY = "a causal language model with any of the attention layers"
NUMBERS: training.Numbers = {
    "context": (options.count, 128, "tokens of a row"),
    "heads": (options.count, 8, "attention heads"),
    "head-dim": (options.count, None, "channels of a head (default width / heads)"),
    "layers": (options.count, 4, "transformer blocks"),
    **training.COMMON,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx train lm``."""
    training.add_attention(parser)
    parser.add_argument(
        "--text",
        default="topics",
        metavar="FILE",
        help="a UTF-8 text file (plain or .gz), or topics (default), tinyshakespeare, wikitext2 (read from $PROBTX_DATA, or downloaded)",
    )
    parser.add_argument("--level", choices=("char", "word"), default="char", help="what a token is (default char)")
    training.add_numbers(parser, NUMBERS)
    parser.add_argument("--map", action="store_true", help="MAP training: the layers' own parameters get Pyro priors")
    training.add_run(parser)


def run(arguments: argparse.Namespace, how: dict[str, Any]) -> None:
    """Train as ``how`` says, and say where the results are."""
    from probtx_pyro import train
    from probtx_pyro.data import load_text

    settings = training.settings(train.LanguageModelSettings, arguments, map_training=arguments.map)
    results = train.train_language_model(settings, load_text(arguments.text), **how).results
    found = f"validation perplexity {results['perplexity']:.4f}"
    training.report(arguments, results, found)


__all__ = ["SUMMARY", "add_arguments", "run"]
