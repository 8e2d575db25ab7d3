"""Erratum 18, published Hopfield layers: without projections, batch and heads are merged in different orders.

The printed order stands here, in plain torch and our own words, so that a reader can reproduce it: an input that is not
projected is copied for each head along the batch axis, so that the flat axis counts heads first, then items; a projected one is
split in heads, items first; and the output is read items first. ``docs/errata.md`` explains.
"""

import pytest
import torch
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import nn

L, S, D = 4, 5, 3


def static(x, heads):
    """Copied for each head, (length, heads · batch, D): head h of item b at h·B + b."""
    return x.repeat(1, heads, 1)


def projected(x, heads):
    """Split in heads by an identity, so that each has the whole input, (length, batch · heads, D): head h of item b at b·H + h."""
    return x.repeat(1, 1, heads).reshape(len(x), -1, x.shape[-1])


def retrieved(states, patterns, values, batch):
    """Attention along the flat axis, read as (L, batch, heads · D)."""
    states, patterns, values = (x.transpose(0, 1) for x in (states, patterns, values))
    flat = (states @ patterns.mT).softmax(-1) @ values
    return flat.transpose(0, 1).reshape(states.shape[1], batch, -1)


PRINTED = {  # what is projected
    "nothing": (static, static),
    "the patterns": (static, projected),
    "the states": (projected, static),
}


def printed(state, patterns, heads, orders):
    of_states, of_patterns = orders
    stored = of_patterns(patterns, heads)
    return retrieved(of_states(state, heads), stored, stored, state.shape[1])


def ours(state, patterns, heads):
    """The same memory without projections: every head has the whole features."""
    layer = nn.HopfieldRetrieval(heads, beta=1.0)
    return layer(state.repeat(1, 1, heads), patterns.repeat(1, 1, heads))


def problem(batch):
    g = generator(batch)
    return torch.randn(L, batch, D, generator=g), torch.randn(S, batch, D, generator=g)


@pytest.mark.parametrize("orders", PRINTED.values(), ids=PRINTED.keys())
@pytest.mark.parametrize(("batch", "heads"), [(2, 2), (3, 2), (2, 4)])
def test_18_items_of_a_batch_are_mixed(orders, batch, heads):
    state, patterns = problem(batch)
    others = patterns.clone()
    others[:, 1:] += torch.randn(S, batch - 1, D, generator=generator(7))
    states = state.clone()
    states[:, 1:] += torch.randn(L, batch - 1, D, generator=generator(8))
    before, after = (printed(*x, heads, orders) for x in ((state, patterns), (states, others)))
    assert (before[:, 0] - after[:, 0]).abs().max() > 0.1  # item 0 has not changed; what it retrieves has
    before, after = (ours(*x, heads) for x in ((state, patterns), (states, others)))
    assert torch.equal(before[:, 0], after[:, 0]) and (before[:, 1:] - after[:, 1:]).abs().max() > 0.1


@pytest.mark.parametrize("orders", PRINTED.values(), ids=PRINTED.keys())
@pytest.mark.parametrize(("batch", "heads"), [(1, 3), (3, 1)])
def test_18_one_item_or_one_head_hides_it(orders, batch, heads):
    state, patterns = problem(batch)
    assert_equal(printed(state, patterns, heads, orders), ours(state, patterns, heads))


@pytest.mark.parametrize(("batch", "heads"), [(2, 2), (3, 2)])
def test_18_one_order_throughout_is_right(batch, heads):
    state, patterns = problem(batch)
    assert_equal(printed(state, patterns, heads, (projected, projected)), ours(state, patterns, heads))
