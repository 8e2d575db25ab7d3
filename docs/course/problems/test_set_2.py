"""Tests of problem set 2: grids, exact posteriors and sums over Python numbers are the judges."""

import math
import statistics

import torch
from set_2 import adapt_keys, calibration_ranks, gibbs_keys, predictive_attention, split_rhat

torch.set_default_dtype(torch.float64)


def random(*shape, seed=0):
    """Standard normal numbers, always the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_adapt_keys_is_the_maximum():
    """Problem 2.1: no nearby key has a larger log prior + expected log likelihood."""
    queries, prior_keys, theta, alpha = random(30, 2), random(3, 2, seed=1), 4.0, 2.0
    attention = random(30, 3, seed=2).softmax(-1)
    keys = adapt_keys(queries, attention, prior_keys, theta, alpha)

    def objective(keys):
        total = 0.0
        for k, prior in zip(keys.tolist(), prior_keys.tolist(), strict=True):
            total -= theta / 2 * sum((a - b) ** 2 for a, b in zip(k, prior, strict=True))
        for q, row in zip(queries.tolist(), attention.tolist(), strict=True):
            for k, w in zip(keys.tolist(), row, strict=True):
                total -= alpha / 2 * w * sum((a - b) ** 2 for a, b in zip(k, q, strict=True))
        return total

    best = objective(keys)
    for j in range(3):
        for step in (0.02, -0.02):
            moved = keys.clone()
            moved[j] += step
            assert objective(moved) < best, (
                f"key {j} moved by {step} is better: weigh prior and queries by their precisions"
            )


def test_adapt_keys_at_both_ends():
    """Problem 2.2: an infinite and a flat prior, and a unit without queries."""
    queries, prior_keys = random(30, 2), random(3, 2, seed=1)
    attention = torch.cat([random(30, 2, seed=2).softmax(-1), torch.zeros(30, 1)], -1)
    held = adapt_keys(queries, attention, prior_keys, 1e12, 2.0)
    assert torch.allclose(held, prior_keys, atol=1e-6), "a prior that is infinitely precise keeps the keys"
    free = adapt_keys(queries, attention, prior_keys, 0.0, 2.0)
    assert not free.isnan().any(), (
        "0 / 0: a unit that no query attends to, under a flat prior, should keep its prior key"
    )
    assert torch.allclose(free[2], prior_keys[2]), "a unit that no query attends to should keep its prior key"
    averages = (attention.T @ queries)[:2] / attention.sum(0)[:2, None]
    assert torch.allclose(free[:2], averages), "under a flat prior a key is the average of the queries it explains"


def test_gibbs_of_one_unit():
    """Problem 2.3: one unit has an exact posterior, a Normal."""
    queries, prior = 1.5 + random(12, 1) / 2**0.5, torch.zeros(1, 1)
    draws = gibbs_keys(queries, prior, 3.0, 2.0, 4000, torch.Generator().manual_seed(0))
    assert draws.shape == (4000, 1, 1), (
        f"draws should have the shape (num_draws, U, D), here (4000, 1, 1), not {tuple(draws.shape)}"
    )
    precision = 3.0 + 2.0 * 12
    mean, variance = 2.0 * float(queries.sum()) / precision, 1 / precision
    # independent draws: the standard error of the mean is sd / sqrt(4000), of the variance variance * sqrt(2 / 4000); five of each
    assert abs(float(draws.mean()) - mean) < 5 * math.sqrt(variance / 4000), (
        "the mean of a key given its queries is wrong"
    )
    spread = float(draws.var())
    assert abs(spread - variance) < 5 * variance * math.sqrt(2 / 4000), (
        f"the variance of a key should be 1 / (theta + alpha n) = {variance:.4f}; yours is {spread:.4f}"
    )


def test_gibbs_of_two_units():
    """Problem 2.3: two units on a line against a sum over a fine grid of both keys."""
    queries, prior, theta, alpha = torch.tensor([[-0.2], [0.3], [0.9], [1.4]]), torch.tensor([[0.0], [1.0]]), 2.0, 3.0
    grid = torch.linspace(-3, 4, 281)
    log_prior = -theta / 2 * ((grid[:, None] - 0.0) ** 2 + (grid[None, :] - 1.0) ** 2)
    likelihood = torch.zeros_like(log_prior)
    for q in queries.flatten().tolist():
        likelihood += torch.logaddexp(-alpha / 2 * (q - grid[:, None]) ** 2, -alpha / 2 * (q - grid[None, :]) ** 2)
    density = (log_prior + likelihood).flatten().softmax(0).view(281, 281)
    draws = gibbs_keys(queries, prior, theta, alpha, 4100, torch.Generator().manual_seed(1))[100:, :, 0]
    for j, marginal in enumerate((density.sum(1), density.sum(0))):
        mean = float((marginal * grid).sum())
        moments = {
            "mean": (draws[:, j], mean),
            "variance": ((draws[:, j] - mean) ** 2, float((marginal * (grid - mean) ** 2).sum())),
        }
        for name, (numbers, right) in moments.items():
            batches = numbers.view(-1, 100).mean(-1)  # 40 means of 100 draws, nearly independent
            off, error = float(batches.mean()) - right, float(batches.std()) / math.sqrt(len(batches))
            assert abs(off) < 5 * error, (
                f"the posterior {name} of key {j} is {right:.3f}, yours is off by {off:.3f}: are assignments DRAWN, not averaged?"
            )


def test_predictive_attention_is_bayes_rule():
    """Problem 2.4: draws that make the query likely count for more."""
    draws, query, alpha = random(50, 3, 2), random(2, seed=3), 4.0
    top, bottom, plain = [0.0] * 3, 0.0, [0.0] * 3
    for keys in draws.tolist():
        scores = [
            math.exp(-alpha / 2 * sum((a - b) ** 2 for a, b in zip(query.tolist(), k, strict=True))) for k in keys
        ]
        bottom += sum(scores)
        top = [a + b for a, b in zip(top, scores, strict=True)]
        plain = [a + b / sum(scores) / 50 for a, b in zip(plain, scores, strict=True)]
    found = predictive_attention(query, draws, alpha)
    assert not torch.allclose(found, torch.tensor(plain)), (
        "this is the plain mean of attention over the draws. The new query is evidence about the keys, too: weigh each draw by p(query | keys)"
    )
    assert torch.allclose(found, torch.tensor(top) / bottom), (
        "not p(unit, query) / p(query), each averaged over the draws"
    )


def test_predictive_attention_far_away():
    """Problem 2.4: a query at distance 500."""
    found = predictive_attention(torch.tensor([500.0, 0.0]), random(50, 3, 2), 4.0)
    assert not found.isnan().any(), "NaN far away: add in logarithms (logsumexp)"


def test_split_rhat():
    """Problem 2.5: the formula, over Python numbers."""
    draws = random(4, 100) + torch.tensor([0.0, 0.2, 0.0, -0.1])[:, None]
    halves = [part for chain in draws.tolist() for part in (chain[:50], chain[50:])]
    within = statistics.mean(statistics.variance(half) for half in halves)
    between = 50 * statistics.variance([statistics.mean(half) for half in halves])
    right = math.sqrt((49 / 50 * within + between / 50) / within)
    assert abs(float(split_rhat(draws)) - right) < 1e-9, f"R-hat of these chains is {right:.5f}"


def test_split_rhat_sees_a_drift():
    """Problem 2.5: chains that agree with each other and are still on their way."""
    drift = random(4, 200) + torch.linspace(0, 5, 200)
    assert split_rhat(drift) > 1.3, "all chains drift alike, and your R-hat is content: cut every chain into two halves"


def test_split_rhat_cannot_see_a_missed_mode():
    """Problem 2.5: four chains in the same wrong place look perfect. Your text should say why."""
    assert split_rhat(random(4, 1000) + 50.0) < 1.01


def test_calibration_ranks():
    """Problem 2.6."""
    truths, draws = random(200, seed=4), random(200, 19, seed=5)
    found = calibration_ranks(truths, draws)
    right = [sum(draw < truth for draw in row) for truth, row in zip(truths.tolist(), draws.tolist(), strict=True)]
    assert found.tolist() == right, "the rank of a truth is the number of draws below it, from 0 to the number of draws"
    narrow = calibration_ranks(truths, 0.5 * draws)
    ends = float(((narrow <= 1) | (narrow >= 18)).double().mean())
    assert ends > 0.3, (
        "draws that are too narrow should leave the truth at either end (here 4 of 20 ranks hold a third and more)"
    )
