"""`simuk.SBC` of Pyro models on the released simuk 0.3, whose class knows its back ends by name."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from simuk import SBC
from xarray import Dataset

from contrib.pyro_adapter import PyroAdapter, PyroSimulationParams


class PyroSBC(SBC):
    """Prior SBC of a Pyro kernel; runs, stops and goes on as `simuk.SBC` does.

    Parameters
    ----------
    kernel : pyro.infer.mcmc.mcmc_kernel.MCMCKernel
        Such as ``NUTS(model)``.
    num_simulations : int, default 1000
    sample_kwargs : dict, optional
        Arguments of `pyro.infer.MCMC`, and ``thinning``.
    seed : int, optional
    data_dir : dict, optional
        Keyword arguments of the model, see `PyroAdapter`.
    simulator, transform, keep_fits, progress_bar
        As those of `simuk.SBC`.
    """

    def __init__(
        self,
        kernel: Any,
        *,
        num_simulations: int = 1000,
        sample_kwargs: Mapping[str, Any] | None = None,
        seed: int | None = None,
        data_dir: Mapping[str, Any] | None = None,
        simulator: Callable[..., Mapping[str, Any]] | None = None,
        transform: Callable[[str, np.ndarray], Any] | None = None,
        keep_fits: bool = True,
        progress_bar: bool = True,
    ) -> None:
        self.engine = "pyro-ppl"  # simuk asks for the version of the distribution of this name
        self.method = "prior"
        self.num_simulations = num_simulations
        self.sample_kwargs = {
            "num_samples": 1000,
            "warmup_steps": 1000,
            "disable_progbar": True,
            **(sample_kwargs or {}),
        }
        self.seed = seed
        self._seeds = self._get_seeds()
        self.simulator = simulator
        self.adapter = PyroAdapter(kernel, data_dir or {}, simulator, self._seeds[0])
        if simulator is None:
            self.adapter.stop_if_cant_run_without_simulator()
        self.var_names, self.observed_vars = self.adapter.var_names, self.adapter.observed_vars
        self.simulations: Any = {name: [] for name in self.var_names}
        self._simulations_complete = 0
        self.posteriors: list[Dataset] = []
        self.ref_params: Any = None
        self.keep_fits = keep_fits
        self.progress_bar = progress_bar
        self._transform = transform or (lambda name, value: value)

    def _get_prior_predictive_samples(self) -> tuple[Dataset, Dataset]:
        prior, predictive = self.adapter.get_prior_predictive_samples(self.num_simulations, self._seeds)
        if self.simulator is not None:
            observed = self.adapter.simulation_params_from_simulator(prior, predictive).observed_vars
            predictive = predictive[observed]
        return prior, predictive

    def _get_posterior_samples(self, replicated_data: Mapping[str, np.ndarray]) -> Dataset:
        done = self._simulations_complete
        params = PyroSimulationParams(list(replicated_data), self.var_names, self.ref_params)
        return self.adapter.get_posterior_samples(
            params, replicated_data, self.sample_kwargs, self._seeds[done], self.method, done
        )

    def _compute_single_rank(self, simulation_idx: int, posterior: Dataset, transform: Callable[..., Any]) -> None:
        for name in self.var_names:
            self.simulations[name].append(
                self.adapter.compute_single_rank(transform, name, posterior, simulation_idx, self.ref_params)
            )
