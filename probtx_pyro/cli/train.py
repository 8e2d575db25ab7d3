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
import os
from pathlib import Path
from typing import Any

from probtx_pyro.cli import options

SUMMARY = "train a language model with any of the attention layers"
ATTENTIONS = ("softmax", "gaussian", "gaussian-keys", "linear-keys")
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed")
NUMBERS: dict[str, tuple[type, Any, str]] = {
    "steps": (int, 2000, "AdamW steps"),
    "batch": (int, 32, "rows of a batch, over all processes"),
    "context": (int, 128, "tokens of a row"),
    "width": (int, 128, "channels of the transformer"),
    "heads": (int, 8, "attention heads"),
    "head-dim": (int, None, "channels of a head (default width / heads)"),
    "layers": (int, 4, "transformer blocks"),
    "dropout": (float, 0.0, "dropout rate"),
    "lr": (float, 2e-3, "peak learning rate"),
    "rarest": (int, 1, "a token that occurs less often is unknown"),
    "validate-every": (int, 500, "steps between validations"),
    "checkpoint-every": (int, 200, "steps between checkpoints"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``probtx train``."""
    parser.add_argument("task", choices=("lm",), help="lm: a causal language model")
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
        "--text",
        default="topics",
        metavar="FILE",
        help="a UTF-8 text file (plain or .gz), or topics (default), tinyshakespeare, wikitext2 (read from $PROBTX_DATA, or downloaded)",
    )
    parser.add_argument("--level", choices=("char", "word"), default="char", help="what a token is (default char)")
    for name, (kind, default, text) in NUMBERS.items():
        shown = "" if default is None else f" (default {default})"
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=text + shown)
    parser.add_argument("--map", action="store_true", help="MAP training: the layers' own parameters get Pyro priors")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the run, made if missing")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--precision", choices=PRECISIONS, default="32-true", help="arithmetic (default 32-true)")
    parser.add_argument(
        "--seed", type=options.seed, default=0, metavar="N", help="seed of every random choice (default 0)"
    )
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    options.add_device(parser)


def run(arguments: argparse.Namespace) -> None:
    """Train, and say where the results are."""
    if arguments.out.exists() and not arguments.out.is_dir():
        raise ValueError(f"--out {arguments.out} is a file; give the name of a folder")
    given = {"num_components": arguments.components, "share": arguments.share, "adapt_steps": arguments.adapt_steps}
    given = {name: value for name, value in given.items() if value is not None}
    allowed = {"softmax": (), "gaussian": ("adapt_steps",), "linear-keys": ("num_components", "share")}
    for name in given:
        if name not in allowed.get(arguments.attention, given):
            flag = {"num_components": "--components"}.get(name, f"--{name.replace('_', '-')}")
            raise ValueError(f"{flag} means nothing to --attention {arguments.attention}; leave it out")
    device = options.device(arguments.device)

    from probtx_pyro import train
    from probtx_pyro.data.text import load_text

    settings = train.Settings(
        arguments.attention, given, level=arguments.level, rarest=arguments.rarest, num_steps=arguments.steps,
        batch=arguments.batch, context=arguments.context, width=arguments.width, heads=arguments.heads,
        head_dim=arguments.head_dim, layers=arguments.layers, dropout=arguments.dropout, lr=arguments.lr,
        validate_every=arguments.validate_every, map_training=arguments.map, seed=arguments.seed,
    )  # fmt: skip
    done = train.train_language_model(
        settings, load_text(arguments.text), arguments.out, resume=arguments.resume, device=device,
        precision=arguments.precision, checkpoint_every=arguments.checkpoint_every,
        progress=False if arguments.no_progress else None,
    )  # fmt: skip
    if os.environ.get("RANK", "0") == "0":
        print(
            f"{arguments.attention}: validation perplexity {done.results['perplexity']:.4f} after {done.results['steps']} steps, "
            f"{done.results['parameters']:,} parameters, {done.results['seconds']:.0f} s\n{arguments.out / train.RESULTS}"
        )


__all__ = ["SUMMARY", "add_arguments", "run"]
