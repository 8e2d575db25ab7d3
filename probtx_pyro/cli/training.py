"""Options that the tasks of ``probtx train`` share, and what their values must be."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probtx_pyro.cli import options

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed")
Numbers = Mapping[str, tuple[type, Any, str]]
COMMON: Numbers = {
    "steps": (int, 2000, "AdamW steps"),
    "batch": (int, 32, "rows of a batch, over all processes"),
    "width": (int, 128, "channels of the model"),
    "dropout": (float, 0.0, "dropout rate"),
    "lr": (float, 2e-3, "peak learning rate"),
    "rarest": (int, 1, "a token that occurs less often is unknown"),
    "validate-every": (int, 500, "steps between validations"),
    "checkpoint-every": (int, 200, "steps between checkpoints"),
}
WORDS: Numbers = {
    **COMMON,
    "width": (int, 128, "channels of the words; for crf, labels"),
    "lr": (float, 5e-3, "peak learning rate"),
}


def distances(text: str) -> tuple[int, ...]:
    """Distances that end a group, in rising order.

    >>> distances("2,3,4")
    (2, 3, 4)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are no distances; give whole numbers like 2,3,4") from None


# of every choice: option -> (argument that it sets, type, help)
ENCODERS: Mapping[str, Mapping[str, tuple[str, Any, str]]] = {
    "crf": {
        "channels": ("num_channels", int, "channels, for crf (default 8): in each a word has a head"),
        "iterations": ("num_steps", int, "mean-field iterations, for crf (default 4)"),
        "distances": ("distances", distances, "where distances are cut into groups, like 2,3,4, for crf"),
        "rank": ("rank", int, "rank of the ternary potentials, for crf (default: full)"),
        "nodes": ("num_nodes", int, "global nodes, the analogue of a feed-forward layer, for crf (default 0)"),
        "head-temperature": ("head_temperature", float, "of the heads, for crf (default 1 / width)"),
        "head-step": ("head_step", float, "step of the heads' marginals, for crf (default 1, a full step)"),
        "label-step": ("label_step", float, "step of the labels' marginals, for crf (default 1, a full step)"),
    },
    "transformer": {
        "heads": ("num_heads", int, "attention heads, for transformer (default 8)"),
        "layers": ("num_layers", int, "layers, for transformer (default 4)"),
    },
}


def add_numbers(parser: argparse.ArgumentParser, numbers: Numbers) -> None:
    """One option for each entry."""
    for name, (kind, default, text) in numbers.items():
        shown = "" if default is None else f" (default {default})"
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=text + shown)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Folder, resuming, arithmetic, seed and device."""
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the run, made if missing")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--precision", choices=PRECISIONS, default="32-true", help="arithmetic (default 32-true)")
    parser.add_argument(
        "--seed", type=options.seed, default=0, metavar="N", help="seed of every random choice (default 0)"
    )
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    options.add_device(parser)


def add_encoder(parser: argparse.ArgumentParser) -> None:
    """``--encoder`` and what each encoder takes."""
    parser.add_argument(
        "--encoder", choices=ENCODERS, default="crf", help="crf (default): dependency CRF; or transformer"
    )
    for name, (_, kind, text) in (item for taken in ENCODERS.values() for item in taken.items()):
        parser.add_argument(f"--{name}", type=kind, metavar="N", help=text)


def given(
    arguments: argparse.Namespace, choice: str, flags: Mapping[str, str], allowed: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments of the options that were given, refused where they mean nothing to what ``--choice`` says.

    flags: the argument that each option sets; allowed: the options of each choice.
    """
    chosen = getattr(arguments, choice)
    found = {name: getattr(arguments, name.replace("-", "_")) for name in flags}
    for name, value in found.items():
        if value is not None and name not in allowed[chosen]:
            raise ValueError(f"--{name} means nothing to --{choice} {chosen}; leave it out")
    return {flags[name]: value for name, value in found.items() if value is not None}


def encoder_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `train.encoders.EncoderSettings` takes, from the options of `COMMON` and `add_encoder`."""
    flags = {name: of for taken in ENCODERS.values() for name, (of, _, _) in taken.items()}
    return {
        "encoder": arguments.encoder,
        "options": given(arguments, "encoder", flags, ENCODERS),
        "context": arguments.context,
        **common_settings(arguments),
    }


def common_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """What all settings take, from the options of `COMMON`."""
    names = ("batch", "width", "dropout", "lr", "rarest", "validate_every", "seed")
    return {"num_steps": arguments.steps, **{name: getattr(arguments, name) for name in names}}


def run_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `train_task` takes, and its folder; checked."""
    if arguments.out.exists() and not arguments.out.is_dir():
        raise ValueError(f"--out {arguments.out} is a file; give the name of a folder")
    return {
        "out": arguments.out,
        "resume": arguments.resume,
        "device": options.device(arguments.device),
        "precision": arguments.precision,
        "checkpoint_every": arguments.checkpoint_every,
        "progress": False if arguments.no_progress else None,
    }


def report(label: str, found: str, results: Mapping[str, Any], file: Path) -> None:
    """One line on the run, and where its results are; printed by one process."""
    if os.environ.get("RANK", "0") == "0":
        print(
            f"{label}: {found} after {results['steps']} steps, {results['parameters']:,} parameters, "
            f"{results['seconds']:.0f} s\n{file}"
        )


def scores(results: Mapping[str, Any]) -> str:
    """The metrics of a finished run, part by part."""
    return "; ".join(
        f"{part} {', '.join(f'{name} {value:.4f}' for name, value in found.items())}"
        for part, found in results["metrics"].items()
    )


__all__ = [
    "COMMON", "ENCODERS", "PRECISIONS", "WORDS", "add_encoder", "add_numbers", "add_run", "common_settings", "distances",
    "encoder_settings", "given", "report", "run_options", "scores",
]  # fmt: skip
