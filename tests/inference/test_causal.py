"""Causal adaptation: each query's parameters are those of an ordinary adaptation to its prefix, and no later query matters."""

import pytest
import torch
from pyro.distributions import Dirichlet, Gamma, Normal, Wishart
from strategies import generator, problem
from tolerances import assert_equal

from probtx_pyro import inference, models


def priors_for(mixture, per_query=None):
    rows = 1 if per_query is None else per_query
    return dict(keys=Normal(mixture.keys, 1.2), key_precision=Gamma(2.0, 1.0), values=None if mixture.values is None else Normal(mixture.values, 1.0), weights=Dirichlet(torch.full((rows, mixture.num_units), 1.5)))  # fmt: skip


@pytest.mark.pairs
@pytest.mark.parametrize("precision", ["unit", "shared", "scalar"])
@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 5])
def test_every_prefix_is_its_own_adaptation(precision, parts, rows):
    mixture, *args = problem(generator(1), precision="shared" if precision == "shared" else "unit", rows=rows)
    if precision == "scalar":
        mixture = mixture.replace(key_precision=torch.tensor(1.1))
    args, per_query = args[:parts], None if rows == 1 else rows
    fit = inference.adapt(
        models.bayesian(mixture, **priors_for(mixture, per_query)), args[0], *args[1:], num_steps=4, causal=True
    )
    answers = fit.formulation.expected_outputs(args[0].unsqueeze(-2)).squeeze(-2)
    assert fit.formulation.keys.shape == (5, 4, 3) and fit.objective.shape == (5, 5)
    for i in range(5):
        head = mixture if rows == 1 else mixture.replace(log_prior=mixture.log_prior[: i + 1])
        prefix = inference.adapt(
            models.bayesian(head, **priors_for(mixture, None if rows == 1 else i + 1)),
            args[0][: i + 1],
            *(x[: i + 1] for x in args[1:]),
            num_steps=4,
        )
        assert_equal(fit.formulation.keys[i], prefix.formulation.keys, operations=512)
        assert_equal(answers[i], prefix.formulation.expected_outputs(args[0][: i + 1])[i], operations=512)


def test_no_later_query_moves_an_earlier_answer():
    mixture, queries, *_ = problem(generator(2), batch=(2,))
    changed = queries.clone()
    changed[:, 3:] += 5.0
    before, after = (
        inference.adapt(models.bayesian(mixture, **priors_for(mixture)), q, num_steps=5, causal=True).formulation
        for q in (queries, changed)
    )
    answers = [m.expected_outputs(q.unsqueeze(-2)) for m, q in ((before, queries), (after, changed))]
    assert (answers[0][:, :3] == answers[1][:, :3]).all()
    assert (answers[0][:, 3:] - answers[1][:, 3:]).abs().max() > 0.01


def test_fixed_parameters_uniform_weights_and_absent_queries():
    mixture, queries, outputs, observed = problem(generator(3))
    mixture = mixture.replace(log_prior=None)
    weights = torch.tensor([1.0, 0, 1, 1, 1])
    fit = inference.adapt(
        models.bayesian(mixture, weights=Dirichlet(torch.full((1, 4), 1.5))),
        queries,
        outputs,
        observed,
        query_weights=weights,
        num_steps=3,
        causal=True,
    )
    keep = torch.tensor([0, 2, 3])
    short = inference.adapt(
        models.bayesian(mixture, weights=Dirichlet(torch.full((1, 4), 1.5))),
        queries[keep],
        outputs[keep],
        observed[keep],
        num_steps=3,
    )
    assert_equal(fit.formulation.log_prior[3], short.formulation.log_prior)
    assert torch.isfinite(fit.formulation.expected_outputs(queries.unsqueeze(-2))).all()


def test_labels_and_priors_with_a_batch_of_their_own():
    mixture, queries, labels, observed = problem(generator(4), batch=(2,), answer="categorical")
    priors = dict(
        keys=Normal(mixture.keys, torch.tensor([0.5, 2.0])[:, None, None]),
        answer_probs=Dirichlet(torch.full_like(mixture.answer_probs, 1.5)),
    )
    fit = inference.adapt(models.bayesian(mixture, **priors), queries, labels, observed, num_steps=3, causal=True)
    last = inference.adapt(models.bayesian(mixture, **priors), queries, labels, observed, num_steps=3)
    assert_equal(fit.formulation.keys[:, -1], last.formulation.keys, operations=512)
    assert_equal(fit.formulation.answer_probs[:, -1], last.formulation.answer_probs, operations=512)
    flat = inference.adapt(models.bayesian(mixture, keys=models.FLAT), queries, num_steps=2, causal=True)
    assert flat.formulation.keys.shape == (2, 5, 4, 3)


@pytest.mark.parametrize("metric", ["full", "diagonal"])
def test_a_metric_adapts_under_a_prior_of_each_problem(metric):
    mixture, queries, *_ = problem(generator(5), batch=(2,), metric=metric)
    strength = torch.tensor([1.5, 4.0])
    if metric == "full":
        prior = Wishart(strength + 4, mixture.metric.expand(2, 3, 3) / strength[:, None, None])
    else:
        mixture = mixture.replace(metric=mixture.metric.expand(2, 3), diagonal_metric=True)
        prior = Gamma((1 + strength).unsqueeze(-1).expand(2, 3), strength.unsqueeze(-1) / mixture.metric)
    fit = inference.adapt(models.bayesian(mixture, metric=prior), queries, num_steps=3, causal=True).formulation
    for i in range(5):
        prefix = inference.adapt(models.bayesian(mixture, metric=prior), queries[:, : i + 1], num_steps=3).formulation
        assert_equal(fit.metric[:, i], prefix.metric, operations=512)
