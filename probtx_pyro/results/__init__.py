"""Results as ArviZ data: one call, ``results.to_inference_data``, for every inference result; a verdict on draws and the
relabelling of their units; calibration of samplers; diagnostics of attention; attachment scores of dependency heads; a look
inside trained transformers; what priors do.

Names load on first use; what needs arrays and files alone works without torch. No file here is called as one of these names,
which an import of that file would hide.
"""

from importlib import import_module

_HOME = {
    "to_inference_data": "convert",
    "from_arrays": "inference_data",
    "relabel": "relabelling",
    "diagnose": "verdict",
    "Verdict": "verdict",
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
    "by_nuts": "calibration",
    "by_variational": "calibration",
    "calibrate": "calibration",
    "joint_test": "calibration",
    "simultaneous_band": "ecdf",
    "uniformity": "ecdf",
    "capture": "attention_hooks",
    "Captured": "captured_attention",
    "captured": "captured_attention",
    "stack_layers": "captured_attention",
    "capture_data": "captured_attention",
    "QueryCheck": "queries",
    "QUERY_STATISTICS": "queries",
    "query_check": "queries",
    "CrossValidation": "formulations",
    "FORMULATIONS": "formulations",
    "cross_validate": "formulations",
    "prior_predictive": "prior_predictive_draws",
    "Learned": "priors",
    "prior_against_posterior": "priors",
    "Sensitivity": "priors",
    "prior_sensitivity": "priors",
}
__all__ = [
    "to_inference_data", "from_arrays", "relabel", "diagnose", "Verdict",
    "rank_spectrum", "attention_rank", "effective_rank", "effective_keys", "head_distances", "jensen_shannon",
    "attachment_score", "baseline_scores", "channel_scores", "likeliest_heads", "left_arc", "right_arc", "random_heads",
    "Calibration", "calibrate", "by_gibbs", "by_nuts", "by_variational", "joint_test", "simultaneous_band", "uniformity",
    "capture", "Captured", "captured", "stack_layers", "capture_data",
    "QueryCheck", "QUERY_STATISTICS", "query_check", "CrossValidation", "FORMULATIONS", "cross_validate",
    "prior_predictive", "Learned", "prior_against_posterior", "Sensitivity", "prior_sensitivity",
]  # fmt: skip


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
