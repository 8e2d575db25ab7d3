"""What moves by gradients does not care in which unit its data are: keys in metres, millimetres or seconds since 1970.

The oracle is the same problem in other units: with data, keys and the scales of their priors times c, and precisions by c², a
verb returns the same numbers times c. Where c is a power of `UNIT` it does so to rounding.
"""

import math
import pickle

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.distributions import LogNormal, Normal, Wishart
from strategies import generator
from torch.distributions import biject_to, constraints

from probtx_pyro import inference, models
from probtx_pyro.inference._program import parameters
from probtx_pyro.inference._start import starts
from probtx_pyro.inference._units import UNIT, FromUnits, InUnits, measured, posterior_sizes

KEYS = 3 * torch.randn(4, 2, generator=generator(0), dtype=torch.float64)
QUERIES = KEYS.repeat(10, 1) + 0.5 * torch.randn(40, 2, generator=generator(1), dtype=torch.float64)
SCALES = (1e-12, 1e-3, 1e3, 1e12)


def posterior(c, since=0.0, **other):
    """Keys and precisions that gradients must climb, and the queries, in units of 1/c, counted from minus ``since``."""
    keys = KEYS * c + since
    mixture = models.GaussianMixture(keys, key_precision=torch.full((4,), 4 / c**2, dtype=torch.float64))
    priors = {"keys": Normal(keys + 0.2 * c, 0.5 * c), "key_precision": LogNormal(math.log(4 / c**2), 0.5), **other}
    return models.bayesian(mixture, **priors), QUERIES * c + since


def in_metres(found, c):
    return {"keys": found["keys"] / c, "key_precision": found["key_precision"] * c**2}


def assert_scaled(found, c, base):
    """Equal to 1e-5: rounding, magnified by the steps of a run, is some 1e-7 where a climb stops and less elsewhere; a wrong unit moves a number by 0.01 and more."""
    for name, x in in_metres(found, c).items():
        torch.testing.assert_close(x, base[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("c", SCALES)
@pytest.mark.filterwarnings("ignore:no closed-form update")
def test_adapt_climbs_to_the_same_mode(c):
    modes = {}
    for of in (1.0, c):
        fit = inference.adapt(*posterior(of), num_steps=300, tol=1e-12)
        assert fit.converged.all()
        modes[of] = in_metres(vars(fit.formulation), of)
    assert_scaled(modes[c], 1.0, modes[1.0])
    assert (modes[1.0]["keys"] - KEYS).abs().max() > 0.05  # it has climbed


@pytest.mark.filterwarnings("ignore:no closed-form update")
def test_adapt_serves_months_in_seconds_since_1970():
    month, since = 30 * 86400.0, 1.7e9
    found, base = (
        inference.adapt(*posterior(*at), num_steps=300, tol=1e-12).formulation for at in ((month, since), (1.0,))
    )
    # a key keeps 2e-7 seconds of 1.7e9, 1e-13 of a month; the rest is where a climb stops, as in `assert_scaled`
    torch.testing.assert_close((found.keys - since) / month, base.keys, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.key_precision * month**2, base.key_precision, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("c", [pytest.param(1e-12, marks=pytest.mark.slow), 1e3])
def test_nuts_draws_the_same(c):
    drawn = {of: inference.nuts(*posterior(of), num_samples=10, num_warmup=30, num_chains=2, seed=0) for of in (1.0, c)}
    assert_scaled(drawn[c].samples, c, drawn[1.0].samples)
    # a density of 8 keys and of 80 numbers of queries, each in units of 1/c; precisions move as logarithms;
    # draws may differ by 1e-5, see `assert_scaled`, times slopes of some hundred nats
    moved = drawn[c].statistics["lp"] - drawn[1.0].statistics["lp"] + 88 * math.log(c)
    assert moved.abs().max() < 1e-3


@pytest.mark.parametrize("c", [pytest.param(1e-3, marks=pytest.mark.slow), 1e12])
@pytest.mark.parametrize("guide", ["normal", "low_rank", "laplace", "delta"])
def test_guides_are_the_same(guide, c, tmp_path):
    options = {"guide": guide, "num_steps": 30, "num_samples": 5, "start": "map", "seed": 0, "learning_rate": 0.01}
    fits = {of: inference.variational(*posterior(of), **options) for of in (1.0, c)}
    assert_scaled(fits[c].draws.samples, c, fits[1.0].draws.samples)
    assert_scaled(fits[c].median, c, fits[1.0].median)
    fits[c].save(tmp_path / "fit.pt")
    again = inference.Approximation.load(tmp_path / "fit.pt", *posterior(c))
    with pyro.get_param_store().scope():
        assert torch.equal(again.guide.median(QUERIES * c)["keys"], fits[c].guide.median(QUERIES * c)["keys"])


def test_a_guide_of_sets_of_queries_begins_by_the_unit():
    """The sd of 8 numbers of scale 0.1, within a factor of 3; a unit that is not there is a factor of 1e6."""
    for c in (1.0, 1e-6):
        post, queries = posterior(c)
        guide = inference.ParameterGuide(post, queries, encoder=lambda x, c=c: (x / c).tanh())
        torch.manual_seed(0)
        with pyro.get_param_store().scope(), torch.no_grad():
            trace = pyro.poutine.trace(guide).get_trace(queries)
        spread = (trace.nodes["keys"]["value"] - post.formulation.keys).std() / c
        assert 0.03 < float(spread) < 0.3


@pytest.mark.slow
def test_features_may_differ_in_unit():
    """A full metric, whose coordinates off the diagonal have units of their own; to 1e-4, for longer trees than the others'."""
    c, drawn = torch.tensor([1e6, 1e-3], dtype=torch.float64), []
    for own in (torch.ones(2, dtype=torch.float64), c):
        keys = KEYS * own
        mixture = models.GaussianMixture(keys, key_precision=torch.full((4,), 4.0).double(), metric=torch.diag(own**-2))
        prior = Wishart(torch.tensor(4.0).double(), torch.diag(own**-2) / 4)
        post = models.bayesian(mixture, keys=Normal(keys, 0.5 * own), metric=prior)
        found = inference.nuts(post, QUERIES * own, num_samples=10, num_warmup=40, num_chains=2, seed=0).samples
        drawn.append((found["keys"] / own, found["metric"] * own * own.unsqueeze(-1)))
    for x, y in zip(*drawn, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_program_of_ones_own_is_measured_too():
    c = 1e-6

    def program(x, y, c):
        level = pyro.sample("level", dist.Normal(torch.zeros(()).double(), 10 * c))
        slope = pyro.sample("slope", dist.Normal(torch.zeros(()).double(), 10 * c**2))
        noise = pyro.sample("noise", dist.HalfNormal(torch.tensor(c).double()))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(level + slope * x, noise), obs=y)

    x = torch.randn(30, generator=generator(2), dtype=torch.float64)
    y = 1 + 2 * x + 0.3 * torch.randn(30, generator=generator(3), dtype=torch.float64)
    drawn = [
        inference.nuts(program, x / of, y * of, of, num_samples=10, num_warmup=40, num_chains=2, seed=0).samples
        for of in (1.0, c)
    ]
    for name, power in (("level", 1), ("slope", 2), ("noise", 1)):
        torch.testing.assert_close(drawn[1][name] / c**power, drawn[0][name], rtol=1e-4, atol=1e-4)


def test_what_is_of_order_one_has_no_units():
    assert parameters(*_arguments(1.0)).in_units().units == {}
    many = models.GaussianMixture(KEYS, key_precision=4.0)
    found = parameters(models.bayesian(many, keys=Normal(KEYS, 1.0)), (QUERIES.repeat(500, 1),))
    assert found.in_units().units == {}  # a posterior of width 0.004, but keys are where queries are


def _arguments(c, **other):
    post, queries = posterior(c, **other)
    return post, (queries,)


@pytest.mark.parametrize("c", SCALES)
def test_a_flat_prior_leaves_the_unit_to_the_data(c):
    post, data = _arguments(c, keys=models.FLAT)
    (unit,) = set(parameters(post, data).in_units().units["keys"].flatten().tolist())
    assert math.isclose(unit, c)


def test_a_wide_prior_does_not_make_a_wide_unit():
    post, data = _arguments(1.0, keys=Normal(KEYS, 1e9))
    assert parameters(post, data).in_units().units == {}


def test_chains_start_where_a_matrix_is_none_by_a_hair():
    """A jitter of 0.1 off the diagonal of a root of size 1e-4 made correlations of all but 1: condition numbers of 1e6.

    In a unit that may be 32 times too large three standard deviations of 0.1 are ten times the diagonal, and their square 100;
    the matrix has a condition number of 2 by itself.
    """
    metric = torch.tensor([[2.0, 0.3], [0.3, 1.0]], dtype=torch.float64)
    mixture = models.GaussianMixture(1e4 * KEYS, key_precision=4.0, metric=1e-8 * metric)
    post = models.bayesian(mixture, metric=Wishart(torch.tensor(4.0).double(), 1e-8 * metric / 4))
    found = starts(parameters(post, (1e4 * QUERIES,)).in_units(), 20, "map", 0)["metric"]
    assert torch.linalg.cond(found).max() < 200


def test_sizes_are_those_of_a_normal():
    """Against the curvature of a normal with correlated coordinates of sizes from 1e-9 to 1e9, to half a power of ten (`SETTLED`)."""
    root = torch.randn(7, 7, generator=generator(4), dtype=torch.float64)
    own = torch.tensor([1e-9, 1e-5, 1e-2, 1.0, 30.0, 1e4, 1e9], dtype=torch.float64)
    curvature = (root @ root.mT / 7 + torch.eye(7)) / own / own.unsqueeze(-1)
    found = posterior_sizes(lambda x: curvature @ x, 0.1 * own)
    assert ((found * curvature.diagonal().sqrt()).log10().abs() < 0.5).all()


def refused(x):
    if x.abs().max() > 0:
        raise ValueError("too far")
    return x


@pytest.mark.parametrize("slope", [torch.zeros_like, torch.ones_like, torch.randn_like, lambda x: x / 0, refused])
def test_sizes_that_no_slope_tells_are_one(slope):
    assert torch.equal(posterior_sizes(slope, torch.zeros(3)), torch.ones(3))


def test_coordinates_in_units_are_a_map_with_its_jacobian():
    unit = torch.tensor([1e3, 1.0, 1e-3], dtype=torch.float64)
    to_value = biject_to(InUnits(constraints.positive_definite, unit))
    x = torch.randn(3, generator=generator(5), dtype=torch.float64) / unit
    y = to_value(x)
    torch.testing.assert_close(to_value.inv(y), x)
    entries = torch.tril_indices(2, 2)
    jacobian = torch.autograd.functional.jacobian(lambda x: to_value(x)[..., entries[0], entries[1]], x)
    torch.testing.assert_close(to_value.log_abs_det_jacobian(x, y), jacobian.det().abs().log())
    torch.testing.assert_close(to_value.volume(x, y), jacobian.det().abs().log() - unit.log().sum())
    assert isinstance(to_value, FromUnits) and UNIT == 1000.0


def test_a_measured_prior_is_the_prior():
    prior = Normal(torch.zeros(3), 2.0).to_event(1)
    found = measured(prior, torch.full((3,), 1e3))
    x = torch.randn(5, 3, generator=generator(6))
    assert torch.equal(found.log_prob(x), prior.log_prob(x)) and isinstance(found, type(prior))
    assert found.support.check(x).all()
    assert torch.equal(biject_to(found.support)(x), 1e3 * x)
    again = pickle.loads(pickle.dumps(found))
    assert torch.equal(again.log_prob(x), prior.log_prob(x)) and torch.equal(again.support.unit, found.support.unit)
