"""Trained networks, questioned: their attention captured, its redundancy, and how well it explains its queries.

Names load on first use; what needs arrays alone works without torch.
"""

from importlib import import_module

_NAMES = {
    "_capture": ("capture",),
    "_captured": ("Captured", "captured"),
    "_stack": ("stack_layers", "capture_data"),
    "_best_equivalent": ("BestEquivalent", "best_equivalent"),
    "_query_check": ("QueryCheck", "QUERY_STATISTICS", "query_check"),
    "_cross_validate": ("CrossValidation", "softmax_alternatives", "cross_validate"),
    "redundancy": (
        "rank_spectrum", "attention_rank", "effective_rank", "effective_keys", "head_distances", "jensen_shannon",
    ),
}  # fmt: skip
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = list(_HOME)


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
