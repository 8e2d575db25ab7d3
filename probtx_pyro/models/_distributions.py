"""Two distributions that the Pyro programs need and Pyro does not have."""

import math

import torch
from pyro.distributions import Dirichlet, TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import broadcast_all

from probtx_pyro.models._simplex_face import Face
from probtx_pyro.ops import gaussian_factor, log_evidence, safe_softmax


class IsotropicMixture(TorchDistribution):
    r"""``Σ_j w_j N(centers_j, I/precision_j)`` with the component summed out, in O(chunk x U) memory.

    Each element of the batch ``(..., Q)`` has its own weights and shares the centers of its leading axes; PyTorch's
    ``MixtureSameFamily`` would need Q x U x D numbers for the same log density.

    Shapes: ``log_weights`` (..., Q or 1, U) normalised, ``centers`` (..., U, D), ``precision`` scalar or (..., U or 1);
    batch shape (..., Q), event shape (D,).
    """

    arg_constraints = {"centers": constraints.real_vector}
    support = constraints.real_vector
    has_rsample = False

    def __init__(
        self,
        log_weights: Tensor,
        centers: Tensor,
        precision: Tensor,
        num_queries: int,
        validate_args: bool | None = None,
    ):
        self.log_weights, self.centers, self.precision = log_weights, centers, precision
        batch = torch.broadcast_shapes(log_weights.shape[:-2], centers.shape[:-2], precision.shape[:-1])
        super().__init__(torch.Size((*batch, num_queries)), centers.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        """Broadcast the leading axes; the last, the queries, may grow from 1."""
        leading, queries = tuple(batch_shape[:-1]), batch_shape[-1]
        weights = self.log_weights.expand(*leading, *self.log_weights.shape[-2:])
        return IsotropicMixture(weights, self.centers, self.precision, queries, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """``log p(value)``, shape ``sample_shape + (..., Q)``."""
        if self._validate_args:
            self._validate_sample(value)
        center = self.centers.detach().mean(-2, keepdim=True)
        factor = gaussian_factor(value - center, self.centers - center, self.precision)
        return log_evidence(factor, self.log_weights).expand(torch.broadcast_shapes(value.shape[:-1], self.batch_shape))

    def sample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        """Draw a component, then a point from it."""
        shape = torch.Size(sample_shape) + self.batch_shape
        with torch.no_grad():
            weights = self.log_weights.exp().expand(*shape, -1)
            unit = torch.multinomial(weights.reshape(-1, weights.shape[-1]), 1).reshape(shape)
            centers = self.centers.expand(*shape[:-1], *self.centers.shape[-2:])
            precision = self.precision.expand(torch.broadcast_shapes(self.precision.shape, centers.shape[:-1]))
            mean = centers.gather(-2, unit.unsqueeze(-1).expand(*shape, centers.shape[-1]))
            return mean + torch.randn_like(mean) * precision.gather(-1, unit).rsqrt().unsqueeze(-1)

    @property
    def mean(self) -> Tensor:
        """``Σ_j w_j centers_j``, shape (..., Q, D)."""
        return (self.log_weights.exp() @ self.centers).expand(*self.batch_shape, *self.event_shape)


class FaceDirichlet(TorchDistribution):
    """Dirichlet on the face of the simplex that a mask leaves: masked coordinates are 0 and carry no density.

    Concentrations of exactly 1 everywhere are allowed as any others; a face of one point has density 1 on it.

    Shapes: ``concentration`` and boolean ``allowed`` (..., U); event shape (U,).
    """

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    has_rsample = True

    def __init__(self, concentration: Tensor, allowed: Tensor, validate_args: bool | None = None):
        self.allowed = allowed.expand(torch.broadcast_shapes(concentration.shape, allowed.shape))
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


def on_face(prior: Dirichlet, allowed: Tensor | None) -> Dirichlet | FaceDirichlet:
    """``prior`` itself, or restricted to the allowed coordinates."""
    return prior if allowed is None else FaceDirichlet(prior.concentration, allowed)


__all__ = ["FaceDirichlet", "IsotropicMixture", "on_face"]
