"""Results as ArviZ data: one call, ``results.to_inference_data``, for every inference result; a verdict on draws and the
relabelling of their units; calibration of samplers; what priors do.

Names load on first use; what needs arrays and files alone works without torch.
"""

from importlib import import_module

_NAMES = {
    "convert": ("to_inference_data",),
    "_arviz": ("from_arrays",),
    "_relabel": ("relabel",),
    "_diagnose": ("diagnose", "Verdict"),
    "calibration": ("Calibration", "calibrate", "joint_test"),
    "_ecdf": ("simultaneous_band", "uniformity"),
    "_prior_predictive": ("prior_predictive",),
    "prior_checks": ("Learned", "prior_against_posterior", "Sensitivity", "prior_sensitivity"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = list(_HOME)


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
