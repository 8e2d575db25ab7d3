"""Bands and p-values of ranks, calibration that passes what is right and catches what is wrong, Geweke's joint test."""

import sys
from functools import partial

import numpy as np
import pytest
import torch
from pyro.distributions import Dirichlet, Gamma, Normal
from scipy.stats import binom, kstest

from probtx_pyro import inference, models, results
from probtx_pyro.results import _simulation as simulation

GIBBS = {"num_chains": 49, "num_samples": 1, "num_warmup": 40}


def problem():
    """Priors that separate the units, whose densities overlap all the same."""
    keys = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.5]])
    mixture = models.GaussianMixture(
        keys, torch.tensor([[-1.0], [0.0], [1.0]]), torch.full((3,), 2.0), torch.full((3,), 3.0)
    )
    priors = dict(
        keys=Normal(keys, 0.3),
        key_precision=Gamma(3.0, 2.0),
        values=Normal(mixture.values, 0.3),
        value_precision=Gamma(6.0, 2.0),
        weights=Dirichlet(torch.full((3,), 3.0)),
    )
    return models.bayesian(mixture, **priors), torch.zeros(40, 2), torch.zeros(40, 1)


def narrow_and_wide():
    """Two units in one place that differ by their precision alone, so that its normaliser decides who attends."""
    mixture = models.GaussianMixture(torch.zeros(2, 2), key_precision=torch.tensor([1.0, 20.0]))
    precision = Gamma(torch.full((2,), 20.0), torch.tensor([20.0, 1.0]))
    priors = dict(key_precision=precision, weights=Dirichlet(torch.full((2,), 3.0)))
    return models.bayesian(mixture, **priors), torch.zeros(40, 2)


PROBLEMS = {"wrong normaliser": narrow_and_wide}


def run(program, *arguments, sampler=None, simulations=50, seed=0, **options):
    sampler = sampler or partial(inference.gibbs, **GIBBS)
    return results.calibrate(
        program,
        *arguments,
        sampler=sampler,
        num_simulations=simulations,
        num_draws=49,
        seed=seed,
        batch_size=50,
        **options,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("simulations", "draws"), [(50, 9), (200, 63)])
def test_the_band_holds_as_often_as_it_says(simulations, draws):
    """Against simulation; 4 standard errors of the share that leaves the band."""
    ranks = np.random.default_rng(0).integers(0, draws + 1, (simulations, 5_000))
    for level in (0.9, 0.99):
        band = results.simultaneous_band(simulations, draws, level)
        below = np.stack([(ranks < round(edge * (draws + 1))).sum(0) for edge in band.edges])
        left = ((below < band.lower[:, None]) | (below > band.upper[:, None])).any(0).mean()
        # discrete counts: the band cannot be exact, but it is never too narrow, and one count narrower would be
        assert left <= 1 - level + 4 * np.sqrt(level * (1 - level) / 5_000)
        assert left > (1 - level) / 3


def test_one_edge_is_the_binomial():
    """Two ranks have one edge, so that band and p-value are those of a binomial with chance 1/2."""
    band = results.simultaneous_band(40, 1, 0.95)
    assert (band.lower[0], band.upper[0]) == binom.interval(0.95, 40, 0.5)
    ranks = (np.arange(40) >= 13).astype(int)  # 13 of them are 0
    assert results.uniformity(ranks, 1) == pytest.approx(2 * binom.cdf(13, 40, 0.5), abs=1e-12)


@pytest.mark.slow
def test_p_values_of_uniform_ranks_are_uniform_and_of_others_small():
    rng = np.random.default_rng(1)
    p = results.uniformity(rng.integers(0, 50, (100, 400)), 49)
    assert kstest(p, "uniform").pvalue > 1e-3  # p-values are discrete, so a little above uniform
    leaning = rng.binomial(49, rng.beta(1.0, 2.0, (100, 20)))
    assert (results.uniformity(leaning, 49) < 1e-4).all()
    with pytest.raises(ValueError, match="level"):
        results.simultaneous_band(10, 3, 1.0)


@pytest.mark.slow
def test_gibbs_is_calibrated_in_every_parameter():
    found = run(*problem())
    assert found.ok(), str(found)
    assert found.num_quantities == 19 and found.num_simulations == 50
    assert "Gibbs: calibrated in 50 simulations" in str(found)


@pytest.mark.slow
def test_gaussian_keys_with_a_mask_are_calibrated():
    """Two components a unit, one unit masked: its weight is always 0, a tie that is broken at random."""
    keys = torch.tensor([[[-3.0], [-1.0]], [[1.0], [3.0]], [[0.0], [9.0]]])
    log_prior = torch.tensor([[0.5, 0.5, 0.0]]).log()
    mixture = models.GaussianKeys(keys, key_precision=torch.full((3, 2), 4.0), log_prior=log_prior)
    priors = dict(keys=Normal(keys, 0.4), key_precision=Gamma(6.0, 1.5), weights=Dirichlet(torch.full((3,), 2.0)), component_weights=Dirichlet(torch.full((2,), 3.0)))  # fmt: skip
    found = run(
        models.bayesian(mixture.replace(component_weights=torch.full((3, 2), 0.5)), **priors), torch.zeros(25, 1)
    )
    assert found.ok(), str(found)


def swapped(program, *data, seed):
    """A Gamma prior whose shape and rate changed places."""
    program = models.bayesian(program.formulation, **{**program.priors, "key_precision": Gamma(2.0, 3.0)})
    return inference.gibbs(program, *data, seed=seed, **GIBBS)


def planted(monkeypatch, name):
    """A sampler with an error."""
    sampler, mixture = (sys.modules[f"probtx_pyro.{name}"] for name in ("models._problem", "models.mixture"))
    right_draw, right_statistics = sampler.draw, mixture.sampled_statistics

    def without_normalizer(factor, *others):
        """``(D/2) log α`` of the keys, D = 2, left out of who attends."""
        return right_statistics(factor._replace(bias=factor.bias - factor.parameters[..., 2].log()), *others)

    def unshifted(generator):
        """The data's scatter left out of the rate of both Gammas, whose priors have rate 2."""
        take = right_draw(generator)
        return take._replace(gamma=lambda shape, rate, old: take.gamma(shape, torch.full_like(rate, 2.0), old))

    if name == "wrong normaliser":
        monkeypatch.setattr(mixture, "sampled_statistics", without_normalizer)
    if name == "unshifted rate":
        monkeypatch.setattr(sampler, "draw", unshifted)
    return swapped if name == "swapped prior" else None


@pytest.mark.parametrize("name", ["wrong normaliser", "swapped prior", "unshifted rate"])
@pytest.mark.slow
def test_planted_errors_are_caught(monkeypatch, name):
    posed = PROBLEMS.get(name, problem)()
    right = run(*posed)
    assert right.ok(), str(right)
    found = run(*posed, sampler=planted(monkeypatch, name))
    assert not found.ok(), str(found)
    assert "NOT calibrated" in str(found)


@pytest.mark.parametrize("name", [None, "wrong normaliser", "unshifted rate"])
def test_the_joint_test_passes_what_is_right_and_catches_what_is_not(monkeypatch, name):
    planted(monkeypatch, name)
    program, *arguments = PROBLEMS.get(name, problem)()
    scores = results.joint_test(program, *arguments, num_chains=1000, num_steps=10, seed=0)
    assert set(scores) == {x + power for x in program.priors for power in ("", "²")}
    worst = max(np.abs(x).max() for x in scores.values())
    # 36 scores: a right sampler exceeds 4.5 with chance 36 * 7e-6
    assert worst < 4.5 if name is None else worst > 6


@pytest.mark.slow
def test_one_simulation_at_a_time_is_as_good():
    program, queries, outputs = problem()
    found = results.calibrate(
        program, queries, outputs, sampler=partial(inference.gibbs, num_chains=9, num_samples=1, num_warmup=20),
        num_simulations=8, num_draws=9, seed=1,
    )  # fmt: skip
    assert found.ranks["keys"].shape == (8, 3, 2) and found.ranks["log_likelihood"].shape == (8,)


@pytest.mark.parametrize(
    "sampler",
    [
        partial(inference.nuts, num_chains=1, num_samples=10, num_warmup=5, progress=False),
        partial(inference.variational, num_steps=3, learning_rate=0.01, num_samples=9, progress=False),
    ],
    ids=["NUTS", "AutoNormal"],
)
def test_the_other_samplers_are_called_one_simulation_at_a_time(sampler, request):
    program = models.bayesian(models.GaussianMixture(torch.tensor([[0.0]])), keys=Normal(torch.zeros(1, 1), 1.0))
    found = results.calibrate(program, torch.zeros(3, 1), sampler=sampler, num_simulations=2, num_draws=9, seed=0)
    assert found.method == request.node.callspec.id.split("-")[-1]
    assert found.ranks["keys"].shape == (2, 1, 1) and (found.ranks["keys"] <= 9).all()


@pytest.mark.slow
@pytest.mark.parametrize("adaptation", ["shared", "chain"])
def test_nuts_is_calibrated(adaptation):
    """200 simulations in one batch, three units, keys, precisions and weights; a start that is far from the posterior."""
    program, queries, _ = problem()
    priors = {name: program.priors[name] for name in ("keys", "key_precision", "weights")}
    sampler = partial(
        inference.nuts,
        num_chains=5,
        num_samples=20,
        num_warmup=150,
        start="prior",
        adaptation=adaptation,
        progress=False,
    )
    found = results.calibrate(
        models.bayesian(program.formulation, **priors), queries[:20], sampler=sampler, num_simulations=200, num_draws=50, seed=0, batch_size=200
    )  # fmt: skip
    assert found.method == "NUTS" and found.num_simulations == 200
    assert found.ok(), str(found)


def test_nuts_takes_simulations_as_one_batch(monkeypatch):
    """One call of the sampler, by the closed form, each simulation with its own data."""
    seen = []

    def sampler(posterior, *data, seed):
        seen.append(
            inference.nuts(posterior, *data, seed=seed, num_chains=3, num_samples=3, num_warmup=30, progress=False)
        )
        return seen[-1]

    program = models.bayesian(models.GaussianMixture(torch.tensor([[0.0]])), keys=Normal(torch.zeros(1, 1), 1.0))
    found = results.calibrate(program, (6, 1), sampler=sampler, num_simulations=4, num_draws=9, seed=0, batch_size=4)
    (draws,) = seen
    assert found.ranks["keys"].shape == (4, 1, 1) and draws.samples["keys"].shape == (3, 3, 4, 1, 1)
    assert draws.record["evaluation"] == "closed form" and draws.statistics["lp"].shape == (3, 3)


def test_simulated_data_are_the_models():
    """Means and variances of keys and queries of a model with heads, keys shared by them, and answers only where observed."""
    keys = torch.tensor([[-1.0, 0.0], [1.0, 0.5]])
    mixture = models.GaussianMixture(keys, torch.zeros(2, 1), torch.full((3, 2), 2.0), 1.5)
    program = models.bayesian(mixture, keys=Normal(keys, 0.5), key_precision=Gamma(3.0, 1.0))
    like = mixture.bind(torch.zeros(3, 4, 2), torch.zeros(3, 4, 1), torch.tensor([True, False, True, True]))
    found = simulation.simulate(program, like, 4000, seed=0)
    assert found.truth["keys"].shape == (4000, 2, 2) and found.truth["key_precision"].shape == (4000, 3, 2)
    queries, outputs, *_ = found.data
    assert queries.shape == (4000, 3, 4, 2) and outputs.shape == (4000, 3, 4, 1)
    draws = found.truth["keys"]
    assert ((draws.mean(0) - keys).abs() < 4.5 * 0.5 / 4000**0.5).all()
    spread = 0.25 + found.truth["key_precision"].reciprocal().mean() + keys.var(0, correction=0)
    # queries of one simulation share keys: an effective size of 4000 for their mean
    own = queries.mean((1, 2))
    assert ((own.mean(0) - keys.mean(0)).abs() < 4.5 * own.std(0) / 4000**0.5).all()
    assert (queries.flatten(0, 2).var(0) / spread - 1).abs().max() < 0.1  # Gamma(3): 1/precision has heavy tails


class Killed(Exception):
    """The process dies."""


@pytest.mark.slow
def test_a_killed_calibration_goes_on_to_the_same_ranks(tmp_path):
    program, *arguments = problem()
    sampler, calls = partial(inference.gibbs, num_chains=49, num_samples=1, num_warmup=5), []

    def dies(*args, **options):
        calls.append(1)
        if len(calls) == 3:
            raise Killed
        return sampler(*args, **options)

    call = {"num_simulations": 25, "num_draws": 9, "seed": 2, "batch_size": 5}
    whole = results.calibrate(program, *arguments, sampler=sampler, **call)
    with pytest.raises(Killed):
        results.calibrate(program, *arguments, sampler=dies, checkpoint=tmp_path / "ranks", **call)
    resumed = results.calibrate(program, *arguments, sampler=dies, checkpoint=tmp_path / "ranks", **call)
    assert len(calls) == 6  # five batches, one of them twice
    for name, x in whole.ranks.items():
        assert np.array_equal(x, resumed.ranks[name])


@pytest.mark.slow
def test_too_few_draws_are_refused():
    program, *arguments = problem()
    with pytest.raises(ValueError, match="returned 4 draws"):
        run(program, *arguments, sampler=partial(inference.gibbs, num_chains=2, num_samples=2))
    with pytest.raises(ValueError, match="num_simulations must be 1"):
        run(program, *arguments, simulations=0)


def test_quantities_of_the_users_own():
    program, *arguments = problem()
    found = run(program, *arguments, quantities={"attention": lambda m, d: m.attention(d[0])[..., 0, :]})
    assert found.ranks["attention"].shape == (50, 3) and found.ok()


def test_a_number_shared_by_all_units_is_calibrated_as_an_axis_of_one():
    """Simulations in one batch give it an axis that it does not have, one at a time none; its ranks have its own shape."""

    def ranks(shape, batch_size):
        keys = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.5]], dtype=torch.float64)
        precision = torch.full(shape, 2.0, dtype=torch.float64)
        mixture = models.GaussianMixture(keys, keys, precision, precision)
        priors = {"keys": Normal(keys, 0.3), "key_precision": Gamma(3.0, 2.0), "value_precision": Gamma(6.0, 2.0)}
        posterior, sampler = models.bayesian(mixture, **priors), partial(inference.gibbs, **GIBBS | {"num_warmup": 3})
        data = (torch.zeros(8, 2, dtype=torch.float64), torch.zeros(8, 2, dtype=torch.float64))
        found = results.calibrate(
            posterior, *data, sampler=sampler, num_simulations=4, num_draws=49, seed=0, batch_size=batch_size
        )
        return found.ranks

    for batch_size in (None, 2):
        number, axis = ranks((), batch_size), ranks((1,), batch_size)
        assert number["key_precision"].shape == number["value_precision"].shape == (4,)
        for name, x in axis.items():
            np.testing.assert_array_equal(number[name].ravel(), x.ravel())
