"""The proof that the door is open: two formulations that are no mixtures go through every verb, with no line elsewhere.

`regression.LinearRegression` has no latents, the latents of `factor_analysis.FactorAnalysis` are normal vectors. Oracles are normal
equations, dense normal densities, closed-form posteriors and grids.
"""

import inspect
from functools import partial

import factor_analysis
import numpy as np
import pyro
import pytest
import regression
import torch
from factor_analysis import FactorAnalysis
from pyro import poutine
from pyro.distributions import Gamma, Normal
from regression import LinearRegression
from scipy import stats
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import inference, models, results

G = generator(0)
X = torch.randn(12, 2, generator=G, dtype=torch.float64)
Y = X @ torch.tensor([1.0, -0.5], dtype=torch.float64) + 0.4 * torch.randn(12, generator=G, dtype=torch.float64)
LINE = LinearRegression(torch.zeros(2, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
W = torch.randn(4, 2, generator=G, dtype=torch.float64)
POINTS = torch.randn(15, 2, generator=G, dtype=torch.float64) @ W.T
POINTS = POINTS + 0.5 * torch.randn(15, 4, generator=G, dtype=torch.float64)
FACTORS = FactorAnalysis(0.5 * W + 0.1, torch.ones(4, dtype=torch.float64))
CASES = {
    "regression": (models.bayesian(LINE, coefficients=Normal(0.0, 2.0), precision=Gamma(3.0, 1.0)), (X, Y)),
    "factor analysis": (models.bayesian(FACTORS, loadings=Normal(0.0, 1.0), precision=Gamma(3.0, 1.0)), (POINTS,)),
}
cases = pytest.mark.parametrize("case", CASES)
DRAWS = {"seed": 0, "progress": False}


@pytest.mark.parametrize("module", [regression, factor_analysis], ids=lambda m: m.__name__)
def test_the_formulation_imports_nothing_private_and_is_short(module):
    source = inspect.getsource(module)
    assert "probtx_pyro._" not in source and "import _" not in source and source.count("probtx_pyro") == 1
    assert len(source.splitlines()) <= 115


@cases
def test_closed_form_is_the_programs_and_a_dense_density(case):
    posterior, data = CASES[case]
    formulation = posterior.formulation
    total = poutine.trace(formulation.collapsed).get_trace(*data).log_prob_sum()
    assert_equal(formulation.log_evidence(*data).sum(), total, operations=256)
    if case == "regression":
        exact = stats.norm.logpdf(Y, (X @ LINE.coefficients), 1.0)
    else:
        covariance = FACTORS.loadings @ FACTORS.loadings.T + torch.eye(4)
        exact = stats.multivariate_normal.logpdf(POINTS, np.zeros(4), covariance.numpy())
    assert_equal(formulation.log_evidence(*data), torch.tensor(exact), operations=256)


def test_ecm_of_one_parameter_ends_at_the_normal_equations():
    fit = inference.adapt(models.bayesian(LINE, coefficients=Normal(0.0, 2.0)), X, Y, num_steps=1)
    assert fit.method == "ECM"
    assert_equal(fit.formulation.coefficients, torch.linalg.solve(X.T @ X + torch.eye(2) / 4, X.T @ Y), operations=256)


@cases
def test_ecm_never_falls_and_ends_where_the_programs_density_is_stationary(case):
    posterior, data = CASES[case]
    fit = inference.adapt(posterior, *data, num_steps=3000, tol=1e-13)
    assert fit.method == "ECM" and fit.objective.diff().min() > -1e-11 and bool(fit.converged)
    at = {name: x.clone().requires_grad_() for name, x in fit.formulation.parameters().items()}
    density = poutine.trace(poutine.condition(posterior, at)).get_trace(*data).log_prob_sum()
    assert_equal(density.detach(), fit.objective[-1], operations=256)
    # steps of 1e-13 at the rate of EM leave slopes of 1e-7 of numbers of order ten
    assert all(slope.abs().max() < 1e-5 for slope in torch.autograd.grad(density, list(at.values())))


@pytest.mark.slow
@cases
def test_gibbs_and_nuts_draw_from_one_posterior(case):
    """By what the rotation of the factors leaves: predictions' covariance, precisions, log density."""
    posterior, data = CASES[case]
    many = inference.gibbs(posterior, *data, num_samples=200, num_chains=40, num_warmup=200, start="prior", **DRAWS)
    few = inference.nuts(posterior, *data, num_samples=40, num_warmup=120, num_chains=16, max_tree_depth=5, **DRAWS)
    for of in (
        lambda s: s["precision"],
        lambda s: (s["loadings"] @ s["loadings"].mT) if "loadings" in s else s["coefficients"],
    ):
        x, y = of(many.samples), of(few.samples)
        x, y = x.flatten(2) if x.dim() > 2 else x.unsqueeze(-1), y.flatten(2) if y.dim() > 2 else y.unsqueeze(-1)
        for i in range(x.shape[-1]):
            # chains are independent: the error is the spread of their means
            error = sum(float(z[..., i].mean(1).var()) / len(z) for z in (x, y)) ** 0.5
            assert abs(float(x[..., i].mean() - y[..., i].mean())) < 5 * error


def test_gibbs_of_the_coefficients_alone_is_exact():
    draws = inference.gibbs(models.bayesian(LINE, coefficients=Normal(0.0, 2.0)), X, Y, num_samples=2000, num_chains=4,
                            num_warmup=1, **DRAWS)  # fmt: skip
    precision = X.T @ X + torch.eye(2) / 4
    mean, sd = torch.linalg.solve(precision, X.T @ Y), torch.linalg.inv(precision).diagonal().sqrt()
    for i in range(2):
        drawn = draws.samples["coefficients"][..., i].flatten().numpy()
        assert (
            stats.kstest(drawn, stats.norm(float(mean[i]), float(sd[i])).cdf).pvalue > 1e-5
        )  # independent draws: exact


@cases
def test_draws_are_converted_and_diagnosed(case):
    posterior, data = CASES[case]
    draws = inference.gibbs(posterior, *data, num_samples=30, num_chains=3, num_warmup=20, **DRAWS)
    idata = results.to_inference_data(draws, seed=0, prior=5)
    formulation = posterior.formulation
    for name in posterior.priors:
        assert idata["posterior"][name].dims == ("chain", "draw", *formulation.axes(name))
    (pointwise,) = idata["log_likelihood"].data_vars.values()
    at = formulation.with_parameters({name: x[1, 2] for name, x in draws.samples.items()})
    np.testing.assert_allclose(pointwise[1, 2], at.log_evidence(*data), rtol=1e-10)
    explained = [name for name, row in formulation.DATA.items() if row.role == "explained"]
    assert idata["posterior_predictive"][explained[0]].shape == (3, 30, *data[-1].shape)
    assert results.diagnose(idata) is not None


def test_predictions_average_over_the_posterior():
    posterior, data = CASES["regression"]
    draws = inference.gibbs(posterior, *data, num_samples=200, num_chains=4, num_warmup=50, **DRAWS)
    new = torch.tensor([[1.0, 0.0], [0.3, -2.0]])
    found = results.predict(draws, new)
    assert_equal(found.expected_outputs, (draws.samples["coefficients"] @ new.T).mean((0, 1)), operations=4096)
    known = results.predict(draws, new, torch.tensor([0.9, 1.2]))
    each = Normal(draws.samples["coefficients"] @ new.T, draws.samples["precision"].rsqrt().unsqueeze(-1))
    density = each.log_prob(torch.tensor([0.9, 1.2])).flatten(0, 1).logsumexp(0) - np.log(800)
    assert_equal(known.log_evidence, density, operations=4096)


@pytest.mark.slow
@cases
def test_samplers_are_calibrated_and_the_joint_test_passes(case):
    posterior, data = CASES[case]
    # one factor: its sign alone is not identified, which ranks of loadings do not mind
    sampler = partial(inference.gibbs, num_chains=49, num_samples=1, num_warmup=60, start="prior", progress=False)
    found = results.calibrate(
        posterior, *data, sampler=sampler, num_simulations=60, num_draws=49, seed=1, batch_size=60
    )
    assert found.ranks.keys() == {*posterior.priors, "log_likelihood"} and found.ok(), str(found)
    scores = results.joint_test(posterior, *data, num_chains=1500, num_steps=5, seed=0)
    # up to 24 scores: a right sampler exceeds 4.8 with chance 24 * 1.6e-6
    assert max(np.abs(x).max() for x in scores.values()) < 4.8


@cases
def test_many_problems_are_the_stack_of_single_ones(case):
    posterior, data = CASES[case]
    both = [torch.stack([x, 2.0 * x]) for x in data]
    each = posterior.copies(2, *data)
    fit = inference.adapt(each, *both, num_steps=5)
    for i in range(2):
        one = inference.adapt(posterior, *(x[i] for x in both), num_steps=5)
        for name, x in one.formulation.parameters().items():
            assert_equal(fit.formulation.parameter(name)[i], x, operations=4096)
    draws = inference.gibbs(each, *both, num_samples=2, num_chains=3, num_warmup=1, **DRAWS)
    assert all(x.shape[:3] == (3, 2, 2) for x in draws.samples.values())


def test_latents_that_cannot_be_enumerated_are_no_parameters():
    posterior = models.bayesian(FACTORS, loadings=Normal(0.0, 1.0), collapsed=False)
    with pytest.raises(ValueError, match=r"factors are latents of the observations.*collapsed=True"):
        inference.nuts(posterior, POINTS, num_samples=1, num_warmup=1, num_chains=1, **DRAWS)


def test_a_guide_serves_them():
    for posterior, data in CASES.values():
        fit = inference.variational(posterior, *data, num_steps=20, num_samples=5, **DRAWS)
        assert fit.draws.samples.keys() == posterior.priors.keys()
        pyro.clear_param_store()


# -- what is counted --------------------------------------------------------------------------------------------------------


class Calls:
    """How often the data are checked, priors laid out and the program run, until the first sweep."""

    def __init__(self, monkeypatch):
        self.counts = dict.fromkeys(("checked", "plates", "laid out", "run"), 0)
        count = self.counts

        def counted(owner, name, what):
            real = getattr(owner, name)

            def call(*args, **kwargs):
                count[what] += 1
                return real(*args, **kwargs)

            monkeypatch.setattr(owner, name, call)

        counted(models.Mixture, "check_data", "checked")
        counted(models.Mixture, "plates", "plates")
        counted(inspect.getmodule(models.Bayesian), "lay_out", "laid out")
        counted(models.Bayesian, "__call__", "run")


def test_data_are_checked_once_and_each_prior_is_laid_out_once(monkeypatch):
    g = generator(1)
    mixture = models.GaussianMixture(torch.randn(3, 2, generator=g))
    posterior = models.bayesian(mixture, keys=Normal(0.0, 1.0), key_precision=Gamma(2.0, 2.0))
    queries = torch.randn(9, 2, generator=g)
    for start in ("map", "formulation", "prior"):
        with monkeypatch.context() as patch:
            calls = Calls(patch)
            inference.gibbs(posterior, queries, num_samples=1, num_chains=2, num_warmup=0, start=start, **DRAWS)
            assert calls.counts == {"checked": 1, "plates": 1, "laid out": 2, "run": 0}, start
        with monkeypatch.context() as patch:
            calls = Calls(patch)
            inference.nuts(posterior, queries, num_samples=1, num_chains=2, num_warmup=1, start=start, **DRAWS)
            assert calls.counts == {"checked": 1, "plates": 1, "laid out": 2, "run": 0}, start
    with monkeypatch.context() as patch:
        calls = Calls(patch)
        inference.adapt(posterior, queries, num_steps=5)
        assert calls.counts == {"checked": 1, "plates": 1, "laid out": 2, "run": 0}
