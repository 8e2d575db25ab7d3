import json
import random
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from probtx_pyro import apps, nn, train
from probtx_pyro.data import Pair, Splits, Tokenizer
from probtx_pyro.train import RESULTS, translation
from probtx_pyro.train.loop import ONE_PROCESS

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*isinstance.*LeafSpec.*:FutureWarning",  # torch's own, from Lightning's import
    "ignore:.*torch.jit.*:DeprecationWarning",
)
WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}
SMALL = train.TranslationSettings(
    num_steps=8, batch=4, width=16, heads=2, layers=1, level="word", vocabulary=20, context=8, validate_every=4, beam=2
)
EPS32 = torch.finfo(torch.float32).eps


def backwards(count, seed):
    """Sentences of one to four English numbers, and the German ones in the opposite order."""
    draw, pairs = random.Random(seed), []
    for _ in range(count):
        words = draw.choices(list(WORDS), k=draw.randint(1, 4))
        pairs.append(Pair(" ".join(words), " ".join(WORDS[word] for word in reversed(words))))
    return pairs


PAIRS = Splits(backwards(60, 0), backwards(12, 1), [*backwards(12, 2), Pair("one two", "zwo eins")])


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


def untrained(settings=SMALL, pairs=PAIRS):
    tokenizer = Tokenizer.of((text for pair in pairs.train for text in pair), settings.level, settings.vocabulary)
    rows = {
        part: translation._rows(tokenizer, items, part, settings.context) for part, items in pairs._asdict().items()
    }
    return tokenizer, rows, translation._task(settings, pairs, tokenizer, rows)


LONGER = {"regression-memory": {"options": {"gates": True}}}
# which reads a word out of a regression on all of them: without gates it takes 1200 steps


@pytest.mark.slow
@pytest.mark.parametrize("attention", nn.ATTENTIONS)
def test_learns_to_translate_backwards(attention):
    # after 400 steps a seed in three is still at a perplexity of 1.1; after 600 nine runs end between 1.003 and 1.040
    how = {"num_steps": 600, "batch": 16, "width": 32, "lr": 5e-3, "dropout": 0.0, "smoothing": 0.0}
    settings = replace(SMALL, attention=attention, **how | LONGER.get(attention, {}))
    pairs = Splits(backwards(300, 0), backwards(40, 1), backwards(40, 2))
    done = train.train_translation(settings, pairs, progress=False)
    found = done.results["metrics"]
    # a wrong word in one of the ten sentences of four words costs about ten
    assert found["test"]["perplexity"] < 1.1 and found["test"]["BLEU"] > 70 and found["dev"]["BLEU"] > 70
    assert found["test"]["signature"].startswith("nrefs:") and "version:" in found["test"]["signature"]
    assert done.results["losses"][-1] < 0.2 < 2.0 < done.results["losses"][0]
    best = apps.translate(done.model, done.vocabulary, ["five one two", "", "four"])
    assert [each.text for each in best] == ["zwei eins fünf", "", "vier"]
    assert best[1].log_probability == 0.0 and -0.5 < best[0].log_probability < 0.0


@pytest.mark.slow
def test_stopped_and_resumed_is_never_stopped_and_a_run_can_be_loaded(tmp_path):
    whole = train.train_translation(SMALL, PAIRS, progress=False)
    train.train_translation(SMALL, PAIRS, tmp_path, stop_after=5, checkpoint_every=3, progress=False)
    assert "metrics" not in json.loads((tmp_path / RESULTS).read_text())
    done = train.train_translation(SMALL, PAIRS, tmp_path, resume=True, progress=False)
    for name in ("losses", "validation", "metrics", "perplexity"):
        assert done.results[name] == whole.results[name]
    loaded = train.load_run(tmp_path)
    assert loaded.settings == SMALL and loaded.labels == () and not loaded.model.training
    assert loaded.vocabulary.tokens == done.vocabulary.tokens
    sentences = ["one two", "five"]
    assert apps.translate(loaded.model, loaded.vocabulary, sentences) == apps.translate(
        done.model, done.vocabulary, sentences
    )
    longer = train.train_translation(replace(SMALL, num_steps=12), PAIRS, tmp_path, resume=True, progress=False)
    assert longer.results["steps"] == 12 and longer.results["losses"][:8] == whole.results["losses"]
    with pytest.raises(ValueError, match="run with another smoothing; resume with the same"):
        train.train_translation(replace(SMALL, smoothing=0.2), PAIRS, tmp_path, resume=True, progress=False)
    with pytest.raises(ValueError, match="run with another text"):
        train.train_translation(replace(SMALL, num_steps=12), PAIRS._replace(dev=PAIRS.dev[1:]), tmp_path, resume=True)


@torch.no_grad()
def test_loss_and_perplexity_are_those_of_the_model_s_own_probabilities():
    _, rows, task = untrained()
    model = task.model.eval()
    (source, target), number = task.batch(3)
    index = translation.drawn_rows(rows["train"], SMALL)(3).tolist()
    smooth, plain = 0.0, 0.0
    for i in index:
        before = [1]
        for token in rows["train"].targets[i].tolist():
            log_probs = model(rows["train"].words[i][None], torch.tensor([before]))[0, -1].log_softmax(-1)
            smooth -= 0.9 * float(log_probs[token]) + 0.1 * float(log_probs.mean())
            before.append(token)
    assert number == sum(len(rows["train"].targets[i]) for i in index)
    assert abs(float(task.loss(model, source, target)) - smooth) <= 64 * EPS32 * smooth
    for source, target in zip(rows["dev"].words, rows["dev"].targets, strict=True):
        for place, token in enumerate(target.tolist()):
            before = torch.tensor([[1, *target[:place].tolist()]])
            plain -= float(model(source[None], before)[0, -1].log_softmax(-1)[token])
    expected = torch.tensor(plain / sum(map(len, rows["dev"].targets))).exp()
    assert abs(task.evaluate(model, "dev", ONE_PROCESS)["perplexity"] - expected) <= 64 * EPS32 * expected


def test_bleu_takes_every_distinct_sentence_once_with_all_its_translations(monkeypatch):
    """One of the test part's sentences has two translations; either is right."""
    task = untrained()[2]
    known = {}
    for pair in PAIRS.test:
        known[pair.source] = pair.target  # of the one with two, the last
    assert known["one two"] == "zwo eins" and len(known) < len(PAIRS.test)
    asked = []

    def perfect(model, tokens, sentences, settings, fabric):
        asked.extend(sentences)
        return [known[sentence] for sentence in sentences]

    monkeypatch.setattr(translation, "_translated", perfect)
    wrapped = torch.nn.ModuleDict({"module": task.model})
    wrapped.forward = task.model.forward
    found = task.score(wrapped, "test", ONE_PROCESS)
    assert asked == list(known) and abs(found["BLEU"] - 100) < 1e-9 and "nrefs:var" in found["signature"]


def test_bleu_is_that_of_its_definition():
    """Papineni et al. 2002 by hand: precisions 5/6, 3/5, 1/4 and 1/6 (none of three, smoothed), no brevity penalty."""
    score, signature = translation.bleu_score(["the cat sat on a mat"], [["the cat is on a mat"]])
    assert abs(score - 100 * (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25) < 1e-9
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


@torch.no_grad()
def test_processes_share_the_sentences():
    tokenizer, _, task = untrained()
    sentences = [pair.source for pair in PAIRS.dev]
    whole = translation._translated(task.model, tokenizer, sentences, SMALL, ONE_PROCESS)
    for rank in range(2):
        fabric = SimpleNamespace(
            world_size=2, global_rank=rank, to_device=lambda x: x, all_reduce=lambda x, reduce_op: x
        )
        own = translation._translated(task.model, tokenizer, sentences, SMALL, fabric)
        assert own[rank::2] == whole[rank::2] and not any(own[1 - rank :: 2])
    assert whole == [each.text for each in apps.translate(task.model, tokenizer, sentences, beam=2)]


def test_a_batch_is_a_function_of_seed_and_step():
    one, two = (untrained()[2] for _ in range(2))
    for step in (0, 7, 31):
        (source, target), _ = one.batch(step)
        (again, same), _ = two.batch(step)
        assert torch.equal(source, again) and torch.equal(target, same)


def test_bad_settings_and_pairs_are_one_clear_error(monkeypatch):
    for change, message in (
        ({"attention": "warm"}, "attention must be one of softmax"),
        ({"vocabulary": 3}, "vocabulary must be 4 or more for the level word, not 3"),
        ({"level": "char"}, "level must be one of subword, word"),
        ({"smoothing": 1.0}, "smoothing must be at least 0 and less than 1"),
        ({"beam": 0}, "beam must be 1 or more"),
        ({"length_penalty": -1.0}, "length_penalty must be 0 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(SMALL, **change)
    long = PAIRS._replace(dev=[*PAIRS.dev, Pair(" ".join(["one"] * 8), " ".join(["eins"] * 8))])
    with pytest.raises(ValueError, match=r"context must be 9 or more for pair 13 of the dev part, or drop the pair"):
        train.train_translation(SMALL, long)
    with pytest.raises(ValueError, match="the dev part has no pairs; give some"):
        train.train_translation(SMALL, PAIRS._replace(dev=[]))
    with pytest.raises(ValueError, match="adapt must be left out in a decoder"):
        train.train_translation(replace(SMALL, attention="gaussian", options={"adapt": {"steps": 1}}), PAIRS)
    tokenizer, _, task = untrained()
    with pytest.raises(ValueError, match=r"sentence 2 has 9 tokens, and there is room for 8 \(context\); divide it"):
        apps.translate(task.model, tokenizer, ["one", "one " * 9])
    with pytest.raises(ValueError, match="batch must be 1 or more"):
        apps.translate(task.model, tokenizer, ["one"], batch=0)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(ModuleNotFoundError, match=r"BLEU needs sacrebleu: pip install -e '\.\[train\]' in the folder"):
        train.train_translation(SMALL, PAIRS)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ModuleNotFoundError, match="translation needs tokenizers: pip install"):
        Tokenizer.of(["a"])
