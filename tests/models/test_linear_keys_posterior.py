"""Posteriors of linear keys from answers to given queries: programs, conditionals, calibration, refusals."""

import functools
import math

import numpy as np
import pytest
import torch
from formulations import linear_keys
from pyro import poutine
from pyro.distributions import Dirichlet, Gamma, Normal
from pyro.infer import Predictive, TraceEnum_ELBO
from scipy import stats
from strategies import generator
from tolerances import assert_equal, assert_never_falls

from probtx_pyro import inference, models, results

DRAWS = {"num_samples": 10, "num_warmup": 10, "num_chains": 2, "seed": 0, "progress": False}


def test_answers_given_queries_are_the_ratio_of_two_unnormalised_programs():
    memory, queries, outputs = linear_keys(generator(0), precision=True)
    elbo = TraceEnum_ELBO(max_plate_nesting=1).loss
    both = -elbo(memory.unnormalized, memory.guide, queries, outputs)
    plain = memory.replace(value_precision=None)
    alone = -elbo(plain.unnormalized, plain.guide, queries)
    assert_equal(torch.tensor(both - alone), memory.log_evidence(queries, outputs).sum(), torch.tensor(both))


def test_the_program_draws_units_by_attention_and_answers_by_their_distribution():
    """4,000 draws of each query: shares of the units within five standard errors, answers by Kolmogorov and Smirnov."""
    memory, queries, _ = linear_keys(generator(1), queries=2, answers=1, precision=True)
    nodes = poutine.trace(memory.model).get_trace(queries.expand(4000, 2, 3)).nodes
    attention = memory.attention(queries)
    shares = torch.nn.functional.one_hot(nodes["unit"]["value"], attention.shape[-1]).double().mean(0)
    assert ((shares - attention).abs() < 5 * (attention * (1 - attention) / 4000).sqrt()).all()
    for i in range(2):

        def below(x, i=i):
            normals = stats.norm(memory.values[:, 0].numpy(), memory.value_precision.rsqrt().numpy())
            return normals.cdf(np.asarray(x)[:, None]) @ attention[i].numpy()

        assert stats.kstest(nodes["outputs"]["value"][:, i, 0].numpy(), below).pvalue > 1e-5


@pytest.mark.parametrize("name", ["values", "value_precision"])
def test_a_conditional_is_that_of_the_program_on_a_grid(name):
    """Given assignments, the program's log density along a line through the parameter is that of its terms, but for a constant."""
    memory, queries, outputs = linear_keys(generator(2), units=2, answers=1, precision=True)
    assigned = torch.tensor([0, 1, 0, 0, 1])
    chosen = torch.nn.functional.one_hot(assigned, 2).double()
    centered = outputs - memory.origins()["keys"]
    sums = chosen.mT @ torch.cat([centered, -0.5 * centered.square()], -1)
    seen = memory.expect((queries, outputs))._replace(counts=chosen.sum(0), sums=sums)
    terms, grid, log, said = memory.conditional(name, seen), torch.linspace(0.3, 2.0, 12), [], []
    fixed = {"unit": assigned, "feature": torch.zeros(5, dtype=torch.long), "component": torch.zeros(5, dtype=torch.long)}  # fmt: skip
    for x in grid:
        value = getattr(memory, name).clone()
        value[0] = x
        at = poutine.condition(memory.with_parameters({name: value}).model, fixed)
        log.append(poutine.trace(at).get_trace(queries, outputs).log_prob_sum())
        if name == "values":
            y = x - terms.center.squeeze()
            said.append(-0.5 * terms.precision[0, 0] * y.square() + terms.pull[0, 0] * y)
        else:
            said.append(terms.shape[0] * x.log() - terms.rate[0] * x)
    gap = torch.stack(log) - torch.stack(said)
    assert torch.stack(log).std() > 0.1
    assert_equal(gap, gap[0].expand_as(gap), torch.stack(log), operations=512)


def small(**options):
    """Two units of two keys in the plane, answers on a line; and the queries."""
    keys = torch.tensor([[[2.0, -2.0], [1.0, -3.0]], [[-2.0, 2.0], [-3.0, 1.0]]])
    memory = models.LinearKeys(keys, torch.tensor([[-2.0], [2.0]]), torch.full((2, 2), 0.5), None,
                               torch.ones(2), options.get("precision", 1.0) * torch.ones(2))  # fmt: skip
    return memory, 2 * torch.randn(15, 2, generator=generator(3))


@pytest.mark.slow
def test_ecm_of_values_and_their_precision_never_falls_and_stops_at_a_mode_of_the_program():
    memory, queries, outputs = linear_keys(generator(2), precision=True)
    posterior = models.bayesian(memory, values=Normal(0.0, 1.0), value_precision=Gamma(2.0, 1.0))
    fit = inference.adapt(posterior, queries, outputs, num_steps=300, tol=1e-12)
    assert fit.method == "ECM" and bool(fit.converged)
    assert_never_falls(fit.objective)
    found = {name: getattr(fit.formulation, name).requires_grad_() for name in posterior.priors}
    density = poutine.trace(poutine.condition(posterior, found)).get_trace(queries, outputs).log_prob_sum()
    assert_equal(density, fit.objective[-1], operations=256)
    # converged to 1e-12 of numbers of order 1, slopes of order 10
    assert all(slope.abs().max() < 1e-6 for slope in torch.autograd.grad(density, [*found.values()]))


@pytest.mark.slow
def test_gibbs_of_values_and_their_precision_is_calibrated():
    memory, queries = small()
    posterior = models.bayesian(memory, values=Normal(memory.values, 0.7), value_precision=Gamma(4.0, 4.0))
    sampler = functools.partial(inference.gibbs, num_chains=19, num_samples=1, num_warmup=60, progress=False)
    found = results.calibrate(posterior, queries, (15, 1), sampler=sampler, num_simulations=500, num_draws=19, seed=0,
                              batch_size=250, progress=False)  # fmt: skip
    assert found.method == "Gibbs" and found.ok(), str(found)
    scores = results.joint_test(posterior, queries, (15, 1), num_chains=1000, num_steps=10, seed=0)
    # 8 scores: a right sampler exceeds 4.5 with chance 8 * 7e-6
    assert max(np.abs(x).max() for x in scores.values()) < 4.5


@pytest.mark.slow
def test_nuts_of_all_parameters_is_calibrated():
    memory, queries = small()
    posterior = models.bayesian(
        memory, keys=Normal(memory.keys, 0.5), values=Normal(memory.values, 0.5), value_precision=Gamma(6.0, 6.0),
        component_weights=Dirichlet(torch.tensor([[4.0, 2.0], [4.0, 2.0]])), unit_weights=Gamma(4.0, 4.0),
    )  # fmt: skip
    sampler = functools.partial(
        inference.nuts, num_chains=4, num_samples=20, num_warmup=150, start="prior", progress=False
    )
    found = results.calibrate(posterior, queries, (15, 1), sampler=sampler, num_simulations=200, num_draws=19, seed=0,
                              batch_size=200, progress=False)  # fmt: skip
    assert found.ok(), str(found)


def test_a_prediction_is_a_plain_mean_until_an_answer_is_known():
    memory, queries = small()
    posterior = models.bayesian(memory, keys=Normal(memory.keys, 0.5))
    samples = {"keys": memory.keys + 0.5 * torch.randn(2, 20, 2, 2, 2, generator=generator(4))}
    outputs = torch.randn(15, 1, generator=generator(5))
    draws = inference.Draws(samples, {"lp": torch.zeros(2, 20)}, posterior, (queries, outputs), "NUTS", {})
    asked, answers = queries[:3] + 0.1, outputs[:3]
    each = [memory.with_parameters({"keys": x}) for x in samples["keys"].flatten(0, 1)]
    attention = torch.stack([at.attention(asked) for at in each]).mean(0)
    said = results.predict(draws, asked, relabel=False)
    assert_equal(said.attention, attention, operations=256)
    assert_equal(said.expected_outputs, attention @ memory.values, operations=256)
    density = torch.stack([at.log_evidence(asked, answers).exp() for at in each])
    assert_equal(said.output_distribution.log_prob(answers), density.mean(0).log(), operations=256)
    told = results.predict(draws, asked, answers, relabel=False)
    weighted = torch.stack([at.attention(asked, answers) for at in each]) * density.unsqueeze(-1)
    assert_equal(told.attention, weighted.mean(0) / density.mean(0).unsqueeze(-1), operations=256)
    assert_equal(told.log_evidence, density.mean(0).log(), operations=256)


def test_draws_become_labelled_data_with_new_answers():
    memory, queries = small()
    posterior = models.bayesian(memory, values=Normal(memory.values, 0.5), value_precision=Gamma(4.0, 4.0))
    outputs = torch.randn(15, 1, generator=generator(5))
    draws = inference.gibbs(posterior, queries, outputs, **DRAWS)
    data = results.to_inference_data(draws, seed=1, prior=3)
    assert data["log_likelihood"]["outputs"].dims == ("chain", "draw", "query")
    assert data["posterior"]["attention"].dims == ("chain", "draw", "query", "unit")
    assert data["posterior_predictive"]["outputs"].shape == (2, 10, 15, 1)
    assert set(data["observed_data"].data_vars) == {"outputs"}
    assert {"queries", "keys", "unit_weights"} <= set(data["constant_data"].data_vars)
    assert "log_evidence" not in results.to_inference_data(memory, queries)["point_estimate"]


def test_a_masked_unit_of_any_values_is_absent_from_the_program():
    memory, queries, outputs = linear_keys(generator(6), precision=True)
    weights, values = memory.unit_weights.clone(), memory.values.clone()
    weights[1], values[1] = 0.0, math.nan
    masked = memory.replace(unit_weights=weights, values=values)
    elbo = -TraceEnum_ELBO(max_plate_nesting=1).loss(masked.model, masked.guide, queries, outputs)
    assert_equal(torch.tensor(elbo), masked.log_evidence(queries, outputs).sum())
    assert torch.isfinite(Predictive(masked.model, num_samples=50)(queries)["outputs"]).all()


MEMORY, Q, V = linear_keys(torch.Generator().manual_seed(0), precision=True)
PLAIN = MEMORY.replace(value_precision=None)
BAYESIAN = models.bayesian(MEMORY, keys=Normal(0.0, 1.0))
REFUSED = {
    "no answers": (lambda: inference.nuts(BAYESIAN, Q, seed=0), ValueError, "outputs are None.*give outputs"),
    "answers of another width": (lambda: MEMORY.log_evidence(Q, V[:, :1]), ValueError, "outputs have 1 answer coordinates but values have 2"),
    "fewer answers": (lambda: MEMORY.log_evidence(Q, V[:3]), ValueError, "queries have 5 rows but outputs have 3"),
    "answers with NaN": (lambda: MEMORY.model(Q, V * math.nan), ValueError, "outputs contains NaN"),
    "answers of another dtype": (lambda: MEMORY.log_evidence(Q, V.half()), ValueError, "differ in dtype"),
    "queries to draw": (lambda: BAYESIAN(None, num_queries=7), ValueError, "queries: a LinearKeys is conditional on queries; give queries"),
    "a prior on a mask": (
        lambda: models.bayesian(MEMORY.replace(unit_weights=MEMORY.unit_weights * torch.tensor([0, 1, 1, 1])), unit_weights=Gamma(1.0, 1.0)),
        ValueError, "some of unit_weights are 0, a mask",
    ),
    "a precision without values": (lambda: models.LinearKeys(MEMORY.keys, value_precision=1.0), ValueError, "values is None; give values"),
    "a precision of other units": (lambda: MEMORY.replace(value_precision=torch.ones(3)), ValueError, r"must be a number or \(\.\.\., 4\)"),
    "a precision of zero": (lambda: MEMORY.replace(value_precision=0.0), ValueError, "value_precision must be > 0"),
    "answers without a density": (lambda: PLAIN.attention(Q, V), NotImplementedError, "give it values and a value_precision"),
    "draws of answers without a density": (lambda: PLAIN.output_distribution(Q), NotImplementedError, "give it values and a value_precision"),
    "gibbs of keys": (lambda: inference.gibbs(BAYESIAN, Q, V, seed=0), NotImplementedError, r"all but values and value_precision.*inference\.nuts"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_one_clear_error(name):
    call, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message) as error:
        call()
    assert "\n" not in str(error.value)
