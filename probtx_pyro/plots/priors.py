"""Priors against posteriors: what the data taught, and how far the posterior depends on the strength of the prior."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from probtx_pyro.plots import _given, _style
from probtx_pyro.plots._given import Result
from probtx_pyro.results._arviz import dataset, is_data

SAMPLES = ("chain", "draw")
MARKERS = "os^Dv<>P"
LARGEST_K = 0.7  # of a Pareto shape with which importance weights can be trusted (Vehtari et al. 2024)


def prior_posterior(
    prior: "ArrayLike | Result",
    posterior: "ArrayLike | None" = None,
    name: str = "",
    truth: float | None = None,
    ax: Axes | None = None,
    *,
    coords: Mapping[str, Any] | None = None,
) -> Axes:
    """Show draws of one scalar under the prior and under the posterior, as densities in equal bins.

    The bins span the central 99.8 % of both.

    Parameters
    ----------
    prior, posterior
        Draws of the scalar, of any shape; or as ``prior`` alone ArviZ data with both groups, of which ``name`` and ``coords``
        choose a scalar.
    name
        Written below; of ArviZ data, the variable.
    truth
        Marked where it is known.
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
        raise ValueError(
            "posterior is missing, or coords are given without ArviZ data; give draws of both, or the data"
        )
    before, after = (
        _given.numbers(n, _given.array(n, x).ravel(), 1, "(draw,)")
        for n, x in (("prior", prior), ("posterior", posterior))
    )
    low, high = np.quantile(np.concatenate([before, after]), [0.001, 0.999])
    bins = np.linspace(low, high if high > low else low + 1, 60).tolist()
    ax = _style.axes(ax)
    ax.hist(before, bins, density=True, histtype="step", color=_style.INK, linestyle="--", label="prior")
    ax.hist(after, bins, density=True, color=_style.UNIT_COLORS[0], alpha=0.55, label="posterior")
    if truth is not None:
        ax.axvline(truth, color=_style.UNIT_COLORS[5], linewidth=1.5, label="truth")
    ax.set(xlabel=name, ylabel="density")
    ax.legend(fontsize=8, frameon=False)
    return _style.bare(ax)


def _scalar(data: Any, group: str, name: str, coords: Mapping[str, Any]) -> Any:
    found = dataset(data, group)
    if name not in found:
        raise ValueError(
            f"name: the {group} has no variable {name!r}; choose from {', '.join(map(str, found.data_vars))}"
        )
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
        drawn = _draws(learned)
        prior = dataset(learned, "prior").isel(chain=0)
        learned = _results().prior_against_posterior({name: prior[name].values for name in drawn}, drawn)
    shrinkage, shift = (_by_parameter("learned", learned, part) for part in ("shrinkage", "shift"))
    ax = _style.axes(ax)
    for at in (0, 1):
        ax.axvline(at, color="#999999", linewidth=0.8, linestyle=(":", "-")[at])
    ax.axhline(0, color="#999999", linewidth=0.8, linestyle=":")
    _points(ax, shrinkage, shift)
    ax.set(xlabel="shrinkage of the variance (1: fixed by the data)", ylabel="shift of the mean, prior sd")
    return _style.bare(ax)


def prior_sensitivity(found: Result, ax: Axes | None = None) -> Axes:
    """Show how far the mean of every entry moves per doubling of the prior's strength, and of the likelihood's.

    Beside the vertical line lies what hardly depends on the prior. The titles carry the Pareto k of the importance weights; a part
    whose k is above 0.7 is marked as not to be believed.

    Parameters
    ----------
    found
        The result of `results.prior_sensitivity`, or ArviZ data with ``log_prior`` and ``log_likelihood``, from which it is
        made.
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
        parts = (_total(dataset(found, group)) for group in ("log_prior", "log_likelihood"))
        found = _results().prior_sensitivity(_draws(found), *parts)
    if not isinstance(getattr(found, "mean", None), Mapping):
        raise ValueError(f"found must be the result of results.prior_sensitivity, not {type(found).__name__}")
    moved = {part: _flat("found", by_name) for part, by_name in found.mean.items()}
    ax = _style.axes(ax)
    ax.axhline(0, color="#999999", linewidth=0.8, linestyle=":")
    ax.axvline(0, color="#999999", linewidth=0.8, linestyle=":")
    _points(ax, moved["prior"], moved["likelihood"])
    titles = {
        part: f"change of the mean, {part} twice as strong\n(Pareto k {k:.2f}{': do not believe' if k > LARGEST_K else ''})"
        for part, k in found.pareto_k.items()
    }
    ax.set(xlabel=titles["prior"], ylabel=titles["likelihood"])
    return _style.bare(ax)


def _results() -> Any:
    """`results`, which loads ArviZ; only ArviZ data lead here, so it is loaded."""
    from probtx_pyro import results

    return results


def _draws(data: Any) -> dict[str, np.ndarray]:
    """Draws of the parameters, (chain, draw, ...)."""
    posterior = dataset(data, "posterior")
    names = [str(name) for name in posterior.data_vars if name != "attention"]
    return {name: posterior[name].transpose(*SAMPLES, ...).values for name in names}


def _total(group: Any) -> np.ndarray:
    """Sum of all variables at every draw, (chain, draw)."""
    each = [x.sum([dim for dim in x.dims if dim not in SAMPLES]) for x in group.data_vars.values()]
    return sum(each[1:], each[0]).transpose(*SAMPLES).values


def _by_parameter(name: str, result: Any, part: str) -> dict[str, np.ndarray]:
    if not isinstance(getattr(result, part, None), Mapping):
        raise ValueError(
            f"{name} must be the result of results.prior_against_posterior, not {type(result).__name__}; it has no {part}"
        )
    return _flat(name, getattr(result, part))


def _flat(name: str, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {key: _given.numbers(f"{name} of {key}", np.ravel(x), 1, "(entry,)") for key, x in arrays.items()}


def _points(ax: Axes, x: Mapping[str, np.ndarray], y: Mapping[str, np.ndarray]) -> None:
    """A colour and a marker for each parameter, a point for each of its entries."""
    for i, name in enumerate(x):
        look: dict[str, Any] = {"color": _style.unit_color(i), "markersize": 5, "alpha": 0.8, "label": name}
        ax.plot(x[name], y[name], MARKERS[i % 8], **look)
    ax.legend(fontsize=8, frameon=False)


__all__ = ["prior_against_posterior", "prior_posterior", "prior_sensitivity"]
