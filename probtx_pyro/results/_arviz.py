"""Groups of named arrays as ArviZ data: the only file that knows which ArviZ is installed.

ArviZ 0.x holds its groups in ``arviz.InferenceData``, ArviZ 1.x in ``xarray.DataTree``. On both,
``data[group][variable]`` is an ``xarray.DataArray``, ``data.to_netcdf(path)`` writes and ``arviz.from_netcdf(path)``
reads back the same. Everything else that differs between the two stands here. Numpy arrays only; ArviZ itself loads
when a function needs it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray

Variable = tuple[Sequence[str], np.ndarray]
SAMPLES = ("chain", "draw")


def from_arrays(
    groups: Mapping[str, Mapping[str, Variable]],
    coords: Mapping[str, Sequence[Any]] | None = None,
    attrs: Mapping[str, str | int | float] | None = None,
) -> Any:
    """Build ``arviz.InferenceData`` (0.x) or ``xarray.DataTree`` (1.x).

    Parameters
    ----------
    groups
        ``{group: {variable: (dims, array)}}``; empty groups vanish. A variable that is called like a dimension labels
        that dimension within its group, which may then have a size of its own there: the draws of a prior.
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
        An array whose axes its dims do not count, labels that do not count a dimension, or labels of no dimension; a
        name that a file cannot hold, a dimension that a variable has twice, or a variable called like a dimension that
        it does not label.

    Examples
    --------
    >>> import numpy as np
    >>> data = from_arrays({"point_estimate": {"keys": (("unit", "feature"), np.zeros((2, 3)))}}, {"unit": ["left", "right"]})
    >>> data["point_estimate"]["keys"].sel(unit="left").sizes["feature"]
    3
    """
    _check_names(groups)
    sizes = _sizes(groups)
    labels = {dim: _labels(dim, names, sizes) for dim, names in (coords or {}).items()}
    named = {dim: labels.get(dim, np.arange(n)) for dim, n in sizes.items()}
    return assemble({group: _dataset(found, named) for group, found in groups.items() if found}, attrs or {})


def _labels(dim: str, names: Any, sizes: Mapping[str, int]) -> np.ndarray:
    """Return the labels of a dimension as an array, one for each entry."""
    if dim not in sizes:
        raise ValueError(f"coords: no variable has a dimension {dim!r}; choose from {', '.join(sizes)}")
    found = np.asarray(None if isinstance(names, str) else names)
    if found.ndim != 1:
        raise ValueError(
            f"coords: the labels of {dim!r} are {'a text' if isinstance(names, str) else f'of shape {found.shape}'}, "
            f"not a list; give {sizes[dim]}, one for each entry"
        )
    if len(found) != sizes[dim]:
        raise ValueError(f"coords: {len(found)} labels for {dim!r}, which has {sizes[dim]} entries; give one for each")
    return found


def _check_names(groups: Mapping[str, Mapping[str, Variable]]) -> None:
    """Refuse names by which xarray would lose a variable, or that a NetCDF file cannot hold."""
    for group, variables in groups.items():
        used = {dim for dims, _ in variables.values() if not isinstance(dims, str) for dim in dims}
        for name, (dims, _) in variables.items():
            if isinstance(dims, str):
                raise ValueError(f"dims: those of {name} are the text {dims!r}; give a list with a name for each axis")
            for what, said in ((name, "a variable"), *((dim, f"an axis of {name}") for dim in dims)):
                if (
                    not isinstance(what, str)
                    or what.strip() in ("", ".")
                    or what[-1].isspace()
                    or set(what) & set("/\0")
                ):
                    raise ValueError(
                        f"dims: {said} is called {what!r}, which a file cannot hold; "
                        "give a text without / and without a space at its end"
                    )
            twice = [dim for i, dim in enumerate(dims) if dim in dims[:i]]
            if twice:
                raise ValueError(
                    f"dims: {name} has two axes called {twice[0]!r}; "
                    f"give each a name of its own, such as dims={{{name!r}: [...]}}"
                )
            if name in used and tuple(dims) != (name,):
                raise ValueError(
                    f"dims: {group} has a variable {name!r} and an axis of that name, which only labels of the axis "
                    "may have; rename one of them"
                )


def _sizes(groups: Mapping[str, Mapping[str, Variable]]) -> dict[str, int]:
    """Size of each dimension that the groups share."""
    shared: dict[str, int] = {}
    for variables in groups.values():
        own: dict[str, int] = {}
        for name, (dims, array) in variables.items():
            if len(dims) != np.ndim(array):
                raise ValueError(f"dims: {name} has shape {np.shape(array)} but dims {', '.join(dims)}; name each once")
            for dim, n in zip(dims, np.shape(array), strict=True):
                sizes = own if dim in variables else shared
                if sizes.setdefault(dim, n) != n:
                    raise ValueError(
                        f"dims: {name} has {n} entries along {dim!r} but another variable has {sizes[dim]}; "
                        "give the axis a name of its own"
                    )
    return shared


def _dataset(variables: Mapping[str, Variable], labels: Mapping[str, np.ndarray]) -> xarray.Dataset:
    used = {dim for dims, _ in variables.values() for dim in dims} - variables.keys()
    arrays = {name: (tuple(dims), np.asarray(array)) for name, (dims, array) in variables.items()}
    return xarray.Dataset(arrays, coords={dim: names for dim, names in labels.items() if dim in used})


def is_data(x: Any) -> bool:
    """True if ``x`` is ArviZ data of either kind."""
    return hasattr(x, "groups") and hasattr(x, "to_netcdf")


def group_names(data: Any) -> list[str]:
    """Names of the groups of either kind of ArviZ data; anything else is refused."""
    if not is_data(data):
        raise ValueError(
            f"data must be ArviZ data, not a {type(data).__name__}; "
            "convert a result of inference with results.to_inference_data first"
        )
    return [str(name) for name in (data.children if hasattr(data, "children") else data.groups())]


def dataset(data: Any, group: str) -> xarray.Dataset:
    """Return one group of either kind of ArviZ data.

    Parameters
    ----------
    data
        ``arviz.InferenceData`` or ``xarray.DataTree``.
    group
        Its name, such as ``posterior``.

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    ValueError
        The data have no such group.
    """
    if group not in (names := group_names(data)):
        one = group == "posterior" and "point_estimate" in names
        repair = "one value has no posterior, so convert draws" if one else "convert it with that group"
        raise ValueError(f"data has no group {group!r}, only {', '.join(names)}; {repair}")
    node = data[group]
    return node.to_dataset() if hasattr(node, "to_dataset") else node


def derived(data: Any) -> list[str]:
    """Names of the variables of the posterior that follow from its parameters, such as attention."""
    return str(data.attrs.get("derived", "attention")).split()


def assemble(groups: Mapping[str, xarray.Dataset], attrs: Mapping[str, Any]) -> Any:
    """Build ArviZ data of the kind that is installed.

    Parameters
    ----------
    groups
        Datasets by the name of their group.
    attrs
        What belongs to the whole file.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
    """
    import arviz

    datasets: dict[str, Any] = dict(groups)
    if int(arviz.__version__.split(".")[0]) < 1:  # 1.x still answers to the old name, with a DataTree
        return arviz.InferenceData(attrs=dict(attrs), **datasets)
    root = {"/": xarray.Dataset(attrs=dict(attrs))}
    return xarray.DataTree.from_dict(root | {f"/{group}": found for group, found in datasets.items()})


def pareto_smoothed(log_weights: np.ndarray, reff: float) -> tuple[np.ndarray, float]:
    """Smooth the largest importance weights by the generalised Pareto distribution of their tail.

    Parameters
    ----------
    log_weights
        (draw,) log importance weights; leave-one-out's are minus the log likelihood.
    reff
        Effective number of draws over their number, at most 1.

    Returns
    -------
    (array, float)
        (draw,) smoothed log weights, whose exponentials sum to 1, and the shape k of the tail; infinite, and the
        weights as they are, where the tail has too few draws or no shape.
    """
    import arviz

    if hasattr(arviz, "psislw"):
        smoothed, k = arviz.psislw(log_weights, reff=reff)
    else:  # ArviZ 1.x negates what it is given, refuses a tail without a shape, and stumbles over one without a draw
        try:
            smoothed, k = xarray.DataArray(-log_weights, dims="draw").azstats.psislw(dim="draw", r_eff=reff)
        except (ValueError, IndexError):
            smoothed, k = log_weights - np.logaddexp.reduce(log_weights), np.inf
    if np.isnan(k):  # ArviZ 1.x, where so many weights are equal that the tail begins with its largest
        smoothed, k = log_weights - np.logaddexp.reduce(log_weights), np.inf
    return np.asarray(smoothed), float(k)


def pareto_k(log_weights: Any) -> np.ndarray:
    """Shape k of the tail of importance weights, which says whether the draws behind them serve as a proposal.

    Below 0.5 the weights have a variance; above 0.7 do not believe their mean, however many draws there are to make it.

    Parameters
    ----------
    log_weights
        (draw, ...) of independent draws, 25 or more, a tensor or an array: those of
        `inference.importance_log_partition`, or of the chains of `inference.annealed_log_partition`.

    Returns
    -------
    array
        (...); infinite where the tail has fewer than five values: draws that are alike say nothing of what they do not
        reach.

    Raises
    ------
    ValueError
        Fewer draws, NaN or infinity.

    References
    ----------
    Vehtari et al. 2024, *Pareto smoothed importance sampling*, JMLR 25; Yao et al. 2018, *Yes, but did it work?*
    """
    array = log_weights.detach().cpu().numpy() if hasattr(log_weights, "detach") else np.asarray(log_weights)
    if array.ndim < 1 or len(array) < 25 or array.dtype.kind != "f" or not np.isfinite(array).all():
        raise ValueError(f"log_weights must be finite floats (draw, ...), 25 or more, not {array.dtype} {array.shape}")
    tail = min(len(array) // 5, int(3 * len(array) ** 0.5))
    found = np.full(array.shape[1:], np.inf)
    for index in np.ndindex(*found.shape):
        row = array[:, *index].astype(float)
        if len(np.unique(np.sort(row)[-tail:])) >= 5:  # to fewer than five values ArviZ 0.x fits what shape it may
            found[index] = pareto_smoothed(row, 1.0)[1]
    return found


def leave_one_out_k(data: Any, name: str) -> tuple[xarray.DataArray, float]:
    """Ask ArviZ for the Pareto k of leaving out each observation.

    Parameters
    ----------
    data
        ArviZ data with the groups ``posterior`` and ``log_likelihood``.
    name
        Of the variable of ``log_likelihood``.

    Returns
    -------
    (DataArray, float)
        k of every observation, infinite where the weights' tail has too few draws or is one value, and ArviZ's bound.
    """
    import arviz

    try:
        found = arviz.loo(data, pointwise=True, var_name=name)
    except (ValueError, IndexError):
        # ArviZ 1.x refuses all of them for one tail without a shape, and stumbles over one without a draw
        likelihood = dataset(data, "log_likelihood")[name]
        constant = likelihood.max(SAMPLES) == likelihood.min(SAMPLES)
        shapeless = constant if bool(constant.any()) else xarray.ones_like(constant)
        return xarray.where(shapeless, np.inf, np.nan), 0.7
    return found.pareto_k, float(getattr(found, "good_k", 0.7))
