"""Results as ArviZ data: one call, ``results.to_inference_data``, for every inference result; a verdict on draws and the
relabelling of their units; what a posterior says of queries; calibration of samplers; what priors do.

Names load on first use; what needs arrays and files alone works without torch.
"""

from importlib import import_module

_HOME = {
    "to_inference_data": "convert",
    "from_arrays": "_arviz",
    "relabel": "_relabel",
    "diagnose": "_diagnose",
    "Verdict": "_diagnose",
    "Prediction": "_predict",
    "predict": "_predict",
    "Calibration": "calibration",
    "calibrate": "calibration",
    "joint_test": "calibration",
    "simultaneous_band": "_ecdf",
    "uniformity": "_ecdf",
    "prior_predictive": "_prior_predictive",
    "Learned": "prior_checks",
    "prior_against_posterior": "prior_checks",
    "Sensitivity": "prior_checks",
    "prior_sensitivity": "prior_checks",
}
__all__ = [
    "to_inference_data", "from_arrays", "relabel", "diagnose", "Verdict", "Prediction", "predict",
    "Calibration", "calibrate", "joint_test", "simultaneous_band", "uniformity",
    "prior_predictive", "Learned", "prior_against_posterior", "Sensitivity", "prior_sensitivity",
]  # fmt: skip


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
