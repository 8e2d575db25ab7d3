"""Attention of models of Hugging Face, against the weights that they return themselves: small ones drawn from a
configuration, and pretrained ones where their packages are installed.
"""

import gc
from functools import cache
from pathlib import Path

import pytest
import torch

from probtx_pyro import data, inspection

transformers = pytest.importorskip("transformers")
FOUR = transformers.__version__.startswith("4.")

WEIGHTS = 5e-6  # promised in single precision
LENGTHS = torch.tensor([7, 5, 3])
REAL = (torch.arange(7) < LENGTHS.unsqueeze(-1)).long()
MASKS = {"none": None, "all": torch.ones_like(REAL), "right": REAL, "left": REAL.flip(1)}
FORMS = {"integer": torch.Tensor.long, "boolean": torch.Tensor.bool, "float": torch.Tensor.float}
IDS = torch.randint(3, 30, (3, 7), generator=torch.Generator().manual_seed(0))
SMALL = {"intermediate_size": 16, "vocab_size": 30, "num_hidden_layers": 2, "pad_token_id": 0}
BERT = {"hidden_size": 16, "num_attention_heads": 2}
LLAMA = {"hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
MODELS = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SMALL, **BERT)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, **LLAMA)),
}


def small(name, how="sdpa"):
    torch.manual_seed(0)
    model = MODELS[name]().float().eval()
    for parameter in model.parameters():  # as drawn, every row of attention is nearly uniform
        torch.nn.init.normal_(parameter, std=0.5)
    model.set_attn_implementation(how)
    return model


def own(model, **given):
    """The weights of every layer that the model returns, and its attention as it was before."""
    how = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        answer = model(**given, output_attentions=True)
    model.set_attn_implementation(how)
    return answer.attentions


def farthest(found, weights):
    """The largest error of a captured weight of a query that counts."""
    pairs = list(zip(found.values(), weights, strict=True))
    return max(float((one.attention() - w)[one.present].abs().max()) for one, w in pairs)


@pytest.mark.pairs
@pytest.mark.parametrize("texts", [1, 3])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("how", ["sdpa", "eager", "output_attentions"])
@pytest.mark.parametrize("name", MODELS)
def test_small_models_whatever_they_are_told(name, how, masks, texts):
    if FOUR and how == "output_attentions":
        pytest.skip("transformers 4: BERT writes its attention out then, which an error says; Llama warns")
    model = small(name, "eager" if how == "eager" else "sdpa")
    mask = None if MASKS[masks] is None else MASKS[masks][-texts:]
    given = {"input_ids": IDS[-texts:], "attention_mask": mask}
    found = inspection.capture(model, **given, **({how: True} if how == "output_attentions" else {}))
    assert len(found) == 2 and farthest(found, own(model, **given)) < WEIGHTS
    real = torch.ones(texts, 7, dtype=torch.bool) if mask is None else mask.bool()
    for one in found.values():
        assert torch.equal(one.present, real.unsqueeze(1).expand_as(one.present))
        assert one.mask.dim() == 4 and torch.broadcast_shapes(one.mask.shape, (texts, 1, 7, 7)) == (texts, 1, 7, 7)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_forms_of_a_mask_say_the_same(name, form):
    model = small(name)
    found = inspection.capture(model, IDS, attention_mask=FORMS[form](REAL))
    by_position = inspection.capture(model, IDS, REAL)
    for one, other in zip(found.values(), by_position.values(), strict=True):
        assert torch.equal(one.present, other.present) and torch.equal(one.mask, other.mask)


class Generating(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, **options):
        return self.model.generate(ids, max_new_tokens=3, do_sample=False, **options)


@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"num_beams": 2}], ids=str)
def test_tokens_that_are_generated_one_by_one(options, how):
    """Later calls have one query, whose mask is as long as all keys; its weights are those of the whole text at once."""
    model = small("llama", how)
    found = inspection.capture(Generating(model), IDS, attention_mask=MASKS["left"], **options)
    assert len(found) == 6
    for name, one in found.items():
        beams = options.get("num_beams", 1)
        expected = torch.ones(3, 1, 1) if "call" in name else MASKS["left"].unsqueeze(1)
        assert torch.equal(one.present, expected.bool().expand(3, 6, -1).repeat_interleave(beams, 0))
    if not options:
        with torch.no_grad():
            text = Generating(model)(IDS, attention_mask=MASKS["left"])[:, :9]
        mask = torch.cat([MASKS["left"], torch.ones(3, 2, dtype=torch.long)], 1)
        for layer, weights in enumerate(own(model, input_ids=text, attention_mask=mask)):
            last = found[f"model.model.layers.{layer}.self_attn (call 3)"]
            assert (last.attention() - weights[:, :, -1:]).abs().max() < WEIGHTS


@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_half_precision_within_its_own_rounding(name, how):
    model = small(name, how).to(torch.bfloat16)
    given = {"input_ids": IDS, "attention_mask": MASKS["left"]}
    eps = torch.finfo(torch.bfloat16).eps  # logits of some units lose so much, and weights with them
    assert farthest(inspection.capture(model, **given), own(model, **given)) < 4 * eps


@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.skipif(FOUR, reason="T5 of transformers 4 writes its attention out")
def test_a_decoder_has_tokens_of_its_own(told, how):
    """T5, with source and target of equal lengths: the mask of the source says nothing of the target."""
    options = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 30}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**options)).float().eval()
    model.set_attn_implementation(how)
    target = {"decoder_attention_mask": MASKS["left"]} if told else {}
    found = inspection.capture(model, input_ids=IDS, attention_mask=REAL, decoder_input_ids=IDS, **target)
    encoder, *decoder = (one.present[:, 0] for one in found.values())
    assert torch.equal(encoder, REAL.bool()) and len(decoder) == 2
    assert all(torch.equal(one, MASKS["left"].bool() if told else torch.ones_like(one)) for one in decoder)


def test_attention_that_is_no_softmax_of_dot_products_is_refused():
    """Gemma 2 bends its logits; the layers that do not are there by name."""
    config = transformers.Gemma2Config(**SMALL, **LLAMA, head_dim=6)
    model = transformers.Gemma2ForCausalLM(config).float().eval()
    model.set_attn_implementation("eager")  # by default in transformers 5; fused attention of 4 does not bend them
    with pytest.raises(ValueError, match=r"layers.0.self_attn, a Gemma2Attention, attends by more than softmax"):
        inspection.capture(model, IDS)
    eager = transformers.models.gemma2.modeling_gemma2.eager_attention_forward
    assert eager.__name__ == "eager_attention_forward"  # not what stood in its place
    config.attn_logit_softcapping = None
    assert len(inspection.capture(transformers.Gemma2ForCausalLM(config).float().eval(), IDS)) == 2


def test_models_in_double_precision():
    """Llama rounds its weights to single precision on the way."""
    for name in MODELS:
        model = small(name, "eager").double()
        assert farthest(inspection.capture(model, IDS), own(model, input_ids=IDS)) < WEIGHTS


# -- pretrained --------------------------------------------------------------------------------------------------------

TEXTS = [
    "A sink is a token that attention falls on when it has nothing to say.",
    "The for statement is used to iterate over the elements of a sequence, such as a string, a tuple or a list.",
    "Paris.",
]


@cache
def pretrained(name):
    try:
        model, tokenizer = data.load_pretrained(name)
    except ModuleNotFoundError as missing:
        pytest.skip(str(missing))
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # transformers 4 does not find it in the file
    return model, tokenizer


@pytest.mark.slow
@pytest.mark.parametrize("texts", [1, 3])
@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize(("name", "layers"), [("all-MiniLM-L6-v2", 6), ("SmolLM2-135M-Instruct", 30)])
def test_pretrained_models(name, layers, how, texts):
    model, tokenizer = pretrained(name)
    model.set_attn_implementation(how)
    given = tokenizer(
        TEXTS[:texts], return_tensors="pt", padding=True, padding_side="left" if layers == 30 else "right"
    )
    given = {key: given[key] for key in ("input_ids", "attention_mask")}
    found = inspection.capture(model, **given)
    assert len(found) == layers and farthest(found, own(model, **given)) < WEIGHTS
    real = given["attention_mask"].bool()
    assert all(torch.equal(one.present, real.unsqueeze(1).expand_as(one.present)) for one in found.values())


@pytest.mark.slow
def test_memory_of_a_pretrained_model():
    """Queries, keys and values of 30 layers in single precision are 0.4 GB, the model's own answer as much."""
    watched = Path("/proc/self/clear_refs")
    if not watched.exists():
        pytest.skip("the peak of a process is not known here")
    model, _ = pretrained("SmolLM2-135M-Instruct")
    model.set_attn_implementation("sdpa")
    ids = torch.randint(10, 40000, (8, 256))

    def resident(name):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1e6

    gc.collect()
    before = resident("VmRSS")
    watched.write_text("5")
    found = inspection.capture(model, ids)
    assert len(found) == 30 and resident("VmHWM") - before < 1.3
