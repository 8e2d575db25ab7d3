"""`from_pyro`: groups, dims and values against numpy by hand, and against the library's own converter on the same MCMC."""

import warnings

import arviz
import numpy as np
import pyro
import pytest
import torch
import xarray
from arviz_versions import dataset
from pyro import poutine
from pyro.distributions import Bernoulli, Gamma, Normal, Poisson
from pyro.infer import HMC, MCMC, NUTS, Predictive, RandomWalkKernel
from pyro.infer.reparam import LocScaleReparam
from scipy import stats

from probtx_pyro import results

pytest.importorskip("arviz_base", reason="arviz-base is missing: pip install arviz-base")

from contrib.io_pyro import from_pyro

X, Y = (torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(3, 5) * scale for scale in (1.0, 3.0))
CLOSE = {"rtol": 0, "atol": 1e-12}  # 64 operations on logarithms below 100 in double precision


def schools(x, y=None):
    """Two crossed plates, entered in either order, scalars, a vector and a site of one plate alone."""
    slope, noise = pyro.sample("slope", Normal(0.0, 1.0)), pyro.sample("noise", Gamma(2.0, 2.0))
    pyro.sample("shift", Normal(torch.zeros(2), 1.0).to_event(1))
    school, pupil = pyro.plate("school", 3, dim=-2), pyro.plate("pupil", x.shape[-1], dim=-1)
    with school:
        level = pyro.sample("level", Normal(0.0, 1.0))
    with pupil, school:
        mean = pyro.deterministic("mean", level + slope * x)
        pyro.sample("score", Normal(mean, noise), obs=y)


def run(model, *arguments, kernel=HMC, num_chains=1, draws=6, **options):
    """A few draws, of chains one after another."""
    pyro.set_rng_seed(0)
    settings = {"step_size": 0.1, "num_steps": 2} if kernel is HMC else {}
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr("multiprocessing.cpu_count", lambda: 1)
        warnings.filterwarnings("ignore", "num_chains=.*drawn sequentially")
        options = {"num_chains": num_chains, "disable_progbar": True, **options}
        mcmc = MCMC(kernel(model, **settings), draws, 2, **options)
    mcmc.run(*arguments)
    return mcmc


@pytest.fixture
def mcmc():
    return run(schools, X, Y, num_chains=2)


def test_groups_dims_and_values(mcmc):
    found = from_pyro(mcmc, log_likelihood=True, coords={"school": list("abc")})
    expected = {
        "posterior": {
            "slope": (),
            "noise": (),
            "shift": ("shift_dim_0",),
            "level": ("school", "level_dim_0"),
        },
        "sample_stats": {"diverging": ()},
        "log_likelihood": {"score": ("school", "pupil")},
        "observed_data": {"score": ("school", "pupil")},
    }
    assert {
        name: {str(x): found[name][x].dims[2 * (name != "observed_data") :] for x in found[name].data_vars}
        for name in found.children
    } == expected
    samples = mcmc.get_samples(group_by_chain=True)
    for name, x in samples.items():
        assert found["posterior"][name].dims[:2] == ("chain", "draw")
        np.testing.assert_array_equal(found["posterior"][name], x)
    mean = samples["level"] + samples["slope"][..., None, None] * X
    density = stats.norm.logpdf(Y, mean, samples["noise"][..., None, None])
    np.testing.assert_allclose(found["log_likelihood"]["score"], density, **CLOSE)
    np.testing.assert_array_equal(found["observed_data"]["score"], Y)
    assert found["posterior"]["level"].sel(school="b").shape == (2, 6, 1)
    assert found["posterior"].attrs["inference_library"] == "pyro"
    assert found["posterior"].attrs["inference_library_version"] == pyro.__version__


def test_the_same_as_the_librarys_converter(mcmc):
    """But for axes of size 1 outside of all plates, which the library drops, and ``lp``, which Pyro does not keep."""
    theirs, ours = from_pyro(mcmc, log_likelihood=True), results.to_inference_data(mcmc, X, Y)
    for group in ("posterior", "log_likelihood", "observed_data", "sample_stats"):
        expected = dataset(ours, group).drop_vars("lp", errors="ignore")
        assert set(theirs[group].data_vars) == set(expected.data_vars)
        for name, x in expected.data_vars.items():
            found = theirs[group][name].squeeze([d for d in theirs[group][name].dims if theirs[group].sizes[d] == 1])
            assert {d for d in found.dims if "_dim_" not in d} == {d for d in x.dims if "_dim_" not in d}
            np.testing.assert_allclose(found, x, **CLOSE)


def test_chains_keep_their_order_when_there_are_more_than_ten():
    mcmc = run(schools, X, Y, num_chains=11, draws=12)
    for chain, found in enumerate(mcmc._diagnostics):
        found["divergences"] = [1] if chain == 10 else []
    assert np.argwhere(from_pyro(mcmc)["sample_stats"]["diverging"].values).tolist() == [[10, 1]]


@pytest.mark.parametrize("masked", [False, True])
def test_log_likelihood_is_masked_and_scaled_as_in_the_model(masked):
    mask = torch.arange(5) != 3

    def model(y):
        rate = pyro.sample("rate", Gamma(2.0, 1.0))
        with pyro.plate("day", 5), poutine.scale(scale=2.0), poutine.mask(mask=mask if masked else torch.tensor(True)):
            pyro.sample("count", Poisson(rate), obs=y)

    y = torch.tensor([0.0, 1.0, 4.0, 2.0, 2.0])
    mcmc = run(model, y)
    rate = mcmc.get_samples()["rate"][:, None]
    expected = 2 * stats.poisson.logpmf(y, rate) * (mask.numpy() if masked else 1)
    found = from_pyro(mcmc, log_likelihood=True)["log_likelihood"]["count"]
    np.testing.assert_allclose(found[0], expected, **CLOSE)


def test_predictions_and_priors_lose_the_axes_that_predictive_pads(mcmc):
    """`Predictive` gives a scalar site (draw, 1, 1), as the model has two plates."""
    drawn = Predictive(schools, mcmc.get_samples())(X)
    prior = Predictive(schools, num_samples=7)(X)
    new = Predictive(schools, mcmc.get_samples())(X[:, :1])
    assert prior["slope"].shape == (7, 1, 1)
    found = from_pyro(
        mcmc,
        prior=prior,
        posterior_predictive=drawn,
        predictions=new,
        constant_data={"x": X, "level": 3},
        predictions_constant_data={"x": X[:, :1].numpy()},
        dims={"x": ["school", "pupil"]},
        pred_dims={"x": ["school", "new"], "score": ["school", "new"]},
    )
    assert found["prior"]["slope"].dims == ("chain", "draw") and found["prior"].sizes["draw"] == 7
    assert found["prior"]["level"].dims == ("chain", "draw", "school", "level_dim_0")
    assert list(found["prior_predictive"].data_vars) == ["score"]
    np.testing.assert_array_equal(found["prior"]["level"][0], prior["level"])
    np.testing.assert_array_equal(found["posterior_predictive"]["score"][1, 2], drawn["score"][6 + 2])
    assert found["posterior_predictive"]["score"].dims == ("chain", "draw", "school", "pupil")
    assert found["predictions"]["score"].dims == ("chain", "draw", "school", "new")
    np.testing.assert_array_equal(found["constant_data"]["x"], X)
    assert found["constant_data"]["level"].shape == () and found["predictions_constant_data"]["x"].shape == (3, 1)


def test_without_a_posterior_there_are_as_many_chains_as_are_said(mcmc):
    drawn = Predictive(schools, mcmc.get_samples())(X)
    found = from_pyro(posterior_predictive=drawn, prior=Predictive(schools, num_samples=7)(X), num_chains=2)
    assert found["posterior_predictive"]["score"].shape == (2, 6, 3, 5)
    assert set(found["prior"].data_vars) == {"slope", "noise", "shift", "level", "mean", "score"}
    assert set(found.children) == {"prior", "posterior_predictive"}


def test_what_looks_observed_but_is_no_data_is_left_out():
    """Deterministic sites, factors and reparametrized sites."""

    def model(y):
        with poutine.reparam(config={"mu": LocScaleReparam(0.0)}):
            mu = pyro.sample("mu", Normal(0.0, 2.0))
        pyro.factor("extra", -(mu**2))
        with pyro.plate("day", 3):
            pyro.sample("y", Normal(pyro.deterministic("mean", mu), 1.0), obs=y)

    found = from_pyro(run(model, torch.zeros(3)), log_likelihood=True)
    assert list(found["posterior"].data_vars) == ["mu_decentered"]
    for group in ("observed_data", "log_likelihood"):
        assert list(found[group].data_vars) == ["y"] and found[group]["y"].dims[-1] == "day"


def test_observations_conditioned_outside_of_the_model():
    found = from_pyro(run(poutine.condition(schools, {"score": Y}), X))
    np.testing.assert_array_equal(found["observed_data"]["score"], Y)


def test_kernels_and_potentials_that_know_less():
    walked = from_pyro(run(schools, X, Y, kernel=RandomWalkKernel))
    assert set(walked.children) == {"posterior", "observed_data"}
    kernel = HMC(potential_fn=lambda z: (z["x"] ** 2).sum() / 2, step_size=0.1, num_steps=2)
    mcmc = MCMC(kernel, 4, 2, initial_params={"x": torch.zeros(2)}, disable_progbar=True)
    mcmc.run()
    found = from_pyro(mcmc, log_likelihood=True)
    assert set(found.children) == {"posterior", "sample_stats"} and found["posterior"]["x"].shape == (1, 4, 2)


def test_a_latent_site_without_draws_has_a_posterior_and_no_log_likelihood():
    def model(y):
        mu = pyro.sample("mu", Normal(0.0, 1.0))
        with pyro.plate("day", 3):
            side = pyro.sample("side", Bernoulli(0.5), infer={"enumerate": "parallel"})
            pyro.sample("y", Normal(mu + side, 1.0), obs=y)

    mcmc = run(model, torch.zeros(3), kernel=NUTS, draws=2)
    assert list(from_pyro(mcmc)["posterior"].data_vars) == ["mu"]
    with pytest.raises(ValueError, match="side is a latent site without draws"):
        from_pyro(mcmc, log_likelihood=True)


def test_errors_name_the_argument(mcmc):
    with pytest.raises(ValueError, match="nothing to convert"):
        from_pyro()
    with pytest.raises(ValueError, match="the MCMC has not run"):
        from_pyro(MCMC(HMC(schools), 3))
    with pytest.raises(ValueError, match="predictions: score has 5 draws, which are not 2 chains of 6"):
        from_pyro(mcmc, predictions={"score": torch.zeros(5, 3, 5)})


def test_the_conversion_draws_nothing(mcmc):
    before = torch.get_rng_state()
    from_pyro(mcmc, log_likelihood=True)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.skipif(not hasattr(arviz, "from_pyro"), reason="ArviZ 1.x has no converter of its own to compare with")
def test_the_same_as_arviz_had_before_its_first_version(mcmc):
    """But for the deterministic site, which ArviZ 0.x takes for data, with its value at one draw from the prior."""
    before, now = arviz.from_pyro(mcmc, log_likelihood=True), from_pyro(mcmc, log_likelihood=True)
    assert set(before.groups()) == set(now.children)
    for group in before.groups():
        extra = {"mean"} if group in ("observed_data", "log_likelihood") else set()
        assert set(before[group].data_vars) == set(now[group].data_vars) | extra
        for name, x in now[group].data_vars.items():
            np.testing.assert_allclose(x, before[group][name], **CLOSE)


@pytest.mark.slow
def test_the_structure_is_that_of_from_numpyro():
    """Eight schools in both: the same groups, variables, dims and labels."""
    numpyro = pytest.importorskip("numpyro", reason="numpyro is missing: pip install numpyro")
    from arviz_base import from_numpyro
    from jax.random import key

    def model(library, normal, y=None):
        mu = library.sample("mu", normal(0.0, 5.0))
        with library.plate("school", 8):
            theta = library.sample("theta", normal(mu, 1.0))
            library.sample("y", normal(theta, 10.0), obs=y)

    y, coords = np.linspace(-3.0, 28.0, 8), {"school": list("abcdefgh")}
    theirs = numpyro.infer.MCMC(numpyro.infer.NUTS(model), num_warmup=2, num_samples=6, progress_bar=False)
    theirs.run(key(0), numpyro, numpyro.distributions.Normal, y)
    prior = numpyro.infer.Predictive(model, num_samples=4)(key(1), numpyro, numpyro.distributions.Normal)
    expected = from_numpyro(theirs, prior=prior, log_likelihood=True, coords=coords)
    ours = run(model, pyro, Normal, torch.as_tensor(y))
    found = from_pyro(ours, prior=Predictive(model, num_samples=4)(pyro, Normal), log_likelihood=True, coords=coords)
    assert set(found.children) == set(expected.children)
    for group, node in expected.children.items():
        assert set(found[group].data_vars) == set(node.data_vars)
        for name, x in node.data_vars.items():
            assert found[group][name].dims == x.dims and found[group][name].shape == x.shape
        assert all(found[group].coords[name].equals(x) for name, x in node.coords.items())


@pytest.mark.slow
def test_a_file_of_it_reads_back(mcmc, tmp_path):
    found = from_pyro(mcmc, log_likelihood=True)
    found.to_netcdf(tmp_path / "draws.nc", engine="h5netcdf")
    with xarray.open_datatree(tmp_path / "draws.nc", engine="h5netcdf") as read:
        assert all(read[group].identical(found[group]) for group in found.children)
