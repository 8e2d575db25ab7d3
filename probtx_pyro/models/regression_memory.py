"""Memory as Bayesian regression: a matrix that turns keys into values, seen through noise, and drifting between pairs.

``w_m ~ N(W_0m, Λ⁻¹)`` for each row m of the memory W; a `Drift` moves the rows before each pair; then
``v_t | W_t ~ N(W_t φ(k_t), I/β_t)`` with ``β_t = β b_t``. Linear attention, the delta rule, Kalman delta networks and
MesaNet are exact or approximate filters of it (`layers`), each with its own drift; softmax attention is none.

=====  ===================  ==================  ==============================================================
k_t    ``keys``             (..., T, D)         real, given
φ      ``feature_map``      D -> F              any sign; None is the identity
v_t    ``values``           (..., T, M)         real, explained
·      ``observed``         (..., T)            boolean: whether a pair is there; None is all
b_t    ``strength``         (..., T)            >= 0, 0 is an absent pair; None is 1
q_i    queries              (..., Q, D)         real, given
W_t    site ``memory``      (..., M, F)         real; (..., T, M, F) where it moves
W_0    ``mean``             (..., M, F)         real; None is 0
Λ      ``prior_precision``  (..., 1 or F)       > 0: a number is (1,), F numbers a diagonal
Λ      ``prior_matrix``     (..., F, F)         positive definite; in the place of ``prior_precision``
β      ``noise_precision``  (...)               > 0
γ_t    ``forgetting``       (...), (..., T)     (0, 1], of `Discount` and `PullBack`
a, ω   ``decay, spread``    (..., 1 or F)       real, >= 0, of `Walk`
=====  ===================  ==================  ==============================================================

Rows share one covariance C_t, which depends on keys and strengths and on no value. Leading axes are independent
problems (batch, head) and broadcast. All is computed in double precision, in chunks or, where a bound of the condition
number says that these would lose too many digits, by orthogonal transformations; docs/mathematics.md, section 8.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import pyro
import torch
from pyro.distributions import Gamma, MultivariateNormal, MultivariateStudentT, Normal, TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.serialization import add_safe_globals

from probtx_pyro.models import _validation as check
from probtx_pyro.models._plates import Plates
from probtx_pyro.models.formulation import Data, Datum, Formulation, GammaTerms, NormalTerms, Parameter, Terms
from probtx_pyro.ops import regression_memory as filters
from probtx_pyro.ops._numerics import common_shape, known
from probtx_pyro.ops.regression_memory import Filtered, Pairs, Path, Predict

Maybe = Tensor | None
FeatureMap = Callable[[Tensor], Tensor]
LOST = 1e-6  # relative error of a chunk above which digits are kept by orthogonal transformations
WORST = 1e18  # condition number at which these have lost as much


class Prior(NamedTuple):
    """W_0 (..., M, F), Λ and its inverse (..., F, F), in double precision."""

    mean: Tensor
    precision: Tensor
    covariance: Tensor


def _number(name: str, x: Tensor | float) -> Tensor:
    """A tensor; a number in double precision, which keeps its digits."""
    return x if isinstance(x, Tensor) else check.number(name, x, torch.float64)


# -- drifts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Drift:
    """The step of a memory between two pairs, before the first one, too: ``w_t = A_t w_{t-1} + c_t + N(0, Q_t)``.

    Each is a proper model: A, c and Q depend on keys and strengths alone. In what follows ``moves`` (..., T) says at
    which steps time passes.
    """

    PARAMETERS: ClassVar[Mapping[str, str]] = {}  # fields, by the names of the memory's table
    CONJUGATE: ClassVar[Collection[str]] = ()  # parameters of the memory whose conditionals are closed

    def __repr__(self) -> str:
        given = [x for x in vars(self).values() if isinstance(x, Tensor)]
        shown = [f"{float(x):.4g}" if x.numel() == 1 else f"{tuple(x.shape)}" for x in given]
        return f"{type(self).__name__}({', '.join(shown)})"

    def held(self, name: str) -> Maybe:
        """A parameter of the drift; None where it has none of this name."""
        return getattr(self, self.PARAMETERS[name]) if name in self.PARAMETERS else None

    def axes(self, name: str) -> str:
        """Names of the axes of a parameter."""
        return "feature"

    def problems(self, name: str, length: int) -> torch.Size:
        """The leading axes of a parameter."""
        x = self.held(name)
        return torch.Size() if x is None else x.shape[: x.dim() - len(self.axes(name).split())]

    def support(self, name: str) -> constraints.Constraint | None:
        """The support of a parameter where it is narrower than in the memory's table."""
        return None

    def changed(self, parameters: Mapping[str, Tensor]) -> Self:
        """The drift with other parameters, not validated."""
        return check.unchecked(type(self), **vars(self) | {self.PARAMETERS[k]: x for k, x in parameters.items()})

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move and convert every tensor, as ``torch.Tensor.to``."""
        moved = {k: x.to(*args, **kwargs) for k, x in vars(self).items() if isinstance(x, Tensor)}
        return check.unchecked(type(self), **vars(self) | moved)

    def predict(self, prior: Prior, moves: Tensor) -> Predict:
        """The step before pair t: moments of a row after step t - 1 to those before the pair."""
        raise NotImplementedError

    def filter(self, pairs: Pairs, prior: Prior, moves: Tensor, queries: Maybe, size: int) -> Filtered:
        """Filter all pairs."""
        found, _ = filters.steps(self.predict(prior, moves), pairs, prior.mean, prior.covariance, queries)
        return found

    def gain(self, before: Tensor, predicted: Tensor, prior: Prior, moves: Tensor) -> Tensor:
        """``J = C_{t-1} A_t' Ĉ_t⁻¹`` of the backward pass, (..., T, F, F), from both covariances (..., T, F, F)."""
        raise NotImplementedError

    def transition(self, before: Tensor, prior: Prior, moves: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A_t and Q_t (..., T, F, F) and c_t (..., T, M, F), from the covariances C_{t-1} (..., T, F, F)."""
        raise NotImplementedError


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


@dataclass(frozen=True, eq=False, repr=False)
class Static(Drift):
    """No drift: ridge regression; MesaNet without forgetting."""

    CONJUGATE: ClassVar[Collection[str]] = ("prior_precision", "noise_precision", "mean")

    def predict(self, prior: Prior, moves: Tensor) -> Predict:
        """The same moments."""
        return lambda t, mean, covariance: (mean, covariance)

    def filter(self, pairs: Pairs, prior: Prior, moves: Tensor, queries: Maybe, size: int) -> Filtered:
        """Filter in chunks, or step by step by orthogonal transformations."""
        squares = torch.where(pairs.present, pairs.precision * pairs.features.square().sum(-1), 0.0).sum(-1)
        condition = 1 + squares / torch.linalg.eigvalsh(prior.precision.detach())[..., 0]
        return _careful(pairs, None, prior, queries, size, condition.detach())

    def gain(self, before: Tensor, predicted: Tensor, prior: Prior, moves: Tensor) -> Tensor:
        """The identity."""
        return _eye(before).expand_as(before)

    def transition(self, before: Tensor, prior: Prior, moves: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The identity, without noise."""
        return _eye(before).expand_as(before), prior.mean.new_zeros(()), torch.zeros_like(before)


@dataclass(frozen=True, eq=False, repr=False)
class Discount(Drift):
    """Certainty is discounted, ``P̂ = γ P``: recursive least squares with forgetting (West & Harrison's discount).

    Parameters
    ----------
    factor
        γ, in (0, 1]: a number, (..., T) with a factor for each step, or (...) with one for each problem.
    """

    factor: Tensor
    per_step: bool = field(init=False, default=False)
    PARAMETERS: ClassVar[Mapping[str, str]] = {"forgetting": "factor"}

    def __post_init__(self) -> None:
        factor = _number("forgetting", self.factor)
        if check.violated(~((factor > 0) & (factor <= 1))):
            raise ValueError("forgetting must lie in (0, 1]; gates are factors, not logarithms: give exp(log gate)")
        object.__setattr__(self, "factor", factor)
        object.__setattr__(self, "per_step", factor.dim() > 0)

    def axes(self, name: str) -> str:
        """A step, where there is a factor for each."""
        return "step" if self.per_step else ""

    def _by_step(self, length: int) -> Tensor:
        """The factor, (..., 1 or T)."""
        stepwise = self.per_step and self.factor.shape[-1] in (1, length)
        return self.factor if stepwise else self.factor.unsqueeze(-1)

    def problems(self, name: str, length: int) -> torch.Size:
        """The leading axes; all of them where no axis counts steps."""
        return self._by_step(length).shape[:-1]

    def log_factor(self, moves: Tensor) -> Tensor:
        """``log γ_t``, (..., T), 0 where time stands still."""
        return torch.where(moves, self._by_step(moves.shape[-1]).double().log(), 0.0)

    def predict(self, prior: Prior, moves: Tensor) -> Predict:
        """Covariances grow by 1/γ."""
        kept = self.log_factor(moves).exp()
        return lambda t, mean, covariance: (mean, covariance / kept[..., t, None, None])

    def filter(self, pairs: Pairs, prior: Prior, moves: Tensor, queries: Maybe, size: int) -> Filtered:
        """Filter in chunks, or step by step by orthogonal transformations."""
        return _careful(pairs, self.log_factor(moves), prior, queries, size)

    def gain(self, before: Tensor, predicted: Tensor, prior: Prior, moves: Tensor) -> Tensor:
        """``γ I``."""
        return self.log_factor(moves).exp()[..., None, None] * _eye(before)

    def transition(self, before: Tensor, prior: Prior, moves: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The identity, with noise of covariance ``(1/γ - 1) C``."""
        grown = torch.expm1(-self.log_factor(moves))[..., None, None] * before
        return _eye(before).expand_as(before), prior.mean.new_zeros(()), grown


@dataclass(frozen=True, eq=False, repr=False)
class PullBack(Discount):
    """Certainty is pulled back to the prior's, ``P̂ = γ P + (1 - γ) Λ`` and N̂ likewise: MesaNet,
    whose λ does not decay.

    The predicted density is ``p(W | past)^γ p_0(W)^(1-γ)`` (Kulhavý's stabilised forgetting).

    Parameters
    ----------
    factor
        γ, as of `Discount`.
    """

    def predict(self, prior: Prior, moves: Tensor) -> Predict:
        """Natural parameters are averaged with those of the prior."""
        kept = self.log_factor(moves).exp()[..., None, None]

        def step(t: int, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
            gamma, precision = kept[..., t, :, :], torch.linalg.inv(covariance)
            pulled = gamma * precision + (1 - gamma) * prior.precision
            product = gamma * mean @ precision + (1 - gamma) * prior.mean @ prior.precision
            found = torch.linalg.inv(pulled)
            return product @ found, 0.5 * (found + found.mT)

        return step

    def filter(self, pairs: Pairs, prior: Prior, moves: Tensor, queries: Maybe, size: int) -> Filtered:
        """Filter with a Cholesky factor at every step, or by orthogonal transformations."""
        return _careful(pairs, self.log_factor(moves), prior, queries, size, pulled=True)

    def transition(self, before: Tensor, prior: Prior, moves: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``γ R P``, with noise of covariance ``(1 - γ) R (γ P + Λ) R`` about ``(I - A) W_0``, R = P̂⁻¹."""
        gamma, precision = self.log_factor(moves).exp()[..., None, None], torch.linalg.inv(before)
        wide = prior.precision.unsqueeze(-3)
        found = torch.linalg.inv(gamma * precision + (1 - gamma) * wide)
        along = gamma * found @ precision
        noise = (1 - gamma) * found @ (gamma * precision + wide) @ found
        return along, prior.mean.unsqueeze(-3) @ (_eye(before) - along).mT, 0.5 * (noise + noise.mT)


@dataclass(frozen=True, eq=False, repr=False)
class Walk(Drift):
    """Features of the memory wander, ``w_t = a w_{t-1} + N(0, ω)``: the textbook Kalman filter.

    Parameters
    ----------
    decay
        a, a number or (..., 1 or F).
    spread
        ω, likewise; None ties it to the prior, ``ω = (1 - a²)/λ``, which makes the prior stationary
        (Ornstein-Uhlenbeck); then ``|a| < 1``.
    """

    decay: Tensor
    spread: Maybe = None
    PARAMETERS: ClassVar[Mapping[str, str]] = {"decay": "decay", "spread": "spread"}
    CONJUGATE: ClassVar[Collection[str]] = ("prior_precision", "noise_precision", "mean")

    def __post_init__(self) -> None:
        decay = _number("decay", self.decay)
        spread = None if self.spread is None else _number("spread", self.spread)
        if spread is None and check.violated(decay.abs() >= 1):
            raise ValueError("decay must lie in (-1, 1) where spread follows the prior; give spread as well")
        if spread is not None and check.violated(~(spread >= 0)):
            raise ValueError("spread must be >= 0; it is the variance that a step adds")
        object.__setattr__(self, "decay", decay if decay.dim() else decay.reshape(1))
        object.__setattr__(self, "spread", spread if spread is None or spread.dim() else spread.reshape(1))

    @classmethod
    def stationary(cls, decay: Tensor | float, prior_precision: Tensor | float) -> "Walk":
        """The walk whose spread is that of a stationary prior, as a number that does not follow the prior."""
        decay = _number("decay", decay)
        return cls(decay, (1 - decay.square()) / _number("prior_precision", prior_precision))

    def support(self, name: str) -> constraints.Constraint | None:
        """A stationary walk decays."""
        return constraints.interval(-1.0, 1.0) if name == "decay" and self.spread is None else None

    def variance(self, prior: Prior) -> Tensor:
        """ω, (..., F)."""
        if self.spread is not None:
            return self.spread.double().expand(*self.spread.shape[:-1], prior.mean.shape[-1])
        return (1 - self.decay.double().square()) * prior.covariance.diagonal(dim1=-2, dim2=-1)

    def predict(self, prior: Prior, moves: Tensor) -> Predict:
        """The moments of a step of the walk."""
        decay, noise = self.decay.double(), self.variance(prior)

        def step(t: int, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
            moved = decay.unsqueeze(-1) * covariance * decay.unsqueeze(-2) + torch.diag_embed(noise)
            here = moves[..., t, None, None]
            return torch.where(here, mean * decay.unsqueeze(-2), mean), torch.where(here, moved, covariance)

        return step

    def filter(self, pairs: Pairs, prior: Prior, moves: Tensor, queries: Maybe, size: int) -> Filtered:
        """Filter step by step."""
        found = super().filter(pairs, prior, moves, queries, size)
        lost = found.condition * torch.finfo(torch.float64).eps > LOST  # there is no other form
        return found._replace(condition=found.condition.masked_fill(lost, math.inf))

    def gain(self, before: Tensor, predicted: Tensor, prior: Prior, moves: Tensor) -> Tensor:
        """``C A Ĉ⁻¹``, the identity where time stands still."""
        along = self.decay.double()[..., None, :, None] * before  # A C
        found = torch.linalg.solve(predicted, along).mT
        return torch.where(moves[..., None, None], found, _eye(before))

    def transition(self, before: Tensor, prior: Prior, moves: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``diag a``, with noise of variance ω."""
        along = torch.diag_embed(self.decay.double().expand(*self.decay.shape[:-1], before.shape[-1])).unsqueeze(-3)
        noise = torch.diag_embed(self.variance(prior)).unsqueeze(-3)
        here = moves[..., None, None]
        return torch.where(here, along, _eye(before)), prior.mean.new_zeros(()), torch.where(here, noise, 0.0)


@dataclass(frozen=True, eq=False, repr=False)
class Reset(Drift):
    """Certainty falls back to the prior's at every step and the mean stays: the delta rule, with steps β/(λ + β|φ|²).

    Parameters
    ----------
    precision
        λ_t, (..., T), where it is not the prior's at all steps.
    decay
        γ_t, a number or (..., T): the mean decays to ``γ m``, as in the gated delta rule; None is 1.

    Notes
    -----
    For ``γ_t² λ_t <= λ_{t-1}`` it is a proper model, which undoes the memory's certainty along the last key and nowhere
    else. Otherwise it is a sequence of densities and no model of a memory, `coherent` is False, and evidence is
    refused.
    """

    precision: Maybe = None
    decay: Maybe = None

    def __post_init__(self) -> None:
        for name in ("precision", "decay"):
            x = getattr(self, name)
            object.__setattr__(self, name, None if x is None else _number(name, x))
        if self.precision is not None and check.violated(~(self.precision > 0)):
            raise ValueError("precision of Reset must be > 0; it is an inverse variance")

    def kept(self, moves: Tensor) -> Tensor:
        """γ_t, (..., T)."""
        decay = moves.new_ones((), dtype=torch.float64) if self.decay is None else self.decay.double()
        return torch.where(moves, decay, 1.0)

    def coherent(self, prior: Prior, moves: Tensor) -> bool:
        """Return whether it is a model of a memory."""
        if self.precision is None or prior.mean.shape[-1] == 1:
            return self.decay is None or bool((self.kept(moves) <= 1).all())
        after = self.precision.double().expand(moves.shape)
        first = torch.linalg.eigvalsh(prior.precision)[..., :1].expand(*moves.shape[:-1], 1)
        before = torch.cat([first, after[..., :-1]], -1)
        return bool((self.kept(moves).square() * after <= before * (1 + 1e-12)).all())

    def _reset(self, prior: Prior, t: int) -> Tensor:
        if self.precision is None:
            return prior.covariance
        precision = self.precision.double()
        own = precision if precision.dim() == 0 else precision[..., t, None, None]
        return _eye(prior.mean) / own

    def predict(self, prior: Prior, moves: Tensor) -> Predict:
        """The covariance is reset."""
        kept = self.kept(moves)

        def step(t: int, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
            here = moves[..., t, None, None]
            own = self._reset(prior, t)
            return kept[..., t, None, None] * mean, torch.where(here, own, covariance)

        return step

    def gain(self, before: Tensor, predicted: Tensor, prior: Prior, moves: Tensor) -> Tensor:
        """``γ C Ĉ⁻¹``."""
        return torch.linalg.solve(predicted, self.kept(moves)[..., None, None] * before).mT

    def transition(self, before: Tensor, prior: Prior, moves: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``γ I``, with what is missing of the covariance that it is reset to as noise."""
        kept = self.kept(moves)[..., None, None]
        reset = torch.stack([self._reset(prior, t) for t in range(moves.shape[-1])], -3)
        noise = torch.where(moves[..., None, None], reset - kept.square() * before, 0.0)
        return kept * _eye(before), prior.mean.new_zeros(()), 0.5 * (noise + noise.mT)


def _careful(
    pairs: Pairs,
    gamma: Maybe,
    prior: Prior,
    queries: Maybe,
    size: int,
    condition: Maybe = None,
    pulled: bool = False,
) -> Filtered:
    """Filter in chunks, and those problems whose rounding errors may pass `LOST` by orthogonal transformations.

    ``condition``: a bound of theirs, where it is known before. Each problem decides for itself.
    """

    def chunked(pairs: Pairs, gamma: Maybe, prior: Prior, queries: Maybe) -> Filtered:
        if pulled and gamma is not None:
            return filters.pull_back(pairs, gamma, prior.mean, prior.precision, queries, min(size, 32))
        return filters.chunks(pairs, gamma, prior.mean, prior.covariance, queries, size)

    found = chunked(pairs, gamma, prior, queries)
    condition = found.condition if condition is None else torch.maximum(condition, found.condition)
    found = found._replace(condition=condition.detach())
    lost = ~(found.condition * torch.finfo(torch.float64).eps <= LOST)
    if not known(lost.any(), otherwise=False):
        return found
    batch, flat = lost.shape or (1,), lost.flatten()
    tensors = [*pairs, *prior] + [x for x in (gamma, queries) if x is not None]
    ranks = [2, 2, 1, 1, 2, 2, 2] + [1] * (gamma is not None) + [2] * (queries is not None)
    rows = [x.expand(*batch, *x.shape[x.dim() - k :]).flatten(0, -1 - k) for x, k in zip(tensors, ranks, strict=True)]
    parts = []
    for which, exact in ((~flat, False), (flat, True)):
        if not bool(which.any()):
            continue
        own = [x[which] for x in rows]
        some, start, rest = Pairs(*own[:4]), Prior(*own[4:7]), own[7:]
        decay, asked = rest.pop(0) if gamma is not None else None, rest.pop(0) if queries is not None else None
        root = torch.linalg.cholesky(start.precision).mT
        if exact:
            parts.append(filters.orthogonal(some, decay, start.mean, root, asked, pulled))
        else:
            parts.append(chunked(some, decay, start, asked))
    order = torch.cat([(~flat).nonzero(), flat.nonzero()]).squeeze(-1).argsort()
    merged = [None if x[0] is None else torch.cat(x)[order].unflatten(0, batch) for x in zip(*parts, strict=True)]
    alone: Any = (x if lost.dim() or x is None else x.squeeze(0) for x in merged)
    return Filtered(*alone)


def _trusted(found: Filtered, drift: Drift) -> Filtered:
    """Refuse a filter that has lost its digits."""
    if known(~(found.condition <= WORST).all(), otherwise=False):
        repair = "raise prior_precision or lower noise_precision"
        repair += "; or use PullBack, which does not forget the prior" if type(drift) is Discount else ""
        raise ValueError(
            f"the memory is too ill-conditioned under {drift!r}: 1 + β φ'Ĉφ reaches "
            f"{float(found.condition.max()):.2g}; {repair}"
        )
    return found


# -- distributions -----------------------------------------------------------------------------------------------------


def _root(covariance: Tensor) -> Tensor:
    """A matrix whose square is a covariance that may be singular."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)


class MemoryPath(TorchDistribution):
    """A memory at T steps: a Markov chain whose rows move by the same matrices, in the order given.

    ``w_1 ~ N(first_m, C)``, ``w_{t+1} ~ N(A_t w_t + c_t, Q_t)`` for each row. Event shape (T, M, F).

    Parameters
    ----------
    first, covariance
        Mean (..., M, F) and covariance (..., F, F) of the first matrix.
    along, offset, noise
        A_t, Q_t (..., T - 1, F, F) and c_t (..., T - 1, M, F).
    reverse
        True where the chain runs from the last step to the first; values are in the order of time all the same.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = True

    def __init__(
        self,
        first: Tensor,
        covariance: Tensor,
        along: Tensor,
        offset: Tensor,
        noise: Tensor,
        reverse: bool = False,
        validate_args: bool | None = None,
    ):
        batch = common_shape(*(x.shape[:-k] for x, k in ((first, 2), (covariance, 2), (along, 3), (noise, 3))))
        self.first, self.covariance = first.expand(*batch, *first.shape[-2:]), covariance
        self.along, self.noise, self.reverse = along, noise, reverse
        self.offset = offset if offset.dim() else offset.expand(*along.shape[:-2], *first.shape[-2:])
        super().__init__(batch, torch.Size((along.shape[-3] + 1, *first.shape[-2:])), validate_args=validate_args)

    @constraints.dependent_property
    def support(self) -> constraints.Constraint:
        """Real numbers."""
        return constraints.independent(constraints.real, 3)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> "MemoryPath":
        """The same chain for more problems."""
        first = self.first.expand(*batch_shape, *self.first.shape[-2:])
        return MemoryPath(first, self.covariance, self.along, self.offset, self.noise, self.reverse)

    def moved(self, normal: Tensor) -> Tensor:
        """Turn standard normal numbers (..., T, M, F) into a path."""
        rows = list(normal.flip(-3).unbind(-3)) if self.reverse else list(normal.unbind(-3))
        path = [self.first + rows[0] @ _root(self.covariance).mT]
        roots = _root(self.noise)
        for t, row in enumerate(rows[1:]):
            mean = path[-1] @ self.along[..., t, :, :].mT + self.offset[..., t, :, :]
            path.append(mean + row @ roots[..., t, :, :].mT)
        stacked = torch.stack(torch.broadcast_tensors(*path), -3)
        return stacked.flip(-3) if self.reverse else stacked

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw paths."""
        shape = self._extended_shape(torch.Size(sample_shape))
        return self.moved(torch.randn(shape, dtype=self.first.dtype, device=self.first.device))

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of paths (..., T, M, F)."""
        path = value.flip(-3) if self.reverse else value
        step = path[..., :-1, :, :] @ self.along.mT + self.offset
        first = MultivariateNormal(path[..., 0, :, :], self.covariance.unsqueeze(-3))
        rest = MultivariateNormal(path[..., 1:, :, :], self.noise.unsqueeze(-3))
        return first.log_prob(self.first).sum(-1) + rest.log_prob(step).sum((-2, -1))


class Prequential(TorchDistribution):
    """All values of a stream, the memory summed out: one event (T, M), whose steps depend on each other.

    Its log density is the sum of each value's given those before it; draws are made in the same order.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, memory: "RegressionMemory", data: Data, batch: torch.Size, answers: int):
        self.memory, self.data = memory, data
        super().__init__(batch, torch.Size((data[0].shape[-2], answers)), validate_args=False)

    @constraints.dependent_property
    def support(self) -> constraints.Constraint:
        """Real numbers."""
        return constraints.independent(constraints.real, 2)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> "Prequential":
        """The same stream for more problems."""
        return Prequential(self.memory, self.data, torch.Size(batch_shape), self.event_shape[-1])

    def log_prob(self, value: Tensor) -> Tensor:
        """``Σ_t log p(v_t | v_1..v_{t-1})``, the batch shape."""
        density = self.memory.log_density(self.data[0], value, *self.data[2:]).sum(-1)
        return density.expand(common_shape(density.shape, self.batch_shape))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw values, each given those before it."""
        shape = self._extended_shape(torch.Size(sample_shape))
        return self.memory._drawn_values(self.data, shape)


# -- the memory --------------------------------------------------------------------------------------------------------


class Read(NamedTuple):
    """Answers of a memory to queries.

    mean: (..., Q, M). variance: of a value, (..., Q), for each of its M numbers. mean_variance: of the mean answer,
    without the noise of a value, (..., Q).
    """

    mean: Tensor
    variance: Tensor
    mean_variance: Tensor


class Smoothed(NamedTuple):
    """The memory at each step given all pairs: means (..., T, M, F), covariances of each row (..., T, F, F)."""

    mean: Tensor
    covariance: Tensor


class Moments(NamedTuple):
    """Moments that conditionals read: expected, or of a memory that was drawn.

    log_evidence: (..., T). pairs: pairs that are there, (...). residual: ``Σ b |v - W φ|²``, (...). squares: of a row's
    coordinates from where the prior has them, summed over rows and, where the prior is stationary, over steps as the
    prior weighs them, (..., F). number: of squares in each of these sums, (...). quadratic and numbers: minus twice the
    log density of the memory, or its path, that varies with it, and how many numbers it has, (...). first: the memory
    before the first step, (..., M, F).
    """

    log_evidence: Tensor
    pairs: Tensor
    residual: Tensor
    squares: Tensor
    number: Tensor
    quadratic: Tensor
    numbers: Tensor
    first: Tensor

    def reduced(self, total: Callable[..., tuple[Tensor, ...]]) -> "Moments":
        """Refuse to add up over processes: steps depend on those before them."""
        raise NotImplementedError(
            "process_group: the pairs of a memory depend on each other in time and cannot be spread over processes; "
            "spread its problems"
        )


class MemoryState(NamedTuple):
    """A memory after some pairs.

    mean: (..., M, F). precision, covariance: of each row, (..., F, F), in units of the noise where the memory is
    relative. log_evidence: log density of each value given the pairs before it, (..., T). num_steps: T. memory: a
    `RegressionMemory` whose prior is this posterior.
    """

    mean: Tensor
    precision: Tensor
    covariance: Tensor
    log_evidence: Tensor
    num_steps: int
    memory: "RegressionMemory"


class Setting(NamedTuple):
    """A memory and pairs, in double precision and broadcast: what filters take."""

    pairs: Pairs
    prior: Prior
    moves: Tensor
    noise: Tensor  # β, (..., 1)
    dtype: torch.dtype


@dataclass(frozen=True, eq=False, repr=False)
class RegressionMemory(Formulation):
    """A memory matrix under a normal prior, learned pair by pair, with bands. Immutable.

    Parameters
    ----------
    prior_precision, noise_precision, mean, feature_map, prior_matrix
        As in the table above; exactly one of ``prior_precision`` and ``prior_matrix``. A ``Gamma(a, r)`` as noise
        precision, of a memory that is ``relative``, is a prior that is summed out: values are then Student's t.
    drift
        What happens between pairs: `Static` (None), `Discount`, `PullBack`, `Walk` or `Reset`.
    relative
        True where Λ, and what a drift adds, are in units of the noise: ``w_m ~ N(W_0m, (β Λ)⁻¹)``.
    noise_shape, noise_rate
        The Gamma of the noise precision, tensors (...); as given by a Gamma, too.

    Raises
    ------
    ValueError
        Numbers outside their support; both or neither of the two precisions; a Gamma without ``relative``.

    Examples
    --------
    >>> keys, values = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[2.1], [3.9], [6.2]])
    >>> memory = RegressionMemory(1.0, 25.0)
    >>> state = memory.filter(keys, values)
    >>> round(float(state.mean), 2), round(float(state.covariance), 4)
    (2.03, 0.0028)
    >>> answer = memory.read(torch.tensor([[4.0]]), keys, values, causal=False)
    >>> round(float(answer.mean), 2), round(float(answer.variance) ** 0.5, 2)
    (8.12, 0.29)

    References
    ----------
    Bishop 2006, section 3.5 (evidence); West & Harrison 1997 (discount); von Oswald et al. 2025, *MesaNet*;
    docs/mathematics.md, section 8.
    """

    prior_precision: Any = None
    noise_precision: Any = 1.0
    drift: Any = None
    mean: Maybe = None
    feature_map: FeatureMap | None = None
    relative: bool = False
    prior_matrix: Maybe = field(default=None, kw_only=True)
    noise_shape: Maybe = field(default=None, kw_only=True)
    noise_rate: Maybe = field(default=None, kw_only=True)

    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {
        "prior_precision": Parameter("feature", constraints.positive, Gamma, logarithmic=True, plate=False),
        "noise_precision": Parameter("", constraints.positive, Gamma, logarithmic=True),
        "mean": Parameter("answer feature", constraints.real, Normal, plate=False),
        "forgetting": Parameter("step", constraints.unit_interval, plate=False),
        "decay": Parameter("feature", constraints.real, plate=False),
        "spread": Parameter("feature", constraints.nonnegative, plate=False),
    }
    DATA: ClassVar[Mapping[str, Datum]] = {
        "keys": Datum("step feature", "given"),
        "values": Datum("step answer"),
        "observed": Datum("step", "mask"),
        "strength": Datum("step", "given"),
    }
    RESULTS: ClassVar[Mapping[str, str]] = {
        "attention": "query source",
        "log_evidence": "step",
        "expected_outputs": "step answer",
    }
    AT_DRAWS: ClassVar[tuple[str, ...]] = ()
    PREQUENTIAL: ClassVar[bool] = True
    LATENTS: ClassVar[tuple[str, ...]] = ("memory",)
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "attention": "what memory.attention(queries, keys) returns is a signed smoother matrix, not a posterior to average",
        "conditional": "not all parameters of its drift have a closed conditional; draw with inference.nuts",
        "draw_latents": "its drift has no closed conditionals; draw with inference.nuts",
        "expect": "its drift has no closed conditionals; inference.adapt climbs by gradients where priors say so",
        "": "see docs/what_serves_what.md",
    }

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)
        drift = Static() if self.drift is None else self.drift
        if not isinstance(drift, Drift):
            raise ValueError(f"drift must be a value such as models.Discount(0.99), not a {type(drift).__name__}")
        put("drift", drift)
        if (self.prior_precision is None) == (self.prior_matrix is None):
            raise ValueError("give exactly one of prior_precision, (..., 1 or F), and prior_matrix, (..., F, F)")
        if self.prior_precision is not None:
            precision = _number("prior_precision", self.prior_precision)
            put("prior_precision", precision if precision.dim() else precision.reshape(1))
            check.positive("prior_precision", self.prior_precision)
        else:
            assert self.prior_matrix is not None
            check.tensor("prior_matrix", self.prior_matrix)
            check.positive_definite("prior_matrix", self.prior_matrix, self.prior_matrix.shape[-1])
        noise = self.noise_precision
        if isinstance(noise, torch.distributions.Gamma):
            put("noise_shape", noise.concentration)
            put("noise_rate", noise.rate)
            noise = noise.concentration / noise.rate
        put("noise_precision", _number("noise_precision", noise))
        check.positive("noise_precision", self.noise_precision)
        if (self.noise_shape is None) != (self.noise_rate is None):
            raise ValueError("give both of noise_shape and noise_rate, or a Gamma as noise_precision")
        if self.noise_shape is not None and not self.relative:
            raise ValueError("noise_precision: a Gamma is summed out in units of the noise; give relative=True")
        if self.mean is not None:
            check.at_least("mean", self.mean, 2, "(..., M, F)")
        given = {name: self.held(name) for name in self.PARAMETERS}
        check.finite(**given, prior_matrix=self.prior_matrix)

    # -- parameters ----------------------------------------------------------------------------------------------------

    def held(self, name: str) -> Maybe:
        """The tensor that a parameter is kept in; those of the drift are the drift's."""
        return getattr(self, name) if name in vars(self) else self.drift.held(name)

    def row(self, name: str) -> Parameter:
        """The row of a parameter, as the drift has it: whether its conditional is closed, and its axes."""
        row = super().row(name)
        if name in self.drift.PARAMETERS:
            return replace(row, axes=self.drift.axes(name), support=self.drift.support(name) or row.support)
        closed = name in self.drift.CONJUGATE or (name == "noise_precision" and self.relative)
        return row if closed else replace(row, conjugate=None)

    def check_prior(self, name: str) -> None:
        """Refuse a prior on what this memory does not have."""
        if name in ("forgetting", "decay", "spread") and self.held(name) is None:
            kinds = {"forgetting": "Discount or models.PullBack", "decay": "Walk", "spread": "Walk, with a spread"}
            raise ValueError(f"priors: {self.drift!r} has no {name}; give the memory drift=models.{kinds[name]}")
        if name == "noise_precision" and self.noise_shape is not None:
            raise ValueError("priors: the noise precision has a Gamma that is summed out; give it a number instead")
        super().check_prior(name)

    def with_parameters(self, parameters: Mapping[str, Maybe]) -> Self:
        """The memory with some parameters changed, those of its drift among them; not validated."""
        drifting = {name: x for name, x in parameters.items() if name in self.drift.PARAMETERS}
        changed = {name: x for name, x in parameters.items() if name not in drifting}
        if drifting:
            changed["drift"] = self.drift.changed(drifting)
        return check.unchecked(type(self), **vars(self) | changed)

    def lacks(self) -> Collection[str]:
        """The smoother matrix is no posterior of an assignment: verbs that take it for one do without it."""
        return ("attention",)

    # -- data ----------------------------------------------------------------------------------------------------------

    def plates(self, *data: Maybe, **sizes: int | None) -> Plates:
        """Check the data, and name the plate of the steps."""
        keys, values, observed, strength = self.bind(*data)
        self.require_given(keys, sizes)
        return Plates(self._checked(keys, values, observed, strength), step=keys.shape[-2])

    def _checked(self, keys: Tensor, values: Maybe, observed: Maybe, strength: Maybe) -> torch.Size:
        """Refuse data that do not fit; the problems."""
        check.floating("keys", keys)
        check.at_least("keys", keys, 2, "(..., T, D)")
        shapes = {"parameters": self.batch_shape, "keys": keys.shape[:-2]}
        present = torch.ones((), dtype=torch.bool, device=keys.device)
        for name, x, rank in (("observed", observed, 1), ("strength", strength, 1), ("values", values, 2)):
            if x is None:
                continue
            check.at_least(name, x, rank, f"(..., T{', M' * (rank - 1)})")
            check.same_size(name, x.shape[-rank], "keys", keys.shape[-2], "steps")
            shapes[name] = x.shape[:-rank]
        if observed is not None:
            if observed.dtype != torch.bool:
                raise ValueError(f"observed must be boolean, True for a pair that is there, not {observed.dtype}")
            present = observed
        if strength is not None:
            check.same_dtype(keys=keys, strength=strength)
            if check.violated(~(strength >= 0)):
                raise ValueError("strength must be >= 0; 0 is an absent pair")
            present = present & (strength > 0)
        check.finite(keys=torch.where(present.unsqueeze(-1), keys, 0.0))
        if values is not None:
            check.same_dtype(keys=keys, values=values)
            check.finite(values=torch.where(present.unsqueeze(-1), values, 0.0))
            if self.mean is not None:
                check.same_size("values", values.shape[-1], "mean", self.mean.shape[-2], "answers")
        features = self._features(keys[..., :1, :]).shape[-1] if keys.shape[-2] else None
        for name in ("prior_precision", "mean", "prior_matrix", "decay", "spread"):
            x = self.prior_matrix if name == "prior_matrix" else self.held(name)
            one = 1 if name in ("prior_precision", "decay", "spread") else features
            if x is not None and features is not None and x.shape[-1] not in (one, features):
                raise ValueError(f"{name} has {x.shape[-1]} features but keys make {features}; give it {features}")
        if self.prior_matrix is not None:
            shapes["prior_matrix"] = self.prior_matrix.shape[:-2]
        shapes |= {name: self.drift.problems(name, keys.shape[-2]) for name in self.drift.PARAMETERS}
        return check.broadcastable(**shapes)

    def _features(self, keys: Tensor) -> Tensor:
        return keys if self.feature_map is None else self.feature_map(keys)

    def _setting(
        self,
        keys: Tensor,
        values: Maybe = None,
        observed: Maybe = None,
        strength: Maybe = None,
        clock: bool = True,
        answers: int | None = None,
    ) -> Setting:
        """Lay memory and pairs out for the filters, in double precision and broadcast."""
        length = keys.shape[-2]
        present = keys.new_ones(length, dtype=torch.bool) if observed is None else observed
        strong = keys.new_ones(length) if strength is None else strength
        present = present & (strong > 0)
        readable = present | torch.isfinite(keys.detach()).all(-1)
        phi = self._features(torch.where(readable.unsqueeze(-1), keys, 0.0)).double()
        phi = torch.where(readable.unsqueeze(-1), phi, 0.0)
        size = phi.shape[-1]
        if values is None:
            number = answers or (1 if self.mean is None else self.mean.shape[-2])
            values = keys.new_zeros(length, number)
        values = torch.where(present.unsqueeze(-1), values, 0.0).double()
        mean = phi.new_zeros(values.shape[-1], size) if self.mean is None else self.mean.double()
        if self.prior_matrix is not None:
            precision = self.prior_matrix.double()
            covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
        else:
            diagonal = self.prior_precision.double().expand(*self.prior_precision.shape[:-1], size)
            precision, covariance = torch.diag_embed(diagonal), torch.diag_embed(diagonal.reciprocal())
        noise = self.noise_precision.double().unsqueeze(-1)
        beta = strong.double() if self.relative else noise * strong.double()
        beta = torch.where(present | (strong > 0), beta, 1.0)
        drifting = [self.drift.problems(name, length) for name in self.drift.PARAMETERS]
        batch = common_shape(
            phi.shape[:-2],
            values.shape[:-2],
            present.shape[:-1],
            beta.shape[:-1],
            mean.shape[:-2],
            precision.shape[:-2],
            noise.shape[:-1],
            *drifting,
        )
        present = present.expand(*batch, length)
        pairs = Pairs(
            phi.expand(*batch, length, size),
            values.expand(*batch, *values.shape[-2:]),
            beta.expand(*batch, length),
            present,
        )
        prior = Prior(*(x.expand(*batch, *x.shape[-2:]) for x in (mean, precision, covariance)))
        moves = torch.ones_like(present) if clock else present
        return Setting(pairs, prior, moves, noise.expand(*batch, 1), keys.dtype)

    def _given(self, keys: Tensor, values: Maybe, observed: Maybe, strength: Maybe, clock: bool) -> Setting:
        """`_setting` of data that are checked first."""
        self._checked(keys, values, observed, strength)
        return self._setting(keys, values, observed, strength, clock)

    def _scale(self, setting: Setting) -> Tensor:
        """The number that variances of the filter are divided by, (..., 1)."""
        return setting.noise if self.relative else torch.ones_like(setting.noise)

    def _filtered(self, setting: Setting, queries: Maybe = None, size: int = 64) -> Filtered:
        return self.drift.filter(setting.pairs, setting.prior, setting.moves, queries, size)

    def _found(self, setting: Setting, queries: Maybe = None) -> Filtered:
        """The filter, refused where it has lost its digits."""
        return _trusted(self._filtered(setting, queries), self.drift)

    # -- closed forms --------------------------------------------------------------------------------------------------

    def filter(
        self, keys: Tensor, values: Tensor, observed: Maybe = None, strength: Maybe = None, clock: bool = True
    ) -> MemoryState:
        """Learn the pairs one after another: each is predicted, then written.

        Parameters
        ----------
        keys, values, observed, strength
            As in the table above.
        clock
            Whether time passes at absent pairs; False for padding.
        """
        setting = self._given(keys, values, observed, strength, clock)
        found = self._found(setting)
        precision, mean = self._precision(setting, found), found.mean.to(setting.dtype)
        density, shape, rate = self._density(setting, found)
        precision = precision.to(setting.dtype)
        changed: dict[str, Maybe] = {"prior_precision": None, "prior_matrix": precision, "mean": mean}
        if shape is not None and rate is not None:
            shape, rate = shape[..., -1], rate[..., -1]
            changed |= {"noise_shape": shape, "noise_rate": rate, "noise_precision": shape / rate}
        memory = check.unchecked(type(self), **vars(self) | changed)
        covariance = found.covariance.to(setting.dtype)
        return MemoryState(mean, precision, covariance, density.to(setting.dtype), keys.shape[-2], memory)

    def _precision(self, setting: Setting, found: Filtered) -> Tensor:
        """P_T, (..., F, F): as a sum where the drift has one, else from the covariance."""
        if not isinstance(self.drift, Static | Discount):
            return torch.cholesky_inverse(torch.linalg.cholesky(found.covariance))
        pairs, start = setting.pairs, torch.ones_like(setting.prior.precision)
        weights = torch.where(pairs.present, pairs.precision, 0.0)
        if isinstance(self.drift, Discount):
            gamma = self.drift.log_factor(setting.moves)
            after = gamma.flip(-1).cumsum(-1).flip(-1)
            weights = weights * (after - gamma).exp()
            if not isinstance(self.drift, PullBack):
                start = gamma.sum(-1).exp()[..., None, None]
        kept = torch.where(pairs.present.unsqueeze(-1), pairs.features, 0.0)
        return start * setting.prior.precision + (weights.unsqueeze(-1) * kept).mT @ kept

    def _density(self, setting: Setting, found: Filtered) -> tuple[Tensor, Maybe, Maybe]:
        """``log p(v_t | past)`` (..., T); under a Gamma of the noise also its shape
        and rate before and after each step, (..., T + 1).
        """
        if isinstance(self.drift, Reset) and not self.drift.coherent(setting.prior, setting.moves):
            raise ValueError(
                "log_evidence: precision of Reset rises faster than data teach, so that there is no model of a "
                "memory; let it fall, or take read"
            )
        if self.noise_shape is None:
            scale = self._scale(setting)
            scaled = found._replace(variance=found.variance / scale, distance=found.distance * scale)
            return filters.log_density(setting.pairs, scaled), None, None
        assert self.noise_rate is not None
        pairs, answers = setting.pairs, setting.pairs.values.shape[-1]
        shape, rate = self.noise_shape.double().unsqueeze(-1), self.noise_rate.double().unsqueeze(-1)
        shape = torch.cat([shape.expand_as(pairs.precision[..., :1]), 0.5 * answers * pairs.present], -1).cumsum(-1)
        rate = torch.cat([rate.expand_as(pairs.precision[..., :1]), 0.5 * found.distance], -1).cumsum(-1)
        before, half = shape[..., :-1], 0.5 * answers
        density = torch.lgamma(before + half) - torch.lgamma(before)
        density = density - half * (2 * math.pi * rate[..., :-1] * found.variance).log()
        density = density - (before + half) * torch.log1p(0.5 * found.distance / rate[..., :-1])
        return torch.where(pairs.present, density, 0.0), shape, rate

    def log_evidence(
        self, keys: Tensor, values: Tensor, observed: Maybe = None, strength: Maybe = None, clock: bool = True
    ) -> Tensor:
        """Log density of each value given the pairs before it, (..., T), 0 of absent ones;
        their sum is the evidence.
        """
        setting = self._given(keys, values, observed, strength, clock)
        return self._density(setting, self._found(setting))[0].to(setting.dtype)

    def log_density(self, keys: Tensor, values: Tensor, observed: Maybe = None, strength: Maybe = None) -> Tensor:
        """`log_evidence` of data that have been checked; NaN of a problem whose digits are lost,
        so that samplers turn back.
        """
        setting = self._setting(keys, values, observed, strength)
        found = self._filtered(setting)
        density = self._density(setting, found)[0]
        return density.masked_fill(~(found.condition <= WORST).unsqueeze(-1), math.nan).to(setting.dtype)

    def predictive(
        self, keys: Tensor, values: Tensor, observed: Maybe = None, strength: Maybe = None, clock: bool = True
    ) -> TorchDistribution:
        """The distribution of each value given the pairs before it: batch shape (..., T), event (M,).

        Normal, or Student's t of all M numbers together where the noise has a Gamma.
        """
        setting = self._given(keys, values, observed, strength, clock)
        found = self._found(setting)
        _, shape, rate = self._density(setting, found) if self.noise_shape is not None else (None, None, None)
        return self._answers(found.predicted, found.variance, setting, shape, rate)

    def _answers(
        self, mean: Tensor, variance: Tensor, setting: Setting, shape: Maybe = None, rate: Maybe = None
    ) -> TorchDistribution:
        """The distribution of values (..., n, M) of which each number has a variance (..., n)."""
        mean = mean.to(setting.dtype)
        if shape is None or rate is None:
            return Normal(mean, (variance / self._scale(setting)).sqrt().to(mean).unsqueeze(-1)).to_event(1)
        freedom, scale = (2 * shape[..., :-1]).to(mean), (variance * rate[..., :-1] / shape[..., :-1]).sqrt().to(mean)
        return MultivariateStudentT(freedom, mean, scale[..., None, None] * _eye(mean.mT @ mean))

    def read(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        observed: Maybe = None,
        strength: Maybe = None,
        causal: bool = True,
        clock: bool = True,
    ) -> Read:
        """Answer queries: that at step i after pair i, as attention layers do, or all after the last pair.

        Parameters
        ----------
        queries
            (..., Q, D); Q is T where causal.
        keys, values, observed, strength, clock
            As of `filter`.
        causal
            False: all queries are asked after all pairs.
        """
        mean, doubt, setting, found = self._read(queries, keys, values, observed, strength, causal, clock)
        scale = self._scale(setting)
        noise = setting.noise
        if self.noise_shape is not None:  # variances of Student's t
            _, shape, rate = self._density(setting, found)
            assert shape is not None and rate is not None
            rows = slice(1, None) if causal else slice(-1, None)
            scale = ((shape - 1) / rate)[..., rows]
            scale, noise = torch.where(scale > 0, scale, 0.0), torch.where(scale > 0, scale, 0.0)
        spread = doubt / scale
        return Read(*(x.to(setting.dtype) for x in (mean, spread + 1 / noise, spread)))

    def _read(
        self, queries: Tensor, keys: Tensor, values: Maybe, observed: Maybe, strength: Maybe, causal: bool, clock: bool
    ) -> tuple[Tensor, Tensor, Setting, Filtered]:
        """Means (..., Q, M) and variances (..., Q) of the mean answers, in units of the filter."""
        setting = self._given(keys, values, observed, strength, clock)
        check.floating("queries", queries)
        asked = self._features(queries).double()
        if causal and queries.shape[-2] != keys.shape[-2]:
            raise ValueError(
                f"queries: {queries.shape[-2]} of them cannot each follow one of {keys.shape[-2]} pairs; "
                "give as many, or causal=False"
            )
        found = self._found(setting, asked if causal else None)
        if causal:
            assert found.reads is not None and found.spread is not None
            return found.reads, found.spread, setting, found
        doubt = ((asked @ found.covariance) * asked).sum(-1)
        return asked @ found.mean.mT, doubt, setting, found

    def attention(
        self,
        queries: Tensor,
        keys: Tensor,
        observed: Maybe = None,
        strength: Maybe = None,
        causal: bool = True,
        clock: bool = True,
    ) -> Tensor:
        """The smoother matrix A (..., Q, T): answers are ``A v`` and what is left of the prior. **Signed**: its entries
        may be negative and its rows need not sum to 1, because they are regression weights and no posterior of an
        assignment.

        Each column is what a one-hot stream of values reads; no values are needed.
        """
        length = keys.shape[-2]
        one_hot = torch.eye(length, dtype=keys.dtype, device=keys.device)
        bare = check.unchecked(type(self), **vars(self) | {"mean": None})
        weights, _, setting, _ = bare._read(queries, keys, one_hot, observed, strength, causal, clock)
        return weights.to(setting.dtype)

    def information(self, keys: Tensor, observed: Maybe = None, strength: Maybe = None, clock: bool = True) -> Tensor:
        """Nats that each pair teaches about a row of the memory, known before its value is: ``½ log β_t S_t``,
        (..., T).
        """
        setting = self._given(keys, None, observed, strength, clock)
        taught = 0.5 * (self._found(setting).variance * setting.pairs.precision).log()
        return torch.where(setting.pairs.present, taught, 0.0).to(setting.dtype)

    def loo(self, keys: Tensor, values: Tensor, observed: Maybe = None, strength: Maybe = None) -> Tensor:
        """Log density of each value given all other pairs, (..., T), of a memory that stands still.

        Raises
        ------
        ValueError
            A drift, under which leaving out a step is no prediction, or a Gamma of the noise: take `log_evidence`.
        """
        if type(self.drift) is not Static or self.noise_shape is not None:
            raise ValueError(f"loo: of a memory with {self.drift!r} or a Gamma of the noise take log_evidence")
        setting = self._given(keys, values, observed, strength, True)
        pairs, found = setting.pairs, self._found(setting)
        leverage = ((pairs.features @ found.covariance) * pairs.features).sum(-1) * pairs.precision
        left = 1 - torch.where(pairs.present, leverage, 0.0)
        error = torch.where(pairs.present.unsqueeze(-1), pairs.values - pairs.features @ found.mean.mT, 0.0)
        variance = 1 / (pairs.precision * self._scale(setting) * left)
        distance = (error / left.unsqueeze(-1)).square().sum(-1) / variance
        density = filters.log_density(pairs, found._replace(variance=variance, distance=distance))
        return density.to(setting.dtype)

    def _moments(self, setting: Setting) -> tuple[Filtered, Path, Tensor, Tensor]:
        """The filter step by step with all moments, the covariance before each step,
        and the gains of the backward pass (..., T, F, F).
        """
        pairs, prior = setting.pairs, setting.prior
        found, path = filters.steps(
            self.drift.predict(prior, setting.moves), pairs, prior.mean, prior.covariance, None, keep=True
        )
        assert path is not None
        before = torch.cat([prior.covariance.unsqueeze(-3), path.covariance[..., :-1, :, :]], -3)
        return found, path, before, self.drift.gain(before, path.predicted_covariance, prior, setting.moves)

    def _smoothed(self, setting: Setting) -> tuple[Tensor, Tensor, Tensor, Filtered]:
        """Means (..., T + 1, M, F) and covariances of the memory given all pairs, w_0 first; covariances with the step
        before, (..., T, F, F).
        """
        found, path, _, gains = self._moments(setting)
        mean, covariance = path.mean[..., -1, :, :], path.covariance[..., -1, :, :]
        means, covariances, lagged = [mean], [covariance], []
        for t in reversed(range(setting.pairs.length)):
            gain = gains[..., t, :, :]
            first = t == 0
            base = setting.prior.mean if first else path.mean[..., t - 1, :, :]
            own = setting.prior.covariance if first else path.covariance[..., t - 1, :, :]
            lagged.append(covariance @ gain.mT)
            mean = base + (mean - path.predicted_mean[..., t, :, :]) @ gain.mT
            covariance = own + gain @ (covariance - path.predicted_covariance[..., t, :, :]) @ gain.mT
            covariance = 0.5 * (covariance + covariance.mT)
            means.append(mean)
            covariances.append(covariance)
        stacked = [torch.stack(torch.broadcast_tensors(*x[::-1]), -3) for x in (means, covariances, lagged)]
        return stacked[0], stacked[1], stacked[2], found

    def smooth(
        self, keys: Tensor, values: Tensor, observed: Maybe = None, strength: Maybe = None, clock: bool = True
    ) -> Smoothed:
        """The memory at each step given all pairs, those after it, too."""
        setting = self._given(keys, values, observed, strength, clock)
        mean, covariance, _, _ = self._smoothed(setting)
        scale = self._scale(setting)[..., None, None]
        return Smoothed(mean[..., 1:, :, :].to(setting.dtype), (covariance[..., 1:, :, :] / scale).to(setting.dtype))

    def conditioned(self, data: Data) -> "RegressionMemory":
        """The memory that has absorbed these pairs."""
        return self.filter(*(x for x in data)).memory

    def expected_outputs(self, keys: Tensor) -> Tensor:
        """The mean value ``W_0 φ(k)`` at each key, (..., T, M), before any pair;
        of what it has learned, `conditioned`.
        """
        phi = self._features(keys)
        if self.mean is None:
            raise ValueError("mean: the memory has learned nothing, so answers have no size; give it mean, or read")
        return phi @ self.mean.to(phi).mT

    def output_distribution(self, keys: Tensor) -> TorchDistribution:
        """The distribution of a value at each key, before any pair; batch shape (..., T), event (M,)."""
        setting = self._setting(keys)
        phi = setting.pairs.features
        variance = ((phi @ setting.prior.covariance) * phi).sum(-1)
        variance = variance + (1.0 if self.relative else 1 / setting.noise)
        shape = rate = None
        if self.noise_shape is not None and self.noise_rate is not None:
            wide = (*variance.shape[:-1], variance.shape[-1] + 1)
            shape, rate = (x.double().unsqueeze(-1).expand(wide) for x in (self.noise_shape, self.noise_rate))
        return self._answers(phi @ setting.prior.mean.mT, variance, setting, shape, rate)

    # -- Pyro programs -------------------------------------------------------------------------------------------------

    def generate(self, plates: Plates, data: Data, collapsed: bool) -> None:
        """The sites of a memory and of its values, or of the values alone, which then depend on each other."""
        keys, values, observed, strength = (*data, None, None, None)[:4]
        answers = self._num_answers(values)
        setting = self._setting(keys, values, observed, strength, answers=answers)
        present = setting.pairs.present
        clean = None if values is None else torch.where(present.unsqueeze(-1), values, 0.0)
        if collapsed:
            with plates.enter(None):
                stream = Prequential(self, (keys, None, observed, strength), plates.batch, answers)
                pyro.sample("values", stream, obs=clean)
            return
        with plates.enter(None):
            memory = pyro.sample("memory", self._path(setting, plates.batch))
            phi = setting.pairs.features.to(memory)
            mean = (memory @ phi.unsqueeze(-1)).squeeze(-1) if self.moves else phi @ memory.mT
            scale = (setting.pairs.precision * self._scale(setting)).rsqrt().to(mean).unsqueeze(-1)
            given = Normal(mean, scale.expand_as(mean)).mask(present.unsqueeze(-1)).to_event(2)
            pyro.sample("values", given, obs=clean)

    def _num_answers(self, values: Maybe) -> int:
        if values is None and self.mean is None:
            raise ValueError("mean: how many numbers a value has is not known without values; give mean (M, F)")
        given = self.mean if values is None else values.mT
        assert given is not None
        return given.shape[-2]

    @property
    def moves(self) -> bool:
        """Return whether there is a memory for each step."""
        return type(self.drift) is not Static

    def _path(self, setting: Setting, batch: torch.Size) -> TorchDistribution:
        """The prior of the memory, or of its path."""
        scale = self._scale(setting)[..., None]
        prior, dtype = setting.prior, setting.dtype
        if not self.moves:
            rows = MultivariateNormal(prior.mean.to(dtype), (prior.covariance / scale).to(dtype).unsqueeze(-3))
            return rows.expand((*batch, prior.mean.shape[-2])).to_event(1)
        _, path, before, _ = self._moments(setting)
        along, offset, noise = self.drift.transition(before, prior, setting.moves)
        first, covariance = path.predicted_mean[..., 0, :, :], path.predicted_covariance[..., 0, :, :]
        zero = offset if offset.dim() else offset.expand(*setting.moves.shape, *prior.mean.shape[-2:])
        steps = (x.to(dtype) for x in (along, zero, noise / scale.unsqueeze(-1)))
        along, zero, noise = (x.expand(*setting.moves.shape, *x.shape[-2:])[..., 1:, :, :] for x in steps)
        return MemoryPath(first.to(dtype), (covariance / scale).to(dtype), along, zero, noise).expand(batch)

    def model(self, keys: Maybe, values: Maybe = None, observed: Maybe = None, strength: Maybe = None) -> None:
        """The Pyro program: a memory, or its path, then the values given it."""
        data = (keys, values, observed, strength)
        self.generate(self.plates(*data), data, False)

    def collapsed(self, keys: Maybe, values: Maybe = None, observed: Maybe = None, strength: Maybe = None) -> None:
        """The Pyro program with the memory summed out: one site, as steps depend on each other."""
        data = (keys, values, observed, strength)
        self.generate(self.plates(*data), data, True)

    def guide(self, keys: Tensor, values: Tensor, observed: Maybe = None, strength: Maybe = None) -> None:
        """The exact posterior of the memory, or of its path: the ELBO is the log evidence."""
        batch = self.plates(keys, values, observed, strength).batch
        setting = self._setting(keys, values, observed, strength)
        with Plates(batch).enter(None):
            pyro.sample("memory", self._posterior(setting, batch))

    def _posterior(self, setting: Setting, batch: torch.Size, first: bool = False) -> TorchDistribution:
        """The posterior of the memory; of its path, with the memory before the first step if ``first``."""
        scale, dtype = self._scale(setting)[..., None], setting.dtype
        if not self.moves:
            found = self._filtered(setting)
            rows = MultivariateNormal(found.mean.to(dtype), (found.covariance / scale).to(dtype).unsqueeze(-3))
            return rows.expand((*batch, found.mean.shape[-2])).to_event(1)
        _, path, own, gains = self._moments(setting)
        base = torch.cat([setting.prior.mean.unsqueeze(-3), path.mean[..., :-1, :, :]], -3)
        offset = base - path.predicted_mean @ gains.mT
        noise = own - gains @ path.predicted_covariance @ gains.mT
        steps = (gains, offset, 0.5 * (noise + noise.mT) / scale.unsqueeze(-1))
        along, zero, noise = ((x if first else x[..., 1:, :, :]).flip(-3).to(dtype) for x in steps)
        last, covariance = path.mean[..., -1, :, :].to(dtype), (path.covariance[..., -1, :, :] / scale).to(dtype)
        return MemoryPath(last, covariance, along, zero, noise, reverse=True).expand(batch)

    def _drawn_values(self, data: Data, shape: torch.Size) -> Tensor:
        """Values (..., T, M), each drawn given those before it."""
        keys, _, observed, strength = data
        setting = self._setting(keys, None, observed, strength, answers=shape[-1])
        pairs, prior = setting.pairs, setting.prior
        normal = torch.randn(shape, dtype=torch.float64, device=keys.device)
        if self.noise_shape is not None and self.noise_rate is not None:
            scale = Gamma(self.noise_shape.double(), self.noise_rate.double()).expand(shape[:-2]).sample().unsqueeze(-1)
        else:
            scale = self._scale(setting)
        normal = normal / scale.sqrt().unsqueeze(-1)
        wide = Pairs(
            *(x.expand(*shape[:-2], *x.shape[x.dim() - k :]) for x, k in zip(pairs, (2, 2, 1, 1), strict=True))
        )
        drift = self.drift.predict(prior, setting.moves)
        found, _ = filters.steps(drift, wide._replace(values=normal), prior.mean, prior.covariance, None, draw=True)
        return found.predicted.to(setting.dtype)

    # -- inference -----------------------------------------------------------------------------------------------------

    def expect(self, data: Data, centers: Mapping[str, Tensor] | None = None) -> Moments:
        """Take an E-step: moments of the memory given all pairs."""
        setting = self._setting(*data)
        if not self.drift.CONJUGATE:
            return self._of_noise(setting)
        if not self.moves:
            found = self._filtered(setting)
            mean, covariance = found.mean.unsqueeze(-3), found.covariance.unsqueeze(-3)
            lagged = covariance[..., :0, :, :]
        else:
            mean, covariance, lagged, found = self._smoothed(setting)
        scale = self._scale(setting)[..., None, None]
        return self._summed(setting, found, mean, covariance / scale, lagged / scale)

    def draw_latents(
        self, data: Data, leading: Sequence[int], generator: torch.Generator, centers: Mapping[str, Tensor]
    ) -> Moments:
        """The same of a memory that is drawn from its posterior; of a path by a backward pass over the filter."""
        setting = self._setting(*data)
        if not self.drift.CONJUGATE:
            return self._of_noise(setting)
        steps = (setting.pairs.length + 1,) if self.moves else ()
        shape = (*leading, *steps, *setting.prior.mean.shape[-2:])
        noise = torch.randn(shape, generator=generator, dtype=torch.float64, device=setting.prior.mean.device)
        wide = setting._replace(dtype=torch.float64)
        found = self._filtered(wide)
        if self.moves:
            drawn = self._posterior(wide, torch.Size(leading), first=True).moved(noise)
        else:
            scale = self._scale(setting)[..., None, None]
            drawn = (found.mean + noise @ (_root(found.covariance) / scale[..., 0].sqrt()).mT).unsqueeze(-3)
        own = setting.prior.covariance
        nothing = torch.zeros_like(own).unsqueeze(-3).expand(*own.shape[:-2], *(steps or (1,)), *own.shape[-2:])
        return self._summed(setting, found, drawn, nothing, nothing[..., 1:, :, :])

    def _of_noise(self, setting: Setting) -> Moments:
        """Moments for the noise alone, where it scales everything: the memory is summed out."""
        found = self._filtered(setting)
        nothing = torch.zeros_like(found.variance[..., 0])
        pairs, zero = setting.pairs.present.sum(-1).double(), setting.prior.mean
        evidence = self._density(setting, found)[0]
        return Moments(evidence, pairs, found.distance.sum(-1), zero[..., 0, :], nothing, nothing, nothing, zero)

    def _summed(self, setting: Setting, found: Filtered, mean: Tensor, covariance: Tensor, lagged: Tensor) -> Moments:
        """Sums of a path of means and covariances, w_0 first where it moves; of a memory that stands, of one step."""
        pairs, prior = setting.pairs, setting.prior
        rows, first = mean.shape[-2], mean[..., 0, :, :]
        at = (slice(None), slice(1, None))[self.moves]
        answers = (
            (mean[..., at, :, :] @ pairs.features.unsqueeze(-1)).squeeze(-1)
            if self.moves
            else pairs.features @ first.mT
        )
        error = torch.where(pairs.present.unsqueeze(-1), pairs.values - answers, 0.0)
        spread = ((covariance[..., at, :, :] @ pairs.features.unsqueeze(-1)).squeeze(-1) * pairs.features).sum(-1)
        strength = torch.where(
            pairs.present, pairs.precision if self.relative else pairs.precision / setting.noise, 0.0
        )
        residual = (strength * (error.square().sum(-1) + rows * spread)).sum(-1)
        moved, own = first - prior.mean, covariance[..., 0, :, :]
        squares = moved.square().sum(-2) + rows * own.diagonal(dim1=-2, dim2=-1)
        quadratic = ((moved @ prior.precision) * moved).sum((-2, -1)) + rows * (prior.precision * own).sum((-2, -1))
        count, numbers = (
            torch.full_like(residual, float(rows)),
            torch.full_like(residual, float(rows * moved.shape[-1])),
        )
        if isinstance(self.drift, Walk):
            decay = self.drift.decay.double().unsqueeze(-2)
            step = mean[..., 1:, :, :] - decay.unsqueeze(-2) * mean[..., :-1, :, :]
            variance = covariance.diagonal(dim1=-2, dim2=-1)
            doubt = variance[..., 1:, :] + decay.square() * variance[..., :-1, :]
            doubt = doubt - 2 * decay * lagged.diagonal(dim1=-2, dim2=-1)
            each = torch.where(setting.moves.unsqueeze(-1), step.square().sum(-2) + rows * doubt, 0.0)
            numbers = numbers * (1 + setting.moves.sum(-1))
            quadratic = quadratic + (each / self.drift.variance(prior).unsqueeze(-2)).sum((-2, -1))
            if self.drift.spread is None:
                squares = squares + each.sum(-2) / (1 - self.drift.decay.double().square())
                count = count * (1 + setting.moves.sum(-1))
        evidence = self._density(setting, found)[0]
        present = pairs.present.sum(-1).double()
        return Moments(evidence, present, residual, squares, count, quadratic, numbers, first)

    def conditional(self, name: str, statistics: Any) -> Terms:
        """Gamma of the two precisions, Normal of the mean, given the memory."""
        if self.row(name).conjugate is None:
            self.refuse("conditional")
        features, answers = statistics.squares.shape[-1], statistics.first.shape[-2]
        noise = self.noise_precision.unsqueeze(-1)
        if name == "noise_precision":
            shape, rate = 0.5 * answers * statistics.pairs, 0.5 * statistics.residual
            if self.relative and self.drift.CONJUGATE:
                shape = shape + 0.5 * statistics.numbers
                rate = rate + 0.5 * statistics.quadratic
            return GammaTerms(shape, rate)
        scale = noise if self.relative else torch.ones_like(noise)
        if name == "mean":
            precision = (scale * self.prior_precision).unsqueeze(-2).expand_as(statistics.first)
            return NormalTerms(precision, precision * statistics.first)
        squares, count = scale * statistics.squares, statistics.number.unsqueeze(-1)
        if self.prior_precision.shape[-1] == 1:
            return GammaTerms(0.5 * count * features, 0.5 * squares.sum(-1, keepdim=True))
        return GammaTerms(0.5 * count.expand_as(squares), 0.5 * squares)


add_safe_globals([Static, Discount, PullBack, Walk, Reset])
