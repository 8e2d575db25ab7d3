"""Pyro under simulation-based calibration: the methods of simuk's ``BackendAdapter``, as its main branch has them."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from arviz_base import dict_to_dataset
from pyro import poutine
from pyro.infer import MCMC
from pyro.poutine.util import site_is_subsample
from xarray import Dataset

Arrays = Mapping[str, np.ndarray]
Simulator = Callable[..., Mapping[str, Any]]
Transform = Callable[[str, np.ndarray], Any]


class PyroSimulationParams(NamedTuple):
    """Names of what is observed and of what is ranked, and the parameters that the data were simulated from."""

    observed_vars: list[str]
    var_names: list[str]
    ref_params: Dataset


class PyroAdapter:
    """Simulate from a Pyro model and fit it to what was simulated.

    As with NumPyro, an observed site has the name of the argument that brings its data, and without that argument
    (``y=None``) the model draws it. Sites that the kernel enumerates are not ranked.

    Parameters
    ----------
    kernel : pyro.infer.mcmc.mcmc_kernel.MCMCKernel
        Such as ``NUTS(model)``. Every fit gets a fresh copy, so that none starts from the adaptation of another.
    data_dir : dict
        Keyword arguments of the model, tensors where it needs tensors, with the observed ones among them.
    simulator : callable, optional
        Makes the data in place of the model, from the parameters and ``seed``, by keyword.
    single_seed : int
        For the run of the model that finds its sites.
    """

    def __init__(self, kernel: Any, data_dir: Mapping[str, Any], simulator: Simulator | None, single_seed: int):
        self.kernel = kernel
        self.model = kernel.model
        self.simulator = simulator
        self.data_dir = dict(data_dir)
        with poutine.seed(rng_seed=int(single_seed)):
            sites = self._sites(self.data_dir)
        self.model_params = set(inspect.signature(getattr(self.model, "forward", self.model)).parameters)
        self.var_names = [
            name for name, site in sites.items() if not (site["is_observed"] or site["fn"].has_enumerate_support)
        ]
        conditioned = [name for name, site in sites.items() if site["is_observed"]]
        self.observed_vars = [name for name in conditioned if name in self.model_params]
        self.never_simulated = [name for name in conditioned if name not in self.model_params]

    def _sites(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sample sites of one run of the model; a deterministic or a reparametrized site is none."""
        with torch.no_grad(), poutine.block():
            trace: Any = poutine.trace(self.model).get_trace(**arguments)
        return {
            name: site
            for name, site in trace.nodes.items()
            if site["type"] == "sample"
            and not site_is_subsample(site)
            and not site["infer"].get("_deterministic")
            and getattr(site["fn"], "_mask", None) is not False
        }

    def _constant(self, observed: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of the model that are no observations."""
        return {name: x for name, x in self.data_dir.items() if name in self.model_params and name not in observed}

    def get_prior_predictive_samples(self, num_samples: int, seeds: Sequence[int]) -> tuple[Dataset, Dataset]:
        """Draw parameters from the prior, and data given each."""
        # fits take the seeds themselves: from the same one, their first draws would follow the parameters
        (own,) = np.random.SeedSequence(int(seeds[0])).generate_state(1)
        with poutine.seed(rng_seed=int(own)):
            runs = [self._sites(self._constant(self.observed_vars)) for _ in range(num_samples)]
        drawn = [{name: site["value"].cpu().numpy() for name, site in run.items()} for run in runs]
        prior = [{name: run[name] for name in self.var_names} for run in drawn]
        if self.simulator is None:
            data = [{name: run[name] for name in self.observed_vars} for run in drawn]
        else:
            data = [dict(self.simulator(**run, seed=seed)) for run, seed in zip(prior, seeds, strict=False)]
        return _stacked(prior), _stacked(data)

    def get_posterior_predictive_samples(self, num_simulations: int, seeds: Sequence[int], progress_bar: bool) -> None:
        """Refuse: posterior SBC concatenates data, for which a Pyro model has no rule."""
        raise NotImplementedError("Posterior SBC is not implemented for Pyro")

    def simulation_params_no_simulator(self, ref_params: Dataset, predictive: Dataset) -> PyroSimulationParams:
        """Say what is observed and ranked where the model makes the data."""
        return PyroSimulationParams(self.observed_vars, self.var_names, ref_params)

    def simulation_params_from_simulator(self, ref_params: Dataset, predictive: Dataset) -> PyroSimulationParams:
        """Say what is observed and ranked where a simulator makes the data."""
        observed = [str(name) for name in predictive.data_vars if name in self.model_params]
        if not observed:
            raise ValueError(
                f"No observed variables to condition on: the simulator makes {', '.join(map(str, predictive))}, "
                f"the arguments of the model are {', '.join(sorted(self.model_params))}"
            )
        return PyroSimulationParams(observed, self.var_names, ref_params)

    def subsample(
        self, ref_params: Dataset, predictive: Dataset, seed: int | None, size: int
    ) -> tuple[Dataset, Dataset]:
        """Return both as they are: there are as many as there are simulations."""
        return ref_params, predictive

    def replicate(
        self, predictive: Dataset, idx: int, simulation_params: PyroSimulationParams
    ) -> dict[str, np.ndarray]:
        """Return the data of one simulation."""
        return {name: predictive[name].isel(sample=idx).values for name in simulation_params.observed_vars}

    def get_posterior_samples(
        self,
        simulation_parameters: PyroSimulationParams,
        replicated_data: Arrays,
        sample_kwargs: Mapping[str, Any],
        seed: int,
        method: str,
        simulation_idx: int,
    ) -> Dataset:
        """Fit the model to simulated data; ``thinning`` of ``sample_kwargs`` keeps every n-th draw."""
        options = dict(sample_kwargs)
        every = options.pop("thinning", 1)
        observed = simulation_parameters.observed_vars
        data = {name: torch.as_tensor(replicated_data[name]) for name in observed}
        with poutine.seed(rng_seed=int(seed)):
            mcmc = MCMC(copy.deepcopy(self.kernel), **options)
            mcmc.run(**self._constant(observed), **data)
        samples = mcmc.get_samples(group_by_chain=True)
        thinned = {name: samples[name][:, ::every].flatten(0, 1) for name in simulation_parameters.var_names}
        return dict_to_dataset(
            {name: x.cpu().numpy() for name, x in thinned.items()}, inference_library=pyro, sample_dims=["sample"]
        )

    def compute_single_rank(
        self, transform: Transform, name: str, posterior: Dataset, simulation_idx: int, ref_params: Dataset
    ) -> np.ndarray:
        """Count the draws below the value that the data were simulated from."""
        drawn = np.array([transform(name, x.values) for x in posterior[name].transpose("sample", ...)])
        return (drawn < transform(name, ref_params[name].isel(sample=simulation_idx).values)).sum(axis=0)

    def stop_if_cant_run_without_simulator(self) -> None:
        """Refuse a model whose data it cannot simulate in full."""
        if not self.observed_vars:
            raise ValueError(
                "There are no observed variables that are arguments of the model, and without these Pyro will not "
                "generate prior predictive samples. Either change the model or specify a simulator."
            )
        if self.never_simulated:
            raise ValueError(
                f"{self.never_simulated[0]} counts in every fit but is no argument of the model, so that it is never "
                "simulated and ranks would not be uniform. Either make it an argument or specify a simulator."
            )
        missing = [name for name in self.observed_vars if name not in self.data_dir]
        if missing:
            raise ValueError(f"The following model parameters are missing from data_dir: {', '.join(sorted(missing))}")


def _stacked(runs: Sequence[Mapping[str, Any]]) -> Dataset:
    """Stack the values of simulations along ``sample``."""
    return dict_to_dataset({name: np.stack([run[name] for run in runs]) for name in runs[0]}, sample_dims=["sample"])
