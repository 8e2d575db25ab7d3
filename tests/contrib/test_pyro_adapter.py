"""Simulation-based calibration of Pyro models by simuk's interface: what is right passes, planted faults do not."""

import re

import numpy as np
import pyro
import pytest
import torch
from calibration_of_pyro import DATA, SCHOOLS, ExactNormal, normal_mean, schools
from pyro import poutine
from pyro.distributions import Bernoulli, Normal
from pyro.infer import NUTS
from pyro.infer.reparam import LocScaleReparam
from tolerances import FALSE_ALARM_RATE

from probtx_pyro import results

pytest.importorskip("arviz_base", reason="arviz-base is missing: pip install arviz-base")

from contrib.pyro_adapter import PyroAdapter


def calibrated(adapter, simulations, transform=lambda name, x: x, seed=0, **options):
    """Ranks by the calls that `SBC.run_simulations` of simuk's main branch makes, in its order."""
    seeds = np.random.default_rng(seed).integers(0, 2**30, simulations)
    parameters, predictive = adapter.get_prior_predictive_samples(simulations, seeds)
    parameters, predictive = adapter.subsample(parameters, predictive, seed, simulations)
    if adapter.simulator is None:
        params = adapter.simulation_params_no_simulator(parameters, predictive)
    else:
        params = adapter.simulation_params_from_simulator(parameters, predictive)
    ranks = {name: [] for name in params.var_names}
    for i in range(simulations):
        data = adapter.replicate(predictive, i, params)
        drawn = adapter.get_posterior_samples(params, data, {"disable_progbar": True, **options}, seeds[i], "prior", i)
        for name in ranks:
            ranks[name].append(adapter.compute_single_rank(transform, name, drawn, i, params.ref_params))
    return {name: np.stack(x) for name, x in ranks.items()}


@pytest.mark.slow
def test_an_exact_kernel_is_calibrated():
    ranks = calibrated(PyroAdapter(ExactNormal(normal_mean), DATA, None, 0), 100, num_samples=49, warmup_steps=0)
    assert results.uniformity(ranks["mu"], 49) > FALSE_ALARM_RATE


@pytest.mark.parametrize("fault", ["kernel", "simulator"])
def test_a_planted_fault_is_seen(fault):
    """A posterior of a third of its width, and data with thrice the noise that the model believes in."""

    def noisy(mu, seed):
        return {"y": mu + 3 * np.random.default_rng(seed).standard_normal(4)}

    kernel = ExactNormal(normal_mean, spread=1 / 3 if fault == "kernel" else 1.0)
    adapter = PyroAdapter(kernel, DATA, noisy if fault == "simulator" else None, 0)
    ranks = calibrated(adapter, 100, num_samples=49, warmup_steps=0)
    assert results.uniformity(ranks["mu"], 49) < FALSE_ALARM_RATE


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1.0, 0.2])
def test_nuts_is_calibrated_where_the_model_is_that_of_the_data(noise):
    """Thinned, so that draws are nearly independent; the fault is a model with a fifth of the data's noise."""

    def simulator(mu, seed):
        return {"y": mu + np.random.default_rng(seed).standard_normal(4)}

    adapter = PyroAdapter(NUTS(normal_mean), {**DATA, "noise": noise}, simulator, 0)
    ranks = calibrated(adapter, 60, num_samples=76, warmup_steps=40, thinning=4)
    assert (results.uniformity(ranks["mu"], 19) > FALSE_ALARM_RATE) == (noise == 1.0)


def test_ranks_are_counted_by_hand():
    adapter = PyroAdapter(ExactNormal(normal_mean), DATA, None, 0)
    seeds = np.arange(5)
    parameters, predictive = adapter.get_prior_predictive_samples(5, seeds)
    params = adapter.simulation_params_no_simulator(parameters, predictive)
    assert parameters["mu"].shape == (5,) and predictive["y"].shape == (5, 4)
    data = adapter.replicate(predictive, 3, params)
    drawn = adapter.get_posterior_samples(params, data, {"num_samples": 10, "disable_progbar": True}, 7, "prior", 3)
    rank = adapter.compute_single_rank(lambda name, x: -(x**3), "mu", drawn, 3, parameters)
    assert rank == sum(-(x**3) < -(parameters["mu"].values[3] ** 3) for x in drawn["mu"].values)


def test_fits_draw_other_random_numbers_than_simulations():
    """Else the first noise of a fit is that of its parameter; of 100 independent pairs the correlation has sd 0.1."""
    adapter, seeds = PyroAdapter(ExactNormal(normal_mean), DATA, None, 0), np.arange(100)
    parameters, predictive = adapter.get_prior_predictive_samples(100, seeds)
    params = adapter.simulation_params_no_simulator(parameters, predictive)
    options = {"num_samples": 1, "warmup_steps": 0, "disable_progbar": True}
    noise = [adapter.get_posterior_samples(params, {"y": np.zeros(4)}, options, i, "prior", i)["mu"][0] for i in seeds]
    assert abs(np.corrcoef(noise, parameters["mu"])[0, 1]) < 0.5


def test_chains_are_pooled_and_thinned():
    adapter = PyroAdapter(ExactNormal(normal_mean), DATA, None, 0)
    params = adapter.simulation_params_no_simulator(*adapter.get_prior_predictive_samples(1, [0]))
    options = {"num_samples": 10, "warmup_steps": 0, "disable_progbar": True}
    whole, thinned = (
        adapter.get_posterior_samples(params, {"y": np.zeros(4)}, {**options, "thinning": n}, 7, "prior", 0)["mu"]
        for n in (1, 3)
    )
    np.testing.assert_array_equal(thinned, whole[::3])


def test_seeds_make_the_same_ranks_and_leave_the_generator_alone():
    before = torch.get_rng_state()
    first, again, other = (
        calibrated(PyroAdapter(ExactNormal(normal_mean), DATA, None, 0), 5, num_samples=30, warmup_steps=0, seed=seed)
        for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(first["mu"], again["mu"])
    assert (first["mu"] != other["mu"]).any()


def test_every_fit_starts_from_the_kernel_as_it_was_given():
    """Two fits of the same data by the same seed agree, whatever was fitted between them."""
    adapter = PyroAdapter(NUTS(schools), SCHOOLS, None, 0)
    params = adapter.simulation_params_no_simulator(*adapter.get_prior_predictive_samples(1, [0]))
    options = {"num_samples": 5, "warmup_steps": 5, "disable_progbar": True}
    first, other, again = (
        adapter.get_posterior_samples(params, {"y": np.full(3, y)}, options, 7, "prior", 0) for y in (1.0, 90.0, 1.0)
    )
    assert first.identical(again.assign_attrs(first.attrs)) and not np.allclose(first["mu"], other["mu"])
    assert {name: x.shape for name, x in first.items()} == {"mu": (5,), "tau": (5,), "theta": (5, 3)}


def test_enumerated_deterministic_and_reparametrized_sites_are_not_ranked():
    def model(y=None):
        with poutine.reparam(config={"mu": LocScaleReparam(0.0)}):
            mu = pyro.sample("mu", Normal(0.0, 2.0))
        twice = pyro.deterministic("twice", 2 * mu)
        z = pyro.sample("z", Bernoulli(0.5))
        pyro.sample("y", Normal(twice + z, 1.0), obs=y)

    adapter = PyroAdapter(NUTS(model), {"y": torch.tensor(0.0)}, None, 0)
    assert (adapter.var_names, adapter.observed_vars, adapter.never_simulated) == (["mu_decentered"], ["y"], [])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"n": 4}, "no observed variables that are arguments of the model"),
        (DATA, "extra counts in every fit but is no argument of the model"),
    ],
)
def test_a_model_that_cannot_be_simulated_is_refused(data, message):
    def model(n, y=None):
        normal_mean(n, y)
        if y is not None:
            pyro.factor("extra", torch.tensor(1.0))

    with pytest.raises(ValueError, match=re.escape(message)):
        PyroAdapter(NUTS(model), data, None, 0).stop_if_cant_run_without_simulator()


def test_data_by_default_and_a_simulator_of_other_data_are_refused():
    def model(y=torch.zeros(4)):  # noqa: B008
        normal_mean(4, y)

    with pytest.raises(ValueError, match="missing from data_dir: y"):
        PyroAdapter(NUTS(model), {}, None, 0).stop_if_cant_run_without_simulator()
    adapter = PyroAdapter(ExactNormal(normal_mean), DATA, lambda mu, seed: {"other": mu}, 0)
    with pytest.raises(ValueError, match="No observed variables to condition on: the simulator makes other"):
        calibrated(adapter, 2, num_samples=3)
    with pytest.raises(NotImplementedError, match="Posterior SBC"):
        adapter.get_posterior_predictive_samples(2, [0], False)
