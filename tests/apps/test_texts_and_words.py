"""A text in the place of words, and the other way round: its letters would be taken for words, silently."""

import pytest
import torch

from probtx_pyro import apps, data, nn, train

VOCABULARY = data.Vocabulary.of("the cat sat on mat", "word")
TEXT = data.Text("the cat", "the mat")
ROWS, TAGGED = [(["the", "cat"], "animal")], [(["the"], [("DET",)])]


@pytest.fixture(scope="module")
def calls():
    torch.manual_seed(0)
    width, words = 8, len(VOCABULARY.tokens)
    encoder = nn.DependencyCRFEncoder(width, 2)
    tagger = nn.WordTagger(words, encoder, width, num_tags=(2,))
    filler = nn.MaskedLanguageModel(words, encoder, width)
    classifier = nn.TextClassifier(words, encoder, width, num_categories=2)
    speaker = nn.TransformerLM(words, 8, width=width, num_heads=2, num_layers=1)
    run = train.Run(tagger, VOCABULARY, (("DET", "NOUN"),), train.LabellingSettings(), {})
    return {
        "tag_words": lambda x: apps.tag_words(tagger, VOCABULARY, [["DET", "NOUN"]], x),
        "labels": lambda x: apps.tag_words(tagger, VOCABULARY, x, [["the"]]),
        "fill_masked": lambda x: apps.fill_masked(filler, VOCABULARY, x),
        "parse": lambda x: apps.AttentionParser(filler, VOCABULARY).parse(x),
        "classify_texts": lambda x: apps.classify_texts(classifier, VOCABULARY, ["a", "b"], x),
        "generate": lambda x: list(apps.generate(speaker, VOCABULARY, x, num_tokens=2)),
        "numbers": VOCABULARY.numbers,
        "encode": VOCABULARY.encode,
        "encode_each": VOCABULARY.encode_each,
        "unknown_share": VOCABULARY.unknown_share,
        "vocabulary": lambda x: data.Vocabulary.of(x, "word"),
        "lm": lambda x: train.train_language_model(train.LanguageModelSettings(), x),
        "mlm": lambda x: train.train_masked_language_model(train.MaskedSettings(), x),
        "settings": lambda x: train.train_language_model(x, TEXT),
        "tagger": lambda x: train.train_tagger(train.LabellingSettings(), x),
        "classifier": lambda x: train.train_classifier(train.ClassifierSettings(), x),
        "run": lambda x: train.score_tagger(x, TAGGED),
        "adapt": lambda x: train.adapt_tagger(run, x, move=["words"], spread=1.0),
    }


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("tag_words", "the cat", r"sentences is a text, 'the cat'; give a list of rows, each a list of words"),
        ("tag_words", ["the cat"], r"sentences\[0\] is a text, 'the cat'; give its words, as data.tokenize does"),
        ("tag_words", [["the"], [3]], r"sentences\[1\] has 3, of the class int; give words"),
        ("labels", ["DN"], r"labels\[0\] is a text, 'DN'; give those of each column"),
        ("fill_masked", ["the [MASK]"], r"sentences\[0\] is a text"),
        ("parse", [["the"], "the cat"], r"sentences\[1\] is a text"),
        ("classify_texts", "the cat", r"texts is one text, 'the cat'; give a list, \['the cat'\]"),
        ("classify_texts", [["the", "cat"]], r"texts\[0\] is \['the', 'cat'\], of the class list; give a text"),
        ("generate", ["the"], r"of the class list; give a text"),
        ("numbers", ["the cat"], r"rows\[0\] is a text"),
        ("encode", ["the cat"], r"of the class list; give a text"),
        ("encode_each", "the cat", r"texts is one text"),
        ("unknown_share", "the cat", r"tokens is one text"),
        ("vocabulary", ["the cat"], r"of the class list; give a text"),
        ("lm", "the cat", r"text is of the class str; give data.Text\(training, validation\), or data.load_text"),
        ("lm", data.Text(b"the", b"cat"), r"text\[0\] is b'the', of the class bytes; give a text"),
        ("mlm", ["the cat"], r"text is of the class list; give data.Text"),
        ("settings", train.MaskedSettings(), r"settings is of the class MaskedSettings; give train.LanguageModelSettings"),
        ("tagger", TAGGED, r"parts is of the class list; give the rows of each part by name"),
        ("tagger", {"train": [("the cat", [("A",)] * 7)]}, r"words of parts\['train'\]\[0\] is a text, 'the cat'; give"),
        ("tagger", {"train": [(["the"], ["DET"])]}, r"parts\['train'\]\[0\].labels\[0\] is a text, 'DET'; give one for each"),
        ("classifier", ROWS, r"parts is of the class list"),
        ("classifier", {"train": ROWS, "dev": [("the cat", "x")]}, r"words of parts\['dev'\]\[0\] is a text, 'the cat'"),
        ("run", "runs/tags", r"run is of the class str; give what train_tagger, adapt_tagger or load_run returns"),
        ("adapt", [("the", [("DET",)] * 3)], r"sentences\[0\] is a text, 'the'; give its words"),
    ],
)  # fmt: skip
def test_one_in_the_place_of_the_other_is_refused_in_a_line(calls, name, given, said):
    with pytest.raises(ValueError, match=said):
        calls[name](given)


def test_rows_may_be_given_once(calls):
    rows = [["the", "cat"], []]
    expected = calls["tag_words"](rows)
    assert calls["tag_words"](iter(rows)) == expected and list(map(len, expected)) == [2, 0]
    assert [x.tolist() for x in VOCABULARY.numbers(iter(word) for word in [["cat"]])] == [[1]]


def test_long_texts_are_cut_in_what_is_said(calls):
    with pytest.raises(ValueError, match=r"sentences is a text, 'a{39}\.\.\.; give"):
        calls["tag_words"]("a" * 500)


def test_translation_reads_texts():
    pytest.importorskip("tokenizers")
    tokenizer = data.Tokenizer.of(["go away", "geh weg"], "word", size=10)
    model = nn.EncoderDecoder(len(tokenizer.tokens), 8, width=8, num_heads=2, num_layers=1)
    with pytest.raises(ValueError, match=r"sentences is one text, 'go away'"):
        apps.translate(model, tokenizer, "go away")
    with pytest.raises(ValueError, match=r"lines is one text"):
        data.Tokenizer.of("go away", "word", size=10)
    with pytest.raises(ValueError, match=r"pairs is of the class list; give data.Splits"):
        train.train_translation(train.TranslationSettings(), [data.Pair("go", "geh")])
