"""A formulation of one's own with Beta priors reaches every verb; and tables that cannot hold are refused when they are made."""

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch
from bernoulli import BernoulliMixture
from poisson import PoissonMixture
from pyro.distributions import Beta, Exponential, Gamma, Normal
from scipy import optimize, stats
from tolerances import assert_equal
from torch.distributions import constraints

from probtx_pyro import inference, models

ANSWERS = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 1]], dtype=torch.float64)
ONE = BernoulliMixture(torch.full((1, 3), 0.4, dtype=torch.float64))


@pytest.mark.slow
def test_a_single_unit_has_the_conjugate_posterior():
    """Beta(2 + yes, 3 + no), coordinate by coordinate: its mode by ECM, its distribution by Gibbs."""
    posterior = models.bayesian(ONE, prob=Beta(2.0, 3.0))
    yes = ANSWERS.sum(0)
    fit = inference.adapt(posterior, ANSWERS, num_steps=1)
    assert fit.method == "ECM"
    assert_equal(fit.formulation.prob[0], (1.0 + yes) / (3.0 + len(ANSWERS)))
    draws = inference.gibbs(posterior, ANSWERS, num_samples=500, num_chains=8, num_warmup=5, seed=0).samples["prob"]
    for i in range(3):
        exact = stats.beta(2.0 + float(yes[i]), 3.0 + len(ANSWERS) - float(yes[i]))
        assert stats.kstest(draws[..., 0, i].flatten().numpy(), exact.cdf).pvalue > 1e-5  # independent draws: exact


def log_density(p, q, x):
    """The log joint of two units of one coordinate under Beta(2, 4) and Beta(4, 2), 20 p (1 - p)^3 and 20 q^3 (1 - q), by loops."""
    total = 2 * math.log(20) + math.log(p) + 3 * math.log(1 - p) + 3 * math.log(q) + math.log(1 - q)
    for row in x[:, 0].tolist():
        total += math.log(sum(0.5 * (r if row else 1 - r) for r in (p, q)))
    return total


def two_units():
    mixture = BernoulliMixture(torch.tensor([[0.3], [0.6]], dtype=torch.float64))
    return models.bayesian(mixture, prob=Beta(torch.tensor([[2.0], [4.0]]), torch.tensor([[4.0], [2.0]])))


def test_ecm_ends_at_the_maximum_that_scipy_finds():
    x = ANSWERS[:, :1]
    fit = inference.adapt(two_units(), x, num_steps=500, tol=1e-10)
    best = optimize.minimize(lambda v: -log_density(*v, x), [0.3, 0.6], bounds=[(0.01, 0.99)] * 2, tol=1e-12)
    assert bool(fit.converged) and (fit.objective.diff() > -1e-12).all()
    assert abs(float(fit.objective[-1]) + best.fun) < 1e-8  # of second order in a distance of 1e-4
    assert np.abs(fit.formulation.prob[:, 0].numpy() - best.x).max() < 1e-4


@pytest.mark.parametrize("verb", ["gibbs", pytest.param("nuts", marks=pytest.mark.slow)])
def test_two_units_have_the_moments_of_a_grid(verb):
    x = ANSWERS[:, :1]
    grid = (np.arange(100) + 0.5) / 100  # midpoints: the density is a polynomial, so that a sum errs by 1e-4
    weights = np.exp([[log_density(p, q, x) for q in grid] for p in grid])
    means = [weights.sum(1 - i) @ grid / weights.sum() for i in range(2)]
    squares = [weights.sum(1 - i) @ grid**2 / weights.sum() for i in range(2)]
    num_samples = {"gibbs": 400, "nuts": 60}[verb]
    how = {"num_samples": num_samples, "num_chains": 16, "num_warmup": 60, "seed": 0}
    draws = getattr(inference, verb)(two_units(), x, **how).samples["prob"][..., 0]
    for i in range(2):
        spread = math.sqrt(squares[i] - means[i] ** 2)
        error = spread / math.sqrt(4 * num_samples)  # as if each chain's draws were of the worth of a quarter of them
        assert abs(float(draws[..., i].mean()) - means[i]) < 5 * error
        assert abs(float(draws[..., i].std()) - spread) < 5 * error


def test_flat_is_the_uniform_distribution_and_its_mode_the_share():
    fit = inference.adapt(models.bayesian(ONE, prob=models.FLAT), ANSWERS, num_steps=1)
    assert_equal(fit.formulation.prob[0], ANSWERS.mean(0))
    sites = models.bayesian(ONE, prob=models.FLAT).problem(ANSWERS).sites
    assert_equal(sites["prob"].distribution.log_prob(ONE.prob), torch.zeros(1))
    draws = inference.gibbs(
        models.bayesian(ONE, prob=models.FLAT), ANSWERS, num_samples=300, num_chains=4, num_warmup=5, seed=0
    )
    exact = stats.beta(1 + ANSWERS[:, 0].sum(), 1 + (1 - ANSWERS[:, 0]).sum())
    assert stats.kstest(draws.samples["prob"][..., 0, 0].flatten().numpy(), exact.cdf).pvalue > 1e-5


def test_a_unit_that_says_always_yes_stays_inside():
    """The mode is at 1, where the logit is infinite and the log density of a no NaN."""
    fit = inference.adapt(models.bayesian(ONE, prob=models.FLAT), torch.ones(4, 3), num_steps=3)
    assert torch.isfinite(fit.objective).all() and (fit.formulation.prob < 1).all()
    assert (fit.formulation.prob > 1 - 1e-15).all()


@pytest.mark.parametrize("one, zero", [(0.5, 2.0), (2.0, 0.5), (math.nan, 2.0)])
def test_a_beta_without_a_mode_is_refused(one, zero):
    prior = Beta(torch.tensor(one), torch.tensor(zero), validate_args=False)
    with pytest.raises(ValueError, match="prior on prob has a concentration below 1"):
        inference.adapt(models.bayesian(ONE, prob=prior), ANSWERS)


# -- tables that cannot hold ------------------------------------------------------------------------------------------------


def table(**row):
    """A class whose table has one row of one's own."""
    return dataclass(frozen=True, eq=False)(
        type(
            "Own",
            (PoissonMixture,),
            {"PARAMETERS": {"rate": models.Parameter("unit feature", **row), **models.WEIGHTS}},
        )
    )


def test_a_family_without_a_conditional_is_refused_when_the_class_is_made():
    with pytest.raises(ValueError, match=r"Own: conjugate=Exponential of rate is none of Normal, Gamma, .*Beta; leave"):
        table(support=constraints.positive, conjugate=Exponential)


def test_a_family_of_another_support_is_refused_when_the_class_is_made():
    with pytest.raises(ValueError, match=r"Own: conjugate=Normal of rate does not lie on its support"):
        table(support=constraints.positive, conjugate=Normal)
    with pytest.raises(ValueError, match=r"Own: conjugate=Gamma of rate does not lie on its support"):
        table(support=constraints.unit_interval, conjugate=Gamma)


def test_a_family_without_any_conditional_is_refused_when_the_class_is_made():
    row = models.Parameter("unit feature", constraints.real, Normal)
    with pytest.raises(ValueError, match="points has the conjugate family Normal, but there is no conditional; define"):
        type("Bare", (models.Formulation,), {"PARAMETERS": {"points": row}})


class Refusing(PoissonMixture):
    """Declares a family, and refuses it."""

    def conditional(self, name, seen):
        self.refuse("conditional")


class Silent(PoissonMixture):
    """Returns what is of another family, or nothing."""

    answer = None

    def conditional(self, name, seen):
        return self.answer if name == "rate" else super().conditional(name, seen)


RATE = torch.ones(2, 3, dtype=torch.float64)


def test_a_declared_family_that_conditional_refuses_is_refused_by_bayesian():
    with pytest.raises(
        ValueError, match=r"table of Refusing declares rate conjugate to Gamma, but its conditional ref"
    ):
        models.bayesian(Refusing(RATE), rate=Gamma(2.0, 1.0))


@pytest.mark.parametrize(("answer", "verb"), [*product([None, models.NormalTerms(RATE, RATE)], ["adapt", "gibbs"])])
def test_terms_of_another_family_are_refused(answer, verb):
    kind = type("Silent", (Silent,), {"answer": answer})
    options = {"seed": 0} if verb == "gibbs" else {}
    with pytest.raises(
        ValueError, match=rf"returns {type(answer).__name__} for rate, .* Gamma; return models\.GammaTerms"
    ):
        getattr(inference, verb)(models.bayesian(kind(RATE), rate=Gamma(2.0, 1.0)), ANSWERS, **options)


def test_gibbs_does_not_advise_what_is_already_so():
    plain = dataclass(frozen=True, eq=False)(
        type("Plain", (BernoulliMixture,), {"PARAMETERS": {"prob": models.Parameter("unit feature", constraints.unit_interval), **models.WEIGHTS}})
    )  # fmt: skip
    with pytest.raises(NotImplementedError, match="Plain has no conditional; draw with inference") as caught:
        inference.gibbs(models.bayesian(plain(ONE.prob), prob=Beta(2.0, 2.0)), ANSWERS, seed=0)
    assert "leave" not in str(caught.value) and "nuts" in str(caught.value)
