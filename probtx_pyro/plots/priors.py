"""Priors against posteriors: what the data taught, and how far the posterior depends on the strength of the prior."""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import xarray
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style
from probtx_pyro.plots._given import Result
from probtx_pyro.results._arviz import SAMPLES, dataset, derived, is_data

Arrays: TypeAlias = dict[str, np.ndarray]
LARGEST_K = 0.7  # of a Pareto shape with which importance weights can be trusted (Vehtari et al. 2024)


def prior_posterior(
    prior: "ArrayLike | Result",
    posterior: "ArrayLike | None" = None,
    name: str = "",
    ax: Axes | None = None,
    *,
    coords: Mapping[str, object] | None = None,
) -> Axes:
    """Show draws of one scalar under the prior and under the posterior, as densities in equal bins.

    The bins span the central 99.8 % of both.

    Parameters
    ----------
    prior, posterior
        Draws of the scalar, of any shape; or as ``prior`` alone ArviZ data with both groups, of which ``name`` and
        ``coords`` choose a scalar.
    name
        Written below; of ArviZ data, the variable.
    ax
        Axes to draw on; a new figure if None.
    coords
        Of ArviZ data: labels that choose one entry of the variable, such as ``{"unit": "cat", "feature": 0}``.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Not numbers, NaN or infinity, a posterior that is missing, or a choice that is not one scalar of the data.
    """
    if is_data(prior):
        if posterior is not None:
            raise ValueError("posterior: the data have one already; give the data alone, and name=")
        chosen = dict(coords or {})
        prior, posterior = (_scalar(prior, group, name, chosen) for group in ("prior", "posterior"))
        name = ", ".join([name, *(f"{dim} {label}" for dim, label in chosen.items())])
    elif posterior is None or coords is not None:
        raise ValueError("posterior is missing, or coords without ArviZ data; give draws of both, or the data")
    given = {"prior": prior, "posterior": posterior}
    before, after = (_given.numbers(key, x, "(...)").ravel() for key, x in given.items())
    low, high = np.quantile(np.concatenate([before, after]), [0.001, 0.999])
    bins = np.linspace(low, high if high > low else low + 1, 60).tolist()
    ax = _style.axes(ax)
    ax.hist(before, bins, density=True, histtype="step", color=_style.INK, linestyle="--", label="prior")
    ax.hist(after, bins, density=True, color=_style.UNIT_COLORS[0], alpha=0.55, label="posterior")
    return _style.finished(ax, name, "density", True)


def _scalar(data: Result, group: str, name: str, coords: Mapping[str, object]) -> xarray.DataArray:
    found = dataset(data, group)
    if name not in found:
        raise ValueError(f"name: the {group} has no variable {name!r}; choose from {[*found.data_vars]}")
    drawn = _given.entry("coords", found[name], coords)
    if left := [f"{dim} ({n})" for dim, n in drawn.sizes.items() if dim not in SAMPLES]:
        raise ValueError(f"coords: {name} has several entries along {', '.join(left)}; choose one of each")
    return drawn


def prior_against_posterior(learned: Result, ax: Axes | None = None) -> Axes:
    """Show what the data taught about every entry of every parameter: how much surer, and how far from its prior.

    Parameters
    ----------
    learned
        The result of `results.prior_against_posterior`, or ArviZ data with draws of both, from which it is made.
    ax
        Axes to draw on; a new figure if None.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Something else, or a shrinkage or shift that is NaN or infinite.
    """
    if is_data(learned):
        from probtx_pyro import results  # loads ArviZ, which has made what is given

        after, prior = _draws(learned), dataset(learned, "prior").isel(chain=0)
        learned = results.prior_against_posterior({name: prior[name].values for name in after}, after)
    if not hasattr(learned, "shrinkage"):
        kind = type(learned).__name__
        raise ValueError(f"learned must be the result of results.prior_against_posterior, not {kind}")
    drawn = _flat("learned", learned.shrinkage), _flat("learned", learned.shift)
    titles = "shrinkage of the variance (1: fixed by the data)", "shift of the mean, prior sd"
    return _entries(ax, *drawn, *titles, {0: ":", 1: "-"})


def prior_sensitivity(found: Result, ax: Axes | None = None) -> Axes:
    """Show how far the mean of every entry moves per doubling of the prior's strength, and of the likelihood's.

    Beside the vertical line lies what hardly depends on the prior. The titles carry the Pareto k of the importance
    weights; a part whose k is above 0.7 is marked as not to be believed.

    Parameters
    ----------
    found
        The result of `results.prior_sensitivity`, or ArviZ data with ``log_prior`` and ``log_likelihood``, from which
        it is made.
    ax
        Axes to draw on; a new figure if None.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Something else, or a change that is NaN or infinite.
    """
    if is_data(found):
        from probtx_pyro import results  # loads ArviZ, which has made what is given

        parts = (_total(dataset(found, group)) for group in ("log_prior", "log_likelihood"))
        found = results.prior_sensitivity(_draws(found), *parts)
    if not hasattr(found, "pareto_k"):
        raise ValueError(f"found must be the result of results.prior_sensitivity, not {type(found).__name__}")
    moved = {part: _flat("found", by_name) for part, by_name in found.mean.items()}
    titles = {}
    for part, k in found.pareto_k.items():
        doubt = ": do not believe" if k > LARGEST_K else ""
        titles[part] = f"change of the mean, {part} twice as strong\n(Pareto k {k:.2f}{doubt})"
    return _entries(ax, moved["prior"], moved["likelihood"], titles["prior"], titles["likelihood"], {0: ":"})


def _draws(data: Result) -> Arrays:
    """Draws of the parameters, (chain, draw, ...)."""
    posterior = dataset(data, "posterior")
    names = [str(name) for name in posterior.data_vars if name not in derived(data)]
    return {name: posterior[name].transpose(*SAMPLES, ...).values for name in names}


def _total(group: xarray.Dataset) -> np.ndarray:
    """Sum of all variables at every draw, (chain, draw)."""
    each = [x.sum([dim for dim in x.dims if dim not in SAMPLES]) for x in group.data_vars.values()]
    return sum(each[1:], each[0]).transpose(*SAMPLES).values


def _flat(name: str, arrays: Mapping[str, ArrayLike]) -> Arrays:
    return {key: _given.numbers(f"{name} of {key}", x, "(...)").ravel() for key, x in arrays.items()}


def _entries(ax: Axes | None, x: Arrays, y: Arrays, xlabel: str, ylabel: str, verticals: Mapping[float, str]) -> Axes:
    """A colour and a marker for each parameter, a point for each of its entries, and lines to compare with."""
    ax = _style.axes(ax)
    for at, dash in verticals.items():
        ax.axvline(at, color="#999999", linewidth=0.8, linestyle=dash)
    ax.axhline(0, color="#999999", linewidth=0.8, linestyle=":")
    for i, name in enumerate(x):
        _style.points(ax, i, x[name], y[name], label=name)
    return _style.finished(ax, xlabel, ylabel, True)
