"""Inference apart from models: one algorithm a file, one call style: ``verb(posterior, *data, options)``."""

from probtx_pyro.inference._annealing import AnnealedLogPartition, annealed_log_partition
from probtx_pyro.inference._draws import Draws
from probtx_pyro.inference._gibbs import gibbs
from probtx_pyro.inference._importance import ImportanceLogPartition, importance_log_partition
from probtx_pyro.inference._nuts import nuts
from probtx_pyro.inference._variational import Approximation, variational
from probtx_pyro.inference.em import Adaptation, adapt

__all__ = [
    "Adaptation", "AnnealedLogPartition", "Approximation", "Draws", "ImportanceLogPartition",
    "adapt", "annealed_log_partition", "gibbs", "importance_log_partition", "nuts", "variational",
]  # fmt: skip
