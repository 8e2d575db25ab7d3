"""Padding, grouped queries and masks of modules that attend as those of Hugging Face do, against their own weights."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from probtx_pyro import inspection

WEIGHTS = 5e-6  # promised in single precision
LENGTH, WIDTH, HEADS, SHARED = 7, 16, 4, 2
LENGTHS = torch.tensor([7, 5, 3])
REAL = (torch.arange(LENGTH) < LENGTHS.unsqueeze(-1)).long()
SIDES = {"right": REAL, "left": REAL.flip(1)}
BATCH = len(LENGTHS)


def eager_attention_forward(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """As every file of models of Hugging Face has it."""
    key, value = (x.repeat_interleave(module.num_key_value_groups, 1) for x in (key, value))
    logits = query @ key.mT * scaling
    logits = logits if kwargs.get("softcap") is None else kwargs["softcap"] * (logits / kwargs["softcap"]).tanh()
    weights = (logits if attention_mask is None else logits + attention_mask).softmax(-1)
    return F.dropout(weights, dropout, module.training) @ value, weights


def sdpa_attention_forward(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """As Hugging Face calls the fused kernel: the heads of a single query that share keys are laid out as queries."""
    groups, (batch, heads, length, _) = module.num_key_value_groups, query.shape
    if length == 1 and groups > 1:
        query = query.reshape(batch, heads // groups, groups, -1)
    else:
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    causal = module.is_causal and length > 1 and attention_mask is None
    answer = F.scaled_dot_product_attention(query, key, value, attention_mask, is_causal=causal, scale=scaling)
    return answer.reshape(batch, heads, length, -1), None


class SelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.is_causal, self.options = config, config.causal, {}
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.width = WIDTH // config.num_attention_heads
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k, self.v = (nn.Linear(WIDTH, config.num_key_value_heads * self.width) for _ in range(2))

    def split(self, x):
        return x.unflatten(-1, (-1, self.width)).transpose(1, 2)

    def forward(self, hidden_states, key_value_states=None, attention_mask=None, cache=None):
        source = hidden_states if key_value_states is None else key_value_states
        q, k, v = self.split(self.q(hidden_states)), self.split(self.k(source)), self.split(self.v(source))
        if cache is not None:
            cache[self] = (
                [torch.cat([x, y], 2) for x, y in zip(cache[self], (k, v), strict=True)] if self in cache else [k, v]
            )
            k, v = cache[self]
        attend = eager_attention_forward if self.config.how == "eager" else sdpa_attention_forward
        answer, self.weights = attend(self, q, k, v, attention_mask, scaling=self.width**-0.5, **self.options)
        return answer.transpose(1, 2).flatten(-2)


class Model(nn.Module):
    """Takes ``attention_mask`` (B, L), 0 where a token is padding, and hides those tokens as ``hides`` says."""

    def __init__(self, how="sdpa", hides="float", causal=False, shared=SHARED, num_layers=2):
        super().__init__()
        self.config = SimpleNamespace(how=how, causal=causal, num_attention_heads=HEADS, num_key_value_heads=shared)
        self.hides, self.embedding = hides, nn.Embedding(30, WIDTH)
        self.layers = nn.ModuleList(SelfAttention(self.config) for _ in range(num_layers))
        self.float().eval()
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.4)

    def mask(self, attention_mask, length, like):
        units = length if attention_mask is None else attention_mask.shape[-1]
        allowed = torch.ones(length, units, dtype=torch.bool)
        if self.config.causal:
            allowed = allowed.tril(units - length)
        if attention_mask is not None:
            allowed = allowed & attention_mask.bool()[:, None, None]
            allowed = allowed if self.config.causal else allowed[:, :, :1]
        if self.hides == "boolean" and self.config.how == "sdpa":
            return allowed
        lowest = -math.inf if self.hides == "infinite" else torch.finfo(like.dtype).min
        return torch.zeros(allowed.shape, dtype=like.dtype).masked_fill(~allowed, lowest)

    def forward(self, input_ids, attention_mask=None, cache=None):
        x = self.embedding(input_ids)
        mask = None
        if attention_mask is not None or (self.config.causal and (self.config.how == "eager" or self.hides != "no")):
            mask = self.mask(attention_mask, x.shape[1], x)
        for layer in self.layers:
            x = x + layer(x, attention_mask=mask, cache=cache)
        return x


IDS = torch.randint(30, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))


def own(model, *given):
    """The weights of every layer, as it writes them out itself."""
    how, model.config.how = model.config.how, "eager"
    with torch.no_grad():
        model(*given)
    model.config.how = how
    return [layer.weights for layer in model.layers]


@pytest.mark.pairs
@pytest.mark.parametrize("texts", [1, BATCH])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("hides", ["float", "boolean", "infinite"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_padding_is_no_query(how, causal, hides, side, texts):
    if hides == "infinite" and causal and side == "left":
        pytest.skip("the model itself answers such a query by NaN")
    model, real = Model(how, hides, causal), SIDES[side][-texts:]
    found = inspection.capture(model, IDS[-texts:], attention_mask=real)
    assert list(found) == ["layers.0", "layers.1"]
    for one, weights in zip(found.values(), own(model, IDS[-texts:], real), strict=True):
        assert torch.equal(one.present, real.bool().unsqueeze(1).expand(-1, HEADS, -1))
        assert (one.attention() - weights)[one.present].abs().max() < WEIGHTS
        assert not (one.attention() * (real == 0)[:, None, None])[one.present].any()


@pytest.mark.parametrize("form", [torch.Tensor.long, torch.Tensor.bool, torch.Tensor.float, torch.Tensor.int])
def test_forms_of_a_mask_say_the_same_by_name_and_by_position(form):
    model = Model()
    first, second = inspection.capture(model, IDS, form(REAL)), inspection.capture(model, IDS, attention_mask=REAL)
    assert all(torch.equal(first[name].present, second[name].present) for name in first)


class Generating(nn.Module):
    """One token after another, with a cache of keys; the mask grows by the token."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, attention_mask):
        cache, every = {}, ids
        for _ in range(3):
            x = self.model(ids, attention_mask, cache)
            ids = (x[:, -1:].sum(-1).abs() * 10).long() % 30
            every = torch.cat([every, ids], 1)
            attention_mask = torch.cat([attention_mask, torch.ones_like(ids)], 1)
        self.text, self.told = every[:, :-1], attention_mask[:, :-1]


@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("hides", ["float", "boolean"])
def test_queries_are_the_last_of_the_tokens(hides, how):
    """Each call with a cache of keys, whose heads share keys, gives the last rows of the whole text's attention."""
    model = Model(how, hides, causal=True)
    generating = Generating(model)
    found = inspection.capture(generating, IDS, SIDES["left"])
    assert len(found) == 6 and found["model.layers.1 (call 3)"].attention().shape == (BATCH, HEADS, 1, LENGTH + 2)
    whole = own(model, generating.text, generating.told)
    for i, weights in enumerate(whole):
        for call, length in ((1, LENGTH), (2, LENGTH + 1), (3, LENGTH + 2)):
            one = found[f"model.layers.{i}" + (f" (call {call})" if call > 1 else "")]
            expected = SIDES["left"].bool() if call == 1 else torch.ones(BATCH, 1, dtype=torch.bool)
            assert torch.equal(one.present, expected.unsqueeze(1).expand(-1, HEADS, -1))
            last = weights[:, :, length - one.queries.shape[-2] : length, :length]
            assert (one.attention() - last)[one.present].abs().max() < WEIGHTS


class StaticCache(nn.Module):
    """Writes keys into one buffer, of which the later part is free."""

    def __init__(self):
        super().__init__()
        self.keys = nn.Buffer(torch.zeros(BATCH, 1, LENGTH + 2, WIDTH, dtype=torch.float32))

    def forward(self, x, attention_mask):
        for start, stop in ((0, LENGTH), (LENGTH, LENGTH + 1)):
            self.keys[:, 0, start:stop] = x[:, start:stop]
            mask = F.pad(attention_mask[:, :stop].bool(), (0, LENGTH + 2 - stop))[:, None, None]
            F.scaled_dot_product_attention(x[:, None, start:stop], self.keys, self.keys, mask)


def test_keys_of_a_cache_that_is_written_to_stay_as_they_were():
    x = torch.randn(BATCH, LENGTH + 1, WIDTH, dtype=torch.float32)
    told = torch.cat([SIDES["left"], torch.ones(BATCH, 1)], 1)
    first, second = inspection.capture(StaticCache(), x, told, padded=told[:, :LENGTH] == 0).values()
    assert not first.keys[:, :, LENGTH:].any() and second.keys[:, :, LENGTH].any()
    assert torch.equal(first.present[:, 0], told[:, :LENGTH].bool()) and bool(second.present.all())
    first, second = inspection.capture(StaticCache(), x, told).values()  # of which the first call knows a part
    assert bool(first.present.all()) and bool(second.present.all())


def test_padding_that_goes_by_another_name():
    class Renamed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = SelfAttention(Model().config)

        def forward(self, x, hidden):
            return self.layer(x, attention_mask=torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)[:, None, None])

    model, x = Renamed(), torch.randn(BATCH, LENGTH, WIDTH)
    assert bool(inspection.capture(model, x, REAL == 0)["layer"].present.all())
    found = inspection.capture(model, x, REAL == 0, padded=REAL == 0)["layer"]
    assert torch.equal(found.present[:, 0], REAL.bool())


class Translator(nn.Module):
    """An encoder and a decoder of its own; ``decoder_attention_mask`` is that of the target."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Model(), Model(causal=True, hides="no", num_layers=1)
        self.crossed = SelfAttention(self.encoder.config)

    def forward(self, source, target, attention_mask=None, decoder_attention_mask=None):
        memory = self.encoder(source, attention_mask=attention_mask)
        x = self.decoder(target, attention_mask=decoder_attention_mask)
        mask = self.encoder.mask(attention_mask, source.shape[1], memory)
        return self.crossed(x, key_value_states=memory, attention_mask=mask)


def test_a_mask_is_of_the_tokens_of_its_own_module():
    """A decoder that is told nothing of its tokens has no padding, though the source is as long."""
    model, only = Translator().float(), ["encoder*", "decoder*"]
    found = inspection.capture(model, IDS, IDS, REAL, layers=only)
    assert [int(one.present[:, 0].sum()) for one in found.values()] == [15, 15, 21]
    found = inspection.capture(model, IDS, IDS, REAL, SIDES["left"], layers=only)
    assert torch.equal(found["decoder.layers.0"].present[:, 0], SIDES["left"].bool())
    shorter = inspection.capture(model, IDS, IDS[:, :4], REAL)  # other lengths: whose mask it is needs no asking
    assert bool(shorter["crossed"].present.all()) and shorter["crossed"].attention().shape == (BATCH, HEADS, 4, LENGTH)
    with pytest.raises(ValueError, match=r"of the queries of crossed or of its keys; give padded="):
        inspection.capture(model, IDS, IDS, REAL)
    assert bool(inspection.capture(model, IDS, IDS, REAL, padded=REAL == 0)["crossed"].present.sum() == 15 * HEADS)


class Deaf(Model):
    """Takes a mask that it does not apply."""

    def mask(self, attention_mask, length, like):
        return None


SQUARE = torch.randint(30, (LENGTH, LENGTH))
FUTURE = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


def test_a_mask_of_pairs_of_tokens_says_nothing_of_padding():
    class Direct(SelfAttention):
        def forward(self, x, attention_mask):
            return super().forward(x, attention_mask=attention_mask)

    layer, x = Direct(Model().config), torch.randn(LENGTH, LENGTH, WIDTH)
    for batch in (2, LENGTH):
        for mask in (FUTURE, torch.zeros(LENGTH, LENGTH).masked_fill(~FUTURE, -math.inf)):
            (found,) = inspection.capture(layer, x[:batch], mask).values()
            assert bool(found.present.all())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: inspection.capture(Deaf(), IDS, REAL), r"attention_mask \(3, 7\) marks padding that layers.0 attends to: .* give padded="),
        (lambda: inspection.capture(Model(), IDS, 0 * REAL), "attention_mask .* marks padding everywhere; mark tokens that count by 1"),
        (lambda: inspection.capture(Model(), IDS, padded=REAL[:, 2:] == 0), r"padded \(3, 5\) marks padding but fits no layer, as layers.0 with \(3, 4, 7\) queries"),
        (lambda: inspection.capture(Model(), IDS, padded=REAL), r"padded must be boolean \(B, L\), not torch.int64 \(3, 7\)"),
        (lambda: inspection.capture(Model(), IDS, layers="layer.*"), r"layers: no layer that attends matches 'layer\.\*'; there are layers.0, layers.1"),
        (lambda: inspection.capture(Model(num_layers=6), IDS, layers=["layers.0", "x"]), r"'x'; there are layers.0, .*, layers.4, \.\.\."),
        (lambda: inspection.capture(nn.Linear(2, 2), torch.zeros(1, 2), layers="x"), "module computed no attention that is known"),
    ],
)  # fmt: skip
def test_errors_say_in_one_line_what_to_do(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_same_padding_told_to_a_model_that_does_not_apply_it():
    (first, _) = inspection.capture(Deaf(), IDS, REAL, padded=REAL == 0).values()
    assert torch.equal(first.present[:, 0], REAL.bool())


def test_layers_by_pattern():
    model = Model(num_layers=12)
    assert list(inspection.capture(model, IDS, layers="layers.1*")) == ["layers.1", "layers.10", "layers.11"]
    assert list(inspection.capture(model, IDS, layers=["layers.7", "layers.[02]"])) == [
        "layers.0",
        "layers.2",
        "layers.7",
    ]
    every = inspection.capture(model, IDS)
    assert torch.equal(inspection.capture(model, IDS, layers="layers.7")["layers.7"].keys, every["layers.7"].keys)


def explain(layer, hidden_states, key_value_states=None, attention_mask=None, cache=None):
    """Keys as they come, of fewer heads than the queries."""
    q, k, v = (layer.split(project(hidden_states)) for project in (layer.q, layer.k, layer.v))
    return {"queries": q, "keys": k, "values": v, "mask": attention_mask, "scale": layer.width**-0.5}


def test_grouped_queries_of_an_explanation():
    model = Model()
    found = inspection.capture(model, IDS, REAL, attentions={SelfAttention: explain})
    for one, weights in zip(found.values(), own(model, IDS, REAL), strict=True):
        assert one.keys.shape == one.queries.shape == one.values.shape
        assert (one.attention() - weights)[one.present].abs().max() < WEIGHTS
        assert one.present[:, 0].sum() == 15
    odd = lambda layer, *args, **given: explain(layer, *args, **given) | {"keys": torch.zeros(BATCH, 3, LENGTH, 4)}  # noqa: E731
    message = r"layers.0 has grouped queries, but 4 heads of them are no multiple of 3 heads of keys or values; give 4"
    with pytest.raises(ValueError, match=message):
        inspection.capture(model, IDS, attentions={SelfAttention: odd})


def test_eager_attention_that_is_more_than_a_softmax_is_refused():
    model = Model("eager")
    assert len(inspection.capture(model.train(), IDS)) == 2
    model.eval().layers[1].options["softcap"] = 2.0
    with pytest.raises(ValueError, match=r"layers.1, a SelfAttention, attends by more than softmax"):
        inspection.capture(model, IDS)
    assert list(inspection.capture(model, IDS, layers="layers.0")) == ["layers.0"]
    assert eager_attention_forward.__doc__ and eager_attention_forward is globals()["eager_attention_forward"]


class Switchable(nn.Module):
    """Writes its attention out where it is to return it, out of sight, as Bert does in transformers 4.57."""

    def set_attn_implementation(self, how):
        pass

    def forward(self, x, output_attentions=False):
        q = x.unsqueeze(1)
        return (q @ q.mT).softmax(-1) @ q if output_attentions else F.scaled_dot_product_attention(q, q, q)


def test_the_cause_of_attention_that_is_written_out_is_named():
    model, x = Switchable(), torch.randn(1, 3, 4)
    assert len(inspection.capture(model, x)) == 1
    with pytest.raises(ValueError, match="output_attentions=True makes the module write its attention out; leave it"):
        inspection.capture(model, x, output_attentions=True)


@pytest.mark.parametrize(
    ("fused", "repair"), [(True, "set_attn_implementation"), (False, "by attentions= or use captured")]
)
def test_a_model_is_sent_to_fused_attention_only_if_it_has_one(fused, repair):
    model = Switchable()
    model._supports_sdpa, model.forward = fused, lambda x: (x @ x.mT).softmax(-1) @ x
    with pytest.raises(ValueError, match=repair):
        inspection.capture(model, torch.randn(1, 3, 4))


@pytest.mark.pairs
@pytest.mark.parametrize("texts", [1, BATCH])
@pytest.mark.parametrize("masks", ["no", "boolean", "float"])
@pytest.mark.parametrize("causal", [False, True])
def test_masks_have_an_axis_for_each_leading_one(causal, masks, texts):
    model = Model(hides=masks, causal=causal)
    given = None if masks == "no" else SIDES["left"][-texts:]
    for one in inspection.capture(model, IDS[-texts:], attention_mask=given).values():
        assert one.mask.dim() == 4 and one.mask.shape[1] == 1 and one.mask.shape[0] in (1, texts)
        part = inspection.captured(one.queries[:1, 2], one.keys[:1, 2], None, one.mask[:1, 0], dims=("batch",))
        assert (part.attention() - one.attention()[:1, 2]).abs().max() < WEIGHTS


def test_what_layers_share_is_kept_once_and_in_its_own_precision():
    model = Model(causal=True, num_layers=3)
    for given in (None, REAL):
        found = list(inspection.capture(model, IDS, attention_mask=given).values())
        assert len({one.mask.data_ptr() for one in found}) == 1
        assert all(vars(x)[name].dtype == torch.float32 for one in found for x, name in ((one, "queries"), (one.units, "keys"), (one.units, "values")))  # fmt: skip
        assert all(
            x.dtype == torch.float64 for one in found for x in (one.queries, one.keys, one.values, one.attention())
        )
        assert "written" not in vars(found[0])
        stacked = inspection.stack_layers(dict(enumerate(found)))
        assert stacked.mask.shape[:3] == (1, 1 if given is None else BATCH, 1)
        assert (stacked.attention()[2] - found[2].attention()).abs().max() < WEIGHTS
