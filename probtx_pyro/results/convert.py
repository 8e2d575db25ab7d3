"""Inference results as ArviZ data: named dimensions by one table, EM iterations never disguised as draws.

==================  ==========================================================================================
group               what it holds
==================  ==========================================================================================
``iterations``      ``objective`` (iteration, problems), ``converged`` and ``num_steps`` (problems)
``point_estimate``  the parameters; given queries also ``attention`` (.., query, unit), ``log_evidence`` (.., query)
``constant_data``   ``queries``; ``observed``, which says where an output is known
``observed_data``   ``outputs``
==================  ==========================================================================================
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probtx_pyro.inference import Adaptation
from probtx_pyro.models import GaussianKeys, GaussianMixture
from probtx_pyro.models.plates import plate_names
from probtx_pyro.results.inference_data import Variable, from_arrays

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
    "objective": (),
    "converged": (),
    "num_steps": (),
}
OF_KEYS = {  # what a unit of `GaussianKeys` has once for each component
    "keys": ("unit", "component", "feature"),
    "key_precision": ("unit", "component"),
    "component_weights": ("unit", "component"),
}


def to_inference_data(
    fit: Adaptation | GaussianMixture | GaussianKeys,
    queries: Tensor | None = None,
    outputs: Tensor | None = None,
    observed: Tensor | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Convert a fit, with the data it was made from, to ``arviz.InferenceData`` (``xarray.DataTree`` under ArviZ 1.x).

    Parameters
    ----------
    fit
        What `inference.adapt` returned, or a mixture; `GaussianKeys` add the dimension ``component``.
    queries, outputs, observed
        (..., Q, D), (..., Q, M) or labels (..., Q), and a boolean (..., Q): as given to `inference.adapt`.
    coords
        Labels of dimensions, such as ``{"query": tokens, "unit": tokens}``; integers where none are given.
    dims
        Names of the axes of a variable in place of those of the table: ``{"keys": ["layer", "unit", "feature"]}``. The leading
        axes are called as the Pyro plates, ``batch`` and ``head``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        An axis along which a parameter is shared is absent. Attributes: method, converged (1 where all problems did),
        num_steps (the largest), inference_library and its version.

    Raises
    ------
    ValueError
        Outputs without queries; shapes, dims or coords that do not fit.

    Examples
    --------
    >>> import torch
    >>> from probtx_pyro import models
    >>> mixture = models.GaussianMixture(torch.tensor([[-1.0], [1.0]]))
    >>> data = to_inference_data(mixture, torch.zeros(3, 1), coords={"query": ["a", "cat", "sat"]})
    >>> data["point_estimate"]["attention"].sel(query="cat").values.round(4).tolist()
    [0.5, 0.5]
    """
    mixture = fit.mixture if isinstance(fit, Adaptation) else fit
    if queries is None and (outputs is not None or observed is not None):
        raise ValueError("outputs and observed belong to queries, which are missing; give queries as well")
    sizes, leading = _sizes(mixture, queries, outputs, observed)
    if isinstance(fit, Adaptation):
        leading = torch.broadcast_shapes(leading, fit.converged.shape)
    names = plate_names(len(leading))
    sizes.update(zip(names, leading, strict=True))
    given = dict(dims or {})
    every = DIMS | OF_KEYS if isinstance(mixture, GaussianKeys) else DIMS

    def variable(name: str, x: Tensor, table: str | None = None) -> Variable:
        return _variable(x, (*names, *every[table or name]), sizes, given.pop(name, None), name)

    groups: dict[str, dict[str, Variable]] = {
        "iterations": {},
        "point_estimate": {},
        "constant_data": {},
        "observed_data": {},
    }
    attrs: dict[str, str | int | float] = {
        "inference_library": "probtx_pyro",
        "inference_library_version": version("probtx_pyro"),
    }
    if isinstance(fit, Adaptation):
        attrs |= {
            "method": fit.method,
            "converged": int(fit.converged.all()),
            "num_steps": int(fit.num_steps.max()) if fit.num_steps.numel() else 0,
        }
        groups["iterations"] = {name: variable(name, getattr(fit, name)) for name in ("converged", "num_steps")}
        steps = [variable("objective", row) for row in fit.objective]
        groups["iterations"]["objective"] = (("iteration", *steps[0][0]), np.stack([array for _, array in steps]))
    estimate = groups["point_estimate"]
    for name in mixture.axes:
        if name != "log_prior" and getattr(mixture, name) is not None:
            estimate[name] = variable(name, getattr(mixture, name))
    estimate["weights"] = variable("weights", mixture.log_weights().exp())
    if queries is not None:
        with torch.no_grad():
            answers: tuple[Any, ...] = () if outputs is None else (outputs, observed)
            estimate["attention"] = variable("attention", mixture.attention(queries, *answers))
            estimate["log_evidence"] = variable("log_evidence", mixture.log_evidence(queries, *answers))
        groups["constant_data"]["queries"] = variable("queries", queries)
        if observed is not None:
            groups["constant_data"]["observed"] = variable("observed", observed)
        if outputs is not None:
            table = "labels" if _labels(mixture) is not None else "outputs"
            groups["observed_data"]["outputs"] = variable("outputs", outputs, table)
    if given:
        raise ValueError(f"dims: there is no variable {next(iter(given))!r} in this result; drop it from dims")
    return from_arrays(groups, coords, attrs)


def _sizes(
    mixture: GaussianMixture | GaussianKeys,
    queries: Tensor | None,
    outputs: Tensor | None,
    observed: Tensor | None,
) -> tuple[dict[str, int], torch.Size]:
    """Size of each dimension of the table, and the leading axes of the problem."""
    sizes = {"unit": mixture.num_units, "feature": mixture.keys.shape[-1]}
    if mixture.values is not None:
        sizes["answer"] = mixture.values.shape[-1]
    if isinstance(mixture, GaussianKeys):
        sizes["component"] = mixture.num_components
    if (labels := _labels(mixture)) is not None:
        sizes["label"] = labels.shape[-1]
    if mixture.log_prior is not None and mixture.log_prior.shape[-2] > 1:
        sizes["query"] = mixture.log_prior.shape[-2]
    if queries is None:
        return sizes, mixture.batch_shape
    sizes["query"] = queries.shape[-2]
    return sizes, mixture.plates(queries, outputs, observed).batch


def _labels(mixture: GaussianMixture | GaussianKeys) -> Tensor | None:
    return mixture.answer_probs if isinstance(mixture, GaussianMixture) else None


def _variable(
    x: Tensor, dims: tuple[str, ...], sizes: Mapping[str, int], given: Sequence[str] | None, name: str
) -> Variable:
    """The last of ``dims`` that ``x`` has axes for, without the axes of size 1 along which it is shared."""
    array = x.detach().cpu().numpy()
    dims = dims[len(dims) - array.ndim :]
    shared = tuple(i for i, dim in enumerate(dims) if array.shape[i] == 1 and sizes.get(dim) != 1)
    array, dims = array.squeeze(shared), tuple(dim for i, dim in enumerate(dims) if i not in shared)
    if given is None:
        return dims, array
    if len(given) != len(dims):
        raise ValueError(
            f"dims: {len(given)} names for {name}, which has {len(dims)} axes ({', '.join(dims)}); name each once"
        )
    return tuple(given), array


__all__ = ["to_inference_data"]
