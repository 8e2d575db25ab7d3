"""Densities whose observations depend on each other go through every verb: regression memories, and a Gaussian process
that the package lacks, with no line of `inference` or `results` that names them.
"""

import functools
import inspect
import math
import re
from pathlib import Path

import gaussian_process
import numpy as np
import pytest
import torch
from formulations import MEMORIES, priors_of
from gaussian_process import GaussianProcess
from pyro import poutine
from pyro.distributions import Beta, Gamma
from samplers import assert_lanes_are_the_program, assert_recorded
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import inference, models, results

CONJUGATE = ("regression memory", "regression memory, relative")
memories = pytest.mark.parametrize("name", MEMORIES)
ALIKE = (
    "regression memory, walk",
    "regression memory, discount",
    "regression memory, reset",
)  # others go nearly the same way
verbs = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ()) for name in MEMORIES]
)
DRAWS = {"num_samples": 5, "seed": 0, "progress": False}
GIBBS = functools.partial(inference.gibbs, num_chains=2, num_warmup=2, **DRAWS)
NUTS = functools.partial(
    inference.nuts, num_chains=2, num_warmup=2, max_tree_depth=2, start="formulation", **DRAWS
)  # fmt: skip


def posterior_of(name, **options):
    memory, *pairs = MEMORIES[name](generator(31), **options)
    return models.bayesian(memory, **priors_of(memory)), pairs


@memories
@pytest.mark.filterwarnings("ignore:.*gradient MAP")
def test_adapt_climbs_and_converts(name):
    posterior, pairs = posterior_of(name)
    assert posterior.conjugate() == (name in CONJUGATE)
    fit = inference.adapt(posterior, *pairs, num_steps=4, progress=False)
    assert fit.method == ("ECM" if name in CONJUGATE else "gradient MAP")
    assert fit.objective[-1] > fit.objective[0] + 1e-3 and torch.isfinite(fit.objective).all()
    found = results.to_inference_data(fit, *pairs)["point_estimate"]
    assert found["log_evidence"].dims == ("step",) and "attention" not in found


@memories
@pytest.mark.slow
def test_the_operations_of_the_density_can_be_recorded(name):
    assert_recorded(*posterior_of(name))


@verbs
def test_draws_are_converted_and_their_likelihood_is_prequential(name):
    posterior, pairs = posterior_of(name)
    if name in CONJUGATE:
        assert GIBBS(posterior, *pairs).samples.keys() == posterior.priors.keys()
    else:
        with pytest.raises(NotImplementedError, match=r"has no conditional; .*inference\.nuts"):
            GIBBS(posterior, *pairs)
    draws = NUTS(posterior, *pairs)
    data = results.to_inference_data(draws)
    assert data["log_likelihood"]["values"].dims == ("chain", "draw", "step")
    assert data.attrs["log_likelihood"].startswith("prequential")
    memory = posterior.formulation.with_parameters({key: x[1, 2] for key, x in draws.samples.items()})
    assert_equal(
        torch.tensor(data["log_likelihood"]["values"].values[1, 2]), memory.log_evidence(*pairs), operations=64
    )
    assert "prequential" in " ".join(results.diagnose(data).skipped)
    said = results.predict(draws, torch.randn(4, 3, generator=generator(3)))
    assert said.expected_outputs.shape == (4, 2) and said.output_distribution.batch_shape == (4,)
    with pytest.raises(NotImplementedError, match=r"signed smoother matrix"):
        said.attention  # noqa: B018


@memories
@pytest.mark.parametrize("batch", [(), (2,)], ids=["one problem", "two problems"])
def test_what_verbs_climb_and_draw_from_is_the_density_of_the_program(name, batch):
    """The log joint of `adapt`, and the energy and slopes of NUTS for many chains, against runs of the Pyro program."""
    posterior, pairs = posterior_of(name, batch=batch)
    problem = posterior.problem(*pairs)
    program = poutine.condition(posterior, {key: site.initial for key, site in problem.sites.items()})
    assert_equal(problem.objective(problem.start).sum(), poutine.trace(program).get_trace(*pairs).log_prob_sum())
    assert_lanes_are_the_program(posterior, pairs)


@verbs
@pytest.mark.parametrize("guide", ["delta", "normal"])
def test_a_variational_guide_is_fitted(name, guide):
    posterior, pairs = posterior_of(name)
    fit = inference.variational(posterior, *pairs, guide=guide, num_steps=5, **DRAWS)
    assert fit.median.keys() == posterior.priors.keys() and torch.isfinite(fit.losses).all()


@verbs
def test_calibration_ranks_every_parameter(name):
    posterior, pairs = posterior_of(name)
    for sampler in (GIBBS, NUTS) if name in CONJUGATE else (NUTS,):
        options = {"num_simulations": 2, "num_draws": 3, "seed": 0, "batch_size": 2, "progress": False}
        found = results.calibrate(posterior, *pairs, sampler=sampler, **options)
        assert found.ranks.keys() == {*posterior.priors, "log_likelihood"}


def test_draws_that_absorb_their_data_answer_as_the_average_of_their_filters():
    posterior, pairs = posterior_of("regression memory, pull-back")
    draws, asked = NUTS(posterior, *pairs), torch.randn(4, 3, generator=generator(3))
    means = []
    for chain in range(2):
        for draw in range(5):
            memory = posterior.formulation.with_parameters({key: x[chain, draw] for key, x in draws.samples.items()})
            means.append(memory.read(asked, *pairs, causal=False).mean)
    assert_equal(results.predict(draws, asked).expected_outputs, torch.stack(means).mean(0), operations=64)


TWO = {"noise_precision": Gamma(3.0, 2.0), "prior_precision": Gamma(3.0, 2.0)}
CALIBRATED = {
    "static, Gibbs": (models.Static(), TWO, 200),
    "walk, Gibbs": (models.Walk(0.9), TWO, 100),
    "discount, NUTS": (models.Discount(0.9), TWO | {"forgetting": Beta(18.0, 2.0)}, 100),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CALIBRATED)
def test_samplers_of_a_memory_are_calibrated(case):
    """Simulation-based calibration of twelve pairs; of a right sampler one seed in a hundred fails. 1,000 simulations
    are in docs/reports/memory.md.
    """
    drift, priors, number = CALIBRATED[case]
    memory = models.RegressionMemory(1.0, 1.0, drift)
    keys, values = torch.randn(12, 3, generator=generator(5)), torch.zeros(12, 2)
    gibbs = functools.partial(inference.gibbs, num_chains=49, num_samples=1, num_warmup=40, start="prior")
    nuts = functools.partial(inference.nuts, num_chains=7, num_samples=7, num_warmup=60, start="prior")
    found = results.calibrate(
        models.bayesian(memory, **priors), keys, values, sampler=gibbs if "Gibbs" in case else nuts,
        num_simulations=number, num_draws=49, seed=0, batch_size=number, progress=False,
    )  # fmt: skip
    assert found.ok(0.99), str(found)


# -- a formulation of a stranger -------------------------------------------------------------------------------------

PLACES = torch.linspace(0.0, 4.0, 12, dtype=torch.float64).unsqueeze(-1)
HEIGHTS = torch.sin(2 * PLACES[:, 0]) + 0.2 * torch.randn(12, generator=generator(0), dtype=torch.float64)
ONE = torch.tensor(1.0, dtype=torch.float64)
PROCESS = models.bayesian(GaussianProcess(ONE, 5 * ONE), scale=Gamma(3.0, 2.0), noise=Gamma(3.0, ONE))


def test_it_takes_at_most_eighty_lines_and_imports_nothing_private():
    source = inspect.getsource(gaussian_process)
    assert len([line for line in source.splitlines() if line.strip()]) <= 80
    assert re.findall(r"^(?:from|import) probtx_pyro.*", source, re.M) == ["from probtx_pyro import models"]


def test_no_verb_names_a_memory_or_a_drift():
    folder = Path(models.__file__).parents[1]
    sources = [path for part in ("inference", "results") for path in (folder / part).glob("*.py")]
    named = re.compile("RegressionMemory|Discount|PullBack|Walk|Drift|GaussianProcess")
    code = {path.name: re.sub(r'""".*?"""', "", path.read_text(), flags=re.S) for path in sources}
    assert len(code) > 20 and [name for name, text in code.items() if named.search(text)] == []


def exact_height(asked):
    """E[f(x) | y] under both priors, by a sum over a grid of the two precisions and numpy's own normal densities."""
    x, y, new = PLACES.numpy(), HEIGHTS.numpy(), asked.numpy()
    logs, means = [], []
    for scale in np.exp(np.linspace(-4, 3, 61)):
        for noise in np.exp(np.linspace(-3, 4, 61)):
            spread = np.exp(-np.abs(x - x.T)) / scale + np.eye(12) / noise
            solved = np.linalg.solve(spread, y)
            log = -0.5 * (y @ solved + np.linalg.slogdet(2 * np.pi * spread)[1])
            logs.append(log + 3 * math.log(scale) - 2 * scale + 3 * math.log(noise) - noise)  # over logarithms
            means.append(np.exp(-np.abs(new - x.T)) / scale @ solved)
    weights = np.exp(np.array(logs) - max(logs))
    return torch.tensor((weights[:, None] * np.array(means)).sum(0) / weights.sum())


def test_its_predictions_at_new_places_are_those_of_a_grid():
    asked = torch.tensor([[0.3], [2.2], [5.0]])
    fit = inference.adapt(PROCESS, PLACES, HEIGHTS, num_steps=100)
    assert fit.method == "ECM" and fit.objective.diff().min() > -1e-10
    draws = inference.gibbs(PROCESS, PLACES, HEIGHTS, num_samples=50, num_chains=20, num_warmup=20, seed=0)
    said = results.predict(draws, asked)
    errors = said.error("expected_outputs")
    assert ((said.expected_outputs - exact_height(asked)).abs() < 5 * errors).all()


@pytest.mark.slow
def test_its_samplers_are_calibrated():
    sampler = functools.partial(inference.gibbs, num_chains=49, num_samples=1, num_warmup=30)
    data = (PLACES, torch.zeros(12))
    found = results.calibrate(PROCESS, *data, sampler=sampler, num_simulations=100, num_draws=49, seed=0, batch_size=50)
    assert found.ok(), str(found)
    scores = results.joint_test(PROCESS, *data, num_chains=1000, num_steps=10, seed=0)
    assert max(np.abs(x).max() for x in scores.values()) < 4.5  # of 4: by chance 4 * 7e-6
    drawn = results.to_inference_data(NUTS(PROCESS, PLACES, HEIGHTS))
    assert drawn["log_likelihood"]["heights"].dims == ("chain", "draw", "place")
