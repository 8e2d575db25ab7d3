"""Batches of rows of unequal length: what a model is asked at once is counted, in every use of models of words."""

import random

import pytest
import torch

from probtx_pyro import apps, data, nn, train
from probtx_pyro.apps import _batches
from probtx_pyro.data import Tokenizer, Vocabulary
from probtx_pyro.train.loop import ONE_PROCESS
from probtx_pyro.train.rows import WordRows, answers

WORDS = Vocabulary("word", ("?", "a", "b", "c"))
CHANNELS, BUDGET = 3, 600
# one line of 12 words among many of one or two; all 41 together would be 41 * 12 * 12 * 3 = 17,712
LENGTHS = [1, 2] * 10 + [12] + [2, 1] * 10
SENTENCES = [["a", "b", "c"][: min(n, 3)] + ["b"] * (n - 3) for n in LENGTHS]


@pytest.fixture(autouse=True)
def _small_budget(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(_batches, "BUDGET", BUDGET)
    monkeypatch.setattr(_batches, "LONGEST", 2 * BUDGET)


def crf(**options):
    return nn.DependencyCRFEncoder(4, CHANNELS, num_steps=1, **options)


def watched(module, channels):
    """Rows and padded pairs of words, times channels, of every call of a module, counted from what it is given."""
    seen = []

    def count(_, given):
        rows, words = given[0].shape[:2]
        seen.append((rows, rows * words**2 * channels))

    module.register_forward_pre_hook(count)
    return seen


def within(seen):
    return len(seen) > 1 and all(pairs <= BUDGET or rows == 1 for rows, pairs in seen)


def test_every_row_is_in_one_batch_of_like_lengths_within_the_budget():
    draw = random.Random(0)
    for _ in range(100):
        lengths = [draw.choice([0, 1, 2, 3, 10, 40]) for _ in range(draw.randrange(60))]
        most, channels = draw.randrange(1, 20), draw.choice([1, 3, 8])
        found = _batches.batches(lengths, most, channels)
        order = [i for part in found for i in part]
        assert sorted(order) == [i for i, n in enumerate(lengths) if n]
        assert [lengths[i] for i in order] == sorted(filter(None, lengths))
        for part in found:
            assert len(part) <= most
            assert len(part) == 1 or len(part) * max(lengths[i] for i in part) ** 2 * channels <= BUDGET


def test_batches_are_full_where_there_is_room():
    assert [len(part) for part in _batches.batches([5] * 20, rows=99)] == [20]  # 500 of 600
    assert [len(part) for part in _batches.batches([5] * 50, rows=99)] == [24, 24, 2]
    with pytest.raises(ValueError, match="batch must be 1 or more, not 0"):
        _batches.batches([1], 0)


@pytest.mark.parametrize(
    ("encoder", "channels", "room"),
    [
        (lambda: crf(), CHANNELS, 20),  # 3 * 20 * 20 = 1,200
        (lambda: nn.TransformerEncoder(8, context=99, num_heads=4, num_layers=1, max_offset=2), 4, 17),
        (lambda: nn.TransformerEncoder(8, context=99, num_heads=4, num_layers=1), 1, 34),
        (lambda: nn.TransformerEncoder(8, context=9, num_heads=4, num_layers=1), 1, 9),
    ],
)
def test_a_row_that_is_too_long_is_refused_by_its_number(encoder, channels, room):
    model = nn.WordTagger(4, encoder(), 8, (2,))
    assert (_batches.channels_of(model), _batches.room_of(model)) == (channels, room)
    _batches.require_room(model, [1, room])
    with pytest.raises(
        _batches.BadRow, match=f"text 2 has {room + 1} words, and there is room for {room}.*; divide it"
    ) as error:
        _batches.require_room(model, [1, room + 1], "text")
    assert error.value.number == 2


def tag(model, sentences):
    return [[word[0].label for word in row] for row in apps.tag_words(model, WORDS, (("x", "y"),), sentences)]


def classify(model, sentences):
    return [
        [guess.label for guess in row] for row in apps.classify_texts(model, WORDS, ("x", "y"), map_text(sentences))
    ]


def map_text(sentences):
    return [" ".join(words) for words in sentences]


def fill(model, sentences):
    hidden = [[apps.HIDDEN, *words[1:]] if words else [] for words in sentences]
    return [[[guess.label for guess in best] for best in row] for row in apps.fill_masked(model, WORDS, hidden)]


def parse(model, sentences):
    return apps.AttentionParser(model, WORDS).parse(sentences)


USES = {
    "tag": (tag, lambda: nn.WordTagger(4, crf(), 4, (2,), start=2.0)),
    "classify": (classify, lambda: nn.TextClassifier(4, crf(), 4, 2, start=2.0)),
    "fill": (fill, lambda: nn.MaskedLanguageModel(4, crf(), 4, start=2.0)),
    "parse": (parse, lambda: nn.MaskedLanguageModel(4, crf(), 4, start=2.0)),
}


@pytest.mark.parametrize("use", USES)
def test_one_long_line_does_not_pad_the_short_ones(use, monkeypatch):
    ask, make = USES[use]
    model = make()
    seen = []
    field = nn.DependencyCRFEncoder.field

    def counted(self, x, *more):
        seen.append((len(x), len(x) * x.shape[1] ** 2 * CHANNELS))
        return field(self, x, *more)

    monkeypatch.setattr(nn.DependencyCRFEncoder, "field", counted)
    found = ask(model, [*SENTENCES, []])
    assert within(seen) and found.pop() == []
    assert found == [ask(model, [words])[0] for words in SENTENCES]  # in the order of the lines


@pytest.mark.parametrize("use", USES)
def test_a_line_that_there_is_no_room_for_is_refused_before_the_model_runs(use):
    ask, make = USES[use]
    model = make()
    seen = watched(model.words, CHANNELS)
    with pytest.raises(_batches.BadRow, match=r"\w+ 3 has 21 words, and there is room for 20; divide it"):
        ask(model, [["a"], [], ["b"] * 21])
    assert seen == []


def test_translations_are_within_the_budget_and_in_the_order_of_the_lines():
    tokenizer = Tokenizer.of(["a b c"], "word", size=10)
    model = nn.EncoderDecoder(len(tokenizer.tokens), 16, width=8, num_heads=2, num_layers=1)
    texts = map_text(SENTENCES)
    alone = [apps.translate(model, tokenizer, [text], beam=2)[0].text for text in texts]
    seen, remember = [], model.remember

    def counted(words, padding):
        seen.append((len(words), 2 * words.numel() * words.shape[1]))
        return remember(words, padding)

    model.remember = counted
    assert [each.text for each in apps.translate(model, tokenizer, texts, beam=2)] == alone
    assert within(seen)


def tagger():
    settings = train.LabellingSettings(options={"num_channels": CHANNELS, "num_steps": 1}, width=4)
    return train.Run(settings.model(4, (2,)), WORDS, (("x", "y"),), settings, {})


def annotated(sentences):
    return [train.Example(tuple(words), tuple(("xy"[len(word) % 2],) for word in words)) for words in sentences]


@pytest.mark.slow
def test_scores_of_a_tagger_are_within_the_budget_and_in_the_order_of_the_sentences():
    run, examples = tagger(), annotated(SENTENCES)
    alone = torch.cat([train.score_tagger(run, [example]).nats for example in examples])
    seen = watched(run.model.encoder, CHANNELS)
    together = train.score_tagger(run, examples).nats
    # the same products, in sums of another order: some dozens of roundings
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)
    assert within(seen)
    with pytest.raises(ValueError, match="sentence 2 has 21 words, and there is room for 20; divide it"):
        train.score_tagger(run, annotated([["a"], ["b"] * 21]))


@pytest.mark.slow
def test_adaptation_is_within_the_budget_and_finds_the_same_mode(monkeypatch):
    run, examples = tagger(), annotated(SENTENCES)
    seen, forward = [], nn.DependencyCRFEncoder.forward

    def counted(self, x, *more, **named):  # of the copy that is adapted, too
        seen.append((len(x), len(x) * x.shape[1] ** 2 * CHANNELS))
        return forward(self, x, *more, **named)

    monkeypatch.setattr(nn.DependencyCRFEncoder, "forward", counted)
    parts = train.adapt_tagger(run, examples, move=["tags", "ternary"], spread=0.1).results
    assert within(seen) and parts["converged"]
    monkeypatch.setattr(_batches, "BUDGET", 10**9)
    whole = train.adapt_tagger(run, examples, move=["tags", "ternary"], spread=0.1).results
    # both stop where no gradient is above 1e-2 spreads, after the same steps but for rounding
    assert abs(parts["after"] - whole["after"]) < 1e-6 * whole["after"]
    with pytest.raises(ValueError, match="sentence 1 has 21 words, and there is room for 20; divide it"):
        train.adapt_tagger(run, annotated([["b"] * 21, ["a"]]), move=["tags"], spread=1.0)


def test_validation_is_within_the_budget():
    rows = WordRows([torch.zeros(n, dtype=torch.long) for n in LENGTHS], [torch.zeros(n, 1) for n in LENGTHS])
    model = tagger().model
    seen = watched(model, CHANNELS)
    answers(model, rows, ONE_PROCESS, lambda m, words, _: m(words.clamp(min=0))[0].argmax(-1), torch.zeros(41, 12))
    assert within(seen) and sum(n for n, _ in seen) == len(LENGTHS)


@pytest.mark.parametrize(
    "begin",
    [
        lambda long: train.train_tagger(
            train.LabellingSettings(options={"num_channels": 3}, width=4, batch=1),
            {"train": annotated([["a"], long]), "dev": annotated([["a"]])},
        ),
        lambda long: train.train_classifier(
            train.ClassifierSettings(options={"num_channels": 3}, width=4, batch=1),
            {"train": [(["a"], "x"), (long, "y")], "dev": [(["a"], "x")]},
        ),
        lambda long: train.train_masked_language_model(
            train.MaskedSettings(options={"num_channels": 3}, width=4, batch=1, context=99),
            data.Text(" ".join(long), "a"),
        ),
        lambda long: train.train_translation(
            train.TranslationSettings(level="word", context=20, batch=1),
            data.Splits([data.Pair("a", "a"), data.Pair(" ".join(long), "a")], [data.Pair("a", "a")], []),
        ),
    ],
    ids=["tagger", "classifier", "mlm", "translation"],
)
def test_training_refuses_a_row_that_there_is_no_room_for_before_a_step(begin):
    with pytest.raises(ValueError, match=r"2[1-9] (words|or more)|at most 20"):
        begin(["b"] * 21)
