"""Variational inference: the EM optimum, known posteriors, a fresh process, and what must stay as it was."""

import subprocess
import sys

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Delta, Dirichlet, Gamma, Normal
from pyro.infer.autoguide import AutoMultivariateNormal
from strategies import generator, problem

from probtx_pyro import inference, models
from probtx_pyro.inference import Approximation


def fit(program, *args, guide="normal", steps=20, rate=0.05, samples=3, **options):
    return inference.variational(
        program, *args, guide=guide, num_steps=steps, learning_rate=rate, num_samples=samples, **{"seed": 0, **options}
    )


def small(collapsed=True):
    mixture, *args = problem(generator(1), queries=8, masked=True)
    priors = dict(
        keys=Normal(mixture.keys, 0.6), key_precision=Gamma(3.0, 2.0), weights=Dirichlet(torch.full((1, 4), 2.0))
    )
    return models.bayesian(mixture, **priors, collapsed=collapsed), args


def one_unit():
    """A program whose posterior is normal: one unit, n = 4 queries; its mean and sd."""
    queries, alpha = torch.tensor([[0.3, 1.0], [1.1, 0.0], [2.0, -1.0], [0.4, 0.5]]), 2.0
    mixture = models.GaussianMixture(torch.zeros(1, 2), key_precision=alpha)
    strength = 1 / 0.8**2 + alpha * 4
    mean = alpha * queries.sum(0, keepdim=True) / strength
    return models.bayesian(mixture, keys=Normal(torch.zeros(1, 2), 0.8)), queries, mean, strength**-0.5


@pytest.mark.parametrize("collapsed", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.slow
def test_delta_reaches_the_em_optimum(collapsed):
    program, args = small(collapsed)
    best = inference.adapt(program, *args, num_steps=5000, tol=1e-12).formulation
    found = fit(program, *args, guide="delta", steps=350, rate=0.1, samples=2)
    for name, x in found.median.items():
        # Adam's last step is 1e-3 long at most, so that it may swing about the optimum by as much in each coordinate
        assert (x - best.parameter(name)).abs().max() < 2e-3, name
        assert torch.equal(found.draws.samples[name], x.expand(1, 2, *x.shape))
    assert found.draws.method == "AutoDelta" and found.losses.shape == (350,)


@pytest.mark.parametrize(
    "guide",
    ["normal", *(pytest.param(guide, marks=pytest.mark.slow) for guide in ("low_rank", AutoMultivariateNormal))],
)
@pytest.mark.slow
def test_a_normal_posterior_is_found(guide):
    """Adam at rate r with 4 draws leaves a mean with variance r sd / 4; as r falls by e in 130 steps, this freezes where the
    mean needs as long to move by sd, r = sd / 260. So it ends 0.011 from the truth (3 % of sd), and so does the scale."""
    _, queries, mean, sd = one_unit()

    def program(queries):
        keys = pyro.sample("keys", Normal(torch.zeros(1, 2), 0.8).to_event(2))
        pyro.sample("queries", Normal(keys, 0.5**0.5).expand([4, 2]).to_event(2), obs=queries)

    found = fit(program, queries, guide=guide, steps=600, rate=0.05, samples=500, num_particles=4)
    draws = found.draws.samples["keys"][0]
    assert (found.median["keys"] - mean).abs().max() < 5 * 0.011
    assert (draws.mean(0) - mean).abs().max() < 5 * (0.011**2 + sd**2 / 500) ** 0.5
    assert (draws.std(0) / sd - 1).abs().max() < 5 * (0.03**2 + 1 / 1000) ** 0.5
    exact = poutine.trace(poutine.condition(program, {"keys": draws[7]})).get_trace(queries).log_prob_sum()
    torch.testing.assert_close(found.draws.statistics["lp"][0, 7], exact)


@pytest.mark.slow
def test_laplace_is_exact_for_a_normal_posterior():
    program, queries, mean, sd = one_unit()
    found = fit(program, queries, guide="laplace", steps=800, start="map")
    with pyro.get_param_store().scope():
        posterior = found.guide.get_posterior(queries)
    assert (posterior.loc - mean.flatten()).abs().max() < 2e-3  # Adam's last steps
    torch.testing.assert_close(posterior.covariance_matrix, sd**2 * torch.eye(2))


def test_guides_of_enumerated_programs_hold_parameters_only():
    program, args = small(collapsed=False)
    for guide in ("delta", "normal", "low_rank"):
        found = fit(program, *args, guide=guide, steps=2)
        assert set(found.draws.samples) == set(found.median) == {"keys", "key_precision", "weights"}


def test_the_enumerated_elbo_is_the_collapsed_one():
    losses = [fit(small(collapsed)[0], *small(collapsed)[1], steps=5).losses for collapsed in (True, False)]
    # the same draws of the guide; after a step, rounding of the gradients goes through Adam's division
    torch.testing.assert_close(*losses, rtol=1e-9, atol=0.0)


def test_masked_weights_stay_masked():
    program, args = small()
    found = fit(program, *args, samples=20)
    masked = program.formulation.log_prior[0] == -torch.inf
    assert masked.any() and (found.draws.samples["weights"][..., masked] == 0).all()
    assert (found.draws.samples["weights"][..., ~masked] > 0).all()


def test_seed_fixes_the_result_and_globals_are_left_alone():
    program, args = small()
    pyro.param("mine", torch.tensor(3.0))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with torch.no_grad():
        one, same, other = (fit(program, *args, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert list(pyro.get_param_store().keys()) == ["mine"] and pyro.param("mine") == 3
    assert torch.equal(one.losses, same.losses) and not torch.equal(one.losses, other.losses)
    for name, x in one.draws.samples.items():
        assert torch.equal(x, same.draws.samples[name])


@pytest.mark.parametrize("guide", ["normal", "low_rank"])
def test_what_was_drawn_before_does_not_change_the_result(guide):
    program, args = small()
    found = []
    for before in (1, 2):
        torch.manual_seed(before)
        found.append(fit(program, *args, guide=guide, steps=2).losses)
    assert torch.equal(*found)


AGAIN = """
import sys, torch, pyro
torch.set_default_dtype(torch.float64)
sys.path.insert(0, {tests!r})
from inference.test_variational import small, fit
from probtx_pyro.inference import Approximation
program, args = small()
for path in {paths!r}:
    found = Approximation.load(path, program, *args)
    with pyro.get_param_store().scope():
        torch.manual_seed(3)
        drawn = found.guide(*args)
    torch.save([dict(found.median), found.losses, dict(found.draws.samples), drawn, found.draws.method], path + ".out")
"""


@pytest.mark.slow
def test_a_fresh_process_loads_what_was_saved(tmp_path, request):
    if torch.get_default_device().type != "cpu":
        pytest.skip("the other process works on the CPU")
    program, args = small()
    saved = {}
    for guide in ("delta", "normal", "low_rank", "laplace"):
        saved[str(tmp_path / guide)] = found = fit(program, *args, guide=guide, start="map", steps=20, rate=0.01)
        found.save(tmp_path / guide)
    code = AGAIN.format(tests=str(request.config.rootpath / "tests"), paths=list(saved))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for path, found in saved.items():
        median, losses, samples, drawn, method = torch.load(path + ".out")
        with pyro.get_param_store().scope():
            torch.manual_seed(3)
            mine = found.guide(*args)
        assert torch.equal(losses, found.losses) and method == found.draws.method, path
        for name, x in found.median.items():
            assert torch.equal(median[name], x) and torch.equal(samples[name], found.draws.samples[name]), path
            torch.testing.assert_close(drawn[name], mine[name])


@pytest.mark.parametrize("guide", ["delta", "normal", "low_rank"])
def test_mixture_and_priors_are_left_as_they_were(guide, tmp_path):
    """A guide that starts at the mixture, or is loaded, has parameters of its own."""
    program, args = small()
    before = program.formulation.keys.clone()
    fit(program, *args, guide=guide, start="formulation", steps=2).save(tmp_path / "guide")
    assert torch.equal(program.formulation.keys, before)
    found = Approximation.load(tmp_path / "guide", program, *args)
    assert torch.equal(program.formulation.keys, before) and torch.equal(program.priors["keys"].loc, before)
    assert not torch.equal(found.median["keys"], before)


def test_load_knows_its_run(tmp_path):
    program, args = small()
    fit(program, *args, guide=AutoMultivariateNormal, steps=1).save(tmp_path / "own")
    with pytest.raises(ValueError, match=r"a guide of your own \(AutoMultivariateNormal\); give it again, as guide="):
        Approximation.load(tmp_path / "own", program, *args)
    again = Approximation.load(tmp_path / "own", program, *args, guide=AutoMultivariateNormal)
    assert type(again.guide) is AutoMultivariateNormal
    with pytest.raises(ValueError, match="of another run"):
        Approximation.load(tmp_path / "own", program, args[0] + 1, *args[1:])
    with pytest.raises(ValueError, match=r"there is no .*nowhere; give the path"):
        Approximation.load(tmp_path / "nowhere", program, *args)


def test_the_bar_can_be_seen_and_turned_off(capsys):
    program, args = small()
    fit(program, *args, steps=2, progress=True)
    assert "AutoNormal" in (shown := capsys.readouterr().err) and "loss=" in shown
    fit(program, *args, steps=2, progress=False)
    assert capsys.readouterr().err == ""


BAD = {
    "steps": ({"steps": 0}, "num_steps, num_samples and num_particles must be 1 or more"),
    "rate": ({"rate": 0.0}, r"learning_rate positive, not 20, 3, 1 and 0\.0"),
    "guide": ({"guide": "full"}, "guide must be one of 'delta', 'normal', 'low_rank', 'laplace' or a callable"),
    "seed": ({"seed": None}, "seed must be a non-negative integer"),
    "diverges": ({"rate": 1e300}, "the loss is .* at step 2; lower learning_rate"),
    "guide without a parameter": (
        {"guide": lambda *_: pyro.sample("keys", Delta(torch.zeros(4, 3), event_dim=2))},
        "guide has no site 'key_precision'; it must draw every parameter: keys, key_precision, weights",
    ),
}


@pytest.mark.filterwarnings("ignore:Encountered NaN")  # Pyro's, before our error
@pytest.mark.parametrize("case", BAD)
def test_bad_options_are_refused(case):
    options, message = BAD[case]
    program, args = small()
    with pytest.raises(ValueError, match=message):
        fit(program, *args, **options)


def test_laplace_needs_the_collapsed_program():
    program, args = small(collapsed=False)
    with pytest.raises(ValueError, match=r"does not sum out unit; use models.bayesian\(..., collapsed=True\)"):
        fit(program, *args, guide="laplace")


def test_a_learned_parameter_is_no_part_of_a_posterior():
    def program():
        pyro.sample("x", Normal(pyro.param("center", torch.tensor(0.0)), 1.0))

    with pytest.raises(ValueError, match=r"pyro.param 'center'.*give it a prior"):
        fit(program)
    assert not list(pyro.get_param_store().keys())


@pytest.mark.slow
@pytest.mark.parametrize("guide", ["delta", "normal"])
def test_a_flat_prior_is_fitted(guide):
    mixture, queries, *_ = problem(generator(30), queries=30)
    program = models.bayesian(mixture, keys=models.FLAT)
    fit = inference.variational(program, queries, guide=guide, num_steps=400, learning_rate=0.05, num_samples=5, seed=0)
    best = inference.adapt(program, queries, num_steps=2000, tol=1e-10)
    # Adam's last steps of 5e-4, and for the normal guide the skewness of a posterior of 30 queries
    assert (fit.median["keys"] - best.formulation.keys).abs().median() < (0.01 if guide == "delta" else 0.2)
