"""How the axes of a variable are called: one table for every result, and the plates of the problem before it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from probtx_pyro.models import GaussianKeys, GaussianMixture
from probtx_pyro.models._plates import plate_names
from probtx_pyro.results._arviz import Variable

DIMS = {
    "keys": ("unit", "feature"),
    "key_precision": ("unit",),
    "values": ("unit", "answer"),
    "value_precision": ("unit",),
    "weights": ("query", "unit"),
    "answer_probs": ("unit", "label"),
    "attention": ("query", "unit"),
    "log_evidence": ("query",),
    "queries": ("query", "feature"),
    "outputs": ("query", "answer"),
    "labels": ("query",),
    "observed": ("query",),
    "query_weights": ("query",),
    "log_likelihood": ("query",),
    "objective": (),
    "converged": (),
    "num_steps": (),
}
OF_KEYS = {  # what a unit of `GaussianKeys` has once for each component
    "keys": ("unit", "component", "feature"),
    "key_precision": ("unit", "component"),
    "component_weights": ("unit", "component"),
}
SAMPLES = ("chain", "draw")


class Layout:
    """Lays out the variables of one problem: ``variable`` gives each its dims, those of the table or those that are given.

    Parameters
    ----------
    mixture, data
        The mixture, and (queries, outputs, observed, ...) as its program takes them, or nothing.
    leading
        Leading axes that come from elsewhere than mixture and data.
    given
        Names of the axes of a variable in place of those of the table, without ``chain`` and ``draw``.
    """

    def __init__(
        self,
        mixture: GaussianMixture | GaussianKeys,
        data: Sequence[Any] = (),
        leading: torch.Size | tuple[int, ...] = (),
        given: Mapping[str, Sequence[str]] | None = None,
    ):
        self.sizes = {"unit": mixture.num_units, "feature": mixture.keys.shape[-1]}
        if mixture.values is not None:
            self.sizes["answer"] = mixture.values.shape[-1]
        if isinstance(mixture, GaussianKeys):
            self.sizes["component"] = mixture.num_components
        self.labelled = isinstance(mixture, GaussianMixture) and mixture.answer_probs is not None
        if isinstance(mixture, GaussianMixture) and mixture.answer_probs is not None:
            self.sizes["label"] = mixture.answer_probs.shape[-1]
        if mixture.log_prior is not None and mixture.log_prior.shape[-2] > 1:
            self.sizes["query"] = mixture.log_prior.shape[-2]
        own = mixture.batch_shape
        if data and data[0] is not None:
            self.sizes["query"] = data[0].shape[-2]
            own = mixture.plates(*data).batch
        self.leading = torch.broadcast_shapes(own, leading)
        self.names = tuple(plate_names(len(self.leading)))
        self.sizes.update(zip(self.names, self.leading, strict=True))
        self.table = DIMS | OF_KEYS if isinstance(mixture, GaussianKeys) else DIMS
        self.given, self.unused = dict(given or {}), set(given or {})

    def variable(self, name: str, x: Tensor, like: str | None = None, samples: Sequence[str] = ()) -> Variable:
        """``x`` under the dims of ``name``, or of another row of the table; its first axes are ``samples``.

        An axis of size 1 along which the variable is shared is dropped.
        """
        if like is None:
            like = "labels" if name == "outputs" and self.labelled else name
        array = x.detach().cpu().numpy()
        dims = (*self.names, *self.table[like])
        dims = (*samples, *dims[len(dims) - (array.ndim - len(samples)) :])
        axes = [i for i, dim in enumerate(dims) if i < len(samples) or array.shape[i] != 1 or self.sizes.get(dim) == 1]
        array, dims = array.reshape([array.shape[i] for i in axes]), tuple(dims[i] for i in axes)
        if name not in self.given:
            return dims, array
        self.unused.discard(name)
        renamed, found = tuple(self.given[name]), dims[len(samples) :]
        if len(renamed) != len(found):
            raise ValueError(
                f"dims: {len(renamed)} names for {name}, which has {len(found)} axes ({', '.join(found)}); name each once"
            )
        return (*samples, *renamed), array

    def finish(self) -> None:
        """Refuse names for a variable that was not there."""
        refuse_unused(self.unused)


def parameters(mixture: GaussianMixture | GaussianKeys) -> dict[str, Tensor]:
    """The parameters of a mixture by the names of `MixturePriors`; weights, not their logarithm."""
    given = {name: x for name in mixture.axes if name != "log_prior" and (x := getattr(mixture, name)) is not None}
    return given | {"weights": mixture.log_weights().exp()}


def refuse_unused(names: set[str]) -> None:
    """Names of dims that belong to no variable of the result."""
    if names:
        raise ValueError(f"dims: there is no variable {min(names)!r} in this result; drop it from dims")


__all__ = ["DIMS", "OF_KEYS", "SAMPLES", "Layout", "parameters", "refuse_unused"]
