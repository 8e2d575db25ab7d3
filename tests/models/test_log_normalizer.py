"""Log normalisers against quadrature, sums by hand, autograd of themselves, and the Pyro programs."""

import math

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive, TraceEnum_ELBO
from strategies import generator
from tolerances import assert_equal
from torch.nn.functional import scaled_dot_product_attention

from probtx_pyro import models

N, D, Q = 4, 2, 3
KINDS = ("points", "shared", "each", "diagonal", "diagonal each", "scalar", "scalar each")


def measure(kind, weighted=True, seed=0, features=D):
    g = generator(seed)
    locations = torch.randn(N, features, generator=g)
    root = 0.4 * torch.randn(N, features, features, generator=g)
    covariance = root @ root.mT + 0.2 * torch.eye(features)
    spread = {
        "points": {},
        "shared": {"covariance": covariance[0]},
        "each": {"covariance": covariance},
        "diagonal": {"variance": covariance[0].diagonal()[None]},
        "diagonal each": {"variance": covariance.diagonal(dim1=-2, dim2=-1)},
        "scalar": {"variance": 0.5},
        "scalar each": {"variance": torch.rand(N, 1, generator=g) + 0.2},
    }[kind]
    log_weights = torch.randn(N, generator=g) if weighted else None
    return models.LogNormalizer(locations, log_weights=log_weights, **spread), torch.randn(Q, features, generator=g)


def matrices(base):
    """Covariance of every location, (N, D, D); None of points."""
    features = base.locations.shape[-1]
    if base.base_covariance is not None:
        return base.base_covariance.expand(N, features, features)
    if base.variance is not None:
        return torch.diag_embed(base.variance.expand(N, features))
    return None


def by_quadrature(base, eta):
    """``∫ h(x) exp(x'η) dx`` and the first two moments under it, on a grid in the plane; sums where h sits on points."""
    spread = matrices(base)
    mass = torch.ones(N) if base.log_weights is None else base.log_weights.exp()
    mass = mass / N if base.log_weights is None and spread is not None else mass
    if spread is None:
        x, h = base.locations, mass
    else:
        side = torch.linspace(-14, 14, 281)
        x = torch.cartesian_prod(side, side)
        h = sum(
            m * dist.MultivariateNormal(c, s).log_prob(x).exp()
            for m, c, s in zip(mass, base.locations, spread, strict=True)
        )
        h = h * (side[1] - side[0]) ** 2
    weight = h * (x @ eta).exp()
    mean = (weight @ x) / weight.sum()
    centered = x - mean
    return weight.sum().log(), mean, (weight * centered.T) @ centered / weight.sum()


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_log_normalizer_mean_and_covariance_are_integrals(kind, weighted):
    base, eta = measure(kind, weighted)
    for i in range(Q):
        total, mean, covariance = by_quadrature(base, eta[i])
        # a sum over a fine grid that reaches beyond the tails converges faster than any power of its step
        torch.testing.assert_close(base.log_normalizer(eta)[i], total, rtol=0, atol=1e-9)
        torch.testing.assert_close(base.mean(eta)[i], mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(base.covariance(eta)[i], covariance, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_mean_and_covariance_are_gradient_and_hessian(kind):
    base, eta = measure(kind)
    eta.requires_grad_()
    (slope,) = torch.autograd.grad(base.log_normalizer(eta).sum(), eta)
    assert_equal(base.mean(eta).detach(), slope, operations=256)
    for i in range(Q):
        hessian = torch.autograd.functional.hessian(lambda e: base.log_normalizer(e[None]).sum(), eta[i].detach())
        assert_equal(base.covariance(eta)[i].detach(), hessian, operations=1024)
    assert torch.autograd.gradcheck(base.mean, eta) and torch.autograd.gradcheck(base.covariance, eta)


@pytest.mark.parametrize("kind", KINDS)
def test_the_program_has_z_as_its_evidence_and_attention_as_its_guide(kind):
    base, eta = measure(kind)
    loss = TraceEnum_ELBO(max_plate_nesting=1).loss
    total = base.log_normalizer(eta).sum()
    for seed in range(3):  # whatever x the guide draws: the gap is 0, not only in the mean
        torch.manual_seed(seed)
        assert_equal(
            torch.tensor(-loss(base.unnormalized, base.guide, eta)), total, torch.tensor(100.0), operations=1024
        )
    weights = torch.rand(Q, N, generator=generator(1)).softmax(-1)
    found = -loss(base.unnormalized, lambda e: base.guide(e, weights=weights), eta)
    assert_equal(torch.tensor(found), base.bound(eta, weights).sum(), torch.tensor(100.0), operations=1024)
    exact = base.weights(eta)
    gap = (weights * (weights.log() - exact.log())).sum(-1)
    assert_equal(base.log_normalizer(eta) - base.bound(eta, weights), gap, operations=256)
    assert_equal(base.bound(eta, exact), base.log_normalizer(eta), operations=256)


@pytest.mark.parametrize("kind", ["points", "shared", "each", "diagonal each"])
def test_draws_of_the_tilted_distribution_have_its_moments(kind):
    base, eta = measure(kind)
    draws = Predictive(base.guide, num_samples=20)(eta.expand(400, *eta.shape))["points"].flatten(0, 1)
    error = base.covariance(eta).diagonal(dim1=-2, dim2=-1).sqrt() / 8000**0.5
    assert ((draws.mean(0) - base.mean(eta)).abs() < 4.5 * error + 1e-12).all()
    # a covariance of 8,000 draws errs by about sqrt(2 / 8000) = 1.6 % of the largest variance; the bound is seven times that
    spread = torch.stack([torch.cov(draws[:, i].T) for i in range(Q)])
    torch.testing.assert_close(
        spread, base.covariance(eta), rtol=0, atol=0.12 * float(base.covariance(eta).abs().max())
    )


@pytest.mark.parametrize("kind", KINDS)
def test_entropy_and_conjugate_are_dual(kind):
    base, eta = measure(kind)
    dual = base.conjugate(base.mean(eta))
    assert dual.converged.all()
    # Newton's steps end below eps^(3/4) = 2e-12; the value errs by the square of what eta does, the mean by its first power
    torch.testing.assert_close(dual.value, -base.entropy(eta), rtol=0, atol=1e-9)
    other = torch.randn(Q, D, generator=generator(3))
    fenchel = base.log_normalizer(other) + dual.value - (other * base.mean(eta)).sum(-1)
    assert (fenchel >= -1e-9).all()  # Fenchel and Young, with equality at eta alone
    torch.testing.assert_close(base.mean(dual.eta), base.mean(eta), rtol=0, atol=1e-7)


def test_entropy_of_points_is_shannons_and_relative_to_a_distribution_minus_a_divergence():
    base, eta = measure("points", weighted=False)
    w = base.weights(eta)
    assert_equal(base.entropy(eta), -(w * w.log()).sum(-1))
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4])
    base = base.replace(log_weights=probabilities.log())
    w = base.weights(eta)
    assert_equal(base.entropy(eta), -(w * (w / probabilities).log()).sum(-1))


def test_a_mean_outside_the_hull_has_no_eta():
    base = models.LogNormalizer(torch.tensor([[0.0], [1.0]]))
    found = base.conjugate(torch.tensor([[0.5], [2.0]]))
    assert found.converged.tolist() == [True, False]
    assert float(found.value[0]) == pytest.approx(-math.log(2))


def test_points_are_softmax_attention_over_themselves():
    base, eta = measure("points", weighted=False, features=8)
    attention = scaled_dot_product_attention(eta[None], base.locations[None], base.locations[None], scale=1.0)[0]
    assert_equal(base.mean(eta), attention)
    assert_equal(base.log_normalizer(eta), (eta @ base.locations.T).logsumexp(-1))


def test_a_gaussian_is_a_linear_layer_with_a_residual():
    base, eta = measure("shared", weighted=False)
    one = models.LogNormalizer(base.locations[:1], base.base_covariance)
    assert_equal(one.mean(eta), base.locations[0] + eta @ base.base_covariance)
    assert_equal(one.covariance(eta), base.base_covariance.expand(Q, D, D))


@pytest.mark.parametrize("kind", KINDS)
def test_a_masked_location_is_an_absent_one_and_a_batch_its_singles(kind):
    base, eta = measure(kind)
    masked = base.replace(log_weights=base.log_weights.index_fill(0, torch.tensor([1]), -math.inf))
    keep = torch.tensor([0, 2, 3])
    spread = {}
    if base.base_covariance is not None:
        spread = {"covariance": base.base_covariance[keep] if base.each else base.base_covariance}
    elif base.variance is not None:
        spread = {"variance": base.variance[keep] if base.each else base.variance}
    absent = models.LogNormalizer(base.locations[keep], log_weights=base.log_weights[keep], **spread)
    for method in ("log_normalizer", "mean", "covariance", "entropy"):
        assert_equal(getattr(masked, method)(eta), getattr(absent, method)(eta), operations=1024)
    wide = {"locations": torch.stack([base.locations, base.locations + 1.0])}
    if "covariance" in spread:
        wide["covariance"] = base.base_covariance.expand(2, *base.base_covariance.shape).contiguous()
    both = base.replace(**wide)
    for i, own in enumerate((base, base.replace(locations=base.locations + 1.0))):
        for method in ("log_normalizer", "mean", "covariance"):
            assert_equal(getattr(both, method)(eta)[i], getattr(own, method)(eta), operations=1024)
    trace = poutine.trace(both.guide).get_trace(eta.expand(2, Q, D))
    assert {frame.name for frame in trace.nodes["points"]["cond_indep_stack"]} == {"batch", "query"}


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_far_from_the_origin(kind):
    """Locations 1000 away: what is large is c'η, which is added last; the rest is as near the origin."""
    base, eta = measure(kind)
    far = base.replace(locations=base.locations + 1000.0)
    single = far.to(torch.float32)
    shift = 1000.0 * torch.ones(D)
    assert_equal(far.mean(eta) - shift, base.mean(eta), torch.tensor(1000.0), operations=256)
    rounded = single.mean(eta.float()).double()
    assert (rounded - far.mean(eta)).abs().max() < 64 * torch.finfo(torch.float32).eps * 1000
    assert_equal(
        single.weights(eta.float()).double(),
        far.weights(eta),
        torch.tensor(1e3 * torch.finfo(torch.float32).eps / torch.finfo(torch.float64).eps),
    )


FAMILIES = {
    "Normal": lambda: (dist.Normal(0.3, 1.7), torch.tensor([-1.0, 0.5])),
    "Bernoulli": lambda: (dist.Bernoulli(0.3), torch.tensor([-1.0, 2.0])),
    "Poisson": lambda: (dist.Poisson(2.5), torch.tensor([-1.0, 0.7])),
    "Gamma": lambda: (dist.Gamma(2.5, 3.0), torch.tensor([-1.0, 2.0])),
    "Categorical": lambda: (
        dist.Categorical(torch.tensor([0.2, 0.5, 0.3])),
        torch.tensor([[1.0, -1.0, 0.5], [0.0, 2.0, 0.0]]),
    ),
    "MultivariateNormal": lambda: (
        dist.MultivariateNormal(torch.tensor([0.5, -1.0]), torch.tensor([[1.0, 0.3], [0.3, 0.5]])),
        torch.tensor([[1.0, -1.0], [0.2, 0.4]]),
    ),
}


def support(name, base):
    """Points and their masses, by sums or quadrature."""
    if name == "Categorical":
        return torch.eye(3), base.probs
    if name == "MultivariateNormal":
        side = torch.linspace(-12, 12, 481)
        x = torch.cartesian_prod(side, side)
        return x, base.log_prob(x).exp() * 0.05**2
    if name in ("Bernoulli", "Poisson"):
        x = torch.arange(2.0 if name == "Bernoulli" else 80.0)
        return x, base.log_prob(x).exp()
    x = torch.linspace(-30, 30, 60001) if name == "Normal" else torch.linspace(-12, 4.5, 60001).exp()
    step = 0.001 if name == "Normal" else x * 16.5 / 60000
    return x, base.log_prob(x).exp() * step


@pytest.mark.parametrize("name", FAMILIES)
def test_moments_under_other_base_measures_are_integrals(name):
    base, eta = FAMILIES[name]()
    family = models.LogNormalizer.from_distribution(base)
    x, mass = support(name, base)
    for i in range(2):  # the grids' steps and ends leave 1e-7 of the mass and its moments, a square of x a digit more
        weight = mass * (x @ eta[i] if x.dim() > 1 else x * eta[i]).exp()
        mean = (weight @ x) / weight.sum()
        c = x - mean
        covariance = (weight * c.mT if c.dim() > 1 else weight * c) @ c / weight.sum()
        torch.testing.assert_close(family.log_normalizer(eta)[i], weight.sum().log(), rtol=0, atol=1e-6)
        torch.testing.assert_close(family.mean(eta)[i], mean, rtol=0, atol=1e-6)
        torch.testing.assert_close(family.covariance(eta)[i], covariance, rtol=0, atol=1e-5)
    total = eta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(family.log_normalizer(total).sum(), total)
    assert_equal(family.mean(eta), slope, operations=256)
    products = (eta * family.mean(eta)).sum(-1) if eta.dim() > 1 else eta * family.mean(eta)
    assert_equal(family.entropy(eta), family.log_normalizer(eta) - products, operations=256)


def test_a_measure_of_torch_is_its_namesake():
    family = models.LogNormalizer.from_distribution(torch.distributions.Poisson(2.0))
    eta = torch.tensor([-0.5, 0.3])
    assert_equal(family.mean(eta), 2.0 * eta.exp())


def test_measures_without_a_tilt_are_refused():
    for other in (dist.Dirichlet(torch.ones(3)), dist.Beta(1.0, 1.0), dist.Cauchy(0.0, 1.0)):
        with pytest.raises(ValueError, match="no tilt in closed form"):
            models.LogNormalizer.from_distribution(other)
    with pytest.raises(ValueError, match="eta must be below the rate"):
        models.LogNormalizer.from_distribution(dist.Gamma(2.0, 3.0)).mean(torch.tensor(3.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda: {"locations": torch.zeros(3)}, "locations must have shape"),
        (lambda: {"covariance": torch.eye(3)}, "covariance must end in"),
        (lambda: {"covariance": -torch.eye(2)}, "positive definite"),
        (lambda: {"covariance": torch.tensor([[2.0, 0.5], [0.4, 2.0]])}, r"covariance must be symmetric; the mean"),
        (lambda: {"locations": torch.zeros(0, 2)}, "locations has no units; give at least one"),
        (lambda: {"covariance": torch.eye(2).expand(3, 2, 2)}, "3 matrices for 4 locations"),
        (lambda: {"covariance": torch.eye(2), "variance": 1.0}, "give one of them"),
        (lambda: {"variance": torch.ones(3, 2)}, "variance must end in"),
        (lambda: {"variance": -1.0}, "variance must be > 0"),
        (lambda: {"log_weights": torch.zeros(3)}, "log_weights must have shape"),
        (lambda: {"log_weights": torch.full((4,), -math.inf)}, "not -inf everywhere"),
        (lambda: {"locations": torch.full((4, 2), math.nan)}, "locations contains NaN"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.LogNormalizer(**{"locations": torch.zeros(4, 2)} | arguments())


def test_it_is_immutable_and_refuses_queries_that_do_not_fit():
    base, eta = measure("points")
    with pytest.raises(AttributeError, match="cannot assign to field"):
        base.locations = eta
    with pytest.raises(ValueError, match="eta have 3 coordinates but locations have 2"):
        base.mean(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="sum to 1"):
        base.bound(eta, torch.ones(Q, N))
