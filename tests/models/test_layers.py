"""Published memory layers against loops of their printed recursions, and what they lose of the exact filter."""

import math
from itertools import pairwise

import pytest
import torch

from probtx_pyro import results
from probtx_pyro.models import layers
from probtx_pyro.models.regression_memory import PullBack, RegressionMemory, Reset
from probtx_pyro.ops.regression_memory import conjugate_gradient

T, F, M = 10, 4, 2


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stream(seed=0, unit=True):
    keys, values, queries = normal(seed, T, F), normal(seed + 1, T, M), normal(seed + 2, T, F)
    return keys / keys.norm(dim=-1, keepdim=True) if unit else keys, values, queries


def looped(keys, values, queries, write):
    """States by a loop over lists of numbers: ``write(state, key, value, t)`` returns the next state."""
    state, reads, guesses = [[0.0] * F for _ in range(M)], [], []
    for t in range(T):
        key, value, query = keys[t].tolist(), values[t].tolist(), queries[t].tolist()
        state, guess = write(state, key, value, t)
        guesses.append(guess)
        reads.append([sum(w * q for w, q in zip(row, query, strict=True)) for row in state])
    return torch.tensor(guesses, dtype=torch.float64), torch.tensor(reads, dtype=torch.float64)


def dot(row, key):
    return sum(w * k for w, k in zip(row, key, strict=True))


def delta_rule(step, decay):
    def write(state, key, value, t):
        state = [[decay * w for w in row] for row in state]
        guess = [dot(row, key) for row in state]
        return [
            [w + step * (v - g) * k for w, k in zip(row, key, strict=True)]
            for row, v, g in zip(state, value, guess, strict=True)
        ], guess

    return write


def outer_products(scale, decay):
    def write(state, key, value, t):
        state = [[d * w for w, d in zip(row, decay, strict=True)] for row in state]
        guess = [dot(row, key) for row in state]
        return [
            [w + scale * v * k for w, k in zip(row, key, strict=True)] for row, v in zip(state, value, strict=True)
        ], guess

    return write


def kalman_delta(prior, noise, decay, spread, diagonal, scale):
    variance = [1 / prior] * F

    def write(state, key, value, t):
        nonlocal variance
        if diagonal:
            predicted = [decay**2 * p + spread for p in variance]
        else:
            predicted = [decay**2 * variance[0] + spread] * F
        total = noise + sum(p * k * k for p, k in zip(predicted, key, strict=True))
        state = [[decay * w for w in row] for row in state]
        guess = [dot(row, key) for row in state]
        gain = [p * k / total for p, k in zip(predicted, key, strict=True)]
        state = [
            [w + (v - g) * x for w, x in zip(row, gain, strict=True)]
            for row, v, g in zip(state, value, guess, strict=True)
        ]
        if diagonal:
            variance = [1 / (1 / p + scale * k * k / noise) for p, k in zip(predicted, key, strict=True)]
        else:
            variance = [1 / (1 / predicted[0] + scale * sum(k * k for k in key) / (F * noise))] * F
        return state, guess

    return write


PUBLISHED = {
    "linear attention": (layers.linear(0.3), outer_products(0.3, [1.0] * F)),
    "RetNet": (layers.linear(0.3, 0.9), outer_products(0.3, [0.9] * F)),
    "gated linear attention": (
        layers.linear(0.3, torch.tensor([[0.9, 0.8, 0.7, 1.0]], dtype=torch.float64)),
        outer_products(0.3, [0.9, 0.8, 0.7, 1.0]),
    ),
    "delta rule": (layers.delta(0.7), delta_rule(0.7, 1.0)),
    "gated delta rule": (layers.delta(0.7, 0.9), delta_rule(0.7, 0.9)),
    "Kalman, diagonal": (layers.kalman(2.0, 5.0, 0.95, 0.1), kalman_delta(2.0, 0.2, 0.95, 0.1, True, 1.0)),
    "Kalman, diagonal, published": (
        layers.kalman(2.0, 5.0, 0.95, 0.1, info_scale=F),
        kalman_delta(2.0, 0.2, 0.95, 0.1, True, F),
    ),
    "Kalman, isotropic": (
        layers.kalman(2.0, 5.0, 0.95, 0.1, diagonal=False),
        kalman_delta(2.0, 0.2, 0.95, 0.1, False, 1.0),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_layers_are_their_printed_recursions(name):
    layer, write = PUBLISHED[name]
    keys, values, queries = stream()
    guesses, reads = looped(keys, values, queries, write)
    found = layer.moments(keys, values, queries)
    torch.testing.assert_close(found.predicted, guesses, rtol=0, atol=1e-10)
    torch.testing.assert_close(layer.read(queries, keys, values), reads, rtol=0, atol=1e-10)
    torch.testing.assert_close(layer.attention(queries, keys) @ values, reads, rtol=0, atol=1e-10)


def test_mesa_solved_to_the_end_is_the_filter_of_a_memory_that_is_pulled_back():
    keys, values, queries = stream()
    gamma = torch.rand(T, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 0.3 + 0.7
    memory, layer = RegressionMemory(2.0, 5.0, PullBack(gamma)), layers.mesa(2.0, 5.0, gamma)
    torch.testing.assert_close(
        layer.read(queries, keys, values), memory.read(queries, keys, values).mean, rtol=0, atol=1e-10
    )
    later = layers.mesa(2.0, 5.0, torch.cat([torch.ones(1, dtype=torch.float64), gamma[1:]]))
    exact = memory.log_evidence(keys, values)  # the first factor has nothing to decay: off by it are predictions alone
    torch.testing.assert_close(later.log_evidence(keys, values), exact, rtol=0, atol=1e-10)


def test_the_delta_rule_is_the_filter_of_a_memory_that_is_reset():
    keys, values, queries = stream()
    step, beta = 0.7, 5.0
    memory = RegressionMemory(beta * (1 / step - 1), beta, Reset())  # of unit keys
    layer = layers.delta(step, noise_precision=beta)
    torch.testing.assert_close(
        layer.read(queries, keys, values), memory.read(queries, keys, values).mean, rtol=0, atol=1e-10
    )
    torch.testing.assert_close(layer.log_evidence(keys, values), memory.log_evidence(keys, values), rtol=0, atol=1e-10)


def test_a_step_that_over_relaxes_implies_no_density():
    keys, values, _ = stream()
    with pytest.raises(ValueError, match="implies none"):
        layers.delta(1.5).log_evidence(keys, values)
    assert bool(torch.isfinite(layers.delta(1.5).log_evidence(keys, values, "constant", 0.5)).all())


def test_softmax_is_a_local_constant_with_a_sink_and_its_density_integrates_to_one():
    keys, values, queries = stream()
    layer = layers.softmax(3.0, 5.0, 2.0)
    scores = (3.0 * queries @ keys.mT).exp()
    for i in range(T):
        weights = scores[i, : i + 1]
        expected = 5.0 * (weights @ values[: i + 1]) / (2.0 + 5.0 * weights.sum())
        torch.testing.assert_close(layer.read(queries, keys, values)[i], expected, rtol=0, atol=1e-10)
    grid = torch.linspace(-15, 15, 6001, dtype=torch.float64)
    told = values[:, :1].expand(6001, T, 1).clone()
    told[:, 4, 0] = grid
    density = layer.predictive(keys, told).log_prob(told)[:, 4].exp()
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1.0, abs=1e-8)
    without = layers.softmax(3.0, 5.0, 1e-300)  # no sink: scaled dot-product attention
    plain = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=3.0)
    torch.testing.assert_close(without.read(queries, keys, values), plain, rtol=0, atol=1e-10)


def test_conjugate_gradients_rise_to_the_solution_and_take_as_many_steps_as_there_are_eigenvalues():
    root = normal(0, 5, 8, 8)
    matrix, right = root @ root.mT + torch.eye(8, dtype=torch.float64), normal(1, 5, 8)
    exact = torch.linalg.solve(matrix, right)
    before = torch.zeros(5, dtype=torch.float64)
    for steps in range(1, 12):
        x, taken = conjugate_gradient(matrix, right, steps)
        reached = (right * x).sum(-1)
        assert bool((reached >= before - 1e-12).all())
        assert bool((reached <= (right * exact).sum(-1) + 1e-12).all())
        assert int(taken.max()) <= steps
        before = reached
    torch.testing.assert_close(x, exact, rtol=0, atol=1e-10)
    one, _ = conjugate_gradient(matrix, right, 1)
    energy = right.square().sum(-1, keepdim=True)
    curvature = (right * (matrix @ right.unsqueeze(-1)).squeeze(-1)).sum(-1, keepdim=True)
    torch.testing.assert_close(one, right * energy / curvature)
    with pytest.raises(ValueError, match="not positive definite"):
        conjugate_gradient(-matrix, right, 3)


@pytest.mark.parametrize("layer", [layers.linear(0.3, 0.9, 5.0), layers.delta(0.7, 1.0, 5.0), layers.kalman(2.0, 5.0)])
def test_nats_that_a_state_lacks_are_the_divergence_of_normal_rows(layer):
    keys, values, _ = stream()
    memory = RegressionMemory(2.0, 5.0)
    found, state = layer.moments(keys, values), memory.filter(keys, values)
    rows = [
        torch.distributions.kl_divergence(
            torch.distributions.MultivariateNormal(mean, torch.diag(found.spread.expand(F))),
            torch.distributions.MultivariateNormal(exact, torch.linalg.inv(state.precision)),
        )
        for mean, exact in zip(found.mean, state.mean, strict=True)
    ]
    assert float(layer.divergence(memory, keys, values)) == pytest.approx(float(sum(rows)), rel=1e-9)


def test_what_is_lost_is_the_difference_of_evidence_under_the_density_that_is_named():
    keys, values, _ = stream()
    other = stream(7)[:2]
    memory, layer = RegressionMemory(2.0, 5.0), layers.delta(0.7, noise_precision=5.0)
    found = results.nats_lost(memory, {"itself": memory, "delta": layer}, keys, values)
    assert float(found["itself"].nats) == 0.0 and float(found["itself"].distance) == 0.0
    exact, implied = memory.log_evidence(keys, values).sum(), layer.log_evidence(keys, values).sum()
    assert float(found["delta"].nats) == pytest.approx(float(exact - implied), rel=1e-9)
    assert [loss.density for loss in found.values()] == ["exact", "implied"]
    fitted = results.nats_lost(memory, {"delta": layer}, keys, values, fitted_on=other)["delta"]
    constant = layer.log_evidence(keys, values, "constant", layer.fitted_variance(*other)).sum()
    assert fitted.density == "constant"
    assert float(fitted.nats) == pytest.approx(float(exact - constant), rel=1e-9)


def unit_stream(problems, seed, steps=256, size=16, answers=4, beta=25.0):
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(problems, steps, size, generator=generator, dtype=torch.float64)
    keys = keys / keys.norm(dim=-1, keepdim=True)
    memory = torch.randn(problems, answers, size, generator=generator, dtype=torch.float64)
    noise = torch.randn(problems, steps, answers, generator=generator, dtype=torch.float64)
    return keys, keys @ memory.mT + noise / math.sqrt(beta)


@pytest.mark.slow
def test_nats_lost_by_each_layer_on_a_memory_that_stands_still():
    """Means of ten problems of 1,024 numbers, within three standard errors of those first measured by loops."""
    keys, values = unit_stream(10, 0)
    exact = RegressionMemory(1.0, 25.0).log_evidence(keys, values).sum(-1)
    bounds = {
        "linear": (layers.linear(0.1), "constant", 0.4, (850, 1030)),
        "delta": (layers.delta(0.7, noise_precision=25.0), "implied", None, (370, 450)),
        "Kalman": (layers.kalman(1.0, 25.0, 1.0, 0.01, diagonal=False), "implied", None, (315, 390)),
        "Mesa 4": (layers.mesa(1.0, 25.0, num_steps=4), "implied", None, (45, 85)),
        "Mesa 8": (layers.mesa(1.0, 25.0, num_steps=8), "implied", None, (-1, 6)),
        "Mesa 16": (layers.mesa(1.0, 25.0, num_steps=16), "implied", None, (-0.01, 0.01)),
    }
    lost = {name: exact - x.log_evidence(keys, values, how, v).sum(-1) for name, (x, how, v, _) in bounds.items()}
    for name, (*_, (low, high)) in bounds.items():
        assert low < float(lost[name].mean()) < high, name
    order = [lost[name] for name in ("linear", "delta", "Kalman", "Mesa 4")]
    assert all(bool((x > y).all()) for x, y in pairwise(order))


@pytest.mark.parametrize("name", ["linear", "delta", "kalman", "mesa", "softmax"])
def test_a_stream_without_pairs_is_refused(name):
    empty, layer = torch.zeros(2, 0, 3), getattr(layers, name)()
    for call in (lambda: layer.read(empty, empty, empty), lambda: layer.predictive(empty, empty)):
        with pytest.raises(ValueError, match="keys: a layer reads one pair at least"):
            call()


def test_bands_of_a_mixture_are_counted_by_its_distribution_function():
    keys, values, _ = stream()
    memory, softmax = RegressionMemory(2.0, 5.0), layers.softmax(2.0, 3.0)
    said, inside = softmax.predictive(keys, values), []
    weights, units = said.mixture_distribution.probs, said.component_distribution.base_dist
    for t in range(len(values)):
        for m in range(values.shape[-1]):
            below = 0.0
            for s in range(weights.shape[-1]):
                distance = float(values[t, m] - units.loc[t, s, m]) / float(units.scale[t, s, m])
                below += float(weights[t, s]) * 0.5 * math.erfc(-distance / math.sqrt(2))
            inside.append(0.05 < below < 0.95)
    found = results.nats_lost(memory, {"softmax": softmax}, keys, values)["softmax"].coverage
    assert 0 < sum(inside) < len(inside)
    assert float(found) == pytest.approx(sum(inside) / len(inside), abs=1e-12)
