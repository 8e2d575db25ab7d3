"""Results as ArviZ data: one call, ``results.to_inference_data``, for every inference result; diagnostics of attention; and
attachment scores of dependency heads.

Names load on first use: `inference_data`, `diagnostics` and `attachment` take numpy alone, so they work without torch.
"""

from importlib import import_module

_HOME = {
    "to_inference_data": "convert",
    "from_arrays": "inference_data",
    "rank_spectrum": "diagnostics",
    "attention_rank": "diagnostics",
    "effective_rank": "diagnostics",
    "effective_keys": "diagnostics",
    "head_distances": "diagnostics",
    "jensen_shannon": "diagnostics",
    "attachment_score": "attachment",
    "baseline_scores": "attachment",
    "channel_scores": "attachment",
    "likeliest_heads": "attachment",
    "left_arc": "attachment",
    "right_arc": "attachment",
    "random_heads": "attachment",
    "Calibration": "calibration",
    "by_gibbs": "calibration",
    "calibrate": "calibration",
    "joint_test": "calibration",
    "simultaneous_band": "ecdf",
    "uniformity": "ecdf",
}
__all__ = [
    "to_inference_data", "from_arrays",
    "rank_spectrum", "attention_rank", "effective_rank", "effective_keys", "head_distances", "jensen_shannon",
    "attachment_score", "baseline_scores", "channel_scores", "likeliest_heads", "left_arc", "right_arc", "random_heads",
    "Calibration", "calibrate", "by_gibbs", "joint_test", "simultaneous_band", "uniformity",
]  # fmt: skip


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
