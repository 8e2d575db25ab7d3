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

from probtx_pyro.cli import training

SUMMARY = "a causal language model with any of the attention layers"
# option -> argument of the layer, for each layer that takes it
OPTIONS = {
    "components": "num_components",
    "share": "share",
    "adapt-steps": "adapt_steps",
    "retrieval-steps": "num_steps",
    "transformation": "transformation",
}
ATTENTIONS = {
    "softmax": (),
    "gaussian": ("adapt-steps",),
    "gaussian-keys": ("components", "share", "adapt-steps"),
    "linear-keys": ("components", "share"),
    "hopfield": ("retrieval-steps", "transformation"),
}
NUMBERS: training.Numbers = {
    "context": (int, 128, "tokens of a row"),
    "heads": (int, 8, "attention heads"),
    "head-dim": (int, None, "channels of a head (default width / heads)"),
    "layers": (int, 4, "transformer blocks"),
    **training.COMMON,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``probtx train lm``."""
    parser.add_argument(
        "--attention", choices=ATTENTIONS, default="softmax", help="the attention layer (default softmax)"
    )
    parser.add_argument("--components", type=int, metavar="R", help="keys a unit, for gaussian-keys and linear-keys")
    parser.add_argument(
        "--share", choices=("shift",), help="keys of a unit are shifts of one, not projections of their own"
    )
    parser.add_argument(
        "--adapt-steps", type=int, metavar="N", help="ECM steps of the keys at every call, for the gaussian ones"
    )
    parser.add_argument(
        "--retrieval-steps", type=int, metavar="N", help="steps of a state among the keys, for hopfield"
    )
    parser.add_argument(
        "--transformation", choices=("softmax", "entmax15", "sparsemax"), help="scores to weights, for hopfield"
    )
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


def run(arguments: argparse.Namespace) -> None:
    """Train, and say where the results are."""
    options = training.given(arguments, "attention", OPTIONS, ATTENTIONS)
    how = training.run_options(arguments)

    from probtx_pyro import train
    from probtx_pyro.data.text import load_text

    settings = train.Settings(
        attention=arguments.attention, options=options, level=arguments.level, context=arguments.context,
        heads=arguments.heads, head_dim=arguments.head_dim, layers=arguments.layers, map_training=arguments.map,
        **training.common_settings(arguments),
    )  # fmt: skip
    results = train.train_language_model(settings, load_text(arguments.text), **how).results
    found = f"validation perplexity {results['perplexity']:.4f}"
    training.report(arguments.attention, found, results, arguments.out / train.RESULTS)


__all__ = ["SUMMARY", "add_arguments", "run"]
