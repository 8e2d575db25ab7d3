"""Trained networks, questioned: their attention captured, its redundancy, and how well it explains its queries.

Names load on first use; what needs arrays alone works without torch.
"""

from probtx_pyro._lazy import lazily

_NAMES = {
    "_capture": ("capture",),
    "_captured": ("Captured", "captured", "stack_layers", "capture_data", "BestEquivalent", "best_equivalent"),
    "_controls": ("controls",),
    "_query_check": ("QueryCheck", "QUERY_STATISTICS", "query_check"),
    "_sinks": ("Sinks", "sinks"),
    "_replaced": ("replaced",),
    "_cross_validate": ("CrossValidation", "softmax_alternatives", "cross_validate"),
    "redundancy": "rank_spectrum attention_rank effective_rank effective_keys head_distances jensen_shannon".split(),
}
__all__, __getattr__, __dir__ = lazily(__name__, _NAMES)
