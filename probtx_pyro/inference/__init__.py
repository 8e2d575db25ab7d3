"""Inference apart from models: one algorithm a file, one call style: ``verb(posterior, *data, options)``."""

from torch.serialization import add_safe_globals

from probtx_pyro.inference._amortised import AttentionGuide, ParameterGuide
from probtx_pyro.inference._annealing import AnnealedLogPartition, annealed_log_partition
from probtx_pyro.inference._draws import Draws
from probtx_pyro.inference._gibbs import gibbs
from probtx_pyro.inference._importance import ImportanceLogPartition, importance_log_partition
from probtx_pyro.inference._nuts import nuts
from probtx_pyro.inference._trees import TreeDraws, draw_trees
from probtx_pyro.inference._variational import Approximation, variational
from probtx_pyro.inference.em import Adaptation, adapt

add_safe_globals([Adaptation, Draws])  # for torch.load(weights_only=True)

__all__ = ["adapt", "annealed_log_partition", "draw_trees", "gibbs", "importance_log_partition", "nuts", "variational"]
__all__ += ["Adaptation", "AnnealedLogPartition", "Approximation", "AttentionGuide", "Draws", "ImportanceLogPartition"]
__all__ += ["ParameterGuide", "TreeDraws"]
