"""The arguments of pictures: arrays, tensors, labelled arrays, or the result that holds them.

Every picture reads its arguments by these functions, so that all accept the same. A tensor is detached and brought to the CPU,
a result gives the field that the picture shows, and ArviZ data give a variable of one of their groups. Signatures quote
``"ArrayLike | Result"``: written out, the union fills half a page of ``help``.
"""

from collections.abc import Mapping, Sequence, Sized
from typing import Any, TypeAlias

import numpy as np
import xarray

from probtx_pyro.results._arviz import dataset, group_names, is_data

Result: TypeAlias = Any  # of `inference`, `results` or `inspection`, or ArviZ data


def field(given: Any, name: str, *groups: str) -> Any:
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


def array(name: str, x: Any, dtype: Any = float, shape: str = "(...)") -> np.ndarray:
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
        x = x.detach().cpu()
        x = (x.double() if x.is_floating_point() else x).numpy()
    try:
        found = np.asarray(x, dtype=dtype)
    except (TypeError, ValueError):
        found = None
    if found is None or found.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} must be numbers of shape {shape}, not {_described(x)}; mind the order of the arguments"
        )
    return found


def numbers(name: str, x: Any, rank: int, shape: str) -> np.ndarray:
    """Return an argument as an array of finite real numbers.

    Parameters
    ----------
    name
        Of the argument.
    x
        As `array` takes it.
    rank
        How many axes it must have.
    shape
        The same in words, such as ``(query, unit)``.

    Returns
    -------
    array

    Raises
    ------
    ValueError
        Not numbers, another number of axes, NaN or infinity.
    """
    found = array(name, x, shape=shape)
    if found.ndim != rank:
        axes = f" {tuple(map(str, x.dims))}" if isinstance(x, xarray.DataArray) else ""
        raise misfit(name, shape, f"{found.shape}{axes}", "select or add the axes that differ")
    if not np.isfinite(found).all():
        raise ValueError(f"{name} contains NaN or infinity; leave such entries out of the picture")
    return found


def misfit(name: str, shape: str, found: Any, repair: str) -> ValueError:
    """Return the error that says which shape an argument must have.

    Parameters
    ----------
    name
        Of the argument.
    shape
        It must have, in words.
    found
        Its own shape.
    repair
        What to do.

    Returns
    -------
    ValueError
    """
    return ValueError(f"{name} must have shape {shape} but has shape {found}; {repair}")


def shares(name: str, x: np.ndarray, repair: str, least: float = 0.0) -> np.ndarray:
    """Return an array of probabilities as it is.

    Parameters
    ----------
    name
        Of the argument.
    x
        Numbers.
    repair
        What the error advises.
    least
        Smallest number that is taken.

    Returns
    -------
    array

    Raises
    ------
    ValueError
        A number below ``least`` or above 1.
    """
    if ((x < least) | (x > 1 + 1e-6)).any():  # sums of float32 probabilities round above 1
        raise ValueError(f"{name} must be from 0 to 1; {repair}")
    return x


def counted(name: str, x: Sized, count: int, of: str, noun: str = "names") -> None:
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
        What has that many, and how many, for the error.
    noun
        What the error calls the entries.

    Raises
    ------
    ValueError
        Another length.
    """
    if len(x) != count:
        raise ValueError(f"{name} has {len(x)} {noun} but {of}; give one for each")


def names(name: str, labels: Sequence | None, count: int, of: str, noun: str = "names") -> list[str] | None:
    """Return names as text, or None if none are given.

    Parameters
    ----------
    name
        Of the argument.
    labels
        One name for each, or None.
    count, of, noun
        As in `counted`.

    Returns
    -------
    list of str or None

    Raises
    ------
    ValueError
        Another number of names.
    """
    if labels is None:
        return None
    counted(name, labels, count, of, noun)
    return [str(label) for label in labels]


def words(name: str, x: Any, others: str) -> list[str]:
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
        raise ValueError(
            f"{name} must be strings, one for each word, not {_described(x)}; {name} come first, then {others}"
        )
    return list(x)


def entry(name: str, x: Any, labels: Mapping[str, Any]) -> xarray.DataArray:
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
        except KeyError:
            known = ", ".join(map(str, x.coords[dim].values[:20])) if dim in x.coords else f"0..{x.sizes[dim] - 1}"
            raise ValueError(f"{name}: no {dim} is called {label!r}; choose from {known}") from None
    return x


def labels_of(x: Any, dim: int) -> Any:
    """Return the labels that a ``DataArray`` carries along one of its dims, or None.

    Parameters
    ----------
    x
        Anything.
    dim
        Place of the dim.

    Returns
    -------
    array or None
    """
    if isinstance(x, xarray.DataArray) and x.dims[dim] in x.coords:
        return x.coords[x.dims[dim]].values
    return None


def _described(x: Any) -> str:
    """The kind of a wrong argument in a few words."""
    if np.iterable(x) and not isinstance(x, Mapping) and len(flat := list(x)) and all(isinstance(y, str) for y in flat):
        return f"text ({flat[0]!r}, ...)"
    shape = getattr(x, "shape", None)
    return (
        f"{type(x).__name__} of shape {tuple(shape)}" if shape is not None else f"an object of type {type(x).__name__}"
    )
