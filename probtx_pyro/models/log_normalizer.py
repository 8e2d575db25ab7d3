"""Attention is the gradient of a log normaliser: ``log Z(η) = log ∫ h(x) exp(x'η) dx`` for a base measure h.

``∇ log Z(η)`` is the mean of the tilted distribution ``p(x|η) ∝ h(x) exp(x'η)`` and ``∇² log Z(η)`` its covariance. If
h sits on points, the mean is softmax attention over them (EF Theorem 1a); one Gaussian gives ``μ + Ση`` (Corollary 1),
a mixture of Gaussians attention over ``μ_n + Σ_n η`` (Theorems 2 and 3; errata 12, 13, 22). Of a mixture of Gaussians
the tilted distribution is a density of points given queries, ``p(x|η) = Σ_n w_n(η) N(x; μ_n + Σ_n η, Σ_n)``, so that
its parameters have a posterior.

======  ===================  ========================  =============================================================
symbol  name                 shape                     support
======  ===================  ========================  =============================================================
η       ``eta``              (..., Q, D)               real: the queries
μ_n     ``locations``        (..., N, D)               real: points, or means
Σ_n     ``covariance``       (..., [N,] D, D)          positive definite, shared or one for each location
σ²_n    ``variance``         (..., 1 or N, 1 or D)     > 0: a diagonal, or a multiple of the identity
π_n     ``log_weights``      (..., N)                  log of weights >= 0, -inf is a mask; need not be normalised
w_n(η)  ``weights``          (..., Q, N)               rows on the simplex: ``softmax_n(log π_n + μ_n'η + ½ η'Σ_nη)``
x_i     ``points``           (..., Q, D)               real: a point for each query
n       site ``unit``        (..., Q)                  0..N-1
======  ===================  ========================  =============================================================

Without covariance and variance h is discrete. Leading axes are independent problems and broadcast.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import pyro
import torch
from pyro.distributions import (
    Bernoulli,
    Categorical,
    Delta,
    Gamma,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    OneHotCategorical,
    Poisson,
    TorchDistribution,
)
from pyro.ops.indexing import Vindex
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.nn.functional import softplus

from probtx_pyro.models import _validation as check
from probtx_pyro.models._plates import PARALLEL, Plates, given_unit
from probtx_pyro.models.formulation import Data, Datum, Formulation, Parameter
from probtx_pyro.models.priors import as_pyro, bare
from probtx_pyro.ops import Factor, attend, fixed_point, log_evidence, log_joint, safe_log, safe_softmax
from probtx_pyro.ops._factor import Squares, far_apart, squares_apart
from probtx_pyro.ops._numerics import center_of, common_shape

HALVINGS = 12  # of a Newton step that would not climb


class Conjugate(NamedTuple):
    """``sup_η η'm - log Z(η)``.

    value: (..., Q): the entropy of the tilted distribution with mean m, negated. eta: where the supremum is, (..., Q,
    D).
    converged: whether the mean there is m, (..., Q); a mean outside the convex hull of discrete points has no such η.
    """

    value: Tensor
    eta: Tensor
    converged: Tensor


def conjugate(base: "LogNormalizer", mean: Tensor, num_steps: int, tol: float | None) -> Conjugate:
    """`LogNormalizer.conjugate` of a measure with ``log_normalizer``, ``mean`` and ``covariance``, for means (...,
    Q, D).
    """
    tol = torch.finfo(mean.dtype).eps ** 0.75 if tol is None else tol
    sizes = 0.5 ** torch.arange(HALVINGS, dtype=mean.dtype, device=mean.device)

    def step(state):
        eta = state["eta"]
        hessian, slope = base.covariance(eta), mean - base.mean(eta)
        scale = hessian.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        damped = hessian + 1e-10 * scale * torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        towards = (torch.linalg.pinv(damped, hermitian=True) @ slope.unsqueeze(-1)).squeeze(
            -1
        )  # a GPU's lstsq needs full rank
        tried = eta + sizes.view(-1, *(1,) * eta.dim()) * towards
        value = (tried * mean).sum(-1) - base.log_normalizer(tried)
        best = value.nan_to_num(-math.inf).argmax(0, keepdim=True)
        return {"eta": tried.gather(0, best.unsqueeze(-1).expand(1, *eta.shape)).squeeze(0)}, None

    with torch.no_grad():
        start = {"eta": torch.zeros_like(mean)}
        eta = fixed_point(step, start, problems=mean.shape[:-1], num_steps=num_steps, tol=tol, progress=False).state[
            "eta"
        ]
    reached = (base.mean(eta) - mean).norm(dim=-1)
    size = 1 + base.locations.abs().amax()
    return Conjugate((eta * mean).sum(-1) - base.log_normalizer(eta), eta, reached <= tol**0.5 * size)


def validate_measure(base: "LogNormalizer") -> None:
    """Refuse parameters of a `LogNormalizer` that do not fit together."""
    covariance, variance = base.covariances, base.variance
    check.at_least("locations", base.locations, 2, "(..., N, D)")
    if covariance is not None and variance is not None:
        raise ValueError("covariance and variance say the same thing; give one of them")
    tensors = {"locations": base.locations, "covariance": covariance, "variance": variance}
    check.same_dtype(**tensors, log_weights=base.log_weights)
    check.finite(**tensors)
    number, features = base.locations.shape[-2:]
    if number < 1:
        raise ValueError("locations has no units; give at least one")
    if covariance is not None:
        check.positive_definite("covariance", covariance, features)
        if covariance.shape[-3] not in (1, number):
            raise ValueError(f"covariance has {covariance.shape[-3]} matrices for {number} locations; give one each")
    if variance is not None:
        check.at_least("variance", variance, 2, "(..., 1 or N, 1 or D)")
        if variance.shape[-2] not in (1, number) or variance.shape[-1] not in (1, features):
            raise ValueError(f"variance must end in (1 or {number}, 1 or {features}), not {tuple(variance.shape)}")
        check.positive("variance", variance)
    if base.log_weights is not None:
        if base.log_weights.shape[-1:] != (number,):
            raise ValueError(f"log_weights must have shape (..., {number}), not {tuple(base.log_weights.shape)}")
        if check.violated(~torch.isfinite(base.log_weights.detach().logsumexp(-1))):
            raise ValueError("log_weights must be finite or -inf, and not -inf everywhere; use -inf for a mask only")
    _ = base.batch_shape


def validate_queries(base: "LogNormalizer", eta: Tensor, name: str = "eta") -> None:
    """Refuse queries, or points, that do not fit the locations."""
    check.floating(name, eta)
    check.at_least(name, eta, 2, "(..., Q, D)")
    check.same_size(name, eta.shape[-1], "locations", base.locations.shape[-1], "coordinates")
    check.same_dtype(**{name: eta}, locations=base.locations)
    check.finite(**{name: eta})


def validate_data(base: "LogNormalizer", eta: Tensor, points: Tensor | None) -> torch.Size:
    """Return the problems that queries and points make together; refuse those that do not fit,
    and points without a density.
    """
    validate_queries(base, eta)
    if points is None:
        return eta.shape[:-2]
    if not base.dense:
        base.refuse("log_evidence")
    validate_queries(base, points, "points")
    check.same_size("eta", eta.shape[-2], "points", points.shape[-2], "rows")
    return check.broadcastable(eta=eta.shape[:-2], points=points.shape[:-2])


Maybe = Tensor | None  # an argument that may be left out
TIED = "log_normalizer(eta) ties all its parameters together, so that none has a conditional of a known family; draw with inference.nuts, or fit a guide with inference.variational"


@dataclass(frozen=True, eq=False, init=False)
class LogNormalizer(Formulation):
    """A base measure on N points, or a mixture of N Gaussians, and its log normaliser. Immutable.

    Parameters
    ----------
    locations, covariance, log_weights, variance
        As in the table above; ``covariance`` with as many axes as ``locations`` is shared by them, with one more it is
        one for each, and ``variance`` takes its place where it is diagonal. ``log_weights=None`` is the counting
        measure for points, so that log Z is a log-sum-exp, and uniform weights for mixtures.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, NaN or infinity, no locations, a covariance that is not symmetric and positive
        definite, both kinds of it.

    Examples
    --------
    >>> keys = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> base = LogNormalizer(keys)
    >>> base.mean(torch.tensor([[0.0, 0.0]])).tolist()                 # attention with values = keys
    [[0.5, 0.5]]
    >>> LogNormalizer(keys[:1], torch.eye(2)).mean(torch.tensor([[2.0, 3.0]])).tolist()      # a residual
    [[2.0, 4.0]]

    References
    ----------
    Shim 2022, *A Probabilistic Interpretation of Transformers*, arXiv 2205.01080, Theorems 1-3.
    """

    locations: Tensor
    covariances: Maybe
    log_weights: Maybe
    variance: Maybe

    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {
        "locations": Parameter("unit feature", constraints.real),
        "covariance": Parameter("unit feature other_feature", constraints.positive_definite, field="covariances"),
        "variance": Parameter("unit feature", constraints.positive, logarithmic=True),
        "log_weights": Parameter("unit", constraints.real, mask=-math.inf),
    }
    DATA: ClassVar[Mapping[str, Datum]] = {"eta": Datum("query feature", "given"), "points": Datum("query feature")}
    RESULTS: ClassVar[Mapping[str, str]] = {
        "attention": "query unit",
        "log_evidence": "query",
        "expected_outputs": "query feature",
        "log_normalizer": "query",
    }
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "": "a measure that sits on points has no density of x; take log_normalizer(eta) and its gradients, or give it a covariance or a variance",
        **dict.fromkeys(("conditional", "expect", "draw_latents"), TIED),
    }

    def __init__(
        self,
        locations: Tensor,
        covariance: Maybe = None,
        log_weights: Maybe = None,
        variance: Tensor | float | None = None,
    ) -> None:
        check.floating("locations", locations)
        if isinstance(variance, float | int):
            variance = locations.new_full((1, 1), variance)
        if covariance is not None:
            check.floating("covariance", covariance)
            check.at_least("covariance", covariance, 2, "(..., [N,] D, D)")
            covariance = covariance.unsqueeze(-3) if covariance.dim() <= locations.dim() else covariance
        fields = {"locations": locations, "covariances": covariance, "log_weights": log_weights}
        for name, x in {**fields, "variance": variance}.items():
            object.__setattr__(self, name, x)
        validate_measure(self)

    def replace(self, **changes: Any) -> Self:
        """A measure with some constructor arguments changed, validated."""
        present, locations = dict(vars(self)), changes.get("locations", self.locations)
        check.floating("locations", locations)
        covariance, rank = present.pop("covariances"), locations.dim() + 1
        if covariance is not None:
            covariance = covariance[(None,) * max(0, rank - covariance.dim())]
        return type(self)(**{**present, "covariance": covariance, **changes})

    def lacks(self) -> Collection[str]:
        """Densities, of a measure that sits on points."""
        return () if self.dense else ("log_evidence", "output_distribution")

    @staticmethod
    def from_distribution(distribution: Distribution) -> "TiltedFamily":
        """A base measure that is a distribution of Pyro or torch: Normal, MultivariateNormal, Bernoulli,
        Categorical, Poisson or Gamma.

        Raises
        ------
        ValueError
            Any other, with the reason.
        """
        base = bare(as_pyro(distribution))
        if type(base) is Categorical:
            base = OneHotCategorical(logits=base.logits)
        if type(base) not in FAMILIES:
            known = ", ".join(kind.__name__ for kind in FAMILIES)
            raise ValueError(f"distribution: {type(base).__name__} has no tilt in closed form; take {known}")
        return TiltedFamily(base)

    @property
    def base_covariance(self) -> Maybe:
        """The base measure's own, as the constructor takes it:
        without the axis of the locations where they share it.
        """
        return self.covariances if self.covariances is None or self.each else self.covariances.squeeze(-3)

    @property
    def dense(self) -> bool:
        """True if x has a density, False if the measure sits on points."""
        return self._spread() is not None

    @property
    def each(self) -> bool:
        """True if every location has a covariance of its own."""
        spread = self._spread()
        return spread is not None and spread.shape[-2] > 1

    def _log_weights(self) -> Tensor:
        """``log π_n`` as a row, (..., 1, N)."""
        if self.log_weights is not None:
            return self.log_weights.unsqueeze(-2)
        number = self.locations.shape[-2]
        return self.locations.new_full((1, number), -math.log(number) if self.dense else 0.0)

    # -- one lowering: scores are statistics of η times parameters of the locations ------------------------------------

    def _spread(self) -> Tensor | None:
        """Covariances as rows of numbers, (..., 1 or N, K), K = 1, D or D²; None of points."""
        return self.variance if self.covariances is None else self.covariances.flatten(-2)

    def _products(self, eta: Tensor) -> Tensor:
        """The factor of a row of `_spread` in ``½ η'Ση``, (..., Q, K)."""
        if self.covariances is not None:
            return 0.5 * (eta.unsqueeze(-1) * eta.unsqueeze(-2)).flatten(-2)
        assert self.variance is not None
        return 0.5 * (
            eta.square() if self.variance.shape[-1] > 1 or eta.shape[-1] == 1 else eta.square().sum(-1, keepdim=True)
        )

    def _applied(self, spread: Tensor, eta: Tensor) -> Tensor:
        """``Ση`` of covariances as rows (..., K) and η (..., D) that broadcast."""
        if self.covariances is None:
            return spread * eta
        matrix = spread.unflatten(-1, (eta.shape[-1], eta.shape[-1]))
        return (matrix @ eta.unsqueeze(-1)).squeeze(-1)

    def _factor(self, eta: Tensor) -> Factor:
        """Scores ``μ_n'η + ½ η'Σ_nη`` but for ``c'η`` (c the mean location) and for what all locations share."""
        validate_queries(self, eta)
        centered = self.locations - center_of(self.locations)
        self._require_room(eta, centered)
        statistics, parameters = eta, centered
        if self.each:
            spread = self._spread()
            assert spread is not None
            shape = common_shape(centered.shape[:-1], spread.shape[:-1])
            statistics = torch.cat([eta, self._products(eta)], -1)
            parameters = torch.cat([centered.expand(*shape, -1), spread.expand(*shape, -1)], -1)
        return Factor(statistics, parameters, parameters.new_zeros(parameters.shape[:-1]))

    def _require_room(self, eta: Tensor, centered: Tensor) -> None:
        """Refuse queries whose scores may overflow: their softmax would be NaN."""
        if not eta.numel():
            return
        with torch.no_grad():
            largest, spread = eta.abs().amax(), self._spread()
            top = eta.shape[-1] * largest * centered.abs().amax()
            if spread is not None:
                top = top + 0.5 * eta.shape[-1] ** 2 * largest * (largest * spread.abs().amax())
        if check.violated(~top.isfinite()):
            raise ValueError(f"eta: scores of {float(largest):.3g} overflow {eta.dtype}; divide eta by its scale")

    # -- log Z, its gradient and its Hessian ---------------------------------------------------------------------------

    def log_normalizer(self, eta: Tensor) -> Tensor:
        """``log Z(η)``, shape (..., Q), in chunks of queries."""
        return self._centered_log_normalizer(eta) + (eta * center_of(self.locations)).sum(-1)

    def _centered_log_normalizer(self, eta: Tensor) -> Tensor:
        """``log Z(η)`` of the measure less its mean location."""
        total, spread = log_evidence(self._factor(eta), self._log_weights()), self._spread()
        return total if spread is None or self.each else total + (self._products(eta) * spread).sum(-1)

    def weights(self, eta: Tensor) -> Tensor:
        """``w_n(η)``, the attention over locations, shape (..., Q, N)."""
        return safe_softmax(log_joint(self._factor(eta), self._log_weights()))[0]

    def attention(self, eta: Tensor, points: Maybe = None) -> Tensor:  # type: ignore[override]
        """`weights`, in the words of the other formulations; ``p(unit=n | x_i, η_i)`` given points,
        which no longer asks for η_i.
        """
        return self.weights(eta) if points is None else safe_softmax(self.log_joint(eta, points))[0]

    def expected_outputs(self, eta: Tensor) -> Tensor:  # type: ignore[override]
        """`mean`, in the words of the other formulations."""
        return self.mean(eta)

    def mean(self, eta: Tensor) -> Tensor:
        """``∇ log Z(η) = Σ_n w_n (μ_n + Σ_n η)``, shape (..., Q, D), by fused attention: no Q x N tensor."""
        factor, spread = self._factor(eta), self._spread()
        if spread is None:
            return attend(factor, self.locations, self._log_weights())
        if not self.each:
            return attend(factor, self.locations, self._log_weights()) + self._applied(spread, eta)
        shape = common_shape(self.locations.shape[:-1], spread.shape[:-1])
        values = torch.cat([self.locations.expand(*shape, -1), spread.expand(*shape, -1)], -1)
        found = attend(factor, values, self._log_weights())
        features = eta.shape[-1]
        return found[..., :features] + self._applied(found[..., features:], eta)

    def covariance(self, eta: Tensor) -> Tensor:
        """``∇² log Z(η)``, the covariance of the tilted distribution, (..., Q, D, D); builds Q x N x D numbers.

        The base measure's own, a constructor argument, is the attribute ``base_covariance``.
        """
        weights, spread, means = self.weights(eta).unsqueeze(-1), self._spread(), self._tilted_means(eta)
        centered = means - (weights * means).sum(-2, keepdim=True)
        between = (weights * centered).transpose(-1, -2) @ centered
        if spread is None:
            return between
        inside = (weights * spread.unsqueeze(-3)).sum(-2)
        if self.covariances is not None:
            return between + inside.unflatten(-1, (eta.shape[-1], eta.shape[-1]))
        return between + torch.diag_embed(inside.expand(*inside.shape[:-1], eta.shape[-1]))

    def _tilted_means(self, eta: Tensor) -> Tensor:
        """``μ_n + Σ_n η_i``, (..., Q or 1, N, D)."""
        means, spread = self.locations.unsqueeze(-3), self._spread()
        return means if spread is None else means + self._applied(spread.unsqueeze(-3), eta.unsqueeze(-2))

    # -- the density of points given queries ---------------------------------------------------------------------------

    def log_joint(self, eta: Tensor, points: Tensor) -> Tensor:
        """``log p(x_i, unit=n | η_i)``, (..., Q, N): the log density of the Pyro program at every location."""
        self._require_data(eta, points)
        return log_joint(self._density(eta, points), self._log_weights())

    def log_evidence(self, eta: Tensor, points: Maybe = None) -> Tensor:  # type: ignore[override]
        """``log p(x_i | η_i) = log h(x_i) + x_i'η_i - log Z(η_i)``, (..., Q), in chunks of queries."""
        self._require_data(eta, points)
        return self.log_density(eta, points)

    def log_density(self, eta: Tensor, points: Maybe = None) -> Tensor:  # type: ignore[override]
        """`log_evidence` of data that have been checked."""
        return log_evidence(self._density(eta, points), self._log_weights())

    def output_distribution(self, eta: Tensor) -> TorchDistribution:  # type: ignore[override]
        """The tilted distribution ``Σ_n w_n(η) N(μ_n + Σ_n η, Σ_n)``, batch shape (..., Q);
        builds Q x N x D numbers.
        """
        if not self.dense:
            self.refuse("output_distribution")
        weights, means = Categorical(logits=safe_log(self.weights(eta))), self._tilted_means(eta)
        if self.covariances is not None:
            return MixtureSameFamily(weights, MultivariateNormal(means, self.covariances.unsqueeze(-4)))
        assert self.variance is not None
        return MixtureSameFamily(weights, Normal(means, self.variance.sqrt().unsqueeze(-3)).to_event(1))

    def _require_data(self, eta: Tensor, points: Maybe) -> None:
        if not self.dense:
            self.refuse("log_evidence")
        if points is not None:
            self.plates(eta, points)

    def _density(self, eta: Tensor, points: Maybe) -> Factor:
        """``log N(x; μ_n, Σ_n)`` by products of x with precisions, and ``x'η - log Z(η)`` as its base;
        x less the mean location.
        """
        if points is None:
            raise ValueError("points are None, but the log evidence is their density; give points (..., Q, D)")
        center, features = center_of(self.locations), self.locations.shape[-1]
        x, means = points - center, self.locations - center
        if self.covariances is not None:
            root = torch.linalg.cholesky(self.covariances)
            precision = torch.cholesky_inverse(root).flatten(-2)
            size = root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            identity = torch.eye(features, dtype=root.dtype, device=root.device)
            whitening = torch.linalg.solve_triangular(root, identity.expand_as(root), upper=False).mT.flatten(-2)
        else:
            assert self.variance is not None
            precision = self.variance.reciprocal()
            size = 0.5 * self.variance.log().expand(*self.variance.shape[:-1], features).sum(-1)
            whitening = precision.sqrt().expand(*precision.shape[:-1], features)
        tilt = (x * eta).sum(-1) - self._centered_log_normalizer(eta)
        normalizer = -size - 0.5 * features * math.log(2 * math.pi)
        one = torch.ones_like(means[..., :1])
        squares: tuple[Squares, ...] = ()
        if (apart := far_apart(x, means, one.squeeze(-1), whitening)) is not None:
            squares = (squares_apart(points, self.locations, one, whitening, center, apart=apart),)
            x, means = x.masked_fill(apart, 0.0), means.masked_fill(apart, 0.0)
        pull = self._applied(precision, means)
        bias = normalizer - 0.5 * (means * pull).sum(-1)
        parameters = torch.cat([pull, -precision.expand(*pull.shape[:-1], -1)], -1)
        return Factor(torch.cat([x, self._products(x)], -1), parameters, bias, tilt, squares)

    # -- entropy, its dual and the bound -------------------------------------------------------------------------------

    def entropy(self, eta: Tensor) -> Tensor:
        """``log Z(η) - η'∇log Z(η)``, the entropy of the tilted distribution relative to h, (..., Q).

        Shannon's entropy for the counting measure; ``-KL(p || h)`` where h is a probability distribution.
        """
        return self.log_normalizer(eta) - (eta * self.mean(eta)).sum(-1)

    def conjugate(self, mean: Tensor, num_steps: int = 100, tol: float | None = None) -> Conjugate:
        """The convex conjugate ``log Z*(m) = sup_η η'm - log Z(η)`` by damped Newton steps, for means (..., Q, D)."""
        validate_queries(self, mean)
        return conjugate(self, mean, num_steps, tol)

    def bound(self, eta: Tensor, weights: Tensor) -> Tensor:
        """``Σ_n w_n (log π_n - log w_n + μ_n'η + ½ η'Σ_nη) <= log Z(η)``, (..., Q), for weights (..., Q,
        N) on the simplex.

        It falls short by ``KL(weights || softmax)``: the gap of Theorem 3's proposed bound, closed at the softmax.
        """
        check.simplex("weights", weights)
        log_weights = safe_log(self.weights(eta))
        gap = torch.where(weights > 0, weights * (safe_log(weights) - log_weights), 0.0).sum(-1)
        return self.log_normalizer(eta) - gap

    # -- Pyro programs: the tilted distribution, and what it is before it is normalised --------------------------------

    def plates(self, eta: Tensor, points: Maybe = None, **sizes: int | None) -> Plates:  # type: ignore[override]
        """The plates of the problem that measure and data make, both checked: the leading axes,
        ``query`` and ``units``.
        """
        self.require_given(eta, sizes)
        batch = check.broadcastable(data=validate_data(self, eta, points), measure=self.batch_shape)
        return Plates(batch, query=eta.shape[-2], units=self.locations.shape[-2])

    def model(self, eta: Tensor, points: Maybe = None) -> None:  # type: ignore[override]
        """``unit ~ Categorical(w(η))``, ``points | unit ~ N(μ_n + Σ_n η, Σ_n)``: the tilted distribution,
        in the plates of the problem.
        """
        self.generate(self.plates(eta, points), (eta, points), collapsed=False)

    def collapsed(self, eta: Tensor, points: Maybe = None) -> None:  # type: ignore[override]
        """The same density of points with ``unit`` summed out."""
        self.generate(self.plates(eta, points), (eta, points), collapsed=True)

    def generate(self, plates: Plates, data: Data, collapsed: bool) -> None:
        """Sites of `model`, or of `collapsed`, within plates that the caller has made."""
        eta, points = data
        with plates.enter("query"):
            if collapsed:
                pyro.sample("points", self.output_distribution(eta), obs=points)
                return
            unit = pyro.sample("unit", Categorical(logits=safe_log(self.weights(eta))), infer=PARALLEL)
            pyro.sample("points", self._emission(unit, eta), obs=points)

    def unnormalized(self, eta: Tensor, points: Maybe = None) -> None:
        """``unit ~ Categorical(π)``, ``points | unit`` from the base measure,
        and a factor ``exp(x'η)`` times the measure's mass.

        The definition: its evidence is ``Z(η)``, with points ``Z(η) p(x|η)``. The posterior of ``unit`` is attention,
        that of ``points`` the tilted distribution, which `model` draws.
        """
        log_weights = self._log_weights()
        with self.plates(eta, points).enter("query"):
            unit = pyro.sample("unit", Categorical(logits=log_weights), infer=PARALLEL)
            x = pyro.sample("points", self._emission(unit, None), obs=points)
            pyro.factor("tilt", (x * eta).sum(-1) + log_weights.logsumexp(-1))

    def guide(self, eta: Tensor, points: Maybe = None, weights: Maybe = None) -> None:  # type: ignore[override]
        """``unit ~ Categorical(weights)``, and without points ``points | unit`` tilted: the exact posterior,
        with attention as its weights.

        Of `unnormalized` the ELBO is log Z with the exact weights and `bound` with others (..., Q, N) on the simplex.
        """
        plates = self.plates(eta, points)
        weights = self.attention(eta, points) if weights is None else weights
        check.simplex("weights", weights)
        with plates.enter("query"):
            unit = pyro.sample("unit", Categorical(logits=safe_log(weights)), infer=PARALLEL)
            if points is None:
                pyro.sample("points", self._emission(unit, eta))

    def _emission(self, unit: Tensor, eta: Maybe) -> TorchDistribution:
        """The distribution of x given the unit drawn; tilted by ``eta``, if given: ``N(μ_n + Σ_n η, Σ_n)``."""
        mean, covariance, variance = given_unit(self.locations, unit, 1), self.covariances, self.variance
        if covariance is not None:
            matrix = Vindex(covariance.unsqueeze(-4))[..., unit, :, :] if self.each else covariance
            mean = mean if eta is None else mean + (matrix @ eta.unsqueeze(-1)).squeeze(-1)
            return MultivariateNormal(mean, matrix)
        if variance is not None:
            spread = given_unit(variance, unit, 1) if self.each else variance
            spread = spread.expand(common_shape(spread.shape, mean.shape))
            return Normal(mean if eta is None else mean + spread * eta, spread.sqrt()).to_event(1)
        return Delta(mean, event_dim=1)


class Tilt(NamedTuple):
    """A family under a tilt.

    tilted: the distribution with its natural parameter moved by η. log_normalizer: ``log E[exp(x'η)]``.
    limit: η must be below it, None for no bound.
    """

    tilted: Callable[[Any, Tensor], Any]
    log_normalizer: Callable[[Any, Tensor], Tensor]
    limit: Callable[[Any], Tensor] | None = None


def _categorical(d: Any, eta: Tensor) -> Tensor:
    return (d.logits.log_softmax(-1) + eta).logsumexp(-1)


FAMILIES: dict[type, Tilt] = {
    Normal: Tilt(
        lambda d, eta: Normal(d.loc + d.scale.square() * eta, d.scale.expand((d.loc + eta).shape)),
        lambda d, eta: d.loc * eta + 0.5 * (d.scale * eta).square(),
    ),
    MultivariateNormal: Tilt(
        lambda d, eta: MultivariateNormal(
            d.loc + (d.covariance_matrix @ eta.unsqueeze(-1)).squeeze(-1), d.covariance_matrix
        ),
        lambda d, eta: (eta * (d.loc + 0.5 * (d.covariance_matrix @ eta.unsqueeze(-1)).squeeze(-1))).sum(-1),
    ),
    Bernoulli: Tilt(
        lambda d, eta: Bernoulli(logits=d.logits + eta), lambda d, eta: softplus(d.logits + eta) - softplus(d.logits)
    ),
    OneHotCategorical: Tilt(lambda d, eta: OneHotCategorical(logits=d.logits + eta), _categorical),
    Poisson: Tilt(lambda d, eta: Poisson(d.rate * eta.exp()), lambda d, eta: d.rate * eta.expm1()),
    Gamma: Tilt(
        lambda d, eta: Gamma(d.concentration.expand((d.rate - eta).shape), d.rate - eta),
        lambda d, eta: -d.concentration * torch.log1p(-eta / d.rate),
        lambda d: d.rate,
    ),
}


@dataclass(frozen=True, eq=False)
class TiltedFamily:
    """``p(x|η) ∝ h(x) exp(x'η)`` for a distribution h of `FAMILIES`; η has the shape of x, batch axes broadcast.

    A Categorical stands for the one-hot vectors of its labels, so that η (..., K) has one entry for each.

    >>> family = TiltedFamily(Gamma(2.0, 3.0))
    >>> round(float(family.mean(torch.tensor(1.0))), 6)                   # Gamma(2, 3 - 1)
    1.0
    """

    base: Any

    def _tilt(self, eta: Tensor) -> Tilt:
        tilt = FAMILIES[type(self.base)]
        if tilt.limit is not None and (eta >= tilt.limit(self.base)).any():
            raise ValueError(f"eta must be below the rate, {tilt.limit(self.base).tolist()}; log Z is infinite beyond")
        return tilt

    def tilted(self, eta: Tensor) -> Any:
        """The tilted distribution."""
        return self._tilt(eta).tilted(self.base, eta)

    def log_normalizer(self, eta: Tensor) -> Tensor:
        """``log E_h[exp(x'η)]``, over the axes of x that are event."""
        return self._tilt(eta).log_normalizer(self.base, eta)

    def mean(self, eta: Tensor) -> Tensor:
        """``∇ log Z(η)``, of the shape of η."""
        return self.tilted(eta).mean

    def covariance(self, eta: Tensor) -> Tensor:
        """``∇² log Z(η)``: the variance where x is a scalar, (..., D, D) where it is a vector."""
        tilted = self.tilted(eta)
        if isinstance(tilted, MultivariateNormal):
            return tilted.covariance_matrix
        if isinstance(tilted, OneHotCategorical):
            p = tilted.probs
            return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
        return tilted.variance

    def entropy(self, eta: Tensor) -> Tensor:
        """``log Z(η) - η'∇log Z(η) = -KL(p || h)``."""
        products = eta * self.mean(eta)
        return self.log_normalizer(eta) - (products.sum(-1) if self.base.event_shape else products)
