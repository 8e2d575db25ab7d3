"""Attention of modules that the package does not know: explained by a function, or caught at the fused kernel."""

import math

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


class Config:
    """The shape of a configuration of Hugging Face."""

    def __init__(self, **options):
        self.hidden_size, self.num_attention_heads, self.num_hidden_layers = 8, 2, 2
        self.num_key_value_heads = 2
        vars(self).update(options)


class WrittenOut(nn.Module):
    """Self-attention as Hugging Face writes it out: three projections, an additive mask (B, 1, 1, S) or (B, 1, L, S)."""

    fused = False

    def __init__(self, config):
        super().__init__()
        self.heads, self.width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        self.shared = config.num_key_value_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key, self.value = (nn.Linear(config.hidden_size, self.shared * self.width) for _ in range(2))

    def split(self, x):
        return x.unflatten(-1, (-1, self.width)).transpose(1, 2)

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = self.split(self.query(hidden_states)), self.split(self.key(hidden_states)), self.split(self.value(hidden_states))  # fmt: skip
        if self.fused:
            causal = attention_mask is None
            return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask, is_causal=causal, enable_gqa=self.heads != self.shared).transpose(1, 2).flatten(-2)  # fmt: skip
        scores = q @ k.mT / math.sqrt(self.width)
        self.last = (scores if attention_mask is None else scores + attention_mask).softmax(-1)
        return (self.last @ v).transpose(1, 2).flatten(-2)


class Fused(WrittenOut):
    fused = True


class Pretrained(nn.Module):
    """Layers of attention, feed-forward and norms from a configuration, as Hugging Face builds them."""

    def __init__(self, config, kind):
        super().__init__()
        wide = config.hidden_size
        self.layer = nn.ModuleList(
            nn.ModuleDict({"attention": kind(config), "norm": nn.LayerNorm(wide), "dense": nn.Linear(wide, wide)})
            for _ in range(config.num_hidden_layers)
        )

    def forward(self, x, attention_mask=None):
        for layer in self.layer:
            x = layer["norm"](x + layer["dense"](layer["attention"](x, attention_mask=attention_mask)))
        return x


def explain(layer, hidden_states, attention_mask=None):
    """What a user writes for `WrittenOut`."""
    q, k, v = (layer.split(project(hidden_states)) for project in (layer.query, layer.key, layer.value))
    return {"queries": q, "keys": k, "values": v, "mask": attention_mask, "scale": layer.width**-0.5}


@pytest.mark.parametrize("hidden", [-math.inf, torch.finfo(torch.float32).min])
def test_a_class_that_is_explained_is_captured(hidden):
    model, x = Pretrained(Config(), WrittenOut).eval(), torch.randn(BATCH, UNITS, WIDTH)
    mask = torch.zeros(BATCH, 1, 1, UNITS).masked_fill(padding(UNITS, 6, 4, 2)[:, None, None], hidden)
    found = inspection.capture(model, x, attentions={WrittenOut: explain}, attention_mask=mask)
    assert list(found) == ["layer.0.attention", "layer.1.attention"]
    for name, one in found.items():
        own = model.get_submodule(name)
        assert_equal(one.attention(), own.last)
        assert one.dims == ("batch", "head") and one.values.shape == (BATCH, HEADS, UNITS, WIDTH // HEADS)
    left = found["layer.0.attention"].without(padding(UNITS, 6, 4, 2)[:, None])
    assert left.present.sum() == HEADS * 12
    best = inspection.best_equivalent(left, "full")
    assert best.log_evidence()[left.present].sum() > left.raw.log_evidence()[left.present].sum()
    assert (best.mixture.attention(best.queries) - left.attention()).abs().max() < 1e-8  # promised of attention


@pytest.mark.parametrize("shared", [2, 1])
@pytest.mark.parametrize("mask", ["none", "boolean", "added"])
def test_fused_calls_are_captured_wherever_they_are(mask, shared):
    config, x = Config(num_key_value_heads=shared), torch.randn(BATCH, UNITS, WIDTH)
    model = Pretrained(config, Fused).eval()
    causal = torch.ones(UNITS, UNITS, dtype=torch.bool).tril()
    added = torch.zeros(UNITS, UNITS).masked_fill(~causal, -torch.inf)
    given = {"none": None, "boolean": causal, "added": added}[mask]
    found = inspection.capture(model, x, attention_mask=given)
    assert list(found) == ["layer.0.attention", "layer.1.attention"]
    for name, one in found.items():
        layer = model.get_submodule(name)
        with torch.no_grad():
            q, k = layer.split(layer.query(x)), layer.split(layer.key(x)).repeat_interleave(2 // shared, 1)
        assert_equal(one.attention(), (q @ k.mT / math.sqrt(WIDTH // HEADS) + added).softmax(-1))
        with torch.no_grad():
            x = model.layer[int(name[6])]["norm"](x + model.layer[int(name[6])]["dense"](layer(x, given)))


def test_layers_that_are_known_are_not_captured_twice():
    """Ours and torch's call the fused kernel themselves."""
    for layer in (
        nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
        layers.SoftmaxAttention(WIDTH, HEADS, batch_first=True),
    ):
        x = torch.randn(BATCH, UNITS, WIDTH)
        assert list(inspection.capture(layer, x, x, x, need_weights=False)) == [type(layer).__name__]
    model, x = Pretrained(Config(), Fused).eval(), torch.randn(BATCH, UNITS, WIDTH)
    assert len(inspection.capture(model, x, attentions={Fused: explain})) == 2


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (lambda *_, **__: None, "the function for layer.0.attention must return arguments of captured, not NoneType"),
        (lambda *_, **__: {"queries": torch.zeros(2, 3)}, "not queries"),
        (lambda *_, **__: {"queries": torch.zeros(2, 3), "keys": torch.zeros(2, 3), "bias": 1}, "not queries, keys, bias"),
    ],
)  # fmt: skip
def test_functions_that_explain_badly_are_refused(said, message):
    model, x = Pretrained(Config(), WrittenOut), torch.randn(BATCH, UNITS, WIDTH)
    with pytest.raises(ValueError, match=message) as caught:
        inspection.capture(model, x, attentions={WrittenOut: said})
    assert "\n" not in str(caught.value)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
