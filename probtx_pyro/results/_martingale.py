"""Is a predictive function that of a posterior: a check that needs no posterior to compare with.

Let p_n be the predictive distribution after n observations, and p_{n+1}(. | y) that after one more, y. If there is a
model of exchangeable observations of which p_n is the posterior predictive, then what p_{n+1} says is, on average over
a y drawn from p_n itself, what p_n says: predictions are a martingale. Fong, Holmes & Walker 2023, *Martingale
posterior distributions*; Falck, Wang & Holmes 2024, *Is in-context learning in large language models Bayesian? A
martingale perspective*. And no order of the observations is preferred.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import multivariate_normal
from torch import Tensor
from torch.distributions import Distribution

from probtx_pyro.inference._program import require_counts

Array = NDArray[np.floating[Any]]
Predict = Callable[..., Distribution]
Function = Callable[[Tensor, Distribution, Tensor], Tensor]


class MartingaleCheck(NamedTuple):
    """Drifts of predictions, by functions of what is predicted.

    drifts: by function, (context,): how much its expectation rises by one observation drawn from the prediction, on
    average over the draws. covariance: of the mean drifts over contexts, by the spread between the draws of each
    context, (function, function). num_draws: of each context. distances: total variation between the prediction and the
    average of the next one over every outcome, (context,), without Monte Carlo error; None where the outcomes cannot be
    listed.
    order_spread: standard deviation of log p(y) over orders of the context, on average over y drawn from the
    prediction, in nats, (context,); None where no orders were asked for.
    """

    drifts: dict[str, Array]
    covariance: Array
    num_draws: int
    distances: Array | None
    order_spread: Array | None

    @property
    def gaps(self) -> dict[str, tuple[float, float]]:
        """Mean drift over contexts and its Monte Carlo standard error, by function."""
        errors = np.sqrt(np.diag(self.covariance))
        return {name: (float(x.mean()), float(e)) for (name, x), e in zip(self.drifts.items(), errors, strict=True)}

    @property
    def z_scores(self) -> dict[str, float]:
        """Mean drift over its standard error, by function; 0 where no draw moves the prediction at all."""
        return {
            name: gap / error if error else 0.0 if not gap else math.copysign(math.inf, gap)
            for name, (gap, error) in self.gaps.items()
        }

    @property
    def p_value(self) -> float:
        """The chance of a z-score as large as the largest, of all functions together, where predictions are a
        martingale: by the correlations of the z-scores, normal for many draws in all.
        """
        largest = max(map(abs, self.z_scores.values()))
        errors = np.sqrt(np.diag(self.covariance))
        moving = errors > 0
        if math.isinf(largest) or not moving.any():
            return float(largest == 0)
        correlation = (self.covariance / np.outer(errors, errors).clip(1e-300))[np.ix_(moving, moving)]
        bound = np.full(len(correlation), largest)
        box = multivariate_normal(np.zeros(len(bound)), correlation, allow_singular=True, seed=0)
        return float(np.clip(1 - box.cdf(bound, lower_limit=-bound), 0, 1))

    def ok(self, level: float = 0.99) -> bool:
        """True if no drift is seen: a posterior's predictions pass with chance ``level``."""
        return self.p_value > 1 - level

    def __str__(self) -> str:
        worst, z = max(self.z_scores.items(), key=lambda item: abs(item[1]))
        gap, error = self.gaps[worst]
        text = (
            f"{'a martingale' if self.ok() else 'NOT a martingale'} in {len(self.drifts[worst])} contexts of {self.num_draws} "
            f"draws: p = {self.p_value:.2g}; the largest drift is that of {worst}, {gap:.2g} ± {error:.2g} (z = {z:.1f})"
        )
        if self.distances is not None:
            text += f"; mean distance {self.distances.mean():.2g}"
        return text if self.order_spread is None else f"{text}; spread over orders {self.order_spread.mean():.2g} nats"


_REFERENCES = 64  # draws that densities are ranked among


def confidence(observed: Tensor, now: Distribution, y: Tensor) -> Tensor:
    """Return ``log p_n(y)``, or, where outcomes cannot be listed, the share of draws from p_n that are less probable
    than y less the share of the others, which no tail of p_n can spoil: its drift is the growth of confidence.

    Parameters
    ----------
    observed, now, y
        As every function: observations (context, n, *event), their prediction, draws (..., context, *event).
    """
    found = now.log_prob(y)
    if now.has_enumerate_support:
        return found
    references = now.log_prob(now.sample(torch.Size((_REFERENCES,))))
    return 2 * (references.unsqueeze(1) < found).double().mean(0) - 1


def nearness(observed: Tensor, now: Distribution, y: Tensor) -> Tensor:
    """Return whether y is the last observation again, or, of real numbers, on which side of the mean it lies, 1 for
    that of the last observation, -1 for the other: its drift is the weight that the last observation loses.

    Parameters
    ----------
    observed, now, y
        As every function: observations (context, n, *event), their prediction, draws (..., context, *event).
    """
    last, events = observed[:, -1], range(-len(now.event_shape), 0)
    if now.has_enumerate_support:
        return (y == last).all(tuple(events)) if events else y == last
    side = (y - now.mean) * (last - now.mean)
    return (side.sum(tuple(events)) if events else side).sign()


FUNCTIONS: dict[str, Function] = {"confidence": confidence, "the last observation": nearness}


def martingale_check(
    predict: Predict,
    observed: Tensor,
    *,
    inputs: Tensor | None = None,
    seed: int,
    num_draws: int = 32,
    num_orders: int = 0,
    functions: Mapping[str, Function] | None = None,
    batch_size: int = 64,
) -> MartingaleCheck:
    """Ask whether predictions after observations are those of a posterior, of any model of exchangeable observations.

    For each function g, ``E_{y ~ p_n} E_{y' ~ p_{n+1}(. | y)} g(y') = E_{y' ~ p_n} g(y')`` in each context, so the
    mean difference over contexts has a known centre, 0, and a spread that the draws of y tell. Expectations over y' are
    sums where outcomes can be listed, else by two draws, one of each side, weighted as draws of their even mixture.

    Parameters
    ----------
    predict
        ``predict(observed)``: from observations (N, n, *event) to a `torch.distributions.Distribution` of the next one,
        batch shape (N,); a network's output in `Categorical`, or a posterior predictive. With ``inputs``
        ``predict(observed, inputs, asked)``: inputs (N, n, ...) of the observations, and that of the next one, (N,
        ...).
    observed
        Contexts (context, n, *event), n 1 or more. Several hundred contexts of a handful of observations see most.
    inputs
        (context, n + 2, ...): of the observations, of the drawn one, and of the one that is predicted.
    seed
        A non-negative integer.
    num_draws
        Draws y of each context.
    num_orders
        Random orders of each context, two or more, for ``order_spread``; 0 for none.
    functions
        More functions g by name, each ``(observed, p_n, y') -> (..., context)``, real or boolean; beside
        `confidence` and, without inputs, `nearness`.
    batch_size
        So many contexts at once, times ``num_draws``.

    Returns
    -------
    MartingaleCheck

    Raises
    ------
    ValueError
        Observations or inputs of another shape; a prediction whose batch is not that of its contexts; NaN.

    Notes
    -----
    The check finds faults, it proves nothing: a martingale need not be a posterior's, and a posterior's model need not
    be the true one (a normal prediction with all variances multiplied by one number is the posterior's of another
    model). Where the model is none of exchangeable observations (a hidden Markov model), the next observation but one
    is not distributed as the next.

    Examples
    --------
    >>> from torch.distributions import Bernoulli
    >>> coins = Bernoulli(torch.rand(200, 1, generator=torch.Generator().manual_seed(0)).expand(-1, 8)).sample()
    >>> def posterior(seen):  # Beta(1, 1)
    ...     return Bernoulli((seen.sum(-1) + 1) / (seen.shape[-1] + 2))
    >>> def sharper(seen):
    ...     return Bernoulli(logits=posterior(seen).logits / 0.8)
    >>> martingale_check(posterior, coins, seed=0).ok(), martingale_check(sharper, coins, seed=0).ok()
    (True, False)
    """
    require_counts(num_draws=num_draws - 1, batch_size=batch_size, num_orders=num_orders + 1)
    if observed.ndim < 2 or not observed.shape[1]:
        raise ValueError(f"observed must be (context, n, ...) with n 1 or more, not {tuple(observed.shape)}")
    if num_orders == 1:
        raise ValueError("num_orders is 1, and one order has no spread; give 0, or 2 or more")
    contexts, length = observed.shape[:2]
    if inputs is not None and inputs.shape[:2] != (contexts, length + 2):
        raise ValueError(
            f"inputs must be ({contexts}, {length + 2}, ...), not {tuple(inputs.shape)}; give those of the next two, too"
        )
    used = {name: g for name, g in FUNCTIONS.items() if inputs is None or g is confidence} | dict(functions or {})
    parts = []
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        for start in range(0, contexts, batch_size):
            some = slice(start, start + batch_size)
            given = observed[some], None if inputs is None else inputs[some]
            parts.append(_differences(predict, *given, num_draws, num_orders, used))
    differences, distances, spreads = zip(*parts, strict=True)
    table = torch.cat(differences, -1).double().cpu().numpy()  # (function, draw, context)
    away = table - table.mean(1, keepdims=True)
    covariance = np.einsum("fdc,gdc->fg", away, away) / (num_draws * (num_draws - 1) * contexts**2)
    drifts = dict(zip(used, table.mean(1), strict=True))
    of_context = [None if x[0] is None else torch.cat(x).double().cpu().numpy() for x in (distances, spreads)]
    return MartingaleCheck(drifts, covariance, num_draws, *of_context)


def _sum(terms: Tensor) -> Tensor:
    """Sum over the first axis, 0 where it is no more than rounding: drifts that are 0 on paper have no spread to
    compare with.
    """
    total, rounding = terms.sum(0), 64 * torch.finfo(terms.dtype).eps * terms.abs().sum(0)
    return torch.where(rounding.isfinite() & (total.abs() <= rounding), 0.0, total)


def _differences(
    predict: Predict,
    observed: Tensor,
    inputs: Tensor | None,
    num_draws: int,
    num_orders: int,
    functions: Mapping[str, Function],
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return for some contexts what each function's expectation rises by, (function, draw, context), and the distances
    and spreads over orders, (context,); arguments as in `martingale_check`.
    """
    contexts, length = observed.shape[:2]
    rows = torch.arange(contexts, device=observed.device)

    def ask(observed: Tensor, place: int, order: Tensor | None = None) -> Distribution:
        """The prediction at the input of a place, after observations (times context, n, *event) in an order (context,
        n).
        """
        given = [observed]
        if inputs is not None:
            repeated = inputs.repeat(len(observed) // contexts, *[1] * (inputs.ndim - 1))
            given += [repeated[:, : observed.shape[1]], repeated[:, place]]
        if order is not None:
            given[:2] = [x[rows.unsqueeze(-1), order] for x in given[:2]]
        found = predict(*given)
        if tuple(found.batch_shape) != (len(observed),):
            raise ValueError(
                f"predict must return batch ({len(observed)},), not {tuple(found.batch_shape)}, for {len(observed)} contexts"
            )
        return found

    drawn, now = ask(observed, length), ask(observed, length + 1)

    def after(y: Tensor) -> Distribution:
        """The prediction after one more observation, y (draw, context, *event)."""
        longer = torch.cat([observed.expand(len(y), *observed.shape), y.unsqueeze(2).to(observed)], 2)
        return ask(longer.flatten(0, 1), length + 1)

    y, distance, spread = drawn.sample(torch.Size((num_draws,))), None, None
    later = after(y)
    if now.has_enumerate_support:
        support = now.enumerate_support()  # (outcome, context, *event)

        def chances(prediction: Distribution, times: int) -> Tensor:
            """Return those of each outcome, (outcome, times, context)."""
            every = support.unsqueeze(1).expand(-1, times, *support.shape[1:]).flatten(1, 2)
            return prediction.log_prob(every).exp().unflatten(1, (times, contexts))

        before = chances(now, 1)
        change = chances(later, num_draws) - before
        values = [_sum(change * g(observed, now, support).to(change).unsqueeze(1)) for g in functions.values()]
        average = (chances(after(support), len(support)) * chances(drawn, 1).squeeze(1)).sum(1)
        distance = (average - before.squeeze(1)).abs().sum(0) / 2
    else:
        # p_{n+1} - p_n is 2 tanh(half the log ratio) times their even mixture, from which the draws of both sides come
        shape = num_draws, contexts
        tried = torch.stack([later.sample().unflatten(0, shape), now.sample(torch.Size((num_draws,)))])
        ratios = torch.stack([later.log_prob(x.flatten(0, 1)).unflatten(0, shape) - now.log_prob(x) for x in tried])
        weights = (ratios / 2).tanh()
        values = [
            (weights * g(observed, now, tried.flatten(0, 1)).to(weights).unflatten(0, (2, -1))).sum(0)
            for g in functions.values()
        ]
    rises = torch.stack(values)
    if not rises.isfinite().all():
        raise ValueError("predict or a function returned NaN or infinity")
    if num_orders:
        orders = torch.rand(num_orders, contexts, length, device=observed.device).argsort(-1)
        tried = now.sample(torch.Size((num_draws,)))
        spread = torch.stack([ask(observed, length + 1, order).log_prob(tried) for order in orders]).std(0).mean(0)
    return rises, distance, spread
