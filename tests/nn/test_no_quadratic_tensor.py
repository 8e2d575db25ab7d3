"""Fused layers make no L x S tensor, forward or backward: their largest tensor grows in proportion to the number of tokens."""

import pytest
import torch

from benchmarks.timing import Largest
from probtx_pyro import nn

E, H = 8, 2
LAYERS = {  # hard keys and adaptation work in chunks of queries, whose size does not depend on the number of tokens
    "softmax": (nn.SoftmaxAttention, {}),
    "gaussian mixture": (nn.GaussianMixtureAttention, {"linked": False}),
    "metric, shift and background": (
        nn.GaussianMixtureAttention,
        {"metric": "full", "shift": True, "background": "learned", "add_bias_kv": True},
    ),
    "keys": (nn.GaussianKeysAttention, {}),
    "shifted keys": (nn.GaussianKeysAttention, {"share": "shift", "num_components": 3}),
    "linked keys": (nn.GaussianKeysAttention, {"linked": True}),
    "linear": (nn.LinearKeysAttention, {"num_components": 1}),
    "linear keys": (nn.LinearKeysAttention, {}),
    "memory": (nn.RegressionMemoryAttention, {}),
    "memory with gates": (nn.RegressionMemoryAttention, {"gates": True}),
    "gated delta": (nn.RegressionMemoryAttention, {"update": "delta", "gates": True}),
    "hopfield": (nn.HopfieldAttention, {"num_steps": 3}),
    "hopfield to tolerance": (nn.HopfieldAttention, {"num_steps": 10, "tol": 1e-2, "learn_beta": True}),
}
SHORT, LONG = 256, 1024


def largest(kind, tokens, *, causal=False, masked=False, need_weights=False):
    cls, options = kind
    torch.manual_seed(0)
    how = {
        "dtype": torch.float64 if torch.get_default_device().type == "cpu" else torch.float32
    }  # a GPU fuses no double precision
    layer, x = cls(E, H, batch_first=True, **options, **how), torch.randn(1, tokens, E, requires_grad=True, **how)
    padding = (torch.arange(tokens) >= tokens - 3).unsqueeze(0) if masked else None
    with Largest() as made:
        layer(x, x, x, padding, need_weights=need_weights, is_causal=causal)[0].sum().backward()
    return made.numbers


@pytest.mark.pairs
@pytest.mark.parametrize("kind", LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.parametrize("masked", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_largest_tensor_is_linear_in_the_tokens(kind, causal, masked, device):
    if device != "cpu" and causal and kind[1].get("num_components", 2) > 1:
        pytest.skip("on a GPU causal mixtures of keys write their mask out, some rows at a time")
    small, large = (largest(kind, n, causal=causal, masked=masked) for n in (SHORT, LONG))
    assert large <= LONG / SHORT * small
    assert large < H * LONG * LONG / 4


def test_the_watch_sees_the_matrix_where_weights_are_asked_for():
    assert largest(LAYERS["keys"], SHORT, need_weights=True) >= H * SHORT * SHORT
