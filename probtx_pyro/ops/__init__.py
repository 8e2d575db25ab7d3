"""Pure tensor mathematics; nothing here knows Pyro.

The mean field of the dependency CRF, to be read, is the module `probtx_pyro.ops.dependency_crf`.
"""

from probtx_pyro.ops import dependency_crf
from probtx_pyro.ops._factor import Factor
from probtx_pyro.ops._fixed_point import FixedPoint, fixed_point
from probtx_pyro.ops._linear_attention import (
    elu_plus_one,
    explicit_linear_attention,
    linear_attention,
    query_features,
    unit_features,
)
from probtx_pyro.ops._numerics import safe_log, safe_ratio, safe_softmax, settle_kernels  # noqa: F401
from probtx_pyro.ops.attention import (
    attend,
    categorical_factor,
    explicit_attention,
    gaussian_attention,
    gaussian_factor,
    isotropic_factor,
    joint,
    log_joint,
)
from probtx_pyro.ops.entmax import ENTMAX, Entmax
from probtx_pyro.ops.statistics import Statistics, expected_statistics, log_evidence, sampled_statistics
from probtx_pyro.ops.tree_distribution import draw_trees, tree_entropy, tree_log_partition, tree_marginals
from probtx_pyro.ops.trees import arc_scores, argmax_heads, eisner, spanning_arborescence

settle_kernels()

__all__ = ["Factor", "gaussian_factor", "isotropic_factor", "categorical_factor", "joint", "log_joint"]
__all__ += ["attend", "gaussian_attention", "explicit_attention"]
__all__ += ["elu_plus_one", "query_features", "unit_features", "linear_attention", "explicit_linear_attention"]
__all__ += ["Statistics", "expected_statistics", "sampled_statistics", "log_evidence", "ENTMAX", "Entmax"]
__all__ += ["dependency_crf", "arc_scores", "argmax_heads", "spanning_arborescence", "eisner"]
__all__ += ["tree_log_partition", "tree_marginals", "tree_entropy", "draw_trees", "FixedPoint", "fixed_point"]
