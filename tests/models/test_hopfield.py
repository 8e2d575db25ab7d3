"""Hopfield memories: the energy is the mixture's log density, retrieval its EM, and what is separated is retrieved at once."""

import math

import pytest
import torch
from strategies import generator
from tolerances import assert_equal
from torch.nn.functional import normalize, scaled_dot_product_attention

from probtx_pyro import models
from probtx_pyro.ops.entmax import ENTMAX


def problem(seed=0, count=6, features=4, states=5, batch=(), **options):
    g = generator(seed)
    patterns = torch.randn(*batch, count, features, generator=g)
    beta = float(torch.rand((), generator=g)) * 4 + 0.2
    return models.Hopfield(patterns, beta, **options), torch.randn(*batch, states, features, generator=g)


def test_the_energy_is_the_published_one_and_the_mixtures_log_density():
    memory, state = problem()
    scores = memory.beta * state @ memory.patterns.T
    by_hand = -scores.exp().sum(-1).log() / memory.beta + 0.5 * (state * state).sum(-1) + math.log(6) / memory.beta
    by_hand = by_hand + 0.5 * memory.patterns.square().sum(-1).max()
    assert_equal(memory.energy(state), by_hand)
    assert (memory.energy(3 * torch.randn(500, 4, generator=generator(1))) >= 0).all()
    gap = memory.energy(state) + memory.mixture.log_evidence(state) / memory.beta
    assert_equal(gap, gap[0].expand(5), operations=256)  # the same constant everywhere


def test_a_step_is_em_of_the_mixture_and_attention():
    memory, state = problem()
    attention = memory.mixture.attention(state)
    assert (memory.retrieve(state) - attention @ memory.patterns).abs().max() < 1e-12
    expected = scaled_dot_product_attention(
        state[None], memory.patterns[None], memory.patterns[None], scale=float(memory.beta)
    )
    assert (memory.retrieve(state) - expected[0]).abs().max() < 1e-12
    slope = torch.autograd.functional.jacobian(lambda s: memory.energy(s).sum(), state)
    assert_equal(state - slope, memory.retrieve(state), operations=256)  # a gradient step of size 1


def test_in_single_precision_a_large_beta_has_its_mixture():
    """The linked prior's exponents are some 1e5 here, and are normalised to the precision that the prior is held to."""
    patterns = normalize(torch.randn(20, 8, generator=generator(7)), dim=-1).float()
    memory = models.Hopfield(patterns, 2e5)
    assert torch.equal(memory.mixture.attention(patterns).argmax(-1), torch.arange(20))


@pytest.mark.parametrize("transformation", ENTMAX)
def test_the_energy_never_rises_in_a_thousand_retrievals(transformation):
    for seed in range(10):
        memory, state = problem(seed, states=100, transformation=transformation)
        energy = memory.settle(state, num_steps=30, tol=None).energy
        magnitude = float(memory.energy(state).abs().max()) + 10
        assert (energy.diff(dim=0) <= 64 * torch.finfo(energy.dtype).eps * magnitude).all()


def test_an_energy_that_rises_would_be_seen():
    """A step with other values than the patterns has no such energy."""
    memory, state = problem(states=100)
    wrong = models.Hopfield(memory.patterns, memory.beta, values=-memory.patterns)
    assert (memory.energy(wrong.retrieve(state)) > memory.energy(state) + 0.1).any()


def test_each_state_stops_by_itself_and_is_a_fixed_point():
    memory, state = problem(states=20)
    found = memory.settle(state, num_steps=500, tol=1e-9)
    assert found.converged.all() and found.num_steps.unique().numel() > 1
    assert (memory.retrieve(found.state) - found.state).abs().max() < 1e-7
    assert_equal(memory.retrieve(state, num_steps=500, tol=1e-9), found.state)


@pytest.mark.parametrize("transformation", ["entmax15", "sparsemax"])
def test_sparse_retrieval_is_exact_where_patterns_are_separated(transformation):
    patterns = normalize(torch.randn(20, 64, generator=generator(3)), dim=-1)
    memory = models.Hopfield(patterns, 40.0, transformation=transformation)
    state = patterns + 0.02 * torch.randn(20, 64, generator=generator(4))
    assert torch.equal(memory.retrieve(state), patterns)  # to the last bit: all other weights are 0
    assert (models.Hopfield(patterns, 40.0).retrieve(state) - patterns).abs().max() > 0


def test_values_are_read_out_after_the_last_step():
    memory, state = problem()
    values = torch.randn(6, 3, generator=generator(5))
    read = memory.replace(values=values)
    assert_equal(read.retrieve(state), memory.attention(state) @ values)
    assert_equal(read.retrieve(state, num_steps=3), memory.attention(memory.retrieve(state, 2)) @ values)


def test_a_masked_pattern_is_an_absent_one_and_a_batch_its_singles():
    memory, state = problem()
    keep = torch.tensor([True, False, True, True, False, True])
    masked, absent = memory.replace(mask=keep), memory.replace(patterns=memory.patterns[keep])
    for method in ("energy", "retrieve"):
        assert_equal(getattr(masked, method)(state), getattr(absent, method)(state), operations=256)
    assert_equal(masked.separation()[keep], absent.separation())
    batch, states = problem(seed=6, batch=(2, 3))
    single = batch.replace(patterns=batch.patterns[1, 2])
    assert_equal(batch.retrieve(states, 4)[1, 2], single.retrieve(states[1, 2], 4), operations=256)


def test_separation_is_by_definition():
    memory, _ = problem()
    x = memory.patterns
    for i in range(6):
        others = [float(x[i] @ x[j]) for j in range(6) if j != i]
        assert float(memory.separation()[i]) == pytest.approx(float(x[i] @ x[i]) - max(others))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda: {"beta": 0.0}, "beta must be > 0"),
        (lambda: {"beta": torch.ones(2)}, "beta must be one number"),
        (lambda: {"patterns": torch.full((3, 2), math.inf)}, "patterns contains infinity"),
        (lambda: {"values": torch.zeros(2, 1)}, "patterns have 3 units but values have 2"),
        (lambda: {"mask": torch.ones(3)}, "mask must be boolean"),
        (lambda: {"mask": torch.zeros(3, dtype=torch.bool)}, "forbids every pattern"),
        (lambda: {"transformation": "hardmax"}, "transformation must be one of"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.Hopfield(**{"patterns": torch.zeros(3, 2), "beta": 1.0} | arguments())
    with pytest.raises(ValueError, match="num_steps must be 1"):
        models.Hopfield(torch.zeros(3, 2), 1.0).retrieve(torch.zeros(1, 2), 0)
