"""Results in a few lines: the shapes of arrays, not their numbers."""

from collections.abc import Mapping
from typing import Any

LONGEST = 80  # characters of anything that is no array


def in_brief(value: Any) -> str:
    """Return the ``repr`` of a named tuple or of a formulation, with shapes in place of numbers;
    one line for each field.
    """
    fields = value._asdict() if hasattr(value, "_asdict") else vars(value)
    parts = [f"{name}={_brief(x)}" for name, x in fields.items() if x is not None]
    name = type(value).__name__
    return f"{name}({', '.join(parts)})" if len(parts) < 3 else f"{name}(\n  " + ",\n  ".join(parts) + "\n)"


def _brief(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        kind = f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        one = not value.shape and getattr(getattr(value, "device", None), "type", "cpu") != "meta"
        return f"{value.item():.6g}" if one else kind
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_brief(x)}" for name, x in value.items()) + "}"
    if isinstance(value, tuple) and any(hasattr(x, "shape") for x in value):
        return "(" + ", ".join(_brief(x) for x in value) + ")"
    text = repr(value).replace("\n", " ")
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
