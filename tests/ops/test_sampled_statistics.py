"""Assignments drawn from the attention: how often, what is summed, masks, chunks."""

import pytest
import torch
from strategies import generator

from probtx_pyro import models
from probtx_pyro.ops import sampled_statistics


def problem(dtype=torch.float64, queries=4, units=5):
    g = generator(0)
    log_prior = torch.tensor([0.3, 0.0, 0.4, 0.3, 0.0][:units]).log().expand(queries, units).clone()
    log_prior[1] = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0][:units]).log()
    mixture = models.GaussianMixture(
        torch.randn(units, 2, generator=g), key_precision=torch.rand(units, generator=g) + 0.5, log_prior=log_prior
    )
    return mixture.to(dtype), torch.randn(queries, 2, generator=g).to(dtype)


def test_every_unit_is_drawn_as_often_as_it_is_attended_to():
    mixture, queries = problem()
    factor, log_prior = mixture.lowered(queries)
    uniforms = torch.rand(40_000, 4, generator=generator(1))
    _, units = sampled_statistics(factor, log_prior, uniforms)
    share = torch.stack([(units == j).double().mean(0) for j in range(5)], -1)
    attention = mixture.attention(queries)
    error = (attention * (1 - attention) / 40_000).sqrt()
    # exactly equal where the attention is 0 or 1; elsewhere 4.5 standard errors, a false alarm in 150,000 for each number
    assert ((share - attention).abs() <= 4.5 * error).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sums_are_those_of_the_units_drawn(dtype):
    mixture, queries = problem(dtype)
    factor, log_prior = mixture.lowered(queries)
    weights = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=dtype)
    found, units = sampled_statistics(
        factor, log_prior, torch.rand(3, 7, 4, generator=generator(2), dtype=dtype), weights
    )
    assert units.shape == (3, 7, 4) and found.sums.shape == (3, 7, 5, 3)
    for a, b in ((0, 0), (2, 6)):
        for j in range(5):
            own = (units[a, b] == j) & (weights > 0)
            assert found.counts[a, b, j] == own.sum()
            torch.testing.assert_close(found.sums[a, b, j], factor.statistics[own].sum(0))
    torch.testing.assert_close(found.log_evidence, mixture.log_evidence(queries).expand(3, 7, 4))


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
def test_a_masked_unit_is_never_drawn_at_either_end(uniform):
    mixture, queries = problem(torch.float32)
    far = 100 * queries  # the weights of all units but one are below the smallest number
    for points in (queries, far):
        factor, log_prior = mixture.lowered(points)
        _, units = sampled_statistics(factor, log_prior, torch.full((4,), uniform))
        assert (log_prior.gather(-1, units.unsqueeze(-1)) > -torch.inf).all()


def test_a_fully_masked_row_counts_for_no_unit():
    mixture, queries = problem()
    factor, log_prior = mixture.lowered(queries)
    log_prior = log_prior.clone()
    log_prior[2] = -torch.inf
    found, units = sampled_statistics(factor, log_prior, torch.rand(4, generator=generator(3)))
    assert units[2] == 0 and found.counts.sum() == 3 and found.log_evidence[2] == -torch.inf


def test_chunks_make_no_difference(monkeypatch):
    mixture, queries = problem(queries=4)
    factor, log_prior = mixture.lowered(queries)
    uniforms = torch.rand(6, 4, generator=generator(4))
    whole, units = sampled_statistics(factor, log_prior, uniforms)
    monkeypatch.setattr("probtx_pyro.ops._chunks.CHUNK_ELEMENTS", 10)
    pieces, again = sampled_statistics(factor, log_prior, uniforms)
    assert torch.equal(units, again) and torch.equal(whole.counts, pieces.counts)
    torch.testing.assert_close(whole.sums, pieces.sums)
