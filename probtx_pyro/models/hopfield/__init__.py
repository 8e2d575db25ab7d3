"""Modern Hopfield memories (Ramsauer et al. 2021; Shim)."""

from probtx_pyro.models.hopfield.measures import FixedPoints
from probtx_pyro.models.hopfield.memory import Hopfield, Movement, Retrieval

__all__ = ["FixedPoints", "Hopfield", "Movement", "Retrieval"]
