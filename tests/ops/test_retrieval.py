"""Pooling and conjugates of dot products against the explicit matrix, masked, causal, dropped, and in chunks."""

import pytest
import torch
from strategies import generator
from tolerances import assert_equal

from probtx_pyro.ops._retrieval import POOLING, iterate
from probtx_pyro.ops.entmax import ENTMAX

Q, N, D, M = 7, 9, 3, 2


def problem(rows):
    g = generator(rows)
    states, patterns, values = (torch.randn(2, n, w, generator=g) for n, w in ((Q, D), (N, D), (N, M)))
    log_prior = torch.randn(2, rows, N, generator=g) if rows else None
    if rows:
        log_prior[torch.rand(log_prior.shape, generator=g) < 0.3] = -torch.inf
    if rows > 1:
        log_prior[0, 3] = -torch.inf  # nobody to attend to
    return states, patterns, values, log_prior


@pytest.mark.pairs
@pytest.mark.parametrize("name", POOLING)
@pytest.mark.parametrize("rows", [0, 1, Q])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chunk", [2**19, 2 * N, N])
def test_pooling_equals_the_explicit_matrix(name, rows, causal, chunk, monkeypatch):
    monkeypatch.setattr("probtx_pyro.ops._chunks.CHUNK_ELEMENTS", chunk)
    states, patterns, values, log_prior = problem(rows)
    scores = states @ patterns.mT + (0.0 if log_prior is None else log_prior)
    if causal:
        scores = scores.masked_fill(torch.arange(N) > torch.arange(Q).unsqueeze(-1), -torch.inf)
    expected = ENTMAX[name].function(scores) @ values
    assert_equal(POOLING[name].pool(states, patterns, values, log_prior, causal=causal), expected)
    assert (expected[(scores == -torch.inf).all(-1)] == 0).all()
    if not causal and rows < Q:
        assert_equal(POOLING[name].conjugate(states, patterns, log_prior), ENTMAX[name].conjugate(scores))


# one of the sparse maps is in the slow run
FEWER = [pytest.param(name, marks=pytest.mark.slow) if name == "sparsemax" else name for name in POOLING]


@pytest.mark.parametrize("name", FEWER)
@pytest.mark.slow
def test_gradients_in_chunks(name, monkeypatch):
    monkeypatch.setattr("probtx_pyro.ops._chunks.CHUNK_ELEMENTS", 2 * N)
    inputs = [x.requires_grad_() for x in problem(0)[:3]]
    assert torch.autograd.gradcheck(POOLING[name].pool, inputs)
    assert torch.autograd.gradcheck(POOLING[name].conjugate, inputs[:2])


@pytest.mark.slow
@pytest.mark.parametrize("name", FEWER)
def test_dropout_keeps_the_mean(name):
    states, patterns, values, _ = problem(0)
    torch.manual_seed(0)
    draws = torch.stack([POOLING[name].pool(states, patterns, values, dropout=0.3) for _ in range(1000)])
    calm, error = POOLING[name].pool(states, patterns, values), draws.std(0) / 1000**0.5
    # 28 means: five standard errors are passed by chance once in 6e4 times
    assert (error > 0).all() and ((draws.mean(0) - calm).abs() <= 5 * error).all()


def test_iteration_with_and_without_a_trace():
    start = torch.tensor([[8.0], [1.0]])
    found = iterate(lambda x: x / 2, start, problems=(2,), num_steps=3, trace=lambda x: x.sum(-1))
    assert torch.equal(found.state["state"], start / 8)
    assert torch.equal(found.objective, torch.tensor([[8.0, 1.0], [4.0, 0.5], [2.0, 0.25], [1.0, 0.125]]))
    assert iterate(lambda x: x / 2, start, problems=(2,), num_steps=3).objective is None
