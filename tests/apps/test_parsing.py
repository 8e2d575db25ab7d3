"""Trees read out of a dependency CRF whose attention is set by hand."""

import pytest
import torch

from probtx_pyro import nn
from probtx_pyro.apps._parsing import DECODERS, AttentionParser
from probtx_pyro.data import Vocabulary
from probtx_pyro.nn.tasks import TransformerEncoder, WordTagger

WORDS = Vocabulary("word", ("<unk>", "the", "cat", "sleeps"))
WANTED = {("the", "cat"): 9.0, ("cat", "sleeps"): 9.0}  # dependent, head


def made(root=False, **options):
    """One label a word; channel 0 wants the arcs of `WANTED` (and the verb at the root), channel 1 the left neighbour."""
    encoder = nn.DependencyCRFEncoder(
        4, 2, num_steps=1, head_temperature=1.0, root_labels=2 if root else 0, distances=(2,), **options
    )
    model = WordTagger(len(WORDS.tokens), encoder, 4, num_tags=(2,))
    with torch.no_grad():
        model.words.weight.copy_(40.0 * torch.eye(4))
        encoder.ternary.zero_()
        for (word, head), score in WANTED.items():
            encoder.ternary[0, :, WORDS.tokens.index(word), WORDS.tokens.index(head)] = score
        encoder.ternary[1, 2] = 9.0
        if root:
            encoder.root_ternary.zero_()
            encoder.root_ternary[0, 3] = 9.0
    return model


@pytest.mark.parametrize("decoder", ["tree", "projective"])
@pytest.mark.parametrize("root", [False, True])
def test_heads_are_those_that_attention_prefers(decoder, root):
    parser = AttentionParser(made(root), WORDS, decoder, channel=0)
    assert parser.parse([["the", "cat", "sleeps"], ["sleeps"], ["sleeps", "the", "cat"]]) == [[2, 3, 0], [0], [0, 3, 1]]
    if root:  # without one, each of two words has but the other to choose
        assert parser.parse([["cat", "sleeps"], ["sleeps", "cat"]]) == [[2, 0], [0, 1]]


def test_channels_differ_and_average():
    sentence = ["the", "cat", "sleeps"]
    assert AttentionParser(made(True), WORDS, "word", channel=1).parse([sentence])[0][1:] == [1, 2]
    parser = AttentionParser(made(True), WORDS, "word")
    marginals = parser.head_marginals([sentence])[0]
    assert marginals.shape == (2, 3, 4)
    assert parser.parse([sentence])[0] == marginals.mean(0).argmax(-1).tolist()


def test_a_batch_is_its_sentences_and_global_nodes_are_no_heads():
    parser = AttentionParser(made(num_nodes=3), WORDS, "word", channel=0)
    sentences = [["the", "cat", "sleeps"], ["dog"], ["cat", "the"], ["sleeps", "cat", "the", "cat"]]
    together = parser.head_marginals(sentences, batch=3)
    for words, found in zip(sentences, together, strict=True):
        assert found.shape == (2, len(words), len(words))
        (alone,) = parser.head_marginals([words])
        torch.testing.assert_close(torch.tensor(found), torch.tensor(alone))
    assert all(len(heads) == len(words) for heads, words in zip(parser.parse(sentences), sentences, strict=True))


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"TransformerEncoder; only a DependencyCRFEncoder has heads"):
        AttentionParser(
            WordTagger(4, TransformerEncoder(4, context=5, num_heads=1, num_layers=1), 4, num_tags=(2,)), WORDS
        )
    with pytest.raises(ValueError, match=f"decoder must be one of {', '.join(DECODERS)}, not 'best'"):
        AttentionParser(made(), WORDS, "best")
    with pytest.raises(ValueError, match="channel must be from 0 to 1, not 2"):
        AttentionParser(made(), WORDS, channel=2)
