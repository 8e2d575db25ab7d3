"""Results as ArviZ data: one call, ``results.to_inference_data``, for every inference result; a verdict on draws and
the relabelling of their units; what a posterior says of queries; calibration of samplers; what priors do.

Names load on first use; what needs arrays and files alone works without torch.
"""

from probtx_pyro._lazy import lazily

_NAMES = {
    "convert": ("to_inference_data",),
    "_arviz": ("from_arrays", "pareto_k"),
    "_relabel": ("relabel",),
    "_diagnose": ("diagnose", "Verdict"),
    "_gap": ("Gap", "gap"),
    "_nats_lost": ("Loss", "NatsLost", "nats_lost"),
    "_predict": ("Prediction", "predict"),
    "calibration": ("Calibration", "calibrate", "joint_test"),
    "_martingale": ("MartingaleCheck", "martingale_check"),
    "_ecdf": ("simultaneous_band", "uniformity"),
    "_prior_predictive": ("prior_predictive",),
    "prior_checks": ("Learned", "prior_against_posterior", "Sensitivity", "prior_sensitivity"),
}
__all__, __getattr__, __dir__ = lazily(__name__, _NAMES)
