"""Tests of problem set 3: sums over Python numbers, finite differences and held-out queries are the judges."""

import math

import torch
from set_3 import (
    importance_bound,
    joint_responsibilities,
    log_normalizer,
    settle,
    tilted_covariance,
    tilted_mean,
    train_guide,
)

torch.set_default_dtype(torch.float64)


def random(*shape, seed=0):
    """Standard normal numbers, always the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def units():
    """Four queries, three units of two keys each, everything unequal."""
    weights, precisions = random(3, 2, seed=2).log_softmax(-1), random(3, 2, seed=3).exp()
    return random(4, 5), random(3, 2, 5, seed=1), weights, precisions


def gaussian(x, mean, precision):
    """Density of an isotropic Gaussian, over numbers."""
    square = sum((a - b) ** 2 for a, b in zip(x, mean, strict=True))
    return (precision / (2 * math.pi)) ** (len(x) / 2) * math.exp(-precision / 2 * square)


def test_joint_responsibilities():
    """Problem 3.1."""
    queries, keys, log_weights, precisions = units()
    found = joint_responsibilities(queries, keys, log_weights, precisions)
    assert found.shape == (4, 3, 2), f"the shape should be (Q, U, R), here (4, 3, 2), not {tuple(found.shape)}"
    within = torch.allclose(found.sum(-1), torch.ones(4, 3))
    assert not within, (
        "normalised within each unit (erratum 10): every unit would claim every query. Normalise over (unit, component)"
    )
    assert torch.allclose(found.sum((-1, -2)), torch.ones(4)), (
        "the responsibilities of a query sum to 1 over units AND components"
    )
    for i, q in enumerate(queries.tolist()):
        joint = [
            [math.exp(log_weights[j, r]) * gaussian(q, keys[j, r].tolist(), float(precisions[j, r])) for r in range(2)]
            for j in range(3)
        ]
        right = torch.tensor(joint) / sum(map(sum, joint))
        assert torch.allclose(found[i], right), (
            "wrong where precisions differ: each Gaussian has its height, precision^(D/2)"
        )


def test_joint_responsibilities_far_away():
    """Problem 3.1: queries at distance 300."""
    queries, *rest = units()
    assert not joint_responsibilities(queries + 300, *rest).isnan().any(), (
        "NaN far away: normalise logarithms (softmax)"
    )


def measure(same=False):
    """A mixture of three Gaussians in the plane, as the base measure."""
    roots = random(1 if same else 3, 2, 2, seed=5)
    covariances = (roots @ roots.mT + 0.3 * torch.eye(2)).expand(3, 2, 2)
    return random(3, 2, seed=4), covariances, random(3, seed=6).log_softmax(-1)


def test_log_normalizer():
    """Problem 3.2: the closed form, over numbers."""
    eta, (means, covariances, log_weights) = torch.tensor([0.7, -0.4]), measure()
    total = 0.0
    for mean, c, log_weight in zip(means.tolist(), covariances.tolist(), log_weights.tolist(), strict=True):
        linear = mean[0] * 0.7 - mean[1] * 0.4
        square = c[0][0] * 0.49 + 2 * c[0][1] * -0.28 + c[1][1] * 0.16
        total += math.exp(log_weight + linear + square / 2)
    found = float(log_normalizer(eta, means, covariances, log_weights))
    assert abs(found - math.log(total)) < 1e-9, (
        "log Z sums weight * exp(mean.eta + eta.cov.eta / 2); are the weights in it (erratum 12)?"
    )
    assert abs(float(log_normalizer(torch.zeros(2), means, covariances, log_weights))) < 1e-9, (
        "at eta = 0 a density has Z = 1"
    )


def differences(function, eta, h=1e-5):
    """Central differences of a function of the query."""
    return torch.stack([(function(eta + h * e) - function(eta - h * e)) / (2 * h) for e in torch.eye(2)])


def test_tilted_mean_is_the_slope():
    """Problem 3.2: whether Gaussians share their covariance or not."""
    for same in (True, False):
        eta, args = torch.tensor([0.7, -0.4]), measure(same)
        slope = differences(lambda eta, args=args: log_normalizer(eta, *args), eta)
        assert torch.allclose(tilted_mean(eta, *args), slope, atol=1e-7), (
            "the mean is not the slope of log Z: each Gaussian moves by covariance @ eta, and its weight has the quadratic term too"
        )


def test_tilted_covariance_is_the_curvature():
    """Problem 3.3."""
    eta, args = torch.tensor([0.7, -0.4]), measure()
    found = tilted_covariance(eta, *args)
    curvature = differences(lambda eta: tilted_mean(eta, *args), eta)
    assert found.shape == (2, 2), f"a covariance of points in the plane is (2, 2), not {tuple(found.shape)}"
    assert torch.allclose(found, curvature, atol=1e-7), (
        "the covariance is not the slope of the mean: the mean of the covariances PLUS the covariance of the means, under the tilted weights"
    )


def test_settle():
    """Problem 3.4: the states, the energies, and that these never rise."""
    patterns, start, beta = random(6, 4, seed=7), random(4, seed=8), 1.5
    states, energies = settle(start, patterns, beta, 25)
    assert states.shape == (26, 4) and energies.shape == (26,), (
        "26 states and energies: the start, and one after each of 25 steps"
    )
    assert torch.equal(states[0], start), "the first state is the start"
    for state, after, energy in zip(states, states[1:], energies, strict=False):
        weights = [math.exp(beta * float(x @ state)) for x in patterns]
        right = sum(w * x for w, x in zip(weights, patterns, strict=True)) / sum(weights)
        assert torch.allclose(after, right), (
            "a step is attention with the patterns as keys AND values, and beta as the scale"
        )
        level = float(state @ state) / 2 - math.log(sum(weights)) / beta
        assert abs(float(energy) - level) < 1e-9, "the energy is |s|^2 / 2 - log sum exp(beta x.s) / beta"
    assert (energies.diff() < 1e-9).all(), "the energy rose"


def problem(precisions, seed):
    """Queries of three units and their log joint, with one precision each."""
    keys, precisions = 1.5 * random(3, 2, seed=9), torch.tensor(precisions)
    generator = torch.Generator().manual_seed(seed)
    unit = torch.randint(3, (300,), generator=generator)
    queries = keys[unit] + torch.randn(300, 2, generator=generator) / precisions[unit, None].sqrt()
    squares = (queries[:, None] - keys).square().sum(-1)
    return queries, (precisions / (2 * math.pi)).log() - precisions / 2 * squares - math.log(3)


def gap(coefficients, features, log_joint):
    """KL from the guide to the posterior, nats per query."""
    guide, exact = (features @ coefficients).log_softmax(-1), log_joint.log_softmax(-1)
    return float((guide.exp() * (guide - exact)).sum(-1).mean())


def linear(queries):
    """A constant and the coordinates."""
    return torch.cat([torch.ones(len(queries), 1), queries], -1)


def test_train_guide():
    """Problem 3.5: units of one precision; the guide is scored on queries that it has not seen."""
    queries, log_joint = problem([1.0, 1.0, 1.0], seed=0)
    coefficients = train_guide(linear(queries), log_joint, 400)
    assert coefficients.shape == (3, 3), f"coefficients should be (F, U), here (3, 3), not {tuple(coefficients.shape)}"
    unseen, theirs = problem([1.0, 1.0, 1.0], seed=1)
    short = gap(coefficients.detach(), linear(unseen), theirs)
    assert short < 0.01, (
        f"{short:.3f} nats per query short, where a linear guide can be exact: is the ELBO climbed, with its entropy?"
    )


def test_importance_bound():
    """Problem 3.5: the average over trials, over Python numbers."""
    log_row, log_joint = random(4, seed=10).log_softmax(-1), random(4, seed=11) - 2
    units = torch.multinomial(log_row.exp(), 60, replacement=True, generator=torch.Generator().manual_seed(0)).view(
        20, 3
    )
    weights = [[math.exp(log_joint[u] - log_row[u]) for u in trial] for trial in units.tolist()]
    found = float(importance_bound(log_row, log_joint, units))
    assert abs(found - sum(math.log(w) for trial in weights for w in trial) / 60) > 1e-6, (
        "this is the mean of the logarithms, the ELBO: average the weights of a trial BEFORE the logarithm"
    )
    assert abs(found - math.log(sum(map(sum, weights)) / 60)) > 1e-6, (
        "one logarithm of all weights together: each trial of K draws has a logarithm of its own, and these are averaged"
    )
    right = sum(math.log(sum(trial) / 3) for trial in weights) / 20
    assert abs(found - right) < 1e-9, "the bound is the mean over trials of log((w_1 + ... + w_K) / K)"


def test_importance_bound_of_the_posterior():
    """Problem 3.5: every weight is the evidence, whichever units are drawn, also where densities are zero in float64."""
    log_joint = random(5, seed=12) - 2000
    for units in (torch.tensor([[0, 3]]), torch.tensor([[2], [4], [4]])):
        found = float(importance_bound(log_joint.log_softmax(-1), log_joint, units))
        assert math.isfinite(found), "exp(-2000) is 0: stay with logarithms (logsumexp)"
        assert abs(found - float(log_joint.logsumexp(-1))) < 1e-9, (
            "with the exact posterior as the row every weight is p(q): divide the joint by the row"
        )
