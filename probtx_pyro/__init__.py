"""Attention and transformers as Pyro programs: the attention matrix is a posterior.

Subpackages load on first use (PEP 562), so ``import probtx_pyro`` is quick: no torch, arviz or matplotlib yet.

>>> import probtx_pyro
>>> probtx_pyro.__all__[:3]
['models', 'inference', 'nn']
"""

from importlib import import_module
from importlib.metadata import version

_SUBPACKAGES = (
    "models", "inference", "nn", "results", "inspection", "metrics", "plots", "ops", "data", "apps", "train", "tour",
)  # fmt: skip
__version__ = version("probtx_pyro")
__all__ = [*_SUBPACKAGES, "__version__"]


def __getattr__(name: str):
    if name in _SUBPACKAGES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
