"""Options of a module, as it prints them."""

import inspect
from typing import Any

from torch import nn


def printed(module: nn.Module, sizes: dict[str, Any], options: dict[str, Any]) -> str:
    """Return what ``extra_repr`` prints: all ``sizes``, and the ``options`` that differ from the defaults of the constructor."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(type(module)).parameters.items()}
    changed = {name: value for name, value in options.items() if name not in defaults or value != defaults[name]}
    return ", ".join(f"{name}={_text(value)}" for name, value in (sizes | changed).items())


def _text(value: object) -> str:
    return getattr(value, "__name__", "") or repr(value)


__all__ = ["printed"]
