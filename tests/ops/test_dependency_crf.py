"""Mean field, in readable form and by the kernel, against a loop over scalars; what the objective does; dot-product attention.

That the two are equal for every option is tested in `test_arc_kernel`.
"""

import functools

import oracles_crf
import pytest
import torch
from strategies import crf_lists, crf_problem, generator
from tolerances import assert_equal, assert_never_falls
from torch.nn.functional import scaled_dot_product_attention

from probtx_pyro import models
from probtx_pyro.ops import dependency_crf as formulas

SCHEDULES = ["asynchronous", "synchronous", "sequential"]
schedules = pytest.mark.parametrize("schedule", SCHEDULES)
PROBLEMS = {
    "plain": {},
    "distances": {"words": 5, "distances": (2, 4), "channels": 1},
    "more distances than words": {"words": 2, "distances": (2, 3, 4)},
    "low rank": {"rank": 2, "distances": (2,)},
    "root": {"root": 2},
    "nodes": {"nodes": 2},
    "nodes of some channels": {"nodes": 2, "node_channels": 1},
    "nodes apart": {"nodes": 2, "split": True},
    "nodes of some channels apart": {"nodes": 1, "node_channels": 1, "split": True},
    "holes": {"words": 6, "masked": True, "labels": 2},
    "everything": {"words": 5, "distances": (3,), "rank": 1, "root": 3, "nodes": 2, "node_channels": 1, "split": True, "masked": True},
    "one word": {"words": 1},
    "one word and a root": {"words": 1, "root": 2},
}  # fmt: skip
OPTIONS = {
    "full": {},
    "temperatures": {"label_temperature": 0.6, "head_temperature": 1.7},
    "steps": {"label_step": 0.5, "head_step": 0.7},
    "damping": {"label_damping": 0.4, "head_damping": 0.3},
    "all": {"label_temperature": 1.4, "head_temperature": 0.4, "label_step": 0.6, "head_step": 0.8, "label_damping": 0.2, "head_damping": 0.5},
}  # fmt: skip
NORMALIZERS = {  # ours, the oracle's
    "softmax": (torch.softmax, oracles_crf.softmax),
    "relu": (formulas.relu_normalized, oracles_crf.positive_parts),
}


def crf_of(name, seed=1):
    return crf_problem(generator(seed), **PROBLEMS[name])


@functools.lru_cache(maxsize=4)
def by_loops(problem, schedule, options, normalizer):
    """The states after every sweep, and their objectives."""
    lists, options = crf_lists(crf_of(problem)), OPTIONS[options]
    trace = oracles_crf.mean_field(lists, 3, schedule, normalize=NORMALIZERS[normalizer][1], **options)
    heat = {name: value for name, value in options.items() if "temperature" in name}
    return trace, [oracles_crf.objective(lists, state, **heat) for state in trace]


CASES = [
    pytest.param(
        problem, options, normalizer, marks=pytest.mark.slow if problem != "everything" and options == "all" else ()
    )
    for problem in PROBLEMS
    for options in OPTIONS
    for normalizer in NORMALIZERS
    if problem == "everything" or (options, normalizer) in (("full", "softmax"), ("all", "relu"))
]


@schedules
@pytest.mark.parametrize(("problem", "options", "normalizer"), CASES)
@pytest.mark.parametrize("form", ["kernel", pytest.param("readable", marks=pytest.mark.slow)])
def test_schedules_are_the_formulas(form, problem, schedule, options, normalizer):
    trace, objective = by_loops(problem, schedule, options, normalizer)
    crf, ours, objective = crf_of(problem), NORMALIZERS[normalizer][0], torch.tensor(objective)
    update = schedule if form == "kernel" else formulas.SCHEDULES[schedule]
    field = crf.mean_field(3, update, history=True, normalizer=ours, **OPTIONS[options])
    scale = field.label_logits, objective
    assert_equal(field.objective, objective, *scale)
    assert_equal(field.elbo, objective[-1], *scale)
    for name, found in (
        ("labels", field.label_marginals),
        ("heads", field.head_marginals),
        ("logits", field.label_logits),
    ):
        assert_equal(found, torch.tensor(trace[-1][name]), *scale)
    if crf.root_ternary is not None:
        assert_equal(field.root_marginals, torch.tensor(trace[-1]["root"]), *scale)
        assert_equal(field.root_logits, torch.tensor(trace[-1]["root_logits"]), *scale)


@schedules
@pytest.mark.parametrize("problem", ["low rank", "everything"])
def test_factors_are_their_product(problem, schedule):
    crf = crf_of(problem)
    full = crf.replace(ternary=crf.full_ternary())
    assert_equal(crf.mean_field(3, schedule).label_logits, full.mean_field(3, schedule).label_logits)


@schedules
def test_factors_shared_by_the_channels_are_their_sum(schedule):
    g = generator(4)
    left, right = (torch.randn(4, 3, 2, generator=g, dtype=torch.float64) for _ in range(2))
    weights = torch.randn(4, 5, 2, generator=g, dtype=torch.float64)
    unary = torch.randn(4, 3, generator=g, dtype=torch.float64)
    ternary = models.LowRank.shared(left, right, weights)
    outer = torch.einsum("gar,gbr,gcr->cgab", left, right, weights)
    assert_equal(ternary.full(), outer)
    shared, full = (models.DependencyCRF(unary, t, distances=(2,)).mean_field(3, schedule) for t in (ternary, outer))
    assert_equal(shared.label_logits, full.label_logits)


@pytest.mark.pairs
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("step", [0.3, 1.0])
@pytest.mark.parametrize("damping", [0.0, 0.6])
def test_sequential_never_lowers_the_objective(temperature, step, damping):
    options = {f"{who}_{what}": x for who in ("label", "head") for what, x in (("temperature", temperature), ("step", step), ("damping", damping))}  # fmt: skip
    for name in ("plain", "everything"):
        crf = crf_problem(generator(5), batch=(30,), scale=2.0, **PROBLEMS[name])
        field = crf.mean_field(12, "sequential", history=True, **options)
        assert_never_falls(field.objective, field.label_logits)
        assert (field.objective[-1] > field.objective[0] + 0.01).any()


def test_parallel_label_updates_can_lower_it_and_damping_prevents_that():
    unary = torch.tensor([[0.1, 0.0]], dtype=torch.float64).expand(4, 2)
    crf = models.DependencyCRF(unary, -2 * torch.eye(2, dtype=torch.float64).expand(1, 2, 2, 2))
    two_decimals = torch.tensor([3.36, 3.34, 3.26, 2.96, 2.01, -0.10])
    trace = crf.mean_field(5, history=True).objective
    assert (trace - two_decimals).abs().max() <= 0.005
    assert_never_falls(crf.mean_field(5, "sequential", history=True).objective)
    for cure in ({"label_damping": 0.7}, {"label_step": 0.3}):
        assert_never_falls(crf.mean_field(30, history=True, **cure).objective)


@schedules
@pytest.mark.parametrize("masked", [False, True])
def test_without_arcs_mean_field_is_exact(schedule, masked):
    crf = crf_problem(generator(6), batch=(3,), masked=masked)
    crf = crf.replace(ternary=torch.zeros_like(crf.ternary))
    field, exact = crf.mean_field(2, schedule), crf.marginals()
    assert_equal(field.label_marginals, exact.labels)
    assert_equal(field.head_marginals, exact.heads)
    assert_equal(field.elbo, crf.log_partition())


@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("channels", [1, 3])
def test_head_marginals_are_scaled_dot_product_attention(temperature, channels):
    """T = U V' in all groups: torch's attention with queries Q U, keys Q V, the word itself masked, and values I."""
    g = generator(7)
    left, right = (torch.randn(channels, 1, 6, 4, generator=g, dtype=torch.float64) for _ in range(2))
    unary = torch.randn(2, 9, 6, generator=g, dtype=torch.float64)
    crf = models.DependencyCRF(unary, models.LowRank(left.expand(-1, 2, -1, -1), right.expand(-1, 2, -1, -1)))
    earlier = crf.mean_field(3, head_temperature=temperature)
    field = crf.mean_field(4, head_temperature=temperature)
    labels = earlier.label_marginals.unsqueeze(1)
    other = ~torch.eye(9, dtype=torch.bool)
    identity = torch.eye(9, dtype=torch.float64).expand(2, channels, 9, 9)
    weights = scaled_dot_product_attention(
        labels @ left[:, 0], labels @ right[:, 0], identity, attn_mask=other, scale=1 / temperature
    )
    assert (field.head_marginals - weights).abs().max() <= 1e-12


def test_relu_normalisation():
    rows = torch.tensor([[1.0, 3.0, -2.0], [-1.0, -2.0, -torch.inf]])
    assert formulas.relu_normalized(rows, -1).tolist() == [[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]


def test_a_callable_is_a_schedule():
    crf = crf_of("plain")
    seen = []

    def labels_only(potentials, label, head, state, first):
        seen.append((type(potentials), first))
        new = formulas.asynchronous(potentials, label, head, state, first)
        return {**new, "heads": state["heads"], "head_logits": state["head_logits"]}

    field = crf.mean_field(3, labels_only)
    assert seen == [(formulas.Potentials, first) for first in (True, False, False)]
    assert_equal(field.head_marginals, formulas.start(crf.potentials(), formulas.Rule(), formulas.Rule())["heads"][0])


def test_marginals_that_no_sum_can_feel_are_zero():
    """e^-60 is 9e-27, below the square of float32's rounding error, 1.4e-14; e^-30 is 9e-14, above it."""
    unary = torch.tensor([[[0.0, -30.0, -60.0]]], dtype=torch.float32)
    field = models.DependencyCRF(unary, torch.zeros(1, 2, 3, 3, dtype=torch.float32)).mean_field(1)
    exact = unary.double().softmax(-1)
    assert field.label_marginals[0, 0, 2] == 0 < exact[0, 0, 2]
    assert_equal(field.label_marginals[0, 0, 1] / exact[0, 0, 1].float(), torch.ones((), dtype=torch.float32))
    assert_equal(field.elbo, unary.logsumexp(-1)[:, 0])


@pytest.mark.parametrize("length", [1, 2, 3, 7, 15, 16, 17])
def test_softmax_of_short_rows_is_that_of_torch(length):
    """Values and gradients, with logits of -inf and far from zero."""
    logits = torch.randn(3, 2, length, generator=generator(5), dtype=torch.float64)
    logits[0] += 800
    logits[1, :, 1:] = -torch.inf
    logits.requires_grad_()
    weights = torch.randn(logits.shape, generator=generator(6), dtype=torch.float64)
    ours, theirs = (f(logits, -1) for f in (formulas.PLAIN.normalizer, torch.softmax))
    assert_equal(ours, theirs)
    assert_equal(*(torch.autograd.grad((x * weights).sum(), logits)[0] for x in (ours, theirs)))
