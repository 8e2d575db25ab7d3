"""Calls of ArviZ that are named otherwise in 0.x and 1.x, for tests that ask ArviZ itself."""

import arviz
import numpy as np

__all__ = [
    "OLD",
    "axes",
    "compare",
    "dataset",
    "elpd",
    "group_names",
    "loo_pit",
    "plot_loo_pit",
    "plot_pair",
    "plot_ppc",
    "plot_prior_posterior",
    "plot_trace",
    "pointwise_elpd",
    "posterior_from",
    "rhat",
]

OLD = int(arviz.__version__.split(".")[0]) < 1


def dataset(data, group):
    """One group of either kind of ArviZ data."""
    return data[group] if OLD else data[group].to_dataset()


def group_names(data):
    """The names of its groups."""
    return list(data.groups() if OLD else data.children)


def rhat(data, name):
    """The largest R-hat of a variable of the posterior."""
    return float(arviz.rhat(dataset(data, "posterior")[[name]])[name].max())


def elpd(found):
    """The expected log pointwise density that `arviz.loo` found."""
    return float(found.elpd_loo if OLD else found.elpd)


def pointwise_elpd(found):
    """The same of every observation."""
    return (found.loo_i if OLD else found.elpd_i).values


def compare(files):
    """The table of `arviz.compare`, its differences counted from the best, which 1.x counts towards it."""
    table = arviz.compare(files)
    return table if OLD else table.assign(elpd_diff=-table["elpd_diff"])


def posterior_from(arrays, dims):
    """Data with a posterior alone, by ArviZ's own `from_dict`."""
    return arviz.from_dict(arrays if OLD else {"posterior": arrays}, dims=dims)


def plot_ppc(data, group="posterior", number=20, **options):
    """The plot of predictive draws over the data."""
    if OLD:
        return arviz.plot_ppc(data, group=group, num_pp_samples=number, random_seed=1, **options)
    return arviz.plot_ppc_dist(data, group=f"{group}_predictive", num_samples=number, **options)


def plot_pair(data, **options):
    """The plot of pairs with divergences, which 1.x marks without being told."""
    return arviz.plot_pair(data, divergences=True, **options) if OLD else arviz.plot_pair(data, **options)


def plot_trace(data, **options):
    """The plot of traces, an axis for each entry in 1.x in any case."""
    return arviz.plot_trace(data, compact=False, **options) if OLD else arviz.plot_trace(data, **options)


def plot_prior_posterior(data, **options):
    """The plot of prior over posterior."""
    return (arviz.plot_dist_comparison if OLD else arviz.plot_prior_posterior)(data, **options)


def loo_pit(data, name):
    """LOO-PIT of every observation of a variable."""
    return np.asarray(arviz.loo_pit(data, y=name) if OLD else arviz.loo_pit(data, var_names=[name])[name])


def plot_loo_pit(data, name):
    """The plot of LOO-PIT as a distribution function."""
    return arviz.plot_loo_pit(data, y=name, ecdf=True) if OLD else arviz.plot_loo_pit(data, var_names=[name])


def axes(plot):
    """The visible axes of what a plot of ArviZ returned."""
    every = np.atleast_1d(np.asarray(plot, object)).ravel() if OLD else plot.viz["figure"].item().axes
    return [ax for ax in every if ax.get_visible()]


__all__ = [
    "OLD", "axes", "compare", "elpd", "loo_pit", "plot_loo_pit", "plot_pair", "plot_ppc", "plot_prior_posterior", "plot_trace",
    "pointwise_elpd", "posterior_from", "rhat",
]  # fmt: skip
