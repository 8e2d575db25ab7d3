"""Gibbs against sums over all assignments, its resumption, and its refusals."""

import math
from itertools import product

import pytest
import torch
from pyro import poutine
from pyro.distributions import Dirichlet, Gamma, Laplace, Normal
from samplers import Checkpoint
from strategies import generator
from torch import Tensor

from probtx_pyro import inference, models

QUERIES = [[-1.2, 0.3], [-0.4, -0.1], [0.2, 0.9], [1.3, 0.2], [0.9, -0.8]]
ANSWERS = [[0.5], [-0.7], [0.1], [1.4], [0.6]]
RUN = {"num_samples": 500, "num_chains": 40, "num_warmup": 50, "seed": 0}


def z_scores(draws: Tensor, mean: Tensor) -> Tensor:
    """(chain mean - mean) in standard errors, from the spread of the independent chains."""
    chains = draws.mean(1)
    return (chains.mean(0) - mean) / (chains.std(0) / math.sqrt(len(chains)))


def assert_moments(draws: Tensor, mean: Tensor, variance: Tensor, bound: float = 4.0):
    """First and second moments within ``bound`` standard errors (a chance of 6e-5 each that a right sampler fails)."""
    assert z_scores(draws, mean).abs().max() < bound
    assert z_scores((draws - mean).square(), variance).abs().max() < bound


def over_assignments(weigh) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Mean and variance of the parameters: a mixture over all assignments of 5 queries to 2 units.

    ``weigh(z)`` gives the log of p(data, z) and the parameters' conditional mean and variance.
    """
    logs, means, squares = [], [], []
    for z in product(range(2), repeat=len(QUERIES)):
        log, moments = weigh(torch.tensor(z))
        logs.append(log)
        means.append({name: mean for name, (mean, _) in moments.items()})
        squares.append({name: variance + mean.square() for name, (mean, variance) in moments.items()})
    share = torch.stack(logs).softmax(0)
    first = {name: sum(w * m[name] for w, m in zip(share, means, strict=True)) for name in means[0]}
    second = {name: sum(w * m[name] for w, m in zip(share, squares, strict=True)) for name in means[0]}
    return first, {name: second[name] - first[name].square() for name in first}


def normal_given(points, z, prior_mean, prior_precision, precision):
    """log p(points | z) with the locations integrated out, coordinate by coordinate, and their conditional moments."""
    log, means, variances = torch.zeros(()), [], []
    for j in range(2):
        own = points[z == j]
        total = prior_precision + precision[j] * len(own)
        mean = (prior_precision * prior_mean[j] + precision[j] * own.sum(0)) / total
        square = (
            precision[j] * own.square().sum()
            + prior_precision * prior_mean[j].square().sum()
            - total * mean.square().sum()
        )
        width = points.shape[1]
        log = (
            log + 0.5 * width * (len(own) * precision[j].log() + math.log(prior_precision) - total.log()) - 0.5 * square
        )
        means.append(mean)
        variances.append(torch.full_like(mean, 1 / float(total)))
    return log, (torch.stack(means), torch.stack(variances))


def gamma_given(points, z, shape, rate, centers):
    """log p(points | z) with the precisions integrated out, and their conditional moments."""
    log, means, variances = torch.zeros(()), [], []
    for j in range(2):
        own = points[z == j]
        a, b = shape + 0.5 * own.numel(), rate + 0.5 * (own - centers[j]).square().sum()
        log = log + math.lgamma(a) - a * torch.as_tensor(b).log()
        means.append(a / b)
        variances.append(a / b**2)
    return log, (torch.stack([torch.as_tensor(x) for x in means]), torch.stack([torch.as_tensor(x) for x in variances]))


def dirichlet_given(counts, concentration):
    """log p(counts) up to a constant, and the moments of the weights."""
    total = counts + concentration
    mean = total / total.sum(-1, keepdim=True)
    variance = mean * (1 - mean) / (total.sum(-1, keepdim=True) + 1)
    log = torch.lgamma(total).sum() - torch.lgamma(total.sum(-1)).sum()
    return log, (mean, variance)


@pytest.mark.slow
def test_keys_values_and_weights_are_those_of_the_sum_over_all_assignments():
    queries, outputs = torch.tensor(QUERIES), torch.tensor(ANSWERS)
    observed = torch.tensor([True, False, True, True, False])
    precision, answer_precision = torch.tensor([1.0, 2.5]), torch.tensor([1.5, 0.7])
    keys, values = torch.tensor([[-1.0, 0.0], [1.0, 0.5]]), torch.tensor([[0.0], [1.0]])
    concentration = torch.tensor([1.5, 0.8])
    mixture = models.GaussianMixture(keys, values, precision, answer_precision)
    priors = dict(keys=Normal(keys, 0.9), values=Normal(values, 0.6), weights=Dirichlet(concentration))
    draws = inference.gibbs(models.bayesian(mixture, **priors), queries, outputs, observed, **RUN)

    def weigh(z):
        of_keys, key_moments = normal_given(queries, z, keys, 0.9**-2, precision)
        answered = torch.where(observed, z, -1)
        of_values, value_moments = normal_given(outputs, answered, values, 0.6**-2, answer_precision)
        counts = torch.stack([(z == j).sum() for j in range(2)]).to(queries.dtype)
        of_weights, weight_moments = dirichlet_given(counts, concentration)
        moments = {"keys": key_moments, "values": value_moments, "weights": tuple(x[None] for x in weight_moments)}
        return of_keys + of_values + of_weights, moments

    mean, variance = over_assignments(weigh)
    for name in mean:
        assert_moments(draws.samples[name], mean[name], variance[name])


@pytest.mark.slow
def test_precisions_and_labels_and_weights_of_each_query_are_those_of_the_sum_over_all_assignments():
    queries, labels = torch.tensor(QUERIES), torch.tensor([0, 2, 1, 1, 0])
    keys, rho = torch.tensor([[-1.0, 0.0], [1.0, 0.5]]), torch.tensor([2.0, 1.0, 0.5])
    concentration = torch.rand(5, 2, generator=generator(0)) + 0.5
    mixture = models.GaussianMixture.categorical(keys, torch.full((2, 3), 1 / 3), torch.ones(2))
    mixture = mixture.replace(log_prior=torch.full((5, 2), 0.5).log())
    priors = dict(key_precision=Gamma(2.0, 1.5), answer_probs=Dirichlet(rho), weights=Dirichlet(concentration))
    draws = inference.gibbs(models.bayesian(mixture, **priors), queries, labels, **RUN)

    def weigh(z):
        of_precision, precision_moments = gamma_given(queries, z, 2.0, 1.5, keys)
        counts = torch.stack([torch.bincount(labels[z == j], minlength=3) for j in range(2)]).to(queries.dtype)
        of_labels, label_moments = dirichlet_given(counts, rho)
        of_weights, weight_moments = dirichlet_given(torch.nn.functional.one_hot(z, 2).to(queries.dtype), concentration)
        moments = {"key_precision": precision_moments, "answer_probs": label_moments, "weights": weight_moments}
        return of_precision + of_labels + of_weights, moments

    mean, variance = over_assignments(weigh)
    for name in mean:
        assert_moments(draws.samples[name], mean[name], variance[name])


@pytest.mark.slow
def test_a_key_and_its_precision_together_are_those_of_their_density_on_a_grid():
    queries = torch.tensor([[0.4], [1.1], [0.7], [2.0]])
    mixture = models.GaussianMixture(torch.zeros(1, 1), key_precision=torch.ones(1))
    priors = dict(keys=Normal(0.5, 0.7), key_precision=Gamma(2.0, 0.8))
    draws = inference.gibbs(models.bayesian(mixture, **priors), queries, **RUN)
    key, precision = torch.meshgrid(torch.linspace(-3, 4, 1401), torch.linspace(1e-3, 14, 2001), indexing="ij")
    log = -0.5 * ((key - 0.5) / 0.7) ** 2 + (2 - 1) * precision.log() - 0.8 * precision
    for x in queries.flatten():
        log = log + 0.5 * precision.log() - 0.5 * precision * (x - key) ** 2
    weight = (log - log.max()).exp()
    weight = weight / weight.sum()
    for name, grid in (("keys", key), ("key_precision", precision)):
        mean = (weight * grid).sum()
        assert_moments(draws.samples[name].flatten(2), mean, (weight * (grid - mean) ** 2).sum())


@pytest.mark.slow
def test_components_of_gaussian_keys_are_those_of_the_sum_over_all_assignments():
    """One unit with two components is a mixture of two units: the same sums."""
    queries = torch.tensor(QUERIES)
    keys, precision, concentration = (
        torch.tensor([[-1.0, 0.0], [1.0, 0.5]]),
        torch.tensor([1.0, 2.5]),
        torch.tensor([1.5, 0.8]),
    )
    model = models.GaussianKeys(keys[None], key_precision=precision[None])
    model = model.replace(component_weights=torch.full((1, 2), 0.5))
    priors = dict(keys=Normal(keys[None], 0.9), component_weights=Dirichlet(concentration))
    draws = inference.gibbs(models.bayesian(model, **priors), queries, **RUN)

    def weigh(z):
        of_keys, key_moments = normal_given(queries, z, keys, 0.9**-2, precision)
        counts = torch.stack([(z == j).sum() for j in range(2)]).to(queries.dtype)
        of_weights, weight_moments = dirichlet_given(counts, concentration)
        return of_keys + of_weights, {"keys": key_moments, "component_weights": weight_moments}

    mean, variance = over_assignments(weigh)
    for name in mean:
        assert_moments(draws.samples[name].squeeze(2), mean[name], variance[name])


@pytest.mark.slow
def test_a_batch_is_its_singles_and_shared_keys_see_all_of_it():
    """Two problems with keys of their own against each alone; then one set of keys for both against their queries joined."""
    queries = torch.tensor([QUERIES, [[x + 0.5, y] for x, y in QUERIES]])
    keys = torch.tensor([[-1.0, 0.0], [1.0, 0.5]])
    own = models.GaussianMixture(keys.expand(2, 2, 2))
    both = inference.gibbs(models.bayesian(own, keys=Normal(own.keys, 0.5)), queries, **RUN).samples["keys"]
    alone = dict(keys=Normal(keys, 0.5))
    shared = inference.gibbs(models.bayesian(models.GaussianMixture(keys), **alone), queries, **RUN).samples["keys"]
    cases = [(queries[0], both[:, :, 0]), (queries[1], both[:, :, 1]), (queries.flatten(0, 1), shared)]
    for data, found in cases:
        single = inference.gibbs(
            models.bayesian(models.GaussianMixture(keys), **alone), data, **RUN | {"seed": 7}
        ).samples["keys"]
        gap = found.mean((0, 1)) - single.mean((0, 1))
        error = (found.mean(1).var(0) + single.mean(1).var(0)).div(RUN["num_chains"]).sqrt()
        assert (gap / error).abs().max() < 4


@pytest.mark.slow
def test_masked_units_absent_queries_and_absent_answers():
    """A masked unit keeps its prior and weight 0; a query of weight 0 is no query; without answers values keep their prior."""
    queries, keys = torch.tensor(QUERIES), torch.tensor([[-1.0, 0.0], [1.0, 0.5], [9.0, 9.0]])
    log_prior = torch.tensor([[0.5, 0.5, 0.0]]).log()
    mixture = models.GaussianMixture(keys, torch.zeros(3, 1), value_precision=1.0, log_prior=log_prior)
    priors = dict(keys=Normal(keys, 0.5), weights=Dirichlet(torch.ones(3)), values=Normal(0.3, 0.2))
    weights = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0])
    draws = inference.gibbs(models.bayesian(mixture, **priors), queries, query_weights=weights, **RUN)
    assert (draws.samples["weights"][..., 2] == 0).all()
    assert_moments(draws.samples["keys"][:, :, 2], torch.tensor(9.0), torch.tensor(0.25))
    assert_moments(draws.samples["values"], torch.tensor(0.3), torch.tensor(0.04))
    without = inference.gibbs(models.bayesian(mixture, **priors), queries[weights > 0], **RUN | {"seed": 1})
    for name in ("keys", "weights"):
        a, b = draws.samples[name].mean(1), without.samples[name].mean(1)
        error = (a.var(0) + b.var(0)).div(len(a)).sqrt().clamp_min(1e-12)
        assert ((a.mean(0) - b.mean(0)) / error).abs().max() < 4


def test_log_density_of_the_draws_is_that_of_the_program():
    """Of a precision that all units share, too."""
    queries, outputs = torch.tensor(QUERIES), torch.tensor(ANSWERS)
    mixture = models.GaussianMixture(torch.tensor([[-1.0, 0.0], [1.0, 0.5]]), torch.zeros(2, 1), 1.0, 2.0)
    priors = dict(
        keys=Normal(mixture.keys, 0.9),
        key_precision=Gamma(2.0, 1.0),
        values=Normal(0.0, 1.0),
        weights=Dirichlet(torch.ones(2)),
    )
    draws = inference.gibbs(models.bayesian(mixture, **priors), queries, outputs, num_samples=3, num_chains=2, seed=0)
    for chain, index in product(range(2), range(3)):
        at = {name: x[chain, index] for name, x in draws.samples.items()}
        trace = poutine.trace(poutine.condition(draws.program, at)).get_trace(*draws.arguments)
        assert float(trace.log_prob_sum()) == pytest.approx(float(draws.statistics["lp"][chain, index]), abs=1e-10)


class Killed(Exception):
    """The process dies."""


@pytest.mark.parametrize("at", [7, 33])
def test_a_killed_run_goes_on_to_the_same_draws(tmp_path, monkeypatch, at):
    queries, keys = torch.tensor(QUERIES), torch.tensor([[-1.0, 0.0], [1.0, 0.5]])
    mixture, priors = models.GaussianMixture(keys), dict(keys=Normal(keys, 0.9), key_precision=Gamma(2.0, 1.0))
    mixture = mixture.replace(key_precision=torch.ones(2))
    run = {"num_samples": 20, "num_chains": 3, "num_warmup": 10, "seed": 3, "thin": 2}
    whole = inference.gibbs(models.bayesian(mixture, **priors), queries, **run)
    monkeypatch.setattr(gibbs_module(), "SAVED_EVERY", 0.0)
    step, count = models.Problem.gibbs_step, []

    def dies(*args):
        count.append(1)
        if len(count) == at:
            raise Killed
        return step(*args)

    monkeypatch.setattr(models.Problem, "gibbs_step", dies)
    with pytest.raises(Killed):
        inference.gibbs(models.bayesian(mixture, **priors), queries, **run, checkpoint=tmp_path / "run")
    resumed = inference.gibbs(models.bayesian(mixture, **priors), queries, **run, checkpoint=tmp_path / "run")
    assert len(count) == at + 50 - (at - 1)  # nothing was drawn twice
    for name, x in whole.samples.items():
        assert torch.equal(x, resumed.samples[name])
    assert torch.equal(whole.statistics["lp"], resumed.statistics["lp"])
    with pytest.raises(ValueError, match="another run"):
        inference.gibbs(models.bayesian(mixture, **priors), queries + 1, **run, checkpoint=tmp_path / "run")


def gibbs_module():
    import sys

    return sys.modules["probtx_pyro.inference._gibbs"]


@pytest.mark.slow
def test_parameters_that_no_query_informs_are_drawn_from_their_prior():
    mixture = models.GaussianMixture(torch.zeros(2, 2), torch.zeros(2, 1), value_precision=1.0)
    draws = inference.gibbs(models.bayesian(mixture, values=Normal(0.3, 0.2)), torch.tensor(QUERIES), **RUN)
    assert_moments(draws.samples["values"], torch.tensor(0.3), torch.tensor(0.04))
    assert draws.statistics["lp"].shape == (40, 500)


@pytest.mark.slow
def test_a_seed_is_the_draws_and_the_global_generator_is_left_alone():
    queries, keys = torch.tensor(QUERIES), torch.tensor([[-1.0, 0.0], [1.0, 0.5]])
    mixture, priors = models.GaussianMixture(keys), dict(keys=Normal(keys, 0.9))
    before = torch.get_rng_state()
    first, again, other = (
        inference.gibbs(models.bayesian(mixture, **priors), queries, num_samples=4, num_chains=2, seed=seed).samples[
            "keys"
        ]
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"priors": dict(keys=Laplace(0.0, 1.0))}, "inference.nuts"),
        ({"priors": dict(keys=models.FLAT)}, "flat prior on keys"),
        ({"priors": dict()}, "priors are empty"),
        ({"num_samples": 0}, "num_samples must be 1"),
        ({"num_warmup": -1}, "num_warmup must be 0"),
        ({"query_weights": torch.full((5,), 0.5)}, "query_weights"),
        ({"start": {"values": torch.zeros(2, 1)}}, "start gives"),
    ],
)
def test_bad_input_is_refused(changes, message):
    keys = torch.tensor([[-1.0, 0.0], [1.0, 0.5]])
    call = {"priors": dict(keys=Normal(keys, 1.0)), "num_samples": 2, "num_chains": 2, "seed": 0} | changes
    with pytest.raises(ValueError, match=message):
        posterior = models.bayesian(models.GaussianMixture(keys), **call.pop("priors"))
        inference.gibbs(posterior, torch.tensor(QUERIES), **call)


def test_a_checkpoint_that_is_none_is_refused(tmp_path):
    (tmp_path / "run").write_text("no checkpoint")
    with pytest.raises(ValueError, match="no checkpoint"):
        Checkpoint(tmp_path / "run", "x").load()
