"""What tests of samplers take from inside `inference`, in one place: coordinates, starts, lanes, the sampler itself."""

import pyro
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
__all__ += [
    "assert_lanes_are_the_program",
    "assert_recorded",
    "assert_same_evaluation",
    "points_of",
    "seeds",
    "starts",
    "windows",
]


def points_of(lanes):
    """Rows at the start, beside it, and one far off."""
    far = lanes.start.clone()
    far[1] = -1e4
    return lanes.start, lanes.start + 0.1, far


def assert_same_evaluation(found, expected):
    """Energies and slopes, of which the same lanes have none."""
    some = torch.isfinite(expected[0])
    assert torch.equal(torch.isfinite(found[0]), some)
    for x, y in zip(found, expected, strict=True):
        assert_equal(x[some], y[some], expected[0][some], operations=1024)


def assert_recorded(posterior, data):
    """The operations that `nuts(compile=True)` compiles are the density and its gradient, wherever chains are."""
    found = parameters(posterior, tuple(data)).in_units()
    lanes = Lanes(found, starts(found, 3, "formulation", 0))
    with pyro.validation_enabled(False):
        recorded = lanes.recorded(lanes.start)
        for rows in points_of(lanes):
            assert_same_evaluation(recorded(rows), lanes(rows))


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
