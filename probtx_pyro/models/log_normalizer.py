"""Attention is the gradient of a log normaliser: ``log Z(η) = log ∫ h(x) exp(x'η) dx`` for a base measure h.

``∇ log Z(η)`` is the mean of the tilted distribution ``p(x|η) ∝ h(x) exp(x'η)`` and ``∇² log Z(η)`` its covariance. If h sits on
points, the mean is softmax attention over them (EF Theorem 1a); one Gaussian gives ``μ + Ση`` (Corollary 1), a mixture of
Gaussians attention over ``μ_n + Σ_n η`` (Theorems 2 and 3; errata 12, 13, 22).

======  ===================  ========================  =============================================================
symbol  name                 shape                     support
======  ===================  ========================  =============================================================
η       ``eta``              (..., Q, D)               real: the queries
μ_n     ``locations``        (..., N, D)               real: points, or means
Σ_n     ``covariance``       (..., [N,] D, D)          positive definite, shared or one for each location
σ²_n    ``variance``         (..., 1 or N, 1 or D)     > 0: a diagonal, or a multiple of the identity
π_n     ``log_weights``      (..., N)                  log of weights >= 0, -inf is a mask; need not be normalised
w_n(η)  ``weights``          (..., Q, N)               rows on the simplex: ``softmax_n(log π_n + μ_n'η + ½ η'Σ_nη)``
x       site ``x``           (..., Q, D)               real
n       site ``unit``        (..., Q)                  0..N-1
======  ===================  ========================  =============================================================

Without covariance and variance h is discrete. Leading axes are independent problems and broadcast.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import pyro
import torch
from pyro.distributions import Categorical, Delta, MultivariateNormal, Normal, TorchDistribution
from pyro.ops.indexing import Vindex
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.models import _validation as check
from probtx_pyro.models._plates import PARALLEL, Plates, given_unit
from probtx_pyro.models._tilted_families import from_distribution
from probtx_pyro.models.formulation import Data, Datum, Formulation, Parameter
from probtx_pyro.ops import Factor, attend, fixed_point, log_evidence, log_joint, safe_log, safe_softmax
from probtx_pyro.ops._numerics import center_of

Maybe = Tensor | None  # an argument that may be left out
HALVINGS = 12  # of a Newton step that would not climb


class Conjugate(NamedTuple):
    """``sup_η η'm - log Z(η)``.

    value: (..., Q): the entropy of the tilted distribution with mean m, negated. eta: where the supremum is, (..., Q, D).
    converged: whether the mean there is m, (..., Q); a mean outside the convex hull of discrete points has no such η.
    """

    value: Tensor
    eta: Tensor
    converged: Tensor


@dataclass(frozen=True, eq=False, init=False)
class LogNormalizer(Formulation):
    """A base measure on N points, or a mixture of N Gaussians, and its log normaliser. Immutable.

    Parameters
    ----------
    locations, covariance, log_weights, variance
        As in the table above; ``covariance`` with as many axes as ``locations`` is shared by them, with one more it is one for
        each, and ``variance`` takes its place where it is diagonal. ``log_weights=None`` is the counting measure for points,
        so that log Z is a log-sum-exp, and uniform weights for mixtures.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, NaN or infinity, no locations, a covariance that is not symmetric and positive definite, both
        kinds of it.

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
    base_covariance: Maybe
    log_weights: Maybe
    variance: Maybe

    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {
        "locations": Parameter("unit feature", constraints.real),
        "covariance": Parameter("unit feature other_feature", constraints.positive_definite, field="base_covariance"),
        "variance": Parameter("unit feature", constraints.positive, logarithmic=True),
        "log_weights": Parameter("unit", constraints.real),
    }
    DATA: ClassVar[Mapping[str, Datum]] = {"eta": Datum("query feature", "given")}
    RESULTS: ClassVar[Mapping[str, str]] = {
        "attention": "query unit",
        "expected_outputs": "query feature",
        "log_normalizer": "query",
    }
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "": "it is given its queries and explains no data; take log_normalizer(eta) and its gradients, or its Pyro programs model and guide",
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
        fields = {"locations": locations, "base_covariance": covariance, "log_weights": log_weights}
        for name, x in {**fields, "variance": variance}.items():
            object.__setattr__(self, name, x)
        self._validate()

    def _validate(self) -> None:
        covariance, variance = self.base_covariance, self.variance
        check.at_least("locations", self.locations, 2, "(..., N, D)")
        if covariance is not None and variance is not None:
            raise ValueError("covariance and variance say the same thing; give one of them")
        tensors = {"locations": self.locations, "covariance": covariance, "variance": variance}
        check.same_dtype(**tensors, log_weights=self.log_weights)
        check.finite(**tensors)
        number, features = self.locations.shape[-2:]
        if number < 1:
            raise ValueError("locations has no units; give at least one")
        if covariance is not None:
            check.positive_definite("covariance", covariance, features)
            if self.each and covariance.shape[-3] != number:
                raise ValueError(
                    f"covariance has {covariance.shape[-3]} matrices but there are {number} locations; give one for each, or one"
                )
        if variance is not None:
            check.at_least("variance", variance, 2, "(..., 1 or N, 1 or D)")
            if variance.shape[-2] not in (1, number) or variance.shape[-1] not in (1, features):
                raise ValueError(
                    f"variance must end in (1 or {number}, 1 or {features}) but has shape {tuple(variance.shape)}"
                )
            check.positive("variance", variance)
        if self.log_weights is not None:
            if self.log_weights.shape[-1:] != (number,):
                raise ValueError(
                    f"log_weights must have shape (..., {number}), one for each location, not {tuple(self.log_weights.shape)}"
                )
            if check.violated(~torch.isfinite(self.log_weights.detach().logsumexp(-1))):
                raise ValueError(
                    "log_weights must be finite or -inf, and not -inf everywhere; use -inf for a mask only"
                )
        _ = self.batch_shape

    def _validate_queries(self, eta: Tensor) -> None:
        check.at_least("eta", eta, 2, "(..., Q, D)")
        check.same_size("eta", eta.shape[-1], "locations", self.locations.shape[-1], "coordinates")
        check.same_dtype(eta=eta, locations=self.locations)
        check.finite(eta=eta)

    def replace(self, **changes: Any) -> Self:
        """A measure with some constructor arguments changed, validated."""
        present = {"covariance" if name == "base_covariance" else name: x for name, x in vars(self).items()}
        return type(self)(**{**present, **changes})

    def held(self, name: str) -> Maybe:
        """The tensor that a parameter is kept in; a covariance that is shared has an axis of one unit."""
        x = super().held(name)
        return x.unsqueeze(-3) if name == "covariance" and x is not None and not self.each else x

    from_distribution = staticmethod(from_distribution)

    @property
    def each(self) -> bool:
        """True if every location has a covariance of its own."""
        if self.base_covariance is not None:
            return self.base_covariance.dim() > self.locations.dim()
        return self.variance is not None and self.variance.shape[-2] > 1

    def _log_weights(self) -> Tensor:
        """``log π_n`` as a row, (..., 1, N)."""
        if self.log_weights is not None:
            return self.log_weights.unsqueeze(-2)
        number = self.locations.shape[-2]
        discrete = self.base_covariance is None and self.variance is None
        return self.locations.new_full((1, number), 0.0 if discrete else -math.log(number))

    # -- one lowering: scores are statistics of η times parameters of the locations -------------------------------------

    def _spread(self) -> Tensor | None:
        """Covariances as rows of numbers, (..., 1 or N, K), K = 1, D or D²; None of points."""
        if self.base_covariance is None:
            return self.variance
        return (self.base_covariance if self.each else self.base_covariance.unsqueeze(-3)).flatten(-2)

    def _products(self, eta: Tensor) -> Tensor:
        """The factor of a row of `_spread` in ``½ η'Ση``, (..., Q, K)."""
        if self.base_covariance is not None:
            return 0.5 * (eta.unsqueeze(-1) * eta.unsqueeze(-2)).flatten(-2)
        assert self.variance is not None
        return 0.5 * (
            eta.square() if self.variance.shape[-1] > 1 or eta.shape[-1] == 1 else eta.square().sum(-1, keepdim=True)
        )

    def _applied(self, spread: Tensor, eta: Tensor) -> Tensor:
        """``Ση`` of covariances as rows (..., K) and η (..., D) that broadcast."""
        if self.base_covariance is None:
            return spread * eta
        matrix = spread.unflatten(-1, (eta.shape[-1], eta.shape[-1]))
        return (matrix @ eta.unsqueeze(-1)).squeeze(-1)

    def _factor(self, eta: Tensor) -> Factor:
        """Scores ``μ_n'η + ½ η'Σ_nη`` but for ``c'η`` (c the mean location) and for what all locations share."""
        self._validate_queries(eta)
        centered = self.locations - center_of(self.locations)
        statistics, parameters = eta, centered
        if self.each:
            spread = self._spread()
            assert spread is not None
            shape = torch.broadcast_shapes(centered.shape[:-1], spread.shape[:-1])
            statistics = torch.cat([eta, self._products(eta)], -1)
            parameters = torch.cat([centered.expand(*shape, -1), spread.expand(*shape, -1)], -1)
        return Factor(statistics, parameters, parameters.new_zeros(parameters.shape[:-1]))

    # -- log Z, its gradient and its Hessian -----------------------------------------------------------------------------

    def log_normalizer(self, eta: Tensor) -> Tensor:
        """``log Z(η)``, shape (..., Q), in chunks of queries."""
        total = log_evidence(self._factor(eta), self._log_weights()) + (eta * center_of(self.locations)).sum(-1)
        spread = self._spread()
        return total if spread is None or self.each else total + (self._products(eta) * spread).sum(-1)

    def weights(self, eta: Tensor) -> Tensor:
        """``w_n(η)``, the attention over locations, shape (..., Q, N)."""
        return safe_softmax(log_joint(self._factor(eta), self._log_weights()))[0]

    def attention(self, eta: Tensor) -> Tensor:  # type: ignore[override]
        """`weights`, in the words of the other formulations."""
        return self.weights(eta)

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
        shape = torch.broadcast_shapes(self.locations.shape[:-1], spread.shape[:-1])
        values = torch.cat([self.locations.expand(*shape, -1), spread.expand(*shape, -1)], -1)
        found = attend(factor, values, self._log_weights())
        features = eta.shape[-1]
        return found[..., :features] + self._applied(found[..., features:], eta)

    def covariance(self, eta: Tensor) -> Tensor:
        """``∇² log Z(η)``, the covariance of the tilted distribution, (..., Q, D, D); builds Q x N x D numbers.

        The base measure's own, a constructor argument, is the attribute ``base_covariance``.
        """
        weights, spread = self.weights(eta).unsqueeze(-1), self._spread()
        means = self.locations.unsqueeze(-3)
        if spread is not None:
            means = means + self._applied(spread.unsqueeze(-3), eta.unsqueeze(-2))
        centered = means - (weights * means).sum(-2, keepdim=True)
        between = (weights * centered).transpose(-1, -2) @ centered
        if spread is None:
            return between
        inside = (weights * spread.unsqueeze(-3)).sum(-2)
        if self.base_covariance is not None:
            return between + inside.unflatten(-1, (eta.shape[-1], eta.shape[-1]))
        return between + torch.diag_embed(inside.expand(*inside.shape[:-1], eta.shape[-1]))

    # -- entropy, its dual and the bound ---------------------------------------------------------------------------------

    def entropy(self, eta: Tensor) -> Tensor:
        """``log Z(η) - η'∇log Z(η)``, the entropy of the tilted distribution relative to h, (..., Q).

        Shannon's entropy for the counting measure; ``-KL(p || h)`` where h is a probability distribution.
        """
        return self.log_normalizer(eta) - (eta * self.mean(eta)).sum(-1)

    def conjugate(self, mean: Tensor, num_steps: int = 100, tol: float | None = None) -> Conjugate:
        """The convex conjugate ``log Z*(m) = sup_η η'm - log Z(η)`` by damped Newton steps, for means (..., Q, D)."""
        self._validate_queries(mean)
        tol = torch.finfo(mean.dtype).eps ** 0.75 if tol is None else tol
        sizes = 0.5 ** torch.arange(HALVINGS, dtype=mean.dtype, device=mean.device)

        def step(state):
            eta = state["eta"]
            hessian, slope = self.covariance(eta), mean - self.mean(eta)
            scale = hessian.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
            damped = hessian + 1e-10 * scale * torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
            towards = torch.linalg.lstsq(damped, slope.unsqueeze(-1)).solution.squeeze(-1)
            tried = eta + sizes.view(-1, *(1,) * eta.dim()) * towards
            value = (tried * mean).sum(-1) - self.log_normalizer(tried)
            best = value.nan_to_num(-math.inf).argmax(0, keepdim=True)
            return {"eta": tried.gather(0, best.unsqueeze(-1).expand(1, *eta.shape)).squeeze(0)}, None

        with torch.no_grad():
            start = {"eta": torch.zeros_like(mean)}
            eta = fixed_point(
                step, start, problems=mean.shape[:-1], num_steps=num_steps, tol=tol, progress=False
            ).state["eta"]
        reached = (self.mean(eta) - mean).norm(dim=-1)
        size = 1 + self.locations.abs().amax()
        return Conjugate((eta * mean).sum(-1) - self.log_normalizer(eta), eta, reached <= tol**0.5 * size)

    def bound(self, eta: Tensor, weights: Tensor) -> Tensor:
        """``Σ_n w_n (log π_n - log w_n + μ_n'η + ½ η'Σ_nη) <= log Z(η)``, (..., Q), for weights (..., Q, N) on the simplex.

        It falls short by ``KL(weights || softmax)``: the gap of Theorem 3's proposed bound, closed at the softmax.
        """
        check.simplex("weights", weights)
        log_weights = safe_log(self.weights(eta))
        gap = torch.where(weights > 0, weights * (safe_log(weights) - log_weights), 0.0).sum(-1)
        return self.log_normalizer(eta) - gap

    # -- the tilted distribution as Pyro programs: a base measure with a factor, and what it is once normalised ----------

    def plates(self, eta: Tensor) -> Plates:  # type: ignore[override]
        """The plates of the problem that measure and queries make: the leading axes, and ``query``."""
        self._validate_queries(eta)
        return Plates(check.broadcastable(eta=eta.shape[:-2], measure=self.batch_shape), query=eta.shape[-2])

    def model(self, eta: Tensor) -> None:  # type: ignore[override]
        """``unit ~ Categorical(π)``, ``x | unit`` from the base measure, and a factor ``exp(x'η)`` times the measure's mass.

        Its evidence is ``Z(η)``. The posterior of ``unit`` is attention, that of ``x`` the tilted distribution.
        """
        self.generate(self.plates(eta), (eta,), collapsed=False)

    def generate(self, plates: Plates, data: Data, collapsed: bool) -> None:
        """Sites of `model` within plates that the caller has made."""
        if collapsed:
            self.refuse("collapsed")
        log_weights = self._log_weights()
        with plates.enter("query"):
            unit = pyro.sample("unit", Categorical(logits=log_weights), infer=PARALLEL)
            x = pyro.sample("x", self._emission(unit, None))
            pyro.factor("tilt", (x * data[0]).sum(-1) + log_weights.logsumexp(-1))

    def guide(self, eta: Tensor, weights: Maybe = None) -> None:  # type: ignore[override]
        """``unit ~ Categorical(weights)``, ``x | unit`` tilted: the exact posterior of `model`, with attention as its weights.

        With the exact weights ELBO = log Z; with others on the simplex (..., Q, N) it is `bound`. Draws of the tilted distribution
        are ``Predictive(base.guide, num_samples=...)(eta)["x"]``.
        """
        plates = self.plates(eta)
        weights = self.weights(eta) if weights is None else weights
        check.simplex("weights", weights)
        with plates.enter("query"):
            unit = pyro.sample("unit", Categorical(logits=safe_log(weights)), infer=PARALLEL)
            pyro.sample("x", self._emission(unit, eta))

    def _emission(self, unit: Tensor, eta: Maybe) -> TorchDistribution:
        """The distribution of x given the unit drawn; tilted by ``eta``, if given: ``N(μ_n + Σ_n η, Σ_n)``."""
        mean, covariance, variance = given_unit(self.locations, unit, 1), self.base_covariance, self.variance
        if covariance is not None:
            matrix = Vindex(covariance.unsqueeze(-4))[..., unit, :, :] if self.each else covariance.unsqueeze(-3)
            mean = mean if eta is None else mean + (matrix @ eta.unsqueeze(-1)).squeeze(-1)
            return MultivariateNormal(mean, matrix)
        if variance is not None:
            spread = given_unit(variance, unit, 1) if self.each else variance
            spread = spread.expand(torch.broadcast_shapes(spread.shape, mean.shape))
            return Normal(mean if eta is None else mean + spread * eta, spread.sqrt()).to_event(1)
        return Delta(mean, event_dim=1)
