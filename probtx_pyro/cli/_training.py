"""Options that the tasks of ``probtx train`` share, and what their values must be."""

import argparse
import inspect
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

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
    "takes",
    "choice",
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
    "head_dim": "channels of a head (default width / heads)",
    "layers": "transformer blocks",
    "mask": "share of the words of a row that are hidden",
    "unknown": "a word that occurs c times is made unknown with probability N / (N + c)",
    "characters": "rows of a table of prefixes, suffixes and shapes, which unknown words have, too, such as 16384",
    "prior_spread": "standard deviation of Normal priors, mean 0, on the potentials of crf (default: no priors)",
}


def distances(text: str) -> tuple[int, ...]:
    """Read distances that end a group, in rising order.

    >>> distances("2,3,4")
    (2, 3, 4)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are no distances; give whole numbers like 2,3,4") from None


def rank(text: str) -> int | str:
    """Read a rank.

    >>> rank("8"), rank("full")
    (8, 'full')
    """
    return text if text == "full" else options.count(text)


class Option(NamedTuple):
    """Option of the layers or encoders that take an argument.

    argument: the argument that it sets.
    kind: reads its value; None for an option that has none, and sets True.
    text: help, to which the names of those that take it are added.
    values: choices, if it has any.
    """

    argument: str
    kind: Callable[[str], Any] | None
    text: str
    values: tuple[str, ...] | None = None


ATTENTION_OPTIONS = {
    "components": Option("num_components", options.count, "keys a unit"),
    "share": Option("share", str, "keys of a unit are shifts of one, not projections of their own", ("shift",)),
    "adapt-steps": Option("adapt_steps", options.natural, "ECM steps of the keys at every call"),
    "retrieval-steps": Option("num_steps", options.count, "steps of a state among the keys"),
    "transformation": Option("transformation", str, "from scores to weights", ("softmax", "entmax15", "sparsemax")),
}
ENCODER_OPTIONS = {
    "channels": Option("num_channels", options.count, "channels, in each of which a word has a head (default 8)"),
    "iterations": Option("num_steps", options.count, "mean-field iterations (default 4)"),
    "distances": Option("distances", distances, "where distances are cut into groups, like 2,3,4"),
    "rank": Option(
        "rank", rank, "rank of the ternary potentials, or full (default: width / 8 from a width of 64 on, else full)"
    ),
    "symmetric": Option("symmetric", None, "arcs score the same in both directions: half the potentials"),
    "nodes": Option("num_nodes", options.natural, "global nodes, the analogue of a feed-forward layer (default 0)"),
    "head-temperature": Option("head_temperature", float, "temperature of the heads (default 1 / width)"),
    "head-step": Option("head_step", float, "step of the heads' marginals (default 1, a full step)"),
    "label-step": Option("label_step", float, "step of the labels' marginals (default 1, a full step)"),
    "heads": Option("num_heads", options.count, "attention heads (default 8)"),
    "layers": Option("num_layers", options.count, "layers (default 4)"),
}


def option_of(field: str) -> str:
    """Return the option that sets a field of the settings."""
    return {"num_steps": "--steps", "map_training": "--map"}.get(field, f"--{field.replace('_', '-')}")


# option of each of the library's names; num_steps is the run's here: a layer's or an encoder's is checked by its own option
OPTION_NAMES = {
    **{option.argument: f"--{name}" for name, option in {**ATTENTION_OPTIONS, **ENCODER_OPTIONS}.items()},
    **{field: option_of(field) for field in (*NUMBERS, "rows", "map_training")},
    **{"embed_dim": "--width", "checkpoint_every": "--checkpoint-every"},
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
    (arguments.out / COMMAND).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _is_plain(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, bool | int | float | str)
        or (isinstance(value, tuple) and all(map(_is_plain, value)))
    )


def earlier(words: Sequence[str]) -> dict[str, Any]:
    """Return the options that a run had when it began, where the words of a command resume it.

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
    try:
        found, _ = asked.parse_known_args(words)
    except argparse.ArgumentError:  # --out without its value: the parser of the task says so
        return {}
    if not found.resume or found.out is None or not (path := found.out / COMMAND).exists():
        return {}
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
            reads = float if "float" in str(field.type) else options.count
            name = option_of(field.name)
            parser.add_argument(name, dest=field.name, type=reads, default=field.default, metavar="N", help=shown)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the run, made if missing")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    steps = "steps between checkpoints (default 200)"
    parser.add_argument("--checkpoint-every", type=options.count, default=200, metavar="N", help=steps)
    parser.add_argument("--precision", choices=PRECISIONS, default="32-true", help="arithmetic (default 32-true)")
    options.add_shared(parser, "--seed", "--no-progress", "--device", "--threads")


def add_words(parser: argparse.ArgumentParser, kind: Any) -> None:
    """Add ``--encoder``, a name of `nn.ENCODERS`, the options of those encoders, and those of the settings.

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
    add_choice(parser, "encoder", kind, ENCODER_OPTIONS, {name: type(module) for name, module in made.items()})
    add_settings(parser, kind)


def add_choice(
    parser: argparse.ArgumentParser, choice: str, kind: Any, table: Mapping[str, Option], names: Mapping[str, type]
) -> None:
    """Add an option that chooses a layer or encoder by its name, and the options that at least one of them takes.

    Parameters
    ----------
    parser
        Parser of a task.
    choice
        ``"attention"`` or ``"encoder"``.
    kind
        Class of the settings, which has the default.
    table
        Options of layers or encoders.
    names
        Class of each name.
    """
    takes = {name: set(inspect.signature(made).parameters) for name, made in names.items()}
    default = getattr(kind, choice)
    parser.add_argument(f"--{choice}", choices=takes, default=default, help=f"which {choice} (default {default})")
    for name, option in table.items():
        able = ", ".join(chosen for chosen, arguments in takes.items() if option.argument in arguments)
        takes_value = {"type": option.kind, "choices": option.values, "metavar": None if option.values else "N"}
        how: dict[str, Any] = takes_value if option.kind else {"action": "store_const", "const": True}
        parser.add_argument(f"--{name}", help=f"{option.text}; for {able}", **how)
    parser.set_defaults(takes=takes, choice=(choice, table))


def given(arguments: argparse.Namespace, choice: str, table: Mapping[str, Option]) -> dict[str, Any]:
    """Return the arguments that the options set.

    Parameters
    ----------
    arguments
        Words of the command line, parsed.
    choice
        ``"attention"`` or ``"encoder"``.
    table
        Its options.

    Raises
    ------
    ValueError
        An option that means nothing to what ``--choice`` says.
    """
    chosen = getattr(arguments, choice)
    found = {}
    for name, option in table.items():
        value = getattr(arguments, name.replace("-", "_"))
        if value is not None:
            if option.argument not in arguments.takes[chosen]:
                raise ValueError(f"--{name} means nothing to --{choice} {chosen}; leave it out")
            found[option.argument] = value
    return found


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
    return kind(options=given(arguments, *arguments.choice), **named, **others)


def threads(arguments: argparse.Namespace, settings: Any, words: float) -> AbstractContextManager[None]:
    """Train in the block with the threads that ``--threads`` gives, or with one where the products of a layer are small.

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
        f"{part} {', '.join(f'{name} {value:.4f}' for name, value in metrics.items())}"
        for part, metrics in scores.items()
    )
    made = f"{results['steps']} steps, {results['parameters']:,} parameters, {results['seconds']:.0f} s"
    print(f"{getattr(arguments, arguments.choice[0])}: {found} after {made}")
    what = "tokens" if "level" in results["settings"] else "words"
    print(f"unknown {what}: " + ", ".join(f"{part} {share:.1%}" for part, share in results["unknown"].items()))
    print(arguments.out / RESULTS)
    for word, use in zip(("Next:", *["or:"] * len(uses)), uses, strict=False):
        print(word, use.replace("RUN", shlex.quote(str(arguments.out))))
    print(f"In Python: probtx_pyro.train.load_run({str(arguments.out)!r}) loads the model")
    for part, share in () if results["settings"].get("characters") else results["unknown"].items():
        options.warn_unknown(share, f"the {part} part", what)
