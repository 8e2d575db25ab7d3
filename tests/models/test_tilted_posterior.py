"""Posteriors of a log normaliser given queries and points: quadrature, SciPy, exact posteriors, calibration."""

import functools
import math

import arviz
import numpy as np
import pytest
import torch
from formulations import log_normalizer
from pyro.distributions import Gamma, Normal
from pyro.infer import TraceEnum_ELBO
from scipy import stats
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import inference, models, results

N, Q = 4, 3
DENSE = ["shared", "each", "diagonal", "scalar", "scalar each"]


def measure(kind):
    base, eta, _ = log_normalizer(generator(0), queries=Q, features=2, kind="diagonal" if "scalar" in kind else kind)
    if "scalar" not in kind:
        return base, eta
    return base.replace(variance=torch.tensor([[0.4], [0.7], [0.3], [0.5]])[: 1 if kind == "scalar" else N]), eta


@pytest.mark.parametrize("kind", DENSE)
def test_the_density_of_points_integrates_to_one_and_has_the_tilted_mean(kind):
    base, eta = measure(kind)
    side = torch.linspace(-12, 12, 241)
    x = torch.cartesian_prod(side, side)
    for i in range(Q):
        mass = base.log_evidence(eta[i].expand(len(x), 2), x).exp() * (side[1] - side[0]) ** 2
        # a sum over a grid of steps of a quarter of the narrowest sd (0.42), beyond all tails, is exact to rounding
        torch.testing.assert_close(mass.sum(), torch.tensor(1.0), rtol=0, atol=1e-9)
        torch.testing.assert_close(mass @ x, base.mean(eta)[i], rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", DENSE)
def test_what_is_not_normalised_has_z_times_the_density_as_its_evidence(kind):
    base, eta = measure(kind)
    points = torch.randn(Q, 2, generator=generator(5))
    elbo = -TraceEnum_ELBO(max_plate_nesting=1).loss(base.unnormalized, base.guide, eta, points)
    both = base.log_normalizer(eta) + base.log_evidence(eta, points)
    assert_equal(torch.tensor(elbo), both.sum(), operations=1024)


def test_evidence_of_a_point_about_its_location_does_not_depend_on_the_query():
    base, eta = measure("each")
    points = torch.randn(Q, 2, generator=generator(5))
    assert_equal(base.attention(eta, points), base.attention(torch.zeros_like(eta), points), operations=1024)


def test_one_gaussian_has_the_conjugate_posterior_of_its_mean():
    """``x - Ση ~ N(μ, Σ)``: the exact posterior of μ under a Normal prior is Normal, by one solve."""
    base, _ = measure("shared")
    one = models.LogNormalizer(base.locations[:1], base.base_covariance)
    eta, points = (torch.randn(9, 2, generator=generator(i)) for i in (6, 7))
    inverse = torch.linalg.inv(base.base_covariance)
    precision = torch.eye(2) / 4 + 9 * inverse
    pull = (inverse @ (points - eta @ base.base_covariance).T).sum(-1)
    expected = torch.linalg.solve(precision, pull)
    posterior = models.bayesian(one, locations=Normal(0.0, 2.0))
    with pytest.warns(UserWarning, match="gradient MAP"):
        fit = inference.adapt(posterior, eta, points, num_steps=100, tol=1e-12)
    # an objective within 1e-12 of its maximum of a curvature of 2 or more: no further than sqrt(1e-12) from its place
    torch.testing.assert_close(fit.formulation.locations[0], expected, rtol=0, atol=1e-6)
    x = torch.tensor([[0.3, -0.2]])
    moved = one.with_parameters({"locations": torch.stack([expected, x[0]]).unsqueeze(-2)})  # two values at once
    gap = moved.log_evidence(eta, points).sum(-1) - one.log_evidence(eta, points).sum(-1)
    by_hand = [
        stats.multivariate_normal(m, base.base_covariance).logpdf(points - eta @ base.base_covariance).sum()
        for m in (expected, x[0], base.locations[0])
    ]
    assert_equal(gap, torch.tensor(by_hand[:2]) - by_hand[2], torch.tensor(by_hand), operations=1024)


ETA = torch.tensor([[-1.5], [-1.0], [-0.5], [0.0], [0.0], [0.5], [1.0], [1.5], [0.2], [-0.7], [1.2], [0.4]]).double()
POINTS = torch.tensor(
    [[-2.9], [-2.4], [-1.1], [1.2], [-1.6], [1.4], [2.6], [3.1], [0.9], [-2.2], [2.4], [1.3]]
).double()
PLACES = torch.tensor([[-1.0], [1.0]]).double()
LINE = models.LogNormalizer(PLACES, variance=0.5, log_weights=torch.tensor([0.0, 0.4]).double())
PRIORS = {"locations": Normal(PLACES, 0.8), "variance": Gamma(4.0, 6.0)}


def on_a_grid(normalised=True):
    """Posterior means of both locations and of the variance, by sums over a grid of SciPy's densities."""
    side, spread = np.linspace(-4.5, 4.5, 91), np.linspace(0.05, 3.0, 60)
    a, b, v = np.meshgrid(side, side, spread, indexing="ij")
    log = stats.norm(-1, 0.8).logpdf(a) + stats.norm(1, 0.8).logpdf(b) + stats.gamma(4, scale=1 / 6).logpdf(v)
    weights = np.array([1.0, math.exp(0.4)]) / (1 + math.exp(0.4))
    for e, x in zip(ETA[:, 0].tolist(), POINTS[:, 0].tolist(), strict=True):
        h = sum(w * stats.norm.pdf(x, m, np.sqrt(v)) for w, m in zip(weights, (a, b), strict=True))
        z = sum(w * np.exp(m * e + 0.5 * e * e * v) for w, m in zip(weights, (a, b), strict=True))
        log += np.log(h) + x * e - (np.log(z) if normalised else 0.0)
    mass = np.exp(log - log.max())
    return [float((mass * q).sum() / mass.sum()) for q in (a, b, v)]


@pytest.mark.slow
def test_nuts_is_quadrature_and_a_density_without_its_normaliser_is_not():
    options = {"num_samples": 100, "num_chains": 40, "num_warmup": 200, "seed": 0}
    draws = inference.nuts(models.bayesian(LINE, **PRIORS), ETA, POINTS, **options)
    assert not draws.statistics["diverging"].any()
    found = [*draws.samples["locations"].squeeze(-1).unbind(-1), draws.samples["variance"][..., 0, 0]]

    def distances(expected):
        return [abs(float(x.mean()) - e) / float(arviz.mcse(x.numpy())) for x, e in zip(found, expected, strict=True)]

    # standard errors; a finer and wider grid moves the means by less than 1e-6 of the posterior sd
    assert max(distances(on_a_grid())) < 5
    assert max(distances(on_a_grid(normalised=False))) > 10


@pytest.mark.slow
def test_nuts_is_calibrated_with_a_diagonal_variance():
    locations = torch.tensor([[-2.0, 0.0], [2.0, 0.5]])
    base = models.LogNormalizer(locations, variance=torch.full((2, 2), 0.5), log_weights=torch.zeros(2))
    posterior = models.bayesian(
        base, locations=Normal(locations, 0.5), variance=Gamma(5.0, 10.0), log_weights=Normal(0.0, 0.7)
    )
    eta = 0.7 * torch.randn(12, 2, generator=generator(8))
    sampler = functools.partial(
        inference.nuts, num_chains=4, num_samples=20, num_warmup=150, start="prior", progress=False
    )
    found = results.calibrate(
        posterior, eta, (12, 2), sampler=sampler, num_simulations=200, num_draws=19, seed=0, batch_size=200, progress=False
    )  # fmt: skip
    assert found.ranks.keys() == {"locations", "variance", "log_weights", "log_likelihood"}
    assert found.ok(), str(found)


def test_a_prediction_weights_draws_by_the_density_of_new_points_alone():
    """Attention by a ratio of means, the mean point and its density at a new query by plain means."""
    g = generator(9)
    samples = {"locations": LINE.locations + 0.5 * torch.randn(2, 30, 2, 1, generator=g)}
    posterior = models.bayesian(LINE, locations=PRIORS["locations"])
    arguments = posterior.bind(ETA, POINTS)
    draws = inference.Draws(samples, {"lp": torch.zeros(2, 30)}, posterior, arguments, "NUTS", {})
    eta, x = torch.tensor([[0.3], [-2.0]]), torch.tensor([[0.7], [-1.0]])
    each = [LINE.with_parameters({"locations": m}) for m in samples["locations"].flatten(0, 1)]
    density = torch.stack([at.log_evidence(eta, x).exp() for at in each])
    attention = torch.stack([at.attention(eta, x) for at in each])
    said = results.predict(draws, eta, x, relabel=False)
    expected = (density.unsqueeze(-1) * attention).mean(0) / density.mean(0).unsqueeze(-1)
    assert_equal(said.attention, expected, operations=256)
    assert (attention.mean(0) - expected).abs().max() > 1e-3  # what a wrong formula would say
    assert_equal(said.log_evidence, density.mean(0).log(), operations=256)
    asked = results.predict(draws, eta, relabel=False)
    assert_equal(asked.expected_outputs, torch.stack([at.mean(eta) for at in each]).mean(0), operations=256)
    assert_equal(asked.attention, torch.stack([at.weights(eta) for at in each]).mean(0), operations=256)
    assert_equal(asked.output_distribution.log_prob(x), said.log_evidence, operations=256)
    with pytest.raises(ValueError, match=r"points are None.*give points"):
        _ = asked.log_evidence


POSTERIOR = models.bayesian(LINE, locations=PRIORS["locations"])
MASKED = LINE.replace(log_weights=torch.tensor([0.0, -math.inf]).double())
REFUSED = {
    "no points": (lambda: inference.nuts(POSTERIOR, ETA, seed=0), r"points are None.*give points"),
    "no points to adapt to": (lambda: inference.adapt(POSTERIOR, ETA), r"points are None.*give points"),
    "fewer points": (lambda: LINE.log_evidence(ETA, POINTS[:3]), "eta have 12 rows but points have 3"),
    "points of another width": (lambda: LINE.log_evidence(ETA, POINTS.expand(12, 2)), "points have 2 coordinates but locations have 1"),
    "points with NaN": (lambda: LINE.model(ETA, POINTS * math.nan), "points contains NaN"),
    "points of another dtype": (lambda: LINE.log_evidence(ETA, POINTS.float()), "differ in dtype: points torch.float32"),
    "queries to draw": (lambda: POSTERIOR(None, num_queries=7), "eta: a LogNormalizer is conditional on eta; give eta"),
    "a number of queries": (lambda: POSTERIOR(ETA, num_queries=7), "leave num_queries out"),
    "shapes of what is given": (
        lambda: results.calibrate(POSTERIOR, (12, 1), (12, 1), sampler=inference.nuts, num_simulations=1, seed=0),
        r"eta: only shape \(12, 1\) is given, but the model is conditional on it; give the tensor",
    ),
    "a prior on masked weights": (lambda: models.bayesian(MASKED, log_weights=Normal(0.0, 1.0)), "some of log_weights are -inf, a mask"),
    "a flat covariance": (
        lambda: models.bayesian(measure("each")[0], covariance=models.FLAT), r"unbounded in covariance, so give it Wishart\(D \+ 1",
    ),
    "a covariance without axes": (lambda: models.LogNormalizer(torch.zeros(2, 1), torch.ones(1)), "covariance must have shape"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:no closed-form update")
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_one_clear_error(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_measure_keeps_its_covariances_where_its_locations_gain_an_axis():
    base, eta = measure("each")
    both = base.replace(locations=torch.stack([base.locations, base.locations + 1.0]))
    assert both.batch_shape == (2,) and both.base_covariance.shape == (1, N, 2, 2)
    assert_equal(both.mean(eta)[0], base.mean(eta))


def test_draws_become_labelled_data_with_new_points():
    draws = inference.nuts(POSTERIOR, ETA, POINTS, num_samples=10, num_warmup=10, num_chains=2, seed=0)
    data = results.to_inference_data(draws, seed=1, prior=3)
    assert data["log_likelihood"]["points"].dims == ("chain", "draw", "query")
    assert data["posterior_predictive"]["points"].dims == ("chain", "draw", "query", "feature")
    assert data["prior_predictive"]["points"].shape == (1, 3, 12, 1)
    assert set(data["constant_data"].data_vars) >= {"eta", "variance", "log_weights"}
    assert set(data["observed_data"].data_vars) == {"points"}
    alone = results.to_inference_data(LINE, ETA)["point_estimate"]
    assert "log_evidence" not in alone and alone["attention"].shape == (12, 2)
