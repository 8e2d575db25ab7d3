"""The shipped transformer loads the same every time, its captured heads are its own, and it has learnt something."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from make_text_transformer import loss, main
from torch.nn import functional as F

from probtx_pyro import data
from probtx_pyro.data import load_text, text_transformer

TEXT = "A class definition is an executable statement."


@pytest.fixture(scope="module")
def model():
    return text_transformer.load().double()


def rounding(x, operations):
    """Float error of so many operations on numbers of this size."""
    return operations * torch.finfo(x.dtype).eps * float(x.abs().max())


def test_loading_twice_gives_the_same_weights_in_single_precision():
    first, second = (text_transformer.load() for _ in range(2))
    assert first.alphabet == second.alphabet and first.training_record == second.training_record
    for name, weight in first.state_dict().items():
        assert weight.dtype == torch.float32 and not weight.requires_grad
        assert torch.equal(weight, second.state_dict()[name])


@pytest.mark.parametrize("field", ["steps", "seed", "seconds", "training_loss", "validation_loss"])
def test_the_docstring_has_the_training_record_of_the_checkpoint(field):
    assert str(text_transformer.load().training_record[field]) in text_transformer.__doc__


def test_checkpoint_is_small():
    assert (text_transformer.files("probtx_pyro.data") / text_transformer.CHECKPOINT).stat().st_size < 300_000


def test_captured_attention_is_softmax_of_captured_queries_and_keys(model):
    heads = model.heads(TEXT)
    expected = F.scaled_dot_product_attention(heads.queries, heads.keys, heads.values, is_causal=True)
    # a sum over the channels for each score, the exponential, a sum over the positions
    slack = rounding(heads.queries @ heads.keys.transpose(-1, -2), 2 * len(TEXT))
    assert (heads.outputs - expected).abs().max() < slack * heads.values.abs().max()
    assert (heads.attention.sum(-1) - 1).abs().max() < slack
    assert not heads.attention.triu(1).any()


def test_captured_outputs_are_what_the_forward_pass_merges(model):
    merged = []
    hooks = [block.merge.register_forward_pre_hook(lambda _, args: merged.append(args[0])) for block in model.blocks]
    model(model.encode(TEXT))
    for hook in hooks:
        hook.remove()
    heads = model.heads(TEXT)
    for captured, used in zip(heads.outputs, merged, strict=True):
        assert (captured.transpose(0, 1).flatten(-2) - used).abs().max() < rounding(used, 100 * len(TEXT))


def test_a_later_character_changes_nothing_earlier(model):
    ours, other = (model(model.encode(text))[: len(TEXT) - 1] for text in (TEXT, TEXT[:-1] + "?"))
    assert (ours - other).abs().max() < rounding(ours, 100)


def test_loss_is_below_that_of_any_model_that_sees_one_character():
    text = load_text("topics").validation
    singles, pairs = Counter(text), Counter(pairwise(text))
    # the entropy of a character given the one before, fitted to this very text: no bigram model has a lower loss on it
    bigram = -sum(n * math.log(n / singles[first]) for (first, _), n in pairs.items()) / len(text)
    unigram = -sum(n * math.log(n / len(text)) for n in singles.values()) / len(text)
    model = text_transformer.load()
    assert loss(model, text) < bigram < unigram < math.log(len(model.alphabet))


def test_unknown_characters_share_one_symbol(model):
    assert model.encode("aש中").tolist() == [model.alphabet.index("a"), 0, 0]


@pytest.mark.parametrize("text", ["", "x" * (text_transformer.CONTEXT + 1)])
def test_text_that_does_not_fit_is_refused(model, text):
    with pytest.raises(ValueError, match=f"the text has {len(text)} characters"):
        model.heads(text)


def test_alphabet_without_the_unknown_character_is_refused():
    with pytest.raises(ValueError, match="unknown character"):
        text_transformer.TextTransformer("abc")


@pytest.mark.slow
def test_training_again_gives_the_same_weights_and_leaves_the_random_state():
    text = "to be or not to be, " * 50
    before = torch.get_rng_state()
    first, second = (text_transformer.train(text, num_steps=3, seed=1, batch_size=2) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert first.alphabet == (text_transformer.UNKNOWN, *sorted(set(text)))


@pytest.mark.slow
def test_the_script_writes_a_checkpoint_with_its_training_record(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data.text, "topics_text", lambda: "to be or not to be, " * 200)
    path = tmp_path / "small.npz"
    main(["--steps", "2", "--seed", "3", "--out", str(path)])
    model = text_transformer.load(path)
    assert model.training_record["steps"] == 2 and model.training_record["seed"] == 3
    assert str(model.training_record["validation_loss"]) in capsys.readouterr().out
    with np.load(path, allow_pickle=False) as stored:
        assert {stored[name].dtype for name in stored.files} == {np.dtype(t) for t in ("f2", "i4", "u1")}
