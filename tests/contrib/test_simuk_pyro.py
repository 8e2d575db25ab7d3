"""`PyroSBC` on the released simuk: the loop is simuk's own, and so is the structure of what NumPyro gives."""

import numpy as np
import pytest
import torch
from calibration_of_pyro import DATA, SCHOOLS, ExactNormal, normal_mean, schools
from pyro.infer import NUTS
from tolerances import FALSE_ALARM_RATE

from probtx_pyro import results

pytest.importorskip("simuk", minversion="0.3", reason="simuk 0.3 is missing: pip install simuk, from Python 3.12 on")

import simuk

from contrib.simuk_pyro import PyroSBC


def calibrated(kernel, simulations=100, simulator=None, **options):
    """Ranks of the mean after simuk's loop, shape (simulation,)."""
    settings = {"num_samples": 49, "warmup_steps": 0}
    sbc = PyroSBC(
        kernel, num_simulations=simulations, sample_kwargs=settings, seed=0, data_dir=DATA, simulator=simulator,
        progress_bar=False, **options,
    )  # fmt: skip
    sbc.run_simulations()
    return sbc, sbc.simulations["prior_sbc"]["mu"].values[0]


@pytest.mark.parametrize("spread", [1.0, 1 / 3])
def test_an_exact_kernel_is_calibrated_and_one_that_is_too_sure_is_not(spread):
    _, ranks = calibrated(ExactNormal(normal_mean, spread))
    assert ranks.shape == (100,)
    assert (results.uniformity(ranks, 49) > FALSE_ALARM_RATE) == (spread == 1)


def test_data_that_the_model_does_not_make_are_not_calibrated():
    def noisy(mu, seed):
        return {"y": mu + 3 * np.random.default_rng(seed).standard_normal(4), "unused": mu}

    _, ranks = calibrated(ExactNormal(normal_mean), simulator=noisy)
    assert results.uniformity(ranks, 49) < FALSE_ALARM_RATE


def test_ranks_are_counted_anew_by_another_transform():
    sbc, ranks = calibrated(ExactNormal(normal_mean), 5)
    reverse = sbc.compute_rank_statistics(lambda name, x: -x)["prior_sbc"]["mu"].values[0]
    np.testing.assert_array_equal(reverse, 49 - ranks)
    _, unkept = calibrated(ExactNormal(normal_mean), 5, keep_fits=False)
    np.testing.assert_array_equal(unkept, ranks)


def test_a_run_goes_on_where_it_stopped():
    def once_broken(mu, seed):
        return {"y": np.full(4, mu)}

    class Stops(ExactNormal):
        fits = []

        def setup(self, *args, **kwargs):
            self.fits.append(1)
            if len(self.fits) == 3:
                raise KeyboardInterrupt
            super().setup(*args, **kwargs)

    settings = {"num_samples": 20, "warmup_steps": 0}
    whole, stopped = (
        PyroSBC(
            kind(normal_mean), num_simulations=4, sample_kwargs=settings, seed=1, data_dir=DATA, simulator=once_broken,
            progress_bar=False, keep_fits=True,
        )
        for kind in (ExactNormal, Stops)
    )  # fmt: skip
    whole.run_simulations()
    with pytest.raises(KeyboardInterrupt):
        stopped.run_simulations()
    assert stopped.simulations["prior_sbc"]["mu"].shape == (1, 2)
    stopped.run_simulations()
    assert stopped.simulations["prior_sbc"].equals(whole.simulations["prior_sbc"])


def test_a_model_that_cannot_be_simulated_is_refused_before_the_run():
    with pytest.raises(ValueError, match="no observed variables that are arguments"):
        PyroSBC(NUTS(normal_mean), data_dir={"n": 4})


@pytest.mark.slow
def test_the_structure_is_that_of_numpyro():
    """The same model in both; NUTS of few steps, whose ranks say nothing."""
    numpyro = pytest.importorskip("numpyro", reason="numpyro is missing: pip install numpyro")
    dist = numpyro.distributions

    def same_schools(J, sigma, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfNormal(5.0))
        with numpyro.plate("J", J):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("y", dist.Normal(theta, sigma), obs=y)

    data = {name: x.numpy() if torch.is_tensor(x) else x for name, x in SCHOOLS.items()}
    theirs = simuk.SBC(
        numpyro.infer.NUTS(same_schools), num_simulations=3, seed=0, data_dir=data,
        sample_kwargs={"num_warmup": 10, "num_samples": 8}, progress_bar=False,
    )  # fmt: skip
    ours = PyroSBC(
        NUTS(schools), num_simulations=3, seed=0, data_dir=SCHOOLS,
        sample_kwargs={"warmup_steps": 10, "num_samples": 8}, progress_bar=False,
    )  # fmt: skip
    theirs.run_simulations()
    ours.run_simulations()
    assert theirs.var_names == ours.var_names and theirs.observed_vars == ours.observed_vars
    assert theirs.simulations.attrs.keys() == ours.simulations.attrs.keys()
    assert ours.simulations.attrs["inferece_library"] == "pyro-ppl"
    assert list(theirs.simulations.children) == list(ours.simulations.children)
    expected, found = theirs.simulations["prior_sbc"], ours.simulations["prior_sbc"]
    assert found.sizes == expected.sizes and set(found.data_vars) == set(expected.data_vars)
    for name, x in expected.data_vars.items():
        assert found[name].dims == x.dims and found[name].dtype.kind == x.dtype.kind
        assert 0 <= found[name].min() <= found[name].max() <= 8
