"""Soft k-means: the mixture's posterior, EM that never rises, Lloyd's limit, and the gradients of the objectives."""

import math
import warnings

import numpy as np
import pytest
import torch
from pyro.infer import TraceEnum_ELBO
from strategies import generator
from tolerances import assert_equal, assert_never_falls
from torch.nn.functional import scaled_dot_product_attention

from probtx_pyro import inference, models


def problem(seed=0, points=60, centers=4, features=3, batch=(), gamma=0.7):
    """Points in loose clumps, and centers that do not fit them yet."""
    g = generator(seed)
    clumps = 2 * torch.randn(*batch, centers, features, generator=g)
    x = clumps.repeat_interleave(points // centers, -2) + torch.randn(*batch, points, features, generator=g)
    return models.SoftKMeans(torch.randn(*batch, centers, features, generator=g), gamma), x


def by_loops(model, x):
    """Distances and assignments, one number at a time."""
    rows = []
    for point in x.tolist():
        distances = [sum((a - b) ** 2 for a, b in zip(point, r, strict=True)) for r in model.centers.tolist()]
        terms = [math.exp(-float(model.gamma) * d) for d in distances]
        rows.append((distances, [t / sum(terms) for t in terms], -math.log(sum(terms)) / float(model.gamma)))
    return (torch.tensor(column) for column in zip(*rows, strict=True))


def test_every_quantity_is_its_formula():
    model, x = problem()
    distances, weights, energy = by_loops(model, x)
    assert_equal(model.distances(x), distances, operations=256)
    assert_equal(model.assign(x), weights, distances, operations=256)
    assert_equal(model.free_energy(x), energy, distances, operations=256)
    assert_equal(model.distortion(x), (weights * distances).sum(-1), distances, operations=256)
    reconstructed = torch.einsum("nk,kd->nd", weights, model.centers)
    assert_equal(model.reconstruct(x), reconstructed, distances, operations=256)
    assert_equal(model.reconstruction_error(x), (reconstructed - x).square().sum(-1), distances, operations=512)
    entropy = torch.special.entr(weights).sum(-1)
    assert_equal(model.free_energy(x), model.distortion(x) - entropy / model.gamma, distances, operations=512)


def test_it_is_the_mixture_and_its_pyro_program():
    model, x = problem(gamma=0.4)
    assert_equal(model.mixture.key_precision, torch.tensor(0.8))
    assert_equal(model.assign(x), model.mixture.attention(x), operations=256)
    constant = 0.5 * 3 * math.log(0.4 / math.pi) - math.log(4)
    assert_equal(-0.4 * model.free_energy(x) + constant, model.mixture.log_evidence(x), operations=256)
    elbo = TraceEnum_ELBO(max_plate_nesting=3)
    assert_equal(
        torch.tensor(-elbo.loss(model.model, model.guide, x)), model.mixture.log_evidence(x).sum(), operations=256
    )
    found = elbo.compute_marginals(model.model, lambda x: None, x)["unit"].probs
    assert_equal(found.reshape(60, 4), model.assign(x), operations=256)


def test_with_centers_on_a_sphere_it_is_dot_product_attention():
    model, x = problem()
    centers = torch.nn.functional.normalize(model.centers, dim=-1)
    expected = scaled_dot_product_attention(x[None], centers[None], centers[None], scale=2 * 0.7)[0]
    assert (model.replace(centers=centers).reconstruct(x) - expected).abs().max() < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("learn", [False, True])
def test_em_never_rises_and_is_the_adaptation_of_the_mixture(learn):
    for seed in range(20):
        model, x = problem(seed)
        fit = model.em(x, num_steps=15, tol=None, learn_gamma=learn)
        assert_never_falls(-fit.objective, x.square().sum(), operations=256)
        priors = dict(keys=models.FLAT)
        if learn:
            continue
        keys = inference.adapt(
            models.bayesian(model.mixture, **priors), x, num_steps=15, progress=False
        ).formulation.keys
        assert_equal(fit.model.centers, keys, operations=2048)  # fifteen steps of some hundred operations
        assert_equal(fit.objective[-1], fit.model.free_energy(x).sum(), x.square().sum(), operations=256)


def test_a_learned_gamma_is_the_maximum_of_the_likelihood():
    model, x = problem(3)
    fit = model.em(x, num_steps=2000, tol=1e-12, learn_gamma=True)
    assert fit.converged
    assert_equal(fit.objective[-1], -fit.model.mixture.log_evidence(x).sum(), x.square().sum(), operations=256)
    centers, gamma = fit.model.centers.clone().requires_grad_(), fit.model.gamma.clone().requires_grad_()
    mixture = models.GaussianMixture(centers, key_precision=2 * gamma)
    slopes = torch.autograd.grad(mixture.log_evidence(x).sum(), (centers, gamma))
    # at distance 1e-12 (relative, of steps that contract by a factor of some 0.99) from the maximum, times the curvature ~ N γ
    assert all(slope.abs().max() < 1e-6 for slope in slopes)


def test_em_can_raise_the_bare_sum():
    """It lowers the free energy, which may take entropy for distortion: here from the optimum of k-means, at a small γ."""
    rises = []
    for seed in range(20):
        start, x = problem(seed, gamma=math.inf)
        model = start.fit(x).replace(gamma=0.05)
        after = model.em(x, num_steps=1, tol=None).model
        rises.append(float(after.distortion(x).sum() - model.distortion(x).sum()))
        assert after.free_energy(x).sum() <= model.free_energy(x).sum() + 1e-9
    assert max(rises) > 0.1


def test_infinite_gamma_is_lloyds_algorithm():
    model, x = problem(5)
    hard = model.replace(gamma=math.inf)
    sharp = model.replace(gamma=1e6)
    assert_equal(hard.assign(x), sharp.assign(x))
    assert_equal(hard.free_energy(x), hard.distances(x).amin(-1))
    assert torch.equal(hard.assign(x).sum(-1), torch.ones(60)) and torch.equal(hard.pull(x), hard.assign(x))
    tied = models.SoftKMeans(torch.tensor([[1.0], [-1.0], [1.0]]), math.inf)
    assert tied.assign(torch.zeros(1, 1)).tolist() == [[1.0, 0.0, 0.0]]
    fit = hard.em(x, num_steps=100)
    assert fit.converged
    assert_never_falls(-fit.objective, x.square().sum(), operations=256)
    centers, moved = hard.centers.clone(), None
    while moved is None or not torch.equal(moved, centers):  # Lloyd, cluster by cluster
        centers = centers if moved is None else moved
        nearest = torch.tensor([int((centers - p).square().sum(-1).argmin()) for p in x])
        moved = torch.stack([x[nearest == k].mean(0) if (nearest == k).any() else centers[k] for k in range(4)])
    assert_equal(fit.model.centers, centers, operations=256)
    with pytest.raises(ValueError, match="gamma is infinite"):
        _ = hard.mixture


def test_lloyd_is_scikit_learns():
    from sklearn.cluster import KMeans

    model, x = problem(7, points=400, centers=8)
    reference = KMeans(8, init=model.centers.numpy(), n_init=1, max_iter=500, tol=0).fit(x.numpy())
    fit = model.replace(gamma=math.inf).em(x, num_steps=500, tol=1e-12)
    assert float(fit.objective[-1]) == pytest.approx(reference.inertia_, rel=1e-12)
    assert_equal(fit.model.centers, torch.tensor(reference.cluster_centers_), operations=256)


def test_gradients_in_closed_form():
    model, x = problem(2)
    weights, away = model.assign(x), x[:, None] - model.centers
    n = len(x)
    assert_equal(model.gradient(x), -2 / n * torch.einsum("nk,nkd->kd", weights, away), x.square().max())
    assert_equal(model.gradient(x, "distortion"), -2 / n * torch.einsum("nk,nkd->kd", model.pull(x), away), x.square().max(), operations=256)  # fmt: skip
    error = model.reconstruct(x) - x
    along = torch.einsum("nd,nkd->nk", error, model.centers - model.reconstruct(x)[:, None])
    expected = 2 * torch.einsum("nk,nd->kd", weights, error)
    expected = expected + 4 * model.gamma * torch.einsum("nk,nkd->kd", weights * along, away)
    assert_equal(
        model.gradient(x, "reconstruction_error"), expected / n, x.square().max(), model.distances(x), operations=1024
    )
    assert_equal(model.gradient(x, lambda m, p: m.distances(p)[..., 0])[1:], torch.zeros(3, 3))


def test_a_batch_is_its_singles_and_weights_are_repetitions():
    model, x = problem(4, batch=(2, 3))
    gamma = torch.tensor([[0.3, 0.5, 0.7], [1.0, 2.0, 3.0]])
    for start in (model, model.replace(gamma=gamma), model.replace(gamma=math.inf)):
        fit = start.em(x, num_steps=7, tol=None, learn_gamma=not start.hard)
        for index in ((0, 1), (1, 2)):
            own = start.gamma[index] if start.gamma.dim() else start.gamma
            alone = models.SoftKMeans(model.centers[index], own)
            single = alone.em(x[index], num_steps=7, tol=None, learn_gamma=not start.hard)
            assert_equal(fit.model.centers[index], single.model.centers, operations=2048)
            assert_equal(fit.objective[:, *index], single.objective, operations=2048)
        again = start.em(x.repeat_interleave(2, -2), num_steps=7, tol=None)
        weighted = start.em(x, num_steps=7, tol=None, point_weights=torch.full(x.shape[:-1], 2.0))
        assert_equal(weighted.model.centers, again.model.centers, operations=2048)
        absent = torch.ones(x.shape[:-1]).index_fill(-1, torch.tensor([0, 5]), 0.0)
        keep = absent[0, 0].bool()
        assert_equal(
            start.em(x, num_steps=7, tol=None, point_weights=absent).model.centers,
            start.em(x[..., keep, :], num_steps=7, tol=None).model.centers,
            operations=2048,
        )


def test_far_from_the_origin_in_single_precision():
    """Centred, so that an offset of 1000 costs no more than its rounding of the points, 1000 eps."""
    model, x = problem(6)
    near = model.em(x, num_steps=10, tol=None).model.centers
    far = models.SoftKMeans((model.centers + 1000).float(), 0.7).em((x + 1000).float(), num_steps=10, tol=None)
    assert (far.model.centers.double() - 1000 - near).abs().max() < 2e-3


def test_a_center_nobody_chooses_stays():
    model, x = problem()
    lonely = torch.cat([model.centers, torch.full((1, 3), 1e3)])
    for gamma in (1.0, math.inf):
        fit = models.SoftKMeans(lonely, gamma).fit(x, num_steps=5)
        assert_equal(fit.centers[-1], lonely[-1])


@pytest.mark.slow
def test_the_fit_is_differentiable():
    model, x = problem(8, points=12, centers=2, features=2)

    def fitted(x, centers, gamma, implicit):
        return models.SoftKMeans(centers, gamma).em(x, 400 if implicit else 3, 1e-14, implicit=implicit).model.centers

    inputs = [t.clone().requires_grad_() for t in (x, model.centers, model.gamma)]
    assert torch.autograd.gradcheck(lambda *a: fitted(*a, False), inputs)
    unrolled = models.SoftKMeans(model.centers, inputs[2]).em(inputs[0], 400, None).model.centers
    direct = torch.autograd.grad(unrolled.square().sum(), [inputs[0], inputs[2]])
    implicit = torch.autograd.grad(fitted(*inputs, True).square().sum(), [inputs[0], inputs[2]])
    for one, other in zip(direct, implicit, strict=True):
        assert (one - other).abs().max() < 1e-8


@pytest.mark.slow
def test_mini_batches_descend_to_the_optimum():
    model, x = problem(9, points=400)
    best = model.em(x, num_steps=500, tol=1e-10).model.free_energy(x).mean()
    for rate in (None, 0.3):
        found = model.descend(x, num_steps=400, batch_size=20, seed=1, learning_rate=rate)
        assert found.objective.shape == (400,) and not found.converged
        assert best - 1e-9 <= found.model.free_energy(x).mean() < best + 0.05 * (model.free_energy(x).mean() - best)
    again = model.descend(x, num_steps=30, batch_size=20, seed=1)
    assert torch.equal(again.model.centers, model.descend(x, num_steps=30, batch_size=20, seed=1).model.centers)
    goofy = model.descend(x, "reconstruction_error", num_steps=300, batch_size=20, seed=1, learning_rate=0.2).model
    assert goofy.reconstruction_error(x).mean() < 0.5 * model.reconstruction_error(x).mean()


def test_one_full_batch_with_running_means_is_one_em_step():
    model, x = problem(10)
    found = model.descend(x, num_steps=1, batch_size=60, seed=0).model.centers
    assert_equal(found, model.em(x, num_steps=1, tol=None).model.centers, operations=256)
    assert_equal(model.descend(x, num_steps=1, batch_size=60, seed=0).objective[0], model.free_energy(x).mean())


def test_lloyds_mini_batches_are_macqueens_running_means():
    model, x = problem(11)
    hard = model.replace(gamma=math.inf)
    found = hard.descend(x, num_steps=60, batch_size=1, seed=3).model.centers
    order = torch.randperm(60, generator=torch.Generator().manual_seed(3))
    centers, met = hard.centers.clone(), torch.zeros(4)
    for i in order:
        k = int((centers - x[i]).square().sum(-1).argmin())
        met[k] += 1
        centers[k] += (x[i] - centers[k]) / met[k]
    assert_equal(found, centers, operations=512)


@pytest.mark.slow
def test_plus_plus_picks_points_by_their_distance():
    """With three far clumps every start has one center in each; the second center follows its law over many seeds."""
    _, x = problem(12, points=90, centers=3)
    clumps = x + 50 * torch.arange(3).repeat_interleave(30)[:, None]
    for seed in range(20):
        picked = models.SoftKMeans.plus_plus(clumps, 3, 1.0, seed=seed).centers
        assert sorted((picked.mean(-1) / 50).round().tolist()) == [0, 1, 2]
        assert all((clumps == center).all(-1).any() for center in picked)
    line, second = torch.tensor([[0.0], [1.0], [3.0]]), np.zeros((3, 3))
    weights = torch.tensor([1.0, 2.0, 0.5])
    for seed in range(3000):
        a, b = models.SoftKMeans.plus_plus(line, 2, 1.0, seed=seed, point_weights=weights, num_trials=1).centers[:, 0]
        second[[0, 1, 3].index(int(a)), [0, 1, 3].index(int(b))] += 1
    law = weights[:, None] / 3.5 * (mass := weights * (line - line.T).square()) / mass.sum(-1, keepdim=True)
    sd = (law * (1 - law) / 3000).sqrt().numpy()
    assert (np.abs(second / 3000 - law.numpy()) <= 5 * sd + 1 / 3000).all()


def test_plus_plus_with_too_few_points_warns_and_starts():
    with pytest.warns(UserWarning, match="only 2 points that differ"):
        centers = models.SoftKMeans.plus_plus(torch.tensor([[0.0], [1.0], [1.0]]), 3, 1.0, seed=0).centers
    assert set(centers.ravel().tolist()) == {0.0, 1.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        models.SoftKMeans.plus_plus(torch.tensor([[0.0], [1.0], [2.0]]), 3, 1.0, seed=0)


REFUSALS = {
    "gamma must be > 0": lambda m, x: m.replace(gamma=0.0),
    "infinite for some problems": lambda m, x: m.replace(gamma=torch.tensor([1.0, math.inf])),
    "centers contains NaN": lambda m, x: m.replace(centers=m.centers * math.nan),
    "x have 2 coordinates but centers have 3": lambda m, x: m.assign(x[:, :2]),
    "x contains infinity": lambda m, x: m.fit(x * math.inf),
    "tensors differ in dtype": lambda m, x: m.assign(x.float()),
    "batch axes do not broadcast": lambda m, x: m.replace(gamma=torch.ones(2)).assign(x.expand(3, -1, -1)),
    "num_steps must be 0 or more": lambda m, x: m.fit(x, num_steps=-1),
    "learn_gamma needs a finite gamma": lambda m, x: m.replace(gamma=math.inf).fit(x, learn_gamma=True),
    "points lie on the centers": lambda m, x: m.fit(m.centers, learn_gamma=True, num_steps=200),
    "point_weights must be": lambda m, x: m.fit(x, point_weights=torch.ones(3)),
    "point_weights must be non-negative": lambda m, x: m.fit(x, point_weights=-torch.ones(60)),
    "objective must be one of": lambda m, x: m.gradient(x, "inertia"),
    "batch_size must be from 1": lambda m, x: m.descend(x, num_steps=1, batch_size=61, seed=0),
    "learning_rate positive": lambda m, x: m.descend(x, num_steps=1, batch_size=6, seed=0, learning_rate=0.0),
    "descends the free energy only": lambda m, x: m.descend(x, "distortion", num_steps=1, batch_size=6, seed=0),
    "num_centers must be from 1": lambda m, x: m.plus_plus(x, 61, 1.0, seed=0),
    "num_trials must be 1": lambda m, x: m.plus_plus(x, 6, 1.0, seed=0, num_trials=0),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_bad_input_is_refused(message):
    with pytest.raises(ValueError, match=message):
        REFUSALS[message](*problem())
