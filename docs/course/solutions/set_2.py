"""Problem set 2, solved."""

import torch
from torch import Generator, Tensor


def adapt_keys(queries: Tensor, attention: Tensor, prior_keys: Tensor, theta: float, alpha: float) -> Tensor:
    """Average prior and queries with their precisions; a unit without either keeps its key."""
    precision = theta + alpha * attention.sum(0)[:, None]
    pulled = theta * prior_keys + alpha * attention.T @ queries
    return torch.where(precision > 0, pulled / precision.clamp_min(torch.finfo(precision.dtype).tiny), prior_keys)


def gibbs_keys(
    queries: Tensor, prior_keys: Tensor, theta: float, alpha: float, num_draws: int, generator: Generator
) -> Tensor:
    """Draw an assignment for each query, then each key from its Normal; the same averages as in 2.1, of one-hot rows."""
    keys, draws = prior_keys, []
    for _ in range(num_draws):
        scores = -alpha / 2 * (queries[:, None] - keys).square().sum(-1)
        units = torch.multinomial(scores.softmax(-1), 1, generator=generator)[:, 0]
        drawn = torch.nn.functional.one_hot(units, len(keys)).to(queries)
        precision = theta + alpha * drawn.sum(0)[:, None]
        noise = torch.randn(keys.shape, generator=generator, dtype=keys.dtype)
        keys = adapt_keys(queries, drawn, prior_keys, theta, alpha) + noise / precision.sqrt()
        draws.append(keys)
    return torch.stack(draws)


def predictive_attention(query: Tensor, key_draws: Tensor, alpha: float) -> Tensor:
    """Sum the joint of unit and query over the draws, then normalise once."""
    scores = -alpha / 2 * (query - key_draws).square().sum(-1)  # (draw, unit)
    return scores.logsumexp(0).softmax(-1)


def split_rhat(draws: Tensor) -> Tensor:
    """Compare the variance of all half chains together with that within each."""
    halves = torch.cat(draws.chunk(2, -1))
    length = halves.shape[-1]
    within, between = halves.var(-1).mean(), halves.mean(-1).var()
    return (((length - 1) / length * within + between) / within).sqrt()


def calibration_ranks(truths: Tensor, draws: Tensor) -> Tensor:
    """Count the draws below the truth."""
    return (draws < truths[:, None]).sum(-1)
