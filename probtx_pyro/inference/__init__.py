"""Inference apart from models: one algorithm a file, one call style: model, data, options -> result."""

from probtx_pyro.inference._draws import Draws
from probtx_pyro.inference._gibbs import gibbs
from probtx_pyro.inference._nuts import nuts
from probtx_pyro.inference._variational import Approximation, variational
from probtx_pyro.inference.em import Adaptation, adapt
from probtx_pyro.models.priors import MixturePriors

__all__ = ["Adaptation", "Approximation", "Draws", "adapt", "gibbs", "nuts", "variational", "MixturePriors"]
