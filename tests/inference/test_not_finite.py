"""No NaN leaves inference without a word: where one is put, one line names the parameter or the data, and the problem."""

import math

import numpy as np
import pytest
import torch
from bernoulli import BernoulliMixture
from pyro.distributions import Categorical, Gamma, HalfNormal, MixtureSameFamily, Normal, StudentT, Uniform
from samplers import Adaptation, BatchedNUTS, Streams, _turns, fingerprint, identity
from strategies import generator

from probtx_pyro import inference, models
from probtx_pyro.inference.em import require_inside
from probtx_pyro.models.priors import Site
from probtx_pyro.ops import fixed_point

HUGE = 1e200  # whose square is infinite


def batch(*, bad=None):
    """Three problems, of which one has data beyond what can be squared."""
    keys = torch.randn(3, 4, 2, generator=generator(0))
    queries = torch.randn(3, 6, 2, generator=generator(1))
    if bad is not None:
        queries[bad, 2] = HUGE
    return models.GaussianMixture(keys), queries


FEW = {"num_samples": 3, "num_chains": 2, "num_warmup": 3, "seed": 0, "start": "formulation"}
VERBS = {
    "ECM": lambda mixture, queries: inference.adapt(models.bayesian(mixture, keys=Normal(0.0, 1.0)), queries),
    "ECM with a tolerance": lambda mixture, queries: inference.adapt(
        models.bayesian(mixture, keys=Normal(0.0, 1.0), key_precision=Gamma(2.0, 2.0)), queries, num_steps=50, tol=1e-6
    ),
    "gradient MAP": lambda mixture, queries: inference.adapt(models.bayesian(mixture, keys=StudentT(4.0)), queries),
    "Gibbs": lambda mixture, queries: inference.gibbs(models.bayesian(mixture, keys=Normal(0.0, 1.0)), queries, **FEW),
}


@pytest.mark.filterwarnings("ignore:no closed-form update")
@pytest.mark.parametrize("verb", VERBS)
def test_one_bad_problem_of_a_batch_is_named(verb):
    VERBS[verb](*batch())
    with pytest.raises(ValueError, match=r"^inference\.(adapt|gibbs): .* of problem \(1,\).*; ") as caught:
        VERBS[verb](*batch(bad=1))
    assert "\n" not in str(caught.value)


def test_where_the_data_have_no_density_the_observation_is_named():
    mixture = BernoulliMixture(torch.tensor([[0.0], [0.0]]))
    answers = torch.tensor([[0.0], [1.0], [0.0]])
    posterior = models.bayesian(mixture, weights=models.FLAT)
    with pytest.raises(ValueError, match=r"log density of the data is (nan|-inf), first at observation [01]; mend"):
        inference.adapt(posterior, answers)


def test_a_prior_without_a_density_is_named():
    mixture, queries = batch()
    joint = models.bayesian(mixture, keys=Uniform(-9.0, 9.0)).problem(queries)
    state = {"keys": joint.start["keys"].clone()}
    state["keys"][2, 0, 0] = 10.0
    with pytest.raises(
        ValueError, match=r"x: the log density of keys of problem \(2,\) under its prior is -inf; start"
    ):
        joint.sites["keys"].distribution.base_dist._validate_args = False
        joint.require_numbers("x", state, torch.tensor([0.0, 0.0, -math.inf]))


def test_parameters_are_named_and_good_ones_are_not():
    mixture, queries = batch()
    joint = models.bayesian(mixture, keys=Normal(0.0, 1.0), key_precision=Gamma(2.0, 2.0)).problem(queries)
    state = {name: x.clone() for name, x in joint.start.items()}
    joint.require_numbers("x", state, torch.zeros(joint.problems))
    state["keys"][1, 3, 1] = math.nan
    with pytest.raises(ValueError, match=r"^x: keys of problem \(1,\) came to be NaN or infinite"):
        joint.require_numbers("x", state, torch.zeros(joint.problems))
    chains = {name: torch.stack([joint.start[name], x]) for name, x in state.items()}
    with pytest.raises(ValueError, match=r"^x: keys of problem \(1,\) of chain 2 came to be"):
        joint.require_numbers("x", chains, torch.zeros(2, *joint.problems))


def test_what_half_precision_cannot_hold_is_refused():
    mixture = models.GaussianMixture(torch.zeros(1, 2, dtype=torch.float16))
    queries = torch.full((50, 2), 1e-3, dtype=torch.float16)
    posterior = models.bayesian(mixture, key_precision=Gamma(2.0, 1e-6))
    with pytest.raises(ValueError, match=r"key_precision left the range of torch\.float16; adapt in torch\.float32"):
        inference.adapt(posterior, queries)


@pytest.mark.parametrize("tol", [None, 1e-3])
def test_a_fixed_point_that_is_nan_has_not_converged(tol):
    """Beside it a problem that has, and the iteration does not wait for what never comes."""
    steps = []

    def step(state):
        steps.append(1)
        return {"x": 0.5 * state["x"] + torch.tensor([math.nan, 1.0])}, None

    found = fixed_point(step, {"x": torch.ones(2)}, problems=(2,), num_steps=200, tol=tol)
    assert found.converged.tolist() == [False, True]
    assert len(steps) == 200 if tol is None else len(steps) < 20


def test_an_implicit_gradient_that_is_nan_is_an_error():
    weight = torch.tensor(0.5, requires_grad=True)
    found = fixed_point(
        lambda s: ({"x": weight * s["x"] + 1}, None), {"x": torch.ones(1)}, num_steps=100, implicit=True
    )
    with pytest.raises(RuntimeError, match="or the gradient that comes in is NaN"):
        (found.state["x"] * math.nan).sum().backward()


def test_a_trajectory_that_is_nan_has_turned():
    bad, good = np.array([[math.nan, 1.0]]), np.ones((1, 2))
    for momenta in ((bad, good, good), (good, bad, good), (good, good, bad)):
        assert bool(_turns(*momenta))


@pytest.mark.parametrize("edge", [math.nan, -math.inf, math.inf])
def test_nuts_never_draws_where_the_density_is_no_number(edge):
    """Minus a log density that is NaN, or infinite either way, beyond 1: a divergence there, and draws of a normal cut off at 1."""

    def potential(x):
        return torch.where(x[:, 0] > 1, edge, 0.5 * x[:, 0].square()), x.clone()

    start = torch.zeros(4, 1)
    adaptation = Adaptation(start.unflatten(0, (4, 1)), 50, 0.8, True, lambda x: x)
    sampler = BatchedNUTS(potential, start, Streams([1, 2, 3, 4], 1, 1, start), adaptation, 100, 5)
    sampler.begin()
    while not sampler.finished:
        sampler.advance()
    assert torch.isfinite(sampler.draws).all() and (sampler.draws <= 1).all() and sampler.draws.std() > 0.3
    assert sampler.statistics["diverging"].any() and torch.isfinite(sampler.statistics["lp"]).all()


@pytest.mark.filterwarnings("ignore:Encountered NaN")
def test_variational_says_what_is_not_finite():
    mixture = models.GaussianMixture(torch.zeros(2, 1))
    posterior = models.bayesian(mixture, keys=Normal(0.0, 1.0))
    with pytest.raises(
        ValueError,
        match=r"variational: the loss is .*; lower learning_rate, .* \(AutoNormal\.locs\.keys, .* not finite\)",
    ):
        inference.variational(posterior, torch.ones(3, 1), learning_rate=1e300, num_steps=5, num_samples=2, seed=0)


def crf(size):
    unary = torch.zeros(3, 2)
    unary[1, 0] = size
    return models.DependencyCRF(unary, torch.zeros(1, 2, 2, 2))


LATENT = {
    "gibbs": lambda x: inference.gibbs(x, num_samples=2, num_chains=2, num_warmup=1, seed=0),
    "annealed_log_partition": lambda x: inference.annealed_log_partition(x, num_temperatures=3, num_chains=2, seed=0),
    "importance_log_partition": lambda x: inference.importance_log_partition(
        x, proposal=crf(0.0).mean_field(5), num_draws=4, seed=0
    ),
}


@pytest.mark.parametrize("verb", LATENT)
def test_latent_choices_whose_density_is_no_number_are_refused(verb):
    LATENT[verb](crf(1.0))
    bad = crf(0.0).with_parameters({"unary": torch.full((3, 2), math.nan)})
    with pytest.raises(ValueError, match=rf"{verb}: the log density of the latent choices is nan: unary hold NaN"):
        LATENT[verb](bad)


# -- starts ------------------------------------------------------------------------------------------------------------------

STARTING = {
    "adapt": lambda posterior, x: inference.adapt(posterior, x),
    "nuts": lambda posterior, x: inference.nuts(posterior, x, num_samples=2, num_warmup=2, num_chains=1, seed=0),
    "variational": lambda posterior, x: inference.variational(posterior, x, num_steps=2, num_samples=2, seed=0),
}


@pytest.mark.pairs
@pytest.mark.filterwarnings("ignore:no closed-form update")
@pytest.mark.parametrize("verb", STARTING)
@pytest.mark.parametrize("prior", [Uniform(0.0, 2.0), HalfNormal(1.0)], ids=["interval", "half line"])
@pytest.mark.parametrize(("lowest", "said"), [(-0.5, "outside the support"), (0.0, "on a bound of its support")])
def test_every_verb_refuses_a_start_off_the_prior_in_the_same_words(verb, prior, lowest, said):
    mixture = models.GaussianMixture(torch.tensor([[lowest], [0.5]]))
    with pytest.raises(ValueError, match=rf"keys starts {said}.*formulation\.replace\(keys=.*start='prior'"):
        STARTING[verb](models.bayesian(mixture, keys=prior), torch.ones(3, 1))


def test_chains_start_inside_where_they_are_told_to():
    posterior = models.bayesian(models.GaussianMixture(torch.tensor([[-0.5], [0.5]])), keys=Uniform(0.0, 2.0))
    how = {"num_samples": 2, "num_warmup": 2, "num_chains": 1, "seed": 0, "start": "prior"}
    draws = inference.nuts(posterior, torch.ones(3, 1), **how)
    assert ((draws.samples["keys"] > 0) & (draws.samples["keys"] < 2)).all()


@pytest.mark.parametrize("prior", [Normal(0.0, 1.0), Uniform(0.0, 2.0), Gamma(2.0, 2.0)])
def test_a_start_that_is_no_number_is_refused(prior):
    with pytest.raises(ValueError, match="x starts outside the support"):
        require_inside({"x": Site(prior, torch.tensor(math.nan))})


def test_a_checkpoint_knows_the_numbers_of_a_prior_of_any_family():
    mixture, _ = batch()

    def told(loc):
        prior = MixtureSameFamily(Categorical(torch.ones(2)), Normal(torch.tensor([0.0, loc]), 1.0))
        return fingerprint(identity(models.bayesian(mixture, keys=prior)))

    assert told(1.0) == told(1.0) != told(2.0)
