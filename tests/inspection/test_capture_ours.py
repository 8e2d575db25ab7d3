"""Attention of every layer of `probtx_pyro.nn` is captured, with the formulation that it is."""

import numpy as np
import pytest
import torch
from tolerances import assert_equal
from torch import nn

from probtx_pyro import inspection
from probtx_pyro import nn as layers

UNITS, WIDTH, HEADS, BATCH = 6, 8, 2, 3

pytestmark = pytest.mark.filterwarnings("ignore:best_equivalent. a head has")  # of few queries: these are small


def padding(units, *lengths):
    return torch.arange(units) >= torch.tensor(lengths).unsqueeze(-1)


OTHERS = {
    "unlinked": (layers.GaussianMixtureAttention, {"linked": False}),
    "keys": (layers.GaussianKeysAttention, {}),
    "linked keys": (layers.GaussianKeysAttention, {"linked": True, "share": "shift"}),
    "hard keys": (layers.GaussianKeysAttention, {"assignment": "hard"}),
    "adapting": (layers.GaussianMixtureAttention, {"adapt": layers.Adapt(2, ("keys", "key_precision"))}),
    "adapting unlinked": (layers.GaussianMixtureAttention, {"adapt": layers.Adapt(), "linked": False}),
    "adapting keys": (layers.GaussianKeysAttention, {"adapt": layers.Adapt(2)}),
    "linear": (layers.LinearKeysAttention, {}),
    "linear, one key": (layers.LinearKeysAttention, {"num_components": 1, "share": "shift"}),
    "hopfield steps": (layers.HopfieldAttention, {"num_steps": 3, "learn_beta": True, "beta": 0.8}),
    "sparsemax": (layers.HopfieldAttention, {"transformation": "sparsemax"}),
    "entmax steps": (layers.HopfieldAttention, {"transformation": "entmax15", "num_steps": 2, "learn_beta": True, "beta": 2.0}),
}  # fmt: skip
WITHOUT_DENSITY = {"hard keys", "linear", "linear, one key", "sparsemax", "entmax steps"}
HEARD = {"none": {}, "padding": {"key_padding_mask": padding(UNITS, 6, 4, 1)}, "causal": {"is_causal": True}}
HEARD |= {"nothing": {"key_padding_mask": padding(UNITS, 6, 4, 0)}, "two": HEARD["padding"] | HEARD["causal"]}


def other(name):
    """A layer with parameters away from their start, in double precision, and its input."""
    kind, options = OTHERS[name]
    layer = kind(WIDTH, HEADS, batch_first=True, **options).double()
    for parameter in (parameter for key, parameter in layer.named_parameters() if "proj" not in key):
        nn.init.normal_(parameter, std=0.3)
    return layer, torch.randn(BATCH, UNITS, WIDTH)


@pytest.mark.parametrize(
    "masks", [pytest.param(x, marks=pytest.mark.slow if x in ("padding", "causal") else ()) for x in HEARD]
)  # "two" has both of these
@pytest.mark.parametrize("name", OTHERS)
def test_every_layer_of_ours_is_captured(name, masks):
    """Its own weights, and as labelled data; evidence against the formulation's own where there is a density."""
    layer, x = other(name)
    weights = layer(x, x, x, **HEARD[masks], average_attn_weights=False)[1]
    found = inspection.capture(layer, x, x, x, **HEARD[masks])[type(layer).__name__]
    # some rounding of the layer's own numbers is amplified by two or three steps of adaptation
    assert_equal(found.attention()[found.present], weights[found.present], operations=4096)
    alone = inspection.stack_layers({"first": found, "second": found})
    assert_equal(alone.attention()[1], found.attention())
    assert found.has_density == (name not in WITHOUT_DENSITY)
    data = inspection.capture_data(found)["captured"]
    assert ("log_evidence" in data) == found.has_density
    np.testing.assert_allclose(data["attention"], found.attention())
    if not found.has_density:
        for ask in (found.log_evidence, lambda: found.raw, lambda: inspection.query_check(found, num_draws=2, seed=0)):
            with pytest.raises(ValueError, match="is the posterior of no density of queries"):
                ask()
        return
    best = inspection.best_equivalent(found)
    counted = found.present
    flat = best._answered(best.mixture.attention(best._asked), 1).unflatten(-1, (UNITS, -1)).sum(-1)
    assert (flat - found.attention())[counted].abs().max() < 1e-8  # promised of attention
    assert best.log_evidence()[counted].sum() >= found.raw.log_evidence()[counted].sum()
    assert_equal(found.log_evidence(), best.log_evidence())
    assert_equal(alone.raw.log_evidence()[0], found.raw.log_evidence())
    check = inspection.query_check(found, num_draws=3, seed=0)
    assert check.observed.shape == (5, HEADS) and np.isfinite(check.observed).all()


@pytest.mark.parametrize("name", [name for name in OTHERS if "adapting" not in name])
def test_posterior_model_of_every_layer_is_its_attention(name):
    layer, x = other(name)
    for masks in HEARD.values():
        weights = layer(x, x, x, **masks, average_attn_weights=False)[1]
        model, queries = layer.posterior_model(x, x, x, **masks)
        alive = weights.sum(-1) > 0
        attention = model.attention(queries, **layer.attention_options)
        attention = attention.squeeze(-2) if attention.dim() > weights.dim() else attention
        assert_equal(attention[alive], weights[alive])


def test_additive_masks_of_layers_that_have_no_place_for_them():
    x, added = torch.randn(BATCH, UNITS, WIDTH), torch.linspace(-2, 2, UNITS**2).reshape(UNITS, UNITS)
    for name in OTHERS:
        layer, _ = other(name)
        if name in ("sparsemax", "entmax steps"):
            with pytest.raises(ValueError, match="a sparse memory has no place for; give a boolean mask"):
                inspection.capture(layer, x, x, x, attn_mask=added)
            continue
        weights = layer(x, x, x, attn_mask=added, average_attn_weights=False)[1]
        found = inspection.capture(layer, x, x, x, attn_mask=added)[type(layer).__name__]
        assert_equal(found.attention(), weights, operations=4096)


def test_a_layer_of_ones_own_without_a_formulation_is_refused():
    class Own(layers.attention.Attention):
        def attend(self, queries, units, values, masks, need_weights):
            return values, None

    x = torch.randn(BATCH, UNITS, WIDTH)
    with pytest.raises(
        NotImplementedError, match="Own does not say which formulation it is; define its method formulation"
    ):
        inspection.capture(Own(WIDTH, HEADS, batch_first=True), x, x, x)


@pytest.mark.parametrize("options", [{}, {"num_steps": 3}, {"transformation": "sparsemax", "num_steps": 2}], ids=str)
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_memory_without_projections_is_captured(options, batch_first):
    """Its retrieval is what the captured attention reads out of the captured values."""
    state, patterns = torch.randn(BATCH, 5, WIDTH), torch.randn(BATCH, UNITS, WIDTH)
    layer = layers.HopfieldRetrieval(HEADS, 1.3, batch_first=batch_first, **options)
    given = (state, patterns) if batch_first else (state.transpose(0, 1), patterns.transpose(0, 1))
    for masks in (
        {},
        {"key_padding_mask": padding(UNITS, 6, 4, 1)},
        {"attn_mask": torch.ones(5, UNITS).triu(1).bool()},
    ):
        (found,) = inspection.capture(layer, *given, **masks).values()
        read = (found.attention() @ found.values.reshape(BATCH, HEADS, UNITS, -1)).transpose(1, 2).flatten(-2)
        retrieved = layer(*given, **masks)
        assert_equal(read, retrieved if batch_first else retrieved.transpose(0, 1), operations=256)
    single = inspection.capture(layer, state[0], patterns[0])["HopfieldRetrieval"]
    assert single.attention().shape == (1, HEADS, 5, UNITS)
