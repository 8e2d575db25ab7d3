"""Sinks in training: the layers by loops, scores, claims, and runs that were killed."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks import sinks
from probtx_pyro.data import load_text
from probtx_pyro.train import language_model

CONTEXT = 24


@pytest.fixture(autouse=True)
def _as_trained():
    """Models are made in single precision, as in training."""
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float64)


def model_of(name):
    return replace(sinks.settings_of(name, 0), width=8, heads=2, layers=2, context=CONTEXT).model(5).eval()


def tokens_of(number):
    return torch.randint(5, (number,), generator=torch.Generator().manual_seed(0))


def by_loops(layer, x, logit):
    """Attention (head, query, unit) of softmax beside a unit of a given logit, the last."""
    size = x.shape[0]
    found = np.zeros((2, size, size + 1))
    projected = (x @ layer.in_proj_weight.T + layer.in_proj_bias).detach().double().numpy()
    for h in range(2):
        q, k = projected[:, 4 * h : 4 * h + 4], projected[:, 8 + 4 * h : 12 + 4 * h]
        for i in range(size):
            scores = [math.exp(float(q[i] @ k[j]) / 2) for j in range(i + 1)]
            total = sum(scores) + math.exp(logit[h])
            found[h, i, : i + 1] = np.array(scores) / total
            found[h, i, size] = math.exp(logit[h]) / total
    return found


@pytest.mark.parametrize("name", list(sinks.CONTROLS))
def test_layers_are_softmax_beside_one_unit(name):
    model = model_of(name)
    x = tokens_of(CONTEXT).unsqueeze(0)
    first = model.blocks[0]
    logit = [0.0, 0.0]
    if name != "softmax plus one":
        with torch.no_grad():
            first.attention.background_log_weight.copy_(torch.tensor([1.5, -0.5]))
        logit = [1.5, -0.5]
    inside = first.attention_norm(model.tokens(x) + model.positions.weight)[0]
    wanted = by_loops(first.attention, inside, logit)
    # rounding of products over 8 channels in single precision
    np.testing.assert_allclose(model.attention_weights(x)[0, 0].numpy(), wanted, atol=2e-6)


def test_kurtosis_is_that_of_scipy():
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).double() ** 3
    assert sinks.kurtosis(x).tolist() == pytest.approx(stats.kurtosis(x.numpy(), -1, fisher=False).tolist(), rel=1e-12)


def test_scores_are_those_of_the_model(monkeypatch):
    monkeypatch.setattr(sinks, "FIRST", 16)
    model, tokens = model_of("learned sink"), tokens_of(CONTEXT * 40 + 7)
    found = sinks.scores_of(model, tokens)
    nats, count = np.sum(found["blocks"], 0)
    assert count == CONTEXT * 40
    wanted = language_model.perplexity(model, tokens, CONTEXT)
    assert math.exp(nats / count) == pytest.approx(wanted, rel=1e-6)  # single precision
    rows = tokens[: CONTEXT * 40].view(40, CONTEXT)
    attention = model.attention_weights(rows).double()
    for place, unit in (("first", 0), ("beside", CONTEXT)):
        each = [[float(np.mean([attention[m, b, h, i, unit] for b in range(40) for i in range(16, CONTEXT)])) for h in range(2)] for m in range(2)]  # fmt: skip
        assert np.allclose(found[place], each, atol=1e-12)
    assert len(found["kurtosis"]) == len(found["kurtosis of the first"]) == 2
    with torch.no_grad():  # what the last block puts out is what the last norm reads
        caught = []
        model.norm.register_forward_pre_hook(lambda _, x: caught.append(x[0]))
        model(rows)
    first = stats.kurtosis(caught[0][:, 0].double().numpy(), -1, fisher=False).mean()
    assert found["kurtosis of the first"][1] == pytest.approx(first, rel=1e-9)


def run_of(model, seed, first, perplexity):
    draw = np.random.default_rng([len(model), seed])
    nats = math.log(perplexity) * (1 + 1e-3 * draw.normal(size=8))
    return {
        "settings": json.loads(json.dumps(vars(sinks.settings_of(model, seed)))), "parameters": 9, "perplexity": perplexity + 1e-3 * seed,
        "validation": [[1600, perplexity], [2000, perplexity]], "blocks": [[float(x) * 100, 100] for x in nats],
        "first": [[first + 0.01 * draw.random(), 0.0]] * 4, "beside": [[0.0, 0.0]] * 4, "kurtosis": [3.0] * 4, "kurtosis of the first": [3.0] * 4,
    }  # fmt: skip


def test_claims_about_sinks_wait_for_sinks(tmp_path, monkeypatch):
    monkeypatch.setattr(sinks, "FOLDER", tmp_path)
    assert sinks.appear() is None

    def write(model, first, perplexity):
        for seed in sinks.SEEDS:
            sinks.file_of(model, sinks.settings_of(model, seed)).write_text(json.dumps(run_of(model, seed, first, perplexity)))  # fmt: skip

    write("softmax", 0.2, 5.0)
    write("softmax plus one", 0.05, 4.5)
    assert sinks.appear() is False and not any("mass" in line for line in sinks.verdicts_table())
    write("softmax", 0.5, 5.0)
    assert sinks.appear() is True
    lines = {line.split(" | ")[0].strip("| "): line for line in sinks.verdicts_table()[2:]}
    assert len(lines) == 9
    assert "| holds" in lines["softmax plus one, lower perplexity than softmax"]
    assert "| holds" in lines["softmax plus one, lower mass of the first token than softmax"]
    assert "the same in every seed" in lines["softmax plus one, lower kurtosis than softmax"]
    assert "not run yet" in lines["learned sink, lower kurtosis than learned temperature"]


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_and_ends_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(sinks, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(sinks, "CACHE", tmp_path / "cache")
    text = load_text("topics")
    monkeypatch.setattr(sinks, "load_text", lambda source: text)  # no download
    settings = replace(sinks.settings_of("learned sink", 0), num_steps=6, validate_every=3, width=8, heads=2, batch=2, context=24)  # fmt: skip
    whole = sinks.run("learned sink", settings)
    path = sinks.file_of("learned sink", settings)
    path.rename(tmp_path / "whole.json")
    out = sinks.CACHE / f"sinks-{path.stem}"
    sinks.train_language_model(settings, text, out, progress=False, stop_after=4)  # the checkpoint that a kill leaves
    stopped = sinks.run("learned sink", settings)
    assert not out.exists()
    assert all(stopped[x] == whole[x] for x in ("settings", "validation", "blocks", "first", "kurtosis"))
    monkeypatch.setattr(sinks, "train_language_model", None)  # what is there is read
    assert sinks.run("learned sink", settings) == stopped
