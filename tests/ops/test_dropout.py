"""Dropout by 16 random bits an entry: rates, scale, independence, and what it leaves to torch."""

import pytest
import torch
from strategies import generator
from tolerances import assert_equal

from probtx_pyro.ops import attend
from probtx_pyro.ops._fused import fused_attention
from probtx_pyro.ops._numerics import drop
from probtx_pyro.ops.attention import key_factor


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5, 0.93])
def test_every_entry_is_dropped_at_the_rate_whatever_its_neighbours_are(rate):
    torch.manual_seed(0)
    n = 400_002  # no multiple of the four entries that share a random word
    gone = drop(torch.ones(n), rate) == 0
    sd = (rate * (1 - rate)) ** 0.5
    for lane in range(4):  # of a word: the highest 16 bits are signed
        share = gone[lane::4].double().mean()
        assert abs(share - rate) <= 5 * sd / (n / 4) ** 0.5  # five standard errors
    centred = (gone.double() - rate) / sd
    for lag in range(1, 9):  # a product of two independent ones has variance one
        assert abs((centred[lag:] * centred[:-lag]).mean()) <= 5 / (n - lag) ** 0.5


def test_what_stays_is_divided_by_the_share_that_stays_and_so_is_its_gradient():
    x = torch.randn(3, 5, 7, generator=generator(1)).double().mT.requires_grad_()  # of strides that are not in order
    torch.manual_seed(0)
    found = drop(x, 0.3)
    scale = 65536 / (65536 - round(0.3 * 65536))
    stays = (found != 0).double()
    assert 0 < stays.mean() < 1
    assert_equal(found, x * stays * scale)
    assert_equal(torch.autograd.grad(found.sum(), x)[0], stays * scale)
    torch.manual_seed(0)
    assert torch.equal(drop(x, 0.3), found)


def test_rates_at_the_ends_and_what_torch_does():
    x = torch.randn(5, 4)
    assert drop(x, 0.0) is x
    assert (drop(x, 1.0) == 0).all()
    assert drop(x.bfloat16(), 0.5).dtype == torch.bfloat16
    assert drop(x[:0], 0.5).shape == (0, 4)
    with pytest.raises(ValueError, match="dropout probability"):
        drop(x, 1.5)
    each = torch.func.vmap(lambda row: drop(row, 0.5), randomness="different")(torch.ones(500, 8))
    assert len({tuple(row.tolist()) for row in each}) > 100  # of 256 patterns


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("components", [1, 2])
def test_attention_with_dropout_is_its_definition_with_the_same_entries_dropped(components, causal, monkeypatch):
    monkeypatch.setattr("probtx_pyro.ops._fused.drop", lambda x, rate: x * stays[..., : x.shape[-1]])
    draw = generator(2)
    q, k, v = (torch.randn(2, 3, n, 6, generator=draw, requires_grad=True) for n in (9, 9 * components, 9))
    stays = (torch.rand(9, 9 * components, generator=draw) < 0.7) / 0.7
    hidden = torch.zeros(9)
    hidden[4] = -torch.inf
    factor = key_factor(q, k, torch.ones(()))
    found = attend(factor, v, hidden[None], components=components, causal=causal, dropout=0.3)
    scores = -(q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1) / 2 + hidden.repeat_interleave(components)
    if causal:
        seen = torch.ones(9, 9, dtype=torch.bool).tril().repeat_interleave(components, -1)
        scores = scores.masked_fill(~seen, -torch.inf)
    expected = (scores.softmax(-1) * stays) @ v.repeat_interleave(components, -2)
    assert_equal(found, expected)
    weights = torch.randn(found.shape, generator=draw)
    mine, other = (torch.autograd.grad((x * weights).sum(), (q, k, v)) for x in (found, expected))
    for of_mine, of_other in zip(mine, other, strict=True):
        assert_equal(of_mine, of_other)


def test_in_half_precision_logits_are_not_rounded(monkeypatch):
    monkeypatch.setattr("probtx_pyro.ops._fused.drop", lambda x, rate: x)
    q, k, v = (torch.randn(4, 9, 6, generator=generator(3)).mul(6).bfloat16() for _ in range(3))
    found = fused_attention(q, k, v, None, 1, False, 0.3)
    weights = (q.double() @ k.double().mT).softmax(-1)
    assert found.dtype == torch.bfloat16
    # weights, products and sums of eight bits: each half a unit in the last place of the sizes that are added
    bound = 3 * 2**-9 * (weights @ v.double().abs()) + 2**-9 * (weights @ v.double()).abs()
    assert ((found.double() - weights @ v.double()).abs() <= bound).all()
