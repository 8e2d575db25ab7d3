"""The dependency CRF as Pyro programs: what Pyro's own enumeration, Monte Carlo and SVI say about it, and its log density."""

import itertools

import oracles_crf
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.optim import Adam
from strategies import crf_lists, crf_problem, crf_sentence, generator
from tolerances import assert_equal

PROBLEMS = {
    "plain": {"words": 3, "labels": 2, "channels": 2},
    "distances": {"words": 3, "distances": (2,), "rank": 2, "channels": 1},
    "root": {"words": 3, "labels": 2, "channels": 1, "root": 3},
    "nodes": {"words": 3, "labels": 2, "nodes": 2, "node_channels": 1},
    "nodes apart": {"words": 2, "labels": 2, "nodes": 2, "root": 2, "split": True},
    "holes": {"words": 4, "labels": 2, "masked": True, "root": 2, "channels": 1},
    "one word": {"words": 1},
}
problems = pytest.mark.parametrize("name", PROBLEMS)
EXACT = TraceEnum_ELBO(max_plate_nesting=0)


def nothing():
    """An empty guide."""


def assignments(crf):
    """Every labelling with every choice of heads, and its log density by loops; absent words and choices are 0."""
    p, size = crf_lists(crf), crf.unary.shape[0]
    labels = itertools.product(*(range(len(p["unary"][0])) if word else [0] for word in p["words"]))
    slots = itertools.product(*(slots for _, _, slots in oracles_crf.choices(p)))
    first = oracles_crf.first(p)
    for z, chosen, root in itertools.product(labels, slots, range(oracles_crf.labels_of_root(p))):
        heads = torch.zeros(len(p["ternary"]), size, dtype=torch.long)
        nodes = torch.zeros(len(p["memory"]) if p["split"] else 0, size, dtype=torch.long)
        for (c, i, _), slot in zip(oracles_crf.choices(p), chosen, strict=True):
            if p["split"] and slot >= first + size:
                nodes[c, i] = slot - first - size
            else:
                heads[c, i] = slot
        yield torch.tensor(z), heads, torch.tensor(root), nodes, oracles_crf.log_joint(p, z, chosen, root)


def arguments(crf, labels, heads, root, nodes):
    """As `log_joint` takes them."""
    return (labels, heads, root if crf.root_ternary is not None else None, nodes if crf.memory_split else None)


@problems
def test_log_joint_is_the_sum_over_loops(name):
    crf = crf_problem(generator(1), **PROBLEMS[name])
    *found, truth = zip(*assignments(crf), strict=True)
    found = [torch.stack(x) for x in found]
    many = crf.replace(unary=crf.unary.expand(len(truth), -1, -1))
    assert_equal(many.log_joint(*arguments(crf, *found)), torch.tensor(truth))
    assert_equal(crf.log_joint(*arguments(crf, *(x[-1] for x in found))), torch.tensor(truth[-1]))


@problems
def test_heads_sum_out(name):
    """``log φ(Z)`` in closed form is the sum of ``φ(Z, H)`` over heads, loop by loop; the collapsed program has it as its density."""
    crf, sums = crf_problem(generator(1), batch=(), **PROBLEMS[name]), {}
    for labels, _, root, _, log in assignments(crf):
        key = tuple(labels.tolist()), int(root)
        sums[key] = torch.logaddexp(sums.get(key, torch.tensor(-torch.inf)), torch.tensor(log))
    every = torch.tensor([key[0] for key in sums])
    root = torch.tensor([key[1] for key in sums]) if crf.root_ternary is not None else None
    found = crf.log_joint(every, root_label=root)  # labellings lie in front of the sentences
    assert_equal(found, torch.stack([*sums.values()]), operations=4096)
    values = {"label": every[-1]} | ({} if root is None else {"root_label": root[-1]})
    trace = poutine.trace(poutine.condition(crf.collapsed, values)).get_trace()
    assert_equal(trace.log_prob_sum(), found[-1])
    assert {site for site in trace.stochastic_nodes if trace.nodes[site]["fn"].has_enumerate_support} == set()
    assert ("head" in trace.nodes, "node" in trace.nodes) == (False, False)


def test_some_heads_known_and_others_summed_out():
    crf = crf_problem(generator(2), words=3, labels=2, channels=1, root=2, nodes=1, split=True)
    labels, root = torch.tensor([0, 1, 1]), torch.tensor(1)
    given = torch.tensor([[-1, 0, 2]])
    logs = [log for z, heads, r, nodes, log in assignments(crf)
            if z.equal(labels) and r == root and heads[0, 1] == 0 and heads[0, 2] == 2 and (nodes[0] == 0).all()]  # fmt: skip
    assert len(logs) == 3
    found = crf.log_joint(labels, given, root, torch.zeros(1, 3, dtype=torch.long))
    assert_equal(found, torch.tensor(logs).logsumexp(0))


def test_a_forbidden_head_has_no_density():
    crf = crf_problem(generator(2), words=3, channels=1, nodes=1)
    crf = crf.replace(mask=torch.tensor([True, True, False]))
    labels = torch.zeros(3, dtype=torch.long)
    for heads, allowed in (([1, 0, 0], True), ([3, 3, 0], True), ([0, 0, 0], False), ([2, 0, 0], False)):
        assert torch.isfinite(crf.log_joint(labels, torch.tensor([heads]))) == allowed


@problems
def test_enumeration_by_pyro_is_the_log_partition(name):
    crf = crf_problem(generator(3), **PROBLEMS[name])
    assert_equal(torch.tensor(-EXACT.loss(crf.enumerated, nothing)), crf.log_partition())


@problems
@pytest.mark.parametrize("sweeps", [1, 4])
def test_enumerated_guide_has_the_objective_as_its_elbo(name, sweeps):
    crf = crf_problem(generator(4), **PROBLEMS[name])
    field = crf.mean_field(sweeps)
    elbo = -EXACT.loss(crf.enumerated, lambda: crf.enumerated_guide(field=field))
    assert_equal(torch.tensor(elbo), field.elbo, crf.log_partition())


@problems
def test_marginals_of_pyro_are_the_exact_ones(name):
    crf = crf_problem(generator(5), **PROBLEMS[name])
    found, exact = EXACT.compute_marginals(crf.enumerated, nothing), crf.marginals()
    parts = dict(zip(("head", "node"), exact.heads.split(crf.potentials().parts, -1), strict=False))
    for site, marginal in found.items():
        kind, *index = site.split("_")
        if kind == "root":
            truth = exact.root
        elif kind == "label":
            truth = exact.labels[int(index[0])]
        else:
            truth = parts[kind][int(index[0]), int(index[1])]
            truth = truth[truth > 0]  # the site counts the slots that are allowed
        assert_equal(marginal.probs, truth)
    p = crf_lists(crf)
    assert len(found) == len(oracles_crf.present(p)) + len(oracles_crf.choices(p)) + (p["root"] is not None)


@pytest.mark.parametrize("name", ["root", *(
    pytest.param(name, marks=pytest.mark.slow) for name in ("plain", "distances", "nodes", "nodes apart", "holes", "one word")
)])  # fmt: skip
def test_what_is_known_has_one_choice_in_the_enumerated_program(name):
    crf = crf_problem(generator(14), **PROBLEMS[name])
    p, size = crf_lists(crf), len(crf.unary)
    labels, observed, heads = (
        torch.ones(size, dtype=torch.long),
        torch.arange(size) == 1,
        torch.full((len(p["ternary"]), size), -1),
    )
    for channel, word, slots in oracles_crf.choices(p)[:1]:
        heads[channel, word] = slots[-1]
    known = {"labels": labels, "heads": heads, "observed": observed}
    exact = oracles_crf.enumerate_all(p, labels.tolist(), observed.tolist(), heads.tolist())
    elbo = EXACT.loss(lambda: crf.enumerated(**known), nothing)
    assert_equal(torch.tensor(-elbo), torch.tensor(exact["log_partition"]))
    field = crf.mean_field(3, **known)
    elbo = -EXACT.loss(lambda: crf.enumerated(**known), lambda: crf.enumerated_guide(**known, field=field))
    assert_equal(torch.tensor(elbo), field.elbo, crf.log_partition())
    free = EXACT.loss(lambda: crf.enumerated(**known), lambda: crf.enumerated_guide(**known))
    assert -free <= exact["log_partition"] + 1e-9


BATCHES = {"one sentence": (), "batch": (3,), "two axes": (2, 2)}


def trace_values(trace):
    """Sites of the plated program without the axes of its plates that `log_joint` does not have."""
    value = {name: node["value"] for name, node in trace.nodes.items() if node["type"] == "sample"}
    label, root = value["label"], value.get("root_label")
    return (
        label.squeeze(-2) if label.dim() > 1 else label,
        value["head"],
        root.squeeze((-2, -1)) if root is not None and root.dim() else root,
        value.get("node"),
    )


@problems
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_model_replayed_on_the_guide_has_log_phi_as_its_density(name, batch):
    crf = crf_problem(generator(6), batch=batch, **PROBLEMS[name])
    field = crf.mean_field(3)
    drawn = poutine.trace(crf.guide).get_trace(field=field)
    replayed = poutine.trace(poutine.replay(crf.model, trace=drawn)).get_trace()
    value = crf.log_joint(*trace_values(drawn))
    assert value.shape == batch
    assert torch.isfinite(value).all()
    assert_equal(replayed.log_prob_sum(), value.sum())
    if not batch:  # the density of the guide is the product of the marginals chosen
        p, (labels, heads, root, nodes) = crf_lists(crf), trace_values(drawn)
        log = sum(field.label_marginals[i, labels[i]].log() for i in oracles_crf.present(p))
        for c, i, slots in oracles_crf.choices(p):
            own = nodes[c, i] + oracles_crf.first(p) + len(p["unary"]) if p["split"] and slots[0] > len(p["unary"]) else heads[c, i]  # fmt: skip
            assert own in slots
            log = log + field.head_marginals[c, i, own].log()
        log = log if root is None else log + field.root_marginals[root].log()
        assert_equal(drawn.log_prob_sum(), log)


@pytest.mark.slow
@problems
def test_elbo_of_many_particles_averages_to_the_objective(name):
    crf = crf_problem(generator(7), batch=(2,), **PROBLEMS[name])
    field = crf.mean_field(3)
    particles, rounds = 1000, 8
    loss = Trace_ELBO(num_particles=particles, vectorize_particles=True, max_plate_nesting=3)
    draws = torch.tensor([-loss.loss(crf.model, lambda: crf.guide(field=field)) for _ in range(rounds)])
    # the error of one round from single particles of the same program; five of those of the mean of all
    one = torch.tensor([-Trace_ELBO().loss(crf.model, lambda: crf.guide(field=field)) for _ in range(60)])
    error = one.std() / (particles * rounds) ** 0.5
    assert abs(draws.mean() - field.elbo.sum()) < 5 * error * (1 + 5 / 120**0.5) + 1e-10


def test_conditioning_and_prediction():
    crf = crf_problem(generator(8), batch=(2,), words=3, labels=2, root=2)
    field = crf.mean_field(3)
    labels = torch.tensor([[[0, 1, 1]], [[1, 1, 0]]])
    conditioned = poutine.condition(crf.model, {"label": labels})
    trace = poutine.trace(conditioned).get_trace()
    _, heads, root, _ = trace_values(trace)
    assert_equal(trace.log_prob_sum(), crf.log_joint(labels.squeeze(1), heads, root).sum())
    draws = Predictive(crf.model, guide=lambda: crf.guide(field=field), num_samples=2000, parallel=True)()
    frequency = torch.nn.functional.one_hot(draws["head"], 4).double().mean(0)
    # five standard deviations of a frequency
    error = (field.head_marginals * (1 - field.head_marginals) / 2000).sqrt()
    assert ((frequency - field.head_marginals).abs() <= 5 * error).all()
    assert draws["label"].shape == (2000, 2, 1, 3)


@pytest.mark.parametrize("program", ["model", "collapsed"])
def test_what_is_known_is_drawn_and_a_masked_sentence_has_no_density(program):
    crf = crf_problem(generator(8), batch=(2,), words=3, labels=3, root=2, masked=True)
    labels, observed = torch.randint(3, (2, 3), generator=generator(9)), torch.tensor([True, True, False])
    words = crf.mask & observed
    for seed in range(5):
        with poutine.seed(rng_seed=seed):
            trace = poutine.trace(getattr(crf, program)).get_trace(labels, observed=observed)
        drawn, heads, root, _ = trace_values(trace) if program == "model" else (*trace_values_of_labels(trace), None)
        assert drawn[words].equal(labels[words])
        expected = crf.log_joint(drawn, heads, root)
        assert_equal(trace.log_prob_sum(), expected.sum())
        with poutine.seed(rng_seed=seed):
            kept = torch.tensor([True, False])[:, None, None]
            half = poutine.trace(poutine.mask(getattr(crf, program), kept)).get_trace(labels, observed=observed)
        assert_equal(half.log_prob_sum(), expected[0])


def trace_values_of_labels(trace):
    """Labels and the root's label of the collapsed program, with no heads between them."""
    return trace.nodes["label"]["value"].squeeze(-2), None, trace.nodes["root_label"]["value"].squeeze((-2, -1))


def test_labels_of_one_sentence_condition_the_program_without_an_axis():
    crf = crf_problem(generator(8), words=3, labels=2, root=2)
    labels = torch.tensor([0, 1, 1])
    trace = poutine.trace(poutine.condition(crf.model, {"label": labels})).get_trace()
    _, heads, root, _ = trace_values(trace)
    assert trace.nodes["label"]["fn"].batch_shape == (3,) and heads.shape == (2, 3) and root.shape == ()
    assert_equal(trace.log_prob_sum(), crf.log_joint(labels, heads, root))


def test_a_guide_without_a_field_is_the_mean_field_of_attention():
    crf = crf_problem(generator(8), batch=(2,), words=3, labels=2)
    loss = SVI(crf.model, crf.guide, Adam({"lr": 0.1}), Trace_ELBO()).step()
    assert torch.isfinite(torch.tensor(loss))
    trace = poutine.trace(crf.guide).get_trace()
    assert_equal(trace.nodes["head"]["fn"].probs, crf.attention())
    assert_equal(trace.nodes["label"]["fn"].probs.squeeze(-3), crf.expected_outputs())


@pytest.mark.parametrize("name", ["plain", "root", "one word"])
def test_enumerating_the_plated_program_is_refused_and_the_enumerated_one_named(name):
    crf = crf_problem(generator(8), **{**PROBLEMS[name], "words": max(2, PROBLEMS[name]["words"])})
    with pytest.raises(NotImplementedError, match=r"cannot be enumerated.*crf\.enumerated"):
        MCMC(NUTS(crf.model), num_samples=2, warmup_steps=2, disable_progbar=True).run()
    with pytest.raises(NotImplementedError, match=r"cannot be enumerated.*crf\.enumerated"):
        TraceEnum_ELBO(max_plate_nesting=3).loss(config_enumerate(crf.model), nothing)


def test_render_model_names_sites_and_plates():
    crf = crf_problem(generator(9), batch=(2,), nodes=2, root=2, split=True)
    source = pyro.render_model(crf.model).source
    for name in ("label", "head", "root_label", "node", "word", "channel", "node_channel", "sentence"):
        assert name in source


def test_the_enumerated_program_takes_one_sentence():
    crf = crf_problem(generator(10), batch=(2,), words=2)
    for program in (crf.enumerated, crf.enumerated_guide):
        with pytest.raises(
            ValueError, match=r"enumerated program takes one sentence, not batch axes \(2,\); index one"
        ):
            program()
    assert_equal(torch.tensor(-EXACT.loss(crf_sentence(crf, 1).enumerated, nothing)), crf.log_partition()[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["root", "nodes apart"])
def test_svi_with_free_logits_reaches_the_stationary_point_of_mean_field(name):
    crf = crf_problem(generator(11), scale=0.7, **PROBLEMS[name])
    field = crf.mean_field(500, "sequential", tol=1e-13)
    svi = SVI(crf.enumerated, crf.enumerated_guide, Adam({"lr": 0.1}), EXACT)
    start = -svi.evaluate_loss()
    for _ in range(150):
        svi.step()
    assert start < field.elbo - 1e-3
    found = -svi.evaluate_loss()
    assert abs(found - field.elbo) < 1e-6  # quadratic in the distance from the stationary point, below 1e-3
    for i, row in enumerate(field.label_marginals):
        assert (pyro.param(f"label_{i}_logits").softmax(-1) - row).abs().max() < 1e-3


def test_missing_or_superfluous_root_and_nodes_are_refused():
    rooted = crf_problem(generator(12), words=2, root=2)
    split = crf_problem(generator(12), words=2, nodes=2, split=True)
    labels, heads = torch.zeros(2, dtype=torch.long), torch.ones(2, 2, dtype=torch.long)
    with pytest.raises(ValueError, match=r"root_label must be given with a CRF that has a root, and only then"):
        rooted.log_joint(labels, heads)
    with pytest.raises(ValueError, match=r"nodes must be given with heads and memory_split=True, and only then"):
        split.log_joint(labels, heads)
    with pytest.raises(ValueError, match=r"root_label must be given with a CRF that has a root"):
        split.log_joint(labels, heads, torch.tensor(0))
