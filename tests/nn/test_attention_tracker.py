"""Kinds of fault that users reported of ``MultiheadAttention`` and ``scaled_dot_product_attention``: none of them here."""

import pytest
import torch
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import nn

E, H, L, S = 8, 2, 4, 6


def draw(seed, *shape):
    return torch.randn(*shape, generator=generator(seed))


def made(name):
    torch.manual_seed(0)
    return nn.ATTENTIONS[name](E, H, batch_first=True).eval()


@pytest.fixture(params=list(nn.ATTENTIONS))
def layer(request):
    return made(request.param)


@pytest.fixture(params=[name for name in nn.ATTENTIONS if name != "regression-memory"])
def masked(request):
    """A layer that takes any mask; a memory takes the causal one alone."""
    return made(request.param)


@pytest.mark.parametrize("value", [-torch.inf, torch.finfo(torch.float64).min, -1e9])
@pytest.mark.parametrize("need_weights", [False, True])
def test_a_padded_row_of_any_large_negative_number_has_finite_gradients(layer, value, need_weights):
    """Fully masked rows that give NaN, in the backward pass alone where the output is masked afterwards."""
    x = draw(1, 2, L, E).requires_grad_()
    mask = torch.zeros(2, L).masked_fill(torch.arange(L) >= torch.tensor([[2], [0]]), value)
    output = layer(x, x, x, mask, need_weights=need_weights)[0]
    (gradient,) = torch.autograd.grad(output[0, :2].square().sum(), x)
    assert output.isfinite().all() and gradient.isfinite().all()


def test_padding_counts_beside_is_causal(layer):
    """``is_causal=True`` that silently drops ``key_padding_mask``, or fails beside it."""
    x, padding = draw(2, 2, L, E), torch.tensor([[False, True, False, False], [False, False, True, True]])
    future = torch.ones(L, L, dtype=torch.bool).triu(1)
    for need_weights in (False, True):
        asked = layer(x, x, x, padding, need_weights, future, is_causal=True)[0]
        assert_equal(asked, layer(x, x, x, padding, need_weights, future)[0])
        assert (asked - layer(x, x, x, None, need_weights, future, is_causal=True)[0]).abs().max() > 1e-3


@pytest.mark.parametrize("lengths", [(L, S), (S, L)])
def test_causal_attention_of_unequal_lengths_is_aligned_at_the_first_unit(layer, lengths):
    """Masks of unequal lengths that are aligned at the first unit by one path and at the last by another."""
    queries, units = lengths
    query, memory = draw(3, 2, queries, E), draw(4, 2, units, E)
    future = torch.ones(queries, units, dtype=torch.bool).triu(1)
    expected, weights = layer(query, memory, memory, attn_mask=future)
    for need_weights in (False, True):
        assert_equal(layer(query, memory, memory, need_weights=need_weights, is_causal=True)[0], expected)
    assert (weights[:, future] == 0).all()


def test_weights_change_no_output_under_two_masks_of_numbers(masked):
    """Outputs that differ by ``need_weights`` where a floating padding mask meets a floating attention mask."""
    query, memory = draw(5, 2, L, E), draw(6, 2, S, E)
    masks = {"attn_mask": draw(7, L, S), "key_padding_mask": draw(8, 2, S)}
    output, weights = masked(query, memory, memory, **masks)
    assert_equal(output, masked(query, memory, memory, need_weights=False, **masks)[0])
    assert_equal(weights.sum(-1), torch.ones(2, L))


def test_a_batch_of_one_and_a_single_example_meet_the_same_masks(masked):
    """Masks for each head of a single example, (H, L, S), that are read as those of a batch, or refused."""
    query, memory = draw(9, L, E), draw(10, S, E)
    masks = {"attn_mask": draw(11, H, L, S), "key_padding_mask": torch.arange(S) > 3}
    output, weights = masked(query, memory, memory, **masks)
    masks["key_padding_mask"] = masks["key_padding_mask"].unsqueeze(0)
    expected = masked(query.unsqueeze(0), *[memory.unsqueeze(0)] * 2, **masks)
    assert_equal(output, expected[0][0])
    assert_equal(weights, expected[1][0])
