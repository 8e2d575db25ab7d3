"""Prior predictive draws against moments on paper, learning against exact normals, power-scaling against a conjugate posterior."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
import torch
from pyro.distributions import Dirichlet, Gamma, Normal
from tolerances import FALSE_ALARM_RATE

from probtx_pyro import models, results

SIGMAS = 5  # of a mean of independent draws: false alarm 6e-7


def assert_mean(draws, expected):
    """The mean over the first axis of independent draws, within five of its standard errors."""
    error = np.std(draws, 0, ddof=1) / len(draws) ** 0.5
    assert (np.abs(np.mean(draws, 0) - expected) < SIGMAS * error).all()


# -- prior predictive --------------------------------------------------------------------------------------------------------

CENTER = torch.tensor([[-1.0, 0.0], [2.0, 1.0], [0.0, 3.0]], dtype=torch.float64)
SPREAD, SHAPE, RATE = 0.7, 5.0, 2.0


@pytest.mark.slow
@pytest.mark.parametrize("collapsed", [True, False])
def test_moments_of_queries_and_outputs(collapsed):
    """Keys N(m_j, s²), precision Gamma(a, b), weights Dirichlet(c) with mean c_j/Σc: E q = Σ π_j m_j and
    E q² = Σ π_j (m_j² + s²) + b/(a - 1), and the same for the outputs, whose precision is fixed."""
    concentration, values = torch.tensor([1.0, 2.0, 5.0]), torch.tensor([[1.0], [-2.0], [4.0]])
    mixture = models.GaussianMixture(CENTER, values, value_precision=4.0)
    priors = dict(keys=Normal(CENTER, SPREAD), key_precision=Gamma(SHAPE, RATE), weights=Dirichlet(concentration))
    program = models.bayesian(mixture, **priors, collapsed=collapsed)
    draws = results.prior_predictive(program, torch.zeros(2, 2), num_draws=500, seed=0)
    assert set(draws) == {"keys", "key_precision", "weights", "queries", "outputs"} | (
        {"unit"} if not collapsed else set()
    )
    mean = (concentration / concentration.sum()).numpy()
    assert_mean(draws["keys"], CENTER.numpy())
    assert_mean(draws["keys"] ** 2, CENTER.numpy() ** 2 + SPREAD**2)
    assert_mean(draws["key_precision"], SHAPE / RATE)
    assert_mean(draws["weights"], mean)
    first = draws["queries"][:, 0]
    assert_mean(first, mean @ CENTER.numpy())
    assert_mean(first**2, mean @ (CENTER.numpy() ** 2 + SPREAD**2) + RATE / (SHAPE - 1))
    assert_mean(draws["outputs"][:, 0], mean @ values.numpy())
    assert_mean(draws["outputs"][:, 0] ** 2, mean @ values.numpy() ** 2 + 1 / 4)


def test_outputs_go_with_their_queries():
    """Units far apart: the output must be that of the unit that made the query, also where ``unit`` is summed out."""
    mixture = models.GaussianMixture(
        torch.tensor([[-50.0], [50.0]]), torch.tensor([[-3.0], [3.0]]), value_precision=100.0
    )
    program = models.bayesian(mixture, keys=Normal(mixture.keys, 1.0))
    draws = results.prior_predictive(program, torch.zeros(1, 1), torch.ones(1, 1), num_draws=200, seed=1)
    assert (np.sign(draws["queries"]) == np.sign(draws["outputs"])).all()
    assert 0 < (draws["queries"] > 0).sum() < 200


@pytest.mark.slow
def test_draws_of_the_prior_follow_it_and_the_seed():
    program = models.bayesian(models.GaussianMixture(torch.zeros(1, 1)), key_precision=Gamma(3.0, 2.0))
    state = torch.get_rng_state()
    draws, again, other = (
        results.prior_predictive(program, torch.ones(1, 1), num_draws=800, seed=i) for i in (0, 0, 1)
    )
    assert torch.equal(torch.get_rng_state(), state)
    precision = draws["key_precision"].ravel()
    assert scipy.stats.kstest(precision, scipy.stats.gamma(3.0, scale=0.5).cdf).pvalue > FALSE_ALARM_RATE
    # N(0, 1/α) with α ~ Gamma(3, 2) is Student's t with 6 degrees of freedom and scale sqrt(2/3)
    queries = draws["queries"].ravel()
    assert scipy.stats.kstest(queries, scipy.stats.t(6, scale=(2 / 3) ** 0.5).cdf).pvalue > FALSE_ALARM_RATE
    np.testing.assert_array_equal(queries, again["queries"].ravel())
    assert (draws["queries"] != other["queries"]).all()


# -- prior against posterior -------------------------------------------------------------------------------------------------


def test_what_the_data_taught():
    rng = np.random.default_rng(0)
    prior = {"keys": rng.normal(0, 2, (8000, 2)), "unused": rng.normal(size=5)}
    posterior = {"keys": np.stack([rng.normal(3, 0.5, (4, 2000)), rng.normal(0, 2, (4, 2000))], -1)}
    learned = results.prior_against_posterior(prior, posterior)
    # a variance of n normal draws errs by sqrt(2/n) of itself: two of them, 5 sd
    noise = 5 * (2 * 2 / 8000) ** 0.5
    np.testing.assert_allclose(learned.shrinkage["keys"], [1 - 1 / 16, 0.0], atol=noise)
    np.testing.assert_allclose(learned.shift["keys"], [1.5, 0.0], atol=noise)
    cross = scipy.stats.norm(3, 0.5), scipy.stats.norm(0, 2)
    grid = np.linspace(-12, 12, 100_001)
    exact = np.trapezoid(np.minimum(cross[0].pdf(grid), cross[1].pdf(grid)), grid)
    # 40 bins: noise takes 0.56 sqrt(40/8000) where both agree; edges cut each of two crossings off by less than half a bin
    np.testing.assert_allclose(learned.overlap["keys"], [exact, 1.0], atol=0.56 * (40 / 8000) ** 0.5 + 1 / 40)
    assert set(learned.overlap) == {"keys"}


def test_disjoint_and_equal_draws():
    x = np.arange(100.0)
    assert results.prior_against_posterior({"a": x}, {"a": x[None]}).overlap["a"] == 1.0
    assert results.prior_against_posterior({"a": x}, {"a": x[None] + 1000}).overlap["a"] == 0.0


# -- sensitivity -------------------------------------------------------------------------------------------------------------

PRIOR_MEAN, PRIOR_PRECISION, DATA = -1.0, 0.5, np.array([1.0, 2.0, 0.5, 3.0])


def exact(prior_power, likelihood_power):
    """Mean and sd of θ ~ N(m, 1/τ), y ~ N(θ, 1), with both factors raised to powers: again a normal."""
    precision = prior_power * PRIOR_PRECISION + likelihood_power * len(DATA)
    mean = (prior_power * PRIOR_PRECISION * PRIOR_MEAN + likelihood_power * DATA.sum()) / precision
    return np.array([mean, precision**-0.5])


def conjugate(chains=40, draws=1000, seed=0):
    mean, sd = exact(1, 1)
    theta = np.random.default_rng(seed).normal(mean, sd, (chains, draws))
    log_prior = scipy.stats.norm(PRIOR_MEAN, PRIOR_PRECISION**-0.5).logpdf(theta)
    return theta, log_prior, scipy.stats.norm(theta[..., None], 1).logpdf(DATA).sum(-1)


@pytest.mark.parametrize("scaling", [1.05, 1.25, 1.5])
def test_a_conjugate_posterior_under_powers_of_its_factors(scaling):
    """Forty estimates from independent chains: the error of their mean is read off their spread."""
    theta, log_prior, log_likelihood = conjugate()
    chains = [
        results.prior_sensitivity({"theta": theta[i : i + 1]}, log_prior[i : i + 1], log_likelihood[i : i + 1], scaling=scaling)
        for i in range(len(theta))
    ]  # fmt: skip
    steps = 2 * np.log2(scaling)
    expected = {
        "prior": (exact(scaling, 1) - exact(1 / scaling, 1)) / steps,
        "likelihood": (exact(1, scaling) - exact(1, 1 / scaling)) / steps,
    }
    for part, (mean, sd) in expected.items():
        for moment, value in (("mean", mean), ("sd", sd)):
            found = np.array([getattr(chain, moment)[part]["theta"] for chain in chains])
            error = found.std(ddof=1) / len(found) ** 0.5
            # smoothing shortens the tail of 1000 weights: a bias below a tenth of the spread of one estimate
            assert abs(found.mean() - value) < SIGMAS * error + 0.1 * found.std(ddof=1), (part, moment)
            assert abs(value) > 10 * error  # the test could tell the value from none


def test_small_scalings_approach_the_derivative_on_paper():
    """d mean / d log2 a at a = 1 is log 2 · τ n (m - mean(y)) / (τ + n)², from the exact posterior."""
    n = len(DATA)
    slope = np.log(2) * PRIOR_PRECISION * n * (PRIOR_MEAN - DATA.mean()) / (PRIOR_PRECISION + n) ** 2
    theta, log_prior, log_likelihood = conjugate(draws=5000)
    found = results.prior_sensitivity({"theta": theta}, log_prior, log_likelihood, scaling=1.01)
    # a covariance of 200,000 draws: 1/sqrt(n) of the product of the sds of θ and of its log prior, 5 sd
    noise = SIGMAS * np.log(2) * theta.std() * log_prior.std() * 2**0.5 / theta.size**0.5
    assert abs(found.mean["prior"]["theta"] - slope) < noise < abs(slope) / 10


def test_parameters_have_shapes_and_parts_do_not_mix():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4, 2000, 2, 3))
    found = results.prior_sensitivity({"x": x, "y": x[..., 0, 0]}, -0.5 * (x**2).sum((-1, -2)), np.zeros((4, 2000)))
    assert found.mean["prior"]["x"].shape == (2, 3) and found.mean["prior"]["y"].shape == ()
    assert not found.mean["likelihood"]["x"].any() and not found.sd["likelihood"]["x"].any()
    # here the posterior is the prior N(0, 1): its sd is a^(-1/2), and the change per doubling -log(2)/2
    np.testing.assert_allclose(found.sd["prior"]["x"], -np.log(2) / 2, atol=5 * 0.5 * (6 / 8000) ** 0.5)
    np.testing.assert_allclose(found.sd["prior"]["y"], found.sd["prior"]["x"][0, 0])
    assert found.pareto_k["likelihood"] == -np.inf


def test_a_prior_that_the_draws_do_not_cover_is_said():
    theta, log_prior, log_likelihood = conjugate(4, 500)
    with pytest.warns(UserWarning, match="Pareto k of the prior is .* do not believe its sensitivities"):
        found = results.prior_sensitivity({"theta": theta}, 200 * log_prior, log_likelihood)
    assert found.pareto_k["prior"] > 0.7 > found.pareto_k["likelihood"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, d: results.prior_sensitivity({"a": x}, d, d, scaling=1.0), "scaling must be above 1, not 1.0"),
        (lambda x, d: results.prior_sensitivity({"a": x}, d[0], d), r"log_prior must be finite of shape \(chain, draw\)"),
        (lambda x, d: results.prior_sensitivity({"a": x}, d, d[:, :9]), "log_likelihood must be finite"),
        (lambda x, d: results.prior_sensitivity({"a": x}, d, d - np.inf), "log_likelihood must be finite"),
        (lambda x, d: results.prior_sensitivity({"a": x[:, :30]}, d, d), r"draws of a begin \(2, 30\)"),
        (lambda x, d: results.prior_sensitivity({"a": x[0]}, d, d), "draws of a must be finite"),
        (lambda x, d: results.prior_against_posterior({}, {"a": x}), "prior has no draws of a; it has none"),
        (lambda x, d: results.prior_against_posterior({"a": x}, {"a": x}), "prior of a has shape"),
        (lambda x, d: results.prior_predictive(lambda: None, num_draws=0, seed=0), "num_draws must be 1 or more"),
        (lambda x, d: results.prior_predictive(models.bayesian(models.GaussianMixture(torch.zeros(1, 1)), keys=models.FLAT), torch.zeros(1, 1), num_draws=1, seed=0), "a prior that cannot be drawn from"),
    ],
)  # fmt: skip
def test_errors_name_the_argument_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(np.random.default_rng(0).normal(size=(2, 50)), np.zeros((2, 50)))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_arrays_alone_need_no_torch():
    code = "import sys; from probtx_pyro import results; results.prior_sensitivity; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )
