"""What the formulations share as immutable values of tensors: changing, moving, and the axes of their problems."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.ops import safe_log


class Value:
    """Base of the frozen dataclasses of tensors."""

    def replace(self, **changes: Any) -> Self:
        """A model with some constructor arguments changed, validated."""
        return type(self)(**{**vars(self), **changes})


class MixtureValue(Value):
    """Base of the frozen dataclasses of tensors that are mixtures over units.

    axes: how many axes each constructor argument has after the leading ones, by name.
    """

    axes: ClassVar[Mapping[str, int]]
    keys: Tensor
    log_prior: Tensor | None

    def with_parameters(self, parameters: Mapping[str, Tensor | None]) -> Self:
        """A model with some parameters changed, by the names of `MixturePriors` (``weights``, not their log); unvalidated."""
        changes = dict(parameters)
        if "weights" in changes:
            changes["log_prior"] = safe_log(cast(Tensor, changes.pop("weights")))
        return check.unchecked(type(self), **{**vars(self), **changes})

    def parameter(self, name: str, batch: torch.Size | tuple[int, ...] = ()) -> Tensor | None:
        """The tensor that a prior on ``name`` describes; weights that are None are uniform, for each problem of ``batch``."""
        if name != "weights":
            return getattr(self, name)
        uniform = self.keys.new_full((), 1 / self.num_units).expand(*batch, 1, self.num_units)
        return uniform if self.log_prior is None else self.log_prior.exp()

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move and convert every tensor, as ``torch.Tensor.to``."""
        return self.with_parameters(
            {name: x.to(*args, **kwargs) for name, x in vars(self).items() if isinstance(x, Tensor)}
        )

    def log_weights(self) -> Tensor:
        """``log π``, shape (..., Q or 1, U)."""
        uniform = self.keys.new_full((1, self.num_units), -math.log(self.num_units))
        return uniform if self.log_prior is None else self.log_prior

    @property
    def num_units(self) -> int:
        """U."""
        return self.keys.shape[-self.axes["keys"]]

    @property
    def batch_shape(self) -> torch.Size:
        """The problems: the leading axes of all parameters, broadcast."""
        given = {name: x for name in self.axes if (x := getattr(self, name)) is not None}
        leading = {name: x.shape[: max(0, x.dim() - self.axes[name])] for name, x in given.items()}
        return check.broadcastable(**leading)

    def _tensors(self, *names: str) -> None:
        """Numbers among the constructor arguments become tensors like the keys."""
        check.floating("keys", self.keys)
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, Tensor):
                object.__setattr__(self, name, torch.as_tensor(value, dtype=self.keys.dtype, device=self.keys.device))


__all__ = ["MixtureValue", "Value"]
