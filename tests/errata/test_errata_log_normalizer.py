"""Errata 12, 13, 14 and 22, Shim: theorems about the log normaliser as printed, against its gradient.

The printed forms stand here, in plain torch, so that a reader can reproduce them; ``docs/errata.md`` explains.
"""

import torch
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import models


def mixture(seed, each):
    """Five Gaussians in three dimensions with weights that differ, and queries."""
    g = generator(seed)
    locations, log_weights = torch.randn(5, 3, generator=g), torch.randn(5, generator=g).log_softmax(-1)
    root = 0.5 * torch.randn(5, 3, 3, generator=g)
    covariance = root @ root.mT + 0.1 * torch.eye(3)
    base = models.LogNormalizer(locations, covariance if each else covariance[0], log_weights)
    return base, torch.randn(20, 3, generator=g)


def gradient(base, eta):
    eta = eta.clone().requires_grad_()
    return torch.autograd.grad(base.log_normalizer(eta).sum(), eta)[0]


def test_12_and_22_the_weights_of_the_mixture_belong_into_the_softmax():
    """Theorem 2 prints ``Ση + Σ softmax(μ_n'η) μ_n``, without π_n (and its proof drops them, too)."""
    worst = []
    for seed in range(20):
        base, eta = mixture(seed, each=False)
        printed = eta @ base.base_covariance + (eta @ base.locations.T).softmax(-1) @ base.locations
        assert_equal(base.mean(eta), gradient(base, eta), operations=256)
        worst.append(float((printed - gradient(base, eta)).abs().max()))
        even = base.replace(log_weights=None)
        assert_equal(even.mean(eta), printed, operations=256)  # with equal weights the two agree
    assert min(worst) > 0.1


def test_13_the_unfinished_theorem_has_a_closed_form():
    """Theorem 3: each Gaussian with its own covariance; the softmax has ``½ η'Σ_nη`` and the values move by ``Σ_nη``."""
    for seed in range(20):
        base, eta = mixture(seed, each=True)
        scores = base.log_weights + eta @ base.locations.T
        scores = scores + 0.5 * torch.einsum("qa,nab,qb->qn", eta, base.base_covariance, eta)
        moved = base.locations + torch.einsum("nab,qb->qna", base.base_covariance, eta)
        closed = torch.einsum("qn,qna->qa", scores.softmax(-1), moved)
        assert_equal(closed, gradient(base, eta), operations=512)
        assert_equal(base.mean(eta), closed, operations=512)
        shared = (base.log_weights + eta @ base.locations.T).softmax(
            -1
        )  # the weights of Theorem 2 are not those of Theorem 3
        assert (shared - base.weights(eta)).abs().max() > 0.02
        assert (base.bound(eta, shared) < base.log_normalizer(eta) + 1e-12).all()  # but they bound, as any weights do


def test_14_the_tilt_adds_to_the_natural_parameter():
    """The proof of Theorem 1(b) prints ``exp(x'(η₁ + η₂))``; tilting a Poisson, natural parameter log 2, by η gives log 2 + η."""
    from pyro.distributions import Poisson

    eta = torch.tensor([-0.5, 0.3])
    tilted = models.LogNormalizer.from_distribution(Poisson(torch.tensor(2.0))).tilted(eta)
    x = torch.arange(60.0)
    mass = Poisson(torch.tensor(2.0)).log_prob(x).exp() * (x * eta[:, None]).exp()
    assert_equal(tilted.rate, (torch.tensor(2.0).log() + eta).exp())
    assert_equal(tilted.log_prob(x[:, None]).exp().T, mass / mass.sum(-1, keepdim=True), operations=1024)
