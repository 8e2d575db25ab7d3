"""Results as ArviZ data: one call, ``results.to_inference_data``, for every inference result.

Names load on first use: `inference_data` takes numpy alone, so it works where torch is not installed.
"""

from importlib import import_module

_HOME = {"to_inference_data": "convert", "from_arrays": "inference_data"}
__all__ = ["to_inference_data", "from_arrays"]


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
