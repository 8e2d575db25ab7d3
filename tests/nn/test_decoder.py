"""The decoder: what it reads, and that token by token with kept units it says what it says in one pass."""

import pytest
import torch
from strategies import generator
from tolerances import assert_equal
from torch import nn as torch_nn

from probtx_pyro import nn

KINDS = {
    **{name: (name, {}) for name in nn.ATTENTIONS},
    "one Gaussian key": ("gaussian", {"linked": False}),
    "metric, shift, background": ("gaussian", {"metric": "full", "shift": True, "background": "learned"}),
    "most probable answer": ("gaussian", {"map_steps": 2}),
    "shifted keys": ("gaussian-keys", {"share": "shift", "head_dim": 3}),
    "hard keys": ("gaussian-keys", {"assignment": "hard"}),
    "extra units": ("softmax", {"add_bias_kv": True, "add_zero_attn": True}),
    "shifted linear keys": ("linear-keys", {"share": "shift"}),
    "memory with gates": ("regression-memory", {"update": "discount", "gates": True}),
    "retrieval": ("hopfield", {"num_steps": 3, "transformation": "entmax15", "beta": 0.7, "learn_beta": True}),
}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def made(kind, layers=2):
    name, options = kind
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.EncoderDecoder(
            11, 9, width=8, num_heads=2, num_layers=layers, attention=nn.ATTENTIONS[name], **options
        )
        for weight in model.parameters():  # biases and strengths that start at 0 would hide what they do
            torch_nn.init.normal_(weight, std=0.3)
    return model.eval()


def sentences():
    """Tokens of three sources, the last two with padding, of their padding, and of three targets."""
    source = torch.randint(11, (3, 6), generator=generator(1))
    padding = torch.arange(6) >= torch.tensor([[6], [4], [1]])
    return source, padding, torch.randint(11, (3, 7), generator=generator(2))


@kinds
@torch.no_grad()
def test_token_by_token_is_all_at_once(kind):
    model, (source, padding, target) = made(kind), sentences()
    whole, cache, found = model(source, target, padding), model.remember(source, padding), []
    for tokens in target.T:
        logits, cache = model.step(tokens, cache)
        found.append(logits)
    assert cache.length == 7 and whole.std() > 0.1
    # four blocks of four layers each: sixteen times the operations of one
    assert_equal(torch.stack(found, 1), whole, operations=16 * 64)


@kinds
@torch.no_grad()
def test_padding_and_later_words_do_not_change_the_output(kind):
    model, (source, padding, target) = made(kind), sentences()
    whole = model(source, target, padding)
    assert_equal(model(source.masked_fill(padding, 5), target, padding), whole, operations=16 * 64)
    for row, length in enumerate((6, 4, 1)):
        alone = model(source[row : row + 1, :length], target[row : row + 1, :3])
        assert_equal(alone[0], whole[row, :3], operations=16 * 64)
    changed = target.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % 11
    assert_equal(model(source, changed, padding)[:, :4], whole[:, :4], operations=16 * 64)
    assert (model(source, changed, padding)[:, 4:] - whole[:, 4:]).abs().max() > 0.01
    other = model((source + 1) % 11, target, padding)
    assert (other - whole).abs().amax(
        (1, 2)
    ).min() > 1e-4  # every target reads its source; rounding is a thousandth of it


@pytest.mark.parametrize("name", nn.ATTENTIONS)
def test_every_parameter_learns(name):
    model, (source, padding, target) = made(KINDS[name]), sentences()
    model(source, target, padding).square().sum().backward()
    assert all(parameter.grad.abs().max() > 1e-9 for parameter in model.parameters())


@torch.no_grad()
def test_rows_of_a_cache_go_on_like_rows():
    model, (source, padding, target) = made(KINDS["metric, shift, background"]), sentences()
    cache, index = model.remember(source, padding), torch.tensor([2, 0, 0, 1])
    for tokens in target[:, :3].T:
        _, cache = model.step(tokens, cache)
    logits, _ = model.step(target[index, 3], cache.rows(index))
    assert_equal(logits, model(source, target, padding)[index, 3], operations=16 * 64)


def test_layers_that_cannot_decode_are_refused():
    with pytest.raises(ValueError, match=r"adapt must be left out in a decoder"):
        nn.TransformerDecoder(8, 2, 1, nn.GaussianMixtureAttention, adapt=nn.Adapt())
    with pytest.raises(ValueError, match=r"attention must be a layer of probtx_pyro.nn .* not MultiheadAttention"):
        nn.TransformerDecoder(8, 2, 1, torch_nn.MultiheadAttention)
    model = made(KINDS["softmax"], layers=1)
    for source, target in ((10, 3), (3, 10), (0, 3), (3, 0)):
        with pytest.raises(ValueError, match=r"there are (10|0) tokens in a row; give between 1 and 9 \(context\)"):
            model(torch.zeros(1, source, dtype=torch.long), torch.zeros(1, target, dtype=torch.long))
