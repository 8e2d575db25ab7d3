"""The benchmark of tasks on words: rates that trials choose, old files that are still read, COGS by the letter, trees in attention."""

import json
import math

import numpy as np
import pytest
import torch

from benchmarks import induced_trees, task_runs, tasks
from probtx_pyro import nn
from probtx_pyro.data import Vocabulary, read_cogs
from probtx_pyro.train import cogs_tags

LINE = "Mia liked that a dog slept .\tlike . agent ( x _ 1 , Mia ) AND like . ccomp ( x _ 1 , x _ 5 ) AND dog ( x _ 4 ) AND sleep . theme ( x _ 5 , x _ 4 )\tcp"
LABELS = [
    ("1", "agent", "name", "_", "_"), ("_", "_", "verb", "_", "like"), ("_",) * 5, ("_",) * 5,
    ("1", "theme", "noun", "indefinite", "_"), ("-4", "ccomp", "verb", "_", "sleep"), ("_",) * 5,
]  # fmt: skip


def test_a_logical_form_is_right_to_the_letter_or_wrong():
    (row,) = read_cogs([LINE])
    assert cogs_tags(LABELS) == row.tags
    assert task_runs.same_form(row, LABELS)
    for i, wrong in [(0, ("-1", *LABELS[0][1:])), (4, ("1", "agent", *LABELS[4][2:])), (0, ("_",) * 5), (5, ("7", *LABELS[5][1:]))]:  # fmt: skip
        assert not task_runs.same_form(row, [*LABELS[:i], wrong, *LABELS[i + 1 :]])
    # a category that nothing in the form shows is no error of the form
    assert task_runs.same_form(row, [*LABELS[:6], ("_", "_", "noun", "_", "_")])
    with pytest.raises(ValueError, match=r"labels of \[5, 4\] columns; give 5 a word"):
        cogs_tags([LABELS[0], LABELS[1][1:]])


def test_the_best_trial_gives_the_rate_round_by_round(tmp_path, monkeypatch):
    """In the first round 0.005 is best; of the three best there, the second round likes the smallest, and looks beyond them."""
    monkeypatch.setattr(tasks, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match="run --tune first"):
        tasks.settings_of("entities", "crf", 0)
    asked = []

    def made(settings, tuning, out, resume):
        asked.append((settings.num_steps, settings.lr, settings.seed, tuning))
        out.mkdir(parents=True)
        score = math.exp(-abs(settings.lr - 5e-3)) if settings.num_steps == 10 else -abs(settings.lr - 1e-3)
        return {"settings": json.loads(json.dumps(tasks.asdict(settings))), "validation": [[1, score]], "losses": [1.0]}

    monkeypatch.setattr(tasks, "CACHE", tmp_path / "cache")
    monkeypatch.setitem(tasks.TASKS, "entities", tasks.TASKS["entities"]._replace(run=made, tuning=(10,)))
    tasks.main(["--only", "entities", "--encoder", "crf", "--tune"])
    assert asked == [(10, rate, tasks.TUNING_SEED, True) for rate in tasks.RATES]
    assert tasks.settings_of("entities", "crf", 0).lr == 5e-3 and tasks.settings_of("entities", "crf", 0).seed == 0
    monkeypatch.setitem(tasks.TASKS, "entities", tasks.TASKS["entities"]._replace(tuning=(10, 20)))
    with pytest.raises(ValueError, match=r"20-steps-rate-0\.005\.json; run --tune first"):
        tasks.settings_of("entities", "crf", 0)
    tasks.main(["--only", "entities", "--encoder", "crf", "--tune"])
    assert asked[len(tasks.RATES) :] == [(20, rate, tasks.TUNING_SEED, True) for rate in (5e-3, 2e-3, 1e-3, 5e-4)]
    assert tasks.settings_of("entities", "crf", 0).lr == 1e-3
    tasks.main(["--only", "entities", "--encoder", "crf", "--tune"])
    assert len(asked) == len(tasks.RATES) + 4  # the files are read


def test_what_more_steps_bring(tmp_path, monkeypatch):
    """Runs with other steps than the task's validate as often, and the table sets the steps of each encoder one below the other."""
    monkeypatch.setattr(tasks, "FOLDER", tmp_path)
    monkeypatch.setattr(tasks, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(tasks, "best_rate", lambda task, encoder: 0.01)

    def made(settings, tuning, out, resume):
        out.mkdir(parents=True)
        assert settings.num_steps == 20 * settings.validate_every
        test = 1e6 / settings.num_steps + 10 * settings.seed
        dev = [[20, 120.0], [80, 100.0], [90, 99.0], [100, 95.0]]
        given = json.loads(json.dumps(tasks.asdict(settings)))
        return {"settings": given, "steps": settings.num_steps, "metrics": {"test": {"perplexity": test}}, "validation": dev, "losses": [1.0], "seconds": 3.0}  # fmt: skip

    monkeypatch.setitem(tasks.TASKS, "masked sentences", tasks.TASKS["masked sentences"]._replace(run=made))
    for steps in ("10000", "5000"):
        tasks.main(["--only", "masked sentences", "--encoder", "crf", "--seeds", "0", "1", "2", "--steps", steps])
    _, _, first, second = tasks.table_of_steps("masked sentences")
    assert first == "| crf | 5,000 | 0.01 | 210.0 ± 10.0 |  | 5.0%, 5.0%, 5.0% | 3 |"
    assert second == "| crf | 10,000 | 0.01 | 110.0 ± 10.0 | -48% | 5.0%, 5.0%, 5.0% | 3 |"


def test_a_search_stops_at_the_ends_of_the_grid_and_inside_them():
    rates = first, *_, last = tasks.RATES

    def beyond(scores):
        return tasks.beyond(scores, rates)

    assert beyond({first: 1.0, 1e-3: 0.0}) is None and beyond({last: 1.0, 1e-3: 0.0}) is None
    assert beyond({5e-3: 0.0, 1e-2: 1.0, 2e-2: 0.5}) is None
    assert beyond({5e-3: 1.0, 1e-2: 0.0}) == 2e-3 and beyond({5e-3: 0.0, 1e-2: 1.0}) == 2e-2


@pytest.fixture(autouse=True)
def _encoders():
    """The benchmark adds encoders of its own to those of the package: other tests know only the latter."""
    before = dict(nn.ENCODERS)
    yield
    nn.ENCODERS.clear()
    nn.ENCODERS.update(before)


@pytest.mark.parametrize(("task", "encoder"), [("upos", "crf"), ("xpos", "relative"), ("intents", "rooted")])
def test_files_of_earlier_runs_are_read(task, encoder, monkeypatch):
    monkeypatch.setitem(tasks.TASKS, task, tasks.TASKS[task]._replace(run=None))
    assert 0.7 < tasks.figure(task, tasks.run(task, encoder, 0)) < 1.0
    changed = tasks.TASKS[task].settings | {"dropout": 0.3}
    monkeypatch.setitem(tasks.TASKS, task, tasks.TASKS[task]._replace(settings=changed))
    with pytest.raises(ValueError, match="was run with another dropout; remove it to run again"):
        tasks.run(task, encoder, 0)


@pytest.mark.parametrize("max_offset", [None, 2])
def test_attention_of_a_transformer_is_its_own(max_offset):
    """By hand: of the first layer from its weights, and of all layers that each word's attention sums to one."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(8, context=6, num_heads=2, num_layers=2, max_offset=max_offset)
    model = nn.MaskedLanguageModel(5, encoder, 8, start=1.0).eval()
    words = torch.tensor([1, 4, 0, 2])
    found = induced_trees.transformer_heads(model, words)
    assert found.shape == (4, 4, 4)
    torch.testing.assert_close(found.sum(-1), torch.ones(4, 4), rtol=0, atol=4 * torch.finfo(found.dtype).eps)
    block = encoder.layers[0]
    x = model.words.weight[words] + (0.0 if max_offset else encoder.positions[:4])
    q, k, _ = torch.nn.functional.linear(
        block.norm1(x), block.self_attn.in_proj_weight, block.self_attn.in_proj_bias
    ).chunk(3, -1)
    for head in range(2):
        logits = (
            q[:, 4 * head : 4 * head + 4] @ k[:, 4 * head : 4 * head + 4].T / 2
        )  # the root of the head's channels, 4
        if max_offset:
            place = torch.arange(4)
            logits = logits + encoder.offset_bias[head, (place - place[:, None]).clamp(-2, 2) + 2]
        # sums of 8 products of order 1
        torch.testing.assert_close(found[head], logits.softmax(-1), rtol=0, atol=64 * torch.finfo(found.dtype).eps)


def test_one_decoder_for_all_attention_and_no_word_its_own_head():
    p = np.array([[[0.9, 0.1, 0.0], [0.2, 0.1, 0.7], [0.5, 0.4, 0.1]]])
    assert induced_trees.decoded(p, "word").tolist() == [[2, 3, 1]]
    assert induced_trees.decoded(p, "tree").tolist() == [[0, 3, 1]]  # 0.7 * 0.5; other roots: 0.1 * 0.5 and 0.1 * 0.7
    model = nn.MaskedLanguageModel(3, nn.DependencyCRFEncoder(4, 2, num_steps=1), 4)
    (crf,) = induced_trees.attention_of(model, Vocabulary("word", ("?", "a", "b")), [["a", "b", "a"]])
    assert crf.shape == (2, 3, 3) and (crf.diagonal(axis1=1, axis2=2) == 0).all()
