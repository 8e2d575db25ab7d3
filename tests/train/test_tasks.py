import json
import math
import random
from dataclasses import replace

import pytest
import torch
from commands import Training

from probtx_pyro import apps, cli, nn, train
from probtx_pyro.data import Text
from probtx_pyro.train import (
    RESULTS,
    ClassifierSettings,
    Example,
    LabellingSettings,
    MaskedSettings,
    labelling,
    tagged_sentences,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*isinstance.*LeafSpec.*:FutureWarning",  # torch's own, from Lightning's import
    "ignore:.*torch.jit.*:DeprecationWarning",
)
EPS32 = torch.finfo(torch.float32).eps
OPTIONS = {
    "crf": {"num_channels": 2, "num_steps": 2, "distances": (2, 3, 4)},
    "transformer": {"num_heads": 4, "num_layers": 1},
}
FOR_ROOT = {"mean_field": {"head_temperature": 1.0}}  # soft heads: the root must be found among many words
RATES = {"crf": 2e-2, "transformer": 1e-2}
COMMON = {"width": 32, "batch": 16, "context": 16, "validate_every": 100}
LETTERS = "abcdefgh"


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


def settings_of(kind, encoder, **changes):
    return kind(encoder=encoder, options=OPTIONS[encoder], lr=RATES[encoder], **{**COMMON, **changes})


def sentences(number, seed):
    """Random letters, 3 to 8 a sentence."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 9, (number,), generator=draw).tolist()
    return [tuple(LETTERS[i] for i in torch.randint(8, (n,), generator=draw).tolist()) for n in lengths]


def shifted(words, by):
    """The word ``by`` positions before each."""
    return tuple(words[i - by] if i >= by else "none" for i in range(len(words)))


def tagged(number, seed, *shifts):
    return [
        Example(words, tuple(zip(*(shifted(words, by) for by in shifts), strict=True)))
        for words in sentences(number, seed)
    ]


def parts_of(*shifts):
    return {name: tagged(n, n, *shifts) for name, n in (("train", 400), ("dev", 60), ("test", 61))}


@pytest.mark.slow
@pytest.mark.parametrize("encoder", OPTIONS)
@pytest.mark.parametrize("shifts", [(1,), (3, 0)], ids=["the word before", "the word three before, and the word"])
def test_taggers_learn_what_the_context_tells(encoder, shifts):
    done = train.train_tagger(settings_of(LabellingSettings, encoder, num_steps=200), parts_of(*shifts), progress=False)
    assert done.results["kept"] in (100, 200) and len(done.labels) == len(shifts)
    assert done.results["accuracy"] == max(score for _, score in done.results["validation"])
    assert done.results["metrics"]["dev"]["accuracy"] == done.results["accuracy"]
    assert (
        done.results["metrics"]["test"]["accuracy"] > 0.97
        and done.results["metrics"]["test"]["sentence_accuracy"] > 0.8
    )


@pytest.mark.slow
@pytest.mark.parametrize("attention", nn.ATTENTIONS)
def test_a_transformer_of_any_attention_learns_and_is_loaded(attention, tmp_path):
    settings = settings_of(LabellingSettings, "transformer", num_steps=200)
    settings = replace(settings, options={**settings.options, "attention": attention})
    done = train.train_tagger(settings, parts_of(1), tmp_path, progress=False)
    assert done.results["metrics"]["test"]["accuracy"] > 0.97
    loaded, words = train.load_run(tmp_path), torch.tensor([[1, 2, 3, 4]])
    assert type(loaded.model.encoder.layers[0].self_attn) is nn.ATTENTIONS[attention]
    assert torch.equal(loaded.model(words)[0], done.model.eval()(words)[0])


@pytest.mark.slow
@pytest.mark.parametrize(("encoder", "summary"), [("crf", "mean"), ("crf", "root"), ("transformer", "mean")])
def test_classifiers_learn_what_one_word_tells(encoder, summary):
    parts = {
        name: [(words, "with a" if "a" in words else "without") for words in sentences(n, n)]
        for name, n in (("train", 400), ("dev", 60), ("test", 61))
    }
    settings = settings_of(ClassifierSettings, encoder, num_steps=200, summary=summary)
    if summary == "root":
        settings = replace(settings, options={**settings.options, **FOR_ROOT})
    done = train.train_classifier(settings, parts, progress=False)
    assert done.labels[0] == ("with a", "without") and set(done.results["metrics"]["dev"]) == {"accuracy"}
    assert done.results["metrics"]["test"]["accuracy"] > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("encoder", OPTIONS)
@pytest.mark.parametrize("rows", ["fixed", "sentence"])
def test_masked_words_are_found_from_their_neighbours(encoder, rows):
    """Ten letters in a circle: a hidden one is certain, given any other and where it is."""
    between = {"fixed": " ", "sentence": "\n"}[rows]
    text = between.join(" ".join("abcdefghij"[(8 * row + i) % 10] for i in range(8)) for row in range(400))
    settings = settings_of(MaskedSettings, encoder, num_steps=150, rows=rows, context=8)
    done = train.train_masked_language_model(settings, Text(text, *2 * [text[: 16 * 40]]), progress=False)
    assert done.results["losses"][0] > 1.5  # nothing is known: the entropy of ten letters is 2.3
    assert done.results["perplexity"] == done.results["validation"][-1][1] < 1.1
    # the same rows to validate and to test on have the same words hidden
    assert (
        done.results["metrics"]["test"]
        == done.results["metrics"]["validation"]
        == {"perplexity": done.results["perplexity"]}
    )


@pytest.mark.slow
def test_perplexity_is_that_of_the_model_s_own_probabilities():
    settings = settings_of(MaskedSettings, "transformer", num_steps=3, context=5, mask=0.4, batch=2)
    done = train.train_masked_language_model(settings, Text("a b c d e f g h " * 9, "b c d a f g"), progress=False)
    # two words are hidden of the row of five, one of the last row of one; which ones, only the seed knows: of all choices, one
    model, (first, last) = done.model.eval(), done.vocabulary.encode("b c d a f g").split(5)
    with torch.no_grad():
        possible = []
        for i in range(5):
            for j in range(i):
                words = first.clone()
                words[[i, j]] = model.mask
                logits = model(words[None])[0].log_softmax(-1)
                alone = model(torch.tensor([[model.mask]]))[0, 0].log_softmax(-1)[last[0]]
                possible.append(float((logits[i, first[i]] + logits[j, first[j]] + alone) / -3))
    found = torch.tensor(done.results["perplexity"]).log()
    assert min(abs(found - x) for x in possible) <= 64 * EPS32 * max(possible)


@pytest.mark.parametrize("options", [{}, {"rank": 2}, {"nodes": {"number": 2}}], ids=["full", "low rank", "nodes"])
def test_the_prior_of_potentials_is_that_of_a_training_word(options):
    parts = parts_of(1, 0)
    settings = settings_of(LabellingSettings, "crf", num_steps=1, prior_spread=0.3, width=4)
    settings = replace(settings, options={**settings.options, **options})

    def task_of(settings):
        return labelling.labelling(settings, parts, lambda logits: logits, labelling.COUNTED)

    seen = [task_of(settings), task_of(replace(settings, prior_spread=None))]
    model = seen[0].model
    with pytest.raises(
        ValueError, match="prior_spread is of potentials, which the encoder crf alone has; leave it out"
    ):
        task_of(settings_of(LabellingSettings, "transformer", prior_spread=0.3))
    values = model.encoder.potential()
    values = torch.cat(
        [
            (values.full() if options.get("rank") else values).flatten(),
            *([model.encoder.memory.flatten()] if options.get("nodes") else []),
        ]
    )
    expected = sum(-0.5 * (x / 0.3) ** 2 - math.log(0.3 * math.sqrt(2 * math.pi)) for x in values.tolist())
    words = sum(len(item.words) for item in parts["train"])
    # a sum of 768 terms of order 1 in float32
    assert float(seen[0].log_prior_density(seen[0].model).detach()) * words == pytest.approx(expected, rel=768 * EPS32)
    assert seen[1].log_prior_density(seen[1].model) == 0.0


@pytest.mark.slow
def test_training_under_narrow_priors_shrinks_the_potentials():
    settings = settings_of(LabellingSettings, "crf", num_steps=60, validate_every=60)
    size = {}
    for spread in (None, 0.02):
        done = train.train_tagger(replace(settings, prior_spread=spread), parts_of(1), progress=False)
        size[spread] = float(done.model.encoder.constrained()["ternary"].detach().square().mean().sqrt())
        assert done.results["settings"]["prior_spread"] == spread
    assert size[0.02] < 0.7 * size[None]  # they start at 32 ** -0.5 = 0.18


@pytest.mark.slow
def test_unknown_words_and_labels_of_other_parts():
    """A word outside the vocabulary is read as unknown, and a label outside it is never right."""
    training = [Example(("a", "b"), (("A",), ("B",)))] * 40
    test = [Example(("a", "zzz"), (("A",), ("new",))), Example(("a", "b"), (("new",), ("B",)))]
    settings = settings_of(LabellingSettings, "transformer", num_steps=60, validate_every=60)
    done = train.train_tagger(settings, {"train": training, "dev": training[:1], "gen": test}, progress=False)
    assert done.results["metrics"]["dev"]["accuracy"] == 1.0
    assert done.results["metrics"]["gen"] == {"accuracy": 0.5, "sentence_accuracy": 0.0}


def spelt(number, seed):
    """Words that no other part has; whether one ends in s is its tag."""
    draw = random.Random(seed)
    words = [["".join(draw.choices(LETTERS, k=9)) + draw.choice("rs") for _ in range(4)] for _ in range(number)]
    return [Example(tuple(row), tuple(("plural" if word[-1] == "s" else "singular",) for word in row)) for row in words]


@pytest.mark.slow
@pytest.mark.parametrize("encoder", OPTIONS)
def test_unknown_words_are_tagged_by_their_spelling(encoder, tmp_path):
    parts = {name: spelt(n, n) for name, n in (("train", 300), ("dev", 60), ("test", 61))}
    settings = settings_of(LabellingSettings, encoder, num_steps=100, validate_every=50)
    alone = train.train_tagger(settings, parts, progress=False).results["metrics"]["test"]["accuracy"]
    done = train.train_tagger(replace(settings, characters=256), parts, tmp_path, progress=False)
    assert done.results["unknown"]["test"] == 1.0
    assert alone < 0.65 and done.results["metrics"]["test"]["accuracy"] > 0.95  # 244 words of two tags
    loaded = train.load_run(tmp_path)
    assert loaded.vocabulary == done.vocabulary and loaded.settings.characters == 256
    sentences = [["gggggs", "hhhhhr"], ["aas"]]
    for run, labels in ((done, done.labels), (loaded, loaded.labels)):
        found = apps.tag_words(run.model, run.vocabulary, labels, sentences)
        assert [[guess.label for (guess,) in row] for row in found] == [["plural", "singular"], ["plural"]]


@pytest.mark.slow
def test_a_classifier_reads_spellings_too():
    texts = {
        name: [(row.words[:1], tag) for row in spelt(n, n) for (tag,) in row.labels[:1]]
        for name, n in (("train", 600), ("dev", 60), ("test", 61))
    }
    settings = settings_of(ClassifierSettings, "transformer", num_steps=100, characters=256)
    done = train.train_classifier(settings, texts, progress=False)
    assert done.results["metrics"]["test"]["accuracy"] > 0.95
    found = apps.classify_texts(done.model, done.vocabulary, done.labels[0], ["gggggs", "hhhhhr"])
    assert [best[0].label for best in found] == ["plural", "singular"]


@pytest.mark.slow
def test_further_metrics_choose_what_is_kept():
    calls = []

    def constant_then_less(predicted, given):
        calls.append((predicted, given))
        return 1.0 / len(calls)

    parts = parts_of(1)
    settings = settings_of(LabellingSettings, "crf", num_steps=6, validate_every=2, select="falls")
    done = train.train_tagger(settings, parts, metrics={"falls": constant_then_less}, progress=False)
    assert done.results["validation"] == [[2, 1.0], [4, 0.5], [6, pytest.approx(1 / 3)]]
    assert done.results["kept"] == 2 and done.results["falls"] == 1.0
    assert set(done.results["metrics"]["test"]) == {"accuracy", "sentence_accuracy", "falls"}
    assert calls[0][1] == [[tag for (tag,) in item.labels] for item in parts["dev"]]
    assert [len(x) for x in calls[0][0]] == [len(item.words) for item in parts["dev"]]
    shorter = train.train_tagger(replace(settings, num_steps=6, select="accuracy"), parts, stop_after=2, progress=False)
    assert calls[3][0] == calls[0][0]  # the last evaluations are of the parameters that were kept
    assert shorter.results["steps"] == 2 and "metrics" not in shorter.results


RUNS = {
    "tagger": lambda settings, **run: train.train_tagger(settings(LabellingSettings), parts_of(1, 0), **run),
    "classifier": lambda settings, **run: train.train_classifier(
        settings(ClassifierSettings),
        {name: [(words, words[0]) for words in sentences(40, i)] for i, name in enumerate(("train", "dev"))},
        **run,
    ),
    "mlm": lambda settings, **run: train.train_masked_language_model(
        settings(MaskedSettings), Text("the lazy dog jumps over the quick brown fox \n" * 40, "the dog"), **run
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("encoder", OPTIONS)
@pytest.mark.parametrize("task", RUNS)
def test_stopped_and_resumed_is_never_stopped(task, encoder, tmp_path):
    def settings(kind):
        return settings_of(kind, encoder, num_steps=12, batch=8, validate_every=3, dropout=0.2)

    whole = RUNS[task](settings, progress=False)
    RUNS[task](settings, out=tmp_path, stop_after=7, checkpoint_every=5, progress=False)
    assert json.loads((tmp_path / RESULTS).read_text())["losses"] == whole.results["losses"][:7]
    done = RUNS[task](settings, out=tmp_path, resume=True, progress=False)
    for name in ("losses", "validation", "metrics", "kept"):
        assert done.results.get(name) == whole.results.get(name)
    for a, b in zip(done.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(a, b)
    again = RUNS[task](settings, out=tmp_path, resume=True, progress=False)  # nothing is left to do
    assert again.results["losses"] == whole.results["losses"] and again.results.get("metrics") == whole.results.get(
        "metrics"
    )


def test_bad_settings_and_data_are_one_clear_error():
    for kind, change, message in (
        (LabellingSettings, {"encoder": "lstm"}, "encoder must be one of crf, transformer, not 'lstm'"),
        (LabellingSettings, {"unknown": -1.0}, "unknown must be 0 or more"),
        (LabellingSettings, {"characters": -1}, "characters must be 0 or more"),
        (ClassifierSettings, {"summary": "last"}, "summary must be one of mean, root, not 'last'"),
        (LabellingSettings, {"prior_spread": 0.0}, "prior_spread must be positive, or None"),
        (LabellingSettings, {"rarest": 0}, "rarest must be 1 or more"),
        (MaskedSettings, {"rows": "page"}, "rows must be one of fixed, sentence, not 'page'"),
        (MaskedSettings, {"mask": 1.0}, "mask must be more than 0 and less than 1"),
    ):
        with pytest.raises(ValueError, match=message):
            kind(**change)
    settings, parts = settings_of(LabellingSettings, "transformer", num_steps=2), parts_of(1)
    for change, data, message in (
        ({"select": "taste"}, parts, "select must be one of accuracy, sentence_accuracy, not 'taste'"),
        ({"batch": 1000}, parts, "the train part has 400 rows, fewer than a batch of 1000; give a smaller batch"),
        (
            {"context": 7},
            parts,
            r"in the train part, sentence 6 has 8 words, and there is room for 7 \(context\); divide it, or train with more",
        ),
        ({}, {**parts, "dev": []}, "the dev part is empty; give at least one row"),
        ({}, {**parts, "dev": parts_of(1, 0)["dev"]}, "row 1 of the dev part has not 1 columns of labels"),
        ({}, {**parts, "train": [Example((), ())]}, "row 1 of the train part has not 0 columns of labels"),
        (
            {},
            {**parts, "dev": [Example(("a", "b"), (("x",),))]},
            "sentence 1 of the dev part has tags for 1 of 2 words",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            train.train_tagger(replace(settings, **change), data, progress=False)
    with pytest.raises(ValueError, match="span is of one column of labels, and there are 2"):
        train.train_tagger(settings, parts_of(1, 0), metrics={"span": lambda predicted, given: 0.0}, progress=False)
    of_texts = settings_of(ClassifierSettings, "transformer", num_steps=2)
    texts = [(["a"], "x")] * 20
    with pytest.raises(ValueError, match="a transformer has no root; give the summary mean, or the encoder crf"):
        train.train_classifier(replace(of_texts, summary="root"), {"train": texts, "dev": texts}, progress=False)
    with pytest.raises(ValueError, match="sentence 1 of the test part has no words"):
        train.train_classifier(
            of_texts, {"train": [(["a"], "x")] * 20, "dev": [(["a"], "x")], "test": [([], "x")]}, progress=False
        )
    masked = settings_of(MaskedSettings, "transformer", num_steps=2)
    with pytest.raises(ValueError, match=r"the validation text has no words"):
        train.train_masked_language_model(masked, Text("a b\n" * 200, " "), progress=False)


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_one_clear_error(tmp_path):
    settings, parts = settings_of(LabellingSettings, "transformer", num_steps=2), parts_of(1)
    train.train_tagger(settings, parts, tmp_path, stop_after=1, progress=False)
    with pytest.raises(ValueError, match=r"run with another unknown; resume with the same"):
        train.train_tagger(replace(settings, unknown=0.5), parts, tmp_path, resume=True, progress=False)
    with pytest.raises(ValueError, match=r"run with another text; resume"):
        train.train_tagger(settings, {**parts, "train": parts["dev"]}, tmp_path, resume=True, progress=False)
    masked = settings_of(MaskedSettings, "transformer", num_steps=2)
    with pytest.raises(ValueError, match=r"run with another rows, mask; resume"):
        train.train_masked_language_model(masked, Text("a b\n" * 200, "a b"), tmp_path, resume=True, progress=False)


@pytest.mark.slow
def test_a_resumed_run_on_two_processes_is_one_process_never_stopped(tmp_path):
    """The tagger, whose answers in a validation come from all processes."""
    lines = "\n\n".join(
        "\n".join(f"{w}\t{t}" for w, (t,) in zip(*row, strict=True)) for row in tagged(700, 0, 1)
    )  # 70 to validate, more than one process answers at once
    (tmp_path / "data.tsv").write_text(lines)
    small = "--channels 2 --iterations 2 --distances 2,3 --width 16 --batch 8 --steps 40 --validate-every 10"
    words = ["tagger", "--data", str(tmp_path / "data.tsv"), *small.split()]
    assert cli.main(["train", *words, "--no-progress", "--out", str(tmp_path / "whole")]) == 0
    settings = json.loads((tmp_path / "whole" / RESULTS).read_text())["settings"]
    parts = tagged_sentences(str(tmp_path / "data.tsv")).parts
    train.train_tagger(LabellingSettings(**settings), parts, tmp_path / "two", stop_after=15, progress=False)
    resumed = Training(*words, "--out", str(tmp_path / "two"), "--resume", processes=2)
    assert resumed.finished().count("dev accuracy") == 1
    one, two = (json.loads((tmp_path / name / RESULTS).read_text()) for name in ("whole", "two"))
    assert two["machine"]["processes"] == 2 and one["machine"]["processes"] == 1
    assert one["losses"][:15] == two["losses"][:15]
    # as for the language model: rounding of eps a step, and an expansion below 100
    assert max(abs(a - b) for a, b in zip(one["losses"], two["losses"], strict=True)) <= 100 * 64 * EPS32
    assert one["validation"] == two["validation"] and one["metrics"] == two["metrics"]
