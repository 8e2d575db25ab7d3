"""Erratum 23, the lecture on soft k-means: what γ is, and what pulls a center. ``docs/errata.md`` explains."""

import math

import torch
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import models


def problem(seed):
    g = generator(seed)
    return models.SoftKMeans(torch.randn(4, 2, generator=g), 1.5), 2 * torch.randn(200, 2, generator=g)


def test_23_gamma_is_an_inverse_temperature():
    """Printed: "temperature". A high temperature means disorder, but the entropy of α falls as γ grows."""
    model, x = problem(0)
    entropies = [
        float(torch.special.entr(model.replace(gamma=gamma).assign(x)).sum(-1).mean())
        for gamma in (1e-6, 0.1, 1.0, 10.0)
    ]
    assert abs(entropies[0] - math.log(4)) < 1e-3 and entropies == sorted(entropies, reverse=True)


def test_23_the_pull_is_alpha_only_with_alpha_held_constant():
    """Printed: α_j is the amount by which x_i pulls r_j when Σ_j α_ij |x_i - r_j|² is descended. Autograd disagrees."""
    pushed = 0
    for seed in range(20):
        model, x = problem(seed)
        centers = model.centers.clone().requires_grad_()
        distances = (x[:, None] - centers).square().sum(-1)
        weights = (-1.5 * distances).softmax(-1)
        away = x[:, None] - model.centers
        (slope,) = torch.autograd.grad((weights * distances).sum(-1).mean(), centers, retain_graph=True)
        (held,) = torch.autograd.grad((weights.detach() * distances).sum(-1).mean(), centers)
        printed = -2 / 200 * torch.einsum("nk,nkd->kd", weights.detach(), away)
        assert_equal(held, printed, x.square().max())
        assert (slope - printed).abs().max() > 0.02
        excess = 1.5 * (distances - (weights * distances).sum(-1, keepdim=True)).detach()
        pull = model.pull(x)
        assert_equal(-2 / 200 * torch.einsum("nk,nkd->kd", pull, away), slope, x.square().max(), operations=256)
        assert torch.equal(pull < 0, (excess > 1) & (weights > 0))  # what is far is pushed away
        pushed += int((pull < 0).sum())
    assert pushed > 1000  # of 16,000 pairs
