"""Second derivatives by reverse mode twice: kernels with backward passes by hand must not drop them silently."""

import pytest
import torch
from layers import CRFS, LAYERS, E, H
from strategies import generator

from probtx_pyro import nn


def draw(seed, *shape):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def agree(output, x, *parameters):
    """By differences of gradients: a stencil of fourth order, whose error is some h⁴ = 1e-12 of derivatives of order five and 1e-16 / h
    of rounding; a millionth of the largest is asked for.
    """
    leaves, h = [x.detach().requires_grad_(), *parameters], 1e-3
    along = [draw(5 + i, *leaf.shape) for i, leaf in enumerate(leaves)]
    slopes = torch.autograd.grad(output(leaves[0]), leaves, create_graph=True)
    # torch's own bound for float64, 1e-7: kernels and plain operations add up in another order
    torch.testing.assert_close(slopes, torch.autograd.grad(output(leaves[0]), leaves))
    found = torch.autograd.grad(
        sum((g * v).sum() for g, v in zip(slopes, along, strict=True)), leaves, materialize_grads=True
    )

    def slopes_at(step):
        with torch.no_grad():
            for leaf, v in zip(leaves, along, strict=True):
                leaf += step * v
        given = torch.autograd.grad(output(leaves[0]), leaves)
        with torch.no_grad():
            for leaf, v in zip(leaves, along, strict=True):
                leaf -= step * v
        return given

    near, far = ([(a - b) / (2 * s) for a, b in zip(slopes_at(s), slopes_at(-s), strict=True)] for s in (h, 2 * h))
    for name, (second, one, two) in enumerate(zip(found, near, far, strict=True)):
        expected = (4 * one - two) / 3
        assert (second - expected).abs().max() <= 1e-6 * max(x.abs().max() for x in near), name
    assert found[0].abs().max() > 1e-3


@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", ""])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("kind", LAYERS)
def test_of_layers(kind, causal, need_weights):
    torch.manual_seed(0)
    cls, options = LAYERS[kind]
    layer, x, weights = cls(E, H, batch_first=True, dtype=torch.float64, **options), draw(1, 2, 5, E), draw(2, 2, 5, E)
    padding = torch.arange(5) >= torch.tensor([[5], [4]])

    def output(x):
        return (weights * layer(x, x, x, padding, need_weights=need_weights, is_causal=causal)[0]).sum()

    parameters = [p for p in layer.parameters() if torch.autograd.grad(output(x), p, allow_unused=True)[0] is not None]
    agree(output, x, *parameters)


@pytest.mark.parametrize("kind", CRFS)
def test_of_the_dependency_crf(kind):
    torch.manual_seed(0)
    encoder, x, weights = (
        nn.DependencyCRFEncoder(E, dtype=torch.float64, **CRFS[kind]),
        draw(1, 2, 5, E),
        draw(2, 2, 5, E),
    )
    padding = torch.arange(5) >= torch.tensor([[5], [4]])
    agree(lambda x: (weights * encoder(x, padding)).sum(), x, *encoder.parameters())
