"""Priors without a closed form go to gradient MAP, visibly; where both exist, it finds what ECM finds."""

import pytest
import torch
from formulations import MEMORIES
from pyro import poutine
from pyro.distributions import Dirichlet, Gamma, Laplace, LogNormal, Normal, Pareto, StudentT, Uniform
from strategies import generator, problem
from tolerances import assert_equal

from probtx_pyro import inference, models
from probtx_pyro.inference.em import gradient_map


@pytest.mark.parametrize("masked", [False, True])
def test_gradient_map_is_the_ecm_optimum(masked):
    mixture, *args = problem(generator(1), queries=12, masked=masked)
    priors = dict(
        keys=Normal(mixture.keys, 0.6), key_precision=Gamma(3.0, 2.0), weights=Dirichlet(torch.full((1, 4), 3.0))
    )
    best = inference.adapt(models.bayesian(mixture, **priors), args[0], *args[1:], num_steps=5000, tol=1e-13)
    posterior = models.bayesian(mixture, **priors).problem(*args)
    found = gradient_map(
        posterior.objective,
        posterior.start,
        posterior.sites,
        posterior.count,
        problems=posterior.problems,
        num_steps=300,
        tol=1e-9,
    )
    assert found.converged.all()
    assert (found.objective[-1] - best.objective[-1]).abs() < 1e-8  # second order in a distance of 1e-5
    assert (found.state["keys"] - best.formulation.keys).abs().max() < 1e-4
    assert (found.state["weights"].log() - best.formulation.log_prior)[
        mixture.log_prior > -torch.inf
    ].abs().max() < 1e-3


def test_it_says_so_and_climbs_the_log_density_of_the_program():
    mixture, *args = problem(generator(2), batch=(2,))
    priors = dict(keys=StudentT(4.0, mixture.keys, 0.5), key_precision=LogNormal(0.0, 0.5))
    with pytest.warns(UserWarning, match=r"keys ~ StudentT, key_precision ~ LogNormal: gradient MAP"):
        fit = inference.adapt(models.bayesian(mixture, **priors), args[0], *args[1:], num_steps=200, tol=1e-8)
    assert fit.converged.all() and fit.method == "gradient MAP" and fit.objective.shape[1:] == (2,)
    assert (fit.objective[-1] > fit.objective[0]).all()
    at = poutine.condition(
        models.bayesian(mixture, **priors), {name: fit.formulation.parameter(name) for name in priors}
    )
    assert_equal(poutine.trace(at).get_trace(*args).log_prob_sum(), fit.objective[-1].sum())
    for nearby in (0.99, 1.01):  # a maximum of the constrained density
        moved = (
            models.bayesian(mixture, **priors)
            .problem(*args)
            .objective({"keys": fit.formulation.keys, "key_precision": nearby * fit.formulation.key_precision})
        )
        assert (moved < fit.objective[-1]).all()


def test_a_kink_is_not_called_convergence():
    mixture, queries, *_ = problem(generator(5), queries=3)
    with pytest.warns(UserWarning):
        fit = inference.adapt(
            models.bayesian(mixture, keys=Laplace(mixture.keys, 0.05)), queries, num_steps=100, tol=1e-8
        )
    assert not fit.converged  # the mode of a strong Laplace prior is its kink


def test_ecm_is_silent(recwarn):
    mixture, queries, *_ = problem(generator(3))
    assert inference.adapt(models.bayesian(mixture, keys=Normal(mixture.keys, 1.0)), queries).method == "ECM"
    assert not recwarn.list


def test_bad_input_is_refused():
    mixture, queries, *_ = problem(generator(4))
    priors = dict(keys=Laplace(mixture.keys, 0.5))
    with pytest.raises(ValueError, match="causal"):
        inference.adapt(models.bayesian(mixture, **priors), queries, causal=True)
    with pytest.raises(ValueError, match="implicit"):
        inference.adapt(models.bayesian(mixture, **priors), queries, implicit=True)
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="not differentiable"):
        inference.adapt(models.bayesian(mixture, **priors), queries.requires_grad_())


@pytest.mark.parametrize(
    ("name", "prior", "start"),
    [
        ("key_precision", Uniform(1.0, 9.0), 1.0),
        ("key_precision", Uniform(1.0, 9.0), 9.0),
        ("key_precision", Pareto(1.0, 2.0), 1.0),
        ("keys", Uniform(0.0, 2.0), 0.0),
    ],
    ids=["lower", "upper", "half line", "keys"],
)
def test_a_start_on_a_bound_is_refused_and_not_called_converged(name, prior, start):
    """Gradients vanish there in unconstrained coordinates, so that the climb would stay and think it is done."""
    queries = 0.3 * torch.randn(60, 2, generator=generator(6))
    shape = (3, 2) if name == "keys" else ()
    mixture = models.GaussianMixture(torch.zeros(3, 2)).replace(**{name: torch.full(shape, start)})
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=f"{name} starts on a bound of its support"):
        inference.adapt(models.bayesian(mixture, **{name: prior}), queries)


def test_a_start_near_the_end_of_a_wide_prior_is_fine():
    queries = 0.3 * torch.randn(60, 2, generator=generator(6))
    mixture = models.GaussianMixture(torch.zeros(1, 2))
    with pytest.warns(UserWarning):
        fit = inference.adapt(models.bayesian(mixture, key_precision=Uniform(0.0, 1e6)), queries, num_steps=100)
    best = queries.numel() / queries.square().sum()  # of a normal density, in closed form
    assert fit.converged and abs(fit.formulation.key_precision / best - 1) < 1e-5


@pytest.mark.filterwarnings("ignore:no closed-form update")
def test_a_line_search_comes_back_from_where_there_is_no_density():
    """From far away the first steps go to precisions whose densities are no numbers.

    A climb stops at moves of 1.5e-8, the root of eps; what it then lacks of the mode is well below 1e-4.
    """
    memory, *pairs = MEMORIES["regression memory, pull-back"](generator(0))
    found = [
        inference.adapt(models.bayesian(memory.replace(noise_precision=c), noise_precision=Gamma(2.0, 2.0)), *pairs)
        for c in (1.0, 1e-6)
    ]
    assert all(fit.converged for fit in found)
    near, far = (fit.formulation.noise_precision for fit in found)
    assert (near - far).abs() < 1e-4
