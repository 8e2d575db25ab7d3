"""NUTS: known posteriors, statistics against Pyro's own and against theory, runs that are killed, bad input."""

import arviz as az
import numpy as np
import pyro
import pytest
import torch
from pyro.distributions import Dirichlet, Gamma, Normal
from samplers import BatchedNUTS, parameters
from strategies import generator, keys_problem, problem
from tolerances import assert_equal

from probtx_pyro import inference, models
from probtx_pyro.inference import _nuts


def standard_normal(size):
    pyro.sample("x", Normal(0.0, 1.0).expand([size]).to_event(1))


def small(collapsed=True, **options):
    """Three units, keys unknown."""
    mixture, queries, *_ = problem(generator(1), queries=6, units=3, features=1, **options)
    return models.bayesian(mixture, keys=Normal(mixture.keys, 0.5), collapsed=collapsed), queries


def run(program, *args, samples=5, warmup=10, chains=1, **options):
    return inference.nuts(
        program, *args, num_samples=samples, num_warmup=warmup, num_chains=chains, **{"seed": 0, **options}
    )


def one_unit():
    """Keys: ``N((m/s² + α Σq) / (1/s² + αn), 1/(1/s² + αn))``."""
    queries, alpha = torch.tensor([[0.3], [1.1], [2.0], [0.4]]), 2.0
    mixture = models.GaussianMixture(torch.zeros(1, 1), key_precision=alpha)
    strength = 1 / 0.8**2 + alpha * 4
    mean = (1.0 / 0.8**2 + alpha * queries.sum()) / strength
    priors = dict(keys=Normal(torch.ones(1, 1), 0.8))
    return mixture, priors, queries, "keys", mean.reshape(1, 1), torch.tensor([[strength**-0.5]])


def one_precision():
    """Precision: Gamma(a + nD/2, b + Σ|q - ξ|²/2)."""
    queries = torch.tensor([[0.3, -0.2], [1.1, 0.6], [2.0, 0.1]])
    mixture = models.GaussianMixture(torch.tensor([[1.0, 0.0]]))
    shape, rate = 3.0 + 3 * 2 / 2, 1.5 + (queries - torch.tensor([1.0, 0.0])).square().sum() / 2
    priors = dict(key_precision=Gamma(3.0, 1.5))
    return mixture, priors, queries, "key_precision", shape / rate, shape**0.5 / rate


def far_apart(masked):
    """Weights of units so far apart that assignments are known: Dirichlet(c + counts), on the face that a mask leaves."""
    keys = torch.tensor([[0.0], [100.0], [200.0], [300.0]])
    allowed = torch.tensor([True, not masked, True, True])
    log_prior = (allowed / allowed.sum()).log().unsqueeze(0)
    queries = torch.tensor([[0.0], [0.1], [200.0], [300.0], [300.1], [299.8], [300.4]])
    posterior = torch.tensor([2.0, 0.7, 1.5, 1.0]) + torch.tensor([2.0, 0.0, 1.0, 4.0])
    share = posterior * allowed / posterior[allowed].sum()
    sd = (share * (1 - share) / (posterior[allowed].sum() + 1)).sqrt()
    priors = dict(weights=Dirichlet(torch.tensor([[2.0, 0.7, 1.5, 1.0]])))
    return models.GaussianMixture(keys, log_prior=log_prior), priors, queries, "weights", share[None], sd[None]


CONJUGATE = {
    "key of one unit": one_unit,
    "precision of one unit": one_precision,
    "weights": lambda: far_apart(False),
    "weights, one masked": lambda: far_apart(True),
}


def assert_moments(draws, mean, sd):
    """Mean and sd (chain, draw, *shape) within 4 Monte Carlo standard errors (a false alarm in 16,000 for each number)."""
    for index in np.ndindex(tuple(mean.shape)):
        x = draws[(..., *index)].cpu().numpy()
        if sd[index] == 0:
            assert (x == float(mean[index])).all()
            continue
        assert az.ess(x) > 100
        assert abs(x.mean() - float(mean[index])) < 4 * az.mcse(x)
        assert abs(x.std() - float(sd[index])) < 4 * az.mcse(x, method="sd")


@pytest.mark.parametrize("case", CONJUGATE)
@pytest.mark.slow
def test_posteriors_that_are_known(case):
    mixture, priors, queries, name, mean, sd = CONJUGATE[case]()
    draws = run(models.bayesian(mixture, **priors), queries, samples=200, warmup=100, chains=2)
    assert_moments(draws.samples[name], mean, sd)
    assert draws.samples[name].shape == (2, 200, *mean.shape) and not draws.statistics["diverging"].any()


PROBLEMS = {
    "keys and precisions of a batch": lambda: (
        *problem(generator(2), batch=(2,)),
        dict(keys=Normal(0.0, 2.0), key_precision=Gamma(2.0, 1.0), values=Normal(0.0, 1.0)),
    ),
    "masked weights": lambda: (*problem(generator(3), masked=True), dict(weights=Dirichlet(torch.full((1, 4), 2.0)))),
    "labels": lambda: (
        *problem(generator(4), answer="categorical"),
        dict(answer_probs=Dirichlet(torch.full((4, 3), 1.5)), keys=Normal(0.0, 1.0)),
    ),
    "mixture of keys": lambda: (
        *keys_problem(generator(5), masked=True),
        dict(keys=Normal(0.0, 1.0), component_weights=Dirichlet(torch.full((4, 2), 0.7))),
    ),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_enumerated_and_collapsed_programs_and_the_closed_form_have_one_potential(case):
    mixture, *args, priors = PROBLEMS[case]()
    collapsed, enumerated = (
        parameters(models.bayesian(mixture, **priors, collapsed=kind), tuple(args)) for kind in (True, False)
    )
    assert collapsed.closed and not enumerated.closed
    values = []
    for found in (collapsed, collapsed._replace(closed=None), enumerated):
        potential, transforms = found.unconstrained()
        free = {name: transforms[name](site.initial).detach() for name, site in found.sites.items()}
        torch.manual_seed(6)
        moved = {name: (z + torch.randn_like(z)).requires_grad_() for name, z in sorted(free.items())}
        value = potential(moved)
        values.append([value, *torch.autograd.grad(value, list(moved.values()))])
    for closed, *programs in zip(*values, strict=True):
        for other in programs:
            assert_equal(closed, other, values[0][0], operations=1024)  # sums over queries, units and coordinates


@pytest.mark.slow
def test_enumerated_and_collapsed_draws_agree():
    draws = [
        run(*small(collapsed), samples=200, warmup=100, chains=2, seed=3).samples["keys"] for collapsed in (True, False)
    ]
    for unit in range(3):
        x, y = (d[..., unit, 0].cpu().numpy() for d in draws)
        assert abs(x.mean() - y.mean()) < 4 * (az.mcse(x) ** 2 + az.mcse(y) ** 2) ** 0.5
        assert abs(x.std() - y.std()) < 4 * (az.mcse(x, method="sd") ** 2 + az.mcse(y, method="sd") ** 2) ** 0.5


def test_sites_are_the_parameters_whatever_is_enumerated():
    draws = run(*small(collapsed=False), samples=2)
    assert set(draws.samples) == {"keys"} and draws.samples["keys"].shape == (1, 2, 3, 1)
    assert draws.method == "NUTS" and draws.arguments[0].shape == (6, 1) and draws.record["seed"] == 0


def test_answers_that_nobody_gave_are_no_parameters():
    mixture, queries, outputs, _ = problem(generator(7))
    priors = dict(keys=Normal(mixture.keys, 0.5))
    silent = models.GaussianMixture(mixture.keys, None, mixture.key_precision, 0.0, mixture.log_prior)
    alone = run(models.bayesian(silent, **priors), queries, start="formulation")
    for collapsed in (True, False):
        draws = run(
            models.bayesian(mixture, **priors, collapsed=collapsed),
            queries,
            None,
            None,
            start="formulation",
            samples=1,
            warmup=0,
        )
        assert set(draws.samples) == {"keys"}
    potential = parameters(models.bayesian(mixture, **priors), (queries,)).unconstrained()[0]
    at = {"keys": alone.samples["keys"][0, -1]}
    assert_equal(potential(at), -alone.statistics["lp"][0, -1], operations=1024)
    given = parameters(models.bayesian(mixture, **priors), (queries, outputs)).unconstrained()[0]
    assert (given(at) - potential(at)).abs() > 0.1  # answers that are given count


# -- statistics ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_statistics_of_a_standard_normal():
    draws = run(standard_normal, 10, samples=500, warmup=150, seed=1)
    s = {name: x.cpu().numpy() for name, x in draws.statistics.items()}
    x = draws.samples["x"].cpu().numpy()
    np.testing.assert_allclose(s["lp"], -0.5 * (x**2).sum(-1) - 5 * np.log(2 * np.pi), rtol=1e-12)
    kinetic = s["energy"] + s["lp"]
    assert (kinetic > 0).all()
    # position and momentum are drawn from their joint, in which the kinetic energy is a chi-square of 10, halved
    assert abs(kinetic.mean() - 5) < 4 * az.mcse(kinetic) and abs(kinetic.var() - 5) < 2  # its sd over 500 draws: 0.5
    # energies change by K' - K, of variance 10, and vary by 10 themselves; the ratio's sd over 500 draws is about 0.1
    assert abs(az.bfmi(s["energy"])[0] - 1) < 0.4
    assert (2 ** s["tree_depth"] - 1 <= s["n_steps"]).all() and (s["n_steps"] < 2 ** (s["tree_depth"] + 1)).all()
    assert s["tree_depth"].max() > 1 and np.unique(s["step_size"]).size == 1
    assert s["diverging"].dtype == bool and not s["diverging"].any()
    assert run(standard_normal, 10, max_tree_depth=1).statistics["n_steps"].max() == 1
    bold, shy = (run(standard_normal, 10, warmup=100, target_accept=rate).statistics for rate in (0.5, 0.99))
    assert (shy["step_size"] < 0.5 * bold["step_size"]).all()


# -- chains, seeds, and what must stay as it was ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("adaptation", ["shared", "chain"])
def test_seeds_fix_every_draw_and_chains_do_not_meet(adaptation):
    program, queries = small()
    first, again, more = (run(program, queries, chains=n, adaptation=adaptation) for n in (2, 2, 3))
    for name in first.statistics:
        assert torch.equal(first.statistics[name], again.statistics[name])
    assert torch.equal(first.samples["keys"], again.samples["keys"])
    assert torch.equal(first.samples["keys"], more.samples["keys"][:2]) is (adaptation == "chain")
    assert (torch.unique(first.statistics["step_size"]).numel() == 1) is (adaptation == "shared")
    other = run(program, queries, chains=2, seed=1)
    assert not torch.isclose(other.samples["keys"], first.samples["keys"]).any()
    assert not torch.isclose(first.samples["keys"][0], first.samples["keys"][1]).any()


def test_global_generator_and_parameter_store_are_left_alone():
    def program(data):
        own = pyro.param("own", torch.tensor(1.0)) + pyro.param("mine", torch.tensor(0.0))
        pyro.sample("data", Normal(pyro.sample("x", Normal(0.0, 10.0)), 1e-3).expand([2]).to_event(1), obs=data + own)

    pyro.param("mine", torch.tensor(3.0))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with torch.no_grad():
        run(*small(collapsed=False), samples=2, warmup=2)
        draws = run(program, torch.zeros(2), warmup=50)
    assert (draws.samples["x"] - 4).abs().max() < 0.01  # the store's 3 and the program's 1 are constants
    assert torch.equal(torch.get_rng_state(), before)
    assert list(pyro.get_param_store().keys()) == ["mine"] and pyro.param("mine") == 3
    assert pyro.distributions.is_validation_enabled()


# -- runs that are killed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adaptation", ["shared", pytest.param("chain", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_draws(tmp_path, monkeypatch, adaptation):
    def call(path=None):
        return run(
            standard_normal, 2, samples=20, warmup=40, chains=3, checkpoint=path, progress=False, adaptation=adaptation
        )

    whole, advance = call(), BatchedNUTS.advance
    for killed_at in (5, 60, 150):  # leapfrog steps: twice in the warmup, then among the draws
        path, steps = tmp_path / f"run {killed_at}", []

        def killed(sampler, killed_at=killed_at, steps=steps):
            if len(steps) == killed_at:
                steps.append(1)
                raise KeyboardInterrupt
            steps.append(1)
            return advance(sampler)

        monkeypatch.setattr(BatchedNUTS, "advance", killed)
        monkeypatch.setattr(_nuts, "SAVE_SECONDS", -1.0)
        with pytest.raises(KeyboardInterrupt):
            call(path)
        torch.manual_seed(killed_at)
        resumed = call(path)
        for kind in ("samples", "statistics"):
            for name, x in getattr(whole, kind).items():
                assert torch.equal(getattr(resumed, kind)[name], x), (killed_at, name)
        monkeypatch.setattr(BatchedNUTS, "advance", None)
        assert torch.equal(call(path).samples["x"], whole.samples["x"])  # a finished run is read, not repeated


def test_a_checkpoint_knows_its_run(tmp_path):
    program, queries = small()
    run(program, queries, checkpoint=tmp_path / "run")
    for other in ({"seed": 1}, {"samples": 6}, {"start": "prior"}, {"adaptation": "chain"}):
        with pytest.raises(ValueError, match="of another run"):
            run(program, queries, checkpoint=tmp_path / "run", **other)
    with pytest.raises(ValueError, match="of another run"):
        run(program, queries + 1, checkpoint=tmp_path / "run")
    wider = models.bayesian(program.formulation, keys=Normal(program.formulation.keys, 0.6))
    with pytest.raises(ValueError, match="of another run"):
        run(wider, queries, checkpoint=tmp_path / "run")


def test_the_bar_shows_chains_and_divergences(capsys):
    run(*small(), samples=2, warmup=2, progress=True)
    assert "NUTS" in (shown := capsys.readouterr().err) and "diverging=" in shown and "step=" in shown
    run(*small(), samples=2, warmup=2, progress=False)
    assert capsys.readouterr().err == ""


# -- bad input -------------------------------------------------------------------------------------------------------------


def test_a_start_without_a_finite_density_names_its_site():
    program, queries = small()
    far = {"keys": torch.full((3, 1), 1e200)}
    with pytest.raises(ValueError, match="start of chain 1: log density of site 'keys' is -inf; start well inside"):
        run(program, queries, start=far)
    flat = models.bayesian(program.formulation, keys=models.FLAT)
    with pytest.raises(ValueError, match="log density of site 'queries' is -inf; look for extreme data"):
        run(flat, queries, start=far)
    weights = models.bayesian(program.formulation, weights=Dirichlet(torch.full((1, 3), 2.0)))
    with pytest.raises(ValueError, match="site 'weights' is -inf"):
        run(weights, queries, start={"weights": torch.tensor([[1.0, 0.0, 0.0]])})


def test_priors_in_float32_are_those_of_float64_and_not_the_other_way_round():
    mixture, queries, *_ = problem(generator(8))
    low = mixture.keys.float()
    single, double = (run(models.bayesian(mixture, keys=Normal(x, 1.0)), queries) for x in (low, low.double()))
    assert torch.equal(single.samples["keys"], double.samples["keys"])
    with pytest.raises(ValueError, match=r"loc of the prior on keys is torch\.float64 but keys is torch\.float32"):
        run(models.bayesian(mixture.to(torch.float32), keys=Normal(mixture.keys, 1.0)), queries.float())


BAD = {
    "no draws": ({"samples": 0}, "num_samples must be 1 or more, not 0"),
    "negative warmup": ({"warmup": -1}, "num_warmup must be 0 or more, not -1"),
    "acceptance": ({"target_accept": 1.0}, "target_accept must be between 0 and 1"),
    "seed": ({"seed": -1}, "seed must be a non-negative integer, not -1"),
    "seed of another kind": ({"seed": 1.5}, "seed must be a non-negative integer, not 1.5"),
    "start": ({"start": "mode"}, "start must be one of 'map', 'formulation', 'prior' or a mapping"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options_are_refused(case):
    options, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        run(*small(), **options)


def test_a_program_without_parameters_is_refused():
    with pytest.raises(ValueError, match=r"no continuous latent site.*give a parameter a prior"):
        run(models.GaussianMixture(torch.zeros(3, 1)).collapsed, torch.ones(4, 1))


@pytest.mark.slow
def test_fractional_weights_need_the_collapsed_program():
    program, queries = small(collapsed=False)
    weights = torch.tensor([1.0, 0.0, 0.5, 1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match=r"query_weights other than 0 and 1.*collapsed=True"):
        run(program, queries, None, None, weights)
    absent = run(program, queries, None, None, (weights == 1).double(), samples=20)
    fewer = run(program, queries[weights == 1], samples=20, start="formulation")
    constant = 2 * torch.tensor(3.0).log()  # two masked queries, each a sum over three units
    for draws, shift in ((absent, constant), (fewer, 0.0)):
        collapsed = models.bayesian(program.formulation, **program.priors)
        potential = parameters(collapsed, (queries[weights == 1],)).unconstrained()[0]
        at = {"keys": draws.samples["keys"][0, -1]}
        assert_equal(draws.statistics["lp"][0, -1], shift - potential(at), operations=1024)
