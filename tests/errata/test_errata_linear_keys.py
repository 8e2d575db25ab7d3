"""Erratum 17, published code of mixtures of keys: linear keys without a denominator, and exponentials before the shift.

The published forms stand here, in plain torch, so that a reader can reproduce them; ``docs/errata.md`` explains.
"""

import pytest
import torch
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import models, ops


def draw(seed, scale=1.0, dtype=torch.float64, units=6, features=8):
    g = generator(seed)
    queries, keys, values = (torch.randn(*shape, generator=g, dtype=dtype) for shape in ((9, features), (units, 2, features), (units, 3)))  # fmt: skip
    return scale * queries, scale * keys, values, torch.rand(units, 2, generator=g, dtype=dtype)


def published_linear(queries, keys, values, mixing):
    """Keys mixed first, one feature vector of the mixture, sums without a denominator."""
    mixed = torch.nn.functional.elu((mixing.unsqueeze(-1) * keys).sum(-2)) + 1
    return (torch.nn.functional.elu(queries) + 1) @ (mixed.transpose(-1, -2) @ values)


def published_softmax(queries, keys, values, mixing, precision):
    """exp, then the sum over components, then the division by the row: no shift by the maximum anywhere."""
    distance = (queries[:, None, None] - keys).square().sum(-1)
    scores = (mixing.clamp(0, 1) * (-0.5 * precision * distance).exp()).sum(-1)
    return scores / scores.sum(-1, keepdim=True) @ values


def test_17_linear_attention_divides():
    queries, keys, _, mixing = draw(1)
    constant = torch.ones(6, 1, dtype=torch.float64)
    assert (published_linear(queries, keys, constant, mixing) - 1).abs().min() > 1
    assert_equal(models.linear_key_attention(queries, keys, constant, mixing / mixing.sum(-1, keepdim=True)), torch.ones(9, 1))  # fmt: skip


def test_17_features_are_mixed_not_keys():
    """Two components at +x and -x: their mean is the key 0, whose features say nothing of x; the mean of their features does."""
    queries, keys, values, _ = draw(2)
    opposite = torch.stack([keys[:, 0], -keys[:, 0]], -2)
    half = torch.full((6, 2), 0.5)
    published = published_linear(queries, opposite, values, half) / published_linear(queries, opposite, torch.ones(6, 1), half)  # fmt: skip
    assert_equal(published, values.mean(0).expand(9, 3))  # even with the denominator: uniform attention, whatever x
    ours = models.linear_key_attention(queries, opposite, values, half)
    assert (ours - values.mean(0)).abs().max() > 0.05
    assert_equal(models.linear_key_attention(queries, keys[:, :1], values), published_linear(queries, keys[:, :1], values, half[:, :1] * 2)
                 / published_linear(queries, keys[:, :1], torch.ones(6, 1), half[:, :1] * 2))  # fmt: skip


@pytest.mark.parametrize("scale", [1.0, 5.0, 20.0])
def test_17_exponentials_before_the_shift(scale):
    queries, keys, values, mixing = draw(3, scale, torch.float32, features=64)
    mixing = mixing / mixing.sum(-1, keepdim=True)
    precision = torch.tensor(64**-0.5, dtype=torch.float32)
    published = published_softmax(queries, keys, values, mixing, precision)
    flat = (keys.flatten(0, 1), values.repeat_interleave(2, 0))
    log_prior = (mixing / 6).log().reshape(1, -1)
    ours = ops.gaussian_attention(queries, *flat, precision, log_prior)
    assert torch.isfinite(ours).all()
    if scale == 1.0:
        # float32 logits of order 10 and values of order 3
        assert_equal(published, ours, torch.tensor(30.0))
    else:
        assert published.isnan().all()


def test_17_weights_are_on_the_simplex_not_clipped():
    """Clipped to [0, 1] and not normalised, a unit's weights change how much the *unit* is attended to."""
    queries, keys, values, mixing = draw(4)
    grown = mixing.clone()
    grown[0] = grown[0] * 0.1  # the same mixture within unit 0
    normal = [x / x.sum(-1, keepdim=True) for x in (mixing, grown)]
    precision = torch.tensor(0.3)
    assert_equal(published_softmax(queries, keys, values, normal[0], precision), published_softmax(queries, keys, values, normal[1], precision))  # fmt: skip
    moved = published_softmax(queries, keys, values, mixing, precision) - published_softmax(queries, keys, values, grown, precision)  # fmt: skip
    assert moved.abs().max() > 0.05
