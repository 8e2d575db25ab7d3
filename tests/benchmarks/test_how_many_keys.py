"""How many keys: densities by loops, bounds between sums over assignments, draws, choices, planted problems, and entries that are kept."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import gammaln, logsumexp
from tolerances import assert_equal

from benchmarks import how_many_keys as keys
from benchmarks.how_many_keys import Asked, Belief
from probtx_pyro import inspection


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def one_unit(points):
    """Queries (Q, D) of one text that has one unit, at 0."""
    return Asked(points.unsqueeze(0), torch.zeros(1, 1, points.shape[-1]), torch.zeros(1, len(points), 1))


def test_densities_by_loops():
    asked = Asked(normal(2, 3, 2), normal(2, 4, 2, seed=1), normal(2, 3, 4, seed=2).log_softmax(-1))
    shifts, root, log_weights = (
        normal(2, 2, seed=3),
        torch.tensor([[1.5, 0.0], [0.3, 0.8]]),
        torch.tensor([0.3, 0.7]).log(),
    )
    covariance = np.linalg.inv((root @ root.mT).numpy())
    found = keys.density(keys.scores(asked, shifts, root, log_weights))
    for b, i in itertools.product(range(2), range(3)):
        wanted = sum(
            math.exp(asked.log_prior[b, i, j] + log_weights[r])
            * stats.multivariate_normal(asked.locations[b, j] + shifts[r], covariance).pdf(asked.queries[b, i])
            for j, r in itertools.product(range(4), range(2))
        )
        assert float(found[b, i]) == pytest.approx(math.log(wanted), abs=1e-12)  # rounding of some ten terms


def test_the_bound_of_one_key_is_the_evidence():
    """One unit and one key: a Normal-Wishart model, whose evidence is a product of Student's t of each query given those before it."""
    points, precision = normal(7, 3), torch.tensor([[1.0, 0.2, 0.0], [0.2, 2.0, 0.1], [0.0, 0.1, 0.5]])
    prior = Belief.prior(1, precision)
    asked = one_unit(points)
    found = keys.climb(asked, prior, prior.given(asked, torch.ones(1, 7, 1, 1)), 1.0)
    strength, mean, degrees, rate = 1.0, np.zeros(3), 7.0, 3 * np.linalg.inv(precision.numpy())
    total = 0.0
    for x in points.numpy():
        freedom = degrees - 3 + 1
        total += stats.multivariate_t(mean, rate * (strength + 1) / (strength * freedom), freedom).logpdf(x)
        rate = rate + strength / (strength + 1) * np.outer(x - mean, x - mean)
        mean, strength, degrees = (strength * mean + x) / (strength + 1), strength + 1, degrees + 1
    assert found.bound == pytest.approx(total, abs=1e-10)
    assert_equal(found.belief.rate, torch.as_tensor(rate))


def test_the_bound_of_a_power_is_its_integral():
    points, power, precision = normal(5, 1), 0.4, torch.tensor([[2.0]])
    prior = Belief.prior(1, precision)
    asked = one_unit(points)
    found = keys.climb(asked, prior, prior.given(asked, torch.ones(1, 5, 1, 1), power), power)
    at, metric = np.meshgrid(np.linspace(-12, 12, 1201), np.exp(np.linspace(-7, 4, 221)), indexing="ij")
    log_density = stats.gamma(1.5, scale=2 / 0.5).logpdf(metric) + stats.norm(0, metric**-0.5).logpdf(at)
    log_density += power * sum(stats.norm(float(x), metric**-0.5).logpdf(at) for x in points[:, 0])
    steps = 24 / 1200, 11 / 220
    wanted = logsumexp(log_density + np.log(metric)) + math.log(steps[0] * steps[1])  # over log λ
    assert found.bound == pytest.approx(wanted, abs=1e-4)  # what lies beyond the grid: λ below e^-7


def log_joint(points, z, prior_rate):
    """``log p(x, z)`` of keys in one dimension: a Pólya urn, and Student's t in turn, the precision shared."""
    alive, means, strengths, shape, rate = [1.0, 1.0], [0.0, 0.0], [1.0, 1.0], 1.5, prior_rate / 2
    total = 0.0
    for x, r in zip(points, z, strict=True):
        total += math.log(alive[r] / sum(alive))
        scale = math.sqrt(rate / shape * (1 + 1 / strengths[r]))
        total += stats.t(2 * shape, means[r], scale).logpdf(x)
        rate += strengths[r] / (strengths[r] + 1) * (x - means[r]) ** 2 / 2
        means[r] = (strengths[r] * means[r] + x) / (strengths[r] + 1)
        strengths[r], shape, alive[r] = strengths[r] + 1, shape + 0.5, alive[r] + 1
    return total


def test_the_bound_of_two_keys_lies_between_the_likeliest_assignment_and_the_sum_over_all():
    """A variational posterior may put all its mass on one assignment, so the best one is no worse; and no bound is above the evidence."""
    points = [-2.0, -1.2, -1.6, 1.5, 1.9]
    joint = {z: log_joint(points, z, 1.0) for z in itertools.product(range(2), repeat=5)}
    prior = Belief.prior(2, torch.tensor([[1.0]]))
    asked = one_unit(torch.tensor(points).unsqueeze(-1))
    likeliest = max(joint, key=joint.__getitem__)
    start = torch.nn.functional.one_hot(torch.tensor(likeliest), 2).to(prior.rate).view(1, 5, 2, 1)
    found = keys.climb(asked, prior, prior.given(asked, start), 1.0)
    assert joint[likeliest] <= found.bound <= logsumexp(list(joint.values()))


def test_beliefs_are_drawn_with_their_moments():
    """Means of 800 draws within 5 standard errors: a false alarm in some 1e5 runs for the ten numbers."""
    belief = Belief(*(torch.tensor(x) for x in ([3.0, 1.0], [2.0, 5.0], [[0.0, 1.0], [2.0, -1.0]], 8.0, [[2.0, 0.5], [0.5, 1.0]])))  # fmt: skip
    torch.manual_seed(0)
    drawn = [belief.draw() for _ in range(800)]
    metric = torch.stack([root @ root.mT for _, root, _ in drawn])
    shifts, weights = torch.stack([x for x, _, _ in drawn]), torch.stack([x.exp() for *_, x in drawn])
    white = torch.stack([(x - belief.shifts) @ root for x, root, _ in drawn])  # of variance 1 / strength
    for found, wanted in (
        (metric, 8.0 * torch.linalg.inv(belief.rate)), (shifts, belief.shifts), (weights, torch.tensor([0.75, 0.25])),
        (white.square(), (1 / belief.strength).unsqueeze(-1).expand(2, 2)),
        (metric.logdet(), torch.tensor(sum(math.log(2) + float(torch.digamma(torch.tensor((8.0 - i) / 2))) for i in range(2))) - belief.rate.logdet()),
    ):  # fmt: skip
        assert ((found.mean(0) - wanted).abs() < 5 * found.std(0) / 800**0.5).all()
    assert_equal(belief.mean_metric(), 8.0 * torch.linalg.inv(belief.rate))


def test_the_normalizer_is_that_of_the_wishart_density():
    belief = Belief.prior(1, torch.tensor([[1.0, 0.3], [0.3, 2.0]]))
    at = np.array([[1.2, 0.1], [0.1, 0.7]])
    wanted = stats.wishart(5.0, np.linalg.inv(belief.rate.numpy())).logpdf(at)
    log_kernel = (5.0 - 3) / 2 * np.linalg.slogdet(at)[1] - 0.5 * np.trace(belief.rate.numpy() @ at)
    assert log_kernel - float(belief.log_normalizer()) == pytest.approx(wanted, abs=1e-12)
    assert wanted + float(belief.log_normalizer()) != pytest.approx(wanted + gammaln(2.5))  # and of two dimensions


def test_assignments_are_drawn_by_their_probabilities():
    """Of 4,000 like queries; within 5 standard errors of a binomial share."""
    asked = Asked(torch.zeros(1, 4000, 1), torch.tensor([[[-1.0], [1.0]]]), torch.zeros(1, 4000, 2))
    probabilities = torch.tensor([[0.1, 0.2], [0.3, 0.4]])  # key, unit
    torch.manual_seed(0)
    away, joint = keys.assigned(asked, probabilities.log().expand(1, 4000, 2, 2))
    for (key, unit), p in np.ndenumerate(probabilities.numpy()):
        share = ((away.queries[0, :, 0] == 1.0 - 2.0 * unit) & (joint[0, :, key, 0] == 1)).double().mean()
        assert abs(float(share) - p) < 5 * math.sqrt(p * (1 - p) / 4000)
    belief = Belief.prior(2, torch.tensor([[1.0]])).given(away, joint)
    assert float(belief.concentration.sum()) == 4002.0


def test_one_key_is_the_best_equivalent():
    one, other = keys.of_text_transformer()["1.2"]
    asked, others, precision = keys.in_gauge(one, other)
    best = one.equivalent(inspection.best_equivalent(one, "full", precision=_prior(one)).tilt, precision)
    found = keys.density(keys.scores(asked, torch.zeros(1, 16), torch.linalg.cholesky(precision), torch.zeros(1)))
    assert_equal(found, best.mixture.log_evidence(one.queries))
    assert not torch.equal(asked.queries[0], others.queries[0]) and asked.queries.shape == (12, 64, 16)


def _prior(one):
    even = 16 * one.queries.flatten(0, 1).var(0).mean() * torch.eye(16)
    return torch.distributions.Wishart(torch.tensor(33.0), precision_matrix=even)


def test_queries_alone_are_those_of_one_gaussian():
    """One key at 0 under the precision is the full Gaussian of `inspection.controls`, told by the first texts."""
    one, other = keys.of_text_transformer()["0.3"]
    asked, _, precision = keys.queries_alone(one, other)
    found = keys.density(keys.scores(asked, torch.zeros(1, 16), torch.linalg.cholesky(precision), torch.zeros(1)))
    assert_equal(found, inspection.controls(one)["one Gaussian, full"].log_evidence(one.queries))


def test_fewest_keys_within_two_errors_of_the_best():
    noise = np.array([-1.0, 1.0] * 50)  # error 0.1005 of 100 items
    rows = np.stack([noise * 0, 0.19 + noise, 0.21 - noise, 0.1 + noise])
    assert keys.fewest(rows) == 2  # one is 0.21 behind, of which 0.201 would do; two is 0.02 ± 0.2
    assert keys.fewest(np.stack([noise * 0, 0.19 + noise, 0.2 - noise, 0.1 + noise])) == 1
    assert keys.gained(rows)[1] == pytest.approx([0.19, noise.std(ddof=1) / 10])


def test_the_posterior_of_the_number_counts_numberings():
    found = np.exp(keys.log_posterior([0.0, -math.log(2), -math.log(6), -math.log(24)]))
    assert found == pytest.approx([0.25] * 4)


def test_planted_problems_have_the_shifts_that_are_said():
    asked = []
    for number, wanted in ((0, 1), (24, 1), (25, 2), (99, 4)):
        (one, other), planted = keys.plant(keys.CASES["4 sd apart"], number)
        assert planted == wanted and one.queries.shape == other.queries.shape == (6, 64, 16)
        asked.append(one.queries)
    again = keys.plant(keys.CASES["4 sd apart"], 25)[0][0].queries
    assert again.equal(asked[2]) and not again.equal(keys.plant(keys.CASES["6 sd apart"], 25)[0][0].queries)


def test_entries_are_kept_and_not_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "FOLDER", tmp_path)
    monkeypatch.setattr(keys, "PROBLEMS", 4)
    monkeypatch.setattr(keys, "CASES", {"4 sd apart": keys.Case(4.0)})
    asked = []

    def made(case, number):
        asked.append(number)
        right = number + 1 if number < 3 else 2
        return {"planted": number + 1, "chosen": dict.fromkeys(keys.CRITERIA, right)}

    monkeypatch.setattr(keys, "measure_planted", made)
    keys.keep("4 sd apart", "2", made("4 sd apart", 2))
    (tmp_path / "4-sd-apart.part").write_text("{half")  # what a kill leaves
    keys.run_planted()
    assert asked == [2, 0, 1, 3] and set(keys.kept("4 sd apart")) == {"0", "1", "2", "3"}
    assert keys.recovered("4 sd apart") == dict.fromkeys(keys.CRITERIA, 3)
    assert keys.planted_table()[2].startswith("| 4 sd apart | 4 | 3 (0) |")


@pytest.mark.slow
def test_keys_far_apart_are_found(monkeypatch):
    """Not by queries held out: one key's gauge stretches locations along the shifts, and the more the farther apart they are."""
    monkeypatch.setitem(keys.CASES, "far", keys.Case(12.0))
    found = keys.measure_planted("far", 60)
    assert found["planted"] == 3 and [found["chosen"][name] for name in keys.CRITERIA[:3]] == [3, 3, 3]
