"""The martingale check: right on exact posteriors, which it must pass as often as it says, and wrong on planted faults."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Normal, StudentT

from probtx_pyro import models, results


def draw(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def coins(contexts=200, length=8, seed=0):
    return (draw(contexts, length, seed=seed) < draw(contexts, 1, seed=seed + 10_000)).double()


def die(contexts=200, length=8, seed=0):
    rng = np.random.default_rng(seed)
    return torch.tensor(np.stack([rng.choice(4, length, p=p) for p in rng.dirichlet([1.0] * 4, contexts)]))


def heights(contexts=200, length=6, seed=0):
    noise = torch.randn(contexts, length + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return noise[:, 1:] + 2 * noise[:, :1]


def of_coins(seen):
    return Bernoulli((seen.sum(-1) + 1) / (seen.shape[-1] + 2))


def of_die(seen):
    counts = torch.nn.functional.one_hot(seen, 4).double().sum(1) + 1
    return Categorical(counts / counts.sum(-1, keepdim=True))


def of_heights(seen, weights=1.0):
    """Normal(0, 2) mean, noise 1; observations weighted."""
    weights = torch.as_tensor(weights, dtype=seen.dtype).expand(seen.shape[-1])
    precision = 0.25 + weights.sum()
    return Normal((weights * seen).sum(-1) / precision, (1 + 1 / precision).sqrt().expand(len(seen)))


def of_t(seen):
    """Mean and precision unknown, Normal-Gamma(0, 0.5, 2, 2)."""
    n, mean = seen.shape[-1], seen.mean(-1)
    rate = 2 + ((seen - mean.unsqueeze(-1)).square().sum(-1) + 0.5 * n * mean.square() / (0.5 + n)) / 2
    return StudentT(4.0 + n, n * mean / (0.5 + n), (rate * (1.5 + n) / ((2 + n / 2) * (0.5 + n))).sqrt())


def sharpened(predict):
    def tempered(seen):
        found = predict(seen)
        return type(found)(logits=found.logits / 0.8)

    return tempered


def counted_twice(predict):
    return lambda seen: predict(torch.cat([seen, seen[:, -1:]], 1))


def last_weighs_double(seen):
    return of_heights(seen, [1.0] * (seen.shape[-1] - 1) + [2.0])


EXACT = {"coins": (coins, of_coins), "die": (die, of_die), "normal": (heights, of_heights), "student": (heights, of_t)}
FAULTS = {
    "coins, temperature": (coins, sharpened(of_coins)),
    "coins, the last counted twice": (coins, counted_twice(of_coins)),
    "die, temperature": (die, sharpened(of_die)),
    "die, the last counted twice": (die, counted_twice(of_die)),
    "normal, the last counted twice": (heights, last_weighs_double),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXACT if name != "die"])  # which the slow one below has
def test_exact_posteriors_have_uniform_p_values(name):
    """Of 100 checks, by the band that holds the distribution of uniform numbers at all places with chance .999."""
    contexts, predict = EXACT[name]
    p = [results.martingale_check(predict, contexts(50, seed=i), seed=i, num_draws=8).p_value for i in range(100)]
    assert results.uniformity(np.floor(np.array(p) * 100).astype(int), 99) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_a_thousand_exact_posteriors_have_uniform_p_values(name):
    contexts, predict = EXACT[name]
    p = [results.martingale_check(predict, contexts(200, seed=i), seed=i).p_value for i in range(1000)]
    assert results.uniformity(np.floor(np.array(p) * 100).astype(int), 99) > 1e-3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_rejected_at_200_contexts(name, seed):
    contexts, predict = FAULTS[name]
    found = results.martingale_check(predict, contexts(200, seed=seed), seed=seed)
    assert not found.ok()
    assert "NOT a martingale" in str(found)


def test_a_temperature_on_a_normal_prediction_is_no_fault():
    """It is the posterior's of another model, in which all variances are 0.8 of what they were: the check cannot know the
    true model, and says nothing of whether it is the right one.
    """

    def tempered(seen):
        found = of_heights(seen)
        return Normal(found.mean, found.stddev * 0.8**0.5)

    assert results.martingale_check(tempered, heights(), seed=0).ok()


def test_drift_and_distance_are_sums_over_outcomes():
    """By exact fractions, in one context: heads, tails, heads, the last counted twice."""

    def says(seen):
        return Fraction(1 + sum(seen) + seen[-1], 3 + len(seen))

    seen = [1, 0, 1]
    now = says(seen)
    next_heads, next_tails = says([*seen, 1]), says([*seen, 0])
    average = now * next_heads + (1 - now) * next_tails
    drift = float(average - now)
    gap = {"confidence": drift * math.log(now / (1 - now)), "the last observation": drift}
    observed = torch.tensor([seen], dtype=torch.float64)
    found = results.martingale_check(counted_twice(of_coins), observed, seed=0, num_draws=40_000)
    np.testing.assert_allclose(found.distances, [abs(drift)], rtol=1e-12)
    for name, (mean, error) in found.gaps.items():
        assert abs(mean - gap[name]) < 4 * error  # one in 16,000 by chance, and the seed is fixed
        assert error < 0.02 * abs(gap[name])
    assert results.martingale_check(of_coins, observed, seed=0).distances[0] < 1e-15


def test_p_value_is_that_of_the_largest_of_correlated_normals():
    drifts = {"a": np.array([0.3, 0.1]), "b": np.array([0.1, 0.3])}
    covariance = np.array([[0.01, 0.006], [0.006, 0.04]])
    found = results.MartingaleCheck(drifts, covariance, 9, None, None)
    assert found.z_scores == pytest.approx({"a": 2.0, "b": 1.0})
    normal = np.random.default_rng(0).multivariate_normal([0, 0], [[1, 0.3], [0.3, 1]], 400_000)
    assert found.p_value == pytest.approx((np.abs(normal).max(1) > 2).mean(), abs=0.002)  # 6 errors of the simulation


def test_no_draw_moves_a_constant_prediction_and_a_deterministic_drift_is_certain():
    def constant(seen):
        return Bernoulli(torch.full((len(seen),), 0.3, dtype=torch.float64))

    def growing(seen):
        return Bernoulli(torch.full((len(seen),), 0.1 * seen.shape[-1], dtype=torch.float64))

    found = results.martingale_check(constant, coins(10), seed=0)
    assert found.p_value == 1
    assert found.distances.max() < 1e-15
    assert results.martingale_check(growing, coins(10, 4), seed=0).p_value == 0


def test_drifts_of_rounding_alone_are_none():
    """Cards without replacement: confidence is the same in every card that is left, and the last one never comes again."""

    def left(seen):
        return Categorical((1 - torch.nn.functional.one_hot(seen, 9).double().sum(1)).clamp(min=0))

    cards = torch.rand(100, 9, generator=torch.Generator().manual_seed(0)).argsort(-1)[:, :3]
    found = results.martingale_check(left, cards, seed=0)
    assert set(found.z_scores.values()) == {0.0} and found.p_value == 1


def regression(memory):
    """The predictive distribution of a memory's next value, by the library."""

    def predict(observed, inputs, asked):
        learned = memory.conditioned((inputs, observed.unsqueeze(-1), None, None))
        answers = learned.output_distribution(asked.unsqueeze(-2))
        return Normal(answers.mean.reshape(len(observed)), answers.variance.sqrt().reshape(len(observed)))

    return predict


@pytest.mark.parametrize("noise", [4.0, 1.0])
def test_a_memory_of_the_library_passes_where_it_counts_right(noise):
    """Observations of precision 1 in units that the memory thinks are of ``noise``: right or wrong, it is a posterior's
    prediction; a memory that forgets is none of exchangeable observations.
    """
    generator = torch.Generator().manual_seed(1)
    inputs, weights = (torch.randn(200, n, 2, generator=generator, dtype=torch.float64) for n in (8, 1))
    observed = (inputs * weights).sum(-1) + torch.randn(200, 8, generator=generator, dtype=torch.float64)
    static = models.RegressionMemory(1.0, noise)
    found = results.martingale_check(regression(static), observed[:, :6], inputs=inputs, seed=0, num_orders=4)
    assert found.ok()
    assert found.order_spread.max() < 1e-9
    forgets = models.RegressionMemory(1.0, noise, models.Discount(0.8))
    spread = results.martingale_check(regression(forgets), observed[:, :6], inputs=inputs, seed=0, num_orders=4)
    assert spread.order_spread.mean() > 0.01


def test_spread_over_orders_is_that_of_all_orders():
    """Of a prediction by the last observation alone: in a context with k heads of n the order says heads k times of n."""

    def last(seen):
        return Bernoulli(0.2 + 0.6 * seen[:, -1])

    observed = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    found = results.martingale_check(last, observed, seed=0, num_orders=2000, num_draws=2)
    assert found.order_spread[0] == pytest.approx(math.log(4) / 2, rel=0.02)  # log .8 or log .2, half and half
    assert found.order_spread[1] == 0


def test_the_seed_is_all_that_decides_and_batches_cut_nothing():
    observed = coins(30)
    one, two = (results.martingale_check(of_coins, observed, seed=3, batch_size=30) for _ in range(2))
    assert one.gaps == two.gaps
    torch.testing.assert_close(torch.tensor(one.distances), torch.tensor(two.distances))
    before = torch.get_rng_state()
    apart = results.martingale_check(of_coins, observed, seed=3, batch_size=7)
    assert torch.equal(before, torch.get_rng_state())
    assert [len(x) for x in apart.drifts.values()] == [30, 30]


def test_functions_of_ones_own():
    spread = {"spread": lambda observed, now, y: (y - now.mean).square()}
    found = results.martingale_check(last_weighs_double, heights(), seed=0, functions=spread)
    assert [*found.drifts] == ["confidence", "the last observation", "spread"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observed": torch.zeros(3)}, "observed must be"),
        ({"observed": torch.zeros(3, 0)}, "n 1 or more"),
        ({"inputs": torch.zeros(200, 8, 2)}, r"inputs must be \(200, 10"),
        ({"predict": lambda seen: Bernoulli(torch.tensor(0.5))}, r"batch \(64,\)"),
        ({"predict": lambda seen: Normal(seen.sum(-1) * math.nan, 1.0, validate_args=False)}, "NaN"),
        ({"num_draws": 1}, "num_draws"),
        ({"num_orders": 1}, "one order has no spread"),
        ({"functions": {"f": lambda observed, now, y: y * math.inf}}, "infinity"),
    ],
)
def test_bad_input_is_named(change, message):
    given = {"predict": of_coins, "observed": coins(), "seed": 0} | change
    with pytest.raises(ValueError, match=message):
        results.martingale_check(given.pop("predict"), given.pop("observed"), **given)
