"""Distributions that the Pyro programs need and Pyro does not have, or not so."""

import math
from typing import Any, ClassVar

import torch
from pyro.distributions import Categorical, TorchDistribution, Wishart
from torch import Tensor
from torch.distributions import Transform, biject_to, constraints, transform_to
from torch.distributions.utils import broadcast_all
from torch.nn.functional import logsigmoid, pad

from probtx_pyro.ops import safe_softmax
from probtx_pyro.ops._numerics import common_shape


class Face(constraints.Constraint):
    """Rows on the simplex whose masked coordinates are exactly 0; ``allowed`` is boolean (..., U),
    True in each row somewhere.
    """

    is_discrete = False
    event_dim = 1

    def __init__(self, allowed: Tensor):
        self.allowed = allowed
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """True for each row that is on its face, shape (...)."""
        return constraints.simplex.check(value) & (self.allowed | (value == 0)).all(-1)


class FaceStickBreaking(Transform):
    """R^(K-1) onto faces of K vertices by breaking a stick over the allowed coordinates;
    0 goes to the middle of the face.

    K is the largest number of allowed coordinates of any row. A row with k of them uses its first k - 1 unconstrained
    ones; the others move nothing, and the log Jacobian counts them as standard normal numbers, so that a density over
    R^(K-1) integrates to that over the face, whichever rows it has.

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
        """Log of the part broken off at each place (..., K-1),
        and of what is left before each and after the last (..., K).
        """
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


class MixtureDensity(TorchDistribution):
    """The density of a query under a mixture, its unit summed out: batch shape (..., Q), event shape (D,).

    Parameters
    ----------
    mixture
        A `Mixture`: ``log_evidence`` is the density, ``log_weights`` and ``emission`` make draws.
    num_queries
        Q.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = False

    def __init__(self, mixture: Any, num_queries: int, validate_args: bool | None = None):
        self.mixture, self.num_queries = mixture, num_queries
        with torch.no_grad():
            emitted = mixture.emission(torch.zeros(1, dtype=torch.long, device=mixture.log_weights().device))
        self._support = emitted.support
        batch = torch.Size((*mixture.batch_shape, num_queries))
        super().__init__(batch, emitted.event_shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> constraints.Constraint:
        """That of the units' emissions."""
        return self._support

    def expand(self, batch_shape, _instance=None):
        """Broadcast the batch axes; the last counts the queries."""
        new = self._get_checked_instance(MixtureDensity, _instance)
        new.mixture, new.num_queries, new._support = self.mixture, batch_shape[-1], self._support
        super(MixtureDensity, new).__init__(torch.Size(batch_shape), self.event_shape, validate_args=False)
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """``log p(value)``, shape ``sample_shape + (..., Q)``."""
        if self._validate_args:
            self._validate_sample(value)
        density = self.mixture.log_evidence(value)
        return density.expand(common_shape(density.shape, self.batch_shape))

    def sample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        """Draw a unit, then a query from it."""
        shape = torch.Size(sample_shape) + self.batch_shape
        with torch.no_grad():
            weights = self.mixture.log_weights().exp()
            unit = Categorical(probs=weights.expand(*shape, weights.shape[-1])).sample()
            return self.mixture.emission(unit).expand(shape).sample()

    @property
    def mean(self) -> Tensor:
        """``Σ_j π_j E[x | unit=j]``, shape (..., Q, D)."""
        weights = self.mixture.log_weights().exp()
        means = self.mixture.emission(torch.arange(weights.shape[-1], device=weights.device)).mean
        return (weights @ means).expand(self.batch_shape + self.event_shape)


class PlainWishart(Wishart):
    """Pyro's Wishart, drawn by Bartlett's decomposition alone;
    torch's own draws warn of singular ones where there are none.
    """

    def expand(self, batch_shape, _instance=None):
        """Broadcast the batch axes."""
        return super().expand(batch_shape, self._get_checked_instance(PlainWishart, _instance))

    def rsample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        """Draws, shape ``sample_shape + (..., D, D)``."""
        return self._bartlett_sampling(torch.Size(sample_shape))


class FaceDirichlet(TorchDistribution):
    """Dirichlet on the face of the simplex that a mask leaves: masked coordinates are 0 and carry no density.

    Concentrations of exactly 1 everywhere are allowed as any others; a face of one point has density 1 on it.

    Shapes: ``concentration`` and boolean ``allowed`` (..., U); event shape (U,).
    """

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    has_rsample = True

    def __init__(self, concentration: Tensor, allowed: Tensor, validate_args: bool | None = None):
        self.allowed = allowed.expand(common_shape(concentration.shape, allowed.shape))
        self.concentration = concentration.expand(self.allowed.shape)
        super().__init__(self.allowed.shape[:-1], self.allowed.shape[-1:], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> Face:
        """The face itself, not the simplex around it, so that unconstrained coordinates have the face's dimension."""
        return Face(self.allowed)

    def expand(self, batch_shape, _instance=None):
        """Broadcast the batch axes."""
        shape = torch.Size(batch_shape) + self.event_shape
        return FaceDirichlet(self.concentration.expand(shape), self.allowed.expand(shape), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Density of the allowed coordinates; -inf where a masked coordinate is not 0."""
        concentration, value, allowed = broadcast_all(self.concentration, value, self.allowed)
        allowed = allowed.bool()
        inside = torch.where(allowed, concentration, 0.0)
        terms = torch.xlogy(torch.where(allowed, concentration - 1, 0.0), torch.where(allowed, value, 1.0))
        normalizer = torch.lgamma(inside.sum(-1)) - torch.where(
            allowed, torch.lgamma(torch.where(allowed, concentration, 1.0)), 0.0
        ).sum(-1)
        return (terms.sum(-1) + normalizer).masked_fill((~allowed & (value != 0)).any(-1), -math.inf)

    def rsample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        """Gamma draws of the allowed coordinates, normalised."""
        shape = torch.Size(sample_shape) + self.concentration.shape
        gamma = torch._standard_gamma(torch.where(self.allowed, self.concentration, 1.0).expand(shape))
        return safe_softmax(gamma.log().masked_fill(~self.allowed, -math.inf))[0]

    @property
    def mean(self) -> Tensor:
        """Concentrations of the allowed coordinates over their sum."""
        inside = torch.where(self.allowed, self.concentration, 0.0)
        return inside / inside.sum(-1, keepdim=True)
