"""The gap of a guide: divergences by loops and on paper, quadrature over a key, and the ELBO that Pyro computes."""

import math
from contextlib import nullcontext
from functools import partial

import oracles
import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Gamma, LogNormal, Normal
from pyro.infer import TraceEnum_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoNormal
from strategies import generator, keys_problem, lists, problem
from tolerances import assert_equal

from probtx_pyro import inference, models, results

SIGMAS = 5  # of Monte Carlo errors: false alarm 6e-7 each


def fit(posterior, *data, guide, steps=1, rate=1e-6, samples=2, **options):
    """A guide as it is given, but for one step of a millionth."""
    return inference.variational(
        posterior, *data, guide=guide, num_steps=steps, learning_rate=rate, num_samples=samples, seed=0, **options
    )


def divergences(p, attention):
    """``KL(A_i || W_i)`` of each query by loops."""
    exact = oracles.attention(p)
    return [
        sum(a * (math.log(a) - math.log(w)) for a, w in zip(row, true, strict=True) if a > 0)
        for row, true in zip(attention, exact, strict=True)
    ]


@pytest.mark.parametrize("answers", ["none", "gaussian", "categorical"])
def test_the_gap_of_a_wrong_guide_is_its_divergence(answers):
    g = generator(1)
    metric = None if answers == "categorical" else "full"
    answer = "gaussian" if answers == "none" else answers
    mixture, *data = problem(g, queries=6, masked=True, answer=answer, metric=metric)
    data = data[:1] if answers == "none" else data
    posterior = models.bayesian(mixture, collapsed=False)
    found = fit(posterior, *data, guide=inference.AttentionGuide(posterior, torch.randn(6, 4, generator=g)))
    gap = results.gap(found, seed=0)
    attention = found.guide.attention(*data)
    by_loops = torch.tensor(divergences(lists(mixture, *data), attention.tolist()))
    evidence = mixture.log_evidence(*data)
    assert_equal(gap.assignments, by_loops, evidence)
    assert (gap.assignments > 0).all() and (gap.assignments_error == 0).all() and gap.parameters is None
    if answers != "none":  # else answers are drawn in the program, and the loss has their noise
        elbo = TraceEnum_ELBO(max_plate_nesting=1)
        loss = elbo.loss(lambda: mixture.model(*data), lambda: mixture.guide(*data, attention=attention))
        assert_equal(torch.tensor(loss), gap.assignments.sum() - evidence.sum(), evidence)


def test_the_gap_of_the_exact_attention_is_nothing_and_the_elbo_is_the_evidence():
    mixture, *data = problem(generator(2), batch=(2,), queries=7, masked=True)
    posterior = models.bayesian(mixture, collapsed=False)
    guide = inference.AttentionGuide(posterior, mixture.log_joint)
    found = fit(posterior, *data, guide=guide)
    evidence = mixture.log_evidence(*data)
    assert_equal(-found.losses[0], evidence.sum().double(), evidence.abs().sum())
    assert_equal(found.draws.statistics["lp"], evidence.sum().double(), evidence.abs().sum())
    assert_equal(results.gap(found, seed=0).assignments, torch.zeros(2, 7), evidence)


def test_absent_queries_have_no_gap():
    mixture, queries, *_ = problem(generator(3), queries=6)
    present = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    posterior = models.bayesian(mixture, collapsed=False)
    guide = inference.AttentionGuide(posterior, torch.zeros(6, 4))
    gaps = [
        results.gap(fit(posterior, queries, guide=guide, **kept), seed=0).assignments
        for kept in ({}, {"query_weights": present})
    ]
    assert_equal(gaps[1], gaps[0] * present, mixture.log_evidence(queries))
    assert (gaps[0] > 1e-3).all()


def test_the_component_of_a_key_counts():
    mixture, queries = keys_problem(generator(4))[:2]
    posterior = models.bayesian(mixture, collapsed=False)
    found = fit(
        posterior, queries, guide=inference.AttentionGuide(posterior, torch.zeros(queries.shape[-2], mixture.num_units))
    )
    by_loops = divergences(lists(mixture, queries), found.guide.attention(queries).tolist())
    assert_equal(results.gap(found, seed=0).assignments, torch.tensor(by_loops), mixture.log_evidence(queries))

    def unit_alone(queries, *_):
        with pyro.plate("query", queries.shape[-2]):
            pyro.sample("unit", pyro.distributions.Categorical(logits=torch.zeros(mixture.num_units)))

    with pytest.raises(ValueError, match="draws unit but not component"):
        results.gap(fit(posterior, queries, guide=unit_alone), seed=0)


# -- parameters ----------------------------------------------------------------------------------------------------------------

QUERIES, PRECISION, PRIOR = torch.tensor([[0.3, 1.0], [1.1, 0.0], [2.0, -1.0]]).double(), 2.0, 0.8


def one_unit():
    """A posterior that is normal, its mean and its standard deviation."""
    mixture = models.GaussianMixture(torch.zeros(1, 2), key_precision=PRECISION)
    strength = PRIOR**-2 + PRECISION * len(QUERIES)
    mean = [[PRECISION * sum(q[d] for q in QUERIES.tolist()) / strength for d in range(2)]]
    return models.bayesian(mixture, keys=Normal(torch.zeros(1, 2), PRIOR)), mean, strength**-0.5


def normal_guide(mean, sd):
    mean = torch.tensor(mean)

    def guide(*_):
        with pyro.plate("batch", mean.shape[0], dim=-2) if mean.dim() == 3 else nullcontext(), pyro.plate("units", 1):
            pyro.sample("keys", Normal(mean, sd).to_event(1))

    return guide


def test_the_exact_posterior_of_parameters_has_no_gap():
    posterior, mean, sd = one_unit()
    gap = results.gap(fit(posterior, QUERIES, guide=normal_guide(mean, sd)), num_samples=50, seed=0)
    assert_equal(gap.parameters, torch.tensor(0.0), torch.tensor(10.0))
    assert gap.assignments is None and gap.pareto_k == -math.inf


@pytest.mark.slow
def test_the_gap_of_wrong_normals_is_their_divergence_problem_by_problem():
    posterior, mean, sd = one_unit()
    ratio, offsets = 1.3, (0.05, 0.1, 0.15)  # wider than the posterior, so that importance weights are bounded
    wrong = [[[x + offset for x in row] for row in mean] for offset in offsets]
    many, data = posterior.copies(3, QUERIES), QUERIES.expand(3, -1, -1)
    gap = results.gap(fit(many, data, guide=normal_guide(wrong, ratio * sd)), num_samples=400, seed=0)
    for offset, found, error, k in zip(offsets, gap.parameters, gap.parameters_error, gap.pareto_k, strict=True):
        exact = 2 * (0.5 * (ratio**2 + (offset / sd) ** 2 - 1) - math.log(ratio))
        assert abs(float(found) - exact) < SIGMAS * float(error) < exact and k < 0.7
    assert "nats per problem" in repr(gap)


@pytest.mark.slow
def test_both_parts_together_are_evidence_less_elbo_by_quadrature():
    """One unknown key of two units in one dimension; a guide of the key and a matrix of attention that does not depend on it."""
    keys, queries, alpha = torch.tensor([[-1.0], [1.5]]), torch.tensor([[-0.8], [0.4], [2.0]]), 1.3
    mixture = models.GaussianMixture(keys, key_precision=alpha)
    posterior = models.bayesian(mixture, keys=Normal(keys, torch.tensor([[0.7], [0.7]])), collapsed=False)
    logits, center, sd = torch.tensor([[1.0, -1.0], [0.2, 0.1], [-2.0, 1.0]]), torch.tensor([[-0.9], [1.4]]), 0.5

    class Both(pyro.nn.PyroModule):
        def __init__(self):
            super().__init__()
            self.attention = inference.AttentionGuide(posterior, logits)

        def forward(self, *data):
            with pyro.plate("units", 2):
                pyro.sample("keys", Normal(center, sd).to_event(1))
            self.attention(*data)

    gap = results.gap(fit(posterior, queries, guide=Both()), num_samples=1500, seed=0)
    rows = logits.softmax(-1).tolist()
    grid = [
        -4.0 + 0.1 * i for i in range(81)
    ]  # both integrands are smooth and vanish at the ends: the sum is exact to 1e-8
    evidence, elbo = [], 0.0
    for a in grid:
        for b in grid:
            prior = oracles.normal([a, b], [-1.0, 1.5], 0.7**-2)
            guide = oracles.normal([a, b], [-0.9, 1.4], sd**-2)
            joint = [[oracles.normal(q, [k], alpha) - math.log(2) for k in (a, b)] for q in queries.tolist()]
            evidence.append(prior + sum(oracles.logsumexp(row) for row in joint))
            terms = sum(
                w * (x - math.log(w))
                for row, own in zip(joint, rows, strict=True)
                for x, w in zip(row, own, strict=True)
            )
            elbo += 0.01 * math.exp(guide) * (prior - guide + terms)
    exact = oracles.logsumexp(evidence) + math.log(0.01) - elbo
    error = float(gap.parameters_error) + float(gap.assignments_error.sum())  # no less than that of the sum
    assert abs(float(gap.parameters + gap.assignments.sum()) - exact) < SIGMAS * error < 0.5 * exact


def test_what_has_no_gap_is_refused():
    posterior = one_unit()[0]
    delta = fit(posterior, QUERIES, guide="delta")
    with pytest.raises(ValueError, match="on a point, so that its gap is infinite"):
        results.gap(delta, seed=0)
    with pytest.raises(ValueError, match="num_samples must be 2 or more"):
        results.gap(delta, num_samples=1, seed=0)
    with pytest.raises(ValueError, match="seed must be a non-negative integer"):
        results.gap(delta, seed=-1)
    many = posterior.copies(2, QUERIES)
    joint = fit(many, QUERIES.expand(2, -1, -1), guide=AutoLowRankMultivariateNormal)
    with pytest.raises(ValueError, match="one density for all problems"):
        results.gap(joint, seed=0)

    def program():
        pyro.sample("x", Normal(0.0, 1.0))

    with pytest.raises(ValueError, match=r"made by models\.bayesian alone"):
        results.gap(fit(program, guide="normal"), seed=0)
    own = models.bayesian(posterior.formulation, keys=lambda: Normal(0.0, pyro.sample("spread", LogNormal(0.0, 1.0))))
    with pytest.raises(NotImplementedError, match="there is no gap"):
        results.gap(fit(own, QUERIES, guide="normal"), seed=0)


@pytest.mark.slow
def test_automatic_guides_have_a_gap():
    """A Gamma posterior, and a wide normal of its logarithm: their divergence on a grid."""
    mixture = models.GaussianMixture(torch.zeros(1, 1), key_precision=1.0)
    posterior = models.bayesian(mixture, key_precision=Gamma(3.0, 2.0))
    queries = torch.tensor([[0.5], [1.5]])
    found = fit(posterior, queries, guide=partial(AutoNormal, init_scale=1.0))  # wide
    with pyro.get_param_store().scope():
        normal = poutine.trace(found.guide).get_trace(queries).nodes["key_precision_unconstrained"]["fn"]
    loc, scale = float(normal.mean.detach()), float(normal.stddev.detach())
    shape, rate = 3.0 + 1.0, 2.0 + 0.5 * (0.25 + 2.25)
    step, exact = 0.001, 0.0
    for i in range(-8000, 8000):
        z = loc + scale * step * i
        guide = oracles.normal([z], [loc], scale**-2)
        exact += scale * step * math.exp(guide) * (guide - oracles.gamma_log(math.exp(z), shape, rate) - z)
    gap = results.gap(found, num_samples=2000, seed=0)
    assert abs(float(gap.parameters) - exact) < SIGMAS * float(gap.parameters_error) < 0.5 * exact
