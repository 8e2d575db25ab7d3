"""States among patterns: sums under each map of their dot products onto the simplex, without a Q x N tensor,
and the iteration.

Softmax takes the fused kernel and the chunked log evidence. The sparse maps sort every row: some queries at a time see
every pattern, and with gradients those rows are computed again in the backward pass.

A rounded product of D coordinates errs by up to ``(D + 2) eps |βs| |x|``, which is harmless up to `LIMIT` for the
norms. Beyond, `relative` makes scores with more digits, less the best one before they are rounded, so that each errs by
a few eps of its distance from the best.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probtx_pyro.ops._chunks import by_chunks, over_chunks
from probtx_pyro.ops._factor import Factor
from probtx_pyro.ops._fixed_point import FixedPoint, fixed_point
from probtx_pyro.ops._fused import causal_prior
from probtx_pyro.ops._numerics import common_shape, drop, known, single
from probtx_pyro.ops.attention import dot_product_attention
from probtx_pyro.ops.entmax import ENTMAX, Entmax
from probtx_pyro.ops.statistics import log_evidence

LIMIT = 2.0**12  # of β |s| |x|, up to which scores are rounded products: in float64 they err by 1e-12 (D + 2) there


class Pooling(NamedTuple):
    """Sums and normalisers for the scores ``states · patterns' + log_prior`` of Q
    states and N patterns under one map onto the simplex.

    function: from scores to rows p on the simplex, as in `ENTMAX`.
    pool: ``(states, patterns, values, log_prior=None, *, causal=False, dropout=0.0)`` -> ``Σ_n p_n values_n``, (..., Q,
    M).
    conjugate: ``(states, patterns, log_prior=None)`` -> the scores' log-sum-exp or its counterpart for the map, (...,
    Q).

    Shapes: states (..., Q, D), patterns (..., N, D), values (..., N, M), log_prior (..., Q or 1, N), -inf for a mask.
    """

    function: Callable[[Tensor], Tensor]
    pool: Callable[..., Tensor]
    conjugate: Callable[..., Tensor]


def _sparse_pool(
    function: Callable[[Tensor], Tensor],
    states: Tensor,
    patterns: Tensor,
    values: Tensor,
    log_prior: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    if causal:
        log_prior = causal_prior(log_prior, states.shape[-2], patterns.shape[-2], states)

    def pooled(scores: Tensor, values: Tensor) -> Tensor:
        return drop(function(scores), dropout).to(values.dtype) @ values

    return by_chunks(pooled, states, patterns, log_prior, values)


def _sparse_conjugate(family: Entmax, states: Tensor, patterns: Tensor, log_prior: Tensor | None = None) -> Tensor:
    return by_chunks(lambda scores: family.conjugate(scores).unsqueeze(-1), states, patterns, log_prior).squeeze(-1)


def _log_sum_exp(states: Tensor, patterns: Tensor, log_prior: Tensor | None = None) -> Tensor:
    return log_evidence(Factor(states, patterns, patterns.new_zeros(patterns.shape[:-1])), log_prior)


POOLING = {
    name: Pooling(family.function, partial(_sparse_pool, family.function), partial(_sparse_conjugate, family))
    for name, family in ENTMAX.items()
} | {"softmax": Pooling(ENTMAX["softmax"].function, dot_product_attention, _log_sum_exp)}


class Memory(NamedTuple):
    """States' scores ``β s·x_n`` among patterns, with as many digits as their scale asks for.

    scale: β, a scalar or (..., 1, 1). patterns: (..., N, D). mask: (..., 1, N), True for a pattern that is stored, or
    None. digits: 1 for rounded products, 2 for float64, 3 for twice the digits of float64.
    """

    scale: Tensor
    patterns: Tensor
    mask: Tensor | None
    digits: int

    @classmethod
    def of(cls, scale: Tensor, states: Tensor, patterns: Tensor, mask: Tensor | None = None) -> "Memory":
        """Choose the digits for such states: 1 where values cannot be looked at,
        under a compiler and inside ``torch.func.vmap``.
        """
        scale, patterns = single(scale), single(patterns)
        if torch.compiler.is_compiling():
            return cls(scale, patterns, mask, 1)
        sizes = [single(x.detach()).norm(dim=-1).double().max() if x.numel() else 0.0 for x in (states, patterns)]
        bound = scale.detach().double().max() * sizes[0] * sizes[1]
        gain = torch.finfo(patterns.dtype).eps / torch.finfo(torch.float64).eps
        for digits, largest in ((1, LIMIT), (2, LIMIT * gain)):
            if known(bound <= largest, otherwise=True):  # NaN, of infinity times zero, takes all digits
                return cls(scale, patterns, mask, digits)
        return cls(scale, patterns, mask, 3)

    def each(self, function: Callable[..., Tensor], states: Tensor, *shared: Tensor) -> Tensor:
        """Return ``function(scores, best, states, memory, *shared)``, (..., Q, X), some states at a time;
        see `relative`.
        """

        def rows(queries: list, given: list) -> tuple[Tensor, None]:
            (states, mask), (patterns, scale, *shared) = queries, given
            own = Memory(scale, patterns, mask, self.digits)
            return function(*own.relative(states), states, own, *shared), None

        by_query, wide = [single(states), self.mask], self.patterns.shape[-2]
        return over_chunks(rows, by_query, [self.patterns, self.scale, *shared], wide)[0]

    def relative(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores less the best of each state, -inf where nothing is stored, (..., Q, N),
        and the place of the best, (..., Q, 1).
        """
        patterns = self.patterns
        if self.digits < 3:
            wide = torch.float64 if self.digits == 2 else patterns.dtype
            scores = (self.scale.to(wide) * states.to(wide)) @ patterns.to(wide).mT
            best = self._masked(scores).argmax(-1, keepdim=True)
            return self._masked((scores - _at(scores, best)).to(patterns.dtype)), best
        with torch.no_grad():
            found, best = self._twice(states)
        plain = (self.scale * states) @ patterns.mT  # for its gradient alone
        plain = plain - _at(plain, best)
        return self._masked(_Valued.apply(plain, found.to(plain))), best.expand(*plain.shape[:-1], 1)

    def _masked(self, scores: Tensor) -> Tensor:
        return scores if self.mask is None else scores.masked_fill(~self.mask, -torch.inf)

    def _twice(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """`relative` with twice the digits, coordinates scaled by powers of 2 so that no product overflows."""
        states, patterns = states.double(), self.patterns.double()
        own = torch.frexp(patterns.abs().amax(-2, keepdim=True)).exponent  # of each coordinate
        nothing = (states == 0) | (patterns == 0).all(-2, keepdim=True)
        top = (torch.frexp(states).exponent + own).masked_fill(nothing, -(2**12)).amax(-1, keepdim=True)
        shift = (own - top).masked_fill(nothing, 0)
        high, low = twice(powers(states.masked_fill(nothing, 0.0), shift), powers(patterns, -own))
        best = self._masked(high).argmax(-1, keepdim=True)
        found = (high - _at(high, best)) + (low - _at(low, best))
        best = self._masked(found).argmax(-1, keepdim=True)
        scale, exponent = torch.frexp(self.scale.double())
        return powers((found - _at(found, best)) * scale, top + exponent), best

    def squares_behind(self) -> Tensor:
        """Return ``½ (max |x_m|² - |x_n|²)`` over the patterns stored, (..., 1, N), each as exact as the scores."""
        patterns, wide = self.patterns, torch.float64 if self.digits > 1 else self.patterns.dtype
        plain = patterns.to(wide).square().sum(-1).unsqueeze(-2)
        if self.digits < 3:
            return 0.5 * (self._masked(plain).amax(-1, keepdim=True) - plain).to(patterns.dtype)
        with torch.no_grad():
            exponent = torch.frexp(patterns.double().abs().amax((-2, -1), keepdim=True)).exponent
            rows = powers(patterns.double(), -exponent).unsqueeze(-2)
            high, low = (x[..., 0].mT for x in twice(rows, rows))
            best = self._masked(high).argmax(-1, keepdim=True)
            found = (_at(high, best) - high) + (_at(low, best) - low)
            found = 0.5 * powers(found + self._masked(-found).amax(-1, keepdim=True), 2 * exponent)
        return _Valued.apply(0.5 * (_at(plain, best) - plain), found.to(plain)).to(patterns.dtype)


def _at(x: Tensor, best: Tensor) -> Tensor:
    """``x`` (..., N) at the places ``best`` (..., 1), whose leading axes broadcast, (..., 1)."""
    shape = common_shape(x.shape[:-1], best.shape[:-1])
    return x.expand(*shape, -1).gather(-1, best.expand(*shape, 1))


class _Valued(torch.autograd.Function):
    """A tensor with the values of another and its own gradient."""

    @staticmethod
    def forward(x: Tensor, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Nothing is needed again."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def powers(x: Tensor, exponent: Tensor) -> Tensor:
    """Return ``x 2^exponent``, in steps whose own powers of 2 are in range."""
    step = exponent.div(4, rounding_mode="floor")
    for _ in range(3):
        x = torch.ldexp(x, step)
    return torch.ldexp(x, exponent - 3 * step)


def twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``x · y'``, (..., Q, N), of rows (..., Q, D) and (..., N, D) in float64, as a sum of two numbers:
    as if of 106 bits.

    Dekker 1971, *A floating-point technique for extending the available precision*; Ogita, Rump & Oishi 2005, *Accurate
    sum and dot product*.
    """
    high = low = x.new_zeros(())
    for a, b in zip(x.unsqueeze(-2).unbind(-1), y.unsqueeze(-3).unbind(-1), strict=True):
        product, (a1, a2), (b1, b2) = a * b, _halves(a), _halves(b)
        error = a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)
        total = high + product
        part = total - high
        low = low + (((high - (total - part)) + (product - part)) + error)
        high = total
    total = high + low
    return total, low - (total - high)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of 26 bits each that add up to x."""
    wide = x * (2.0**27 + 1)
    first = wide - (wide - x)
    return first, x - first


def energy(name: str, memory: Memory, states: Tensor) -> Tensor:
    """Return ``½|s|² - conjugate(β s·x) / β + log(N) / β + ½ max |x|²``, (..., Q), for a map by its name.

    With b the best pattern it is ``½|s - x_b|² + ½(max |x|² - |x_b|²) + (log N - conjugate(β s·x - β s·x_b)) / β``:
    nothing cancels, because for softmax no term is negative, and the last one is written so that it is exact where β is
    small.
    """

    def of(scores: Tensor, best: Tensor, states: Tensor, memory: Memory, behind: Tensor) -> Tensor:
        patterns = memory.patterns.expand(*scores.shape[:-2], *memory.patterns.shape[-2:])
        nearest = patterns.gather(-2, best.expand(*best.shape[:-1], patterns.shape[-1]))
        number = scores.shape[-1] if memory.mask is None else memory.mask.sum(-1, keepdim=True)
        if name == "softmax":
            own = scores if memory.mask is None else scores.masked_fill(~memory.mask, 0.0)
            excess = -torch.log1p(torch.expm1(own).sum(-1, keepdim=True) / number)
        else:
            excess = torch.as_tensor(number).to(scores).log() - ENTMAX[name].conjugate(scores).unsqueeze(-1)
        away = 0.5 * (states - nearest).square().sum(-1, keepdim=True)
        return away + behind.expand(scores.shape).gather(-1, best) + excess / memory.scale

    return memory.each(of, states, memory.squares_behind()).squeeze(-1)


def iterate(
    move: Callable[[Tensor], Tensor],
    state: Tensor,
    *,
    problems: torch.Size,
    num_steps: int,
    tol: float | None = None,
    trace: Callable[[Tensor], Tensor] | None = None,
) -> FixedPoint:
    """Iterate ``state <- move(state)`` for one tensor, by `fixed_point`.

    Parameters
    ----------
    move
        The step.
    state
        The start, whose leading axes are ``problems``.
    problems, num_steps, tol
        As in `fixed_point`.
    trace
        The objective of a state, recorded in every state visited; None records none.

    Returns
    -------
    found
        The end of the iteration, with the last state in ``found.state["state"]``.
    """

    def step(now: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], Tensor | None]:
        return {"state": move(now["state"])}, None if trace is None else trace(now["state"])

    last = None if trace is None else lambda now: trace(now["state"])
    start = {"state": state}
    return fixed_point(step, start, problems=problems, num_steps=num_steps, tol=tol, objective=last, progress=False)
