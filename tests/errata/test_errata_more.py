"""Errata a, b, d, e, h, i, k and l, and the remarks f, g and j (c: ``tests/inference/test_em.py``): print beside what is right.

The printed forms stand here, in plain torch, so that a reader can reproduce them; ``docs/errata.md`` explains.
"""

import itertools
import math

import pytest
import torch
from pyro.distributions import Normal, Poisson
from strategies import generator, hopfield_problem
from tolerances import assert_equal

from probtx_pyro import models

SEEDS = range(20)


def normal(seed):
    g = generator(seed)
    return lambda *shape: torch.randn(*shape, generator=g)


def squares(x, y):
    return (x[:, None] - y).square().sum(-1)


def test_a_the_width_of_a_key_has_its_price():
    """MGK, the line before (2): ``π_j exp(-(|q|² + |k_j|²) / 2σ_j²) exp(q'k_j / σ_j²)``, no ``(σ_j²)^{-D/2}``."""
    apart = []
    for seed, variance in itertools.product(SEEDS, (torch.logspace(-1, 1, 5), torch.full((5,), 0.7))):
        draw = normal(seed)
        keys, queries, log_prior = draw(5, 3), draw(30, 3), draw(5).log_softmax(-1)
        lengths = queries.square().sum(-1, keepdim=True) + keys.square().sum(-1)
        printed = (log_prior - lengths / (2 * variance) + queries @ keys.T / variance).softmax(-1)
        density = Normal(keys, variance.sqrt()[:, None]).log_prob(queries[:, None]).sum(-1)
        right = (log_prior + density).softmax(-1)
        ours = models.GaussianKeys(keys[:, None], None, 1 / variance[:, None], None, log_prior[None])
        assert_equal(ours.attention(queries), right, density, operations=256)
        apart.append(float((printed - right).abs().max()))
    assert min(apart[::2]) > 0.3
    assert max(apart[1::2]) < 1e-12  # one width: no erratum; exponents of order 100, rounded


def test_b_the_prior_is_that_of_the_unit_that_is_asked():
    """PT 26 has ``log p_j(q_i, u_j)``, which is π_jj, for ``log p_i(q_i, u_j)``, which is π_ij."""
    off = []
    for seed in SEEDS:
        draw = normal(seed)
        keys, queries = draw(4, 3).requires_grad_(), draw(4, 3)
        log_prior = (2 * draw(4, 4)).log_softmax(-1)
        likelihood = Normal(keys, 1.0).log_prob(queries[:, None]).sum(-1)
        w = (log_prior + likelihood).softmax(-1).detach()
        right, printed = (
            (w * (prior + likelihood)).sum(-1) + torch.special.entr(w).sum(-1)
            for prior in (log_prior, log_prior.diagonal())
        )
        ours = models.GaussianMixture(keys.detach(), None, 1.0, log_prior=log_prior)
        assert_equal(right, ours.log_evidence(queries))  # with the entropy of w: the bound of EM, and tight
        off.append((printed - right).detach())
        steps = [torch.autograd.grad(x.sum(), keys, retain_graph=True)[0] for x in (right, printed)]
        assert_equal(*steps)  # the keys' step (28) never sees π: the slip costs nothing there
    off = torch.stack(off)
    assert off.abs().amax(-1).min() > 0.5
    assert (off > 0).double().mean() > 0.1  # as printed it is no lower bound


def test_d_em_can_stand_still_where_nothing_is_maximal():
    """PT after (3): maximising Q "guarantees local maximization" of p(v | q). From the mean of two symmetric units it does not."""
    lacking = []
    for seed in SEEDS:
        draw = normal(seed)
        unit = (1.5 + draw(1).abs()) * torch.nn.functional.normalize(draw(3), dim=0)
        units = torch.stack([unit, -unit])

        def log_density(v, units=units):  # of two equal units, β = 1, both keys equally far from q
            return Normal(units, 1.0).log_prob(v[..., None, :]).sum(-1).logsumexp(-1) - math.log(2)

        def em(v, units=units):  # PT 14 and 15 with equal precisions
            for _ in range(200):
                v = (-0.5 * (v - units).square().sum(-1)).softmax(-1) @ units
            return v

        stuck = em(torch.zeros(3))
        assert (stuck == 0).all()
        curvature = torch.linalg.eigvalsh(torch.autograd.functional.hessian(log_density, stuck))
        assert curvature[-1] > 1  # |unit|² - 1 along the line of the units: a minimum there
        freed = em(1e-3 * draw(3))
        assert torch.linalg.eigvalsh(torch.autograd.functional.hessian(log_density, freed))[-1] < -0.1
        lacking.append(float(log_density(freed) - log_density(stuck)))
        ours = models.GaussianMixture(torch.zeros(2, 3), units, 1.0, 1.0)  # the library tests the curvature, and nudges
        assert log_density(ours.map_outputs(torch.zeros(1, 3), num_steps=30)[0]) > log_density(stuck) + 0.4
    assert min(lacking) > 0.4


def bump(x):
    """A smooth density on [-1, 1] of height 1."""
    return 0.5 * (1 + torch.cos(math.pi * x)) * (x.abs() < 1)


def worst(centres, weights, sigma):
    """Sup-norm distance of the bump and a mixture of one width, on a grid of σ/10, and at the mixture's own centres."""
    grid = torch.cat([torch.linspace(-1.2, 1.2, int(24 / sigma) + 1), centres])
    return float((bump(grid) - Normal(centres, sigma).log_prob(grid[:, None]).exp() @ weights).abs().max())


def test_e_no_constant_serves_all_widths():
    """MGK's theorem: K ≤ (C log 1/ε)^d components do, "for some universal constant C". But K must exceed a number that grows as 1/σ.

    The heaviest of K components is at its centre as high as ``1 / (K σ √(2π))`` at least, which may exceed ``max p`` by ε at most.
    """
    epsilon, needed, least = 0.1, {}, {}
    for sigma in (0.1, 0.03, 0.01):
        least[sigma] = 1 / (sigma * math.sqrt(2 * math.pi) * (1 + epsilon))
        for count in itertools.count(1):
            centres = (2 * torch.arange(count) + 1 - count) / count
            if worst(centres, bump(centres) / bump(centres).sum(), sigma) < epsilon:
                break
        needed[sigma] = count
        assert needed[sigma] > least[sigma]
        few = math.ceil(least[sigma]) - 1
        for seed in SEEDS:  # whatever the centres and the weights
            draw = normal(seed)
            assert worst(draw(few).tanh(), draw(few).softmax(-1), sigma) > epsilon
        assert worst((2 * torch.arange(few) + 1 - few) / few, torch.full((few,), 1 / few), sigma) > epsilon
    assert (
        least[0.01] > 3 * needed[0.1]
    )  # the C that does for 0.1, at this ε and d = 1, is three times too small for 0.01


def test_f_the_quadratic_term_takes_the_skip_away():
    """EF, appendix B: the quadratic term of the energy "seems to" model the skip connection. A unit step shows the reverse."""
    for seed in SEEDS:
        memory, state = hopfield_problem(seed)
        state.requires_grad_()
        read = (memory.beta * state @ memory.patterns.T).softmax(-1) @ memory.patterns
        quadratic = 0.5 * state.square().sum()
        with_it = torch.autograd.grad(memory.energy(state).sum(), state)[0]
        without = torch.autograd.grad(memory.energy(state).sum() - quadratic, state)[0]
        assert_equal(with_it, state - read, operations=256)  # a step of size t keeps 1 - t of the state
        assert_equal(without, -read, operations=256)  # and here all of it
        assert (state - with_it - (state + read)).abs().max() > 0.5  # what the sentence would have


@pytest.mark.parametrize("words", [2, 3, 4, 5])
def test_g_without_a_root_no_choice_of_heads_is_a_tree(words):
    """CRF: ``H_i ∈ {1, ..., n}``, and never i. In a tree one word has no head among the words."""

    def is_tree(heads):
        at = list(range(1, words + 1))
        for _ in heads:
            at = [heads[i - 1] if i else 0 for i in at]
        return not any(at)  # every word has come to the root, 0

    for first, trees in ((1, 0), (0, (words + 1) ** (words - 1))):  # Cayley's formula, where there is a root
        slots = range(first, words + 1)
        choices = [h for h in itertools.product(slots, repeat=words) if all(h[i] != i + 1 for i in range(words))]
        root = torch.zeros(1, 1, 1) if first == 0 else None
        crf = models.DependencyCRF(torch.zeros(words, 1), torch.zeros(1, 2, 1, 1), root_ternary=root)
        assert_equal(crf.log_partition(), torch.tensor(math.log(len(choices))))  # the model's own choices
        assert sum(map(is_tree, choices)) == trees


def test_h_children_send_messages_too():
    """CRF: with symmetric factors "the only difference" from attention is the diagonal. No multiple of A Q T is the message."""
    missed = []
    for seed in SEEDS:
        draw = normal(seed)
        T = draw(3, 3)
        T = T + T.T
        crf = models.DependencyCRF(2 * draw(5, 3), T.expand(1, 2, 3, 3))
        q = crf.unary.softmax(-1).requires_grad_()
        A = (q @ T @ q.T).masked_fill(torch.eye(5, dtype=torch.bool), -torch.inf).softmax(-1).detach()
        expected = (A * (q @ T @ q.T)).sum()  # of the log potential, heads held
        message = torch.autograd.grad(expected, q)[0]
        q = q.detach()
        assert_equal(message, A @ q @ T + A.T @ q @ T)
        assert_equal(crf.mean_field(1).label_logits - crf.unary, message)
        printed = A @ q @ T
        best = (printed * message).sum() / printed.square().sum()  # 2 if A were symmetric, and nothing missed
        missed.append([float((message - c * printed).norm() / message.norm()) for c in (1, best)])
    assert torch.tensor(missed).amin(0).gt(torch.tensor([0.3, 0.02])).all()


def test_i_alpha_compares_centres_and_knows_no_distance():
    """KM 2.2: far from r_j "α_j is close to 0", near it "close to 1". That is so of ``exp(-γ|x - r_j|²)``, before it is normalised."""
    for seed in SEEDS:
        draw = normal(seed)
        centers = torch.cat([draw(4, 2), torch.zeros(1, 2)])
        centers = torch.cat([centers, centers[-1:] + 0.01 * draw(1, 2)])  # two all but on one place
        x = torch.stack([100 * torch.nn.functional.normalize(draw(2), dim=0), torch.zeros(2)])
        before = (-2.0 * squares(x, centers)).exp()
        alpha = (-2.0 * squares(x, centers)).softmax(-1)
        assert_equal(models.SoftKMeans(centers, 2.0).assign(x), alpha, squares(x, centers))
        assert before[0].max() < 1e-100 and alpha[0].max() > 0.9  # far from every centre
        assert before[1, 4:].min() > 0.99 and alpha[1, 4:].min() < 0.501  # on top of two


def test_j_the_minimum_has_the_gradient_that_is_wanted():
    """KM 2.1: "problematic because argmin is not differentiable". Nobody differentiates it: step 3 is the gradient of the minimum."""
    for seed in SEEDS:
        draw = normal(seed)
        centers, x = draw(5, 2).requires_grad_(), draw(1, 2)
        slope = torch.autograd.grad(squares(x, centers).min(), centers)[0]
        nearest = int(squares(x, centers).argmin())
        step = torch.zeros(5, 2)
        step[nearest] = 2 * (x[0] - centers[nearest].detach())
        assert_equal(-slope, step)
        assert_equal(-models.SoftKMeans(centers.detach(), torch.inf).gradient(x, "distortion"), step)


@pytest.mark.parametrize("family", ["Poisson", "Normal"])
def test_k_the_family_is_tilted_not_its_own_parameter(family):
    """EF, Theorem 1 (b): ``p_0(x | η_1, η_2) = h_0(x) exp(x'η) exp(u_2(x)'η_2) / Z_0(η)``, with η where η_1 is meant."""
    x = torch.arange(80.0) if family == "Poisson" else torch.linspace(-30, 30, 6001)
    log_h0 = -torch.lgamma(x + 1) if family == "Poisson" else -0.5 * x**2  # u_2 and η_2 of N(μ, 1) are in it
    apart = []
    for seed in SEEDS:
        natural, tilt = 0.5 * normal(seed)(2)
        tilt.requires_grad_()
        base = Poisson(natural.exp()) if family == "Poisson" else Normal(natural, 1.0)
        mean = torch.autograd.grad((base.log_prob(x) + x * tilt).logsumexp(-1), tilt)[0]
        ours = models.LogNormalizer.from_distribution(base)
        assert_equal(ours.mean(tilt.detach()), mean, x, operations=256)
        literal = (log_h0 + 2 * x * tilt).logsumexp(-1) - (log_h0 + x * tilt).logsumexp(-1)  # whatever η_1
        apart.append(float((torch.autograd.grad(literal, tilt)[0] - mean).abs()))
    assert sum(d > 0.1 for d in apart) > 15 and max(apart) > 0.5


def test_l_the_sign_of_a_score_means_nothing():
    """KM 3.1.1: the sign of q'k "represents the direction of the resulting vector", and a negative one that they "are quite different"."""
    for seed in SEEDS:
        draw = normal(seed)
        query, keys, values = draw(1, 4), draw(6, 4), draw(6, 3)
        scores, outputs = [], []
        for sign in (-1, 1):  # a common shift of all keys along the query
            moved = keys + sign * 20 * query / query.square().sum()
            scores.append(query @ moved.T)
            outputs.append((scores[-1] / 2).softmax(-1) @ values)
            ours = models.GaussianMixture.linked(moved, values, 0.5).expected_outputs(query)
            assert_equal(ours, outputs[-1], scores[-1], moved.square().sum(-1))
        assert scores[0].max() < 0 < scores[1].min()  # all "quite different", and none
        assert_equal(*outputs, *scores)
