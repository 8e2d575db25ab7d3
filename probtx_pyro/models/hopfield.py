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

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from probtx_pyro.models import validation as check
from probtx_pyro.models.gaussian_mixture import GaussianMixture
from probtx_pyro.models.value import Value
from probtx_pyro.ops import fixed_point
from probtx_pyro.ops.entmax import ENTMAX

Maybe = Tensor | None  # an argument that may be left out


class Retrieval(NamedTuple):
    """Where states went.

    state: (..., Q, D). energy: at the start and after every step, (num_steps + 1, ..., Q). converged, num_steps: of each, (..., Q).
    """

    state: Tensor
    energy: Tensor
    converged: Tensor
    num_steps: Tensor


@dataclass(frozen=True, eq=False)
class Hopfield(Value):
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
    Structured Hopfield Networks* (the sparse family).
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
        if self.transformation not in ENTMAX:
            raise ValueError(f"transformation must be one of {', '.join(ENTMAX)}, not {self.transformation!r}")

    @property
    def mixture(self) -> GaussianMixture:
        """The mixture whose attention is retrieval (softmax's): its log evidence is ``-β E(s)`` but for a constant."""
        return GaussianMixture.linked(self.patterns, self.values, self.beta, 0.0, self._log_mask())

    def _log_mask(self) -> Tensor | None:
        if self.mask is None:
            return None
        return (
            torch.zeros(self.mask.shape, dtype=self.patterns.dtype, device=self.mask.device)
            .masked_fill(~self.mask, -torch.inf)
            .unsqueeze(-2)
        )

    def _scores(self, state: Tensor) -> Tensor:
        check.same_size("state", state.shape[-1], "patterns", self.patterns.shape[-1], "coordinates")
        check.same_dtype(state=state, patterns=self.patterns)
        scores = self.beta * (state @ self.patterns.mT)
        mask = self._log_mask()
        return scores if mask is None else scores + mask

    def attention(self, state: Tensor) -> Tensor:
        """How much each pattern is retrieved, rows on the simplex, (..., Q, N)."""
        return ENTMAX[self.transformation].function(self._scores(state))

    def energy(self, state: Tensor) -> Tensor:
        """``E(s)``, shape (..., Q), with the published constant; at least 0 for softmax. Of patterns alone, whatever the values."""
        free = ENTMAX[self.transformation].conjugate(self._scores(state)) / self.beta
        size = self.patterns.square().sum(-1)
        stored = torch.ones_like(size) if self.mask is None else self.mask.to(size).expand_as(size)
        constant = stored.sum(-1).log() / self.beta + 0.5 * (size * stored).amax(-1)
        return 0.5 * state.square().sum(-1) - free + constant.unsqueeze(-1)

    def retrieve(self, state: Tensor, num_steps: int = 1, tol: float | None = None) -> Tensor:
        """The state after so many steps ``s <- X' attention(s)``, (..., Q, D); with ``tol`` each state stops by itself.

        With values, what the last of these steps reads out: (..., Q, M). One step is attention.
        """
        if num_steps < 1:
            raise ValueError(f"num_steps must be 1 or more, not {num_steps}")
        if self.values is None:
            return self.settle(state, num_steps, tol).state
        before = state if num_steps == 1 else self.settle(state, num_steps - 1, tol).state
        return self.attention(before) @ self.values

    def settle(self, state: Tensor, num_steps: int = 100, tol: float | None = 1e-6) -> Retrieval:
        """`retrieve` among the patterns with the energy of every step, which never rises."""
        batch = check.broadcastable(state=state.shape[:-2], patterns=self.patterns.shape[:-2])
        state = state.expand(*batch, *state.shape[-2:])

        def step(now: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
            return {"state": self.attention(now["state"]) @ self.patterns}, self.energy(now["state"])

        move: Callable = step
        found = fixed_point(
            move, {"state": state}, problems=state.shape[:-1], num_steps=num_steps, tol=tol,
            objective=lambda now: self.energy(now["state"]), progress=False,
        )  # fmt: skip
        assert found.objective is not None
        return Retrieval(found.state["state"], found.objective, found.converged, found.num_steps)

    def separation(self) -> Tensor:
        """``Δ_n = x_n'x_n - max_{m≠n} x_n'x_m``, (..., N): patterns with β Δ_n large are fixed points and retrieved in one step."""
        products = self.patterns @ self.patterns.mT
        itself = torch.eye(products.shape[-1], dtype=torch.bool, device=products.device)
        other = products.masked_fill(itself, -torch.inf)
        other = other if self.mask is None else other.masked_fill(~self.mask.unsqueeze(-2), -torch.inf)
        return products.diagonal(dim1=-2, dim2=-1) - other.amax(-1)


__all__ = ["Hopfield", "Retrieval"]
