"""Trained networks, questioned: their attention captured, its redundancy, and how well it explains its queries.

Names load on first use; what needs arrays alone works without torch.
"""

from importlib import import_module

_HOME = {
    "capture": "_capture",
    "Captured": "_captured",
    "captured": "_captured",
    "stack_layers": "_captured",
    "capture_data": "_captured",
    "QueryCheck": "_query_check",
    "QUERY_STATISTICS": "_query_check",
    "query_check": "_query_check",
    "CrossValidation": "_cross_validate",
    "softmax_alternatives": "_cross_validate",
    "cross_validate": "_cross_validate",
    "rank_spectrum": "redundancy",
    "attention_rank": "redundancy",
    "effective_rank": "redundancy",
    "effective_keys": "redundancy",
    "head_distances": "redundancy",
    "jensen_shannon": "redundancy",
}
__all__ = [
    "capture", "Captured", "captured", "stack_layers", "capture_data",
    "QueryCheck", "QUERY_STATISTICS", "query_check", "CrossValidation", "softmax_alternatives", "cross_validate",
    "rank_spectrum", "attention_rank", "effective_rank", "effective_keys", "head_distances", "jensen_shannon",
]  # fmt: skip


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
