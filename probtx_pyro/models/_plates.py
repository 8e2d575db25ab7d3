"""Shared parts of the models' Pyro programs: the plates of a problem, absent and weighted queries,
parameters of a drawn unit.
"""

from contextlib import ExitStack
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import Normal
from pyro.ops.indexing import Vindex
from torch import Tensor

PARALLEL: Any = {"enumerate": "parallel"}


def plate_names(rank: int) -> list[str]:
    """Names of ``rank`` leading axes: ``batch``; ``batch, head``; further ones in front are ``batch_1``,
    ``batch_2``, ...
    """
    return [f"batch_{i + 1}" for i in range(rank - 2)] + ["batch", "head"][: max(rank, 0)]


def plate_of(axis: str) -> str:
    """Name of the plate over an axis; that over units cannot be called as the site ``unit``."""
    return "units" if axis == "unit" else axis


class Plates:
    """The plates of a problem, each created once and entered as often as sites need it."""

    def __init__(self, batch: torch.Size, **last: int):
        self.batch, self.sizes = batch, [*zip(plate_names(len(batch)), batch, strict=True)]
        self.last, self._made = last, dict[str, pyro.plate]()

    def enter(self, last: str | None, like: torch.Size | None = None) -> ExitStack:
        """Enter the leading axes and ``last``, if any; only those along which ``like``, a batch shape, varies, if
        given.

        The leading axes are plates at one place: a program enters them with the same ``last`` or always without.
        """
        stack = ExitStack()
        axes = [*self.sizes, *([] if last is None else [(last, self.last[last])])]
        like = torch.Size(n for _, n in axes) if like is None else torch.Size((1,) * (len(axes) - len(like))) + like
        for i, (name, n) in enumerate(axes):
            if like[i] == n:
                if name not in self._made:
                    self._made[name] = pyro.plate(name, n, dim=i - len(axes))
                stack.enter_context(self._made[name])
        return stack


def weighted_queries(plates: Plates, query_weights: Tensor | None) -> ExitStack:
    """The plate of the queries; weight 0 masks a query, other weights scale its log density."""
    stack = plates.enter("query")
    if query_weights is not None:
        present: Any = query_weights > 0
        stack.enter_context(poutine.mask(mask=present))
        if not bool(((query_weights == 1) | ~present).all()):
            stack.enter_context(poutine.scale(scale=torch.where(present, query_weights, 1.0)))
    return stack


def given_unit(parameter: Tensor, unit: Tensor, event_dim: int) -> Tensor:
    """The parameter of the unit drawn; never plain ``parameter[unit]``, which breaks under extra batch axes."""
    if event_dim == 0:
        return Vindex(parameter.unsqueeze(-2))[..., unit] if parameter.dim() and parameter.shape[-1] > 1 else parameter
    return Vindex(parameter.unsqueeze(-3))[..., unit, :]


def isotropic(mean: Tensor, precision: Tensor):
    """``N(mean, I/precision)`` with event shape (D,)."""
    return Normal(mean, precision.rsqrt().unsqueeze(-1) if precision.dim() else precision.rsqrt()).to_event(1)
