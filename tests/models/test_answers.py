"""The posterior over answers: mean, MAP by EM, modes, covariance and the mixture itself."""

import math

import oracles
import pytest
import torch
from chosen_cases import seeds
from strategies import generator, lists, problem
from tolerances import assert_equal, assert_never_falls

from probtx_pyro import models


@pytest.mark.pairs
@pytest.mark.parametrize("precision", ["unit", "shared"])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("steps", [1, 4])
def test_em_on_outputs_is_the_oracle(precision, rows, steps, device):
    mixture, queries, outputs, _ = problem(generator(1), precision=precision, rows=rows)
    found = mixture.to(device).map_outputs(queries.to(device), init=outputs.to(device), num_steps=steps).cpu()
    expected = oracles.em_on_outputs(lists(mixture, queries), outputs.tolist(), steps)
    assert_equal(found, torch.tensor(expected), operations=64 * steps)


@pytest.mark.parametrize("seed", seeds(40, often=10))
def test_em_on_outputs_never_falls(seed):
    """25 random problems a seed, 1,000 in all: unequal precisions and extreme scales."""
    g = generator(100 + seed)
    scale = 10.0 ** float(torch.randint(-3, 4, (), generator=g))
    mixture, queries, outputs, _ = problem(
        g,
        batch=(25,),
        units=int(torch.randint(1, 9, (), generator=g)),
        scale=scale,
        precision=["unit", "shared"][seed % 2],
    )
    if seed % 2 == 0:
        mixture = mixture.replace(value_precision=mixture.value_precision * torch.logspace(-2, 2, mixture.num_units))
    trace = [mixture.log_evidence(queries, outputs)]
    for _ in range(15):
        outputs = mixture.map_outputs(queries, init=outputs, num_steps=1)
        trace.append(mixture.log_evidence(queries, outputs))
    magnitude = mixture.key_precision.amax() * (mixture.keys.square().amax() + queries.square().amax())
    assert_never_falls(
        torch.stack(trace),
        magnitude,
        mixture.value_precision.amax() * 2 * (mixture.values.square().amax() + outputs.square().amax()),
    )


def test_map_is_a_stationary_point_and_tol_stops_each_query_by_itself():
    mixture, queries, *_ = problem(generator(2), batch=(3,))
    found = mixture.map_outputs(queries, num_steps=5000, tol=1e-14)
    point = found.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(mixture.log_evidence(queries, point).sum(), point)
    assert gradient.abs().max() < 1e-10  # a step below 1e-14 times a curvature of order 10, and slow ones: 1e-10
    alone = mixture.with_parameters({k: x[1] for k, x in vars(mixture).items() if isinstance(x, torch.Tensor)})
    assert_equal(alone.map_outputs(queries[1], num_steps=5000, tol=1e-14), found[1])


@pytest.mark.slow
def test_map_tends_to_the_mean_as_a_common_value_precision_falls():
    mixture, queries, *_ = problem(generator(3), precision="shared")
    gaps = [
        (
            mixture.replace(value_precision=torch.tensor([beta])).map_outputs(queries, num_steps=500)
            - mixture.expected_outputs(queries)
        )
        .abs()
        .max()
        for beta in (1.0, 1e-2, 1e-4)
    ]
    assert gaps[0] > gaps[1] > gaps[2] > 0
    assert 0.5 < 100 * gaps[2] / gaps[1] < 2  # the distance to the limit is linear in β
    limit = mixture.replace(value_precision=torch.tensor(0.0))
    assert_equal(limit.map_outputs(queries), limit.expected_outputs(queries))


def test_limit_of_unequal_value_precisions_is_weighted():
    """β_j = c b_j, c -> 0: MAP tends to Σ p_j b_j^{M/2+1} μ_j / Σ p_j b_j^{M/2+1}, not to the mean."""
    mixture, queries, *_ = problem(generator(4))
    b = mixture.value_precision
    tilted = mixture.attention(queries) * b ** (mixture.values.shape[-1] / 2 + 1)
    expected = tilted @ mixture.values / tilted.sum(-1, keepdim=True)
    found = mixture.replace(value_precision=1e-9 * b).map_outputs(queries, num_steps=50)
    assert (found - expected).abs().max() < 1e-7  # first order in c = 1e-9
    assert (expected - mixture.expected_outputs(queries)).abs().max() > 1e-2


def test_mean_does_not_depend_on_value_precision_without_a_linked_value_term():
    mixture, queries, *_ = problem(generator(5))
    assert_equal(
        mixture.replace(value_precision=7 * mixture.value_precision).expected_outputs(queries),
        mixture.expected_outputs(queries),
    )
    keys, values = mixture.keys, mixture.values
    linked = models.GaussianMixture.linked(keys, values, 0.7, 0.9)
    logits = 0.7 * queries @ keys.T + 0.45 * values.square().sum(-1)
    assert_equal(linked.attention(queries), logits.softmax(-1))


def test_saddle_between_two_symmetric_units_is_left():
    mixture = models.GaussianMixture(torch.zeros(2, 1), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), value_precision=9.0)
    query = torch.zeros(1, 1)
    assert_equal(mixture.expected_outputs(query), torch.zeros(1, 2))
    found = mixture.map_outputs(query, num_steps=200)
    assert found.abs().max() > 0.9
    assert mixture.log_evidence(query, found) > mixture.log_evidence(query, torch.zeros(1, 2)) + 1


def test_a_flat_pair_is_one_mode_at_the_mean():
    mixture = models.GaussianMixture(torch.zeros(2, 1), torch.tensor([[-1.0], [1.0]]), value_precision=0.5)
    assert_equal(mixture.map_outputs(torch.zeros(1, 1), num_steps=200), torch.zeros(1, 1))
    assert mixture.output_modes(torch.zeros(1, 1)).is_mode.sum() == 1


@pytest.mark.slow
def test_triangle_of_units_has_four_modes():
    """More modes than units: an equilateral triangle, sd 0.71 of the circumradius' scale (side sqrt 3)."""
    angles = torch.tensor([0.0, 2 * math.pi / 3, 4 * math.pi / 3])
    corners = torch.stack([angles.cos(), angles.sin()], -1)
    counts = {}
    for sd in (0.5, 0.708, 0.8):
        modes = models.GaussianMixture(torch.zeros(3, 1), corners, value_precision=sd**-2).output_modes(
            torch.zeros(1, 1), num_steps=200_000, tol=1e-12
        )
        counts[sd] = int(modes.is_mode.sum())
    assert counts == {0.5: 3, 0.708: 4, 0.8: 1}


@pytest.mark.parametrize("rows", [1, 5])
def test_modes_are_maxima_of_the_density(rows):
    mixture, queries, *_ = problem(generator(6), batch=(2,), rows=rows)
    mixture = mixture.replace(value_precision=8 * mixture.value_precision)
    modes = mixture.output_modes(queries)
    assert modes.locations.shape == (2, 5, 5, 2)
    assert (modes.is_mode.sum(-1) >= 1).all() and modes.is_mode.sum() > 10
    for start in range(5):
        point = modes.locations[..., start, :].clone().requires_grad_()
        density = mixture.output_distribution(queries).log_prob(point)
        assert_equal(density, modes.log_density[..., start], torch.tensor(100.0))
        (gradient,) = torch.autograd.grad(density.sum(), point)
        assert (
            gradient.abs().max() < 1e-5
        )  # the answers moved by less than 1e-8, curvature of order 10, slow EM included
        around = point.detach() + 1e-3 * torch.randn(50, *point.shape, generator=generator(7))
        lower = mixture.output_distribution(queries).log_prob(around) < density.detach() + 1e-10
        assert lower.all(0)[modes.is_mode[..., start]].all()


@pytest.mark.parametrize("precision", ["unit", "shared"])
def test_covariance_is_the_oracle_and_that_of_draws(precision):
    mixture, queries, *_ = problem(generator(8), precision=precision)
    covariance = mixture.output_covariance(queries)
    assert_equal(covariance, torch.tensor(oracles.posterior_covariance(lists(mixture, queries))))
    torch.manual_seed(9)
    draws = mixture.output_distribution(queries).sample((40_000,))
    error = draws.std(0) / 200
    assert ((draws.mean(0) - mixture.expected_outputs(queries)).abs() < 5 * error).all()  # five standard errors
    for i in range(len(queries)):
        # the sd of a sample variance is at most sqrt(kurtosis / n): 5 sd with kurtosis up to 10
        assert torch.allclose(
            torch.cov(draws[:, i].T),
            covariance[i],
            atol=5 * float(covariance[i].diagonal().max()) * (10 / 40_000) ** 0.5,
        )


def test_labels_have_a_categorical_answer():
    mixture, queries, *_ = problem(generator(10), answer="categorical")
    probs = mixture.expected_outputs(queries)
    assert_equal(mixture.output_distribution(queries).probs, probs)
    assert_equal(mixture.output_covariance(queries).sum(-1), torch.zeros_like(probs))


def test_explicit_path_is_twice_differentiable_where_the_kernel_is_not():
    mixture, queries, *_ = problem(generator(11))
    queries = queries.requires_grad_()
    _, _, lse = mixture.explicit_outputs(queries)
    (gradient,) = torch.autograd.grad(lse.sum(), queries, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), queries)
    assert torch.isfinite(second).all() and second.abs().max() > 0


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch has no batching rule for the fused kernel
def test_answers_are_mapped_by_vmap():
    mixture, queries, *_ = problem(generator(6), batch=(5,))

    def single(keys, asked):
        return models.GaussianMixture(keys, mixture.values[0], value_precision=1.0).map_outputs(asked)

    each = torch.stack([single(*pair) for pair in zip(mixture.keys, queries, strict=True)])
    assert_equal(torch.func.vmap(single)(mixture.keys, queries), each, operations=1024)
