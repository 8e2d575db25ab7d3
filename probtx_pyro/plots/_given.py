"""The arguments of pictures: arrays, tensors, labelled arrays, or the result that holds them.

Every picture reads its arguments by these functions, so that all accept the same. A tensor is detached and brought to
the CPU, a result gives the field that the picture shows, and ArviZ data give a variable of one of their groups.
Signatures quote ``"ArrayLike | Result"``: written out, the union fills half a page of ``help``.
"""

import re
from collections.abc import Mapping, Sequence, Sized
from typing import Any, TypeAlias

import numpy as np
import xarray

from probtx_pyro.results._arviz import dataset, group_names, is_data

Result: TypeAlias = Any  # of `inference`, `results` or `inspection`, or ArviZ data


def field(given: Result, name: str, *groups: str) -> Result:
    """Return what a picture shows of a result; anything else comes back as it is.

    Parameters
    ----------
    given
        A result with the field ``name``, ArviZ data or one of its groups with that variable, or an array.
    name
        Of the field, and of the variable.
    groups
        Of ArviZ data: the first of these that has the variable gives it.

    Returns
    -------
    The field, a ``DataArray``, or ``given``

    Raises
    ------
    ValueError
        ArviZ data without that variable.
    """
    if name in getattr(given, "data_vars", ()):  # one group, of either kind
        return given[name]
    if is_data(given):
        for group in groups:
            if group in group_names(given) and name in (found := dataset(given, group)):
                return found[name]
        raise ValueError(
            f"the data have no variable {name!r} in {' or '.join(groups)}, only the groups "
            f"{', '.join(group_names(given))}; convert the result with that variable, or give an array"
        )
    return getattr(given, name, given)


def array(name: str, x: object, dtype: type | None = float, shape: str = "(...)") -> np.ndarray:
    """Return an argument as an array.

    Parameters
    ----------
    name
        Of the argument.
    x
        An array, a tensor on any device, with or without gradient, a ``DataArray``, or nested lists.
    dtype
        Of the result; None keeps that of ``x``.
    shape
        What the error asks for.

    Returns
    -------
    array

    Raises
    ------
    ValueError
        Not numbers.
    """
    if hasattr(x, "detach"):  # a tensor, of which numpy refuses gradients, other devices and bfloat16
        tensor = x.detach().cpu()
        x = (tensor.double() if tensor.is_floating_point() else tensor).numpy()
    try:
        found = np.asarray(x, dtype=dtype)
    except (TypeError, ValueError):
        found = None
    if found is None or found.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be numbers of shape {shape}, not {_described(x)}; mind their order")
    return found


def numbers(name: str, x: object, shape: str, repair: str = "select or add the axes that differ") -> np.ndarray:
    """Return an argument as an array of finite real numbers.

    Parameters
    ----------
    name
        Of the argument.
    x
        As `array` takes it.
    shape
        The axes it must have, such as ``(query, unit)`` or ``(H, W, 3) or (H, W)``. A number is the size of an axis,
        two axes of one name have one size, and ``...`` stands for any axes.
    repair
        What the error advises where the shape is another.

    Returns
    -------
    array

    Raises
    ------
    ValueError
        Not numbers, another shape, NaN or infinity.
    """
    found = array(name, x, shape=shape)
    if not any(_fits(found.shape, axes) for axes in shape.split(" or ")):
        dims = f" {tuple(map(str, x.dims))}" if isinstance(x, xarray.DataArray) else ""
        raise ValueError(f"{name} must have shape {shape} but has shape {found.shape}{dims}; {repair}")
    if not np.isfinite(found).all():
        raise ValueError(f"{name} contains NaN or infinity; leave such entries out of the picture")
    return found


def _fits(sizes: tuple[int, ...], shape: str) -> bool:
    """True if the sizes of axes are those of a shape in words."""
    axes = re.findall(r"[^(), ]+", shape)
    if "..." in axes:
        return len(sizes) >= len(axes) - 1
    known = {axis: int(axis) for axis in axes if axis.isdigit()}
    return len(sizes) == len(axes) and all(known.setdefault(*pair) == pair[1] for pair in zip(axes, sizes, strict=True))


def shares(name: str, x: object, shape: str, repair: str) -> np.ndarray:
    """Return an argument as an array of probabilities.

    Parameters
    ----------
    name
        Of the argument.
    x
        As `array` takes it.
    shape
        As `numbers` takes it.
    repair
        What the error advises where a number is no probability.

    Returns
    -------
    array
        From 0 to 1: what rounding left outside is brought back.

    Raises
    ------
    ValueError
        A number that is not from 0 to 1, another shape, NaN or infinity.
    """
    found = numbers(name, x, shape)
    if (np.abs(found - 0.5) > 0.5 + 1e-6).any():  # sums of float32 probabilities round above 1
        raise ValueError(f"{name} must be from 0 to 1; {repair}")
    return found.clip(0, 1)


def counted(name: str, x: Sized, count: int, of: str) -> None:
    """Check that an argument has one entry for each of something.

    Parameters
    ----------
    name
        Of the argument.
    x
        What has a length.
    count
        How long it must be.
    of
        What there are so many of, for the error.

    Raises
    ------
    ValueError
        Another length.
    """
    if len(x) != count:
        raise ValueError(f"{name} has {len(x)} entries but there are {count} {of}; give one for each")


def names(name: str, labels: Sequence | None, count: int, of: str, default: Sequence | None = None) -> list[str]:
    """Return names as text.

    Parameters
    ----------
    name
        Of the argument.
    labels
        One name for each, or None.
    count, of
        As in `counted`.
    default
        Names where ``labels`` are None.

    Returns
    -------
    list of str
        Empty where there are none.

    Raises
    ------
    ValueError
        Another number of names.
    """
    labels = default if labels is None else labels
    if labels is None:
        return []
    counted(name, labels, count, of)
    return [str(label) for label in labels]


def words(name: str, x: object, others: str) -> list[str]:
    """Return the words of a sentence.

    Parameters
    ----------
    name
        Of the argument.
    x
        A sequence of strings.
    others
        The arguments that follow, for the error.

    Returns
    -------
    list of str

    Raises
    ------
    ValueError
        Anything but strings.
    """
    if not isinstance(x, Sequence | np.ndarray) or not all(isinstance(word, str) for word in x):
        raise ValueError(f"{name} must be strings, not {_described(x)}; {name} come first, then {others}")
    return list(x)


def entry(name: str, x: object, labels: Mapping[str, object]) -> xarray.DataArray:
    """Return the part of a ``DataArray`` that has these labels.

    Parameters
    ----------
    name
        Of the argument that gave the labels.
    x
        A ``DataArray``.
    labels
        From dims to labels.

    Returns
    -------
    DataArray

    Raises
    ------
    ValueError
        Not a ``DataArray``, a dim that it lacks, or a label that is not there.
    """
    if not isinstance(x, xarray.DataArray):
        raise ValueError(f"{name} chooses from labelled data but this is {_described(x)}; index the array instead")
    for dim, label in labels.items():
        if dim not in x.dims:
            raise ValueError(f"{name}: there is no dim {dim!r} to choose from, only {', '.join(map(str, x.dims))}")
        try:
            x = x.sel({dim: label})
        except (KeyError, IndexError):
            known = ", ".join(map(str, x[dim].values[:20]))
            raise ValueError(f"{name}: no {dim} is called {label!r}; choose from {known}") from None
    return x


def labels_of(x: object, dim: int) -> list | None:
    """Return the labels that a ``DataArray`` carries along one of its dims, or None.

    Parameters
    ----------
    x
        Anything.
    dim
        Place of the dim.

    Returns
    -------
    list or None
    """
    return [*x.coords[x.dims[dim]].values] if isinstance(x, xarray.DataArray) and x.dims[dim] in x.coords else None


def _described(x: object) -> str:
    """The kind of a wrong argument in a few words."""
    if np.iterable(x) and not isinstance(x, Mapping) and len(flat := list(x)) and all(isinstance(y, str) for y in flat):
        return f"text ({flat[0]!r}, ...)"
    kind = type(x).__name__
    return f"{kind} of shape {tuple(x.shape)}" if hasattr(x, "shape") else f"an object of type {kind}"
