"""What tests of samplers take from inside `inference`, in one place: coordinates, starts, lanes, the sampler itself."""

from probtx_pyro.inference._adaptation import Adaptation, windows
from probtx_pyro.inference._batched_nuts import BatchedNUTS, Streams, _turns
from probtx_pyro.inference._checkpoint import Checkpoint, fingerprint
from probtx_pyro.inference._nuts import Lanes
from probtx_pyro.inference._program import identity, parameters
from probtx_pyro.inference._start import seeds, starts

__all__ = [
    "Adaptation",
    "BatchedNUTS",
    "Checkpoint",
    "Lanes",
    "Streams",
    "_turns",
    "fingerprint",
    "identity",
    "parameters",
]
__all__ += ["seeds", "starts", "windows"]
