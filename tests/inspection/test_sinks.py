"""Sinks against loops over single queries."""

import math

import numpy as np
import pytest
import torch
from strategies import generator
from tolerances import assert_equal as equal_tensors

from probtx_pyro import inspection, nn

B, H, L, D = 3, 2, 9, 4


def assert_equal(found, expected):
    equal_tensors(*(torch.as_tensor(x, dtype=torch.float64) for x in (found, expected)))


def heads(seed, batch=B, first=3.0):
    """Causal heads whose first key is short and whose first column of the mask makes it a sink."""
    g = generator(seed)
    queries, keys, values = (torch.randn(batch, H, L, D, generator=g) for _ in range(3))
    keys[..., 0, :] *= 0.1
    mask = torch.full((L, L), -torch.inf).triu(1)
    mask[1:, 0] = first
    padded = torch.zeros(batch, 1, L, dtype=torch.bool)
    padded[-1, :, -2:] = True
    return inspection.captured(queries, keys, values, mask, 0.7, padded=padded)


def by_hand(one, unit):
    """Logit, log-sum-exp of the others and mass of every query that counts, by head."""
    found = [[] for _ in range(H)]
    for b in range(one.queries.shape[0]):
        for h in range(H):
            for i in range(L):
                allowed = [j for j in range(i + 1) if j != unit]
                if not bool(one.present[b, 0, i]) or unit > i or not allowed:
                    continue
                scores = [
                    0.7 * float(one.queries[b, h, i] @ one.keys[b, h, j]) + float(one.mask[..., i, j].max())
                    for j in range(i + 1)
                ]
                rest = math.log(sum(math.exp(scores[j]) for j in allowed))
                found[h].append((scores[unit], rest, 1 / (1 + math.exp(rest - scores[unit]))))
    return [np.array(x).T for x in found]


@pytest.mark.parametrize("unit", [0, 3])
@pytest.mark.parametrize("apart", [False, True], ids=["the same texts", "other texts"])
def test_numbers_are_those_of_a_loop(unit, apart):
    one, other = heads(0), heads(1, batch=2)
    found = inspection.sinks(one, unit, on=other if apart else None)
    for h, (fitted, tried) in enumerate(zip(by_hand(one, unit), by_hand(other if apart else one, unit), strict=True)):
        logit, rest, mass = tried
        assert_equal(found.mass[h], mass.mean())
        assert_equal(found.logit[h], logit.mean())
        assert_equal(found.logit_sd[h], logit.std())
        assert_equal(found.rest_sd[h], rest.std())
        assert_equal(found.explained[h], 1 - logit.var() / (logit - rest).var())
        assert_equal(found.without[h], mass.mean())
        assert_equal(found.constant_mass[h], np.abs(mass - fitted[2].mean()).mean())
        assert_equal(found.constant_logit[h], np.abs(mass - 1 / (1 + np.exp(rest - fitted[0].mean()))).mean())


def test_ratios_are_to_the_median_of_the_other_units_that_are_open():
    g = generator(2)
    queries, keys, values = (torch.randn(1, H, L, D, generator=g) for _ in range(3))
    mask = torch.zeros(1, L)
    mask[0, -2:] = -torch.inf
    found = inspection.sinks(inspection.captured(queries, keys, values, mask))
    for name, x in (("key_ratio", keys), ("value_ratio", values)):
        norms = x[0].norm(dim=-1)
        assert_equal(getattr(found, name), norms[:, 0] / norms[:, 1 : L - 2].median(-1).values)
    assert np.isnan(inspection.sinks(inspection.captured(queries, keys)).value_ratio).all()


def test_a_key_of_zero_is_a_constant_logit():
    one = heads(3)
    keys = one.keys.clone()
    keys[..., 0, :] = 0
    found = inspection.sinks(inspection.captured(one.queries, keys, one.values, one.mask, 0.7))
    assert_equal(found.logit, np.full(H, 3.0))
    assert_equal(found.explained, np.ones(H))
    assert (np.abs(found.constant_logit) < 1e-12).all() and (found.constant_mass > 1e-3).all()


@pytest.mark.parametrize("instead_of", [None, 0, -2])
@pytest.mark.parametrize("value", [None, "one", "each head"])
def test_a_background_has_one_logit_in_every_row(instead_of, value):
    one = heads(8)
    logit = torch.tensor([0.5, -1.0])
    answer = {None: None, "one": torch.arange(4.0), "each head": torch.randn(H, D, generator=generator(9))}[value]
    scores = 0.7 * one.queries @ one.keys.mT + one.mask
    own, at = logit.view(H, 1, 1).expand(B, H, L, 1), L if instead_of is None else instead_of % L
    values, default = one.values, one.values[..., at : at + 1, :] if instead_of is not None else torch.zeros(B, H, 1, D)
    values = torch.cat(
        [
            values[..., :at, :],
            default if answer is None else answer.expand(H, D).unsqueeze(1).expand(B, H, 1, D),
            values[..., at + 1 :, :],
        ],
        -2,
    )
    closed = (
        scores[..., at : at + 1] == -torch.inf if instead_of is not None else torch.zeros_like(own, dtype=torch.bool)
    )
    scores = torch.cat([scores[..., :at], own.masked_fill(closed, -torch.inf), scores[..., at + 1 :]], -1)
    found = one.with_background(logit, answer, instead_of=instead_of)
    assert_equal(found.attention(), scores.softmax(-1))
    assert_equal(found.attention() @ found.values, scores.softmax(-1) @ values)
    assert torch.equal(found.present, one.present) and found.dims == one.dims


def test_bad_backgrounds_are_refused():
    one = heads(8)
    with pytest.raises(ValueError, match=r"instead_of must be from -9 to 8, not 9"):
        one.with_background(0.0, instead_of=9)
    with pytest.raises(ValueError, match=r"logit has shape \(3,\) but must broadcast to \(2,\), one a head"):
        one.with_background(torch.zeros(3))
    with pytest.raises(ValueError, match=r"value has shape \(3,\) but must broadcast to \(2, 4\)"):
        one.with_background(0.0, torch.zeros(3))


def test_layers_have_names():
    one = heads(4)
    found = inspection.sinks({"first": one, "second": heads(5)})
    assert found.dims == ("layer", "head") and list(found.coords["layer"]) == ["first", "second"]
    assert_equal(found.mass[0], inspection.sinks(one).mass)


def test_layers_and_what_they_are_tried_on_have_the_same_names():
    one, other = heads(6), heads(7)
    found = inspection.sinks({"a": one, "b": other}, on={"a": other, "b": one})
    assert_equal(found.constant_mass[1], inspection.sinks(other, on=one).constant_mass)
    for on in ({"a": other}, other, {"b": other, "a": one}):
        with pytest.raises(ValueError, match="on must have the layers of captured, by the same names"):
            inspection.sinks({"a": one, "b": other}, on=on)
    with pytest.raises(ValueError, match="on must be one Captured, as captured is"):
        inspection.sinks(one, on={"a": other})
    few = inspection.captured(one.queries[:, :1], one.keys[:, :1])
    with pytest.raises(ValueError, match=r"layers differ in their heads: a \(2,\), b \(1,\)"):
        inspection.sinks({"a": one, "b": few})


def test_bad_input_is_one_clear_error():
    one = heads(6)
    with pytest.raises(ValueError, match=r"unit must be from -9 to 8, not 9"):
        inspection.sinks(one, 9)
    with pytest.raises(ValueError, match=r"on has heads \(1,\) but captured \(2,\)"):
        inspection.sinks(one, on=inspection.captured(one.queries[:, :1], one.keys[:, :1]))
    with pytest.raises(ValueError, match=r"a head without a query that attends to the unit and to others"):
        inspection.sinks(one.without(torch.ones(L, dtype=torch.bool)))
    layer = nn.GaussianMixtureAttention(8, 2, linked=False)
    x = torch.randn(3, 2, 8)
    (found,) = inspection.capture(layer, x, x, x).values()
    with pytest.raises(ValueError, match=r"the layer is a GaussianMixture; only a softmax"):
        inspection.sinks(found)
