"""Options of a module: read from it, handed on by its constructor, and as it prints them."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn


def arguments_of(constructor: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the ``given`` arguments, by name, that ``constructor`` takes."""
    return {name: given[name] for name in inspect.signature(constructor).parameters}


def options(module: nn.Module, constructor: Callable[..., Any]) -> dict[str, Any]:
    """Return the attributes that have the names of a constructor's arguments;
    a part that is there or not is True or False.
    """
    parameters = inspect.signature(constructor).parameters.values()
    found = [(p.name, p.default, getattr(module, p.name)) for p in parameters if hasattr(module, p.name)]
    return {name: bool(value) if isinstance(default, bool) else value for name, default, value in found}


def printed(module: nn.Module, sizes: dict[str, Any], options: dict[str, Any]) -> str:
    """Return what ``extra_repr`` prints: all ``sizes``,
    and the ``options`` that differ from the defaults of the constructor.
    """
    defaults = {name: parameter.default for name, parameter in inspect.signature(type(module)).parameters.items()}
    changed = {name: value for name, value in options.items() if name not in defaults or value != defaults[name]}
    return ", ".join(f"{name}={getattr(value, '__name__', repr(value))}" for name, value in (sizes | changed).items())


def refuse_unknown(kind: type[nn.Module], given: Iterable[str], others: Iterable[type[nn.Module]]) -> None:
    """Refuse names that are no arguments of a class, with those of the ``others`` that have them.

    Raises
    ------
    TypeError
        The first such name.
    """
    parameters = inspect.signature(kind).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in given:
        if name not in parameters:
            have = [other.__name__ for other in others if name in inspect.signature(other).parameters]
            own = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
            repair = f"{' and '.join(have)} {'have' if have[1:] else 'has'}" if have else f"it has {', '.join(own)}"
            raise TypeError(f"{kind.__name__} has no option {name!r}; {repair}")
