"""Inference apart from models: one algorithm a file, one call style: ``verb(posterior, *data, options)``."""

from probtx_pyro.inference._amortised import AttentionGuide, ParameterGuide
from probtx_pyro.inference._draws import Draws
from probtx_pyro.inference._gibbs import gibbs
from probtx_pyro.inference._nuts import nuts
from probtx_pyro.inference._variational import Approximation, variational
from probtx_pyro.inference.em import Adaptation, adapt

__all__ = [
    "Adaptation", "Approximation", "AttentionGuide", "Draws", "ParameterGuide", "adapt", "gibbs", "nuts", "variational",
]  # fmt: skip
