"""Do the queries of a trained transformer look like draws from a mixture whose posterior is its attention?

A posterior predictive check, head by head. The mixture says ``p(q_i) = Σ_j π_ij N(q_i; ξ_j, P⁻¹)``, query by query
independently given the keys (a causal mask gives every query a prior of its own). Queries are drawn from it again and
again, and test statistics of the real ones are compared with those of the replicates. Gelman, Meng & Stern 1996,
*Posterior predictive assessment of model fitness via realized discrepancies*. The same statistics are compared with
those of draws from controls, which know nothing of the keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pyro import poutine
from torch import Tensor

from probtx_pyro._brief import in_brief
from probtx_pyro.inspection._captured import Captured, Coords, stack_layers
from probtx_pyro.inspection._controls import controls as fit_controls
from probtx_pyro.inspection.redundancy import Array
from probtx_pyro.models import GaussianMixture
from probtx_pyro.ops._progress import progress_bar

Statistic = Callable[[Captured], Tensor]
SMALLEST = -1e3  # log probability whose exponential is 0 in every precision


class _Units(NamedTuple):
    """Numbers of a mixture that statistics need, worked out once for all replicates.

    center: mean location of the units, (.., 1, D). columns: ``(-2 x, 1, |x|²)`` of their locations x less the center,
    where the metric is the plain inner product, (.., D + 2, U). logits: log of the weight of each unit times its
    density at its location, (.., 1 or Q, U). closed: which units may not be attended to, the same; None where all may.
    direction: in which locations vary most, (.., D, 1).
    """

    center: Tensor
    columns: Tensor
    logits: Tensor
    closed: Tensor | None
    direction: Tensor

    @classmethod
    def of(cls, mixture: GaussianMixture) -> "_Units":
        center, weights = mixture.origins()["keys"], mixture.log_weights()
        locations = mixture.whitened(center, center)[1]
        emitted = mixture.emission(torch.arange(weights.shape[-1], device=weights.device))
        away = locations - locations.mean(-2, keepdim=True)
        direction = torch.linalg.eigh(away.mT @ away)[1][..., -1:]
        ones, squares = torch.ones_like(locations[..., :1]), locations.square().sum(-1, keepdim=True)
        columns = torch.cat([-2 * locations, ones, squares], -1).mT
        logits, closed = weights + emitted.log_prob(emitted.mean).unsqueeze(-2), weights == -torch.inf
        return cls(center, columns, logits, closed if closed.any() else None, direction)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class _Asked(Captured):
    """Captured queries, with one product of queries and units for all statistics; `replace` keeps their numbers."""

    numbers: _Units

    @classmethod
    def of(cls, one: Captured) -> "_Asked":
        """Choose the mixture that is its own."""
        if isinstance(one, cls):
            return one
        fields = {name: vars(one)[name] for name in Captured.__dataclass_fields__}
        return cls(**fields | {"chosen": one.mixture}, numbers=_Units.of(one.mixture))

    @cached_property
    def at(self) -> Tensor:
        """Queries less the center of the units, where the metric is the plain inner product, (.., Q, D)."""
        return self.mixture.whitened(self._asked, self.numbers.center)[0]

    @cached_property
    def squares(self) -> Tensor:
        """Squared distances of queries and units, (.., Q, U)."""
        ones = torch.ones_like(self.at[..., :1])
        rows = torch.cat([self.at, self.at.square().sum(-1, keepdim=True), ones], -1)
        return (rows @ self.numbers.columns).clamp_min_(0.0)

    @cached_property
    def summed(self) -> tuple[Tensor, Tensor]:
        """Log density of each query, and the entropy of its unit, (.., Q)."""
        joint = self.squares * (-0.5 * torch.atleast_1d(self.mixture.key_precision).unsqueeze(-2))
        joint = joint.add_(self.numbers.logits)
        units = self.mask.shape[-1]
        if joint.shape[-1] > units:  # several keys to a unit
            joint = joint.unflatten(-1, (units, -1)).logsumexp(-1)
        top = joint.amax(-1, keepdim=True)
        logs = joint.sub_(top).clamp_min_(SMALLEST)
        shares = logs.exp()
        total = shares.sum(-1)
        return top.squeeze(-1) + total.log(), total.log() - logs.mul_(shares).sum(-1) / total

    def log_evidence(self) -> Tensor:
        """Return what `Captured.log_evidence` does."""
        return torch.where(self._alive(), self._answered(self.summed[0], 0), -torch.inf)

    def entropy(self) -> Tensor:
        """Return what `Captured.entropy` does."""
        return torch.where(self._alive(), self._answered(self.summed[1], 0), 0.0)


def drawing(mixture: GaussianMixture, shape: torch.Size) -> Callable[[], Tensor]:
    """A function that draws queries (.., Q, D) of a mixture from torch's generator; ``shape`` is (.., Q).

    A unit is where a uniform number falls among the sums of the weights, which are taken once, as is the factor of the
    metric: queries are drawn where it is the plain inner product.
    """
    root, plain = mixture.wide_root(), mixture
    if root is not None:
        origin = torch.zeros_like(mixture.keys[..., :1, :])
        at = mixture.whitened(origin, origin)[1]
        plain = GaussianMixture(at, None, mixture.key_precision, log_prior=mixture.log_prior)
    ends = plain.log_weights().exp().cumsum(-1)
    ends = (ends / ends[..., -1:]).expand(*shape, -1).contiguous()

    def draw() -> Tensor:
        unit = torch.searchsorted(ends, torch.rand_like(ends[..., :1]), right=True).squeeze(-1)
        queries = plain.emission(unit).expand(shape).sample()
        if root is None:
            return queries
        if mixture.diagonal_metric:
            return queries / root
        return torch.linalg.solve_triangular(root, queries, upper=False, left=False)

    return draw


def squared_norm(one: Captured) -> Tensor:
    """``|q_i|²``, (..., Q)."""
    return one.queries.square().sum(-1)


def nearest_key(one: Captured) -> Tensor:
    """Distance of each query, in the mixture's metric, to the nearest key that it may attend to, (..., Q);
    infinite where there is none.
    """
    asked = _Asked.of(one)
    squares, closed = asked.squares, asked.numbers.closed
    squares = squares if closed is None else squares.masked_fill(closed, torch.inf)
    return squares.amin(-1).sqrt().reshape(one.queries.shape[:-1])


def principal_coordinate(one: Captured) -> Tensor:
    """Coordinate of each query along the direction in which the mixture's keys vary most, from their mean, (..., Q)."""
    asked = _Asked.of(one)
    return (asked.at @ asked.numbers.direction).reshape(one.queries.shape[:-1])


QUERY_STATISTICS: Mapping[str, Statistic] = {
    "log evidence": lambda one: one.log_evidence(),
    "squared norm": squared_norm,
    "nearest key": nearest_key,
    "entropy": lambda one: one.entropy(),
    "principal coordinate": principal_coordinate,
}
"""Statistics of a set of queries that `query_check` compares with those of simulated queries, by name."""


class QueryCheck(NamedTuple):
    """Real queries against replicates; T statistics, S draws, ``heads`` the leading axes that are not pooled.

    statistics: their names, T.
    observed: mean of each statistic over the queries of a head, (T, *heads).
    replicated: the same mean of each replicate, (T, S, *heads).
    p_values: two-sided, ``2 min(P(replicated <= observed), P(replicated >= observed))``, at least 2/(S + 1); uniform on
        its steps where a mixture that was not fitted to these queries is true, (T, *heads).
    z_scores: ``(observed - mean of replicated) / sd of replicated``, (T, *heads): goes on where p-values end.
    pit: rank of each single query among its own replicates, in (0, 1), ties broken at random; uniform where such a
        mixture is true, NaN for a query that does not count, (T, ..., Q).
    discrepancy: the largest |z| over the statistics, (*heads).
    ranking: indices of the heads, the worst first, (number of heads, number of head axes).
    dims: names of the head axes.
    coords: labels of dimensions, such as the names of the layers.
    log_density: mean log density of a real query under what replicates were drawn from, nats, (*heads).
    controls: by name, the same statistics of the same queries against draws from each control; empty of a control.
    """

    statistics: tuple[str, ...]
    observed: Array
    replicated: Array
    p_values: Array
    z_scores: Array
    pit: Array
    discrepancy: Array
    ranking: NDArray[np.int64]
    dims: tuple[str, ...]
    coords: Coords
    log_density: Array
    controls: Mapping[str, "QueryCheck"]

    def __repr__(self) -> str:
        return in_brief(self._replace(controls=tuple(self.controls)))  # type: ignore[arg-type]

    def __str__(self) -> str:
        """Median |z| over the heads, statistic by statistic, and mean log density; the mixture and its controls."""
        columns = [*self.statistics, "nats a query"]
        width = max(map(len, self.rows))
        lines = [f"{'median |z|':{width}s}  " + "  ".join(columns)]
        for name, check in self.rows.items():
            numbers = [*np.median(np.abs(check.z_scores).reshape(len(columns) - 1, -1), 1), check.log_density.mean()]
            cells = (f"{x:{len(column)}.1f}" for x, column in zip(numbers, columns, strict=True))
            lines.append(f"{name:{width}s}  " + "  ".join(cells))
        return "\n".join(lines)

    @property
    def rows(self) -> Mapping[str, "QueryCheck"]:
        """The check of the mixture, by the name ``"mixture"``, and those of the controls by theirs."""
        return {"mixture": self, **self.controls}


def query_check(
    captured: Captured | Mapping[str, Captured],
    *,
    num_draws: int,
    seed: int,
    statistics: Mapping[str, Statistic] | None = None,
    controls: Mapping[str, GaussianMixture] | None = None,
    progress: bool | None = None,
) -> QueryCheck:
    """Compare the real queries of every head with draws from the mixture whose posterior is its attention.

    The mixture is the best equivalent of what was captured (`best_equivalent`, scalar metric), the one chosen of a
    `BestEquivalent` or by ``captured.equivalent(...)``, or, asked for by name, the one that the layer's weights write:
    ``query_check(captured.raw, ...)``.

    Parameters
    ----------
    captured
        One `Captured`, or what `inspection.capture` returned, if its layers have one shape. Axes named ``batch`` are
        pooled.
    num_draws
        Replicates, S; the smallest p-value possible is 2/(S + 1).
    seed
        Of the replicates and of the ties; the random state is restored afterwards.
    statistics
        Functions of a `Captured` that give one number a query, (..., Q); None are `QUERY_STATISTICS`. Extend them with
        ``{**inspection.QUERY_STATISTICS, "first coordinate": lambda one: one.queries[..., 0]}``.
    controls
        What the real queries are compared with besides, by name: densities from which queries of the same shape are
        drawn, whose statistics are those under the *head's* mixture, as those of the real queries are. None are
        `controls` of what was captured; ``controls(captured, other)`` has the keys of another text for a text that was
        captured alone; ``{}`` are none.
    progress
        True shows a bar, False none; None shows one on a terminal after a second.

    Returns
    -------
    QueryCheck
        ``print(check)`` is a table of the mixture and the controls.

    Raises
    ------
    ValueError
        ``num_draws`` below 1, no statistic or one of another shape, a head without a query that counts, or with too few
        for the best equivalent or for controls; an attention that is the posterior of no density.

    Warns
    -----
    UserWarning
        A head has fewer than five queries for each number of the best equivalent (`best_equivalent`).

    Notes
    -----
    With many heads and statistics some p-values are small by chance: 0.05 divided by their number is a safe level for
    all.

    That the mixture passes says something of its keys only where a control fails: one Gaussian, or the keys of another
    text. In heads of pretrained models one full Gaussian has had a higher log density than the mixture with one
    precision, and keys of another text nearly the same as the head's own.

    The best equivalent and the controls are fitted to the queries that are checked. It matches their mean and mean
    square, so "squared norm" passes, and the other p-values are the larger for it; a full Gaussian has more numbers, so
    that its log density flatters it more. Where that matters, fit all of them to other queries of the head:
    ``query_check(best_equivalent(others, on=captured), ...)``.

    Examples
    --------
    >>> from probtx_pyro.data.text_transformer import load
    >>> from probtx_pyro.inspection import captured
    >>> text = "The for statement is used to iterate over the elements of a sequence, such as a string, tuple or list"
    >>> heads = load().heads(text)
    >>> future = torch.full((len(text), len(text)), -torch.inf).triu(1)
    >>> real = captured(heads.queries, heads.keys, heads.values, future, dims=("layer", "head"))
    >>> as_written = query_check(real.raw, num_draws=99, seed=0)
    >>> as_written.p_values.shape, bool((as_written.p_values[0] == 0.02).all())
    ((5, 2, 4), True)
    >>> best = query_check(real, num_draws=99, seed=0)
    >>> bool((best.discrepancy < as_written.discrepancy).all())
    True
    >>> sorted(best.controls)
    ['one Gaussian, full', 'one Gaussian, isotropic']
    """
    one = captured if isinstance(captured, Captured) else stack_layers(captured)
    statistics = QUERY_STATISTICS if statistics is None else statistics
    if num_draws < 1 or not statistics:
        raise ValueError(f"num_draws must be 1 or more and statistics not empty, not {num_draws} and {len(statistics)}")
    present = one.present.cpu().numpy()
    pooled = (*(i - present.ndim for i, name in enumerate(one.dims) if name.startswith("batch")), -1)  # and the queries
    counted = present.sum(pooled)
    if (counted == 0).any():
        raise ValueError("captured has a head without a query that counts; leave it out")

    def evaluated(of: Captured) -> Array:
        every = []
        for name, statistic in statistics.items():
            values = statistic(of).detach().cpu().numpy()
            if values.shape != present.shape:
                raise ValueError(f"statistics: {name!r} gave shape {values.shape}, queries have {present.shape}")
            every.append(np.where(present, values, 0.0))
        return np.stack(every)

    def means(values: Array) -> Array:
        return values.sum(pooled) / counted

    asked = _Asked.of(one)  # the mixture is that of the real queries, for the replicates too
    controls = fit_controls(one) if controls is None else controls
    real, heads = evaluated(asked), asked._heads
    coords = {name: x for name, x in one.coords.items() if name in heads}

    def against(name: str, mixture: GaussianMixture) -> QueryCheck:
        """The check against draws from a mixture, without controls."""
        below, equal = np.zeros(real.shape), np.zeros(real.shape)
        replicates = []
        with poutine.seed(rng_seed=seed), torch.no_grad():
            draw = drawing(mixture, asked._asked.shape[:-1])
            for _ in progress_bar(range(num_draws), label=f"replicates of {name}", progress=progress):
                values = evaluated(replace(asked, queries=asked._answered(draw(), 1)))
                below += values < real
                equal += values == real
                replicates.append(means(values))
            told = asked._answered(mixture.log_evidence(asked._asked), 0).cpu().numpy()
        ties = np.random.default_rng(seed).uniform(size=real.shape)
        pit = np.where(present, (below + ties * (equal + 1)) / (num_draws + 1), np.nan)
        observed, replicated = means(real), np.stack(replicates, 1)
        center, spread = replicated.mean(1), replicated.std(1)
        low = (1 + (replicated <= observed[:, None]).sum(1)) / (num_draws + 1)
        high = (1 + (replicated >= observed[:, None]).sum(1)) / (num_draws + 1)
        off = observed - center
        z_scores = np.divide(off, spread, out=np.where(off == 0, 0.0, np.copysign(np.inf, off)), where=spread > 0)
        discrepancy = np.abs(z_scores).max(0)
        order = np.argsort(-discrepancy, axis=None, kind="stable")
        p_values, ranking = np.minimum(1.0, 2 * np.minimum(low, high)), np.argwhere(np.ones_like(discrepancy))[order]
        found = observed, replicated, p_values, z_scores, pit, discrepancy, ranking, heads, coords
        return QueryCheck(tuple(statistics), *found, means(np.where(present, told, 0.0)), {})

    check = against("the mixture", asked.mixture)
    return check._replace(controls={name: against(name, mixture) for name, mixture in controls.items()})
