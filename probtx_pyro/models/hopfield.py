"""Modern Hopfield retrieval: the energy is minus the log density of a mixture, retrieval its EM,
so the energy never rises.

``E(s) = -β⁻¹ lse(β X s) + ½|s|² + β⁻¹ log N + ½ max_n |x_n|²`` (Ramsauer et al. 2021) is ``-β⁻¹ log p(s)`` but for a
constant, p the `GaussianMixture` with the patterns as keys, precision β and the linked prior;
``s <- X' softmax(β X s)`` is one step of EM on it.

======  ==================  ====================  ==========================================
symbol  name                shape                 support
======  ==================  ====================  ==========================================
x_n     ``patterns``        (..., N, D)           real
β       ``beta``            scalar or (...)       > 0
v_n     ``values``          (..., N, M)           real; what is read out in place of patterns
·       ``mask``            (..., N)              boolean, True for a pattern that is stored
s       ``state``           (..., Q, D)           real: the queries
======  ==================  ====================  ==========================================

Leading axes are independent memories and broadcast. The prior over units follows from the patterns, so that patterns
and β have no conjugate prior (erratum 8).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.models import _validation as check
from probtx_pyro.models._reduced import ReducedMixture, for_each
from probtx_pyro.models.formulation import Parameter
from probtx_pyro.models.gaussian_mixture import GaussianMixture, linked_units
from probtx_pyro.models.mixture import Maybe, Number
from probtx_pyro.ops import FixedPoint
from probtx_pyro.ops._chunks import by_chunks
from probtx_pyro.ops._numerics import single
from probtx_pyro.ops._retrieval import POOLING, Memory, Pooling, energy, iterate


class Retrieval(NamedTuple):
    """The path of states that retrieve.

    state: (..., Q, D). energy: at the start and after every step, (num_steps + 1, ..., Q). converged, num_steps: of
    each, (..., Q).
    """

    state: Tensor
    energy: Tensor
    converged: Tensor
    num_steps: Tensor


class Movement(NamedTuple):
    """The path of patterns that retrieve each other.

    memory: of the patterns where they are now. path: the patterns at the start and after every step, (num_steps + 1,
    ..., N, D).
    converged, num_steps: of each problem, (...).
    """

    memory: "Hopfield"
    path: Tensor
    converged: Tensor
    num_steps: Tensor


class FixedPoints(NamedTuple):
    """The ends of retrieval from each pattern itself.

    state: the fixed point, (..., N, D).
    error: its distance from the pattern, (..., N); a pattern is stored where this is small.
    num_patterns: how many patterns the fixed point averages, see `Hopfield.effective_patterns`; (..., N). 1 is a
        pattern by itself, more is a metastable state, N the average of all.
    converged: whether the fixed point was reached, (..., N).
    """

    state: Tensor
    error: Tensor
    num_patterns: Tensor
    converged: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Hopfield(ReducedMixture):
    """An associative memory. Immutable.

    Parameters
    ----------
    patterns, beta, values, mask
        As in the table above.
    transformation
        "softmax", "entmax15" or "sparsemax", which retrieve sparsely: a pattern alone, exactly, where it is separated
        enough. Only softmax is the attention of a mixture, with a density.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, NaN or infinity, ``beta`` not positive, a mask that forbids everything.

    Examples
    --------
    >>> memory = Hopfield(torch.tensor([[1.0, 1.0], [-1.0, 1.0]]), beta=8.0)
    >>> memory.retrieve(torch.tensor([[0.8, 0.0]])).round(decimals=3).tolist()
    [[1.0, 1.0]]

    References
    ----------
    Ramsauer et al. 2021, *Hopfield Networks is All You Need*, arXiv 2008.02217; Shim 2022, section 4; Santos et al.
    2024, *Sparse and Structured Hopfield Networks* (the sparse family); Cheng 1995, *Mean shift, mode seeking, and
    clustering* (patterns that move).
    """

    patterns: Tensor
    beta: Number = Number()
    values: Maybe = None
    mask: Maybe = None
    transformation: str = "softmax"

    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {
        "patterns": Parameter("unit feature", constraints.real),
        "beta": Parameter("", constraints.positive, logarithmic=True),
        "values": Parameter("unit answer", constraints.real),
    }
    INSTEAD: ClassVar[Mapping[str, str]] = {
        **ReducedMixture.INSTEAD,
        "log_evidence": "a sparse transformation has no density; take replace(transformation='softmax')",
    }

    def __post_init__(self) -> None:
        self._tensors("beta")
        check.at_least("patterns", self.patterns, 2, "(..., N, D)")
        check.same_dtype(patterns=self.patterns, values=self.values)
        check.finite(patterns=self.patterns, values=self.values, beta=self.beta)
        check.positive("beta", self.beta)
        if self.values is not None:
            check.same_size("patterns", self.num_units, "values", self.values.shape[-2], "units")
        if self.mask is not None:
            if getattr(self.mask, "dtype", None) != torch.bool or self.mask.shape[-1:] != self.patterns.shape[-2:-1]:
                raise ValueError(f"mask must be boolean (..., {self.num_units}), True for a stored pattern")
            if not self.mask.any(-1).all():
                raise ValueError("mask forbids every pattern; store at least one")
        if self.transformation not in POOLING:
            raise ValueError(f"transformation must be one of {', '.join(POOLING)}, not {self.transformation!r}")
        self._validate_weights()

    # -- the mixture behind it -----------------------------------------------------------------------------------------

    @property
    def mixture(self) -> GaussianMixture:
        """The mixture whose attention is retrieval: its log evidence is ``-β E(s)`` but for a constant."""
        self.require_density()
        return linked_units(self.patterns, self.values, for_each(self.beta, 1), log_weights=self.log_mask())

    @property
    def limit(self) -> str | None:
        """Why there is no density: a sparse transformation is not the attention of a mixture."""
        if self.transformation == "softmax":
            return None
        kind = self.transformation
        return f"transformation is {kind!r}, which has no density; take replace(transformation='softmax')"

    @property
    def batch_shape(self) -> torch.Size:
        """The problems: the leading axes of parameters and mask, broadcast."""
        leading = super().batch_shape
        return leading if self.mask is None else check.broadcastable(parameters=leading, mask=self.mask.shape[:-1])

    def traits(self) -> dict[str, tuple[str, Tensor]]:
        """The mask tells patterns apart."""
        return {} if self.mask is None else {"the mask": ("unit", self.mask)}

    def axes(self, name: str) -> tuple[str, ...]:
        """Names of the own axes; without values, patterns are read out."""
        if name == "expected_outputs" and self.values is None:
            return ("query", "feature")
        return super().axes(name)

    def unit_answers(self) -> Tensor:
        """Return what is read out, (..., N, M): values, or the patterns themselves."""
        return self.patterns if self.values is None else self.values

    # -- retrieval -----------------------------------------------------------------------------------------------------

    @property
    def pooling(self) -> Pooling:
        """The map from products of states and patterns onto the simplex, with its sums."""
        return POOLING[self.transformation]

    def log_mask(self) -> Tensor | None:
        """0 for a stored pattern and -inf for another, (..., 1, N); None where all are stored."""
        if self.mask is None:
            return None
        return self.patterns.new_zeros(()).where(self.mask, -torch.inf).unsqueeze(-2)

    def scaled(self, state: Tensor) -> Tensor:
        """``βs``, whose products with the patterns are the scores; refuses a state that does not fit."""
        check.same_dtype(state=state, patterns=self.patterns)
        check.same_size("state", state.shape[-1], "patterns", self.patterns.shape[-1], "coordinates")
        return for_each(self.beta, 2) * state

    def among(self, state: Tensor) -> Memory:
        """The memory with as many digits as such states ask for."""
        mask = None if self.mask is None else self.mask.unsqueeze(-2)
        return Memory.of(for_each(self.beta, 2), state, self.patterns, mask)

    def attention(self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None) -> Tensor:
        """Return the share of each pattern in what is retrieved, rows on the simplex, (..., Q, N):
        the explicit path, twice differentiable.
        """
        if outputs is not None:
            self._check_outputs(queries, outputs, observed)
        scaled, mask, memory = self.scaled(queries), self.log_mask(), self.among(queries)
        if memory.digits > 1:
            return memory.each(lambda scores, *_: self.pooling.function(scores), queries).to(queries.dtype)
        scores = scaled @ self.patterns.mT
        return self.pooling.function(scores if mask is None else scores + mask)

    def expected_outputs(self, queries: Tensor) -> Tensor:
        """`retrieve` by one step, in the words of the other formulations, (..., Q, M)."""
        return self.retrieve(queries)

    def energy(self, state: Tensor) -> Tensor:
        """``E(s)``, shape (..., Q), with the published constant; at least 0 for softmax. Of patterns alone,
        whatever the values.
        """
        self.scaled(state)  # refuses one that does not fit
        return energy(self.transformation, self.among(state), state)

    def retrieve(self, state: Tensor, num_steps: int = 1, tol: float | None = None) -> Tensor:
        """Retrieve from states: so many steps ``s <- X' attention(s)``. One step is attention.

        Parameters
        ----------
        state
            (..., Q, D).
        num_steps, tol
            At most so many steps; with ``tol`` each state stops by itself.

        Returns
        -------
        Tensor
            The state, (..., Q, D); with values, what the last of these steps reads out, (..., Q, M).

        Raises
        ------
        ValueError
            No steps, or a state that does not fit the patterns.

        Notes
        -----
        Softmax is fused; in forward mode, which the kernel does not have on a CPU, take the explicit
        ``memory.attention(state) @ memory.patterns``.
        """
        if num_steps < 1:
            raise ValueError(f"num_steps must be 1 or more, not {num_steps}")
        if self.values is None:
            return self._iterate(state, num_steps, tol).state["state"]
        before = state if num_steps == 1 else self._iterate(state, num_steps - 1, tol).state["state"]
        return self._pool(before, self.values)

    def settle(self, state: Tensor, num_steps: int = 100, tol: float | None = 1e-6) -> Retrieval:
        """`retrieve` among the patterns with the energy of every step, which never rises."""
        found = self._iterate(state, num_steps, tol, traced=True)
        assert found.objective is not None
        return Retrieval(found.state["state"], found.objective, found.converged, found.num_steps)

    def _pool(self, state: Tensor, values: Tensor) -> Tensor:
        scaled, memory, function = self.scaled(state), self.among(state), self.pooling.function
        if memory.digits == 1:
            return self.pooling.pool(scaled, self.patterns, values, self.log_mask())
        pooled = memory.each(lambda scores, best, states, own, values: function(scores) @ values, state, single(values))
        return pooled.to(values.dtype)

    def _iterate(self, state: Tensor, num_steps: int, tol: float | None, traced: bool = False) -> FixedPoint:
        check.tensor("state", state)
        batch = check.broadcastable(memory=self.batch_shape, state=state.shape[:-2])
        state = state.expand(*batch, *state.shape[-2:])
        move, trace = partial(self._pool, values=self.patterns), self.energy if traced else None
        return iterate(move, state, problems=state.shape[:-1], num_steps=num_steps, tol=tol, trace=trace)

    def move(self, num_steps: int = 1, tol: float | None = None) -> Movement:
        """Patterns that move: all are the states, too, and step at once, ``X <- attention(X) X``,
        as in an encoder's self-attention.

        Each step of a pattern lowers its energy in the memory that it left, but the memory moves as well, so that no
        sum of energies, in the first memory or in the current one, is sure to fall. What is: the convex hull of the
        patterns only shrinks (their largest norm, their diameter and every coordinate's range never rise), and under
        softmax the diameter falls at least by the factor ``1 - exp(-β M diameter)``, M the largest norm, so that in the
        end, however late, all patterns are one. This is blurring mean shift (Cheng 1995) under the linked prior. Masked
        patterns stay where they are; values stay with their patterns.
        """
        mask = self.mask

        def step(patterns: Tensor) -> Tensor:
            moved = check.unchecked(Hopfield, **vars(self) | {"patterns": patterns})._pool(patterns, patterns)
            return moved if mask is None else torch.where(mask.unsqueeze(-1), moved, patterns)

        batch = self.batch_shape
        patterns = self.patterns.expand(*batch, *self.patterns.shape[-2:])
        found = iterate(step, patterns, problems=batch, num_steps=num_steps, tol=tol, trace=lambda now: now)
        assert found.objective is not None
        return Movement(self.replace(patterns=found.state["state"]), found.objective, found.converged, found.num_steps)

    # -- what is stored, and how well: Ramsauer et al., Definitions 1 and 2, Theorem 5 ---------------------------------

    def separation(self) -> Tensor:
        """``Δ_n = x_n'x_n - max_{m≠n} x_n'x_m``, (..., N):
        patterns with β Δ_n large are fixed points and retrieved in one step.
        """
        return self._behind(self.patterns.new_ones(()))

    def _behind(self, scale: Tensor) -> Tensor:
        """Distances by which the other patterns' scores are behind that of each pattern itself, times ``scale``,
        (..., N).
        """
        patterns = self.patterns
        itself = torch.eye(patterns.shape[-2], dtype=torch.bool, device=patterns.device)
        compared = None if self.mask is None else self.mask.unsqueeze(-2) | itself
        memory = Memory.of(for_each(self.beta.clamp(min=1.0), 2), patterns, patterns, compared)
        scores, _ = memory._replace(scale=for_each(scale, 2)).relative(patterns)
        return scores.diagonal(dim1=-2, dim2=-1) - scores.masked_fill(itself, -torch.inf).amax(-1)

    def retrieval_error_bound(self, distance: Tensor | float = 0.0) -> Tensor:
        """Bound the distance from pattern n after one step, ``|f(s) - x_n|``,
        from any state within ``distance`` of it: (..., N).

        There every other pattern scores less than pattern n by at least ``m = β (Δ_n - 2 M distance)``, M the largest
        norm. So the others get at most what they get when all are m behind, and each is at most 2M away. For softmax
        the bound is ``2M (N-1) / (N - 1 + exp(m))``; sparse retrieval is exact, bound 0, from m = 1 (sparsemax) or m =
        2 (entmax15) on.

        Parameters
        ----------
        distance
            A number, or one for each pattern (..., N).

        Returns
        -------
        Tensor
            (..., N); infinity for a pattern that is not stored.

        Notes
        -----
        Theorem 5 prints ``2M (N-1) exp(-m)``, which is larger, and in m the larger of the distances of the state and of
        the fixed point from the pattern; the proof of one step needs no fixed point.

        Raises
        ------
        ValueError
            A distance that is negative or not finite.
        """
        distance = check.number("distance", distance, self.patterns.dtype, self.patterns.device)
        if not ((distance >= 0) & distance.isfinite()).all():
            raise ValueError("distance must be finite and at least 0; it is that of a state from a pattern")
        size = self.patterns.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(distance.dtype).tiny)
        norm = (self.patterns / size).norm(dim=-1) * size.squeeze(-1)  # whose squares do not overflow
        norm = norm if self.mask is None else norm.where(self.mask, 0.0)
        largest = norm.amax(-1, keepdim=True)
        away = torch.where(distance > 0, 2 * for_each(self.beta, 1) * largest * distance, 0.0)
        lead = (self._behind(self.beta) - away).nan_to_num(nan=-torch.inf)  # the worst, where both overflow
        number = self.patterns.shape[-2]
        scores = (-lead).clamp(max=torch.finfo(lead.dtype).max)  # a rival that is further ahead gets all weight, too
        scores = scores.unsqueeze(-1).expand(*lead.shape, number)
        itself, mask = _itself(scores), self.log_mask()
        scores = scores.masked_fill(itself, 0.0)
        scores = scores if mask is None else scores + mask
        bound = largest * 2 * self.pooling.function(scores).masked_fill(itself, 0.0).sum(-1)
        return bound if self.mask is None else bound.where(self.mask, torch.inf)

    def effective_patterns(self, state: Tensor) -> Tensor:
        """Return how many patterns a state retrieves, the exponential of the entropy of its attention: 1 to N,
        (..., Q).
        """

        def entropy(scores: Tensor) -> Tensor:
            return torch.special.entr(self.pooling.function(scores)).sum(-1, keepdim=True)

        scaled, memory = self.scaled(state), self.among(state)
        if memory.digits > 1:
            return memory.each(lambda scores, *_: entropy(scores), state).squeeze(-1).exp().to(state.dtype)
        return by_chunks(entropy, scaled, self.patterns, self.log_mask()).squeeze(-1).exp()

    def fixed_points(self, num_steps: int = 1000, tol: float = 1e-6) -> FixedPoints:
        """Retrieval from every pattern, until it stays: which patterns are stored,
        alone or in a metastable state with others.

        ``num_steps`` and ``tol`` as in `fixed_point`. Where patterns share a metastable state they end in the same
        point.
        """
        found = self.settle(self.patterns, num_steps, tol)
        error = (found.state - self.patterns).norm(dim=-1)
        return FixedPoints(found.state, error, self.effective_patterns(found.state), found.converged)


def _itself(square: Tensor) -> Tensor:
    return torch.eye(square.shape[-1], dtype=torch.bool, device=square.device)
