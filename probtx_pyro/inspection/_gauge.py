"""Parameters that attention does not identify: a tilt b and a precision P of the queries,
by maximum likelihood or under priors.

Logits ``m_ij + a_j·q_i`` are the attention of every mixture with one precision P, locations ``ξ_j = P⁻¹(a_j + b)`` and
log weights ``m_ij + ½ ξ_j'Pξ_j``, whatever b and P are. Its log density is an exponential family in them,
``log Σ_j exp(m_ij + a_j·q) + b·q - ½ q'Pq - A_i(b, P)``, so the likelihood is concave and Newton's steps end in its one
maximum. docs/mathematics.md, section 2.10.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from pyro.distributions import Gamma, Normal, Wishart
from torch import Tensor
from torch.distributions import Distribution

from probtx_pyro.models.priors import FLAT, as_pyro, bare, in_dtype

MOST_STEPS = 500
LARGEST = 2**24  # numbers in the statistics of a chunk of examples
SETTLED = 1e-14  # Newton decrement per query: the squared distance from the maximum, in standard deviations of a query


Prior: TypeAlias = Distribution | None


class Shape(NamedTuple):
    """Entries of P that are free: (row, column) of each, and whether all are one number.

    prior: the family of priors on it.
    """

    rows: Tensor
    columns: Tensor
    tied: bool
    prior: type

    @property
    def times(self) -> Tensor:
        """Number of times that an entry stands in the matrix, 1 or 2."""
        return 1 + (self.rows != self.columns).double()

    @property
    def numbers(self) -> tuple[int]:
        """Number of free numbers."""
        return (1 if self.tied else len(self.rows),)

    def free(self, entries: Tensor, axis: int = -1) -> Tensor:
        """Derivatives by the free numbers, from those by the entries."""
        return entries.sum(axis, keepdim=True) if self.tied else entries

    def matrix(self, numbers: Tensor, features: int) -> Tensor:
        """P, (D, D), from its free numbers."""
        matrix = numbers.new_zeros(features, features)
        matrix[self.rows, self.columns] = matrix[self.columns, self.rows] = numbers.expand(len(self.rows))
        return matrix

    def laid(self, entries: Tensor, features: int) -> Tensor:
        """Entries as a number, a diagonal or a matrix."""
        if self.tied:
            return entries[0]
        return self.matrix(entries, features) if self.prior is Wishart else entries

    def products(self, x: Tensor, y: Tensor) -> Tensor:
        """``x_rt y_su + x_ru y_st`` for entries (r, s) and (t, u), (entries, entries)."""
        r, s = self.rows, self.columns
        return x[r][:, r] * y[s][:, s] + x[r][:, s] * y[s][:, r]


def _full(features: int) -> Shape:
    rows, columns = torch.tril_indices(features, features)
    return Shape(rows, columns, False, Wishart)


def _diagonal(features: int, tied: bool = False) -> Shape:
    return Shape(torch.arange(features), torch.arange(features), tied, Gamma)


METRICS: Mapping[str, Callable[[int], Shape]] = {
    "full": _full,
    "diagonal": _diagonal,
    "scalar": lambda features: _diagonal(features, True),
}


class Head(NamedTuple):
    """One head: E examples of Q queries over U units.

    queries: (E, Q, D). counted: how often each query counts, (E, Q). slopes: a_j, (E, U, D). logits: m_ij, (E, 1 or Q,
    U).
    excess: how much more precise than P each unit is, (E, U); None is 0.
    """

    queries: Tensor
    counted: Tensor
    slopes: Tensor
    logits: Tensor
    excess: Tensor | None = None


class Gauge(NamedTuple):
    """The best b and P of a head.

    tilt: b, (D,). precision: P as a number, its diagonal (D,), or (D, D). tilt_error, precision_error: standard errors,
    from the observed information. num_steps: Newton steps taken.
    """

    tilt: Tensor
    precision: Tensor
    tilt_error: Tensor
    precision_error: Tensor
    num_steps: int


class Priors(NamedTuple):
    """Log prior density of b and P but for constants: ``-½ Σ strength (b - center)² + power log P - rate P``,
    entry by entry.

    center, strength: (D,). power: one for each entry; for a full matrix one number, of ``log|P|``. rate: one for each
    entry.
    """

    center: Tensor
    strength: Tensor
    power: Tensor
    rate: Tensor

    @classmethod
    def of(cls, metric: str, features: int, heads: torch.Size, tilt: Prior, precision: Prior) -> "Priors":
        """Lay priors out on the heads, refusing those under which the maximum is not the one stationary point."""
        shape = METRICS[metric](features)
        full, own = shape.prior is Wishart, torch.Size([] if shape.tied else [features])
        center = strength = torch.zeros(*heads, features, dtype=torch.float64)
        rate = torch.zeros(*heads, *shape.numbers, dtype=torch.float64)
        power = rate[..., 0] if full else rate
        if tilt is not None and tilt is not FLAT:
            given = _expanded("tilt", tilt, Normal, torch.Size([*heads, features]))
            center, strength = given.loc, given.scale**-2
        if precision is not None:
            wide = torch.Size([*heads, *own, *own] if full else [*heads, *own])
            given = _expanded("precision", precision, shape.prior, wide)
            if full:
                power, inverse = 0.5 * (given.df - features - 1), given.precision_matrix
                rate = 0.5 * shape.times * inverse[..., shape.rows, shape.columns]
            else:
                power, rate = given.concentration - 1, given.rate
                power, rate = (x.unsqueeze(-1) if shape.tied else x for x in (power, rate))
            if bool((power < 0).any()):
                least = f"D + 1 = {features + 1} degrees of freedom" if full else "a concentration of 1"
                raise ValueError(f"precision: a prior of less than {least} has no mode; raise it")
        return cls(center, strength, power, rate)

    def head(self, index: tuple[int, ...]) -> "Priors":
        """Return those of one head."""
        return Priors(*(x[index] for x in self))


def _expanded(name: str, prior: Distribution, family: type, shape: torch.Size) -> Any:
    """A prior of the family, in double precision and of the shape, or an error."""
    given = bare(as_pyro(prior)) if isinstance(prior, Distribution) else prior
    if not isinstance(given, family):
        raise ValueError(f"{name}: the one maximum is known under a {family.__name__} prior, not under {given!r}")
    given = in_dtype(given, torch.float64)
    try:
        return given.expand(shape[: len(shape) - given.event_dim])
    except (RuntimeError, ValueError):
        raise ValueError(f"{name}: the prior has shape {tuple(given.shape())}; heads need {tuple(shape)}") from None


class _Standard(NamedTuple):
    """The head and its log prior in coordinates x, ``q = center + root x``,
    in which the queries have mean 0 and unit spread.

    There ``P = L P~ L'`` and ``b = L (b~ + P~ u)`` with ``L = root⁻ᵀ`` and ``u = root⁻¹ center``, linear in the free
    numbers θ of b~ and P~; jacobian: (D + entries, D + free numbers).
    """

    head: Head
    jacobian: Tensor
    priors: Priors

    @classmethod
    def of(cls, head: Head, shape: Shape, priors: Priors, center: Tensor, root: Tensor) -> "_Standard":
        logits, slopes, excess = head.logits + (head.slopes @ center).unsqueeze(-2), head.slopes, head.excess
        if excess is not None:  # the root is then a number times I
            logits = logits - 0.5 * (excess * center.square().sum()).unsqueeze(-2)
            slopes, excess = slopes - excess.unsqueeze(-1) * center, excess * root[0, 0].square()
        queries = torch.linalg.solve_triangular(root, (head.queries - center).mT, upper=False).mT
        return cls(Head(queries, head.counted, slopes @ root, logits, excess), _jacobian(shape, center, root), priors)

    def log_prior(self, shape: Shape, theta: Tensor) -> Tensor:
        """The log prior density at θ, but for a constant."""
        features, p = len(self.priors.center), self.priors
        away = self.jacobian[:features] @ theta - p.center
        numbers = theta[features:]
        size = shape.matrix(numbers, features).logdet() if shape.prior is Wishart else numbers.log()
        return (p.power * size).sum() - self._linear(shape) @ theta - 0.5 * (p.strength * away.square()).sum()

    def _linear(self, shape: Shape) -> Tensor:
        features, rate = len(self.priors.center), self.priors.rate
        return rate @ self.jacobian[features : features + len(rate)]

    def prior_derivatives(self, shape: Shape, theta: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient of `log_prior`, and the negative of its Hessian."""
        features, p = len(self.priors.center), self.priors
        onto, numbers = self.jacobian[:features], theta[features:]
        slope = -onto.mT @ (p.strength * (onto @ theta - p.center)) - self._linear(shape)
        curvature = (onto.mT * p.strength) @ onto
        if not p.power.any():
            return slope, curvature
        if shape.prior is Wishart:
            own = p.power * shape.times * covariance[shape.rows, shape.columns]
            pairs = 0.5 * p.power * shape.times.outer(shape.times) * shape.products(covariance, covariance)
        else:
            own, pairs = p.power / numbers, (p.power / numbers.square()).diag()
        slope[features:] += own
        curvature[features:, features:] += pairs
        return slope, curvature


def _jacobian(shape: Shape, center: Tensor, root: Tensor) -> Tensor:
    """Derivatives of b and the entries of P by θ."""
    features, rows, columns = len(center), shape.rows, shape.columns
    back = torch.linalg.inv(root).mT
    at, place, twice = back.mT @ center, torch.arange(len(rows)), (rows != columns).double()
    moved = center.new_zeros(features, len(rows))
    moved[rows, place] += at[columns]
    moved[columns, place] += twice * at[rows]
    turned = back[rows][:, rows] * back[columns][:, columns]
    turned = turned + twice * back[rows][:, columns] * back[columns][:, rows]
    by_tilt = torch.cat([back, center.new_zeros(len(rows), features)])
    return torch.cat([by_tilt, torch.cat([shape.free(back @ moved), shape.free(turned)])], 1)


def fit(head: Head, metric: str, priors: Priors, name: str) -> Gauge:
    """Maximise the likelihood of a head's queries, times the priors, over b and P.

    Parameters
    ----------
    head
        The head, in double precision.
    metric
        A key of `METRICS`.
    priors
        Those of the head.
    name
        The head, for messages.

    Raises
    ------
    ValueError
        The likelihood has no maximum, and no prior mends it.
    """
    features, total = head.queries.shape[-1], head.counted.sum()
    shape = METRICS[metric](features)
    center, spread = _spread(head, shape, priors, metric, name)
    standard = _Standard.of(head, shape, priors, center, torch.linalg.cholesky(spread))
    own, jacobian = standard.head, standard.jacobian
    second = _gram(own.queries, own.counted)
    first = (own.counted.unsqueeze(-1) * own.queries).sum((0, 1))
    seen = torch.cat([first, shape.free(-0.5 * shape.times * second[shape.rows, shape.columns])])

    def value(theta: Tensor) -> Tensor:
        """The objective per query; -inf where P is not positive definite."""
        units = _units(own, shape, theta)
        if units is None:
            return total.new_tensor(-torch.inf)
        return (seen @ theta - _normaliser(own, units) + standard.log_prior(shape, theta)) / total

    theta = max(_starts(own, shape), key=lambda theta: float(value(theta)))
    now, num_steps, settled = value(theta), 0, False
    while True:
        units = _units(own, shape, theta)
        assert units is not None
        expected, information = _moments(own, shape, units)
        slope, curvature = standard.prior_derivatives(shape, theta, units.covariance)
        slope, curvature = (seen - expected + slope) / total, (information + curvature) / total
        root, failed = torch.linalg.cholesky_ex(curvature)
        direction = torch.cholesky_solve(slope.unsqueeze(-1), root).squeeze(-1)
        decrement = slope @ direction
        if settled and not failed:
            break
        settled = bool(decrement <= SETTLED)  # the step from here ends in rounding: each squares the distance
        if num_steps == MOST_STEPS or failed:
            raise ValueError(f"best_equivalent: {name} did not settle in {num_steps} steps; look for extreme numbers")
        rounding, size = 64 * torch.finfo(now.dtype).eps * (1 + now.abs()), 1.0
        while not (after := value(theta + size * direction)) >= now + 0.25 * size * decrement - rounding:
            size /= 2
        theta, now, num_steps = theta + size * direction, after, num_steps + 1
    found = jacobian @ theta
    error = (torch.linalg.solve_triangular(root, jacobian.mT, upper=False).square().sum(0) / total).sqrt()
    precision, precision_error = (shape.laid(x[features:], features) for x in (found, error))
    return Gauge(found[:features], precision, error[:features], precision_error, num_steps)


def _spread(head: Head, shape: Shape, priors: Priors, metric: str, name: str) -> tuple[Tensor, Tensor]:
    """Mean of the queries, and their covariance with what the prior adds;
    an error where it is singular in the metric's coordinates.
    """
    total, features = head.counted.sum(), head.queries.shape[-1]
    if not total > 0:
        raise ValueError(f"best_equivalent: {name} has no query that counts; leave it out")
    center = (head.counted.unsqueeze(-1) * head.queries).sum((0, 1)) / total
    second = _gram(head.queries - center, head.counted)
    if shape.prior is Wishart:
        second = second + shape.matrix(2 * priors.rate / shape.times, features)
    elif shape.tied:
        second = ((second.trace() + 2 * priors.rate) / features).expand(features).diag()
    else:
        second = (second.diagonal() + 2 * priors.rate).diag()
    spread = second / total
    scale = spread.diagonal().sqrt()
    rounding = 64 * torch.finfo(spread.dtype).eps
    flat = scale <= rounding * head.queries.abs().amax()
    if not flat.any():  # a direction without spread shows in the correlations
        flat = torch.linalg.eigvalsh(spread / scale.outer(scale)) <= features * rounding
    if flat.any():
        raise ValueError(f"best_equivalent: queries of {name} lie in a subspace; give a prior, or take captured.raw")
    return center, spread


def _starts(head: Head, shape: Shape) -> list[Tensor]:
    """Multiples of the identity, which is the spread of the queries, up to where the units stand together;
    b = 0 or at the mean unit.
    """
    numbers = (shape.rows == shape.columns).double()[: 1 if shape.tied else None]
    middle = -head.slopes.mean((0, 1))
    most = max(6, int(head.slopes.abs().amax().clamp(1, 1e12).log2()) + 2)
    return [torch.cat([b, 2.0**power * numbers]) for power in range(most) for b in (0 * middle, middle)]


class _Units(NamedTuple):
    """Covariance C (D, D), factors of it (E, U), locations (E, U, D) and log weights before the mask (E,
    U) at b and P.
    """

    covariance: Tensor
    factor: Tensor
    locations: Tensor
    log_weights: Tensor


def _units(head: Head, shape: Shape, theta: Tensor) -> _Units | None:
    """The units at b and P; None where P is not positive definite."""
    features = head.queries.shape[-1]
    root, failed = torch.linalg.cholesky_ex(shape.matrix(theta[features:], features))
    if failed:
        return None
    covariance, pull = torch.cholesky_inverse(root), head.slopes + theta[:features]
    factor = pull.new_ones(pull.shape[:-1])
    if head.excess is not None:
        factor = theta[features] / (theta[features] + head.excess)
    locations = factor.unsqueeze(-1) * (pull @ covariance)
    log_weights = 0.5 * (pull * locations).sum(-1) + 0.5 * features * factor.log() - root.diagonal().log().sum()
    return _Units(covariance, factor, locations, log_weights)


def _normaliser(head: Head, units: _Units) -> Tensor:
    """``Σ_i A_i``, but for D/2 log 2π each."""
    each = (head.logits + units.log_weights.unsqueeze(-2)).logsumexp(-1)
    return (head.counted * each).sum()


def _moments(head: Head, shape: Shape, units: _Units) -> tuple[Tensor, Tensor]:
    """Mean and covariance of ``Σ_i T(q_i)``, T the statistics (q, -½ qq') of the free numbers of b and P."""
    rows, columns, times, c = shape.rows, shape.columns, -0.5 * shape.times, units.covariance
    features = len(c)
    count = features + (1 if shape.tied else len(rows))
    mean, between = c.new_zeros(count), c.new_zeros(count, count)
    mass, linear, first, second = c.new_zeros(()), c.new_zeros(()), c.new_zeros(features), torch.zeros_like(c)
    chunk = max(1, LARGEST // (count * max(units.locations.shape[1], head.logits.shape[1])))
    for part in torch.arange(len(head.queries)).split(chunk):
        at, factor, weights = units.locations[part], units.factor[part], head.counted[part]
        logits = head.logits[part]
        shares = (logits + units.log_weights[part].unsqueeze(-2)).softmax(-1)  # (E, 1 or Q, U)
        weights = weights.sum(-1, keepdim=True) if logits.shape[-2] == 1 else weights
        every = (weights.unsqueeze(-1) * shares).sum(-2)  # (E, U)
        squares = at[..., rows] * at[..., columns] + factor.unsqueeze(-1) * c[rows, columns]
        statistics = torch.cat([at, shape.free(times * squares)], -1)
        mean = mean + (every.unsqueeze(-1) * statistics).sum((0, 1))
        between = between + _gram(statistics, every) - _gram(shares @ statistics, weights)
        strength = every * factor
        linear, mass = linear + strength.sum(), mass + (strength * factor).sum()
        first, second = first + (strength.unsqueeze(-1) * at).sum((0, 1)), second + _gram(at, strength)
    crossed = shape.free(times * (first[rows] * c[:, columns] + first[columns] * c[:, rows]))
    within = times.outer(times) * (shape.products(mass * c + second, c) + shape.products(c, second))
    within = shape.free(shape.free(within), 0)
    own = torch.cat([torch.cat([linear * c, crossed], 1), torch.cat([crossed.mT, within], 1)])
    return mean, own + between


def _gram(x: Tensor, weights: Tensor) -> Tensor:
    """``Σ w x x'`` of points (..., p)."""
    x, weights = x.flatten(0, -2), weights.flatten()
    return (x * weights.unsqueeze(-1)).mT @ x
