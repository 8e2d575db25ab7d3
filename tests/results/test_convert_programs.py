"""Draws of Pyro programs of one's own as ArviZ data: axes by plates, the likelihood of every observed site."""

import warnings

import arviz
import numpy as np
import pyro
import pytest
import torch
from arviz_versions import pointwise_elpd
from draws_by_hand import DTYPE, normal
from pyro import poutine
from pyro.distributions import Bernoulli, Gamma, MultivariateNormal, Normal
from pyro.infer import MCMC, NUTS
from pyro.infer.reparam import LocScaleReparam
from scipy import stats

from probtx_pyro import inference, results

X, Y = normal(1, 3, 7), normal(2, 3, 7)
SEEN = torch.rand(3, 7, generator=torch.Generator().manual_seed(0)) < 0.7
WORDS = list("abcdefg")


def regression(x, y, seen=None, weight=1.0):
    """Three schools of seven pupils, a level for each school; and one more number, observed outside of all plates."""
    slope = pyro.sample("slope", Normal(torch.zeros((), dtype=DTYPE), 1.0))
    noise = pyro.sample("noise", Gamma(torch.tensor(2.0, dtype=DTYPE), 2.0))
    schools, pupils = pyro.plate("school", 3, dim=-2), pyro.plate("pupil", 7, dim=-1)
    with schools:
        level = pyro.sample("level", Normal(torch.zeros((), dtype=DTYPE), 1.0))
        pyro.deterministic("doubled", 2 * level)
        with pupils, poutine.scale(scale=weight):
            with poutine.mask(mask=True if seen is None else seen):
                pyro.sample("score", Normal(level + slope * x, noise), obs=y)
        pyro.factor("penalty", -level.square())
    root = MultivariateNormal(slope * torch.ones(2, dtype=DTYPE), torch.eye(2, dtype=DTYPE))
    pyro.sample("pair", root, obs=torch.ones(2, dtype=DTYPE))


def by_hand(program=regression, arguments=(X, Y), **more):
    given = {
        "slope": normal(3, 2, 40),
        "noise": normal(4, 2, 40).exp(),
        "level": normal(5, 2, 40, 3, 1),
        **more,
    }
    return inference.Draws(given, {"lp": normal(6, 2, 40)}, program, arguments, "NUTS", {})


def scores(draws, chain, draw):
    """log p(score) of one draw by SciPy, (school, pupil)."""
    slope, noise, level = (draws.samples[name][chain, draw].numpy() for name in ("slope", "noise", "level"))
    return stats.norm(level + slope * X.numpy(), noise).logpdf(Y.numpy())


def test_observed_sites_have_data_and_a_pointwise_likelihood():
    draws = by_hand()
    found = results.to_inference_data(draws, coords={"pupil": WORDS})
    assert found["posterior"]["level"].dims == ("chain", "draw", "school")
    assert found["observed_data"]["score"].dims == ("school", "pupil")
    assert found["observed_data"]["pair"].dims == ("pair_dim_0",)
    likelihood = found["log_likelihood"]
    assert set(likelihood.data_vars) == {"score", "pair"}  # neither the deterministic site nor the factor
    assert likelihood["score"].dims == ("chain", "draw", "school", "pupil") and likelihood["pair"].dims == (
        "chain",
        "draw",
    )
    for chain, draw in ((0, 0), (1, 39)):
        np.testing.assert_allclose(likelihood["score"].values[chain, draw], scores(draws, chain, draw), rtol=1e-12)
        slope = float(draws.samples["slope"][chain, draw])
        pair = 2 * stats.norm(slope, 1).logpdf(1.0)
        assert likelihood["pair"].values[chain, draw] == pytest.approx(pair, rel=1e-12)
    assert found["observed_data"]["score"].sel(pupil="c", school=1).item() == float(Y[1, 2])


def test_the_likelihood_serves_arviz_and_the_verdict():
    found = results.to_inference_data(by_hand())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the draws are of no posterior, and ArviZ says so
        pointwise = pointwise_elpd(arviz.loo(found, var_name="score", pointwise=True))
    assert pointwise.shape == found["observed_data"]["score"].shape and np.isfinite(pointwise).all()
    assert (
        sum("Pareto k" in check.name for check in results.diagnose(found).checks) == 2
    )  # of the scores and of the pair


def test_masked_observations_are_left_out_and_scaled_ones_scaled():
    draws = by_hand(arguments=(X, Y, SEEN, 0.5))
    likelihood = results.to_inference_data(draws)["log_likelihood"]["score"]
    assert likelihood.dims == ("chain", "draw", "score_observation")
    labels = [f"school={i}, pupil={j}" for i, j in np.argwhere(SEEN.numpy())]
    assert likelihood["score_observation"].values.tolist() == labels
    np.testing.assert_allclose(likelihood.values[1, 7], 0.5 * scores(draws, 1, 7)[SEEN.numpy()], rtol=1e-12)


def test_a_masked_distribution_counts_as_masked():
    def program(y):
        mean = pyro.sample("mean", Normal(torch.zeros((), dtype=DTYPE), 1.0))
        with pyro.plate("pupil", 7):
            pyro.sample("score", Normal(mean, 1.0).mask(SEEN[0]), obs=y)

    draws = inference.Draws({"mean": normal(3, 2, 40)}, {"lp": normal(6, 2, 40)}, program, (Y[0],), "NUTS", {})
    likelihood = results.to_inference_data(draws)["log_likelihood"]["score"]
    assert likelihood.sizes["score_observation"] == int(SEEN[0].sum()) < 7
    expected = stats.norm(float(draws.samples["mean"][0, 3]), 1).logpdf(Y[0].numpy())[SEEN[0].numpy()]
    np.testing.assert_allclose(likelihood.values[0, 3], expected, rtol=1e-12)


def test_a_site_in_other_coordinates_is_no_data():
    scaled = poutine.reparam(regression, {"level": LocScaleReparam(0.0)})
    draws = by_hand(scaled, level_decentered=normal(5, 2, 40, 3, 1))
    del draws.samples["level"]
    found = results.to_inference_data(draws)
    assert set(found["observed_data"].data_vars) == set(found["log_likelihood"].data_vars) == {"score", "pair"}


def test_axes_take_other_names():
    dims = {"score": ["class", "child"], "level": ["class"], "pair": ["side"]}
    found = results.to_inference_data(by_hand(), dims=dims, coords={"child": WORDS})
    assert found["log_likelihood"]["score"].dims == ("chain", "draw", "class", "child")
    assert found["observed_data"]["score"].dims == ("class", "child") and found["posterior"]["level"].dims[2:] == (
        "class",
    )
    assert found["observed_data"]["pair"].dims == ("side",) and found["log_likelihood"]["pair"].dims == (
        "chain",
        "draw",
    )
    with pytest.raises(ValueError, match="dims: there is no variable 'doubled'"):
        results.to_inference_data(by_hand(), dims={"doubled": ["class"]})


def test_a_latent_site_without_draws_leaves_no_likelihood_and_says_so():
    def program(y):
        mean = pyro.sample("mean", Normal(torch.zeros((), dtype=DTYPE), 1.0))
        with pyro.plate("pupil", 7):
            side = pyro.sample("side", Bernoulli(torch.tensor(0.5, dtype=DTYPE)), infer={"enumerate": "parallel"})
            pyro.sample("score", Normal(mean * side, 1.0), obs=y)

    draws = inference.nuts(program, Y[0], num_samples=5, num_warmup=5, num_chains=1, seed=0)
    found = results.to_inference_data(draws)
    assert "log_likelihood" not in found and found["observed_data"]["score"].dims == ("pupil",)
    assert "side is a latent site without draws" in found.attrs["log_likelihood"]


def test_the_likelihood_may_be_left_out_and_runs_leave_the_generator_alone():
    before = torch.get_rng_state()
    found = results.to_inference_data(by_hand(), likelihood=None)
    assert "log_likelihood" not in found and "score" in found["observed_data"]
    results.to_inference_data(by_hand())
    assert torch.equal(before, torch.get_rng_state()) and not pyro.get_param_store()
    with pytest.raises(ValueError, match=r"only a program made by models\.bayesian says what its answers are"):
        results.to_inference_data(by_hand(), likelihood="answers")
    with pytest.raises(ValueError, match="likelihood must be one of joint, answers or None, not 'scores'"):
        results.to_inference_data(by_hand(), likelihood="scores")


@pytest.mark.slow
def test_results_of_pyro_itself_have_them_too():
    pyro.set_rng_seed(0)
    mcmc = MCMC(NUTS(regression), num_samples=10, warmup_steps=10, disable_progbar=True)
    mcmc.run(X, Y)
    found = results.to_inference_data(mcmc, X, Y)
    assert found["log_likelihood"]["score"].dims == ("chain", "draw", "school", "pupil")
    slope, noise, level = (mcmc.get_samples()[name][4].numpy() for name in ("slope", "noise", "level"))
    expected = stats.norm(level + slope * X.numpy(), noise).logpdf(Y.numpy())
    np.testing.assert_allclose(found["log_likelihood"]["score"].values[0, 4], expected, rtol=1e-12)
