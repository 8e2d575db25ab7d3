"""``torch.save`` and ``torch.load(weights_only=True)``: formulations, posteriors, fits and draws come back, and no code does."""

import functools
import io
import pickle

import formulations
import pyro.distributions as dist
import pytest
import torch
from poisson import PoissonMixture
from strategies import generator

from probtx_pyro import inference, models, results

MIXTURE = models.GaussianMixture(torch.zeros(3, 2, dtype=torch.float64), metric=torch.eye(2, dtype=torch.float64))
QUERIES = torch.randn(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def again(x):
    """What a file gives back."""
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(x, y):
    """Equal in kind and to the bit, all the way down."""
    if isinstance(x, torch.Tensor):
        return x.dtype == y.dtype and torch.equal(x, y)
    if isinstance(x, dict):
        return list(x) == list(y) and all(same(x[key], y[key]) for key in x)
    if isinstance(x, tuple):
        return type(x) is type(y) and len(x) == len(y) and all(map(same, x, y))
    if isinstance(x, models.Formulation | models.LowRank | models.Edges):
        return type(x) is type(y) and same(vars(x), vars(y))
    if isinstance(x, models.Bayesian):
        return same(x.formulation, y.formulation) and list(x.priors) == list(y.priors)
    return x == y


@pytest.mark.parametrize("name", formulations.ROWS)
def test_a_formulation_comes_back(name):
    row = formulations.ROWS[name]
    formulation, *data = row.draw(generator(0))
    before = formulation.attention(*data)
    kept = again(formulation)  # after it was used: what it may have cached must not be in the way
    assert same(formulation, kept)
    assert torch.equal(kept.attention(*data), before)


@pytest.mark.parametrize("name", formulations.MEMORIES)
def test_a_memory_comes_back_with_its_drift(name):
    memory, *pairs = formulations.MEMORIES[name](generator(0))
    before = memory.log_evidence(*pairs)
    kept = again(memory)
    assert same(vars(memory) | {"drift": vars(memory.drift)}, vars(kept) | {"drift": vars(kept.drift)})
    assert torch.equal(kept.log_evidence(*pairs), before)


def test_so_do_a_formulation_of_ones_own_and_a_factored_crf():
    own = PoissonMixture(torch.ones(3, 2))
    assert same(own, again(own))
    factor = torch.randn(1, 2, 3, 2, generator=generator(1))
    crf = models.DependencyCRF(torch.zeros(4, 3), models.LowRank(factor, factor))
    assert same(crf, again(crf))


ONE = torch.ones(2, dtype=torch.float64)
PRIORS = {
    "normal": {"keys": dist.Normal(0.0, 1.5)},
    "flat": {"keys": models.FLAT},
    "gamma": {"key_precision": dist.Gamma(2.0, 3.0)},
    "wishart": {"metric": dist.Wishart(torch.tensor(4.0, dtype=torch.float64), torch.diag(ONE))},
    "dirichlet": {"weights": dist.Dirichlet(torch.full((3,), 2.0, dtype=torch.float64))},
    "log-normal": {"key_precision": dist.LogNormal(0.5, 1.5)},
    "half-normal": {"key_precision": dist.HalfNormal(1.5)},
    "an event": {"keys": dist.Normal(torch.zeros(3, 2, dtype=torch.float64), 1.0).to_event(2)},
    "correlated": {"keys": dist.MultivariateNormal(ONE, precision_matrix=torch.diag(2 * ONE))},
    "a mixture": {"keys": dist.MixtureSameFamily(dist.Categorical(ONE), dist.Normal(2 * ONE.cumsum(0), 0.5))},
    "of torch": {"keys": torch.distributions.Normal(0.0, 1.5)},
}


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("through", [again, lambda x: pickle.loads(pickle.dumps(x))], ids=["torch", "pickle"])
def test_a_posterior_comes_back(name, through):
    posterior = models.bayesian(MIXTURE, **PRIORS[name])
    kept = through(posterior)
    assert same(posterior, kept) and kept.conjugate() == posterior.conjugate()
    for parameter, site in posterior.problem(QUERIES).sites.items():
        other = kept.problem(QUERIES).sites[parameter]
        assert type(other.distribution) is type(site.distribution)
        if posterior.priors[parameter] is models.FLAT:
            assert kept.priors[parameter] is models.FLAT
        else:
            value = site.distribution.sample() if name != "wishart" else MIXTURE.metric
            assert torch.equal(other.distribution.log_prob(value), site.distribution.log_prob(value))


def test_fits_and_draws_come_back_with_their_posterior():
    posterior = models.bayesian(MIXTURE, keys=dist.Normal(0.0, 1.0), key_precision=dist.Gamma(2.0, 2.0))
    fit = inference.adapt(posterior, QUERIES)
    assert same(fit, again(fit))
    how = {"num_samples": 3, "num_chains": 2, "seed": 0}
    for draws in (inference.gibbs(posterior, QUERIES, **how), inference.nuts(posterior, QUERIES, num_warmup=3, **how)):
        kept = again(draws)
        assert same(draws, kept)
        assert torch.equal(results.predict(kept, QUERIES).attention, results.predict(draws, QUERIES).attention)
    found = models.SoftKMeans(QUERIES[:2], 1.0).em(QUERIES, 3)
    kept = again(found)
    assert same(found, kept)


class Gamma(dist.Gamma):
    """A prior of one's own, with the name of one of Pyro's."""


def test_a_namesake_is_not_taken_for_it():
    posterior = models.bayesian(MIXTURE, key_precision=Gamma(2.0, 2.0))
    assert type(pickle.loads(pickle.dumps(posterior)).priors["key_precision"]) is Gamma
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        again(posterior)


def normal():
    return dist.Normal(0.0, 1.0)


@pytest.mark.parametrize("prior", [normal, functools.partial(dist.Normal, 0.0, 1.0)], ids=["function", "partial"])
def test_code_does_not_come_back(prior):
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        again(models.bayesian(MIXTURE, keys=prior))


def test_a_file_cannot_name_more_than_a_distribution():
    kept = models.bayesian(MIXTURE, keys=dist.Normal(0.0, 1.0))
    state = kept.__getstate__()
    for name in ("util", "constraints", "FLAT_", "enable_validation"):
        with pytest.raises(ValueError, match=f"Pyro has no family '{name}'"):
            kept.__setstate__({**state, "priors": {"keys": state["priors"]["keys"]._replace(family=name)}})
