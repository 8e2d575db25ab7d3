"""In-context denoising: the cases in which one attention step over clean tokens is the Bayes optimal denoiser, exactly.

A token x is drawn from a prior and seen as q = x + σ n, n ~ N(0, I). The denoiser with the least mean squared error is E[x | q], the
mean of ``p(x | q) ∝ p(x) exp(-|x|²/2σ²) exp(x'q/σ²)``: the prior, times a Gaussian, tilted by η = q/σ². So it is

- the mean of a `LogNormalizer` at q/σ², its base measure the prior times ``exp(-|x|²/2σ²)``;
- attention with precision 1/σ² (`GaussianMixture`, values = keys) where the prior sits on tokens;
- `Hopfield` retrieval with β = 1/σ², one step, where these have one norm, so that the factor is the same for all.

Smart, Bietti & Sengupta 2025, *In-context denoising with one-layer transformers*, arXiv 2502.05164. Oracles are numpy and scipy.
"""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import ive, logsumexp
from scipy.stats import multivariate_normal, ncx2
from strategies import generator
from tolerances import assert_equal
from torch.nn.functional import normalize

from probtx_pyro import models

SIGMA = 0.6
TEMPERATURES = (0.25, 4.0)  # wrong ones, as multiples of 1/σ²
SIGMAS = 5  # Monte Carlo errors that a result may be off; 6e-7 of correct ones are not within


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed))


def on_a_sphere(*shape, radius=1.0, seed=0):
    return radius * normalize(normal(*shape, seed=seed), dim=-1)


def attention(context, precision):
    return models.GaussianMixture(context, context, precision).expected_outputs


def array(x):
    return x.cpu().numpy()


def posterior_weights(query, tokens, log_weights=None):
    """``p(x = token | q)`` by Bayes' rule, query by query, in numpy."""
    prior, rows = 0.0 if log_weights is None else array(log_weights), []
    for q in array(query):
        log_joint = prior - ((q - array(tokens)) ** 2).sum(-1) / (2 * SIGMA**2)
        rows.append(np.exp(log_joint - logsumexp(log_joint)))
    return torch.tensor(np.array(rows))


def posterior_mean(query, tokens, log_weights=None):
    return posterior_weights(query, tokens, log_weights) @ tokens


def assert_mean(samples, truth):
    """The mean of independent samples within five of its standard errors."""
    error = float(samples.std()) / len(samples) ** 0.5
    assert abs(float(samples.mean()) - truth) < SIGMAS * error, (float(samples.mean()), truth, error)


def assert_beats(best, worse):
    """The first mean squared error is the lower one, by more than five standard errors of the paired difference."""
    difference = worse - best
    assert float(difference.mean()) > SIGMAS * float(difference.std()) / len(difference) ** 0.5


# -- (a) the prior is the empirical distribution of the context ---------------------------------------------------------------


def test_tokens_of_one_norm_hopfield_retrieval_is_the_posterior_mean():
    context, query = on_a_sphere(7, 4, radius=1.5), normal(5, 4, seed=1)
    found = models.Hopfield(context, SIGMA**-2).retrieve(query)
    assert (found - posterior_mean(query, context)).abs().max() < 1e-12
    assert_equal(found, attention(context, SIGMA**-2)(query), operations=256)


def test_tokens_of_several_norms_need_the_gaussian_prior_not_the_linked_one():
    """Hopfield's own prior ``∝ exp(|x|²/2σ²)`` favours long tokens; the tilted base measure takes it out again."""
    context, query = normal(7, 4), normal(5, 4, seed=1)
    expected = posterior_mean(query, context)
    assert (attention(context, SIGMA**-2)(query) - expected).abs().max() < 1e-12
    base = models.LogNormalizer(context, log_weights=-context.square().sum(-1) / (2 * SIGMA**2))
    assert (base.mean(query / SIGMA**2) - expected).abs().max() < 1e-12
    retrieved = models.Hopfield(context, SIGMA**-2).retrieve(query)
    assert (retrieved - expected).norm(dim=-1).max() > 0.1
    favoured = posterior_mean(query, context, context.square().sum(-1) / (2 * SIGMA**2))
    assert (retrieved - favoured).abs().max() < 1e-12


def test_the_covariance_of_the_tilted_measure_is_what_remains_unknown():
    """E|x - E[x|q]|² given q is the trace of ``∇² log Z(q/σ²)``: the denoiser comes with its own error bar."""
    context, query = on_a_sphere(7, 4, radius=1.5), normal(5, 4, seed=1)
    left = (context - posterior_mean(query, context).unsqueeze(-2)).square().sum(-1)
    spread = (posterior_weights(query, context) * left).sum(-1)
    found = models.LogNormalizer(context).covariance(query / SIGMA**2).diagonal(dim1=-2, dim2=-1).sum(-1)
    assert_equal(found, spread, operations=256)


# -- (b) the prior is Gaussian on a subspace ---------------------------------------------------------------------------------


def subspace(spread=1.3, features=5, dimension=2):
    basis = torch.linalg.qr(normal(features, dimension, seed=2)).Q
    covariance = spread**2 * array(basis @ basis.T)
    return basis, covariance, spread


def shrinkage(query, covariance):
    """``Σ (Σ + σ²I)⁻¹ q``, the mean of one Gaussian vector given another."""
    return torch.tensor(array(query) @ np.linalg.solve(covariance + SIGMA**2 * np.eye(len(covariance)), covariance))


def test_gaussian_on_a_subspace_the_tilted_mean_is_shrinkage():
    basis, covariance, spread = subspace()
    query = normal(6, 5, seed=3)
    base = models.LogNormalizer(torch.zeros(1, 2), variance=1 / (spread**-2 + SIGMA**-2))  # coordinates of the subspace
    assert_equal(base.mean(query @ basis / SIGMA**2) @ basis.T, shrinkage(query, covariance), operations=256)
    root = 0.5 * normal(5, 5, seed=4)  # and of any Gaussian, with its mean
    full, center = root @ root.T + 0.1 * torch.eye(5), normal(5, seed=5)
    inside = torch.linalg.inv(torch.linalg.inv(full) + torch.eye(5) / SIGMA**2)
    base = models.LogNormalizer((inside @ torch.linalg.solve(full, center))[None], inside)
    expected = center + shrinkage(query - center, array(full))
    assert_equal(base.mean(query / SIGMA**2), expected, operations=1024)


def test_linear_attention_over_the_context_converges_to_shrinkage():
    """``Σ_j x_j x_j'q / (L (s² + σ²))`` has the covariance of attention at η = 0 in it, and attention at small β is linear.

    Its error has variance ``s⁴ (|Pq|² (d + 1) / L) / (s² + σ²)²`` for a Gaussian context (the fourth moments of ``x x'q``).
    """
    basis, covariance, spread = subspace()
    query, seeds = normal(1, 5, seed=3), 400
    expected = shrinkage(query, covariance)
    for length in (100, 1600):
        contexts = spread * normal(seeds, length, 2, seed=length) @ basis.T
        both = torch.cat([contexts, -contexts], -2)  # mean zero, as the prior's
        second = models.LogNormalizer(both).covariance(torch.zeros(seeds, 1, 5)).squeeze(1)
        linear = query @ second / (spread**2 + SIGMA**2)
        by_hand = contexts.mT @ (contexts @ query.squeeze(0)).unsqueeze(-1) / length / (spread**2 + SIGMA**2)
        assert_equal(linear, by_hand.mT, operations=256)
        cold = models.Hopfield(both, 1e-6).retrieve(query.expand(seeds, 1, 5)) / 1e-6
        # what is left out is of order β² |x|⁴ |q|³, 1e-12 times at most 1e4; rounding of |x| is divided by β: 1e-15 times 1e6
        torch.testing.assert_close(cold, query @ second, rtol=0, atol=1e-8)
        size = float((query @ basis).square().sum())
        variance = spread**4 * size * (2 + 1) / length / (spread**2 + SIGMA**2) ** 2
        assert_mean((linear - expected).square().sum((-1, -2)), variance)


# -- (c) the prior is uniform on a sphere ------------------------------------------------------------------------------------


def resultant(kappa, dimension):
    """``A_D(κ) = I_{D/2}(κ) / I_{D/2-1}(κ)``: the length of the mean of a von Mises-Fisher distribution."""
    return ive(dimension / 2, kappa) / ive(dimension / 2 - 1, kappa)


def log_bessel(kappa, dimension):
    """``log E[exp(κ x'u)]`` over the unit sphere: ``Γ(D/2) (2/κ)^(D/2-1) I_{D/2-1}(κ)``."""
    order = dimension / 2 - 1
    return math.lgamma(order + 1) + order * math.log(2 / kappa) + math.log(ive(order, kappa)) + kappa


def sphere_mean(query, radius, sigma=SIGMA):
    length = query.norm(dim=-1, keepdim=True)
    kappa = radius * array(length) / sigma**2
    return radius * torch.tensor(resultant(kappa, query.shape[-1])) * query / length


@pytest.mark.parametrize("dimension", [2, 3, 8])
def test_the_closed_form_on_the_sphere_is_a_posterior_mean(dimension):
    """The oracle itself, against quadrature over the angle: its density on the sphere is ``sin(t)^(D-2)``."""
    query, radius = normal(1, dimension, seed=6), 1.4
    kappa = radius * float(query.norm()) / SIGMA**2

    def integral(power):
        return quad(
            lambda t: math.cos(t) ** power * math.exp(kappa * (math.cos(t) - 1)) * math.sin(t) ** (dimension - 2),
            0,
            math.pi,
        )[0]

    expected = radius * integral(1) / integral(0) * query / query.norm()
    torch.testing.assert_close(
        sphere_mean(query, radius), expected, rtol=0, atol=1e-7
    )  # quad's default tolerance is 1.5e-8


@pytest.mark.parametrize("dimension", [3, 6])
def test_attention_over_points_of_the_sphere_errs_like_one_over_the_root_of_their_number(dimension):
    """Attention over L draws x of the prior is the ratio of two means, of ``w x`` and of ``w = exp(x'q/σ²)``.

    To first order in 1/L its error has the variance ``V/L``, ``V = E[w² |x - m|²] / E[w]²`` (delta method): here, as w² is a
    second tilt, ``V = Z(2κ)/Z(κ)² R² (1 - 2 A(2κ) A(κ) + A(κ)²)``, which in three dimensions is R² whatever κ. The next term
    is c/L of it, c about 6 (in three dimensions the ratio was 1.088 at L = 64 and 1.029 at 256, over 20,000 and 10,000
    contexts): half a standard error at L = 256, less from there on. The slope of log error over log L has a standard error of
    ``(1/2) r / sqrt(Σ (l - mean l)²)`` at most, r the largest relative standard error of the mean squares.
    """
    radius, seeds, sigma = 1.0, 300, 0.7
    query = normal(1, dimension, seed=6)
    exact = sphere_mean(query, radius, sigma)
    kappa = radius * float(query.norm()) / sigma**2
    once, twice = resultant(kappa, dimension), resultant(2 * kappa, dimension)
    ratio = math.exp(log_bessel(2 * kappa, dimension) - 2 * log_bessel(kappa, dimension))
    per_point = ratio * radius**2 * (1 - 2 * twice * once + once**2)
    assert (abs(per_point - radius**2) < 1e-12) == (dimension == 3)
    lengths, squares, errors = (256, 1024, 4096), [], []
    for length in lengths:
        memory = models.Hopfield(on_a_sphere(seeds, length, dimension, radius=radius, seed=length), sigma**-2)
        square = (memory.retrieve(query.expand(seeds, 1, dimension)) - exact).square().sum((-1, -2))
        squares.append(float(square.mean()))
        errors.append(float(square.std() / square.mean()) / seeds**0.5)
        assert abs(squares[-1] * length / per_point - 1) < SIGMAS * errors[-1]
    place = np.log(lengths) - np.log(lengths).mean()
    slope = float(place @ (0.5 * np.log(squares)) / (place @ place))
    assert abs(slope + 0.5) < SIGMAS * 0.5 * max(errors) / float(place @ place) ** 0.5


# -- (d) the prior is a mixture of clusters ----------------------------------------------------------------------------------


def clusters(count=4, features=3, seed=7):
    root = 0.4 * normal(count, features, features, seed=seed)
    covariance = root @ root.mT + 0.05 * torch.eye(features)
    return normal(count, features, seed=seed + 1), covariance, normal(count, seed=seed + 2).log_softmax(-1)


def cluster_mean(query, centers, covariance, log_weights):
    """Each cluster's shrinkage, weighted by the cluster's probability given the query."""
    noise = SIGMA**2 * np.eye(centers.shape[-1])
    pairs = list(zip(array(centers), array(covariance), array(log_weights), strict=True))
    rows = []
    for q in array(query):
        log_joint = np.array([w + multivariate_normal(m, s + noise).logpdf(q) for m, s, w in pairs])
        shrunk = np.array([m + s @ np.linalg.solve(s + noise, q - m) for m, s, _ in pairs])
        rows.append(np.exp(log_joint - logsumexp(log_joint)) @ shrunk)
    return torch.tensor(np.array(rows))


def tilted(centers, covariance, log_weights):
    """The mixture times ``exp(-|x|²/2σ²)`` as a base measure: products of Gaussians, with the weights that they leave."""
    eye = torch.eye(centers.shape[-1])
    inside = torch.linalg.inv(torch.linalg.inv(covariance) + eye / SIGMA**2)
    places = (inside @ torch.linalg.solve(covariance, centers.unsqueeze(-1))).squeeze(-1)
    left = torch.linalg.solve(covariance + SIGMA**2 * eye, centers.unsqueeze(-1)).squeeze(-1)
    shrunk = torch.linalg.slogdet(eye + covariance / SIGMA**2).logabsdet
    return models.LogNormalizer(places, inside, log_weights - 0.5 * shrunk - 0.5 * (centers * left).sum(-1))


def test_clusters_with_covariances_of_their_own():
    centers, covariance, log_weights = clusters()
    query = normal(6, 3, seed=1)
    found = tilted(centers, covariance, log_weights).mean(query / SIGMA**2)
    # inverses of covariances of condition 1e2 or less, on each side
    assert_equal(found, cluster_mean(query, centers, covariance, log_weights), torch.tensor(100.0), operations=256)


def test_round_clusters_of_one_size_are_attention_over_the_centres_and_a_residual():
    """``(s² q + σ² attention(q)) / (s² + σ²)``, precision 1/(s² + σ²): a gradient step of size ``σ²/(s² + σ²)`` on the energy."""
    centers, _, log_weights = clusters()
    query, size = normal(6, 3, seed=1), 0.3**2
    expected = cluster_mean(query, centers, size * torch.eye(3).expand(4, 3, 3), log_weights)
    step = SIGMA**2 / (size + SIGMA**2)
    mixture = models.GaussianMixture(centers, centers, 1 / (size + SIGMA**2), log_prior=log_weights[None])
    assert_equal((1 - step) * query + step * mixture.expected_outputs(query), expected, operations=256)
    equal = on_a_sphere(4, 3, seed=8)
    memory = models.Hopfield(equal, 1 / (size + SIGMA**2))
    expected = cluster_mean(query, equal, size * torch.eye(3).expand(4, 3, 3), torch.zeros(4))
    slope = torch.autograd.functional.jacobian(lambda s: memory.energy(s).sum(), query)
    assert_equal(query - step * slope, expected, operations=256)


def test_clusters_without_size_are_attention_over_the_centres():
    centers, _, log_weights = clusters()
    query = normal(6, 3, seed=1)
    attended = models.GaussianMixture(centers, centers, SIGMA**-2, log_prior=log_weights[None]).expected_outputs(query)
    assert_equal(attended, posterior_mean(query, centers, log_weights), operations=256)
    near = tilted(centers, 1e-8 * torch.eye(3).expand(4, 3, 3), log_weights).mean(query / SIGMA**2)
    # variance v moves a mean by v/σ² |q - m| and a log weight by v |q - m|²/2σ⁴: v = 1e-8 times at most 200, times distances of 5
    torch.testing.assert_close(near, attended, rtol=0, atol=1e-5)
    counts = torch.tensor([3, 1, 5, 2])  # a context that repeats the centres says the same as weights
    context = centers.repeat_interleave(counts, 0)
    repeated = models.GaussianMixture(centers, centers, SIGMA**-2, log_prior=(counts / 11).log()[None])
    assert_equal(attention(context, SIGMA**-2)(query), repeated.expected_outputs(query), operations=256)


# -- risks: the mean squared error of one step ---------------------------------------------------------------------------------


def squared(found, truth):
    return (found - truth).square().sum(-1)


def test_two_opposite_tokens_reach_the_least_error_and_other_temperatures_do_not():
    """x = ±r e: E[x|q] = r tanh(r q'e/σ²) e, and the least mean squared error is ``r² (1 - E tanh²(r²/σ² + r n/σ))``, n ~ N(0, 1)."""
    radius, draws = 0.8, 40_000
    context = radius * torch.stack([on_a_sphere(3, seed=9), -on_a_sphere(3, seed=9)])
    truth = context[torch.randint(2, (draws,), generator=generator(10))]
    query = truth + SIGMA * normal(draws, 3, seed=11)

    def density(n):
        return math.tanh((radius / SIGMA) ** 2 + radius / SIGMA * n) ** 2 * math.exp(-(n**2) / 2) / (2 * math.pi) ** 0.5

    least = radius**2 * (1 - quad(density, -10, 10)[0])
    errors = squared(models.Hopfield(context, SIGMA**-2).retrieve(query), truth)
    assert_mean(errors, least)
    for wrong in TEMPERATURES:
        assert_beats(errors, squared(models.Hopfield(context, wrong / SIGMA**2).retrieve(query), truth))
    settled = models.Hopfield(context, SIGMA**-2).retrieve(query, num_steps=50)
    assert_beats(errors, squared(settled, truth))  # one step is the posterior mean, retrieval to the end is not


def test_many_tokens_the_error_is_the_variance_that_the_posterior_keeps():
    """``E|x - m|² = E|x|² - E|m|²`` holds of the posterior mean m, as error and estimate are uncorrelated; not of others."""
    draws = 20_000
    context = normal(12, 3, seed=12)
    truth = context[torch.randint(12, (draws,), generator=generator(13))]
    query = truth + SIGMA * normal(draws, 3, seed=14)
    found = attention(context, SIGMA**-2)(query)
    errors = squared(found, truth)
    assert_mean(((truth - found) * found).sum(-1), 0.0)
    for wrong in TEMPERATURES:
        other = attention(context, wrong / SIGMA**2)(query)
        assert_beats(errors, squared(other, truth))
        correlation = ((truth - other) * other).sum(-1)
        assert abs(float(correlation.mean())) > SIGMAS * float(correlation.std()) / draws**0.5
    assert_beats(errors, squared(models.Hopfield(context, SIGMA**-2).retrieve(query), truth))  # norms differ
    nearest = context[torch.cdist(query, context).argmin(-1)]
    assert_beats(errors, squared(nearest, truth))  # nor is it best to retrieve one token for certain


def test_gaussian_subspace_reaches_the_least_error():
    """``d s²σ²/(s² + σ²)``."""
    basis, _, spread = subspace()
    draws = 40_000
    truth = spread * normal(draws, 2, seed=15) @ basis.T
    query = truth + SIGMA * normal(draws, 5, seed=16)

    def denoised(factor):
        sigma = SIGMA * factor**-0.5
        base = models.LogNormalizer(torch.zeros(1, 2), variance=1 / (spread**-2 + sigma**-2))
        return squared(base.mean(query @ basis / sigma**2) @ basis.T, truth)

    assert_mean(denoised(1.0), 2 * (spread * SIGMA) ** 2 / (spread**2 + SIGMA**2))
    for wrong in TEMPERATURES:
        assert_beats(denoised(1.0), denoised(wrong))


def test_points_of_a_sphere_come_within_their_own_sampling_error_of_the_least():
    """Least: ``R² (1 - E A(κ)²)``, |q|²/σ² noncentral χ² with D degrees and R²/σ². L points add V/L, V = R² (above)."""
    dimension, radius, draws, points = 3, 1.0, 3_000, 6_000
    context = on_a_sphere(points, dimension, radius=radius, seed=17)
    truth = on_a_sphere(draws, dimension, radius=radius, seed=18)
    query = truth + SIGMA * normal(draws, dimension, seed=19)
    lengths = ncx2(dimension, (radius / SIGMA) ** 2)
    kept = quad(lambda x: resultant(radius * x**0.5 / SIGMA, dimension) ** 2 * lengths.pdf(x), 0, 100)[0]
    least = radius**2 * (1 - kept)
    errors = squared(attention(context, SIGMA**-2)(query), truth)
    assert radius**2 / points < 0.05 * float(errors.std()) / draws**0.5  # lost in the error of the mean
    assert_mean(errors, least)
    assert_mean(squared(sphere_mean(query, radius), truth), least)
    for wrong in TEMPERATURES:
        assert_beats(errors, squared(attention(context, wrong / SIGMA**2)(query), truth))
