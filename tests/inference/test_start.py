"""Where chains start: the mode, the mixture, the prior, or values given."""

import pyro
import pytest
import torch
from pyro.distributions import Dirichlet, Exponential, Gamma, LogNormal, Normal
from samplers import parameters, seeds, starts
from scipy import stats
from strategies import generator, problem
from tolerances import FALSE_ALARM_RATE, assert_equal

from probtx_pyro import inference, models


def priors(mixture, concentration=3.0, precision=None):
    weights = torch.full((1, mixture.num_units), concentration)
    return dict(keys=Normal(mixture.keys, 0.6), key_precision=precision or Gamma(3.0, 2.0), weights=Dirichlet(weights))


@pytest.mark.parametrize("masked", [False, True])
def test_the_map_is_that_of_adapt(masked):
    mixture, *args = problem(generator(1), queries=12, masked=masked)
    program = models.bayesian(mixture, **priors(mixture))
    fit = inference.adapt(models.bayesian(mixture, **program.priors), args[0], *args[1:], num_steps=2000, tol=1e-10)
    found = starts(parameters(program, tuple(args)), 1, "map", 0, jitter=0.0)
    assert (
        found["keys"][0] - fit.formulation.keys
    ).abs().max() < 0.02  # EM with tol 1e-4, far from its limit by some 1e-2
    allowed = torch.ones(4, dtype=torch.bool) if not masked else mixture.log_prior[0] > -torch.inf
    mean = allowed / allowed.sum()
    assert (found["weights"][0] - (0.99 * fit.formulation.log_prior.exp() + 0.01 * mean)).abs().max() < 0.02
    assert (found["weights"][..., ~allowed] == 0).all()


@pytest.mark.parametrize("other", [{"concentration": 0.5}, {"precision": LogNormal(0.0, 0.5)}])
def test_without_closed_form_or_mode_it_is_the_unconstrained_maximum(other):
    mixture, *args = problem(generator(2), queries=12)
    program = models.bayesian(mixture, **priors(mixture, **other))
    found = parameters(program, tuple(args))
    potential, transforms = found.unconstrained()
    point = starts(parameters(program, tuple(args)), 1, "map", 0, jitter=0.0)
    free = {name: transforms[name](x[0]).requires_grad_() for name, x in point.items()}
    value = potential(free)
    slopes = torch.autograd.grad(value, list(free.values()))
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-2
    assert value < potential({name: transforms[name](site.initial) for name, site in found.sites.items()})


def test_jitter_is_normal_and_the_first_chains_do_not_depend_on_the_others():
    mixture, queries, *_ = problem(generator(3))
    program = models.bayesian(mixture, **priors(mixture))
    many, few = (starts(parameters(program, (queries,)), n, "formulation", 7) for n in (50, 2))
    assert_equal(many["keys"][:2], few["keys"])
    z = ((many["key_precision"] / mixture.key_precision).log() / 0.1).flatten()
    assert stats.kstest(z.cpu().numpy(), "norm").pvalue > FALSE_ALARM_RATE
    assert_equal(starts(parameters(program, (queries,)), 1, "formulation", 0, jitter=0.0)["keys"][0], mixture.keys)
    assert not torch.equal(starts(parameters(program, (queries,)), 2, "formulation", 8)["keys"], few["keys"])


def test_starts_are_draws_of_the_prior():
    mixture, queries, *_ = problem(generator(4))
    program = models.bayesian(mixture, **priors(mixture))
    found = starts(parameters(program, (queries,)), 40, "prior", 1)
    z = ((found["keys"] - mixture.keys) / 0.6).flatten()
    assert stats.kstest(z.cpu().numpy(), "norm").pvalue > FALSE_ALARM_RATE
    with pytest.raises(ValueError, match="prior on keys is flat and cannot be drawn; use start='map'"):
        starts(parameters(models.bayesian(mixture, keys=models.FLAT), (queries,)), 2, "prior", 1)


def test_values_are_used_as_they_are():
    mixture, queries, *_ = problem(generator(5))
    program = models.bayesian(mixture, keys=Normal(0.0, 1.0), key_precision=Gamma(2.0, 1.0))
    values = {"keys": torch.zeros(2, 4, 3), "key_precision": torch.ones(4)}
    found = starts(parameters(program, (queries,)), 2, values, 0)
    assert torch.equal(found["keys"], values["keys"])
    assert torch.equal(found["key_precision"], torch.ones(2, 4))
    bad = {
        "give each a tensor": {"keys": values["keys"]},
        r"keys has shape \(3,\); it must be \(4, 3\), or \(2, 4, 3\)": {**values, "keys": torch.zeros(3)},
        "key_precision is off the support": {**values, "key_precision": -torch.ones(4)},
        "keys is off the support": {**values, "keys": torch.full((4, 3), torch.nan)},
    }
    for message, start in bad.items():
        with pytest.raises(ValueError, match=message):
            starts(parameters(program, (queries,)), 2, start, 0)


def test_a_program_without_a_mixture_starts_at_its_prior_median():
    def program(data):
        rate = pyro.sample("rate", Gamma(2.0, 1.0))
        pyro.sample("data", Exponential(rate).expand([3]).to_event(1), obs=data)

    one, same = (
        starts(parameters(program, (torch.ones(3),)), 1, how, 0, jitter=0.0)["rate"] for how in ("map", "formulation")
    )
    assert torch.equal(one, same) and 0.5 < one < 3.5  # of 15 draws
    torch.manual_seed(9)
    assert torch.equal(starts(parameters(program, (torch.ones(3),)), 1, "map", 0, jitter=0.0)["rate"], one)


def test_streams_of_seeds_do_not_meet():
    first = seeds(0, 100, "starts")
    assert (
        first[:5] == seeds(0, 5, "starts")
        and len(set(first + seeds(0, 100, "chains") + seeds(1, 100, "starts"))) == 300
    )
