"""Models that run with formulations in the place of their attention."""

from importlib import import_module

import pytest
import torch
from strategies import generator
from torch.nn import functional as F

from probtx_pyro import data, inspection, models, nn

E, H, L, B = 12, 3, 7, 2
EXACT = 1e-5  # of outputs of order one: what 32 bits leave of products that are summed in another order


class Grouped(torch.nn.Module):
    """Attention with rotated queries and keys, one head of keys for all heads of queries, and a cache."""

    def __init__(self, repeated):
        super().__init__()
        self.repeated = repeated
        self.to_queries, self.to_units = torch.nn.Linear(E, E), torch.nn.Linear(E, 2 * E // H)

    def forward(self, x, past=None, mask=None):
        queries = self.to_queries(x).unflatten(-1, (H, -1)).transpose(1, 2)
        angle = torch.arange(x.shape[1]).view(-1, 1) * torch.tensor([1.0, 0.3])
        angle = angle.to(x)
        first, second = queries.chunk(2, -1)
        queries = torch.cat(
            [first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1
        )
        keys, values = self.to_units(x if past is None else torch.cat([past, x], 1)).unsqueeze(1).chunk(2, -1)
        if self.repeated:
            keys, values = (x.repeat_interleave(H, 1) for x in (keys, values))
        causal = past is None and mask is None
        given = {"enable_gqa": True} if not self.repeated else {}
        return (
            F.scaled_dot_product_attention(queries, keys, values, mask, is_causal=causal, **given)
            .transpose(1, 2)
            .flatten(-2)
        )


class Stack(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Grouped(**options) for _ in range(3))

    def forward(self, x, **given):
        for block in self.blocks:
            x = x + block(x, **given)
        return x


def of_torch(**options):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(E, H, 16, batch_first=True, **options)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).float().eval()


def of_ours(kind, **options):
    encoder = of_torch()
    nn.swap_attention(encoder, kind, **options)
    return encoder


def inputs():
    return torch.randn(B, L, E, generator=generator(1)).float()


PADDING = torch.tensor([[False] * L, [False] * (L - 2) + [True] * 2])
FUTURE = torch.full((L, L), -torch.inf).triu(1)
MODELS = {
    "torch": (of_torch, {}),
    "torch, padded and causal": (of_torch, {"mask": FUTURE.float(), "src_key_padding_mask": PADDING.float().masked_fill(PADDING, -torch.inf)}),
    "keys": (lambda: of_ours(nn.GaussianKeysAttention), {}),
    "unlinked, background": (lambda: of_ours(nn.GaussianMixtureAttention, linked=False, background="learned"), {"mask": FUTURE.float()}),
    "linear keys": (lambda: of_ours(nn.LinearKeysAttention), {}),
    "grouped, repeated": (lambda: Stack(repeated=True).float(), {}),
    "grouped": (lambda: Stack(repeated=False).float(), {}),
    "grouped, boolean mask": (lambda: Stack(repeated=False).float(), {"mask": torch.ones(L, L, dtype=torch.bool).tril()}),
}  # fmt: skip


@pytest.mark.parametrize("answer", [lambda one: one, lambda one: one.written], ids=["captured", "formulation"])
@pytest.mark.parametrize(("make", "given"), MODELS.values(), ids=MODELS.keys())
def test_what_was_captured_answers_as_the_layer(make, given, answer):
    model, x = make(), inputs()
    names = [n for n, m in model.named_modules() if n.endswith("self_attn") or n.startswith("blocks.")]
    with torch.no_grad():
        expected = model(x, **given)
        called = []

        def reading(one):
            called.append(one)
            return answer(one)

        with inspection.replaced(model, {"*": reading}) as same:
            found = same(x, **given)
        assert same is model and len(called) == len([n for n in names if n.count(".") < 3 and "to_" not in n])
        real = ~PADDING if "src_key_padding_mask" in given else torch.ones(B, L, dtype=torch.bool)
        torch.testing.assert_close(found[real], expected[real], atol=EXACT, rtol=0)
        torch.testing.assert_close(model(x, **given), expected, atol=0, rtol=0)  # and nothing is left behind
        assert not any("forward" in vars(layer) or "_fused" in vars(layer) for layer in model.modules())


def test_a_reading_is_what_the_next_layers_see():
    model, x = Stack(repeated=True).float(), inputs()
    with torch.no_grad(), inspection.replaced(model, {"blocks.1": lambda one: torch.zeros_like(one.queries)}):
        found = model(x)
    first = x + model.blocks[0](x)
    torch.testing.assert_close(found, first + model.blocks[2](first))


@pytest.mark.parametrize("make", [lambda: Stack(repeated=False).float(), of_torch], ids=["fused", "torch"])
def test_some_heads_only(make):
    model, x = make(), inputs()
    name = "blocks.0" if isinstance(model, Stack) else "layers.0.self_attn"
    module = model.get_submodule(name)
    asked = (x,) if isinstance(model, Stack) else (x, x, x)
    seen = []
    with torch.no_grad():
        (one,) = inspection.capture(module, *asked).values()
        own = one.attention() @ one.values
        own[:, 1] = one.values.expand(own.shape)[:, 1].mean(-2, keepdim=True)
        expected = own.transpose(1, 2).flatten(-2).float()
        with inspection.replaced(
            model,
            {name: {1: lambda one: seen.append(one) or one.values.mean(-2, keepdim=True).expand(one.queries.shape)}},
        ):
            found = module(*asked)
    found, expected = (found, expected) if isinstance(model, Stack) else (found[0], module.out_proj(expected))
    torch.testing.assert_close(found, expected, atol=EXACT, rtol=0)
    assert seen[0].dims == ("batch",) and seen[0].queries.shape == (B, L, E // H)


def test_a_formulation_answers_whatever_the_call():
    model, x = Stack(repeated=True).float(), inputs()
    fixed = models.GaussianMixture(torch.randn(5, E // H), torch.randn(5, E // H), 2.0)
    with torch.no_grad():
        (one,) = inspection.capture(model.blocks[0], x).values()
        with inspection.replaced(model, {"blocks.0": fixed}):
            found = model.blocks[0](x)
    expected = fixed.expected_outputs(one.queries).transpose(1, 2).flatten(-2)
    torch.testing.assert_close(found.double(), expected, atol=EXACT, rtol=0)


def test_a_cache_is_seen():
    model, x = Grouped(repeated=False).float(), inputs()
    with torch.no_grad():
        expected = model(x[:, -1:], past=x[:, :-1])
        with inspection.replaced(model, {"Grouped": lambda one: one}):
            found = model(x[:, -1:], past=x[:, :-1])
    torch.testing.assert_close(found, expected, atol=EXACT, rtol=0)


def test_errors_name_the_repair_and_nothing_is_left_behind():
    model, x = of_torch(), inputs()
    expected = model(x)
    with (
        pytest.raises(
            ValueError, match=r"the model has no module 'layer\.9'; its names are such as layers\.0\.self_attn"
        ),
        inspection.replaced(model, {"layer.9": lambda one: one}),
    ):
        pass
    with (
        pytest.raises(
            ValueError,
            match=r"that of layers\.0\.self_attn gave answers of shape \(2,\); the layer answers with shape \(2, 3, 7, 4\)",
        ),
        inspection.replaced(model, {"layers.0.self_attn": lambda one: torch.zeros(2)}),
    ):
        model(x)
    with (
        pytest.raises(ValueError, match=r"layers\.0\.self_attn has heads 0 to 2, not 3"),
        inspection.replaced(model, {"layers.0.self_attn": {3: lambda one: one}}),
    ):
        model(x)
    with (
        pytest.raises(ValueError, match=r"gave a float"),
        inspection.replaced(model, {"layers.0.self_attn": lambda one: 1.0}),
    ):
        model(x)
    with (
        pytest.raises(
            ValueError,
            match=r"nothing attended under 'layers\.1\.linear1'; name the layer that attends, or call model\.set_attn",
        ),
        inspection.replaced(model, {"layers.1.linear1": lambda one: one}),
    ):
        model(x)
    with pytest.raises(ZeroDivisionError), inspection.replaced(model, {"layers.1.linear1": lambda one: one}):
        raise ZeroDivisionError  # not hidden by the error of a name that was not used
    torch.testing.assert_close(model(x), expected, atol=0, rtol=0)


def bert_or_llama(name, how="sdpa"):
    transformers = pytest.importorskip("transformers")
    if how == "eager" and not hasattr(
        import_module(f"transformers.models.{name}.modeling_{name}"), "eager_attention_forward"
    ):
        pytest.skip(f"{name} of transformers {transformers.__version__} writes its attention out by itself")
    shared = {"intermediate_size": 16, "vocab_size": 30, "num_hidden_layers": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    if name == "bert":
        config = transformers.BertConfig(**shared, hidden_size=16, num_attention_heads=2)
        model = transformers.BertForMaskedLM(config).float().eval()
        model.set_attn_implementation(how)
        return model
    config = transformers.LlamaConfig(
        **shared, hidden_size=36, num_attention_heads=6, num_key_value_heads=2, bos_token_id=1, eos_token_id=2
    )
    model = transformers.LlamaForCausalLM(config).float().eval()
    model.set_attn_implementation(how)
    return model


@pytest.mark.pairs
@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_models_of_hugging_face_are_exact(name, how, side):
    model, ids = bert_or_llama(name, how), torch.randint(3, 30, (3, 7), generator=generator(2))
    real = torch.arange(7) < torch.tensor([[7], [5], [3]])
    mask = None if side is None else (real if side == "right" else real.flip(1)).long()
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits
        with inspection.replaced(model, {"*": lambda one: one.written}):
            found = model(ids, attention_mask=mask).logits
        with inspection.replaced(model, {"*": lambda one: torch.zeros_like(one.queries)}):
            other = model(ids, attention_mask=mask).logits
    counted = torch.ones(3, 7, dtype=torch.bool) if mask is None else mask.bool()
    torch.testing.assert_close(found[counted], expected[counted], atol=EXACT, rtol=0)
    assert (other[counted] - expected[counted]).abs().max() > 100 * EXACT


@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_tokens_are_generated_as_before(how):
    model, ids = bert_or_llama("llama", how), torch.randint(3, 30, (3, 7), generator=generator(2))
    with torch.no_grad():
        given = {"max_new_tokens": 4, "do_sample": False, "attention_mask": torch.ones_like(ids)}
        expected = model.generate(ids, **given)
        with inspection.replaced(model, {"model.layers.*": {h: lambda one: one for h in range(6)}}):
            assert torch.equal(model.generate(ids, **given), expected)


@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_what_later_layers_attend_with_is_captured_inside(how):
    """The block around `capture`: queries of the second layer are those of a model whose first layer answers 0."""
    model, ids = bert_or_llama("llama", how), torch.randint(3, 30, (3, 7), generator=generator(2))
    with inspection.replaced(model, {"model.layers.0.*": lambda one: torch.zeros_like(one.queries)}):
        found = inspection.capture(model, ids)
    plain = inspection.capture(model, ids)
    torch.nn.init.zeros_(model.model.layers[0].self_attn.o_proj.weight)
    expected = inspection.capture(model, ids)
    for i, name in enumerate(expected):
        torch.testing.assert_close(found[name].queries, expected[name].queries, atol=EXACT, rtol=0)
        assert (i == 0) == torch.equal(found[name].queries, plain[name].queries)


def test_attention_that_is_written_out_is_not_replaced_in_silence():
    """As some models of Hugging Face do by themselves: without a call that could answer otherwise."""
    model = of_torch()
    model.layers[0].self_attn = WrittenOut()
    repair = r'call model\.set_attn_implementation\("sdpa"\) if the model writes its attention out'
    with (
        pytest.raises(ValueError, match=f"nothing attended under 'layers.0.self_attn'; .*{repair}"),
        inspection.replaced(model, {"layers.0.self_attn": lambda one: one}),
    ):
        model.layers[0].self_attn(inputs())


class WrittenOut(torch.nn.Module):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


@pytest.mark.slow
def test_a_pretrained_model_is_exact():
    try:
        model, tokenizer = data.load_pretrained("SmolLM2-135M-Instruct")
    except ModuleNotFoundError as missing:
        pytest.skip(str(missing))
    tokens = tokenizer("The for statement is used to iterate over the elements of a sequence.", return_tensors="pt")
    with torch.no_grad():
        expected = model(**tokens).logits
        with inspection.replaced(model, {"model.layers.*": lambda one: one.written}):
            found = model(**tokens).logits
    torch.testing.assert_close(found, expected, atol=EXACT * expected.abs().max(), rtol=0)
