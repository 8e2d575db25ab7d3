"""Layers where there are no numbers (the meta device, fake tensors), traced by torch.jit, and in several threads at once."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from layers import CRFS, E, H
from layers import LAYERS as PLAIN
from tolerances import assert_equal
from torch._subclasses.fake_tensor import FakeTensorMode

from probtx_pyro import nn

LAYERS = PLAIN | {
    "hard keys": (nn.GaussianKeysAttention, {"assignment": "hard"}),
    "metric": (nn.GaussianMixtureAttention, {"metric": "full", "shift": True}),
    "map": (nn.GaussianMixtureAttention, {"map_steps": 1}),
    "to tolerance": (nn.HopfieldAttention, {"num_steps": 3, "tol": 1e-4}),
    "sparse": (nn.HopfieldAttention, {"num_steps": 2, "transformation": "entmax15"}),
    "conjugate gradients": (nn.RegressionMemoryAttention, {"update": "conjugate_gradient"}),
}
every = pytest.mark.parametrize("name", [*LAYERS, *CRFS])


class Alone(torch.nn.Module):
    """A layer of one argument and one output, self-attention where it attends."""

    def __init__(self, name, need_weights=False):
        super().__init__()
        torch.manual_seed(0)
        self.crf, self.need_weights = name in CRFS, need_weights
        kind, options = (nn.DependencyCRFEncoder, CRFS[name]) if self.crf else LAYERS[name]
        self.layer = kind(E, **options) if self.crf else kind(E, H, batch_first=True, **options)

    def forward(self, x):
        return self.layer(x) if self.crf else self.layer(x, x, x, need_weights=self.need_weights)[0]


@pytest.mark.parametrize(
    ("mode", "need_weights"),
    [(lambda: torch.device("meta"), False), pytest.param(FakeTensorMode, True, marks=pytest.mark.slow)],
    ids=["meta", "fake, weights"],
)
@every
def test_without_numbers_shapes_are_known(name, mode, need_weights):
    with mode():
        layer, x = Alone(name, need_weights), torch.zeros(2, 5, E, requires_grad=True)
        output = layer(x)
        output.sum().backward()
    assert output.shape == x.grad.shape == (2, 5, E)
    assert output.is_meta or type(output) is not torch.Tensor


@every
def test_made_without_numbers_and_loaded(name):
    layer, x = Alone(name), torch.randn(2, 5, E)
    with torch.device("meta"):
        bare = Alone(name)
    bare.load_state_dict(layer.state_dict(), assign=True)
    assert torch.equal(bare(x), layer(x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # shapes are constants of a trace
@pytest.mark.parametrize("name", [*CRFS, "gaussian-keys", "gated memory"])
def test_traced(name):
    layer, x = Alone(name), torch.randn(2, 5, E)
    traced = torch.jit.trace(layer, torch.randn(2, 5, E), check_trace=False)
    for _ in range(2):  # the second run is an optimised one
        assert_equal(traced(x), layer(x), 10 * layer(x))


EXPORTED = """
import sys
import torch
from test_ways_to_run import Alone
layer = Alone(sys.argv[1]).eval()
exported = torch.export.export(layer, (torch.randn(2, 5, 8),)).module()
x = torch.randn(2, 5, 8)
torch.testing.assert_close(exported(x), layer(x))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["map", "regression-memory", "gated delta", "conjugate gradients"])
def test_exported_with_one_shape(name):
    """What does not export with shapes that vary. In a process of its own, without the shape checks of the tests; float32, by torch's own bounds."""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EXPORTED, name],
        capture_output=True, text=True, env={"PYTHONPATH": f"{here}:{here.parent}", "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("gradients", [False, True], ids=["", "gradients"])
@pytest.mark.parametrize("name", ["full rank", "low rank", "gaussian-keys", "regression-memory"])
def test_in_threads(name, gradients):
    """Kernels write memory again and again: of their own call."""
    layer, inputs = Alone(name), [torch.randn(2, 5 + i, E) for i in range(4)]

    def ask(x):
        with torch.set_grad_enabled(gradients):
            x = x.clone().requires_grad_(gradients)
            output = layer(x)
            return torch.autograd.grad(output.square().sum(), x)[0] if gradients else output

    expected, wrong = [ask(x) for x in inputs], []

    def work(i):
        wrong.extend(i for _ in range(5) if not torch.equal(ask(inputs[i]), expected[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for step in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            step(thread)
    assert not wrong
