"""Options that the tasks of ``probtx train`` share, and what their values must be."""

import argparse
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from typing import Any

from probtx_pyro.cli import _choices as choices
from probtx_pyro.cli import _options as options

COMMAND = "command.json"
# what a resumed run is not asked to repeat, and what says nothing of the run
OF_ONE_CALL = (
    "out",
    "resume",
    "task",
    "no_progress",
    "device",
    "threads",
    "checkpoint_every",
    "choices",
    "names",
)
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed")
# help of the options that set a number of the settings, by the name of the field
NUMBERS = {
    "num_steps": "AdamW steps",
    "batch": "rows of a batch, over all processes",
    "width": "channels of the model; for crf, labels",
    "dropout": "dropout rate",
    "lr": "peak learning rate",
    "validate_every": "steps between validations",
    "rarest": "a token that occurs less often is unknown",
    "context": "tokens of a row; for transformer, most words of a sentence or text",
    "heads": "attention heads",
    "head_dim": choices.HEAD_DIM,
    "layers": "transformer blocks",
    "mask": "share of the words of a row that are hidden",
    "unknown": "a word that occurs c times is made unknown with probability N / (N + c)",
    "vocabulary": "most tokens, of both languages together",
    "smoothing": "share of a target's probability that is spread over the vocabulary in training",
    "beam": "sequences that the search for a translation follows at a time",
    "length_penalty": "0 compares the probabilities of translations; more favours long ones",
    "characters": "rows of a table of prefixes, suffixes and shapes, which unknown words have, too, such as 16384",
    "prior_spread": "standard deviation of Normal priors, mean 0, on the potentials of crf (default: no priors)",
}


# settings that are usual elsewhere, by the name that --preset takes: `earlier` puts them in the place of the defaults
PRESETS: dict[str, dict[str, Any]] = {
    # sizes, rate, dropout and smoothing of fairseq's transformer_iwslt_de_en; the feed-forward layers here are twice as
    # wide. Never run.
    "iwslt": {
        "width": 512, "heads": 4, "layers": 6, "dropout": 0.3, "lr": 5e-4, "warmup": 0.08, "weight_decay": 1e-4, "batch": 160, "num_steps": 50_000,
        "vocabulary": 10_000, "context": 256, "validate_every": 1000, "beam": 5,
    },
}  # fmt: skip


def option_of(field: str) -> str:
    """Return the option that sets a field of the settings."""
    return {"num_steps": "--steps", "map_training": "--map"}.get(field, f"--{field.replace('_', '-')}")


# option of each of the library's names; num_steps is the run's here: a layer's or an encoder's is checked by its own
# option
OPTION_NAMES = {
    **{
        option.argument.rpartition(".")[2]: f"--{name}"
        for name, option in {**choices.LAYER_OPTIONS, **choices.ENCODER_OPTIONS}.items()
    },
    **{field: option_of(field) for field in (*NUMBERS, "rows", "map_training")},
    **{"embed_dim": "--width", "checkpoint_every": "--checkpoint-every", "adapt": "--adapt-steps"},
}


def remember(arguments: argparse.Namespace) -> None:
    """Write the options of a run into its folder, where `earlier` finds them; one process of many does.

    Parameters
    ----------
    arguments
        Words of the command line, parsed.
    """
    if os.environ.get("RANK", "0") != "0" or (arguments.out / "checkpoint.pt").exists():
        return
    kept = {name: value for name, value in vars(arguments).items() if name not in OF_ONE_CALL and _is_plain(value)}
    for name in {"text", "data"} & kept.keys():
        if Path(kept[name]).is_file():  # and no corpus by name: it is found from another folder, too
            kept[name] = str(Path(kept[name]).resolve())
    arguments.out.mkdir(parents=True, exist_ok=True)
    from probtx_pyro.data._fetch import write_bytes

    write_bytes(arguments.out / COMMAND, (json.dumps(kept, indent=1) + "\n").encode())


def _is_plain(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, bool | int | float | str)
        or (isinstance(value, tuple) and all(map(_is_plain, value)))
    )


def earlier(words: Sequence[str]) -> dict[str, Any]:
    """Return the options that a run had when it began, where the words of a command resume it;
    else those of a preset that they name.

    Parameters
    ----------
    words
        Words of the command line behind the name of the task.

    Raises
    ------
    ValueError
        What `remember` has written cannot be read.
    """
    asked = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    asked.add_argument("--resume", action="store_true")
    asked.add_argument("--out", type=Path)
    asked.add_argument("--preset")
    try:
        found, _ = asked.parse_known_args(words)
    except argparse.ArgumentError:  # --out without its value: the parser of the task says so
        return {}
    if not found.resume or found.out is None or not (path := found.out / COMMAND).exists():
        return PRESETS.get(found.preset, {})
    try:
        had = json.loads(path.read_text(encoding="utf-8"))
        return {name: tuple(value) if isinstance(value, list) else value for name, value in had.items()}
    except (ValueError, AttributeError):
        raise ValueError(f"{path} cannot be read; remove it, and give the options of the run again") from None


def add_data(parser: argparse.ArgumentParser, option: str, default: str, files: str) -> None:
    """Add the option that names a file or a published corpus.

    Parameters
    ----------
    parser
        Parser of a task.
    option
        ``"--text"`` or ``"--data"``.
    default
        Corpus that is read without the option.
    files
        Files and corpora that it takes.
    """
    found = "published ones are read from $PROBTX_DATA, or downloaded"
    parser.add_argument(option, default=default, metavar="FILE", help=f"{files} (default {default}; {found})")


def add_settings(parser: argparse.ArgumentParser, kind: Any) -> None:
    """Add an option for each number of the settings, and what every run has.

    Parameters
    ----------
    parser
        Parser of a task.
    kind
        Class of the settings, which has the defaults.
    """
    for field in fields(kind):
        if (text := NUMBERS.get(field.name)) is not None:
            shown = text if field.default is None else f"{text} (default {field.default})"
            reads = options.real if "float" in str(field.type) else options.count
            name = option_of(field.name)
            parser.add_argument(name, dest=field.name, type=reads, default=field.default, metavar="N", help=shown)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the run, made if missing")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    steps = "steps between checkpoints (default 200)"
    parser.add_argument("--checkpoint-every", type=options.count, default=200, metavar="N", help=steps)
    parser.add_argument("--precision", choices=PRECISIONS, default="32-true", help="arithmetic (default 32-true)")
    options.add_shared(parser, "--seed", "--no-progress", "--device", "--threads")


def add_words(parser: argparse.ArgumentParser, kind: Any) -> None:
    """Add ``--encoder``, a name of `nn.ENCODERS`, ``--attention``, of `nn.ATTENTIONS`, their options,
    and those of the settings.

    Parameters
    ----------
    parser
        Parser of a task on words.
    kind
        As in `add_settings`.
    """
    import torch

    from probtx_pyro import nn

    with torch.random.fork_rng(devices=[]):
        made = {name: of.build(8, context=1, dropout=0.0, root=False) for name, of in nn.ENCODERS.items()}
    encoders = {name: type(module) for name, module in made.items()}
    layer = choices.Option("attention", str, "its attention layers (default softmax)", tuple(nn.ATTENTIONS))
    choices.add_choice(parser, "encoder", kind, {"attention": layer, **choices.ENCODER_OPTIONS}, encoders)
    takes = choices.add_options(parser, choices.LAYER_OPTIONS, nn.ATTENTIONS)
    layers = choices.Choice("attention", takes, choices.LAYER_OPTIONS)
    parser.set_defaults(choices=[*parser.get_default("choices"), layers])
    add_settings(parser, kind)


def settings(kind: Any, arguments: argparse.Namespace, **others: Any) -> Any:
    """Return the settings of a run: every field has the value of the option of its name, where there is one.

    Parameters
    ----------
    kind
        Class of the settings.
    arguments
        Words of the command line, parsed.
    others
        Fields that have no option of their name.

    Raises
    ------
    ValueError
        An option that means nothing to the chosen layer or encoder, and what ``kind`` refuses.
    """
    named = {field.name: getattr(arguments, field.name) for field in fields(kind) if hasattr(arguments, field.name)}
    return kind(options=choices.given(arguments), **named, **others)


def threads(arguments: argparse.Namespace, settings: Any, words: float) -> AbstractContextManager[None]:
    """Train in the block with the threads that ``--threads`` gives,
    or with one where the products of a layer are small.

    Parameters
    ----------
    arguments
        Words of the command line, parsed.
    settings
        Settings of the run.
    words
        Mean number of words or tokens of a row.
    """
    return options.threads_for(arguments.threads, settings.batch * words * settings.width * settings.columns())


def run_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the folder and the options of the run, checked.

    Raises
    ------
    ValueError
        A folder that is a file, or a device that is not here.
    """
    return {
        "out": options.folder(arguments.out),
        "device": options.device(arguments.device),
        "progress": False if arguments.no_progress else None,
        **{name: getattr(arguments, name) for name in ("resume", "precision", "checkpoint_every")},
    }


PARSE = "probtx parse sentences.conllu --model RUN --out trees.conllu"


def report(arguments: argparse.Namespace, results: Mapping[str, Any], *uses: str) -> None:
    """Print how the run went, where its results are and what can be done next; one process of many does.

    Parameters
    ----------
    arguments
        Words of the command line, parsed.
    results
        Results of the run.
    uses
        Commands that take the run, RUN in the place of its folder.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    from probtx_pyro.train import RESULTS

    scores = results.get("metrics") or {"validation": {"perplexity": results["perplexity"]}}
    found = "; ".join(
        f"{part} {', '.join(f'{name} {value:.4f}' if isinstance(value, float) else f'{name} {value}' for name, value in metrics.items())}"
        for part, metrics in scores.items()
    )
    made = f"{results['steps']} steps, {results['parameters']:,} parameters, {results['seconds']:.0f} s"
    chosen = ", ".join(filter(None, (getattr(arguments, choice.name) for choice in arguments.choices)))
    print(f"{chosen}: {found} after {made}")
    what = "tokens" if "level" in results["settings"] else "words"
    print(f"unknown {what}: " + ", ".join(f"{part} {share:.1%}" for part, share in results["unknown"].items()))
    print(arguments.out / RESULTS)
    for word, use in zip(("Next:", *["or:"] * len(uses)), uses, strict=False):
        print(word, use.replace("RUN", shlex.quote(str(arguments.out))))
    print(f"In Python: probtx_pyro.train.load_run({str(arguments.out)!r}) loads the model")
    for part, share in () if results["settings"].get("characters") else results["unknown"].items():
        options.warn_unknown(share, f"the {part} part", what)
