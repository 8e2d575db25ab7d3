"""Attention as a soft hash table."""

import math

import pytest
import torch
from strategies import generator
from tolerances import assert_equal
from torch.nn.functional import scaled_dot_product_attention

from probtx_pyro.models import SoftHashTable


def table(heads=(), scale=None, notes=6):
    g = generator(0)
    keys, values = torch.randn(*heads, notes, 4, generator=g), torch.randn(*heads, notes, 3, generator=g)
    return SoftHashTable(keys, values, scale), torch.randn(*heads, 5, 4, generator=g)


def test_reading_is_scaled_dot_product_attention_and_the_linked_mixture():
    notes, queries = table(heads=(2,))
    expected = scaled_dot_product_attention(queries, notes.keys, notes.values)
    assert (notes.read(queries) - expected).abs().max() < 1e-12
    assert_equal(notes.attention(queries), notes.mixture.attention(queries), operations=256)
    assert_equal(notes.attention(queries) @ notes.values, expected, operations=256)
    assert_equal(notes.read(queries), notes.mixture.expected_outputs(queries), operations=256)


def test_a_lookup_is_the_limit_and_a_dictionary():
    notes, queries = table(scale=math.inf)
    assert_equal(notes.read(queries), table(scale=1e6)[0].read(queries), operations=256)
    written = {i: row for i, row in enumerate(notes.values.tolist())}
    one_hot = SoftHashTable(torch.eye(6), notes.values, math.inf)
    assert one_hot.read(torch.eye(6)).tolist() == list(written.values())
    tied = SoftHashTable(torch.ones(2, 1), torch.tensor([[1.0], [2.0]]), math.inf)
    assert tied.attention(torch.ones(1, 1)).tolist() == [[1.0, 0.0]]
    with pytest.raises(ValueError, match="scale is infinite"):
        _ = notes.mixture


def test_writing_before_each_reading_is_causal_self_attention():
    g = generator(1)
    q, k, v = (torch.randn(7, 4, generator=g) for _ in range(3))
    notes, read = SoftHashTable(k[:0], v[:0]), []
    for i in range(7):
        notes = notes.write(k[i : i + 1], v[i : i + 1])
        read.append(notes.read(q[i : i + 1]))
    expected = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    assert_equal(torch.cat(read), expected, operations=256)


def test_heads_are_channels():
    notes, queries = table(heads=(3,))
    for head in range(3):
        alone = SoftHashTable(notes.keys[head], notes.values[head])
        assert_equal(notes.read(queries)[head], alone.read(queries[head]))


REFUSALS = {
    "keys have 6 notes but values have 2": lambda t, q: t.replace(values=t.values[:2]),
    "scale must be > 0": lambda t, q: t.replace(scale=0.0),
    "keys contains NaN": lambda t, q: t.replace(keys=t.keys * math.nan),
    "queries have 2 features but keys have 4": lambda t, q: t.read(q[:, :2]),
    "tensors differ in dtype": lambda t, q: t.read(q.float()),
    "values have 1 features but the table's values have 3": lambda t, q: t.write(t.keys, t.values[:, :1]),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_bad_input_is_refused(message):
    with pytest.raises(ValueError, match=message):
        REFUSALS[message](*table())
