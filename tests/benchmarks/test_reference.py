"""Reference posteriors: draws against importance sampling from the prior and against loops, distances, what is kept."""

import itertools
import json
import math

import numpy as np
import oracles_crf
import pytest
import torch
from pyro import poutine
from scipy import stats
from scipy.special import logsumexp
from tolerances import FALSE_ALARM_RATE, assert_equal

from benchmarks import posterior
from benchmarks.reference import comparison, posteriors
from benchmarks.reference.posteriors import POSTERIORS

SIGMAS = 5.5  # chance 4e-8 for each of at most 200 numbers: FALSE_ALARM_RATE for all of this file
MIXTURES = [name for name in POSTERIORS if name != "labels and heads"]


def test_the_bound_keeps_the_rate_of_false_alarms():
    assert 200 * math.erfc(SIGMAS / 2**0.5) < FALSE_ALARM_RATE


def weighted(posterior, count, random):
    """Draws of the prior, with the likelihoods of all queries, assignments summed out unit by unit."""
    means, queries = np.array(posterior.means, float), np.array(posterior.queries, float)
    spread = posterior.spread or np.exp(random.normal(size=count))
    precision = {"own": (count, len(means)), "shared": (count, 1)}.get(posterior.precision)
    alpha = np.full((count, 1), posterior.precision) if precision is None else random.gamma(3.0, 1.0, precision)
    keys = means + np.broadcast_to(spread, count)[:, None, None] * random.normal(size=(count, *means.shape))
    weights = (
        random.dirichlet([1.0] * len(means), count)
        if posterior.weights
        else np.full((count, len(means)), 1 / len(means))
    )
    log = np.zeros(count)
    for query in queries:
        density = 0.5 * means.shape[1] * np.log(alpha / (2 * np.pi)) - 0.5 * alpha * ((query - keys) ** 2).sum(-1)
        log += logsumexp(density + np.log(weights), 1)
    found = {"keys": keys}
    if precision:
        found["key_precision"] = alpha if posterior.precision == "own" else alpha[:, 0]
    if posterior.spread is None:
        found["spread"] = spread
    if posterior.weights:
        found["weights"] = weights
    return found, np.exp(log - logsumexp(log))


@pytest.mark.parametrize("name", MIXTURES)
def test_draws_have_the_moments_of_importance_sampling(name):
    """First and second moments of the summary; the errors of both sides are known, as all draws are independent."""
    posterior = POSTERIORS[name]
    prior, weights = weighted(posterior, 40_000, np.random.default_rng(5))
    assert 1 / (weights**2).sum() > 200
    there, here = (
        posteriors.summary(posterior, prior),
        posteriors.summary(posterior, posteriors.exact(posterior, 10_000, 0)),
    )
    for power in (1, 2):
        x, y = there**power, here**power
        mean = weights @ x
        error = np.sqrt((weights[:, None] ** 2 * (x - mean) ** 2).sum(0) + y.var(0) / len(y))
        assert (np.abs(y.mean(0) - mean) < SIGMAS * error).all(), (power, (y.mean(0) - mean) / error)


def test_labels_and_heads_by_loops():
    crf = POSTERIORS["labels and heads"]
    assert isinstance(crf, posteriors.CRF)
    p = {
        "unary": crf.unary,
        "words": [True] * 3,
        "ternary": [crf.ternary],
        "distances": [],
        "root": None,
        "memory": None,
    }
    p["split"] = False
    table = {
        (labels, heads): oracles_crf.log_joint(p, labels, heads)
        for labels in itertools.product(range(2), repeat=3)
        for heads in itertools.product(*(slots for _, _, slots in oracles_crf.choices(p)))
    }
    draws = posteriors.exact(crf, 10_000, 0)
    seen = [(tuple(y), tuple(h[0])) for y, h in zip(draws["label"].tolist(), draws["head"].tolist(), strict=True)]
    total = logsumexp(list(table.values()))
    assert set(seen) <= set(table) and len(table) == 64
    for key, log in table.items():
        chance = math.exp(log - total)
        assert abs(seen.count(key) / len(seen) - chance) < SIGMAS * math.sqrt(chance * (1 - chance) / len(seen))


def test_draws_are_those_whose_moments_are_kept():
    """Rounding of six digits, and a draw of 10,000 that falls into the next cell on another processor."""
    kept = json.loads(posteriors.MOMENTS.read_text())
    assert list(kept) == list(POSTERIORS)
    for name, found in kept.items():
        for kind, numbers in posteriors.moments(name).items():
            assert numbers == pytest.approx(found[kind], abs=1e-3), name


def test_the_energy_distance_by_loops():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(4, 2)), random.normal(size=(5, 2))

    def mean(a, b):
        return sum(math.dist(p, q) for p in a for q in b) / (len(a) * len(b))

    expected = 2 * mean(x, y) - mean(x, x) - mean(y, y)
    assert comparison.energy_distance(x, y) == pytest.approx(expected, abs=1e-14)  # a hundred roundings
    assert comparison.energy_distance(x, x) == 0


def test_the_summary_does_not_know_names():
    posterior = POSTERIORS["all unknown"]
    assert isinstance(posterior, posteriors.Mixture)
    draws = posteriors.exact(posterior, 50, 3)
    turned = {name: x[:, ::-1] for name, x in draws.items()}
    assert np.array_equal(posteriors.summary(posterior, draws), posteriors.summary(posterior, turned))
    fixed = posterior._replace(exchangeable=False)
    assert not np.array_equal(posteriors.summary(fixed, draws), posteriors.summary(fixed, turned))


def test_a_wrong_posterior_is_far(monkeypatch):
    """Exact draws of another seed lie at the floor; those of a posterior with another prior of the keys do not."""
    monkeypatch.setattr(comparison, "FLOOR", 5)
    comparison.yardstick.cache_clear()
    posterior = POSTERIORS["one mode"]
    assert isinstance(posterior, posteriors.Mixture)
    right = {k: x[None] for k, x in posteriors.exact(posterior, 1000, 99).items()}
    wrong = {k: x[None] for k, x in posteriors.exact(posterior._replace(spread=0.35), 1000, 99).items()}
    assert comparison.measured("one mode", right)["distance"] < 5 < comparison.measured("one mode", wrong)["distance"]
    comparison.yardstick.cache_clear()


def log_joint(posterior, draw):
    """Log density of what is unknown and of the queries, assignments summed out, by a loop over scalars."""
    spread, units = draw.get("spread", posterior.spread), len(posterior.means)
    alpha = np.broadcast_to(draw.get("key_precision", posterior.precision), units)
    weights = draw.get("weights", np.full(units, 1 / units))
    total = stats.norm.logpdf(draw["keys"], posterior.means, spread).sum()
    total += stats.lognorm.logpdf(spread, 1.0) if "spread" in draw else 0.0
    total += stats.gamma.logpdf(draw["key_precision"], 3.0).sum() if "key_precision" in draw else 0.0
    total += stats.dirichlet.logpdf(weights, np.ones(units)) if "weights" in draw else 0.0
    for query in posterior.queries:
        density = 0.0
        for key, precision, weight in zip(draw["keys"], alpha, weights, strict=True):
            density += weight * math.prod(
                math.sqrt(precision / (2 * math.pi)) * math.exp(-0.5 * precision * (x - y) ** 2)
                for x, y in zip(query, key, strict=True)
            )
        total += math.log(density)
    return total


@pytest.mark.parametrize("name", MIXTURES)
def test_our_program_has_the_density_of_the_reference(name):
    given, data = comparison.program(name)
    draws = posteriors.exact(POSTERIORS[name], 5, 4)
    for i in range(5):
        draw = {site: x[i] for site, x in draws.items()}
        values = {
            site: torch.tensor(x).view(1, -1) if site == "weights" else torch.tensor(x) for site, x in draw.items()
        }
        found = poutine.trace(poutine.condition(given, values)).get_trace(*data).log_prob_sum()
        assert_equal(found, torch.tensor(log_joint(POSTERIORS[name], draw)).to(found))


@pytest.mark.slow  # JAX compiles each operation
def test_the_program_of_numpyro_has_the_density_of_the_reference():
    util = pytest.importorskip("numpyro.infer.util", reason="numpyro is missing: pip install numpyro")
    for name in MIXTURES:
        model = comparison.numpyro_program(name)
        draws = posteriors.exact(POSTERIORS[name], 2, 4)
        for i in range(2):
            draw = {site: x[i] for site, x in draws.items()}
            found, _ = util.log_density(model, (), {}, draw)
            expected = torch.tensor(log_joint(POSTERIORS[name], draw), dtype=torch.float32)
            assert_equal(torch.tensor(float(found), dtype=torch.float32), expected)


def test_a_refusal_is_a_result(monkeypatch):
    def refuses(name, seed, scale):
        raise ValueError("no maximum")

    monkeypatch.setitem(comparison.METHODS, "guide laplace", refuses)
    assert comparison.one_run("two names", "guide laplace", 0, timed=False)["refused"] == "no maximum"


def test_what_is_kept_is_not_run_again_but_for_its_time(monkeypatch, tmp_path):
    calls = []

    def draws(name, seed, scale):
        calls.append((name, seed))
        return {k: x[None] for k, x in posteriors.exact(POSTERIORS[name], 50, 99 + seed).items()}

    monkeypatch.setattr(comparison, "FLOOR", 2)
    monkeypatch.setattr(comparison, "FOLDER", tmp_path)
    monkeypatch.setattr(comparison, "write_tables", lambda *_: None)
    monkeypatch.setattr(comparison, "METHODS", {"NUTS": draws, "NumPyro NUTS": draws})
    comparison.yardstick.cache_clear()
    given = ["--only", "one mode", "--method", "NUTS"]
    comparison.main(given)
    (tmp_path / "one-mode-nuts-seed-1.json").unlink()  # as if killed before it
    comparison.main(given)
    assert calls == [("one mode", seed) for seed in (0, 1, 2, 1)]
    for _ in range(2):
        comparison.main([*given, "--timed"])
    assert calls[4:] == [("one mode", 0)]
    assert ["seconds" in row for row in comparison.rows()] == [True, False, False]
    comparison.one_run("one mode", "NumPyro NUTS", 0, timed=True)
    assert len(calls) == 7  # once to compile
    comparison.yardstick.cache_clear()


def test_draws_that_are_far_from_the_posterior_have_no_speed(monkeypatch, tmp_path):
    row = {
        "posterior": "one mode",
        "seed": 0,
        "floor": 1.0,
        "largest of the floor": 2.0,
        "ESS": 600.0,
        "R-hat": None,
        "seconds": 2.0,
    }
    for method, distance in (("NUTS", 3.9), ("Pyro NUTS", 4.1)):
        (tmp_path / f"{method}.json").write_text(json.dumps(row | {"method": method, "distance": distance}))
    monkeypatch.setattr(comparison, "FOLDER", tmp_path)
    assert comparison.report_tables()["speed"][2] == "| one mode | 300 |  |  |  |  |  | far |  |"


def test_a_run_of_the_sampler_benchmark_is_kept_and_not_made_again(monkeypatch, tmp_path):
    random = np.random.default_rng(0)

    def sample(seed):
        made.append(seed)
        return {"keys": random.normal(size=(2, 20, 8, 2))}

    made: list[int] = []
    monkeypatch.setattr(posterior, "FOLDER", tmp_path)
    monkeypatch.setattr(posterior, "write_tables", lambda *_: None)
    monkeypatch.setattr(posterior, "samplers", lambda case, scale: {"NUTS, 4 chains": lambda: sample})
    posterior.main(["--case", "conjugate"])
    posterior.kept("conjugate", "NUTS, 4 chains", 1).unlink()
    posterior.main(["--case", "conjugate"])
    assert made == [0, 1, 2, 1]
    assert [row["seed"] for row in posterior.rows()] == [0, 1, 2]
    assert len(posterior.report_tables()["samplers"]) == 3


@pytest.mark.parametrize("method", [
    "Gibbs, 16 chains", *(pytest.param(x, marks=pytest.mark.slow) for x in ("NUTS", "guide normal", "Pyro NUTS", "NumPyro NUTS")),
])  # fmt: skip
def test_a_quick_run_of_a_method(method):
    if method in comparison.COMPILED:
        pytest.importorskip("numpyro", reason="numpyro is missing: pip install numpyro")
    row = comparison.one_run("two names", method, 0, timed=False, scale=20)
    assert math.isfinite(row["distance"]) and row["ESS"] > 1 and "seconds" not in row
