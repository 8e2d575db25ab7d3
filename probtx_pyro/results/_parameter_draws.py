"""A formulation at all draws of its parameters, with the data that it is asked about: whole, or some observations at a time."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probtx_pyro.models.formulation import Data, Formulation
from probtx_pyro.results._evaluation import at_draws, flattened, width


class ParameterDraws(NamedTuple):
    """Draws of a formulation's parameters, (chain, draw, *shape) by name, and data of problems ``batch``.

    ``absorbed``: the data that the draws were made from, where ``data`` are others, for `Formulation.conditioned`.
    Without draws the formulation is as it is: a posterior of one point. Methods that take ``alone`` are those of all that the data
    hold, or of their first datum alone, such as queries without their answers.
    """

    formulation: Formulation
    samples: Mapping[str, Tensor]
    data: Data
    batch: torch.Size
    absorbed: Data | None = None

    @property
    def number(self) -> tuple[int, int]:
        """Chains, and draws of each."""
        return next(((x.shape[0], x.shape[1]) for x in self.samples.values()), (1, 1))

    @property
    def like(self) -> Tensor:
        """A tensor of their dtype and device."""
        return next(iter([*self.samples.values(), *self.formulation.parameters().values()]))

    @property
    def width(self) -> int:
        """Numbers of the largest result at one draw."""
        return max(1, self.batch.numel() * width(self.formulation, self.data))

    @property
    def observed(self) -> tuple[str, ...]:
        """Axes of the observations, independent given the parameters; none where the formulation has no evidence."""
        return self.formulation.axes("log_evidence") if "log_evidence" in self.formulation.RESULTS else ()

    @property
    def num_observations(self) -> int:
        """Number of observations that the data have along the last of these axes."""
        for name, x in zip(self.formulation.DATA, self.data, strict=True):
            axes = self.formulation.axes(name)
            if x is not None and self.observed and self.observed[-1] in axes:
                return x.shape[x.dim() + axes.index(self.observed[-1]) - len(axes)]
        return 1

    def arguments(self, alone: bool) -> Data:
        """The arguments of a closed form."""
        return self.formulation.asked(self.data) if alone else self.formulation.observations(self.data)

    def informs(self, alone: bool) -> bool:
        """True if the model explains some of the data; what it is only conditional on says nothing of parameters."""
        return self.formulation.explains(self.arguments(alone))

    def each(self, method: str, alone: bool) -> Tensor:
        """Return what a method of the formulation says at every draw, (chain, draw, *batch, *its own axes)."""
        given = self.arguments(alone)
        if self.samples:
            found = at_draws(
                lambda at: {method: getattr(self.ready(at), method)(*given)},
                self.formulation,
                self.batch,
                self.data,
                self.samples,
            )
            return found[method]
        with torch.no_grad():
            x = getattr(self.formulation, method)(*given)
        return x.expand(*self.batch, *x.shape[x.dim() - len(self.formulation.axes(method)) :])[None, None]

    def mean(self, method: str, alone: bool, weights: Tensor, held: int) -> Tensor:
        """Return the mean of what a method says, (*batch, *its own axes), under ``weights`` as `aligned` lays them.

        ``held``: how many numbers a result for some of the draws may have.
        """
        given, flat = self.arguments(alone), weights.flatten(0, 1)
        own, total = len(self.formulation.axes(method)), flat.new_zeros(())
        for rows in torch.arange(len(flat)).split(max(1, held // self.width)):
            with torch.no_grad():
                x = getattr(self.at(rows), method)(*given)
            total = total + (flat[rows] * x.double()).sum(0)
        return total.expand(*self.batch, *total.shape[total.dim() - own :]).to(self.like.dtype)

    def at(self, rows: Tensor) -> Any:
        """Return the formulation at some of the draws, counted over all chains: its leading axis."""
        flat = flattened(self.formulation, self.samples, len(self.batch))
        return self.ready(self.formulation.with_parameters({name: x[rows] for name, x in flat.items()}))

    def ready(self, at: Formulation) -> Formulation:
        """Return the formulation with what it has absorbed."""
        return at if self.absorbed is None else at.conditioned(self.absorbed)

    def some(self, rows: Tensor) -> "ParameterDraws":
        """Return the same with some of the observations along the last of their axes."""
        axis = self.observed[-1]

        def chosen(name: str, x: Any) -> Any:
            axes = self.formulation.axes(name)
            if x is None or axis not in axes:
                return x
            place = x.dim() + axes.index(axis) - len(axes)
            return x.index_select(place, rows) if place >= 0 and x.shape[place] > 1 else x

        table = [(name, row) for name, row in self.formulation.PARAMETERS.items() if axis in row.names]
        held = {row.field or name: chosen(name, self.formulation.held(name)) for name, row in table}
        drawn = {name: chosen(name, self.samples[name]) for name, _ in table if name in self.samples}
        data = tuple(chosen(name, x) for name, x in zip(self.formulation.DATA, self.data, strict=True))
        found = self.formulation.with_parameters(held)
        return self._replace(formulation=found, samples={**self.samples, **drawn}, data=data)

    def aligned(self, x: Tensor, name: str) -> Tensor:
        """Lay ``x`` (chain, draw, *batch, *observations) along the axes of a result; those it lacks have size 1."""
        rank = x.dim() - len(self.observed)
        sizes = dict(zip(self.observed, x.shape[rank:], strict=True))
        return x.reshape(*x.shape[:rank], *(sizes.get(axis, 1) for axis in self.formulation.axes(name)))

    def require_rows(self) -> None:
        """Refuse draws with a row for each observation of their data where there are other observations."""
        for name, x in self.samples.items():
            axes = self.formulation.axes(name)
            for axis in {*axes} & {*self.observed[-1:]}:
                place = x.dim() + axes.index(axis) - len(axes)
                if place >= 2 and x.shape[place] not in (1, self.num_observations):
                    raise ValueError(
                        f"{name}: the draws have a row for each {axis} of their data, {x.shape[place]}, but there are {self.num_observations} new ones; give them a prior that they share, such as a Dirichlet of shape (..., 1, U)"
                    )


__all__ = ["ParameterDraws"]
