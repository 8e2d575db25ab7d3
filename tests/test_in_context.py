"""The in-context table: its scores on numbers known by hand, its running sums against the library's layer, a small run of it all."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from strategies import generator
from tolerances import assert_equal

from benchmarks.evidence import in_context
from benchmarks.evidence.in_context_scores import by_position, calibration_error, clustered
from benchmarks.evidence.one_step import OneStepAttention
from probtx_pyro import nn

OPTIONS = {"keys": {}, "shift": {"shift": True}}
SMALL = in_context.Size(in_context.Settings(width=8, heads=2, layers=2, context=6, batch=1), worth=(1.0,))


def layers(name):
    """The library's layer and that of running sums, with the same weights."""
    made = []
    for kind in (nn.GaussianMixtureAttention, OneStepAttention):
        layer = kind(6, 2, batch_first=True, linked=False, adapt=nn.Adapt(1, (name,)), **OPTIONS[name])
        own = generator(1)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(0.7 * torch.randn(parameter.shape, generator=own))
        made.append(layer)
    return made


@pytest.mark.parametrize("name", OPTIONS)
def test_running_sums_are_the_causal_step_of_the_library(name):
    library, fast = layers(name)
    x = torch.randn(2, 7, 6, generator=generator(2))
    found = [layer(x, x, x, need_weights=False, is_causal=True)[0] for layer in (library, fast)]
    assert_equal(found[1], found[0], operations=512)  # sums of 7 queries in another order, squares expanded
    slopes = [torch.autograd.grad(y.square().sum(), list(layer.parameters())) for y, layer in zip(found, (library, fast), strict=True)]  # fmt: skip
    for mine, theirs in zip(*reversed(slopes), strict=True):
        assert_equal(mine, theirs, operations=4096)  # the same, backwards
        assert theirs.abs().max() > 1e-9


@pytest.mark.parametrize("call", [{}, {"is_causal": True, "need_weights": True}, {"is_causal": True, "key_padding_mask": torch.tensor([[False] * 6 + [True]])}])  # fmt: skip
def test_other_calls_go_the_way_of_the_library(call):
    library, fast = layers("keys")
    x = torch.randn(1, 7, 6, generator=generator(3))
    call = {"need_weights": False} | call
    found = [layer(x, x, x, **call)[0] for layer in (library, fast)]
    assert torch.equal(*found)


def gaussian_model():
    settings = replace(SMALL.settings, **in_context.MODELS["Gaussian"])
    model = settings.model(5).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator(4)))
    return model, torch.randint(5, (3, 7), generator=generator(5))


@pytest.mark.parametrize("name", in_context.STEPS)
@torch.no_grad()
def test_a_prior_worth_countless_queries_is_no_adaptation(name):
    model, rows = gaussian_model()
    still, worth_much, worth_little = (
        in_context.scores(x, rows)["nats"]
        for x in (model, *(in_context.with_step(model, name, worth, SMALL) for worth in (1e12, 1.0)))
    )
    np.testing.assert_allclose(worth_much, still, atol=1e-9)  # 7 queries move units by 7e-12 of their distance
    assert np.abs(worth_little - still).max() > 1e-3
    back = in_context.without_step(in_context.with_step(model, name, 1.0, SMALL), name, SMALL)
    np.testing.assert_allclose(in_context.scores(back, rows)["nats"], still, atol=1e-12)


@pytest.mark.parametrize("name", in_context.STEPS)
def test_evidence_of_the_next_query_has_not_seen_it(name):
    model, rows = gaussian_model()
    model = in_context.with_step(model, name, 2.0, SMALL)
    first = in_context.reasons(model, rows[:, :2], name)  # one query: nothing came before it
    np.testing.assert_allclose(first["next"], first["before"], atol=1e-12)
    assert (first["own"] > first["before"]).all()  # the unit has come nearer
    whole = in_context.reasons(model, rows, name)
    assert {x.shape for x in whole.values()} == {(2, 2)}
    np.testing.assert_allclose(whole["worth"], 2.0, atol=1e-12)
    assert (np.abs(whole["next"] - whole["before"]) > 1e-6).all() and (whole["moved"] > 0).all()


def test_error_of_a_mean_over_blocks():
    x, block = np.array([1.0, 1, 3, 3, 8, 8]), np.array([5, 5, 2, 2, 9, 9])
    mean, error = clustered(x, block)
    assert mean == 4 and math.isclose(
        error, np.std([1, 3, 8], ddof=1) / 3**0.5
    )  # blocks of equal size: that of their means
    mean, error = clustered(np.array([0.0, 3, 3]), np.array([0, 1, 1]))
    # a ratio: residuals 0 - 2 and 6 - 4 of the sums, sqrt(2/1 (4 + 4)) / 3
    assert mean == 2 and math.isclose(error, 4 / 3)
    assert clustered(np.array([1.0, 2]), np.array([0, 0])) == (1.5, 0.0)


def test_calibration_error_by_hand():
    right = np.array([True, False, True, True])
    assert math.isclose(calibration_error(np.array([0.9, 0.9, 0.5, 0.5]), right, bins=2), 0.05)  # one bin: .75 after .7
    assert math.isclose(calibration_error(np.array([0.9, 0.9, 0.2, 0.2]), right, bins=2), (0.4 + 0.8) / 2)
    assert calibration_error(np.ones(4), ~np.ones(4, bool)) == 1
    assert by_position(np.arange(8.0).reshape(1, 8), 4).tolist() == [0.5, 2.5, 4.5, 6.5]


def test_rows_and_foreign_characters():
    rows, block = in_context.rows_of([torch.arange(7), torch.arange(3), torch.arange(10, 20)], 3, most=2)
    assert rows.tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [10, 11, 12, 13], [13, 14, 15, 16]]
    assert block.tolist() == [0, 0, 1, 1]
    assert in_context.in_alphabet("``x[1]``  y", "xy ") == (" x   y", 7)
    assert in_context.in_alphabet("xy\n", "xy\n") == ("xy\n", 0)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:.*isinstance.*LeafSpec.*:FutureWarning",  # torch's own, from Lightning's import
)
def test_a_small_run(capsys):
    from benchmarks.evidence.__main__ import main

    torch.set_default_dtype(torch.float32)
    main(["in-context", "--quick"])
    printed = capsys.readouterr().out
    assert all(f"'way': '{way}'" in printed for way in ("softmax", "Gaussian", "keys", "shift, off", "keys afterwards"))
    with pytest.raises(SystemExit, match=r"usage: .*unseen,unseen-defaults,label-shift,domain-shift,in-context"):
        main(["nothing"])
