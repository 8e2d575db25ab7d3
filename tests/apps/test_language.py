"""Use of models of words: what is drawn, tagged, filled in and classified, against loops over single calls."""

import numpy as np
import pytest
import torch
from pytest import approx

from probtx_pyro import apps, nn
from probtx_pyro.data import Vocabulary

WORDS = Vocabulary("word", ("?", "<eos>", "a", "cat", "sat", "the"))
SENTENCES = [["the", "cat", "sat"], ["a"], ["the", "dog", "sat", "a", "cat"], ["cat", "sat"]]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)
    with torch.no_grad():
        yield


def encoder(width=8):
    return nn.TransformerEncoder(width, context=6, num_heads=2, num_layers=1, dropout=0.5)  # dropout must be off in use


def language_model(context=4):
    model = nn.TransformerLM(len(WORDS.tokens), context, width=8, num_heads=2, num_layers=1, dropout=0.5)
    model.tokens.weight *= 20  # far from uniform
    return model


def after(model, tokens):
    """p(token | the last of those before), without the unknown one, by a call of its own."""
    model.eval()
    p = model(torch.tensor([tokens[-model.context :]]))[0, -1].softmax(-1)
    p[0] = 0
    return p / p.sum()


def test_a_temperature_of_zero_takes_the_most_probable_token_of_the_last_ones():
    model, tokens = language_model(), [5, 3]
    drawn = list(apps.generate(model, WORDS, "the cat", num_tokens=12, temperature=0))
    for _ in range(12):
        tokens.append(int(after(model, tokens).argmax()))
    assert drawn == [WORDS.tokens[token] for token in tokens[2:]]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("top_p", [1.0, 0.6])
def test_tokens_are_drawn_from_the_tempered_and_cut_probabilities(temperature, top_p):
    model, count = language_model(), 300
    firsts = [
        next(apps.generate(model, WORDS, "the", temperature=temperature, top_p=top_p, seed=i)) for i in range(count)
    ]
    p = after(model, [5]) ** (1 / temperature)
    p = (p / p.sum()).numpy()
    best, kept = np.argsort(-p), np.zeros(len(p), bool)
    kept[best[: 1 + np.searchsorted(np.cumsum(p[best]), top_p - 1e-12)]] = True
    p = p * kept / (p * kept).sum()
    share = np.array([firsts.count(token) / count for token in WORDS.tokens])
    assert not share[p == 0].any()
    assert (
        np.abs(share - p) <= 4.5 * np.sqrt(p * (1 - p) / count) + 1e-12
    ).all()  # six tokens, four cases: 1 in 6,000 by chance


class Fixed(torch.nn.Module):
    """A language model with the same probabilities after all tokens."""

    context = 4

    def __init__(self, probabilities):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.tensor(probabilities).log())

    def forward(self, tokens):
        return self.logits.repeat(*tokens.shape, 1)


def test_the_nucleus_is_the_fewest_tokens_that_have_enough():
    for seed in range(20):
        random = np.random.default_rng(seed)
        p, top_p = random.dirichlet(np.ones(5)), random.uniform(0.05, 1)
        texts = apps.generate(Fixed(np.append(0, p)), WORDS, "the", num_tokens=60, top_p=top_p, seed=seed)
        drawn, order = {WORDS.tokens.index(text) - 1 for text in texts}, np.argsort(-p)
        kept = set(order[: 1 + np.searchsorted(np.cumsum(p[order]), top_p)].tolist())  # one fewer would not do
        assert drawn <= kept and drawn >= {token for token in kept if p[token] > 0.15}  # missed once in 17,000


def test_the_same_seed_draws_the_same_and_nothing_outside_changes():
    model, state = language_model().train(), torch.get_rng_state()
    first, again, other = (list(apps.generate(model, WORDS, num_tokens=30, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other and "?" not in first and model.training
    assert torch.equal(torch.get_rng_state(), state)
    next(apps.generate(model, WORDS))
    assert model.training  # also where nobody asks for the rest


@pytest.mark.parametrize(
    ("options", "message"),
    [({"temperature": -1}, "temperature must not be negative"), ({"top_p": 0}, "top_p must be more than 0"), ({"top_p": 1.1}, "at most 1")],
)  # fmt: skip
def test_bad_options_are_refused_before_the_first_token(options, message):
    with pytest.raises(ValueError, match=message):
        apps.generate(language_model(), WORDS, "the", **options)


def test_without_an_end_of_a_line_a_prompt_is_needed():
    with pytest.raises(ValueError, match="give a prompt"):
        apps.generate(language_model(), Vocabulary("char", ("?", "a", "b", "c", "d", "e")))


@pytest.mark.parametrize("batch", [1, 3, 32])
def test_tags_are_those_of_each_sentence_alone(batch):
    model, names = nn.WordTagger(6, encoder(), 8, (2, 3), dropout=0.5), (("N", "V"), ("x", "y", "z"))
    found = apps.tag_words(model, WORDS, names, [*SENTENCES, []], batch)
    assert found.pop() == [] and model.training
    model.eval()
    for words, tagged in zip(SENTENCES, found, strict=True):
        columns = [logits[0].softmax(-1) for logits in model(WORDS.numbers([words])[0][None])]
        for place, guesses in enumerate(tagged):
            for column, guess, labels in zip(columns, guesses, names, strict=True):
                assert guess.label == labels[int(column[place].argmax())]
                assert guess.probability == approx(
                    float(column[place].max()), abs=1e-12
                )  # rounding: padding changes the order of sums
        assert len(tagged) == len(words)


@pytest.mark.parametrize("batch", [1, 32])
def test_hidden_words_are_guessed_from_the_others(batch):
    model = nn.MaskedLanguageModel(6, encoder(), 8, dropout=0.5)
    asked = [["the", "[MASK]", "sat"], ["[MASK]"], ["a", "[MASK]", "cat", "[MASK]"]]
    found = apps.fill_masked(model, WORDS, asked, top=3, batch=batch)
    model.eval()
    for words, guesses in zip(asked, found, strict=True):
        numbers = torch.tensor([[model.mask if word == "[MASK]" else WORDS.tokens.index(word) for word in words]])
        logits = model(numbers)[0, [i for i, word in enumerate(words) if word == "[MASK]"]]
        p = logits[:, 1:].softmax(-1)
        assert [[x.label for x in best] for best in guesses] == [
            [WORDS.tokens[1 + i] for i in row.argsort(descending=True)[:3]] for row in p
        ]
        assert [x.probability for best in guesses for x in best] == approx(
            p.sort(-1, descending=True).values[:, :3].flatten().tolist()
        )
    assert len(apps.fill_masked(model, WORDS, [["[MASK]"]], top=99)[0][0]) == 5  # all but the unknown word
    with pytest.raises(ValueError, match=r"sentence 2 has no \[MASK\]"):
        apps.fill_masked(model, WORDS, [["[MASK]"], ["a"]])


@pytest.mark.parametrize("batch", [1, 32])
def test_categories_are_those_of_each_text_alone(batch):
    model = nn.TextClassifier(6, encoder(), 8, 3, dropout=0.5)
    texts = ["The cat sat", "a", "THE dog, sat a cat"]
    found = apps.classify_texts(model, WORDS, ("x", "y", "z"), texts, batch)
    model.eval()
    for words, guesses in zip(
        (["the", "cat", "sat"], ["a"], ["the", "dog", ",", "sat", "a", "cat"]), found, strict=True
    ):
        p = model(WORDS.numbers([words])[0][None])[0].softmax(-1)
        order = p.argsort(descending=True).tolist()
        assert [guess.label for guess in guesses] == ["xyz"[i] for i in order]
        assert [guess.probability for guess in guesses] == approx([float(p[i]) for i in order])
    known = WORDS._replace(tokens=("?", "[MAX", "]", "2", "Cat", "9"))  # stay as they stand between spaces
    (of_expression,) = apps.classify_texts(model, known, ("x", "y", "z"), ["[MAX 2 Cat ]"], batch)
    p = model(torch.tensor([[1, 3, 4, 2]]))[0].softmax(-1)
    assert [guess.probability for guess in of_expression] == approx(p.sort(descending=True).values.tolist())
    assert [len(guesses) for guesses in apps.classify_texts(model, WORDS, ("x", "y", "z"), ["a", "  "], batch)] == [
        3,
        0,
    ]
