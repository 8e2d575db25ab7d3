"""Public reports of distances that lost their digits far from the origin, each with the exact value of its floats by fractions."""

from fractions import Fraction

import pytest
import torch
from pyro.distributions import Dirichlet

from probtx_pyro import inference, models


def square(a, b):
    return sum((Fraction(float(x)) - Fraction(float(y))) ** 2 for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(512695.0, 512804.0, id="pytorch 42479: 109 apart, cdist by products said 0"),
        pytest.param(0.7125930, 0.7123166, id="annoy 314: .00028 apart, said 0"),
        pytest.param(1e5, 1e5 + 1, id="scholar 354: 1 apart, said 0"),
    ],
)
def test_two_floats_that_lie_close_together(first, second):
    x = torch.tensor([[first], [second]], dtype=torch.float32)
    found = models.SoftKMeans(x, 1.0).distances(x)
    exact = float(square(x[0], x[1]))
    assert found.diagonal().tolist() == [0.0, 0.0]
    torch.testing.assert_close(float(found[0, 1]), exact, rtol=4 * torch.finfo(torch.float32).eps, atol=0.0)


def test_the_nearest_center_under_a_large_common_offset():
    """ClickHouse 119117: centers at 100000 and 100001 in float32; 49 of 100 evenly spaced probes had the wrong one."""
    centers = torch.tensor([[100000.0], [100001.0]], dtype=torch.float32)
    probes = torch.linspace(100000.0, 100001.0, 100, dtype=torch.float32).unsqueeze(-1)
    nearest = [min((0, 1), key=lambda j: square(x, centers[j])) for x in probes]
    assert models.SoftKMeans(centers, torch.inf).assign(probes).argmax(-1).tolist() == nearest
    sharp = models.GaussianMixture(centers, torch.eye(2, dtype=torch.float32), 50.0)
    assert sharp.expected_outputs(probes).argmax(-1).tolist() == nearest


def test_the_inertia_of_tight_clusters():
    """scikit-learn-intelex 25: two pairs .0002 apart, whose inertia came out as 0 where 4e-8 is right."""
    x = torch.tensor([[-1.0001], [-0.9999], [0.9999], [1.0001]], dtype=torch.float32)
    fit = models.SoftKMeans(torch.tensor([[-1.0], [1.0]], dtype=torch.float32), torch.inf).em(x, 5)
    centers = fit.model.centers
    exact = float(sum(min(square(point, center) for center in centers) for point in x))
    assert float(fit.objective[-1]) == pytest.approx(exact, rel=16 * torch.finfo(torch.float32).eps)


def test_em_stops_by_how_far_centers_move_wherever_they_are():
    """Bursts .4 s apart, found from one start near the origin and since 1970: a tolerance of 1.7e9 times 1e-6 would stop at once."""
    noise = 0.1 * torch.randn(30, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = (noise * 2**20).round() / 2**20  # what a float since 1970 holds, too
    points, start = torch.cat([noise, noise + 5.0]), torch.tensor([[1.0], [2.0]])
    for gamma in (torch.inf, 10.0):
        near, far = (models.SoftKMeans(start + away, gamma).em(points + away, 50) for away in (0.0, 2.0**30))
        assert int(far.num_steps) >= 2 and bool(far.converged)
        torch.testing.assert_close(far.model.centers - 2.0**30, near.model.centers, rtol=0.0, atol=1e-5)
    near, far = (models.from_points(points + away, 2, seed=0) for away in (0.0, 2.0**30))
    torch.testing.assert_close(far.keys - 2.0**30, near.keys, rtol=0.0, atol=1e-3)
    torch.testing.assert_close(far.key_precision, near.key_precision, rtol=1e-2, atol=0.0)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize(
    "model",
    [
        models.GaussianMixture(torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)),
        models.GaussianKeys(torch.randn(4, 2, 3, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)),
        models.Hopfield(torch.randn(4, 3, dtype=torch.float64), 1.0),
        models.SoftKMeans(torch.randn(4, 3, dtype=torch.float64), 1.0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_no_query_and_no_problem_are_sizes_like_any_other(model, shape):
    queries = torch.zeros(*shape, 3)
    assert model.log_evidence(queries).shape == shape
    assert model.attention(queries).shape == (*shape, 4)
    assert model.expected_outputs(queries).shape[:-1] == shape


def test_what_an_absent_query_holds_is_never_asked():
    """A prior for each query needs the attention of each: that of a query of weight 0 may lie out of reach."""
    keys, queries = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.1], [0.9], [1e200]])
    rows = torch.full((3, 2), 0.5).log()
    for model, own in ((models.GaussianMixture, keys), (models.GaussianKeys, keys.unsqueeze(-2))):
        posterior = models.bayesian(model(own, log_prior=rows), weights=Dirichlet(torch.full((3, 2), 2.0)))
        fit = inference.adapt(posterior, queries, query_weights=torch.tensor([1.0, 1.0, 0.0]), num_steps=3)
        assert torch.isfinite(fit.objective).all()
        assert fit.formulation.log_prior[2].exp().tolist() == pytest.approx([0.5, 0.5])
