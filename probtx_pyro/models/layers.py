"""Published memory layers as approximate filters of `RegressionMemory`: what each computes,
and the density that it implies.

======================  =============================================================  ================================
layer                   state after pair t                                             variance of a value that it implies
======================  =============================================================  ================================
linear, gated linear    ``W = γ W + c v φ'``                                           ``1/β + |φ|²/λ``, λ = β/c
delta, gated delta      ``W = γ W + b (v - γ W φ) φ'``                                 ``1 / (β (1 - b |φ|²))``
Kalman, isotropic       ``W = a W + g e'``, one variance for all directions            ``1/β + p |φ|²``
Kalman, diagonal        the same with a variance for each feature                      ``1/β + Σ p φ²``
Mesa, k steps           ``W = N P⁻¹``, the inverse by k steps of conjugate gradients   ``1/β + φ' x_k``, too small
softmax                 attention over the pairs                                       the mixture ``Σ w N(v_s, I/β)``
======================  =============================================================  ================================

A layer keeps a mean; its density is a choice. ``"implied"`` is the column above; ``"constant"`` is one variance, fitted
to prequential errors, as a user of a mean-only layer would. Keys are features here: normalise and scale them before.
docs/mathematics.md, section 8.3, says for which drift each is exact.

Attention as nonparametric regression is here, too: `nadaraya_watson`, `local_linear`, `kernel_ridge` and
`fourier_attention` make a matrix that is multiplied with the values; `leave_one_out` and `kernel_log_evidence` choose
a bandwidth. docs/mathematics.md, section 8.5.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from pyro.distributions import Categorical, MixtureSameFamily, Normal, TorchDistribution
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models._smoothers import (
    KernelRidge,
    fourier_attention,
    gaussian_scores,
    kernel_log_evidence,
    kernel_ridge,
    leave_one_out,
    local_linear,
    nadaraya_watson,
)
from probtx_pyro.models.regression_memory import RegressionMemory
from probtx_pyro.ops._numerics import common_shape
from probtx_pyro.ops.regression_memory import conjugate_gradient

Number = Tensor | float
Maybe = Tensor | None
DENSITIES = ("implied", "constant")


class LayerMoments(NamedTuple):
    """Moments of a layer along a stream, in double precision.

    predicted: means of the values given the pairs before them, (..., T, M). variance: of each value, as the layer
    implies it, (..., T); None where it implies none. reads: answers to queries after each pair, (..., T, M), None
    without queries. mean, spread: the state after the last pair, (..., M, F), and the variances of a row's coordinates,
    (..., 1 or F), as the layer implies them; None of a layer without.
    """

    predicted: Tensor
    variance: Maybe
    reads: Maybe
    mean: Maybe
    spread: Maybe = None


def _wide(x: Number, like: Tensor, rank: int = 0) -> Tensor:
    """A number or tensor (...) in double precision, with ``rank`` further axes of size 1."""
    own = torch.as_tensor(x, dtype=torch.float64, device=like.device)
    return own[(..., *(None,) * rank)]


class LayerMemory:
    """Base of the layers: every method follows from the moments of a stream."""

    noise_precision: Number

    def moments(self, keys: Tensor, values: Tensor, queries: Maybe = None) -> LayerMoments:
        """Predict each value, write each pair, and answer queries (..., T, F) after each."""
        raise NotImplementedError

    def _checked(self, keys: Tensor, values: Tensor) -> None:
        for name, x in (("keys", keys), ("values", values)):
            check.floating(name, x)
            check.at_least(name, x, 2, "(..., T, D)" if name == "keys" else "(..., T, M)")
        check.same_dtype(keys=keys, values=values)
        check.same_size("keys", keys.shape[-2], "values", values.shape[-2], "steps")
        if not keys.shape[-2]:
            raise ValueError("keys: a layer reads one pair at least; give a step")
        check.finite(keys=keys, values=values)

    def read(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Answers to queries (..., T, F), each after the pair of its step, (..., T, M)."""
        self._checked(keys, values)
        reads = self.moments(keys, values, queries).reads
        assert reads is not None
        return reads.to(keys.dtype)

    def attention(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The matrix A (..., T, T) whose product with the values is what is read; signed, as a rule."""
        return self.read(queries, keys, torch.eye(keys.shape[-2], dtype=keys.dtype, device=keys.device))

    def fitted_variance(self, keys: Tensor, values: Tensor) -> Tensor:
        """The one variance (...) that suits the prequential errors of these pairs best: their mean square."""
        self._checked(keys, values)
        return (values.double() - self.moments(keys, values).predicted).square().mean((-2, -1))

    def predictive(
        self, keys: Tensor, values: Tensor, density: str = "implied", variance: Number | None = None
    ) -> TorchDistribution:
        """The distribution of each value given the pairs before it: batch shape (..., T), event (M,).

        Parameters
        ----------
        keys, values
            (..., T, F) and (..., T, M).
        density
            "implied", or "constant" with a ``variance`` (...), such as `fitted_variance` of other pairs.
        variance
            Of every number, where the density is constant.

        Raises
        ------
        ValueError
            Another density; "constant" without a variance; a layer that implies none.
        """
        self._checked(keys, values)
        if density not in DENSITIES or (density == "constant") != (variance is not None):
            raise ValueError(f"density must be 'implied', or 'constant' with a variance, not {density!r}")
        found = self.moments(keys, values)
        if variance is not None:
            own = _wide(variance, keys, 1).expand(found.predicted.shape[:-1])
        elif found.variance is None:
            raise ValueError(f"density: {type(self).__name__} implies none; give 'constant' with a variance")
        else:
            own = found.variance
        return Normal(found.predicted, own.sqrt().unsqueeze(-1)).to_event(1)

    def log_evidence(
        self, keys: Tensor, values: Tensor, density: str = "implied", variance: Number | None = None
    ) -> Tensor:
        """Log density of each value given the pairs before it, under a density as of `predictive`, (..., T)."""
        return self.predictive(keys, values, density, variance).log_prob(values.double()).to(keys.dtype)

    def divergence(self, memory: RegressionMemory, keys: Tensor, values: Tensor) -> Maybe:
        """Nats that the state lacks of the posterior of a memory, ``KL(state || posterior)`` over its M rows, (...).

        None of a layer whose state has no density.
        """
        found, state = self.moments(keys, values), memory.filter(keys.double(), values.double())
        if found.mean is None or found.spread is None:
            return None
        spread, precision = found.spread.expand(*found.spread.shape[:-1], keys.shape[-1]), state.precision
        rows = (precision.diagonal(dim1=-2, dim2=-1) * spread).sum(-1) - keys.shape[-1]
        rows = 0.5 * (rows - spread.log().sum(-1) - torch.logdet(precision))
        moved = found.mean - state.mean
        return values.shape[-1] * rows + 0.5 * ((moved @ precision) * moved).sum((-2, -1))


class Gains(NamedTuple):
    """The way a recursion writes: gains (..., T, F), decays (..., T, 1 or F), variances (..., T), which need no values;
    and the variances of the last state, (..., 1 or F).
    """

    gain: Tensor
    decay: Tensor
    variance: Maybe
    spread: Maybe


class Recursion(LayerMemory):
    """A layer ``W = a W + (v - a W φ) g'``; or without the error, ``W = a W + v g'``."""

    decay: Number
    error = True

    def gains(self, keys: Tensor) -> Gains:
        """Return the gains of each key."""
        raise NotImplementedError

    def moments(self, keys: Tensor, values: Tensor, queries: Maybe = None) -> LayerMoments:
        """Run the recursion, step by step."""
        phi, v = keys.double(), values.double()
        gain, decay, variance, spread = self.gains(phi)
        batch = common_shape(phi.shape[:-2], v.shape[:-2], gain.shape[:-2], decay.shape[:-2])
        mean = v.new_zeros(*batch, v.shape[-1], phi.shape[-1])
        predicted, reads = [], []
        for t in range(phi.shape[-2]):
            mean = mean * decay[..., min(t, decay.shape[-2] - 1), :].unsqueeze(-2)
            answer = (mean @ phi[..., t, :, None]).squeeze(-1)
            written = v[..., t, :] - answer if self.error else v[..., t, :]
            mean = mean + written.unsqueeze(-1) * gain[..., t, :].unsqueeze(-2)
            predicted.append(answer)
            if queries is not None:
                reads.append((mean @ queries.double()[..., t, :, None]).squeeze(-1))
        stacked = torch.stack(predicted, -2) if predicted else v.expand(*batch, *v.shape[-2:])
        return LayerMoments(stacked, variance, torch.stack(reads, -2) if reads else None, mean, spread)


@dataclass(frozen=True, eq=False)
class Linear(Recursion):
    """Linear attention, ``W = γ W + c v φ'``: with a decay RetNet, Mamba-2,
    and for each feature gated linear attention.

    Parameters
    ----------
    scale
        c, the ratio β/λ of the regression that it stands for.
    decay
        γ: a number, (T,) or (..., T, 1 or F).
    noise_precision
        β, of the density that it implies.
    """

    scale: Number = 1.0
    decay: Number = 1.0
    noise_precision: Number = 1.0
    error = False

    def gains(self, keys: Tensor) -> Gains:
        """``c φ``."""
        scale, beta = _wide(self.scale, keys, 1), _wide(self.noise_precision, keys, 1)
        variance = (1 + scale * keys.square().sum(-1)) / beta
        return Gains(scale.unsqueeze(-1) * keys, _decays(self.decay, keys), variance, scale / beta)


@dataclass(frozen=True, eq=False)
class Delta(Recursion):
    """The delta rule, ``W = γ W + b (v - γ W φ) φ'`` (DeltaNet; with a decay gated DeltaNet).

    Parameters
    ----------
    step
        b, a number, (...) or (..., T). A density follows where ``b |φ|² < 1``; above it the layer over-relaxes.
    decay, noise_precision
        As of `linear`.
    """

    step: Number = 0.5
    decay: Number = 1.0
    noise_precision: Number = 1.0

    def gains(self, keys: Tensor) -> Gains:
        """``b φ``; a density where ``b |φ|² < 1``."""
        step = _wide(self.step, keys, 0 if torch.as_tensor(self.step).shape[-1:] == keys.shape[-2:-1] else 1)
        left = 1 - step * keys.square().sum(-1)
        variance = spread = None
        if bool((left > 0).all()):
            variance = 1 / (_wide(self.noise_precision, keys, 1) * left)
            spread = (step * variance)[..., -1:]  # 1/λ of the last step
        return Gains(step.unsqueeze(-1) * keys, _decays(self.decay, keys), variance, spread)


@dataclass(frozen=True, eq=False)
class Kalman(Recursion):
    """Kalman delta networks: a filter of a walk that keeps one variance, or one for each feature.

    Parameters
    ----------
    prior_precision, noise_precision
        λ and β.
    decay, spread
        a and ω of the walk; None is the stationary spread ``(1 - a²)/λ``.
    diagonal
        A variance for each feature, or one for all.
    info_scale
        How often a pair counts, in variances only; 1 is mean field, the published layers take F.
    """

    prior_precision: Number = 1.0
    noise_precision: Number = 1.0
    decay: Number = 1.0
    spread: Number | None = None
    diagonal: bool = True
    info_scale: Number = 1.0

    def gains(self, keys: Tensor) -> Gains:
        """A scalar or diagonal variance, step by step."""
        size, noise = keys.shape[-1], 1 / _wide(self.noise_precision, keys, 1)
        decay = _decays(self.decay, keys)
        kept = decay.square() if self.diagonal else decay.square().mean(-1, keepdim=True)
        prior = _wide(self.prior_precision, keys)
        prior = prior if prior.dim() and prior.shape[-1] in (1, size) else prior.unsqueeze(-1)
        variance = (1 / prior).expand(*prior.shape[:-1], size if self.diagonal else 1)
        grown = (1 - kept) / prior.unsqueeze(-2) if self.spread is None else _wide(self.spread, keys)
        grown = grown if grown.dim() > 1 else grown.reshape(1, -1)
        told = _wide(self.info_scale, keys, 1) / noise
        gains, spreads = [], []
        for t in range(keys.shape[-2]):
            at, squares = min(t, kept.shape[-2] - 1), keys[..., t, :].square()
            variance = kept[..., at, :] * variance + grown[..., min(t, grown.shape[-2] - 1), :]
            total = noise + (variance * squares).sum(-1, keepdim=True)
            gains.append(variance * keys[..., t, :] / total)
            spreads.append(total)
            seen = squares if self.diagonal else squares.mean(-1, keepdim=True)
            variance = 1 / (1 / variance + told * seen)
        return Gains(torch.stack(gains, -2), decay, torch.cat(spreads, -1), variance)


def _decays(decay: Number, keys: Tensor) -> Tensor:
    """Decays (..., T or 1, 1 or F), from a number, (T,), or all of these axes."""
    own = _wide(decay, keys)
    if own.dim() == 0:
        return own.reshape(1, 1)
    return own.unsqueeze(-1) if own.dim() == 1 else own


@dataclass(frozen=True, eq=False)
class Mesa(LayerMemory):
    """MesaNet: ridge regression on decayed sums, by ``num_steps`` of conjugate gradients for every query.

    Parameters
    ----------
    prior_precision, noise_precision, forgetting
        λ, a number or (..., F), β and γ, a number or (..., T).
    num_steps
        At most so many; None goes on until the residual vanishes, which is the exact filter of `PullBack`.
    """

    prior_precision: Number = 1.0
    noise_precision: Number = 1.0
    forgetting: Number = 1.0
    num_steps: int | None = None

    def moments(self, keys: Tensor, values: Tensor, queries: Maybe = None) -> LayerMoments:
        """Solve for each key with what came before it, and for each query with its pair, too."""
        phi, v, beta = keys.double(), values.double(), _wide(self.noise_precision, keys, 2)
        length, size = phi.shape[-2:]
        prior = _wide(self.prior_precision, keys)
        ridge = torch.diag_embed((prior if prior.dim() else prior.reshape(1)).expand(*prior.shape[:-1], size))
        log_gamma = _wide(self.forgetting, keys).log()
        total = (log_gamma if log_gamma.dim() else log_gamma.expand(length)).cumsum(-1)
        decay = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril().exp().tril()

        def solved(weights: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
            matrix = beta.unsqueeze(-1) * torch.einsum("...ts,...sf,...sg->...tfg", weights, phi, phi)
            product = beta.unsqueeze(-1) * torch.einsum("...ts,...sm,...sf->...tmf", weights, v, phi)
            found, _ = conjugate_gradient(matrix + ridge.unsqueeze(-3), asked, self.num_steps or 2 * size)
            return (product @ found.unsqueeze(-1)).squeeze(-1), (asked * found).sum(-1)

        predicted, spread = solved(decay.tril(-1), phi)
        reads = None if queries is None else solved(decay, queries.double())[0]
        return LayerMoments(predicted, 1 / beta.squeeze(-1) + spread, reads, None)


@dataclass(frozen=True, eq=False)
class Softmax(LayerMemory):
    """Softmax attention over the pairs, with a sink of logit ``log λ/β`` and value 0: a mixture, no regression.

    Parameters
    ----------
    scale
        Of the dot products; unit keys make it a kernel of width ``1/√scale``.
    noise_precision, prior_precision
        β of a value about that of a pair, and λ of the sink.
    """

    scale: Number = 1.0
    noise_precision: Number = 1.0
    prior_precision: Number = 1.0

    def _weights(self, asked: Tensor, keys: Tensor, diagonal: int) -> Tensor:
        """Weights of the pairs up to a diagonal, and of the sink, last: (..., T, T + 1)."""
        scores = _wide(self.scale, keys, 2) * (asked @ keys.mT)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=keys.device).triu(diagonal)
        sink = (_wide(self.prior_precision, keys) / _wide(self.noise_precision, keys)).log()[..., None, None]
        sink = sink.expand(*scores.shape[:-1], 1)
        return torch.cat([scores.masked_fill(hidden, -math.inf), sink], -1).softmax(-1)

    def moments(self, keys: Tensor, values: Tensor, queries: Maybe = None) -> LayerMoments:
        """Average the values under the weights."""
        phi, v = keys.double(), values.double()
        predicted = self._weights(phi, phi, 0)[..., :-1] @ v
        reads = None if queries is None else self._weights(queries.double(), phi, 1)[..., :-1] @ v
        return LayerMoments(predicted, None, reads, None)

    def predictive(
        self, keys: Tensor, values: Tensor, density: str = "implied", variance: Number | None = None
    ) -> TorchDistribution:
        """The mixture ``Σ_s w_s N(v_s, I/β) + w_0 N(0, (1/β + 1/λ) I)``; or of one variance, as of other layers."""
        if density != "implied":
            return super().predictive(keys, values, density, variance)
        self._checked(keys, values)
        phi, v = keys.double(), values.double()
        weights = self._weights(phi, phi, 0)
        noise = 1 / _wide(self.noise_precision, keys, 2)
        places = torch.cat([v, torch.zeros_like(v[..., :1, :])], -2).unsqueeze(-3)
        spread = noise.expand(*noise.shape[:-2], 1, places.shape[-2]).clone()
        spread[..., -1] = spread[..., -1] + 1 / _wide(self.prior_precision, keys, 1)
        weights = weights.expand(common_shape(weights.shape, places.shape[:-1]))
        shape = (*weights.shape, v.shape[-1])
        units = Normal(places.expand(shape), spread.sqrt().unsqueeze(-1).expand(shape)).to_event(1)
        return MixtureSameFamily(Categorical(weights), units)


linear, delta, kalman, mesa, softmax = Linear, Delta, Kalman, Mesa, Softmax

__all__ = ["LayerMemory", "LayerMoments", "linear", "delta", "kalman", "mesa", "softmax"]
__all__ += ["gaussian_scores", "nadaraya_watson", "local_linear", "kernel_ridge", "KernelRidge", "fourier_attention"]
__all__ += ["leave_one_out", "kernel_log_evidence"]
