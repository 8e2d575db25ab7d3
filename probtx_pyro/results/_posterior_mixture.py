"""A mixture of distributions, one for each draw of a posterior:
the density of an answer with its parameters averaged out.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from pyro.distributions import Categorical, TorchDistribution
from torch import Tensor
from torch.distributions import constraints


class PosteriorMixture(TorchDistribution):
    """``p(v | D) = Σ_s r_s p(v | θ_s)``, the draws s in chunks.

    Parameters
    ----------
    at_draws
        From numbers of draws (rows,) to the distribution at each of them, batch shape (rows, *batch).
    log_weights
        ``log r_s``, (draw, *batch), log-sum-exp 0 over the draws.
    rows
        How many draws to ask ``at_draws`` for at once, at most.

    Notes
    -----
    Batch shape (*batch,), the queries; each has a mixture of its own, so that `sample` draws their answers
    independently.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = False

    def __init__(
        self,
        at_draws: Callable[[Tensor], TorchDistribution],
        log_weights: Tensor,
        rows: int,
        validate_args: bool | None = None,
    ):
        self.at_draws, self.log_weights, self.rows = at_draws, log_weights, rows
        one = at_draws(torch.arange(1))
        self._support = one.support
        super().__init__(log_weights.shape[1:], one.event_shape, validate_args=validate_args)

    @constraints.dependent_property
    def support(self) -> constraints.Constraint | None:
        """That of every draw's distribution."""
        return self._support

    def log_prob(self, value: Tensor) -> Tensor:
        """``log p(value | D)``, shape ``sample_shape + batch_shape``."""
        if self._validate_args:
            self._validate_sample(value)
        axis = value.dim() - len(self.batch_shape) - len(self.event_shape)
        if axis < 0:
            value, axis = value.expand(self.batch_shape + self.event_shape), 0
        copies = math.prod(value.shape[:axis])
        total = torch.full((), -torch.inf)
        with torch.no_grad():
            for rows in torch.arange(len(self.log_weights)).split(max(1, self.rows // max(1, copies))):
                density = self.at_draws(rows).log_prob(value.unsqueeze(axis)) + self.log_weights[rows]
                total = torch.logaddexp(total.to(density), density.logsumexp(axis))
        return total

    def sample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        """Choose a draw for each query by its weight, then an answer from that draw's distribution."""
        shape = torch.Size(sample_shape) + self.batch_shape
        with torch.no_grad():
            one = self.at_draws(torch.arange(1)).sample()
            if not shape.numel():
                return one.new_empty(shape + self.event_shape)
            chosen = Categorical(logits=self.log_weights.movedim(0, -1)).sample(torch.Size(sample_shape))
            chosen = chosen.reshape(-1, self.batch_shape.numel())
            again = _occurrence(chosen)  # which of its draw's answers each is
            needed = chosen.new_zeros(len(self.log_weights))
            needed.scatter_reduce_(0, chosen.flatten(), again.flatten() + 1, "amax")
            order = needed.argsort(descending=True)[: int((needed > 0).sum())]
            answers = one.new_empty(*chosen.shape, *self.event_shape)
            while len(order):  # draws that are needed alike often go together
                copies = int(needed[order[0]])
                rows, order = order.tensor_split([max(1, self.rows // copies)])
                place = needed.new_full(needed.shape, -1).scatter_(0, rows, torch.arange(len(rows), device=rows.device))
                inside = place[chosen] >= 0
                drawn = self._samples(rows, copies).flatten(2, 1 + len(self.batch_shape))
                answers[inside] = drawn[again[inside], place[chosen[inside]], inside.nonzero()[:, 1]]
        return answers.reshape(shape + self.event_shape)

    def _samples(self, rows: Tensor, copies: int) -> Tensor:
        """So many answers of each of these draws to every query, (copies, rows, *batch, *event)."""
        distribution, step = self.at_draws(rows), max(1, self.rows // len(rows))
        parts = [distribution.sample(torch.Size((min(step, copies - i),))) for i in range(0, copies, step)]
        return torch.cat(parts)


def _occurrence(chosen: Tensor) -> Tensor:
    """Number of equal numbers above each number in its column, (n, columns)."""
    ordered, order = chosen.T.contiguous().sort(stable=True)
    place = torch.arange(ordered.shape[-1], device=chosen.device).expand_as(ordered) - torch.searchsorted(
        ordered, ordered
    )
    return torch.empty_like(place).scatter_(-1, order, place).T


__all__ = ["PosteriorMixture"]
