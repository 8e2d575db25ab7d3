"""The face of the simplex that a mask leaves, as a support with unconstrained coordinates of its own.

Gradient samplers and automatic guides move in R^n and need a bijection onto the support. A Dirichlet with masked units lives
on a face, of lower dimension than the simplex around it, on which the bijection of the simplex has no density.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Transform, biject_to, constraints, transform_to
from torch.nn.functional import logsigmoid, pad

from probtx_pyro.ops._numerics import common_shape


class Face(constraints.Constraint):
    """Rows on the simplex whose masked coordinates are exactly 0; ``allowed`` is boolean (..., U), True in each row somewhere."""

    is_discrete = False
    event_dim = 1

    def __init__(self, allowed: Tensor):
        self.allowed = allowed
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """True for each row that is on its face, shape (...)."""
        return constraints.simplex.check(value) & (self.allowed | (value == 0)).all(-1)


class FaceStickBreaking(Transform):
    """R^(K-1) onto faces of K vertices by breaking a stick over the allowed coordinates; 0 goes to the middle of the face.

    K is the largest number of allowed coordinates of any row. A row with k of them uses its first k - 1 unconstrained ones;
    the others move nothing, and the log Jacobian counts them as standard normal numbers, so that a density over R^(K-1)
    integrates to that over the face, whichever rows it has.

    Shapes: x (..., K-1), y (..., U).
    References: Stan Reference Manual, "Unit simplex"; Betancourt 2012, arXiv 1010.3436.
    """

    domain = constraints.real_vector
    bijective = True

    def __init__(self, allowed: Tensor, cache_size: int = 0):
        self.allowed = allowed
        count = allowed.sum(-1, keepdim=True)
        self.places = int(count.max())
        self.order = torch.argsort((~allowed).to(torch.int8), dim=-1, stable=True)[..., : self.places]
        left = count - 1 - torch.arange(self.places - 1, device=allowed.device)  # vertices after each break
        self.live = left > 0
        self.offset = left.clamp_min(1).to(torch.float64).log()
        super().__init__(cache_size=cache_size)

    @property
    def codomain(self) -> Face:  # type: ignore[override]
        """The faces."""
        return Face(self.allowed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FaceStickBreaking) and torch.equal(self.allowed, other.allowed)

    def with_cache(self, cache_size: int = 1) -> "FaceStickBreaking":
        """Itself: a cached inverse would have to remember the coordinates that move nothing."""
        return self

    def _breaks(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log of the part broken off at each place (..., K-1), and of what is left before each and after the last (..., K)."""
        logits = x - self.offset.to(x)
        taken = logsigmoid(logits).masked_fill(~self.live, 0.0)
        left = pad(logsigmoid(-logits).masked_fill(~self.live, -math.inf).cumsum(-1), [1, 0])
        return taken, left

    def _call(self, x: Tensor) -> Tensor:
        taken, left = self._breaks(x)
        sticks = (pad(taken, [0, 1]) + left).exp()
        wide = common_shape(sticks.shape[:-1], self.allowed.shape[:-1])
        sticks, order = sticks.expand(*wide, self.places), self.order.expand(*wide, self.places)
        return sticks.new_zeros(*wide, self.allowed.shape[-1]).scatter(-1, order, sticks)

    def _inverse(self, y: Tensor) -> Tensor:
        wide = common_shape(y.shape[:-1], self.allowed.shape[:-1])
        sticks = y.expand(*wide, y.shape[-1]).gather(-1, self.order.expand(*wide, self.places))
        sticks = sticks.clamp_min(torch.finfo(y.dtype).tiny)
        after = sticks.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        return torch.where(self.live, sticks[..., :-1].log() - after.log() + self.offset.to(y), 0.0)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Log Jacobian of the coordinates in use; the idle ones add their standard normal log density. Shape (...)."""
        taken, left = self._breaks(x)
        logits = x - self.offset.to(x)
        used = taken + logsigmoid(-logits) + left[..., :-1]
        idle = -0.5 * (x.square() + math.log(2 * math.pi))
        return torch.where(self.live, used, idle).sum(-1)

    def forward_shape(self, shape):
        """(..., K-1) to (..., U)."""
        return torch.Size((*shape[:-1], self.allowed.shape[-1]))

    def inverse_shape(self, shape):
        """(..., U) to (..., K-1)."""
        return torch.Size((*shape[:-1], self.places - 1))


@biject_to.register(Face)
@transform_to.register(Face)
def _break_sticks(face: Face) -> FaceStickBreaking:
    return FaceStickBreaking(face.allowed)
