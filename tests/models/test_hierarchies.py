"""`models.bayesian` with hyperpriors: the density is that of its parts, and every verb serves it."""

import pyro
import pytest
import torch
from oracles import evidence
from pyro import poutine
from pyro.distributions import Gamma, LogNormal, Normal
from strategies import generator, lists
from tolerances import assert_equal

from probtx_pyro import inference, models, results

pytestmark = pytest.mark.usefixtures("device")


def mixture_and_queries():
    keys = torch.randn(3, 2, generator=generator(1))
    return models.GaussianMixture(keys, key_precision=2.0), torch.randn(12, 2, generator=generator(2))


def test_a_hierarchy_has_the_density_of_its_parts():
    mixture, queries = mixture_and_queries()

    def around():
        return Normal(mixture.keys, pyro.sample("spread", LogNormal(0.0, 1.0)))

    program = models.bayesian(mixture, keys=around)
    keys, spread = mixture.keys + 0.3, torch.tensor(0.7)
    expected = LogNormal(0.0, 1.0).log_prob(spread) + Normal(mixture.keys, spread).log_prob(keys).sum()
    moved = mixture.replace(keys=keys)
    expected = expected + torch.tensor(evidence(lists(moved, queries))).sum()
    assert_equal(
        poutine.trace(poutine.condition(program, {"keys": keys, "spread": spread})).get_trace(queries).log_prob_sum(),
        expected,
        operations=256,
    )


@pytest.mark.slow
def test_a_hierarchy_by_nuts_has_the_posterior_of_a_grid():
    """One unit in one dimension: given its key the queries say nothing of the spread, whose posterior a grid gives."""
    mixture = models.GaussianMixture(torch.zeros(1, 1), key_precision=1.0)
    queries = torch.tensor([[2.5], [1.5], [2.0]])

    def around():
        return Normal(0.0, pyro.sample("spread", Gamma(3.0, 2.0)))

    program = models.bayesian(mixture, keys=around)
    draws = inference.nuts(program, queries, num_samples=25, num_warmup=100, num_chains=64, seed=0)
    spread, key = torch.meshgrid(torch.linspace(0.01, 8.0, 500), torch.linspace(-2.0, 5.0, 500), indexing="ij")
    log = Gamma(3.0, 2.0).log_prob(spread) + Normal(0.0, spread).log_prob(key)
    log = log + sum(Normal(key, 1.0).log_prob(q) for q in queries[:, 0])
    weight = (log - log.max()).exp()
    for name, grid in (("spread", spread), ("keys", key)):
        exact = (weight * grid).sum() / weight.sum()
        sd = ((weight * (grid - exact) ** 2).sum() / weight.sum()).sqrt()
        drawn = draws.samples[name].flatten()
        assert abs(drawn.mean() - exact) < 5 * sd / 200**0.5, name  # at least 200 effective draws of 1,600


@pytest.mark.slow
def test_a_hierarchy_keeps_relabelling_attention_and_leave_one_out():
    mixture, queries = mixture_and_queries()

    def shared():
        return Normal(0.0, pyro.sample("spread", LogNormal(0.0, 0.5)))

    draws = inference.nuts(
        models.bayesian(mixture, keys=shared), queries, num_samples=30, num_warmup=30, num_chains=2, seed=0
    )
    data = results.to_inference_data(draws, seed=0, prior=4)
    assert "exchangeable units relabelled" in data.attrs["labels"]
    assert data["posterior"]["attention"].shape == (2, 30, 12, 3)
    assert data["log_likelihood"]["queries"].shape == (2, 30, 12)
    assert data["prior"]["spread"].shape == (1, 4)
    guided = inference.variational(models.bayesian(mixture, keys=shared), queries, num_steps=20, num_samples=5, seed=0)
    assert guided.draws.samples["spread"].shape == (1, 5)


def test_units_with_hyperparameters_of_their_own_do_not_change_places():
    mixture, queries = mixture_and_queries()

    def own():
        with pyro.plate("spreads", 3):
            return Normal(0.0, pyro.sample("spread", LogNormal(0.0, 0.5)).unsqueeze(-1))

    draws = inference.nuts(
        models.bayesian(mixture, keys=own), queries, num_samples=5, num_warmup=5, num_chains=1, seed=0
    )
    assert "units are not exchangeable" in results.to_inference_data(draws).attrs["labels"]
