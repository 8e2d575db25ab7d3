"""The proof that the house is open: a formulation that the package lacks goes through every verb, with no line elsewhere.

`poisson.PoissonMixture` is adapted, drawn from by Gibbs and NUTS, guided, calibrated, converted and diagnosed. Oracles are loops,
SciPy's distributions, a grid over the program's own log density, and the conjugate posterior of a single unit.
"""

import inspect
import math
import re
from functools import partial
from pathlib import Path

import arviz
import numpy as np
import poisson
import pyro
import pytest
import torch
from poisson import PoissonMixture
from pyro import poutine
from pyro.distributions import Dirichlet, Gamma, LogNormal
from pyro.infer import MCMC, NUTS, Predictive, TraceEnum_ELBO
from scipy import stats
from tolerances import assert_equal

from probtx_pyro import inference, models, results

COUNTS = torch.tensor([[1, 7], [0, 9], [2, 6], [8, 1], [9, 0], [7, 2], [1, 8]], dtype=torch.float64)
MIXTURE = PoissonMixture(torch.tensor([[1.0, 6.0], [6.0, 1.5]], dtype=torch.float64))


def posterior(**priors):
    return models.bayesian(MIXTURE, **{"rate": Gamma(torch.tensor([[2.0, 6.0], [6.0, 2.0]]), 1.0), **priors})


def test_the_formulation_takes_at_most_eighty_lines():
    assert len(inspect.getsource(poisson).splitlines()) <= 80


def test_no_source_of_the_package_names_a_formulation_of_the_tests():
    named = re.compile("PoissonMixture|BernoulliMixture|LinearRegression|FactorAnalysis")
    sources = Path(models.__file__).parents[1].rglob("*.py")
    assert [path.name for path in sources if named.search(path.read_text())] == []


def test_closed_form_is_scipys_and_the_programs():
    weights = torch.tensor([[0.3, 0.7]])
    mixture = MIXTURE.replace(log_prior=weights.log())
    log = [[math.log(weights[0, j]) + stats.poisson.logpmf(x, MIXTURE.rate[j]).sum() for j in range(2)] for x in COUNTS]
    assert_equal(mixture.log_joint(COUNTS), torch.tensor(np.array(log)), operations=64)
    assert_equal(mixture.log_evidence(COUNTS), torch.tensor(np.logaddexp.reduce(log, -1)), operations=64)
    assert_equal(mixture.attention(COUNTS), torch.tensor(np.array(log)).softmax(-1), operations=64)
    elbo = -TraceEnum_ELBO(max_plate_nesting=1).loss(mixture.model, mixture.guide, COUNTS)
    assert_equal(torch.tensor(elbo), mixture.log_evidence(COUNTS).sum(), operations=64)
    collapsed = poutine.trace(mixture.collapsed).get_trace(COUNTS).log_prob_sum()
    assert_equal(collapsed, mixture.log_evidence(COUNTS).sum(), operations=64)


@pytest.mark.slow
def test_a_single_unit_has_the_conjugate_posterior():
    one = models.bayesian(PoissonMixture(torch.tensor([[1.0, 1.0]])), rate=Gamma(2.0, 0.5))
    shape, rate = 2.0 + COUNTS.sum(0), 0.5 + len(COUNTS)
    fit = inference.adapt(one, COUNTS, num_steps=1)
    assert_equal(fit.formulation.rate[0], (shape - 1) / rate)
    draws = inference.gibbs(one, COUNTS, num_samples=500, num_chains=8, num_warmup=5, seed=0).samples["rate"]
    for i in range(2):
        exact = stats.gamma(float(shape[i]), scale=1 / rate)
        assert stats.kstest(draws[..., 0, i].flatten().numpy(), exact.cdf).pvalue > 1e-5  # independent draws: exact


def test_ecm_never_falls_and_stops_where_the_programs_density_is_stationary():
    program = posterior(weights=Dirichlet(torch.full((2,), 2.0)))
    fit = inference.adapt(program, COUNTS, num_steps=200, tol=1e-12)
    assert fit.method == "ECM" and (fit.objective.diff() > -1e-12).all() and fit.converged.all()

    def density(rate, share):
        values = {"rate": rate, "weights": torch.stack([share, 1 - share]).unsqueeze(0)}
        return poutine.trace(poutine.condition(program, values)).get_trace(COUNTS).log_prob_sum()

    rate, share = fit.formulation.rate.requires_grad_(), fit.formulation.parameter("weights")[0, 0].requires_grad_()
    slopes = torch.autograd.grad(density(rate, share), [rate, share])
    assert all(
        slope.abs().max() < 1e-6 for slope in slopes
    )  # converged to 1e-12 of numbers of order 1, slopes of order 10
    assert_equal(density(rate, share), fit.objective[-1], operations=256)


@pytest.mark.parametrize("unit", [0, 1])
def test_the_conditional_is_that_of_the_program_on_a_grid(unit):
    """Given assignments, the density of one rate along a grid is that of its Gamma, but for a constant."""
    assigned = torch.tensor([0, 0, 0, 1, 1, 1, 0])
    prior = Gamma(torch.tensor([[2.0, 6.0], [6.0, 2.0]]), 1.0)
    program = models.bayesian(MIXTURE, rate=prior, collapsed=False)
    there = assigned == unit
    shape, rate = prior.concentration[unit, 0] + COUNTS[there, 0].sum(), prior.rate[unit, 0] + there.sum()
    grid, log = torch.linspace(0.5, 12.0, 24), []
    for x in grid:
        value = MIXTURE.rate.clone()
        value[unit, 0] = x
        at = poutine.condition(program, {"rate": value, "unit": assigned})
        log.append(poutine.trace(at).get_trace(COUNTS).log_prob_sum())
    gap = torch.stack(log) - Gamma(shape, rate).log_prob(grid)
    assert_equal(gap, gap[0].expand_as(gap), operations=512)


@pytest.mark.slow
def test_gibbs_and_nuts_draw_from_one_posterior():
    program = posterior(weights=Dirichlet(torch.full((2,), 3.0)))
    many = inference.gibbs(program, COUNTS, num_samples=200, num_chains=50, num_warmup=50, seed=0)
    few = inference.nuts(program, COUNTS, num_samples=50, num_warmup=150, num_chains=16, seed=1)
    assert not few.statistics["diverging"].any()
    for name in ("rate", "weights"):
        x, y = (draws.samples[name].numpy() for draws in (many, few))
        for index in np.ndindex(x.shape[2:]):
            one, other = x[(..., *index)], y[(..., *index)]
            error = math.hypot(float(arviz.mcse(one)), float(arviz.mcse(other)))
            assert abs(one.mean() - other.mean()) < 5 * error, (name, index)


@pytest.mark.slow
def test_it_is_guided_converted_and_diagnosed():
    program = posterior()
    fit = inference.variational(program, COUNTS, num_steps=1000, learning_rate=0.05, num_samples=400, seed=0)
    draws = inference.gibbs(program, COUNTS, num_samples=500, num_chains=4, num_warmup=50, seed=0)
    assert (fit.median["rate"] - draws.samples["rate"].median(1).values.median(0).values).abs().max() < 0.3
    data = results.to_inference_data(draws, seed=1, prior=20)
    assert data["posterior"]["rate"].dims == ("chain", "draw", "unit", "feature")
    assert data["posterior"]["attention"].dims == ("chain", "draw", "query", "unit")
    assert data["log_likelihood"]["queries"].dims == ("chain", "draw", "query")
    new = data["posterior_predictive"]["queries"].values
    assert new.shape == (4, 500, 7, 2) and (new == np.round(new)).all() and new.min() >= 0
    assert data["prior_predictive"]["queries"].shape == (1, 20, 7, 2)
    assert results.diagnose(data).ok, str(results.diagnose(data))
    assert data.attrs["logarithmic"] == "rate"
    density = data["log_likelihood"]["queries"].values[2, 3]
    at = MIXTURE.replace(rate=draws.samples["rate"][2, 3])
    np.testing.assert_allclose(density, at.log_evidence(COUNTS), rtol=1e-12)


def test_its_samplers_are_calibrated():
    sampler = partial(inference.gibbs, num_chains=49, num_samples=1, num_warmup=30)
    found = results.calibrate(
        posterior(), (10, 2), sampler=sampler, num_simulations=100, num_draws=49, seed=0, batch_size=50
    )
    assert found.ok(), str(found)
    scores = results.joint_test(posterior(), (10, 2), num_chains=1000, num_steps=10, seed=0)
    # 8 scores: a right sampler exceeds 4.5 with chance 8 * 7e-6
    assert max(np.abs(x).max() for x in scores.values()) < 4.5


def test_units_that_are_alike_are_relabelled():
    twins = models.bayesian(PoissonMixture(torch.ones(2, 2)), rate=Gamma(2.0, 0.5))
    draws = inference.gibbs(twins, COUNTS, num_samples=300, num_chains=4, num_warmup=100, start="prior", seed=3)
    data = results.to_inference_data(draws)
    assert "exchangeable units relabelled" in data.attrs["labels"]
    assert float(arviz.rhat(data["posterior"]["rate"].values[..., 0, 0])) < 1.05


def test_other_priors_go_to_gradients_and_gibbs_refuses_them():
    program = posterior(rate=LogNormal(0.5, 1.0))
    with pytest.warns(UserWarning, match="rate ~ LogNormal"):
        fit = inference.adapt(program, COUNTS, num_steps=50, tol=1e-8)
    assert fit.method == "gradient MAP" and fit.converged.all()
    with pytest.raises(ValueError, match=r"not all of rate ~ LogNormal are conjugate; draw with inference\.nuts"):
        inference.gibbs(program, COUNTS, seed=0)


@pytest.mark.slow
def test_a_hierarchy_keeps_what_a_posterior_has():
    def rates():
        return Gamma(4.0, pyro.sample("inverse scale", LogNormal(0.0, 0.5)))

    program = models.bayesian(MIXTURE, rate=rates)
    draws = inference.nuts(program, COUNTS, num_samples=25, num_warmup=25, num_chains=2, seed=0)
    data = results.to_inference_data(draws, seed=0, prior=5)
    assert {"inverse scale", "rate", "attention"} <= set(data["posterior"].data_vars)
    assert data["posterior_predictive"]["queries"].shape == (2, 25, 7, 2)
    for verb in (inference.adapt, partial(inference.gibbs, seed=0)):
        with pytest.raises(NotImplementedError, match=r"rate has hyperparameters.*inference\.nuts"):
            verb(program, COUNTS)


@pytest.mark.slow
def test_pyros_own_tools_take_the_program():
    program = posterior()
    assert poutine.trace(program).get_trace(None, num_queries=3).nodes["queries"]["value"].shape == (3, 2)
    drawn = Predictive(program, {"rate": MIXTURE.rate.expand(5, 2, 2)})(None, num_queries=4)
    assert drawn["queries"].shape == (5, 4, 2) and not torch.equal(drawn["queries"][0], drawn["queries"][1])
    chains = MCMC(NUTS(program), num_samples=20, warmup_steps=20, disable_progbar=True)
    chains.run(COUNTS)
    assert results.to_inference_data(chains, COUNTS)["posterior"]["attention"].shape == (1, 20, 7, 2)


def test_what_it_lacks_is_one_clear_error():
    with pytest.raises(ValueError, match="answers have no density; drop them"):
        inference.adapt(posterior(), COUNTS, torch.zeros(7, 1))
    with pytest.raises(ValueError, match=r"a PoissonMixture has no parameter 'rates'; did you mean 'rate'"):
        models.bayesian(MIXTURE, rates=Gamma(1.0, 1.0))
    with pytest.raises(ValueError, match="values is None, so this PoissonMixture has no answers"):
        MIXTURE.expected_outputs(COUNTS)
