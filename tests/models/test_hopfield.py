"""Hopfield memories: the energy is the mixture's log density, retrieval its EM, and what is separated is retrieved at once."""

import math

import pytest
import torch
from strategies import generator, hopfield_problem
from tolerances import assert_equal
from torch.nn.functional import normalize, scaled_dot_product_attention

from benchmarks.timing import Largest
from probtx_pyro import models
from probtx_pyro.ops.entmax import ENTMAX


def test_the_energy_is_the_published_one_and_the_mixtures_log_density():
    memory, state = hopfield_problem()
    scores = memory.beta * state @ memory.patterns.T
    by_hand = -scores.exp().sum(-1).log() / memory.beta + 0.5 * (state * state).sum(-1) + math.log(6) / memory.beta
    by_hand = by_hand + 0.5 * memory.patterns.square().sum(-1).max()
    assert_equal(memory.energy(state), by_hand)
    assert (memory.energy(3 * torch.randn(500, 4, generator=generator(1))) >= 0).all()
    gap = memory.energy(state) + memory.mixture.log_evidence(state) / memory.beta
    assert_equal(gap, gap[0].expand(5), operations=256)  # the same constant everywhere


def test_a_step_is_em_of_the_mixture_and_attention():
    memory, state = hopfield_problem()
    attention = memory.mixture.attention(state)
    assert (memory.retrieve(state) - attention @ memory.patterns).abs().max() < 1e-12
    expected = scaled_dot_product_attention(
        state[None], memory.patterns[None], memory.patterns[None], scale=float(memory.beta)
    )
    assert (memory.retrieve(state) - expected[0]).abs().max() < 1e-12
    slope = torch.autograd.functional.jacobian(lambda s: memory.energy(s).sum(), state)
    assert_equal(state - slope, memory.retrieve(state), operations=256)  # a gradient step of size 1


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_retrieval_is_em_of_the_mixture_at_every_step(batch, masked):
    """The mixture's own E-step, explicit, whose mean of the keys is the M-step of a state."""
    memory, state = hopfield_problem(7, count=40, features=8, batch=batch)
    if masked:
        memory = memory.replace(mask=torch.rand(*batch, 40, generator=generator(8)) < 0.7)
    expected = state
    for steps in range(1, 6):
        expected = memory.mixture.attention(expected) @ memory.patterns
        assert (memory.retrieve(state, steps) - expected).abs().max() < 1e-12
    found = memory.settle(state, num_steps=5, tol=None)
    assert (found.state - expected).abs().max() < 1e-12
    by_density = memory.energy(state) + memory.mixture.log_evidence(state) / memory.beta
    assert (found.energy[-1] - by_density + memory.mixture.log_evidence(expected) / memory.beta).abs().max() < 1e-12


COUNT, CHUNK = 512, 2**15
WATCHED = {
    "retrieve": lambda memory, state: memory.retrieve(state, 3, tol=1e-3),
    "read": lambda memory, state: memory.replace(values=2 * memory.patterns).retrieve(state),
    "energy": lambda memory, state: memory.energy(state),
    "settle": lambda memory, state: memory.settle(state, 2).energy,
    "effective patterns": lambda memory, state: memory.effective_patterns(state),
    "attention": lambda memory, state: memory.attention(state),
}


@pytest.mark.pairs
@pytest.mark.parametrize("masked", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "masked"])
@pytest.mark.parametrize("transformation", ENTMAX)
@pytest.mark.parametrize("name", WATCHED)
def test_no_tensor_of_states_times_patterns(name, transformation, masked, monkeypatch):
    """Forward and backward; in chunks small enough that a chunk is no matrix. The watch sees it where it is asked for."""
    monkeypatch.setattr("probtx_pyro.ops._chunks.CHUNK_ELEMENTS", CHUNK)
    memory, state = hopfield_problem(count=COUNT, features=4, states=COUNT, transformation=transformation)
    if masked:
        memory = memory.replace(mask=torch.arange(COUNT) % 7 > 0)
    state.requires_grad_()
    with Largest() as made:
        WATCHED[name](memory, state).sum().backward()
    assert (made.numbers >= COUNT * COUNT) == (name == "attention")
    assert name == "attention" or made.numbers <= CHUNK < COUNT * COUNT


@pytest.mark.slow
@pytest.mark.parametrize("transformation", ENTMAX)
def test_derivatives_are_finite_differences(transformation):
    memory, state = hopfield_problem(9, features=3, states=2, transformation=transformation)
    values = torch.randn(6, 2, generator=generator(10))
    state.requires_grad_()
    inputs = (state, memory.patterns.clone().requires_grad_(), memory.beta.clone().requires_grad_())

    def made(patterns, beta, values=None):
        return models.Hopfield(patterns, beta, values, transformation=transformation)

    for function in (
        lambda s, x, b: made(x, b).retrieve(s, 2),
        lambda s, x, b: made(x, b, values).retrieve(s, 2),
        lambda s, x, b: made(x, b).energy(s),
    ):
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(lambda s, x, b: made(x, b).attention(s) @ x, inputs)


def test_the_fused_kernel_has_no_forward_mode_as_the_docstring_says():
    memory, state = hopfield_problem()
    with pytest.raises(NotImplementedError, match="forward AD"):
        torch.func.jvp(memory.retrieve, (state,), (state,))


def test_in_single_precision_a_large_beta_has_its_mixture():
    """The linked prior's exponents are some 1e5 here, and are normalised to the precision that the prior is held to."""
    patterns = normalize(torch.randn(20, 8, generator=generator(7)), dim=-1).float()
    memory = models.Hopfield(patterns, 2e5)
    assert torch.equal(memory.mixture.attention(patterns).argmax(-1), torch.arange(20))


@pytest.mark.parametrize("transformation", ENTMAX)
@pytest.mark.slow
def test_the_energy_never_rises_in_a_thousand_retrievals(transformation):
    for seed in range(10):
        memory, state = hopfield_problem(seed, states=100, transformation=transformation)
        energy = memory.settle(state, num_steps=30, tol=None).energy
        magnitude = float(memory.energy(state).abs().max()) + 10
        assert (energy.diff(dim=0) <= 64 * torch.finfo(energy.dtype).eps * magnitude).all()


def test_an_energy_that_rises_would_be_seen():
    """A step with other values than the patterns has no such energy."""
    memory, state = hopfield_problem(states=100)
    wrong = models.Hopfield(memory.patterns, memory.beta, values=-memory.patterns)
    assert (memory.energy(wrong.retrieve(state)) > memory.energy(state) + 0.1).any()


def test_each_state_stops_by_itself_and_is_a_fixed_point():
    memory, state = hopfield_problem(states=20)
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
    memory, state = hopfield_problem()
    values = torch.randn(6, 3, generator=generator(5))
    read = memory.replace(values=values)
    assert_equal(read.retrieve(state), memory.attention(state) @ values)
    assert_equal(read.retrieve(state, num_steps=3), memory.attention(memory.retrieve(state, 2)) @ values)


def test_a_masked_pattern_is_an_absent_one_and_a_batch_its_singles():
    memory, state = hopfield_problem()
    keep = torch.tensor([True, False, True, True, False, True])
    masked, absent = memory.replace(mask=keep), memory.replace(patterns=memory.patterns[keep])
    for method in ("energy", "retrieve", "effective_patterns"):
        assert_equal(getattr(masked, method)(state), getattr(absent, method)(state), operations=256)
    assert_equal(masked.separation()[keep], absent.separation())
    batch, states = hopfield_problem(seed=6, batch=(2, 3))
    single = batch.replace(patterns=batch.patterns[1, 2])
    assert_equal(batch.retrieve(states, 4)[1, 2], single.retrieve(states[1, 2], 4), operations=256)
    ragged = memory.replace(mask=torch.stack([keep, ~keep]))  # two masks, one set of patterns and of states
    assert_equal(ragged.retrieve(state, 3)[0], absent.retrieve(state, 3), operations=256)
    assert_equal(
        ragged.settle(state, 3, tol=None).energy[:, 0], absent.settle(state, 3, tol=None).energy, operations=256
    )


def test_memories_move_between_kinds_of_numbers(device):
    memory, state = hopfield_problem(mask=torch.arange(6) != 2, values=torch.ones(6, 1))
    low = memory.to(device, torch.float32)
    assert low.mask.dtype == torch.bool and low.beta.dtype == low.values.dtype == torch.float32
    near = low.replace(values=None).retrieve(state.to(device, torch.float32))
    # logits of order 10 in float32 err by some 1e-6, and so does a mean of numbers of order 1
    assert (near.cpu().double() - memory.replace(values=None).to("cpu").retrieve(state.cpu())).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda: {"beta": 0.0}, "beta must be > 0"),
        (
            lambda: {"patterns": torch.zeros(2, 3, 2), "beta": torch.ones(3)},
            r"do not broadcast: patterns \(2,\), beta \(3,\)",
        ),
        (lambda: {"patterns": torch.full((3, 2), math.inf)}, "patterns contains infinity"),
        (lambda: {"values": torch.zeros(2, 1)}, "patterns have 3 units but values have 2"),
        (lambda: {"mask": torch.ones(3)}, "mask must be boolean"),
        (lambda: {"mask": torch.zeros(3, dtype=torch.bool)}, "forbids every pattern"),
        (lambda: {"patterns": torch.zeros(0, 2)}, "patterns has no units; give at least one"),
        (lambda: {"transformation": "hardmax"}, "transformation must be one of"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.Hopfield(**{"patterns": torch.zeros(3, 2), "beta": 1.0} | arguments())
    with pytest.raises(ValueError, match="num_steps must be 1"):
        models.Hopfield(torch.zeros(3, 2), 1.0).retrieve(torch.zeros(1, 2), 0)


@pytest.mark.parametrize("transformation", ["softmax", "entmax15"])
def test_each_problem_may_have_a_beta_of_its_own(transformation):
    memory, state = hopfield_problem(8, batch=(2,), transformation=transformation)
    many = memory.replace(beta=torch.tensor([0.7, 3.0]))
    for i in range(2):
        alone, own = models.Hopfield(memory.patterns[i], many.beta[i], transformation=transformation), state[i]
        assert_equal(many.energy(state)[i], alone.energy(own), operations=256)
        assert_equal(many.retrieve(state, 3)[i], alone.retrieve(own, 3), operations=256)
        assert_equal(many.effective_patterns(state)[i], alone.effective_patterns(own), operations=256)
        assert_equal(many.retrieval_error_bound(0.1)[i], alone.retrieval_error_bound(0.1), operations=256)
        assert_equal(many.move(3).memory.patterns[i], alone.move(3).memory.patterns, operations=256)
