"""Trees read out of a dependency CRF whose attention is set by hand."""

import pytest
import torch

from probtx_pyro import nn
from probtx_pyro.apps import DECODERS, AttentionParser
from probtx_pyro.data import Vocabulary
from probtx_pyro.nn.tasks import TransformerEncoder, WordTagger

WORDS = Vocabulary("word", ("<unk>", "the", "cat", "sleeps"))
WANTED = {("the", "cat"): 9.0, ("cat", "sleeps"): 9.0}  # dependent, head


def made(root=False, **options):
    """One label a word; channel 0 wants the arcs of `WANTED` (and the verb at the root), channel 1 the left neighbour."""
    encoder = nn.DependencyCRFEncoder(
        4, 2, num_steps=1, mean_field={"head_temperature": 1.0}, root_labels=2 if root else 0, distances=(2,), **options
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
    parser = AttentionParser(made(nodes={"number": 3}), WORDS, "word", channel=0)
    sentences = [["the", "cat", "sleeps"], ["dog"], ["cat", "the"], ["sleeps", "cat", "the", "cat"]]
    together = parser.head_marginals(sentences, batch=3)
    for words, found in zip(sentences, together, strict=True):
        assert found.shape == (2, len(words), len(words))
        (alone,) = parser.head_marginals([words])
        torch.testing.assert_close(torch.tensor(found), torch.tensor(alone))
    assert all(len(heads) == len(words) for heads, words in zip(parser.parse(sentences), sentences, strict=True))


def test_known_heads_stay_and_are_evidence_in_the_channels_that_are_read():
    torch.manual_seed(3)
    encoder = nn.DependencyCRFEncoder(4, 2, num_steps=3, mean_field={"head_temperature": 1.0}, root_labels=2)
    model = WordTagger(len(WORDS.tokens), encoder, 4, num_tags=(2,), start=1.0)
    sentences, known = [["the", "cat", "sleeps", "the"], ["cat", "sleeps"]], [(3, None, None, None), (None, 0)]
    for channel in (None, 1):
        parser = AttentionParser(model, WORDS, "word", channel)
        free, told = parser.head_marginals(sentences), parser.head_marginals(sentences, heads=known)
        for c in range(2):
            read = channel in (None, c)
            assert (told[0][c, 0].tolist() == [0, 0, 0, 1, 0]) == read and (told[1][c, 1].tolist() == [1, 0, 0]) == read
            assert abs(told[0][c, 1:] - free[0][c, 1:]).max() > 1e-3  # labels carry it to other words and channels
        slots = torch.full((1, 2, 4), -1)
        slots[0, slice(None) if channel is None else channel, 0] = 3
        words = model.embedded(WORDS.numbers(sentences)[0][None])
        alone = encoder.crf(words).mean_field(3, heads=slots).head_marginals[0]
        torch.testing.assert_close(torch.tensor(told[0]), alone)
        found = parser.parse(sentences, known)
        assert found[0][0] == 3 and found[1][1] == 0
    nothing = [(None,) * 4, (None,) * 2]
    for plain, same in zip(
        parser.head_marginals(sentences), parser.head_marginals(sentences, heads=nothing), strict=True
    ):
        assert (plain == same).all()


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_known_head_comes_out_whatever_attention_prefers(decoder, root):
    parser = AttentionParser(made(root), WORDS, decoder, channel=0)
    sentence, free = ["the", "cat", "sleeps"], [2, 3, 0] if root or decoder != "word" else [2, 3, 2]
    assert parser.parse([sentence])[0][:2] == free[:2]
    for known in ([3, None, None], [0, None, None], [None, 1, 0], [2, 3, 0]):
        (found,) = parser.parse([sentence], [known])
        assert all(right in (None, head) for right, head in zip(known, found, strict=True))
        assert decoder == "word" or found.count(0) == 1


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (
            [[2, 1, None]],
            "sentence 1: no tree with a single root has the known heads; take another decoder",
        ),
        ([[0, 0, None]], "sentence 1: no tree with a single root has the known heads"),
        ([[1, None, None]], "sentence 1: word 1 has head 1; give another word, 0, or None"),
        ([[4, None, None]], "sentence 1: word 1 has head 4; give another word"),
        ([[2, None]], "sentence 1 has 3 words, 2 heads; give one a word, or None"),
        ([], "0 rows of heads for 1 sentences; give one a sentence"),
    ],
)
def test_known_heads_that_cannot_be_are_refused(known, said):
    with pytest.raises(ValueError, match=said):
        AttentionParser(made(True), WORDS).parse([["the", "cat", "sleeps"]], known)


def test_known_heads_whose_arcs_cross_have_no_projective_tree():
    crossing, sentence = [3, 0, None, 2], [["the", "cat", "sleeps", "the"]]
    assert AttentionParser(made(), WORDS).parse(sentence, [crossing])[0][:2] == [3, 0]
    with pytest.raises(ValueError, match="sentence 1: no projective tree has the known heads; take another decoder"):
        AttentionParser(made(), WORDS, "projective").parse(sentence, [crossing])


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"TransformerEncoder; only a DependencyCRFEncoder has heads"):
        AttentionParser(
            WordTagger(4, TransformerEncoder(4, context=5, num_heads=1, num_layers=1), 4, num_tags=(2,)), WORDS
        )
    with pytest.raises(ValueError, match=f"decoder must be one of {', '.join(DECODERS)}, not 'best'"):
        AttentionParser(made(), WORDS, "best")
    with pytest.raises(ValueError, match="channel must be from 0 to 1, not 2"):
        AttentionParser(made(), WORDS, channel=2)
