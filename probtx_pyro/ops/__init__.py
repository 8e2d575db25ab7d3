"""Pure tensor mathematics; nothing here knows Pyro."""

from probtx_pyro.ops.attention import (
    Factor,
    attend,
    categorical_factor,
    explicit_attention,
    gaussian_attention,
    gaussian_factor,
    isotropic_factor,
    joint,
    log_joint,
)
from probtx_pyro.ops.fixed_point import FixedPoint, fixed_point
from probtx_pyro.ops.numerics import safe_log, safe_ratio, safe_softmax
from probtx_pyro.ops.statistics import Statistics, expected_statistics, log_evidence

__all__ = [
    "Factor", "gaussian_factor", "isotropic_factor", "categorical_factor", "joint", "log_joint",
    "attend", "gaussian_attention", "explicit_attention",
    "Statistics", "expected_statistics", "log_evidence",
    "FixedPoint", "fixed_point",
    "safe_log", "safe_ratio", "safe_softmax",
]  # fmt: skip
