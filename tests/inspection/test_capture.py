"""What is captured against torch's own weights and outputs, and against loops over scalars."""

import math

import arviz
import numpy as np
import oracles
import pytest
import torch
from tolerances import assert_equal
from torch import nn

from probtx_pyro import inspection
from probtx_pyro import nn as layers
from probtx_pyro.data import text_transformer

LENGTH, UNITS, WIDTH, HEADS, BATCH = 5, 6, 8, 2, 3
WEIGHTS = 1e-6  # promised in single precision: logits of order 1 are rounded there to some 1e-7

pytestmark = pytest.mark.filterwarnings("ignore:best_equivalent. a head has")  # of few queries: these are small


def padding(units, *lengths):
    return torch.arange(units) >= torch.tensor(lengths).unsqueeze(-1)


FUTURE = torch.ones(LENGTH, UNITS, dtype=torch.bool).triu(1)
HIDDEN = torch.rand(BATCH * HEADS, LENGTH, UNITS, generator=torch.Generator().manual_seed(0)) < 0.3
HIDDEN[..., 0] = False
MASKS = {
    "none": {},
    "padding": {"key_padding_mask": padding(UNITS, 6, 4, 1)},
    "boolean": {"attn_mask": FUTURE},
    "causal": {"attn_mask": FUTURE, "is_causal": True},
    "additive": {"attn_mask": torch.linspace(-2, 2, LENGTH * UNITS).reshape(LENGTH, UNITS)},
    "each head": {"attn_mask": HIDDEN},
    "two": {"attn_mask": FUTURE, "key_padding_mask": padding(UNITS, 6, 4, 1)},
}
LAYERS = {
    "plain": {},
    "one head": {"num_heads": 1},
    "no bias": {"bias": False},
    "widths": {"kdim": 5, "vdim": 7},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True, "add_bias_kv": True},
}


def same_output(layer, found, expected):
    """The captured attention and values, through the layer's output projection by hand."""
    heads = (found.attention() @ found.values).transpose(-2, -3).flatten(-2).to(expected.dtype)
    output = heads @ layer.out_proj.weight.T + (0 if layer.out_proj.bias is None else layer.out_proj.bias)
    torch.testing.assert_close(output, expected, atol=WEIGHTS, rtol=0)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("options", LAYERS)
def test_weights_and_outputs_are_those_of_torch(options, masks, batch_first, dtype):
    given = {"num_heads": HEADS, **LAYERS[options]}
    asked = {
        name: x.to(dtype) if torch.is_tensor(x) and x.is_floating_point() else x for name, x in MASKS[masks].items()
    }
    if masks == "each head":
        asked = {"attn_mask": HIDDEN[: BATCH * given["num_heads"]]}
    layer = nn.MultiheadAttention(WIDTH, **given, batch_first=batch_first, dtype=dtype).eval()
    if layer.in_proj_bias is not None:
        nn.init.normal_(layer.in_proj_bias)  # torch starts it at 0, which would hide it
    shapes = [(BATCH, LENGTH, WIDTH), (BATCH, UNITS, layer.kdim), (BATCH, UNITS, layer.vdim)]
    inputs = [torch.randn(shape, dtype=dtype) for shape in shapes]
    inputs = inputs if batch_first else [x.transpose(0, 1) for x in inputs]
    output, weights = layer(*inputs, **asked, average_attn_weights=False)
    (found,) = inspection.capture(layer, *inputs, **asked).values()
    torch.testing.assert_close(found.attention(), weights.double(), atol=WEIGHTS, rtol=0)
    same_output(layer, found, output if batch_first else output.transpose(0, 1))
    assert found.dims == ("batch", "head") and bool(found.present.all())


@pytest.mark.parametrize("masks", ["none", "padding", "boolean"])
def test_self_attention_marks_its_padding(masks):
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    x, given = torch.randn(BATCH, UNITS, WIDTH), dict(MASKS[masks])
    if "attn_mask" in given:
        given["attn_mask"] = torch.ones(UNITS, UNITS, dtype=torch.bool).triu(1)
    weights = layer(x, x, x, **given, average_attn_weights=False)[1]
    found = inspection.capture(layer, x, x, x, **given)["MultiheadAttention"]
    torch.testing.assert_close(found.attention(), weights, atol=WEIGHTS, rtol=0)
    expected = torch.ones(BATCH, UNITS, dtype=torch.bool) if masks != "padding" else ~given["key_padding_mask"]
    assert torch.equal(found.present, expected.unsqueeze(1).expand(-1, HEADS, -1))


def test_single_examples_and_arguments_by_name():
    layer = nn.MultiheadAttention(WIDTH, HEADS).eval()
    x = torch.randn(LENGTH, WIDTH)
    weights = layer(x, x, x, average_attn_weights=False)[1]
    for found in (inspection.capture(layer, x, x, x), inspection.capture(layer, query=x, key=x, value=x)):
        torch.testing.assert_close(found["MultiheadAttention"].attention()[0], weights, atol=WEIGHTS, rtol=0)


def encoder(batch_first=True, **options):
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=batch_first, **options)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=batch_first).eval()
    for parameter in model.parameters():  # copies of one layer would hide a mix-up of layers
        nn.init.normal_(parameter, std=0.5)
    return model.requires_grad_(False)


def by_hand(model, x, mask=None, padded=None):
    """Weights of every layer of a post-norm encoder, from torch's own layers asked one at a time."""
    found = []
    for layer in model.layers:
        attended, weights = layer.self_attn(x, x, x, padded, True, mask, False)
        found.append(weights)
        x = layer.norm1(x + attended)
        x = layer.norm2(x + layer.linear2(torch.relu(layer.linear1(x))))
    return found


@pytest.mark.pairs
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("padded", [None, padding(UNITS, 6, 4, 2)])
@pytest.mark.parametrize("causal", [False, True])
def test_every_layer_of_an_encoder_in_eval_mode(batch_first, padded, causal):
    model, x = encoder(batch_first), torch.randn(BATCH, UNITS, WIDTH)
    x = x if batch_first else x.transpose(0, 1)
    mask = nn.Transformer.generate_square_subsequent_mask(UNITS) if causal else None
    padded = padded if padded is None or not causal else torch.zeros(padded.shape).masked_fill(padded, -torch.inf)
    with torch.no_grad():
        found = inspection.capture(model, x, mask=mask, src_key_padding_mask=padded)
    assert list(found) == [f"layers.{i}.self_attn" for i in range(3)]
    for one, weights in zip(found.values(), by_hand(model, x, mask, padded), strict=True):
        torch.testing.assert_close(one.attention(), weights, atol=WEIGHTS, rtol=0)


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype:UserWarning")  # torch says so once a process
def test_the_fused_path_must_be_off():
    """With padding torch packs the batch into a nested tensor, which no layer can be read from: the switch is needed."""
    model, x, padded = encoder(), torch.randn(BATCH, UNITS, WIDTH), padding(UNITS, 6, 4, 2)
    called = []
    handle = model.layers[0].self_attn.register_forward_pre_hook(lambda _, inputs: called.append(inputs[0].is_nested))
    model(x, src_key_padding_mask=padded)
    assert called == [True]
    inspection.capture(model, x, src_key_padding_mask=padded)
    assert called == [True, False]
    handle.remove()
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_decoder_and_cross_attention_by_name():
    model = nn.Transformer(WIDTH, HEADS, 1, 2, 16, batch_first=True).eval()
    source, target = torch.randn(BATCH, UNITS, WIDTH), torch.randn(BATCH, LENGTH, WIDTH)
    found = inspection.capture(model, source, target)
    decoder = [f"decoder.layers.{i}.{name}" for i in range(2) for name in ("self_attn", "multihead_attn")]
    assert list(found) == ["encoder.layers.0.self_attn", *decoder]
    assert found["decoder.layers.1.multihead_attn"].attention().shape == (BATCH, HEADS, LENGTH, UNITS)
    memory = model.encoder(source)
    first = model.decoder.layers[0]
    x = first.norm1(target + first._sa_block(target, None, None))
    weights = first.multihead_attn(x, memory, memory, average_attn_weights=False)[1]
    crossed = found["decoder.layers.0.multihead_attn"].attention()
    torch.testing.assert_close(crossed, weights, atol=WEIGHTS, rtol=0)


def test_the_module_is_left_as_it_was():
    model, x = encoder(), torch.randn(BATCH, UNITS, WIDTH)
    before, state = model(x), torch.get_rng_state()
    inspection.capture(model, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert torch.equal(model(x), before)
    with pytest.raises(ValueError, match="query has shape"):
        inspection.capture(model, torch.randn(BATCH, UNITS, WIDTH + 1))
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.backends.mha.get_fastpath_enabled()


class Twice(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.shared, self.ready = layer, nn.MultiheadAttention(WIDTH, HEADS)

    def forward(self, x):
        return self.shared(self.shared(x, x, x)[0], x, x)[0]


def test_a_layer_called_twice_is_there_twice():
    layer, x = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), torch.randn(BATCH, LENGTH, WIDTH)
    found = inspection.capture(Twice(layer), x)
    assert list(found) == ["shared", "shared (call 2)"]
    again = layer(layer(x, x, x)[0], x, x, average_attn_weights=False)[1]
    torch.testing.assert_close(found["shared (call 2)"].attention(), again, atol=WEIGHTS, rtol=0)


OURS = {
    "softmax": layers.SoftmaxAttention(WIDTH, HEADS, head_dim=3, batch_first=True),
    "mixture": layers.GaussianMixtureAttention(WIDTH, HEADS, batch_first=True),
    "map": layers.GaussianMixtureAttention(WIDTH, HEADS, batch_first=True, map_steps=2),
    "hopfield": layers.HopfieldAttention(WIDTH, HEADS, batch_first=True, beta=1.3),
    "hopfield with its own beta": layers.HopfieldAttention(WIDTH, HEADS, batch_first=True, learn_beta=True),
}


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("masks", MASKS)
def test_weights_are_those_of_our_own_layers(name, masks):
    layer = OURS[name].double()
    for parameter in (parameter for key, parameter in layer.named_parameters() if "proj" not in key):
        nn.init.normal_(parameter, std=0.3)  # precisions and weights of units away from their start
    query, key = torch.randn(BATCH, LENGTH, WIDTH), torch.randn(BATCH, UNITS, WIDTH)
    weights = layer(query, key, key, **MASKS[masks], average_attn_weights=False)[1]
    found = inspection.capture(layer, query, key, key, **MASKS[masks])[type(layer).__name__]
    assert_equal(found.attention(), weights)


def test_weights_are_those_of_our_language_model():
    model = layers.TransformerLM(20, 16, width=WIDTH, num_heads=HEADS, num_layers=2).eval()
    tokens = torch.randint(20, (BATCH, 7))
    found = inspection.stack_layers(inspection.capture(model, tokens))
    assert_equal(found.attention(), model.attention_weights(tokens))
    assert found.dims == ("layer", "batch", "head")
    assert found.coords["layer"] == ["blocks.0.attention", "blocks.1.attention"]


def test_other_modules_are_refused():
    with pytest.raises(ValueError, match=r"computed no attention that is known.* explain its class by attentions="):
        inspection.capture(nn.Linear(2, 2), torch.zeros(1, 2))
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    nn.utils.parametrizations.weight_norm(layer, "in_proj_weight")
    x = torch.randn(BATCH, LENGTH, WIDTH)
    with pytest.raises(ValueError, match="MultiheadAttention keeps its weights under other names"):
        inspection.capture(layer, x, x, x)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype:UserWarning")  # torch says so once a process
def test_nested_tensors_are_refused():
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval().requires_grad_(False)
    x = torch.nested.nested_tensor([torch.randn(3, WIDTH), torch.randn(2, WIDTH)])
    with pytest.raises(ValueError, match="MultiheadAttention got nested tensors; pad them"):
        inspection.capture(layer, x, x, x)


def test_rows_that_may_attend_to_nothing():
    """An example that is all padding makes torch's later layers NaN; here it is zero, and the others are untouched."""
    model, x = encoder(), torch.randn(BATCH, UNITS, WIDTH)
    padded = padding(UNITS, 6, 4, 0)
    found = inspection.capture(model, x, src_key_padding_mask=padded)
    kept = inspection.capture(model, x[:2], src_key_padding_mask=padded[:2])
    for name, one in found.items():
        assert not one.present[2].any() and one.present[1].sum() == HEADS * 4
        assert not one.attention()[2].any() and not one.effective_units()[2].any() and not one.entropy()[2].any()
        assert bool((one.log_evidence()[2] == -torch.inf).all())
        assert_equal(one.attention()[:2], kept[name].attention())
        assert_equal(one.log_evidence()[:2], kept[name].log_evidence())
        assert_equal(one.raw.log_evidence()[:2], kept[name].raw.log_evidence())


def test_padding_may_hold_anything():
    layer, x = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval(), torch.randn(1, UNITS, WIDTH)
    padded = padding(UNITS, 4)
    clean = inspection.capture(layer, x, x, x, padded)["MultiheadAttention"]
    x = x.masked_fill(padded.unsqueeze(-1), torch.nan)
    found = inspection.capture(layer, x, x, x, padded)["MultiheadAttention"]
    assert_equal(found.attention()[..., :4, :], clean.attention()[..., :4, :])
    assert_equal(found.log_evidence()[..., :4], clean.log_evidence()[..., :4])


def test_evidence_is_that_of_the_linked_mixture_by_loops():
    queries, keys = torch.randn(4, 3), torch.randn(5, 3)
    mask = torch.randn(4, 5).masked_fill(torch.ones(4, 5, dtype=torch.bool).triu(1), -torch.inf)
    scale = 0.7
    prior = []
    for row in mask.tolist():
        logs = [m + scale / 2 * sum(k * k for k in key) for m, key in zip(row, keys.tolist(), strict=True)]
        prior.append([x - oracles.logsumexp(logs) for x in logs])
    problem = {"queries": queries.tolist(), "keys": keys.tolist(), "key_precision": scale, "log_prior": prior}
    found = inspection.captured(queries, keys, None, mask, scale).raw
    weights = oracles.attention(problem)
    assert_equal(found.log_evidence(), torch.tensor(oracles.evidence(problem)))
    assert_equal(found.attention(), torch.tensor(weights))
    entropies = [-sum(w * math.log(w) for w in row if w > 0) for row in weights]
    assert_equal(found.entropy(), torch.tensor(entropies))
    assert_equal(found.effective_units(), torch.tensor(entropies).exp())


def text(words="The for statement is used to iterate over the elements of a sequence"):
    heads = text_transformer.load().heads(words)
    mask = torch.full((len(words), len(words)), -torch.inf).triu(1)
    return heads, inspection.captured(heads.queries, heads.keys, heads.values, mask, dims=("layer", "head"))


def test_a_trained_transformer_by_plain_tensors():
    heads, found = text()
    logits = found.queries @ found.keys.transpose(-1, -2) * found.scale
    single = (
        4 * torch.finfo(torch.float32).eps * float(logits.abs().max())
    )  # a weight errs by what its logit errs in float32
    torch.testing.assert_close(found.attention(), heads.attention.double(), atol=single, rtol=0)
    assert_equal(found.attention(), (logits + found.mask).softmax(-1), logits)
    outputs = found.mixture.expected_outputs(found.queries)
    torch.testing.assert_close(
        outputs, heads.outputs.double(), atol=1e-5, rtol=0
    )  # values reach 10: ten times the rounding
    assert bool(found.log_evidence().isfinite().all())


def test_captured_attention_becomes_labelled_data(tmp_path):
    model, x, padded = encoder(), torch.randn(BATCH, UNITS, WIDTH), padding(UNITS, 6, 4, 0)
    found = inspection.capture(model, x, src_key_padding_mask=padded)
    data = inspection.capture_data(found, {"unit": list("abcdef")})
    group = data["captured"]
    assert group["attention"].dims == ("layer", "batch", "head", "query", "unit")
    assert group["values"].dims == ("layer", "batch", "head", "unit", "answer")
    for name, one in found.items():
        at = group.sel(layer=name)
        np.testing.assert_allclose(at["attention"].sel(unit="c"), one.attention()[..., 2], atol=1e-12)
        np.testing.assert_allclose(at["log_evidence"], one.log_evidence(), atol=1e-9)
        np.testing.assert_array_equal(at["present"], one.present)
        np.testing.assert_allclose(at["scale"], (WIDTH // HEADS) ** -0.5)
        np.testing.assert_allclose(at["weights"].sum("unit"), [[[1.0] * UNITS] * HEADS] * 2 + [[[0.0] * UNITS] * HEADS])
    assert not group["attention"].isnull().any()
    data.to_netcdf(str(tmp_path / "captured.nc"))
    assert arviz.from_netcdf(str(tmp_path / "captured.nc"))["captured"].identical(group)
    plain = inspection.capture_data(inspection.captured(torch.zeros(2, 3), torch.zeros(4, 3)).raw)["captured"]
    assert plain["attention"].dims == ("query", "unit") and "values" not in plain


def test_layers_stack_whatever_masks_they_have():
    q, k = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    rows = torch.zeros(3, 5).masked_fill(torch.ones(3, 5, dtype=torch.bool).triu(1), -torch.inf)
    several = {
        "free": inspection.captured(q, k),
        "row": inspection.captured(q, k, None, rows[:1], torch.tensor([[0.5], [2.0]])),
        "rows": inspection.captured(q, k, None, rows.expand(2, 3, 5), 2.0),
    }
    stacked = inspection.stack_layers(several)
    for i, one in enumerate(several.values()):
        assert_equal(stacked.attention()[i], one.attention())
        assert_equal(stacked.log_evidence()[i], one.log_evidence())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, k: inspection.captured(q, k, mask=torch.ones(3, 4).bool()), "mask must be what is added .* not torch.bool"),
        (lambda q, k: inspection.captured(q, k, mask=torch.zeros(2, 4)), r"mask has shape \(2, 4\) but must end in"),
        (lambda q, k: inspection.captured(q, k, mask=torch.full((3, 4), torch.nan)), "mask contains NaN"),
        (lambda q, k: inspection.captured(q, k, scale=0.0), "scale must be > 0"),
        (lambda q, k: inspection.captured(q, k, scale=torch.ones(4)), r"scale has shape \(4,\) but must be a number or end in 1"),
        (lambda q, k: inspection.captured(q, k, dims=("head",)), "dims names 1 axes but there are 0"),
        (lambda q, k: inspection.captured(q * torch.nan, k), "queries contains NaN"),
        (lambda q, k: inspection.captured(q.expand(2, 3, 2), k.expand(3, 4, 2)), "batch axes do not broadcast: queries"),
        (lambda q, k: inspection.stack_layers({}), "layers differ in shape, .* none; take like layers"),
        (lambda q, k: inspection.capture_data({"a": inspection.captured(q, k), "b": inspection.captured(k, k)}), "layers differ in shape, .*: a"),
    ],
)  # fmt: skip
def test_errors_name_the_argument_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(torch.zeros(3, 2), torch.zeros(4, 2))
    assert "\n" not in str(caught.value)
