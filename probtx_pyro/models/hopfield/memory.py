"""Modern Hopfield retrieval: the energy is minus the log density of a mixture, retrieval its EM, so the energy never rises.

``E(s) = -β⁻¹ lse(β X s) + ½|s|² + β⁻¹ log N + ½ max_n |x_n|²`` (Ramsauer et al. 2021) is ``-β⁻¹ log p(s)`` but for a constant, p the
`GaussianMixture` with the patterns as keys, precision β and the linked prior; ``s <- X' softmax(β X s)`` is one step of EM on it.

======  ==================  ====================  ==========================================
symbol  name                shape                 support
======  ==================  ====================  ==========================================
x_n     ``patterns``        (..., N, D)           real
β       ``beta``            scalar                > 0
v_n     ``values``          (..., N, M)           real; what is read out in place of patterns
·       ``mask``            (..., N)              boolean, True for a pattern that is stored
s       ``state``           (..., Q, D)           real: the queries
======  ==================  ====================  ==========================================
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models.formulation import Formulation
from probtx_pyro.models.gaussian_mixture import GaussianMixture
from probtx_pyro.models.hopfield import measures
from probtx_pyro.ops import FixedPoint
from probtx_pyro.ops.retrieval import POOLING, Pooling, iterate

Maybe = Tensor | None  # an argument that may be left out


class Retrieval(NamedTuple):
    """Where states went.

    state: (..., Q, D). energy: at the start and after every step, (num_steps + 1, ..., Q). converged, num_steps: of each, (..., Q).
    """

    state: Tensor
    energy: Tensor
    converged: Tensor
    num_steps: Tensor


class Movement(NamedTuple):
    """Where patterns went that retrieved each other.

    memory: of the patterns where they are now. path: the patterns at the start and after every step, (num_steps + 1, ..., N, D).
    converged, num_steps: of each problem, (...).
    """

    memory: "Hopfield"
    path: Tensor
    converged: Tensor
    num_steps: Tensor


@dataclass(frozen=True, eq=False)
class Hopfield(Formulation):
    """An associative memory. Immutable.

    Parameters
    ----------
    patterns, beta, values, mask
        As in the table above.
    transformation
        "softmax", "entmax15" or "sparsemax", which retrieve sparsely: a pattern alone, exactly, where it is separated enough.

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
    Ramsauer et al. 2021, *Hopfield Networks is All You Need*, arXiv 2008.02217; Shim 2022, section 4; Santos et al. 2024, *Sparse and
    Structured Hopfield Networks* (the sparse family); Cheng 1995, *Mean shift, mode seeking, and clustering* (patterns that move).
    """

    patterns: Tensor
    beta: Tensor
    values: Maybe = None
    mask: Maybe = None
    transformation: str = "softmax"

    if TYPE_CHECKING:

        def __init__(
            self,
            patterns: Tensor,
            beta: Tensor | float,
            values: Maybe = None,
            mask: Maybe = None,
            transformation: str = "softmax",
        ) -> None: ...

    def __post_init__(self) -> None:
        check.floating("patterns", self.patterns)
        check.at_least("patterns", self.patterns, 2, "(..., N, D)")
        beta = torch.as_tensor(self.beta, dtype=self.patterns.dtype, device=self.patterns.device)
        object.__setattr__(self, "beta", beta)
        if beta.dim():
            raise ValueError(f"beta must be one number but has shape {tuple(beta.shape)}; give a memory to each")
        check.same_dtype(patterns=self.patterns, values=self.values)
        check.finite(patterns=self.patterns, values=self.values, beta=beta)
        check.positive("beta", beta)
        if self.values is not None:
            check.same_size("patterns", self.patterns.shape[-2], "values", self.values.shape[-2], "units")
        if self.mask is not None:
            if self.mask.dtype != torch.bool or self.mask.shape[-1:] != self.patterns.shape[-2:-1]:
                raise ValueError(
                    f"mask must be boolean (..., {self.patterns.shape[-2]}), True for a stored pattern, not {self.mask.dtype} {tuple(self.mask.shape)}"
                )
            if not self.mask.any(-1).all():
                raise ValueError("mask forbids every pattern; store at least one")
        if self.transformation not in POOLING:
            raise ValueError(f"transformation must be one of {', '.join(POOLING)}, not {self.transformation!r}")

    @property
    def mixture(self) -> GaussianMixture:
        """The mixture whose attention is retrieval (softmax's): its log evidence is ``-β E(s)`` but for a constant."""
        return GaussianMixture.linked(self.patterns, self.values, self.beta, 0.0, self.log_mask())

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move and convert every tensor, as ``torch.Tensor.to``; the mask stays boolean."""
        patterns = self.patterns.to(*args, **kwargs)
        return self.replace(
            patterns=patterns,
            beta=self.beta.to(*args, **kwargs),
            values=None if self.values is None else self.values.to(*args, **kwargs),
            mask=None if self.mask is None else self.mask.to(patterns.device),
        )

    @property
    def pooling(self) -> Pooling:
        """What the transformation makes of the products of states and patterns."""
        return POOLING[self.transformation]

    def log_mask(self) -> Tensor | None:
        """0 for a stored pattern and -inf for another, (..., 1, N); None where all are stored."""
        if self.mask is None:
            return None
        return self.patterns.new_zeros(()).where(self.mask, -torch.inf).unsqueeze(-2)

    def scaled(self, state: Tensor) -> Tensor:
        """``βs``, whose products with the patterns are the scores; refuses a state that does not fit."""
        check.same_size("state", state.shape[-1], "patterns", self.patterns.shape[-1], "coordinates")
        check.same_dtype(state=state, patterns=self.patterns)
        return self.beta * state

    def attention(self, state: Tensor) -> Tensor:
        """How much each pattern is retrieved, rows on the simplex, (..., Q, N): the explicit path, twice differentiable."""
        scores, mask = self.scaled(state) @ self.patterns.mT, self.log_mask()
        return self.pooling.function(scores if mask is None else scores + mask)

    def energy(self, state: Tensor) -> Tensor:
        """``E(s)``, shape (..., Q), with the published constant; at least 0 for softmax. Of patterns alone, whatever the values."""
        free = self.pooling.conjugate(self.scaled(state), self.patterns, self.log_mask()) / self.beta
        size = self.patterns.square().sum(-1)
        stored = torch.ones_like(size) if self.mask is None else self.mask.to(size)
        constant = stored.sum(-1).log() / self.beta + 0.5 * (size * stored).amax(-1)
        return 0.5 * state.square().sum(-1) - free + constant.unsqueeze(-1)

    def retrieve(self, state: Tensor, num_steps: int = 1, tol: float | None = None) -> Tensor:
        """The state after so many steps ``s <- X' attention(s)``, (..., Q, D); with ``tol`` each state stops by itself.

        With values, what the last of these steps reads out: (..., Q, M). One step is attention.

        Softmax is fused, and its kernel has no second derivative on a CPU: for one, take the explicit
        ``memory.attention(state) @ memory.patterns``. `energy` has one.
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

    def _batch(self, **more: torch.Size) -> torch.Size:
        own = {"patterns": self.patterns.shape[:-2]} | ({} if self.mask is None else {"mask": self.mask.shape[:-1]})
        return check.broadcastable(**own, **more)

    def _pool(self, state: Tensor, values: Tensor) -> Tensor:
        return self.pooling.pool(self.scaled(state), self.patterns, values, self.log_mask())

    def _iterate(self, state: Tensor, num_steps: int, tol: float | None, traced: bool = False) -> FixedPoint:
        batch = self._batch(state=state.shape[:-2])
        state = state.expand(*batch, *state.shape[-2:])
        return iterate(
            lambda now: self._pool(now, self.patterns), state, problems=state.shape[:-1], num_steps=num_steps, tol=tol,
            trace=self.energy if traced else None,
        )  # fmt: skip

    def move(self, num_steps: int = 1, tol: float | None = None) -> Movement:
        """Patterns that move: all are the states, too, and step at once, ``X <- attention(X) X``, as in an encoder's self-attention.

        Each step of a pattern lowers its energy in the memory that it left, but the memory moves as well, so that no sum of
        energies, in the first memory or in the current one, is sure to fall. What is: the convex hull of the patterns only
        shrinks (their largest norm, their diameter and every coordinate's range never rise), and under softmax the diameter falls
        at least by the factor ``1 - exp(-β M diameter)``, M the largest norm, so that in the end, however late, all patterns are
        one. This is blurring mean shift (Cheng 1995) under the linked prior. Masked patterns stay where they are; values
        stay with their patterns.
        """
        mask, log_mask = self.mask, self.log_mask()

        def step(patterns: Tensor) -> Tensor:
            moved = self.pooling.pool(self.beta * patterns, patterns, patterns, log_mask)
            return moved if mask is None else torch.where(mask.unsqueeze(-1), moved, patterns)

        batch = self._batch()
        patterns = self.patterns.expand(*batch, *self.patterns.shape[-2:])
        found = iterate(step, patterns, problems=batch, num_steps=num_steps, tol=tol, trace=lambda now: now)
        assert found.objective is not None
        return Movement(self.replace(patterns=found.state["state"]), found.objective, found.converged, found.num_steps)

    # -- what is stored, and how well (measures.py) ---------------------------------------------------------------------

    separation = measures.separation
    retrieval_error_bound = measures.retrieval_error_bound
    effective_patterns = measures.effective_patterns
    fixed_points = measures.fixed_points


__all__ = ["Hopfield", "Movement", "Retrieval"]
