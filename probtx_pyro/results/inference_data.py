"""Groups of named arrays as ArviZ data: the only file that knows which ArviZ is installed.

ArviZ 0.x holds its groups in ``arviz.InferenceData``, ArviZ 1.x in ``xarray.DataTree``. On both, ``data[group][variable]`` is an
``xarray.DataArray``, ``data.to_netcdf(path)`` writes and ``arviz.from_netcdf(path)`` reads back the same. Numpy arrays only.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import arviz
import numpy as np
import xarray

Variable = tuple[Sequence[str], np.ndarray]


def from_arrays(
    groups: Mapping[str, Mapping[str, Variable]],
    coords: Mapping[str, Sequence[Any]] | None = None,
    attrs: Mapping[str, str | int | float] | None = None,
) -> Any:
    """Build ``arviz.InferenceData`` (0.x) or ``xarray.DataTree`` (1.x).

    Parameters
    ----------
    groups
        ``{group: {variable: (dims, array)}}``; empty groups vanish.
    coords
        Labels of dimensions, one for each entry; integers from 0 where none are given.
    attrs
        What belongs to the whole file. NetCDF holds text and numbers only.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree

    Raises
    ------
    ValueError
        An array whose axes its dims do not count, labels that do not count a dimension, or labels of no dimension.

    Examples
    --------
    >>> import numpy as np
    >>> data = from_arrays({"point_estimate": {"keys": (("unit", "feature"), np.zeros((2, 3)))}}, {"unit": ["left", "right"]})
    >>> data["point_estimate"]["keys"].sel(unit="left").sizes["feature"]
    3
    """
    labels, sizes = dict(coords or {}), _sizes(groups)
    for dim, names in labels.items():
        if dim not in sizes:
            raise ValueError(f"coords: no variable has a dimension {dim!r}; choose from {', '.join(sizes)}")
        if len(names) != sizes[dim]:
            raise ValueError(
                f"coords: {len(names)} labels for {dim!r}, which has {sizes[dim]} entries; give one for each"
            )
    named = {dim: np.asarray(labels.get(dim, np.arange(n))) for dim, n in sizes.items()}
    datasets: dict[str, Any] = {group: _dataset(variables, named) for group, variables in groups.items() if variables}
    if int(arviz.__version__.split(".")[0]) < 1:  # 1.x still answers to the old name, with a DataTree
        return arviz.InferenceData(attrs=dict(attrs or {}), **datasets)
    root = {"/": xarray.Dataset(attrs=dict(attrs or {}))}
    return xarray.DataTree.from_dict(root | {f"/{group}": dataset for group, dataset in datasets.items()})


def _sizes(groups: Mapping[str, Mapping[str, Variable]]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for variables in groups.values():
        for name, (dims, array) in variables.items():
            if len(dims) != np.ndim(array):
                raise ValueError(
                    f"dims: {name} has shape {np.shape(array)} but {len(dims)} dims ({', '.join(dims)}); name each axis once"
                )
            for dim, n in zip(dims, np.shape(array), strict=True):
                if sizes.setdefault(dim, n) != n:
                    raise ValueError(
                        f"dims: {name} has {n} entries along {dim!r} but another variable has {sizes[dim]}; give the axis a name of its own"
                    )
    return sizes


def _dataset(variables: Mapping[str, Variable], labels: Mapping[str, np.ndarray]) -> xarray.Dataset:
    used = {dim for dims, _ in variables.values() for dim in dims}
    arrays = {name: (tuple(dims), np.asarray(array)) for name, (dims, array) in variables.items()}
    return xarray.Dataset(arrays, coords={dim: names for dim, names in labels.items() if dim in used})


__all__ = ["Variable", "from_arrays"]
