"""What tests of samplers take from inside `inference`, in one place: coordinates, starts, lanes, the sampler itself."""

import torch
from tolerances import assert_equal

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
__all__ += ["assert_lanes_are_the_program", "seeds", "starts", "windows"]


def assert_lanes_are_the_program(posterior, data):
    """Energies and slopes of three chains over R^n, Jacobians included: what NUTS moves by, against runs of the program."""
    found = parameters(posterior, tuple(data))
    points = starts(found, 3, "formulation", 0)
    lanes = Lanes(found, points)
    assert lanes.how == "closed form"
    energies, slopes = lanes(lanes.start)
    program, transforms = found._replace(closed=False).unconstrained()
    for chain in range(3):
        free = {name: transforms[name](x[chain]).detach().requires_grad_() for name, x in points.items()}
        value = program(free)
        assert_equal(energies.view(3, -1)[chain].sum(), value, energies, operations=1024)
        for name, slope in lanes._values(slopes).items():
            (expected,) = torch.autograd.grad(value, free[name], retain_graph=True)
            assert_equal(slope[chain], expected, energies, operations=1024)
