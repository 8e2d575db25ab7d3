"""Importance sampling of the log partition from a mean field: the bound with heads summed out, the estimate, and Pareto's k."""

import math

import numpy as np
import oracles_crf
import pytest
import torch
from strategies import crf_lists, crf_problem, crf_with_evidence, generator
from tolerances import rounding

from probtx_pyro import inference, models, results
from probtx_pyro.ops.dependency_crf import relu_normalized


def by_enumeration(crf, given, field):
    """Every labelling, ``log φ`` of it with heads summed out, and its probability under ``field``: scalars in loops."""
    p, q = crf_lists(crf), field.label_marginals.tolist()
    roots = [1.0] if crf.root_ternary is None else field.root_marginals.tolist()
    for z, root, log in oracles_crf.labellings(p, **{name: x.tolist() for name, x in given.items()}):
        yield (*z, root), log, roots[root] * math.prod(q[i][z[i]] for i in oracles_crf.present(p))


def check(crf, given, seed, field):
    table = [(log - math.log(weight), weight) for _, log, weight in by_enumeration(crf, given, field) if weight > 0]
    bound = sum(weight * log for log, weight in table)
    found = inference.importance_log_partition(crf, **given, proposal=field, num_draws=1000, seed=seed)
    exact, slack = crf.log_partition(**given), rounding(found.log_weights, operations=4096)
    assert float(field.elbo) - slack <= bound <= float(exact) + slack
    variance = sum(weight * (log - bound) ** 2 for log, weight in table)
    assert abs(float(found.bound) - bound) <= 4.5 * math.sqrt(variance / 1000) + slack  # 7e-6 by chance
    return float(field.elbo - bound), float(bound - exact)


def test_elbo_bound_and_log_partition_are_in_order_and_the_bound_is_that_of_enumeration():
    """Draws are compared with the exact mean and by the exact variance, so that 4.5 standard errors are what they say."""
    gaps = []
    for seed in (11, 23, 31):
        crf, given = crf_with_evidence(seed)
        gaps.append(check(crf, given, seed, crf.mean_field(20, **given)))
    assert min(a for a, _ in gaps) < -0.1 and min(b for _, b in gaps) < -0.1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_the_bound_of_a_hundred_problems_is_that_of_enumeration(seed):
    crf, given = crf_with_evidence(seed)
    for field in (crf.mean_field(20, **given), crf.structured_mean_field(5, **given, seed=seed)):
        check(crf, given, seed, field)


@pytest.mark.parametrize(("root", "known"), [(0, False), (0, True), (2, False)])
def test_the_choice_moved_last_is_where_the_bound_is_largest_given_the_others(root, known):
    """The others do not move after it, so that its logits are means of independent draws whose moments enumeration has."""
    crf = crf_problem(generator(9), words=4, labels=3, distances=(2,), root=root, scale=1.3)
    given, draws = {}, 1000
    if known:
        given = {
            "labels": torch.tensor([1, 0, 0, 0]), "observed": torch.tensor([True, False, False, False]),
            "heads": torch.tensor([[-1, 2, -1, 0], [-1, -1, -1, -1]]),
        }  # fmt: skip
    field = crf.structured_mean_field(6, num_draws=draws, **given, seed=0)
    last = -1 if root else -2  # in (*labels, root)
    own = (field.root_marginals if root else field.label_marginals[-1]).tolist()
    logs = {state: (log, weight / own[state[last]]) for state, log, weight in by_enumeration(crf, given, field)}
    for a in range(1, len(own)):
        first = [(logs[state], logs[(*state[:last], a, *state[last:][1:])]) for state in logs if state[last] == 0]
        rise = [(other - log, weight) for (log, weight), (other, _) in first]
        mean = sum(weight * x for x, weight in rise)
        error = math.sqrt(sum(weight * (x - mean) ** 2 for x, weight in rise) / draws)
        assert (
            sum(weight for _, weight in rise) == pytest.approx(1.0) and error > 1e-3
        )  # there is something to be wrong about
        assert abs(math.log(own[a] / own[0]) - mean) < 4.5 * error  # 7e-6 by chance
    if known:
        assert field.label_marginals[0].tolist() == [0.0, 1.0, 0.0]


def test_climbing_with_heads_summed_out_comes_nearer_to_log_z():
    """Strong scores, where mean field settles; and to marginals, of a problem that enumeration reaches."""
    crf = crf_problem(generator(5), batch=(2,), words=6, labels=4, distances=(2,), root=2, scale=1.3)
    plain, better = crf.mean_field(50, "sequential"), crf.structured_mean_field(10, seed=0)
    below, above = (
        inference.importance_log_partition(crf, proposal=x, num_draws=1000, seed=1) for x in (plain, better)
    )
    assert (above.bound - below.bound > 5 * (above.bound_error + below.bound_error)).all()
    exact = crf.marginals()
    for name, truth in (("label_marginals", exact.labels), ("head_marginals", exact.heads)):
        assert (getattr(better, name).sum(-1) - 1).abs().max() <= rounding(truth)
        assert (getattr(better, name) - truth).abs().mean() < 0.5 * (getattr(plain, name) - truth).abs().mean()


@pytest.mark.parametrize("known", [False, True])
def test_weights_are_unbiased(known):
    """Each sentence of the batch is a run of its own, of 8 draws."""
    crf = crf_problem(generator(1), words=4, labels=3, distances=(2,), root=2, scale=0.7)
    given = (
        {"labels": torch.tensor([0, 2, 1, 1]), "observed": torch.tensor([False, True, False, False])} if known else {}
    )
    exact, runs = crf.log_partition(**given), 1600
    many = crf.replace(unary=crf.unary.expand(runs, -1, -1))
    found = inference.importance_log_partition(
        many, **given, proposal=many.mean_field(20, **given), num_draws=8, seed=3
    )
    ratio, gap = (found.log_partition - exact).exp(), found.log_partition - exact
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / runs**0.5
    assert gap.mean() < -3 * gap.std() / runs**0.5  # Jensen
    assert found.log_weights.shape == (8, runs) and found.bound.shape == (runs,)
    assert ((found.effective_draws >= 1) & (found.effective_draws <= 8 + rounding(found.effective_draws))).all()


def test_draws_have_the_probabilities_of_the_field_and_padding_has_none():
    crf = crf_problem(generator(2), batch=(2,), words=4, labels=3, root=2, masked=True)
    field, number = crf.mean_field(5), 4000
    state = field.draw(number, generator(3))
    words = crf.mask.unsqueeze(-1)
    shares = (state["label"].unsqueeze(-1) == torch.arange(3)).double().mean(0)
    assert (state["label"][:, ~crf.mask] == -1).all() and not words.all()
    # five standard deviations of a share, at most 1/2 each
    assert ((shares - field.label_marginals).abs() < 5 * (0.25 / number) ** 0.5).all()
    expected = [
        math.prod(field.label_marginals[b, i, z].item() for i, z in enumerate(row) if z >= 0)
        * field.root_marginals[b, state["root_label"][0, b]].item()
        for b, row in enumerate(state["label"][0].tolist())
    ]
    assert field.log_prob(state)[0].exp().tolist() == pytest.approx(expected)


def test_a_field_that_is_exact_has_equal_weights():
    crf = crf_problem(generator(4), words=1, labels=4)
    found = inference.importance_log_partition(crf, proposal=crf.mean_field(1), num_draws=100, seed=0)
    for value in (found.bound, found.log_partition):
        assert abs(value - crf.log_partition()) <= rounding(value)
    assert repr(found) == "ImportanceLogPartition (): 100 draws"


def test_pareto_k_tells_a_field_that_serves_from_one_that_does_not():
    """Weak scores, where labels and heads hardly depend on each other, and strong ones, where mean field settles on few labellings."""
    found = []
    for scale in (0.3, 1.3):
        crf = crf_problem(generator(5), batch=(2,), words=12, labels=5, scale=scale)
        field = crf.mean_field(30, "sequential")
        weights = inference.importance_log_partition(crf, proposal=field, num_draws=1000, seed=0).log_weights
        found.append(results.pareto_k(weights))
    assert found[0].shape == (2,) and (found[0] < 0.5).all() and (found[1] > 0.7).all()


def test_the_k_of_each_problem_is_its_own():
    """Quantiles of Pareto distributions, and the tolerance for them, as in test_pareto_smoothed."""
    grid = np.random.default_rng(1).permutation((np.arange(20000) + 0.5) / 20000)
    log_weights = np.stack([np.zeros(20000), *(-k * np.log(grid) for k in (0.2, 0.8))], 1)
    k = results.pareto_k(torch.from_numpy(log_weights))
    assert k[0] == np.inf and (np.abs(k[1:] - [0.2, 0.8]) < 0.05).all()


@pytest.mark.parametrize("counts", [(900, 60, 40), (3000, 60, 20, 5), (600, 350, 25, 25), (990, 10), (1000,)])
def test_a_tail_of_few_values_has_no_shape(counts):
    """What a field that has settled gives; ArviZ 0.x finds shapes from -5 to 0.2 in some of them, and 1.x none or NaN."""
    assert results.pareto_k(np.repeat(np.arange(float(len(counts))), counts)) == np.inf


class Nothing:
    """No distribution at all."""


def call(crf, proposal=None, **options):
    proposal = crf.mean_field(1) if proposal is None else proposal
    return inference.importance_log_partition(crf, proposal=proposal, **{"seed": 0, **options})


BAD = {
    "one draw": (lambda crf: call(crf, num_draws=1), "num_draws must be 2 or more, because the standard errors"),
    "no draws": (lambda crf: call(crf, num_draws=0), "num_draws must be 1 or more, not 0"),
    "no seed": (lambda crf: call(crf, seed=None), "seed must be a non-negative integer"),
    "no proposal": (lambda crf: call(crf, Nothing()), "proposal must have draw and log_prob, not be a Nothing; give a mean field"),
    "not what is known": (lambda crf: call(crf, labels=torch.tensor([0, 1, 2])), "proposal draws choices that differ from what is known; make it with the same data"),
    "a word without marginals": (lambda crf: call(crf, crf.replace(unary=-1 - crf.unary.abs(), ternary=-crf.ternary.abs()).mean_field(1, normalizer=relu_normalized)), "label_marginals of a word are all zero"),
    "have a formulation": (lambda crf: inference.importance_log_partition(crf.unary, proposal=crf.mean_field(1), seed=0), "formulation must be a value of models, not a Tensor"),
    "no sweeps": (lambda crf: crf.structured_mean_field(0, seed=0), "num_steps must be an integer of 1 or more, not 0"),
    "a half draw": (lambda crf: crf.structured_mean_field(num_draws=0.5, seed=0), "num_draws must be an integer of 1 or more, not 0.5"),
    "a negative seed": (lambda crf: crf.structured_mean_field(seed=-1), "seed must be an integer of 0 or more, not -1"),
    "few weights": (lambda crf: results.pareto_k(torch.zeros(24)), r"log_weights must be finite floats \(draw, ...\), 25 or more, not float64 \(24,\)"),
    "infinite weights": (lambda crf: results.pareto_k(np.full(30, np.inf)), "log_weights must be finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_weighed_is_refused(name):
    made, said = BAD[name]
    with pytest.raises(ValueError, match=said) as caught:
        made(crf_problem(generator(8), words=3, labels=3))
    assert "\n" not in str(caught.value)


def test_a_mixture_has_no_latent_choices_to_weigh():
    crf = crf_problem(generator(8), words=3)
    with pytest.raises(NotImplementedError):
        inference.importance_log_partition(
            models.GaussianMixture(torch.zeros(2, 1)), torch.zeros(1, 1), proposal=crf.mean_field(1), seed=0
        )
