"""Pyro-specific conversion code."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from arviz_base.base import dict_to_dataset, requires
from arviz_base.rcparams import rc_context
from xarray import Dataset, DataTree

Arrays = Mapping[str, Any]
Dims = Mapping[str, Sequence[str | None]]


def _numpy(x: Any) -> np.ndarray:
    return x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)


class PyroConverter:
    """Encapsulate Pyro specific logic; `from_pyro` documents the arguments."""

    def __init__(
        self,
        *,
        posterior: Any = None,
        prior: Arrays | None = None,
        posterior_predictive: Arrays | None = None,
        predictions: Arrays | None = None,
        constant_data: Arrays | None = None,
        predictions_constant_data: Arrays | None = None,
        log_likelihood: bool = False,
        index_origin: int | None = None,
        coords: Mapping[str, Any] | None = None,
        dims: Dims | None = None,
        pred_dims: Dims | None = None,
        num_chains: int = 1,
    ) -> None:
        import pyro

        self.pyro = pyro
        self.posterior = posterior
        self.prior = prior
        self.posterior_predictive = posterior_predictive
        self.predictions = predictions
        self.constant_data = constant_data
        self.predictions_constant_data = predictions_constant_data
        self.log_likelihood = log_likelihood
        self.index_origin = index_origin
        self.coords = coords
        self.nchains: int = num_chains
        self.ndraws: Any = None
        self.model: Any = None
        self.samples: dict[str, Any] = {}
        self.sites: dict[str, Any] = {}
        if posterior is not None:
            if posterior._samples is None:
                raise ValueError("posterior: the MCMC has not run; call its method run first")
            self.samples = posterior.get_samples(group_by_chain=True)
            self.nchains, self.ndraws = next(iter(self.samples.values())).shape[:2]
            self.model = posterior.kernel.model
        elif not any((prior, posterior_predictive, predictions, constant_data, predictions_constant_data)):
            raise ValueError("nothing to convert; give a posterior, prior, predictions or constant data")
        if self.model is not None:
            self.sites = self.run_model(0, 0)
        self.observations = {name: site["value"] for name, site in self.sites.items() if site["is_data"]} or None
        inferred = {
            name: self.plates(name, site["value"].ndim - site["fn"].event_dim) for name, site in self.sites.items()
        }
        self.given, self.pred_given = dims or {}, pred_dims or {}
        self.dims, self.pred_dims = {**inferred, **self.given}, {**inferred, **self.pred_given}

    def run_model(self, chain: int, draw: int) -> dict[str, Any]:
        """Return the sample sites of the model at one draw of the posterior, observed ones with their ``log_prob``."""
        import torch
        from pyro import poutine
        from pyro.distributions.unit import Unit
        from pyro.poutine.util import site_is_subsample

        values = {name: x[chain, draw] for name, x in self.samples.items()}
        with torch.no_grad(), poutine.block(), self.pyro.validation_enabled(False):
            trace: Any = poutine.trace(poutine.condition(self.model, values)).get_trace(
                *self.posterior._args,
                **self.posterior._kwargs,
            )
            sites = {
                name: site
                for name, site in trace.nodes.items()
                if site["type"] == "sample" and not site_is_subsample(site)
            }
            for name, site in sites.items():
                # deterministic sites, factors and reparametrized sites look observed, too
                computed = (
                    site["infer"].get("_deterministic")
                    or isinstance(site["fn"], Unit)
                    or getattr(site["fn"], "_mask", None) is False
                )
                site["is_data"] = site["is_observed"] and name not in values and not computed
            trace.compute_log_prob(lambda name, site: site.get("is_data", False))
        return sites

    def plates(self, name: str, batch: int) -> list[str | None]:
        """Names of the first ``batch`` axes of a site by its plates, None along others."""
        frames = {f.dim: f.name for f in self.sites[name]["cond_indep_stack"] if f.dim is not None}
        return [frames.get(i - batch) for i in range(batch)]

    def to_dataset(self, data: Arrays, dims: Dims | None = None, **options: Any) -> Dataset:
        """Convert arrays whose leading axes are in place."""
        return dict_to_dataset(
            {name: _numpy(x) for name, x in data.items()},
            inference_library=self.pyro,
            coords=None if self.coords is None else dict(self.coords),
            dims={name: list(axes) for name, axes in (dims or {}).items()},
            index_origin=self.index_origin,
            **options,
        )

    def unpadded(self, name: str, x: Any) -> np.ndarray:
        """Remove the axes of size 1 that `pyro.infer.Predictive` puts between draws and a site with fewer plates."""
        array = _numpy(x)
        extra = array.ndim - 1 - self.sites[name]["value"].ndim if name in self.sites else 0
        padded = extra > 0 and array.shape[1 : 1 + extra] == (1,) * extra
        return array.reshape(array.shape[0], *array.shape[1 + extra :]) if padded else array

    def predictive_to_xarray(self, group: str, data: Arrays, dims: Dims) -> Dataset:
        """Convert draws of `pyro.infer.Predictive`, all chains along the first axis."""
        arrays = {name: self.unpadded(name, x) for name, x in data.items()}
        for name, x in arrays.items():
            draws = len(x) // self.nchains if self.ndraws is None else self.ndraws
            if len(x) != self.nchains * draws:
                raise ValueError(
                    f"{group}: {name} has {len(x)} draws, which are not {self.nchains} chains of {draws}; "
                    "give what Predictive makes of all draws of the posterior"
                )
            arrays[name] = x.reshape(self.nchains, draws, *x.shape[1:])
        return self.to_dataset(arrays, dims)

    @requires("posterior")
    def posterior_to_xarray(self) -> Dataset:
        """Convert the draws."""
        return self.to_dataset(self.samples, self.dims)

    @requires("posterior")
    def sample_stats_to_xarray(self) -> Dataset | None:
        """Convert divergences, the one statistic that Pyro keeps of every draw; not all kernels do."""
        if "divergences" not in self.posterior._diagnostics[0]:
            return None
        diverging = np.zeros((self.nchains, self.ndraws), bool)
        for chain, found in enumerate(self.posterior._diagnostics):
            diverging[chain, found["divergences"]] = True
        return self.to_dataset({"diverging": diverging})

    @requires("observations")
    def log_likelihood_to_xarray(self) -> Dataset | None:
        """Compute the pointwise log likelihood, by one run of the model for each draw."""
        if not self.log_likelihood:
            return None
        unknown = [name for name, site in self.sites.items() if not site["is_observed"]]
        if unknown:
            raise ValueError(
                f"log_likelihood: {unknown[0]} is a latent site without draws, as one that the kernel enumerates; "
                "sum it out in the model or leave the log likelihood out"
            )
        runs = [self.run_model(*at) for at in np.ndindex(self.nchains, self.ndraws)]
        arrays = {}
        for name in self.observations or ():
            stacked = np.stack([_numpy(run[name]["log_prob"]) for run in runs])
            arrays[name] = stacked.reshape(self.nchains, self.ndraws, *stacked.shape[1:])
        return self.to_dataset(arrays, self.dims, skip_event_dims=True)

    @requires("posterior_predictive")
    def posterior_predictive_to_xarray(self) -> Dataset:
        """Convert posterior predictive draws."""
        return self.predictive_to_xarray("posterior_predictive", self.posterior_predictive or {}, self.dims)

    @requires("predictions")
    def predictions_to_xarray(self) -> Dataset:
        """Convert predictions out of sample."""
        return self.predictive_to_xarray("predictions", self.predictions or {}, self.pred_dims)

    def priors_to_xarray(self) -> dict[str, Dataset]:
        """Convert draws from the prior, those of observed sites as prior predictive."""
        drawn: dict[str, dict[str, np.ndarray]] = {"prior": {}, "prior_predictive": {}}
        for name, x in (self.prior or {}).items():
            group = "prior_predictive" if name in (self.observations or ()) else "prior"
            drawn[group][name] = self.unpadded(name, x)[None]
        return {group: self.to_dataset(arrays, self.dims) for group, arrays in drawn.items() if arrays}

    @requires("observations")
    def observed_data_to_xarray(self) -> Dataset:
        """Convert the values of the observed sites."""
        return self.to_dataset(self.observations or {}, self.dims, sample_dims=[])

    @requires("constant_data")
    def constant_data_to_xarray(self) -> Dataset:
        """Convert constant data."""
        return self.to_dataset(self.constant_data or {}, self.given, sample_dims=[])

    @requires("predictions_constant_data")
    def predictions_constant_data_to_xarray(self) -> Dataset:
        """Convert constant data of the predictions."""
        return self.to_dataset(self.predictions_constant_data or {}, self.pred_given, sample_dims=[])

    def to_datatree(self) -> DataTree:
        """Convert what there is; groups without data are absent."""
        groups = {
            "posterior": self.posterior_to_xarray(),
            "sample_stats": self.sample_stats_to_xarray(),
            "log_likelihood": self.log_likelihood_to_xarray(),
            "posterior_predictive": self.posterior_predictive_to_xarray(),
            "predictions": self.predictions_to_xarray(),
            **self.priors_to_xarray(),
            "observed_data": self.observed_data_to_xarray(),
            "constant_data": self.constant_data_to_xarray(),
            "predictions_constant_data": self.predictions_constant_data_to_xarray(),
        }
        return DataTree.from_dict({group: found for group, found in groups.items() if found is not None})


def from_pyro(
    posterior: Any = None,
    *,
    prior: Arrays | None = None,
    posterior_predictive: Arrays | None = None,
    predictions: Arrays | None = None,
    constant_data: Arrays | None = None,
    predictions_constant_data: Arrays | None = None,
    log_likelihood: bool = False,
    index_origin: int | None = None,
    coords: Mapping[str, Any] | None = None,
    dims: Dims | None = None,
    pred_dims: Dims | None = None,
    num_chains: int = 1,
) -> DataTree:
    """Convert Pyro data into a DataTree object.

    The axes of a site are named by its plates; axes without a plate have ArviZ's default, ``site_dim_0``.

    Parameters
    ----------
    posterior : pyro.infer.MCMC, optional
        After its run. With a model (not a potential function alone) the values of observed sites become
        ``observed_data``.
    prior : dict, optional
        Draws from the prior, as `pyro.infer.Predictive` returns them. Sites that the model of the posterior observes
        become ``prior_predictive``.
    posterior_predictive, predictions : dict, optional
        What `pyro.infer.Predictive` makes of all draws of the posterior, in their order, for the data and out of sample.
    constant_data, predictions_constant_data : dict, optional
        Constant data variables mapped to their values.
    log_likelihood : bool, default False
        Compute the log density of every observation at every draw, masked and scaled as in the model. It takes one run
        of the model for each draw, without assumptions on how the model broadcasts.
    index_origin : int, optional
    coords : dict, optional
        Map of dimensions to coordinates
    dims, pred_dims : dict of {str : list of str}, optional
        Names of the dimensions of variables, in place of those of their plates.
    num_chains : int, default 1
        Number of chains in the draws of `Predictive`. Ignored if posterior is present.

    Returns
    -------
    DataTree
        ``sample_stats`` has ``diverging`` alone, where the kernel records it: Pyro keeps nothing else of every draw.

    Raises
    ------
    ValueError
        Nothing to convert, an MCMC that has not run, numbers of draws that differ, or a log likelihood of a model with
        latent sites that have no draws.
    """
    with rc_context(rc={"data.sample_dims": ["chain", "draw"]}):
        return PyroConverter(
            posterior=posterior,
            prior=prior,
            posterior_predictive=posterior_predictive,
            predictions=predictions,
            constant_data=constant_data,
            predictions_constant_data=predictions_constant_data,
            log_likelihood=log_likelihood,
            index_origin=index_origin,
            coords=coords,
            dims=dims,
            pred_dims=pred_dims,
            num_chains=num_chains,
        ).to_datatree()
