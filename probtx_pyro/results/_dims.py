"""Names of the axes of a variable: by the tables of the formulation, and the plates of the problem before them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from probtx_pyro.models.formulation import Formulation
from probtx_pyro.ops._numerics import common_shape
from probtx_pyro.results._arviz import Variable

OF_PROBLEMS = ("objective", "converged", "num_steps")  # of a fit: one number for each problem


class Layout:
    """Lays out the variables of one problem: ``variable`` gives each its dims,
    those of the tables or those that are given.

    Parameters
    ----------
    formulation, data
        The formulation and its data, in the order of its table, or nothing.
    problems
        Leading axes that come from elsewhere than formulation and data.
    given
        Names of the axes of a variable in place of those of the tables, without ``chain`` and ``draw``.
    """

    def __init__(
        self,
        formulation: Formulation,
        data: Sequence[Any] = (),
        problems: torch.Size | tuple[int, ...] = (),
        given: Mapping[str, Sequence[str]] | None = None,
    ):
        self.formulation, self.sizes = formulation, formulation.sizes(*data)
        known = len(data) > 0 and data[0] is not None and formulation.offers("plates")
        own = formulation.plates(*data).batch if known else formulation.batch_shape
        self.leading = common_shape(own, problems)
        self.names = tuple(formulation.problem_axes(len(self.leading)))
        self.sizes.update(zip(self.names, self.leading, strict=True))
        self.given, self.unused = names_of_axes(given), set(given or {})

    def axes(self, name: str) -> tuple[str, ...]:
        """Names of the axes of a variable, those of the problems first."""
        return (*self.names, *(() if name in OF_PROBLEMS else self.formulation.axes(name)))

    def variable(self, name: str, x: Tensor, like: str | None = None, samples: Sequence[str] = ()) -> Variable:
        """Return ``x`` under the dims of ``name``, or of another row of the tables; its first axes are ``samples``.

        An axis of size 1 along which the variable is shared is dropped. A variable that no table knows, such as a
        hyperparameter, gets names of its own.
        """
        array = x.detach().cpu().numpy()
        rank = array.ndim - len(samples)
        try:
            named = self.axes(like or name)
        except KeyError:
            named = tuple(f"{name}_dim_{i}" for i in range(rank))
        dims = (*samples, *named[len(named) - rank :])
        axes = [i for i, dim in enumerate(dims) if i < len(samples) or array.shape[i] != 1 or self.sizes.get(dim) == 1]
        array, dims = array.reshape([array.shape[i] for i in axes]), tuple(dims[i] for i in axes)
        if name not in self.given:
            return dims, array
        self.unused.discard(name)
        renamed, found = self.given[name], dims[len(samples) :]
        if len(renamed) != len(found):
            raise ValueError(f"dims: {len(renamed)} names for {name} with axes {', '.join(found)}; name each once")
        return (*samples, *renamed), array

    def finish(self) -> None:
        """Refuse names for a variable that was not there."""
        refuse_unused(self.unused)


def names_of_axes(given: Mapping[str, Sequence[str]] | None) -> dict[str, tuple[str, ...]]:
    """Return the names of the axes of each variable; a text, whose letters would be taken for names, is refused."""
    for name, axes in (given or {}).items():
        if isinstance(axes, str):
            raise ValueError(f"dims: those of {name} are the text {axes!r}; give a list with a name for each axis")
    return {name: tuple(axes) for name, axes in (given or {}).items()}


def refuse_unused(names: set[str]) -> None:
    """Refuse names of dims that belong to no variable of the result."""
    if names:
        raise ValueError(f"dims: there is no variable {min(names)!r} in this result; drop it from dims")
