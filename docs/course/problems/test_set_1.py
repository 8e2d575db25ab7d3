"""Tests of problem set 1: each compares with sums written out over Python numbers, and says what a wrong answer looks like."""

import math
from itertools import pairwise

import torch
from set_1 import elbo, em_answer, em_step, linked_log_weights, log_joint, responsibilities

torch.set_default_dtype(torch.float64)


def problem(seed=0, num_points=40, num_clusters=3, dim=2):
    """Points of a random mixture, and a mixture that is not theirs."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(num_points, dim, generator=generator) + 2 * torch.randint(
        0, 2, (num_points, 1), generator=generator
    )
    means = torch.randn(num_clusters, dim, generator=generator)
    log_weights = torch.randn(num_clusters, generator=generator).log_softmax(-1)
    return points, means, log_weights, 1.7


def joint_by_hand(points, means, log_weights, precision):
    """The log joint by loops over numbers."""
    rows = []
    for x in points.tolist():
        row = []
        for mean, log_weight in zip(means.tolist(), log_weights.tolist(), strict=True):
            square = sum((a - b) ** 2 for a, b in zip(x, mean, strict=True))
            row.append(log_weight + len(x) / 2 * math.log(precision / (2 * math.pi)) - precision / 2 * square)
        rows.append(row)
    return torch.tensor(rows)


def posterior_by_hand(joint):
    """Softmax of rows, by loops."""
    weights = [[math.exp(score - max(row)) for score in row] for row in joint.tolist()]
    return torch.tensor([[w / sum(row) for w in row] for row in weights])


def evidence_by_hand(*args):
    """The sum of the log evidences, by loops."""
    return sum(max(row) + math.log(sum(math.exp(s - max(row)) for s in row)) for row in joint_by_hand(*args).tolist())


def test_log_joint():
    """Problem 1.2."""
    args = problem()
    found, right = log_joint(*args), joint_by_hand(*args)
    assert found.shape == right.shape, (
        f"log_joint should have a row for each point: {tuple(right.shape)}, not {tuple(found.shape)}"
    )
    off = (found - right).mean()
    assert abs(off) < 1e-9 or (found - right - off).abs().max() > 1e-9, (
        f"log_joint is off by the same {off:.3f} everywhere: the normaliser D/2 log(precision / 2 pi) is missing or wrong"
    )
    assert torch.allclose(found, right), "log_joint is not log weight + log Normal(point; mean, 1 / precision)"


def test_responsibilities():
    """Problem 1.2."""
    args = problem()
    found = responsibilities(*args)
    assert torch.allclose(found.sum(-1), torch.ones(len(found))), (
        "each ROW of responsibilities sums to 1: normalise over clusters"
    )
    assert torch.allclose(found, posterior_by_hand(joint_by_hand(*args))), "these are not the posteriors of Bayes' rule"


def test_responsibilities_far_away():
    """Problem 1.2: a point at distance 1000."""
    points, means, log_weights, precision = problem()
    found = responsibilities(points + 1000.0, means, log_weights, precision)
    assert not found.isnan().any(), (
        "NaN far away: densities are zero there in float64; stay with logarithms until the softmax"
    )
    assert torch.allclose(found.sum(-1), torch.ones(len(found))), "far away rows do not sum to 1"


def test_em_step_climbs():
    """Problem 1.3: the evidence never falls, over 30 steps from 5 starts."""
    for seed in range(5):
        points, *model = problem(seed)
        before = evidence_by_hand(points, *model)
        for _ in range(30):
            model = em_step(points, *model)
            assert abs(model[1].exp().sum() - 1) < 1e-9, "the new weights do not sum to 1"
            after = evidence_by_hand(points, *model)
            assert after > before - 1e-9, (
                f"the log evidence fell by {before - after:.3g} nats: an exact EM step never lowers it"
            )
            before = after


def test_em_step_maximises():
    """Problem 1.3: with the responsibilities held, no nearby mean or precision has a larger expected log joint."""
    points, *model = problem()
    rows = posterior_by_hand(joint_by_hand(points, *model))
    means, log_weights, precision = em_step(points, *model)

    def expected(means, log_weights, precision):
        return float((rows * joint_by_hand(points, means, log_weights, float(precision))).sum())

    best = expected(means, log_weights, precision)
    for factor in (0.97, 1.03):
        assert expected(means * factor, log_weights, precision) < best, (
            "other means are better: average the points by responsibility"
        )
        assert expected(means, log_weights, precision * factor) < best, (
            "another precision is better: its inverse is the mean squared distance to the NEW means, PER COORDINATE"
        )
    shares = rows.mean(0)
    assert torch.allclose(log_weights.exp(), shares), "the new weight of a cluster is the mean of its responsibilities"


def test_elbo_is_a_bound():
    """Problem 1.4."""
    args = problem()
    exact, evidence = posterior_by_hand(joint_by_hand(*args)), evidence_by_hand(*args)
    assert abs(elbo(exact, *args) - evidence) < 1e-8, (
        "with the responsibilities the ELBO is the log evidence, summed over the points"
    )
    guide = torch.rand(exact.shape, generator=torch.Generator().manual_seed(1)).softmax(-1)
    gap = sum(a * math.log(a / r) for a, r in zip(guide.flatten().tolist(), exact.flatten().tolist(), strict=True))
    assert abs(evidence - elbo(guide, *args) - gap) < 1e-8, (
        "log evidence - ELBO should be KL(guide || responsibilities)"
    )


def test_elbo_of_a_hard_guide():
    """Problem 1.4: zeros in the guide."""
    args = problem()
    exact, evidence = posterior_by_hand(joint_by_hand(*args)), evidence_by_hand(*args)
    hard = torch.nn.functional.one_hot(exact.argmax(-1), exact.shape[-1]).to(exact)
    found = elbo(hard, *args)
    assert not found.isnan(), "NaN: 0 log 0 is 0 in an entropy; torch.special.entr and torch.special.xlogy know"
    right = evidence + sum(math.log(max(row)) for row in exact.tolist())
    assert abs(found - right) < 1e-8, "the gap of a hard guide is the sum of -log of the largest responsibilities"


def test_linked_log_weights():
    """Problem 1.5."""
    queries, keys, _, precision = problem()
    log_weights = linked_log_weights(keys, precision)
    assert abs(log_weights.exp().sum() - 1) < 1e-9, "the weights of a prior sum to 1"
    right = posterior_by_hand(precision * queries @ keys.T)
    found = posterior_by_hand(joint_by_hand(queries, keys, log_weights, precision))
    assert torch.allclose(found, right), (
        "responsibilities are not softmax(precision * q.k): which term of the square is missing?"
    )


def density_by_hand(answer, attention, values, precision):
    """Log density of an answer given its query, by loops."""
    joint = joint_by_hand(answer[None], values, attention.log(), precision).tolist()[0]
    return max(joint) + math.log(sum(math.exp(score - max(joint)) for score in joint))


def test_em_answer():
    """Problem 1.6: it climbs, and ends where the density is level."""
    generator = torch.Generator().manual_seed(2)
    values, attention = torch.randn(4, 2, generator=generator), torch.randn(4, generator=generator).softmax(-1)
    answer = attention @ values
    densities = [density_by_hand(answer, attention, values, 3.0)]
    for _ in range(20):
        answer = em_answer(answer, attention, values, 3.0, 1)
        densities.append(density_by_hand(answer, attention, values, 3.0))
    assert min(b - a for a, b in pairwise(densities)) > -1e-9, "the density of the answer fell"
    assert densities[-1] > densities[0] + 1e-3, (
        "the answer did not move: the E-step asks the query AND the present answer which unit they came from"
    )
    settled = em_answer(answer, attention, values, 3.0, 2000)
    for step in torch.eye(2) * 1e-3:
        assert (
            density_by_hand(settled + step, attention, values, 3.0)
            < density_by_hand(settled, attention, values, 3.0) + 1e-9
        )


def test_em_answer_of_two_units():
    """Problem 1.6: units at -1 and 1. One mode for a precision of 0.8, two for 1.5."""
    attention, values = torch.tensor([0.5, 0.5]), torch.tensor([[-1.0], [1.0]])
    low, high = (em_answer(torch.tensor([0.3]), attention, values, beta, 500) for beta in (0.8, 1.5))
    assert abs(low) < 1e-3, "with a precision of 0.8 the only mode is at 0"
    assert abs(high - math.tanh(1.5 * float(high))) < 1e-6 and high > 0.5, (
        "with a precision of 1.5 a solves a = tanh(1.5 a)"
    )
