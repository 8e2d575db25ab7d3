"""Labels or heads of all sentences as a distribution: a log density and an exact draw, whatever they are conditional on."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints


class Annotation(TorchDistribution):
    """Whole numbers of batch shape (..., B), the sentences, and event shape (N,) or (C, N).

    Parameters
    ----------
    log_density
        From values to their log densities (..., B); it says itself which of them it reads.
    draw
        One draw of all sentences.
    batch_shape, event_shape
        As above.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = False

    def __init__(
        self,
        log_density: Callable[[Tensor], Tensor],
        draw: Callable[[], Tensor],
        batch_shape: torch.Size,
        event_shape: torch.Size,
    ):
        self.log_density, self.draw = log_density, draw
        super().__init__(batch_shape, event_shape, validate_args=False)

    @constraints.dependent_property(is_discrete=True)
    def support(self) -> constraints.Constraint:
        """Whole numbers; -1 is padding, or a head that is not known."""
        return constraints.independent(constraints.integer_interval(-1, 2**31), len(self.event_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """``log p(value)``, (..., B)."""
        return self.log_density(value).expand(self.batch_shape)

    def sample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        """Draw all sentences anew, so often."""
        with torch.no_grad():
            drawn = [self.draw().expand(self.shape()) for _ in range(torch.Size(sample_shape).numel())]
        return torch.stack(drawn).reshape(torch.Size(sample_shape) + self.shape())


__all__ = ["Annotation"]
