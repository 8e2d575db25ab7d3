from functools import partial

import pytest
import torch
from tolerances import assert_equal
from torch.nn import functional as F

from probtx_pyro import nn
from probtx_pyro.nn.tasks import mean_word, root_label

WIDTH = 8


def transformer(attention=nn.SoftmaxAttention, **options):
    return nn.TransformerEncoder(WIDTH, context=7, num_heads=2, num_layers=2, attention=attention, **options)


def crf(**options):
    return nn.DependencyCRFEncoder(WIDTH, 2, num_steps=2, distances=(2,), **options)


ENCODERS = {
    **{name: (partial(transformer, layer), mean_word) for name, layer in nn.ATTENTIONS.items()},
    "MGK with half the heads": (partial(transformer, nn.GaussianKeysAttention, head_dim=3), mean_word),
    "offsets in MLK": (partial(transformer, nn.LinearKeysAttention, max_offset=2), mean_word),
    "crf": (crf, mean_word),
    "crf with a root": (partial(crf, root_labels=WIDTH), root_label),
}


@pytest.fixture(params=ENCODERS)
def encoder(request):
    torch.manual_seed(0)
    return ENCODERS[request.param][0]()


@pytest.fixture(params=ENCODERS)
def models(request):
    """A tagger and a classifier with the encoder."""
    torch.manual_seed(0)
    make, summary = ENCODERS[request.param]
    return nn.WordTagger(10, make(), WIDTH, num_tags=(3, 4)), nn.TextClassifier(10, make(), WIDTH, 5, summary=summary)


@pytest.mark.parametrize("gradients", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("max_offset", [None, 2], ids=["positions", "offsets"])
def test_the_transformer_layer_by_hand(max_offset, gradients):
    """Norm before attention and before the feed-forward layer, a last norm; positions added once, or biases to the logits."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(4, context=5, num_heads=1, num_layers=1, max_offset=max_offset).train(gradients)
    for p in encoder.parameters():
        torch.nn.init.normal_(p)
    block, x = encoder.layers[0], torch.randn(2, 4, 4)
    h = x if max_offset else x + encoder.positions[:4]
    q, k, v = F.linear(block.norm1(h), block.self_attn.in_proj_weight, block.self_attn.in_proj_bias).chunk(3, -1)
    bias = torch.zeros(4, 4)
    for i in range(4):
        for j in range(4):
            bias[i, j] = encoder.offset_bias[0, max(-2, min(2, j - i)) + 2] if max_offset else 0.0
    weights = (q @ k.mT / 2 + bias).softmax(-1)  # the root of the width, 4
    h = h + block.self_attn.out_proj(weights @ v)
    wide = F.gelu(block.linear1(block.norm2(h)))
    expected = encoder.norm(h + block.linear2(wide))
    with torch.set_grad_enabled(gradients):
        found = encoder(x)
    assert_equal(found, expected, wide, h, operations=256)  # sums of 16 terms after sums of 4, normalised twice


@pytest.mark.parametrize("gradients", [True, False], ids=["training", "evaluation"])
def test_offsets_ignore_the_place_of_a_sentence(gradients):
    """Padding before or behind it changes nothing."""
    torch.manual_seed(1)
    encoder, x = transformer(max_offset=2).train(gradients), torch.randn(1, 4, WIDTH)
    padding = torch.tensor([[True, True, False, False, False, False, True]])
    with torch.set_grad_enabled(gradients):
        alone, padded = encoder(x), encoder(F.pad(x, (0, 0, 2, 1)), padding)
    assert_equal(padded[:, 2:6], alone, operations=256)  # sums of 32 terms after sums of 8, in two layers


def rates(module):
    return [part.p for part in module.modules() if isinstance(part, torch.nn.Dropout)] + [module.self_attn.dropout]


def test_softmax_layers_are_those_of_torch():
    """The same parameters by the same names, the same rates of dropout, the same answers."""
    torch.manual_seed(0)
    ours = transformer(dropout=0.3)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, 0.3, F.gelu, batch_first=True, norm_first=True)
    theirs = torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(WIDTH), enable_nested_tensor=False)
    theirs.layers.load_state_dict(ours.layers.state_dict())
    assert [rates(layer) for layer in ours.layers] == [rates(layer) for layer in theirs.layers]
    x, padding = torch.randn(3, 5, WIDTH), torch.arange(5) >= torch.tensor([[5], [3], [4]])
    found, expected = ours.eval()(x, padding), theirs.eval()(x + ours.positions[:5], src_key_padding_mask=padding)
    assert_equal(found[~padding], expected[~padding], operations=512)  # as for padding, below


@pytest.mark.parametrize("name", nn.ATTENTIONS)
def test_layers_start_as_their_attention_does_and_not_alike(name):
    torch.manual_seed(0)
    alone = dict(nn.ATTENTIONS[name](WIDTH, 2).named_parameters())
    torch.manual_seed(0)
    first, second = transformer(nn.ATTENTIONS[name]).layers
    assert not torch.equal(first.linear1.weight, second.linear1.weight)
    for parameter, value in first.self_attn.named_parameters():
        assert parameter == "out_proj.weight" or torch.equal(value, alone[parameter])


@pytest.mark.parametrize("training", [True, False])
def test_padding_changes_nothing(models, training):
    tagger, classifier = (model.train(training) for model in models)
    words = torch.randint(10, (2, 5))
    padded = torch.cat([words, torch.randint(10, (2, 2))], 1)
    mask = torch.arange(7).expand(2, 7) >= 5
    with torch.set_grad_enabled(training):
        for with_padding, without in zip(tagger(padded, mask), tagger(words), strict=True):
            assert_equal(
                with_padding[:, :5], without, operations=512
            )  # two layers, each with two norms and 32 channels
        assert_equal(classifier(padded, mask), classifier(words), operations=512)


def test_the_mean_word_is_that_of_the_words_that_are_there():
    torch.manual_seed(0)
    h, mask = torch.randn(2, 3, WIDTH), torch.tensor([[False, True, True], [False, False, False]])
    found = mean_word(lambda x, mask: x, h, mask)
    by_hand = [[h[0, 0, a] for a in range(WIDTH)], [(h[1, 0, a] + h[1, 1, a] + h[1, 2, a]) / 3 for a in range(WIDTH)]]
    assert_equal(found, torch.tensor(by_hand), h)


def test_words_are_read_in_their_context_and_order(models):
    tagger, _ = models
    words = torch.tensor([[1, 2, 3, 4]])
    before, after = (tagger(x)[0][0, 0] for x in (words, words[:, [0, 3, 2, 1]]))
    assert (before - after).abs().max() > 1e-6  # the first word sees the others, and where they are


def test_each_column_of_tags_has_its_logits(models):
    tagger, classifier = models
    words = torch.randint(10, (2, 5))
    assert [x.shape for x in tagger(words)] == [(2, 5, 3), (2, 5, 4)] and classifier(words).shape == (2, 5)
    joint = tagger.tags(tagger.encoder(tagger.words(words)))
    assert torch.equal(torch.cat(tagger(words), -1), joint)


def test_masked_words_are_predicted_by_the_embedding(encoder):
    model = nn.MaskedLanguageModel(10, encoder, WIDTH)
    assert model.mask == 10 and model.words.weight.shape == (11, WIDTH)
    torch.nn.init.normal_(model.bias)
    words = torch.randint(11, (2, 5))
    at = torch.tensor([[True, False, False, True, False], [False, False, True, False, False]])
    logits = model(words)
    h = model.encoder(model.words(words))
    by_hand = torch.stack([model.words.weight[w] @ h[1, 2] + model.bias[w] for w in range(10)])
    assert_equal(logits[1, 2], by_hand)
    assert_equal(model(words, at=at), logits[at])


def test_error_of_bad_input_names_the_argument():
    with pytest.raises(ValueError, match=r"there are 8 words in a sentence; give at most 7 \(context\)"):
        transformer()(torch.zeros(1, 8, WIDTH))
    with pytest.raises(
        ValueError, match=r"embed_dim 8 must be positive and divisible by num_heads 3; or give head_dim"
    ):
        nn.TransformerEncoder(8, context=4, num_heads=3)
    with pytest.raises(ValueError, match=r"attention must be one of softmax, gaussian, .*, not 'warm'"):
        nn.ENCODERS["transformer"].build(8, context=4, dropout=0.0, root=False, attention="warm")
    with pytest.raises(ValueError, match=r"max_offset must be positive, not 0"):
        transformer(max_offset=0)


@pytest.mark.parametrize("head", ["tagger", "classifier"])
def test_spellings_are_added_to_the_words(head):
    """The embedding by hand; the model with a mask is the model of the shorter row."""
    torch.manual_seed(0)
    make = {
        "tagger": lambda: nn.WordTagger(5, crf(), WIDTH, num_tags=(3,), spellings=7),
        "classifier": lambda: nn.TextClassifier(5, crf(), WIDTH, 3, spellings=7),
    }[head]
    model = make().eval()
    words = torch.tensor([[[1, 0, 6], [0, 2, 2], [-1, -1, -1]]])
    found = model.embedded(words.clamp(min=0))[0]
    table, own = model.spellings.weight, model.words.weight
    assert_equal(found[0], own[1] + table[0] + table[6])
    assert_equal(found[1], own[0] + 2 * table[2])
    mask = nn.tasks.is_padding(words)
    assert mask.tolist() == [[False, False, True]] and nn.tasks.is_padding(words[..., 0]).equal(mask)
    long, short = model(words.clamp(min=0), mask), model(words[:, :2])
    for a, b in [(long, short)] if head == "classifier" else zip(long, short, strict=True):
        assert_equal(a[:, :2], b[:, :2], operations=64)
    assert nn.WordTagger(5, crf(), WIDTH, num_tags=(3,)).spellings is None
