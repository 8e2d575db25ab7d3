"""What a memory stores: separation, the bound of the retrieval error, fixed points; and patterns that move."""

import math

import pytest
import torch
from strategies import generator, hopfield_problem
from tolerances import assert_equal, rounding
from torch.nn.functional import normalize

from probtx_pyro import models
from probtx_pyro.ops.entmax import ENTMAX

every = pytest.mark.parametrize("transformation", ENTMAX)


def test_separation_is_by_definition():
    memory, _ = hopfield_problem()
    x = memory.patterns
    for i in range(6):
        others = [float(x[i] @ x[j]) for j in range(6) if j != i]
        assert float(memory.separation()[i]) == pytest.approx(float(x[i] @ x[i]) - max(others))


def printed_bound(memory, radius):
    """Theorem 5 of Ramsauer et al., pattern by pattern."""
    x, largest = memory.patterns, max(float(row.norm()) for row in memory.patterns)
    return torch.tensor([
        2 * (len(x) - 1) * largest * math.exp(-float(memory.beta) * (float(gap) - 2 * float(r) * largest))
        for gap, r in zip(memory.separation(), radius, strict=True)
    ])  # fmt: skip


@pytest.mark.slow
@every
def test_the_retrieval_error_is_within_its_bound(transformation):
    """States on spheres around patterns, and the state that moves straight towards the nearest competitor."""
    vacuous, useful = 0, 0
    for seed in range(100):
        g = generator(seed)
        count, features = (int(torch.randint(2, high, (), generator=g)) for high in (20, 40))
        memory, _ = hopfield_problem(seed, count=count, features=features, transformation=transformation)
        x, largest = memory.patterns, memory.patterns.norm(dim=-1).max()
        radius = torch.rand(count, generator=g) * memory.separation().clamp_min(0.1) / (4 * largest)
        rivals = (x @ x.T).fill_diagonal_(-math.inf).argmax(-1)
        around = torch.cat([torch.randn(20, count, features, generator=g), (x[rivals] - x)[None]])
        states = x + radius[:, None] * normalize(around, dim=-1)
        error = (memory.retrieve(states) - x).norm(dim=-1).amax(0)
        bound = memory.retrieval_error_bound(radius)
        assert (error <= bound + rounding(x)).all()
        assert (bound <= printed_bound(memory, radius) + rounding(x)).all()
        assert (bound <= 2 * largest + rounding(x)).all()
        vacuous += int((bound > largest).sum())
        useful += int((bound < 0.01 * largest).sum())
    assert min(vacuous, useful) > 20  # both kinds of problems are there


def test_the_bound_is_the_error_where_all_others_are_equally_far_and_opposite():
    """Two patterns ±x, and the state between them: everything in the proof is an equality."""
    memory = models.Hopfield(torch.tensor([[1.5, 0.0], [-1.5, 0.0]]), 0.7)
    state = torch.tensor([[1.1, 0.0]])
    error = (memory.retrieve(state) - memory.patterns[0]).norm(dim=-1)
    assert_equal(memory.retrieval_error_bound(0.4)[0], error[0])


@pytest.mark.parametrize(("transformation", "lead"), [("sparsemax", 1.0), ("entmax15", 2.0)])
def test_the_bound_of_sparse_retrieval_is_zero_from_its_margin_on(transformation, lead):
    patterns = 2 * torch.eye(3)  # Δ = 4, M = 2
    for factor, zero in ((1.001, True), (0.999, False)):
        memory = models.Hopfield(patterns, factor * lead / (4 - 4 * 0.25), transformation=transformation)
        assert ((memory.retrieval_error_bound(0.25) == 0) == zero).all()
    assert torch.isinf(memory.replace(mask=torch.tensor([True, True, False])).retrieval_error_bound()[2])
    alone = memory.replace(mask=torch.tensor([False, True, False]))
    assert float(alone.retrieval_error_bound(5.0)[1]) == 0.0  # whatever the state, the only pattern is retrieved


@every
def test_masked_patterns_have_no_part_in_the_measures(transformation):
    memory, _ = hopfield_problem(3, transformation=transformation)
    keep = torch.tensor([True, False, True, True, False, True])
    masked, absent = memory.replace(mask=keep), memory.replace(patterns=memory.patterns[keep])
    assert_equal(masked.retrieval_error_bound(0.1)[keep], absent.retrieval_error_bound(0.1), operations=256)
    for mine, other in zip(masked.fixed_points(), absent.fixed_points(), strict=True):
        where = keep.nonzero().squeeze(-1)
        assert (mine[where].double() - other.double()).abs().max() < 1e-5  # both stop within 1e-6 of a fixed point


def test_fixed_points_are_alone_metastable_or_the_average():
    """Two pairs of near patterns and one far away: as β grows, one average of all, pairs, each by itself."""
    patterns = 2 * torch.tensor([[math.cos(a), math.sin(a)] for a in (0.1, -0.1, 1.9, 2.1, 4.0)])
    expected = {0.01: [5, 5, 5, 5, 5], 3.0: [2, 2, 2, 2, 1], 200.0: [1, 1, 1, 1, 1]}
    for beta, numbers in expected.items():
        memory = models.Hopfield(patterns, beta)
        found = memory.fixed_points()
        assert found.converged.all()
        assert (memory.retrieve(found.state) - found.state).abs().max() < 1e-5
        assert_equal(found.error, (found.state - patterns).square().sum(-1).sqrt())
        assert (found.num_patterns - torch.tensor(numbers)).abs().max() < 0.11
        inside = found.error + 2e-5  # the fixed point is one step from itself, within its own distance
        assert (found.error <= memory.retrieval_error_bound(inside)).all()
    pairs = models.Hopfield(patterns, 3.0).fixed_points().state
    assert (pairs[0] - pairs[1]).norm() < 1e-4 and (pairs[2] - pairs[3]).norm() < 1e-4
    assert models.Hopfield(patterns, 200.0).fixed_points().error.max() < 1e-3


def test_a_pattern_in_the_shadow_of_a_longer_one_is_never_stored():
    """Where Δ_n < 0 another pattern scores higher than the pattern itself, at every β."""
    memory = models.Hopfield(torch.tensor([[1.0, 0.0], [2.0, 0.2], [-1.0, 0.0]]), 100.0)
    found = memory.fixed_points()
    assert (memory.separation() < 0).tolist() == [True, False, False]
    assert (found.state[0] - memory.patterns[1]).norm() < 1e-6 and float(found.error[0]) > 1
    assert (memory.retrieval_error_bound(found.error)[0] > found.error[0]) and found.error[1:].max() < 1e-6


def test_effective_patterns_by_definition():
    for transformation in ENTMAX:
        memory, state = hopfield_problem(4, transformation=transformation)
        for row, found in zip(memory.attention(state), memory.effective_patterns(state), strict=True):
            assert float(found) == pytest.approx(math.exp(-sum(float(p) * math.log(p) for p in row if p > 0)))


@pytest.mark.parametrize("distance", [-0.1, math.inf, math.nan])
def test_a_distance_is_refused(distance):
    memory, _ = hopfield_problem()
    with pytest.raises(ValueError, match="distance must be finite and at least 0"):
        memory.retrieval_error_bound(distance)


# -- patterns that move -------------------------------------------------------------------------------------------------


@every
def test_a_move_is_every_pattern_retrieving_among_all(transformation):
    memory, _ = hopfield_problem(5, transformation=transformation)
    moved = memory.move()
    by_hand = []
    for state in memory.patterns:
        by_hand.append(memory.retrieve(state[None])[0])
    assert_equal(moved.memory.patterns, torch.stack(by_hand))
    assert_equal(moved.path, torch.stack([memory.patterns, torch.stack(by_hand)]))
    twice = memory.move(2)
    assert_equal(twice.path[2], moved.memory.move().path[1], operations=256)
    assert torch.equal(twice.memory.patterns, twice.path[-1])


def diameter(x):
    return torch.cdist(x, x).amax((-2, -1))


@every
def test_the_convex_hull_of_moving_patterns_only_shrinks(transformation):
    """In every direction the farthest pattern comes nearer: the support function of the hull falls; norms and diameter with it."""
    directions = torch.randn(4, 200, generator=generator(6))
    for seed in range(15):
        memory, _ = hopfield_problem(seed, transformation=transformation)
        memory = memory.replace(patterns=memory.patterns + 2 * torch.rand(4, generator=generator(seed)))
        path = memory.move(20).path
        slack = rounding(path)
        assert ((path @ directions).amax(-2).diff(dim=0) <= 64 * slack).all()
        assert (path.norm(dim=-1).amax(-1).diff(dim=0) <= slack).all()
        assert (diameter(path).diff(dim=0) <= slack).all()


def test_softmax_patterns_come_together_at_least_at_the_stated_rate_and_sparse_ones_may_stay_apart():
    for seed in range(10):
        memory, _ = hopfield_problem(seed)
        path = memory.move(30).path
        size, largest = diameter(path), path.norm(dim=-1).amax(-1)
        rate = 1 - (-memory.beta * largest * size).exp()
        assert (size[1:] <= rate[:-1] * size[:-1] + rounding(path)).all()
    close = models.Hopfield(torch.randn(6, 4, generator=generator(7)), 0.1).move(200)
    assert float(diameter(close.path[-1])) < 1e-12
    apart = models.Hopfield(3 * torch.eye(3), 4.0, transformation="sparsemax").move(200, tol=1e-9)
    assert apart.converged and torch.equal(apart.memory.patterns, 3 * torch.eye(3))


@pytest.mark.slow
def test_energies_of_moving_patterns_may_rise_but_not_in_the_memory_they_leave():
    rises = {"first memory": 0, "each other": 0}
    for seed in range(50):
        memory, _ = hopfield_problem(seed, features=2)
        path = memory.move(6).path
        here = [memory.replace(patterns=x) for x in path]
        slack = rounding(path, memory.energy(path))
        for before, now, after in zip(here[:-1], path[:-1], path[1:], strict=True):
            assert (before.energy(after) <= before.energy(now) + slack).all()  # one step of EM
        among = torch.stack([m.energy(x).sum() for m, x in zip(here, path, strict=True)])
        rises["first memory"] += bool((memory.energy(path).sum(-1).diff() > 1e-6).any())
        rises["each other"] += bool((among.diff() > 1e-6).any())
    assert min(rises.values()) > 5


def test_moving_batches_are_their_singles_and_masked_patterns_stay():
    batch, _ = hopfield_problem(8, batch=(2, 3))
    moved = batch.move(50, tol=1e-3)
    assert moved.converged.all() and moved.num_steps.unique().numel() > 1
    alone = batch.replace(patterns=batch.patterns[1, 2]).move(50, tol=1e-3)
    assert_equal(moved.memory.patterns[1, 2], alone.memory.patterns, operations=1024)
    assert int(moved.num_steps[1, 2]) == int(alone.num_steps)
    memory, _ = hopfield_problem(9)
    keep = torch.tensor([True, False, True, True, False, True])
    masked = memory.replace(mask=keep, values=torch.ones(6, 1)).move(4)
    assert torch.equal(masked.memory.patterns[~keep], memory.patterns[~keep])
    assert_equal(masked.memory.patterns[keep], memory.replace(patterns=memory.patterns[keep]).move(4).memory.patterns)
    assert torch.equal(masked.memory.values, torch.ones(6, 1)) and torch.equal(masked.memory.mask, keep)
