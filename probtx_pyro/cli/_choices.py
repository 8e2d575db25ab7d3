"""Layers and encoders that ``probtx train`` chooses by name, and their options."""

import argparse
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from probtx_pyro.cli import _options as options

HEAD_DIM = "channels of a head (default width / heads)"


def distances(text: str) -> tuple[int, ...]:
    """Read distances that end a group, in rising order.

    >>> distances("2,3,4")
    (2, 3, 4)
    """
    try:
        return tuple(options.count(part) for part in text.split(","))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} are no distances; give whole numbers like 2,3,4") from None


def rank(text: str) -> int | str:
    """Read a rank.

    >>> rank("8"), rank("full")
    (8, 'full')
    """
    return text if text == "full" else options.count(text)


class Option(NamedTuple):
    """Option of the layers or encoders that take an argument.

    argument: the argument that it sets, or ``argument.field`` of one that is a mapping.
    kind: reads its value; None for an option that has none, and sets True.
    text: help, to which the names of those that take it are added.
    values: choices, if it has any.
    """

    argument: str
    kind: Callable[[str], Any] | None
    text: str
    values: tuple[str, ...] | None = None

    @property
    def outer(self) -> str:
        """The argument itself."""
        return self.argument.partition(".")[0]


ATTENTION_OPTIONS = {
    "components": Option("num_components", options.count, "keys a unit"),
    "share": Option("share", str, "keys of a unit are shifts of one, not projections of their own", ("shift",)),
    "adapt-steps": Option("adapt.steps", options.count, "ECM steps of the keys at every call"),
    "retrieval-steps": Option("num_steps", options.count, "steps of a state among the keys"),
    "transformation": Option("transformation", str, "from scores to weights", ("softmax", "entmax15", "sparsemax")),
    "update": Option(
        "update",
        str,
        "how pairs change a memory (default exact)",
        ("exact", "discount", "delta", "linear", "kalman_diagonal", "kalman_isotropic", "conjugate_gradient"),
    ),
    "gates": Option("gates", None, "a memory learns how strong pairs are and how fast it forgets"),
}
ENCODER_OPTIONS = {
    "channels": Option("num_channels", options.count, "channels, in each of which a word has a head (default 8)"),
    "iterations": Option("num_steps", options.count, "mean-field iterations (default 4)"),
    "distances": Option("distances", distances, "where distances are cut into groups, like 2,3,4"),
    "rank": Option(
        "rank", rank, "rank of the ternary potentials, or full (default: width / 8 from a width of 64 on, else full)"
    ),
    "symmetric": Option("symmetric", None, "arcs score the same in both directions: half the potentials"),
    "nodes": Option("nodes.number", options.natural, "global nodes, the analogue of a feed-forward layer (default 0)"),
    "head-temperature": Option(
        "mean_field.head_temperature", options.real, "temperature of the heads (default 1 / width)"
    ),
    "head-step": Option("mean_field.head_step", options.real, "step of the heads' marginals (default 1, a full step)"),
    "label-step": Option(
        "mean_field.label_step", options.real, "step of the labels' marginals (default 1, a full step)"
    ),
    "heads": Option("num_heads", options.count, "attention heads (default 8)"),
    "layers": Option("num_layers", options.count, "layers (default 4)"),
}
# what a language model has as a setting, and a transformer of words as an option of its layers
LAYER_OPTIONS = {"head-dim": Option("head_dim", options.count, HEAD_DIM), **ATTENTION_OPTIONS}


class Choice(NamedTuple):
    """Option that chooses a layer or encoder by its name, and the options of those.

    name: ``"attention"`` or ``"encoder"``.
    takes: of each name, the arguments that it takes; the first is chosen where the option is not given.
    table: options that set such arguments.
    """

    name: str
    takes: Mapping[str, set[str]]
    table: Mapping[str, Option]


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
    default = getattr(kind, choice)
    parser.add_argument(f"--{choice}", choices=names, default=default, help=f"which {choice} (default {default})")
    parser.set_defaults(choices=[Choice(choice, add_options(parser, table, names), table)])


def add_options(
    parser: argparse.ArgumentParser, table: Mapping[str, Option], names: Mapping[str, type]
) -> dict[str, set[str]]:
    """Add the options of layers or encoders, and return the arguments that each of these takes.

    Parameters
    ----------
    parser, table, names
        As in `add_choice`.
    """
    takes = {name: set(inspect.signature(made).parameters) for name, made in names.items()}
    for name, option in table.items():
        able = ", ".join(chosen for chosen, arguments in takes.items() if option.outer in arguments)
        takes_value = {"type": option.kind, "choices": option.values, "metavar": None if option.values else "N"}
        how: dict[str, Any] = takes_value if option.kind else {"action": "store_const", "const": True}
        parser.add_argument(f"--{name}", help=f"{option.text}; for {able}", **how)
    return takes


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of layers and encoders that the options set.

    Parameters
    ----------
    arguments
        Words of the command line, parsed.

    Raises
    ------
    ValueError
        An option that means nothing to what was chosen.
    """
    chosen, able = "", {arguments.choices[0].name}
    found: dict[str, Any] = {}
    for choice in arguments.choices:
        if choice.name in able:  # else there is nothing to choose: no layers in such an encoder
            name = getattr(arguments, choice.name) or next(iter(choice.takes))
            chosen, able = f"--{choice.name} {name}", choice.takes[name]
        else:
            able = set()
        for name, option in choice.table.items():
            value = getattr(arguments, name.replace("-", "_"))
            if value is not None:
                if option.outer not in able:
                    raise ValueError(f"--{name} means nothing to {chosen}; leave it out")
                outer, _, field = option.argument.partition(".")
                found[outer] = {**found.get(outer, {}), field: value} if field else value
    return found
