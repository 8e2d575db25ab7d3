"""The kernel is equal to the readable mean field of `probtx_pyro.ops.dependency_crf`: for every option, in values and gradients.

A sweep of both starts from the same state, so that no error is multiplied by the sweeps that follow. The readable form itself is
compared with loops over scalars in `test_dependency_crf`.
"""

import pytest
import torch
from strategies import crf_problem, generator
from tolerances import assert_equal

from probtx_pyro import models
from probtx_pyro.ops import _arc_kernel as kernel
from probtx_pyro.ops import dependency_crf as formulas
from probtx_pyro.ops.entmax import sparsemax

PROBLEMS = {
    "one group a direction": {"words": 7},
    "runs of single offsets": {"words": 9, "distances": (2, 3, 4)},
    "wide groups": {"words": 9, "distances": (3, 6)},
    "runs and wide groups": {"words": 9, "distances": (2, 4, 5)},
    "more distances than words": {"words": 3, "distances": (2, 3, 4, 9)},
    "low rank": {"words": 7, "distances": (2, 4), "rank": 2},
    "root": {"words": 6, "root": 2},
    "nodes": {"words": 6, "nodes": 2},
    "nodes of some channels": {"words": 6, "nodes": 2, "node_channels": 1},
    "nodes apart": {"words": 6, "nodes": 2, "split": True},
    "nodes of some channels apart": {"words": 6, "nodes": 1, "node_channels": 2, "split": True},
    "holes": {"words": 7, "masked": True, "distances": (2,)},
    "one word": {"words": 1},
    "one word, with a root and nodes": {"words": 1, "root": 2, "nodes": 2},
    "everything": {"words": 9, "distances": (2, 4), "rank": 2, "root": 3, "nodes": 2, "node_channels": 2, "split": True, "masked": True},
    "few words": {"words": 4, "distances": (2, 3), "root": 2, "nodes": 1, "node_channels": 2, "split": True, "masked": True},
    "everything in full rank": {"words": 9, "distances": (2, 3, 5), "root": 3, "nodes": 2, "node_channels": 2, "masked": True},
}  # fmt: skip


def without_the_first(x):
    """Stands for dropout: the first slot of heads, or label of words, is silenced."""
    return x * (torch.arange(x.shape[-1]) > 0)


RULES = {  # of labels, of heads
    "full": ({}, {}),
    "temperatures": ({"temperature": 0.6}, {"temperature": 1.7}),
    "steps": ({"step": 0.5}, {"step": 0.7}),
    "damping": ({"damping": 0.4}, {"damping": 0.3}),
    "relu": ({"normalizer": formulas.relu_normalized}, {"normalizer": formulas.relu_normalized}),
    "sparsemax": ({"normalizer": lambda logits, axis: sparsemax(logits)}, {}),
    "dropout": ({"dropout": without_the_first}, {"dropout": without_the_first}),
    "all": ({"temperature": 1.4, "step": 0.6, "damping": 0.2}, {"temperature": 0.4, "step": 0.8, "damping": 0.5, "dropout": without_the_first}),
}  # fmt: skip
SCHEDULES = ["asynchronous", "synchronous", "sequential"]
schedules = pytest.mark.parametrize("schedule", SCHEDULES)
CASES = [
    pytest.param(p, r, marks=pytest.mark.slow if p != "everything" and r == "all" else ())
    for p in PROBLEMS
    for r in RULES
    if r in ("full", "all") or p == "everything"
]
problems = pytest.mark.parametrize("problem", PROBLEMS)
together = pytest.mark.parametrize("numbers", [2**18, 1], ids=["channels together", "channels one by one"])


def draw(problem, seed=1, **options):
    return crf_problem(generator(seed), batch=(2,), channels=3, **PROBLEMS[problem], **options)


def leaves(crf):
    """The same CRF with potentials that require gradients, and these."""
    ternary = crf.ternary
    given = {"unary": crf.unary, "root_ternary": crf.root_ternary, "memory": crf.memory}
    given |= (
        {"left": ternary.left, "right": ternary.right} if isinstance(ternary, models.LowRank) else {"full": ternary}
    )
    given = {name: x.clone().requires_grad_() for name, x in given.items() if x is not None}
    own = {name: x for name, x in given.items() if name not in ("left", "right", "full")}
    ternary = given["full"] if "full" in given else models.LowRank(given["left"], given["right"])
    return crf.replace(ternary=ternary, **own), [*given.values()]


def marginals(crf, seed=2):
    """Labels, heads and root that are no fixed point of anything."""
    potentials, g = crf.potentials(), generator(seed)
    labels = torch.randn(potentials.unary.shape, generator=g).softmax(-1) * potentials.words.unsqueeze(-1)
    allowed = potentials.allowed().expand(-1, potentials.channels, -1, -1)
    heads = torch.rand(allowed.shape, generator=g) * allowed
    root = None if potentials.root is None else torch.rand(len(labels), potentials.root.shape[-1], generator=g)
    return [None if x is None else x.to(crf.unary.dtype).requires_grad_() for x in (labels, heads, root)]


def assert_same_gradients(ours, theirs, inputs):
    weights = [torch.randn(x.shape, generator=generator(90)).to(x.dtype) for x in theirs]
    found = []
    for side in (ours, theirs):
        nothing = sum(
            0.0 * x.sum() for x in inputs
        )  # numbers that depend on none, as for one word, have gradients of 0
        loss = sum(((w * x).sum() for w, x in zip(weights, side, strict=True)), nothing)
        found.append(torch.autograd.grad(loss, inputs, retain_graph=True))  # potentials are shared
    for x, y in zip(*found, strict=True):
        assert_equal(x, y, operations=1024)  # sums over words, labels and channels, some hundreds of terms each


def test_the_readable_form_does_not_call_the_kernel(monkeypatch):
    """Else the comparisons below would compare the kernel with itself."""
    monkeypatch.setattr(kernel.schedules.Channels, "of", None)
    monkeypatch.setattr(kernel.Prepared, "of", None)
    for schedule in formulas.SCHEDULES.values():
        state = formulas.mean_field(draw("everything").potentials(), 2, schedule)
        assert (
            formulas.objective(draw("everything").potentials(), formulas.PLAIN, formulas.PLAIN, state).isfinite().all()
        )


@pytest.mark.pairs
@problems
@together
@pytest.mark.parametrize("compiling", [False, True], ids=["by hand", "for a compiler"])
def test_scores_and_messages(problem, numbers, compiling, monkeypatch):
    monkeypatch.setattr(kernel.schedules, "AT_ONCE", numbers)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    crf, inputs = leaves(draw(problem))
    labels, heads, root = marginals(crf)
    potentials, told, to_root, scores = crf.potentials(), torch.zeros_like(labels), [], []
    for some, own in kernel.Prepared.of(potentials).by_channels():
        channels = kernel.schedules.Channels.of(own, labels, root)
        told, rooted = channels.messages(labels, heads[:, some], told)
        scores.append(channels.scores)
        to_root.append(rooted)
    ours = [torch.cat(scores, 1), told, *([] if root is None else [sum(to_root)])]
    theirs = [formulas.head_scores(potentials, labels, root), formulas.label_messages(potentials, labels, heads, root)]
    theirs += [] if root is None else [formulas.root_messages(potentials, labels, heads)]
    for x, y in zip(ours, theirs, strict=True):
        assert_equal(x, y)
    assert_same_gradients(ours, theirs, [*inputs, labels, heads, *([] if root is None else [root])])


@schedules
@pytest.mark.parametrize(("problem", "rules"), CASES)
def test_every_sweep_and_objective(schedule, problem, rules):
    potentials = draw(problem).potentials()
    label, head = (formulas.Rule(**options) for options in RULES[rules])
    given, state = kernel.Prepared.of(potentials), formulas.start(potentials, label, head)
    assert_equal(kernel.objective(given, label, head, state), formulas.objective(potentials, label, head, state))
    for first in (True, False):
        ours = kernel.SCHEDULES[schedule](given, label, head, state, first)
        state = formulas.SCHEDULES[schedule](potentials, label, head, state, first)
        assert ours.keys() == state.keys()
        scale = state["label_logits"], state["head_logits"]
        for name, x in state.items():
            assert_equal(ours[name], x, *scale)
        objective = formulas.objective(potentials, label, head, state)
        assert_equal(kernel.objective(given, label, head, state), objective, *scale)


@pytest.mark.pairs
@schedules
@problems
@together
def test_gradients_of_a_sweep(schedule, problem, numbers, monkeypatch):
    monkeypatch.setattr(kernel.schedules, "AT_ONCE", numbers)
    crf, inputs = leaves(draw(problem))
    heat = [torch.tensor(x, requires_grad=True) for x in (0.8, 1.3)]
    label, head = (formulas.Rule(t, step=0.7, damping=0.2) for t in heat)
    potentials = crf.potentials()
    before = formulas.mean_field(potentials, 1, formulas.synchronous, label, head)
    before = {name: x.detach().requires_grad_() for name, x in before.items()}
    ours = kernel.SCHEDULES[schedule](kernel.Prepared.of(potentials), label, head, before, False)
    theirs = formulas.SCHEDULES[schedule](potentials, label, head, before, False)
    names = sorted(theirs)
    assert_same_gradients([ours[n] for n in names], [theirs[n] for n in names], [*inputs, *heat, *before.values()])


@schedules
@pytest.mark.parametrize("problem", ["everything", "everything in full rank"])
def test_float32(schedule, problem):
    potentials, rule = draw(problem, dtype=torch.float32).potentials(), formulas.Rule()
    state = formulas.start(potentials, rule, rule)
    ours = kernel.SCHEDULES[schedule](kernel.Prepared.of(potentials), rule, rule, state, True)
    for name, x in formulas.SCHEDULES[schedule](potentials, rule, rule, state, True).items():
        assert ours[name].dtype == torch.float32
        assert_equal(ours[name], x)


@schedules
@pytest.mark.parametrize("problem", [pytest.param("low rank", marks=pytest.mark.slow), "few words"])
def test_mean_field_takes_a_schedule_by_name_or_as_a_function(schedule, problem):
    """Marginals, objectives of every sweep, and how many each sentence took, from the name of a schedule and from its readable form."""
    crf = draw(problem, scale=0.5)
    ours, theirs = (
        crf.mean_field(60, update, tol=1e-6, history=True, label_damping=0.3, head_temperature=0.9)
        for update in (schedule, formulas.SCHEDULES[schedule])
    )
    assert torch.equal(ours.num_steps, theirs.num_steps) and torch.equal(ours.converged, theirs.converged)
    assert ours.converged.all() and len(ours.num_steps.unique()) > 1
    for name in ("label_marginals", "head_marginals", "label_logits", "root_marginals", "root_logits", "objective"):
        if getattr(theirs, name) is not None:
            assert_equal(getattr(ours, name), getattr(theirs, name), theirs.objective)


@pytest.mark.slow
@schedules
@pytest.mark.parametrize("problem", ["low rank", "few words"])
def test_implicit_gradients(schedule, problem):
    found = []
    for update in (schedule, formulas.SCHEDULES[schedule]):
        crf, inputs = leaves(draw(problem, scale=0.3))
        field = crf.mean_field(80, update, implicit=True)
        loss = (field.label_marginals * torch.arange(3.0)).sum() + field.elbo.sum()
        found.append(torch.autograd.grad(loss, inputs))
    for x, y in zip(*found, strict=True):
        # the adjoint iteration stops where it moves by 64 eps; what is left is that over 1 - the rate of contraction
        assert (x - y).abs().max() < 1e-11


@schedules
def test_unrolled_iteration(schedule):
    """That of the encoder."""
    for options in ({}, {"step": 0.5, "damping": 0.2}):
        potentials, rule = draw("everything").potentials(), formulas.Rule(**options)
        state = kernel.iterate(potentials, rule, rule, kernel.SCHEDULES[schedule], 4)
        readable = formulas.mean_field(potentials, 4, formulas.SCHEDULES[schedule], rule, rule)
        assert_equal(state["label_logits"], readable["label_logits"])


@pytest.mark.parametrize("schedule", kernel.SCHEDULES)
@pytest.mark.parametrize("rank", [None, 2], ids=["full", "low rank"])
def test_channels_taken_one_by_one_are_channels_taken_together(schedule, rank, monkeypatch):
    g = generator(21)
    unary, full = torch.randn(2, 5, 3, generator=g), torch.randn(3, 4, 3, 3, generator=g)
    ternary = full if rank is None else models.LowRank(full[..., :rank], full[..., 1 : 1 + rank])
    root, memory = torch.randn(3, 3, 2, generator=g), torch.randn(2, 2, 3, generator=g)
    fields, gradients = [], []
    for numbers in (2**18, 1):
        monkeypatch.setattr(kernel.schedules, "AT_ONCE", numbers)
        x = unary.clone().requires_grad_()
        crf = models.DependencyCRF(x, ternary, distances=(2,), root_ternary=root, memory=memory)
        assert len(kernel.Prepared.of(crf.potentials()).weights) == (1 if numbers > 1 else 3)
        fields.append(crf.mean_field(3, schedule))
        gradients.append(torch.autograd.grad(fields[-1].elbo.sum() + fields[-1].label_logits.sum(), x)[0])
    for name in ("label_marginals", "head_marginals", "root_marginals", "elbo"):
        assert_equal(getattr(fields[1], name), getattr(fields[0], name))
    assert_equal(
        gradients[1], gradients[0], operations=1024
    )  # three sweeps forward and back, some 300 sums of 15 terms


@pytest.mark.pairs
@pytest.mark.parametrize("numbers", [2**18, 1], ids=["together", "one by one"])
@pytest.mark.parametrize("schedule", kernel.SCHEDULES)
@pytest.mark.parametrize("rank", [None, 2], ids=["full", "low rank"])
def test_without_gradients_memory_is_used_again_and_nothing_changes(schedule, rank, numbers, monkeypatch):
    """Bit for bit, with the objective of every sweep, which reads the same potentials in between; runs of offsets and bands."""
    monkeypatch.setattr(kernel.schedules, "AT_ONCE", numbers)
    crf = crf_problem(generator(22), batch=(2,), words=9, channels=3, distances=(2, 3, 5), rank=rank, root=2, nodes=2)
    with torch.no_grad():
        again = crf.mean_field(4, schedule, history=True)
    fresh = crf.mean_field(4, schedule, history=True)
    for name in ("label_logits", "head_marginals", "root_logits", "objective"):
        assert torch.equal(getattr(again, name), getattr(fresh, name))


@pytest.mark.parametrize("before", [False, True], ids=["then with", "then without"])
def test_autocast_may_change_after_the_potentials_are_prepared(before):
    """As where the backward pass at a fixed point takes a step of its own."""
    crf = crf_problem(generator(1), words=5, distances=(2, 4), channels=1, dtype=torch.float32).potentials()
    rule, update = formulas.Rule(), kernel.SCHEDULES["asynchronous"]

    def found(autocast):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            given = kernel.Prepared.of(crf)
        with torch.autocast("cpu", torch.bfloat16, enabled=not before):
            state = formulas.start(crf, rule, rule)
            for first in (True, False):
                state = update(given, rule, rule, state, first)
            return state["labels"]

    assert torch.equal(found(before), found(not before))


@schedules
@pytest.mark.parametrize("problem", ["runs and wide groups", "everything"])
def test_transforms_of_torch_func(problem, schedule):
    """Inside of them the kernel leaves its own backward passes and checkpoints, which they do not take."""
    crf = draw(problem).replace(mask=None)

    def heads(unary):
        return crf.replace(unary=unary).mean_field(3, schedule, tol=1e-3).head_marginals

    assert_equal(torch.func.vmap(heads)(crf.unary), heads(crf.unary), operations=1024)
    unary = crf.unary.clone().requires_grad_()
    (expected,) = torch.autograd.grad(heads(unary).square().sum(), unary)
    each = torch.func.vmap(torch.func.grad(lambda x: heads(x).square().sum()))
    assert_equal(each(crf.unary), expected, operations=1024)
