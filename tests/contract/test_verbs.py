"""The contract that every formulation keeps: each verb of inference and results serves it, or refuses it in one line."""

import functools
import math

import pytest
import torch
from formulations import ROWS, hash_table, hopfield, priors_of, soft_kmeans
from pyro import poutine
from pyro.distributions import Gamma, Normal
from samplers import assert_lanes_are_the_program, assert_recorded
from strategies import generator

from probtx_pyro import inference, models, results

DENSITIES = {name: row for name, row in ROWS.items() if row.density}
OTHERS = {name: row for name, row in ROWS.items() if not row.density}
densities = pytest.mark.parametrize("row", [pytest.param(row, id=name, marks=() if row.often else pytest.mark.slow)
                                            for name, row in DENSITIES.items()])  # fmt: skip
others = pytest.mark.parametrize("row", OTHERS.values(), ids=OTHERS)
DRAWS = {"num_samples": 5, "seed": 0, "progress": False}


def posterior_of(row, **options):
    """A posterior with a prior on every parameter that data inform, and its data."""
    formulation, *data = row.draw(generator(31), **options)
    return models.bayesian(formulation, **priors_of(formulation)), data[: max(row.parts)]


def dims_of(formulation, name, x):
    """The dims that the table promises: the last of the row's, without the axes along which the parameter is shared."""
    names = formulation.axes(name)[len(formulation.axes(name)) - x.dim() :]
    return tuple(axis for axis, size in zip(names, x.shape, strict=True) if size != 1)


def check_converted(row, posterior, draws):
    idata = results.to_inference_data(draws, relabel=False)
    formulation, sampled = posterior.formulation, idata["posterior"]
    assert sampled["attention"].dims == ("chain", "draw", "query", "unit")
    for name, x in draws.samples.items():
        assert sampled[name].dims == ("chain", "draw", *dims_of(formulation, name, x[0, 0])), name
    (pointwise,) = idata["log_likelihood"].data_vars.values()
    assert pointwise.dims[:2] == ("chain", "draw") and math.isfinite(float(pointwise.sum()))
    assert set(idata["log_prior"].data_vars) == set(posterior.priors)
    assert results.diagnose(idata) is not None


@densities
def test_adapt_climbs_and_converts(row):
    posterior, data = posterior_of(row)
    assert posterior.conjugate() == row.conjugate
    options = {"num_steps": 4, "progress": False}
    if row.conjugate:
        fit = inference.adapt(posterior, *data, **options)
    else:
        with pytest.warns(UserWarning, match="gradient MAP"):
            fit = inference.adapt(posterior, *data, **options)
    assert type(fit.formulation) is type(posterior.formulation)
    assert fit.objective[-1] > fit.objective[0] + 1e-3 and torch.isfinite(fit.objective).all()
    idata = results.to_inference_data(fit, *data)
    assert idata["point_estimate"]["attention"].dims == ("query", "unit")
    assert idata["point_estimate"]["log_evidence"].dims == ("query",)
    for name, x in fit.formulation.parameters().items():
        assert idata["point_estimate"][name].dims == dims_of(fit.formulation, name, x), name


@densities
def test_gibbs_draws_or_names_nuts(row):
    posterior, data = posterior_of(row)
    if not row.conjugate:
        with pytest.raises(NotImplementedError, match=r"has no conditional; .*inference\.nuts") as error:
            inference.gibbs(posterior, *data, **DRAWS)
        assert "\n" not in str(error.value)
        return
    draws = inference.gibbs(posterior, *data, num_chains=2, num_warmup=2, **DRAWS)
    assert draws.samples.keys() == posterior.priors.keys()
    check_converted(row, posterior, draws)


@densities
def test_nuts_draws(row):
    posterior, data = posterior_of(row)
    draws = inference.nuts(posterior, *data, num_chains=1, num_warmup=3, max_tree_depth=3, start="formulation", **DRAWS)
    assert draws.samples.keys() == posterior.priors.keys()
    assert all(torch.isfinite(x).all() for x in draws.samples.values())
    check_converted(row, posterior, draws)


@densities
@pytest.mark.parametrize("batch", [(), (2,)], ids=["one problem", "two problems"])
def test_the_density_of_many_chains_is_that_of_the_program_at_each(row, batch):
    """Over R^n, Jacobians included, with its gradient: what NUTS moves by, against runs of the Pyro program."""
    posterior, data = posterior_of(row, batch=batch)
    assert_lanes_are_the_program(posterior, data)


@densities
@pytest.mark.slow
def test_the_operations_of_the_density_can_be_recorded(row):
    """None looks at a number: what is recorded at the start is the density elsewhere, and off a support."""
    assert_recorded(*posterior_of(row))


@densities
@pytest.mark.parametrize("guide", ["delta", "normal"])
def test_a_variational_guide_is_fitted(row, guide):
    posterior, data = posterior_of(row)
    fit = inference.variational(posterior, *data, guide=guide, num_steps=5, **DRAWS)
    assert fit.median.keys() == posterior.priors.keys() and torch.isfinite(fit.losses).all()
    check_converted(row, posterior, fit.draws)


@densities
def test_a_batch_is_adapted_and_drawn_as_its_problems(row):
    posterior, data = posterior_of(row, batch=(2,))
    with torch.no_grad():
        options = {"num_steps": 3, "progress": False}
        if not row.conjugate:
            with pytest.warns(UserWarning, match="gradient MAP"):
                fit = inference.adapt(posterior, *data, **options)
        else:
            fit = inference.adapt(posterior, *data, **options)
    assert fit.objective.shape == (4, 2) and fit.formulation.batch_shape == (2,)
    draws = inference.nuts(posterior, *data, num_chains=1, num_warmup=2, max_tree_depth=2, start="formulation", **DRAWS)
    dims = results.to_inference_data(draws, relabel=False)["posterior"]
    assert dims["attention"].dims == ("chain", "draw", "batch", "query", "unit")
    for name in draws.samples:
        assert dims[name].dims[2] == "batch", name


@densities
def test_calibration_ranks_every_parameter(row):
    posterior, data = posterior_of(row)
    samplers = {True: functools.partial(inference.gibbs, num_chains=3, num_samples=1, num_warmup=1, start="prior", progress=False),
                False: functools.partial(inference.nuts, num_chains=1, num_samples=3, num_warmup=1, max_tree_depth=2,
                                         start="prior", progress=False)}  # fmt: skip
    found = results.calibrate(
        posterior, *data, sampler=samplers[row.conjugate], num_simulations=2, num_draws=3, seed=0, progress=False
    )
    assert found.ranks.keys() == {*posterior.priors, "log_likelihood"}
    if row.conjugate:
        many = results.calibrate(
            posterior,
            *data,
            sampler=samplers[True],
            num_simulations=4,
            num_draws=3,
            seed=0,
            batch_size=2,
            progress=False,
        )
        assert {name: x.shape[1:] for name, x in many.ranks.items()} == {
            name: x.shape[1:] for name, x in found.ranks.items()
        }


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "sampler"), [
    ("soft k-means", functools.partial(inference.gibbs, num_chains=19, num_samples=1, num_warmup=60)),
    *((kind, functools.partial(inference.nuts, num_chains=1, num_samples=57, num_warmup=60, start="prior"))
      for kind in ("soft k-means", "hopfield", "soft hash table")),
])  # fmt: skip
def test_samplers_of_reduced_mixtures_are_calibrated(kind, sampler):
    centers = torch.tensor([[-2.0], [2.0]])
    made = {"soft k-means": (models.SoftKMeans(centers, 0.7), {"centers": Normal(centers, 0.7), "gamma": Gamma(6.0, 8.0)}),
            "hopfield": (models.Hopfield(centers, 1.0), {"patterns": Normal(centers, 0.7), "beta": Gamma(6.0, 5.0)}),
            "soft hash table": (models.SoftHashTable(centers, centers, 1.0), {"keys": Normal(centers, 0.7), "scale": Gamma(6.0, 5.0)})}  # fmt: skip
    formulation, priors = made[kind]
    found = results.calibrate(
        models.bayesian(formulation, **priors), (8, 1), sampler=functools.partial(sampler, progress=False), num_draws=19,
        num_simulations=200, seed=0, batch_size=200, progress=False,
    )  # fmt: skip
    assert found.ok(), str(found)


# -- formulations without a density of data ----------------------------------------------------------------------------------


WORKS = {
    "LogNormalizer": r"log_normalizer\(eta\)",
    "LinearKeys": "expected_outputs",
    "PottsField": r"inference\.gibbs.*field\.mean_field.*field\.log_partition",
    "DependencyCRF": r"crf\.log_partition.*mean_field\(\.\.\.\)\.elbo.*nn\.DependencyCRFEncoder",
}
REFUSED = {
    "bayesian": lambda f, *data: models.bayesian(f, **{next(iter(f.PARAMETERS)): Normal(0.0, 1.0)}),
    "bayesian without priors": lambda f, *data: models.bayesian(f),
    "adapt": inference.adapt,
    "gibbs": functools.partial(inference.gibbs, seed=0),
    "nuts": functools.partial(inference.nuts, seed=0),
    "variational": functools.partial(inference.variational, seed=0),
    "calibrate": functools.partial(results.calibrate, sampler=inference.gibbs, num_simulations=2, seed=0),
    "joint_test": functools.partial(results.joint_test, num_chains=2, num_steps=1, seed=0),
    "prior_predictive": functools.partial(results.prior_predictive, num_draws=2, seed=0),
    "log_evidence": lambda f, *data: f.log_evidence(*data),
    "collapsed": lambda f, *data: f.collapsed(*data),
    "expect": lambda f, *data: f.expect(data),
    "draw_latents": lambda f, *data: f.draw_latents(data, (), generator(0), {}),
    "conditional": lambda f, *data: f.conditional(next(iter(f.PARAMETERS)), None),
}


@pytest.mark.parametrize(
    ("row", "verb"),
    [pytest.param(row, verb, id=f"{verb}-{name}") for name, row in OTHERS.items() for verb in REFUSED
     if verb not in row.offered],
)  # fmt: skip
def test_what_has_no_density_is_refused_in_one_line_that_names_what_works(row, verb):
    formulation, *data = row.draw(generator(32))
    kind = type(formulation).__name__
    with pytest.raises(NotImplementedError, match=rf"^{kind} has no \w+; .*{WORKS[kind]}") as error:
        REFUSED[verb](formulation, *data)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("verb", [results.diagnose, results.relabel], ids=["diagnose", "relabel"])
def test_a_formulation_is_no_result_to_judge(row, verb):
    with pytest.raises(ValueError, match=r"must be ArviZ data, not a \w+; .*to_inference_data"):
        verb(row.draw(generator(32))[0])


@densities
@pytest.mark.parametrize("verb", [name for name in REFUSED if hasattr(inference, name) or hasattr(results, name)])
def test_a_formulation_without_priors_is_refused_in_one_line_that_names_bayesian(row, verb):
    formulation, *data = row.draw(generator(32))
    with pytest.raises(ValueError, match=r"models\.bayesian\(formulation, \.\.\.\)") as error:
        REFUSED[verb](formulation, *data[: max(row.parts)])
    assert "\n" not in str(error.value)


@others
def test_a_formulation_converts_with_its_attention(row):
    formulation, *data = row.draw(generator(33))
    found = results.to_inference_data(formulation, *data)["point_estimate"]
    assert found["attention"].dims == formulation.axes("attention")
    for name, x in formulation.parameters().items():
        assert found[name].dims == dims_of(formulation, name, x), name


LIMITS = {
    "sparse Hopfield": (lambda g: hopfield(g, transformation="sparsemax")[0], "patterns", "transformation='softmax'"),
    "k-means": (lambda g: soft_kmeans(g)[0].replace(gamma=torch.inf), "centers", "give a finite gamma"),
    "lookup": (lambda g: models.SoftHashTable(torch.eye(3), torch.eye(3), torch.inf), "keys", "give a finite scale"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_without_a_density_has_attention_and_refuses_the_rest(name):
    make, parameter, repair = LIMITS[name]
    formulation, queries = make(generator(34)), torch.randn(5, 3, generator=generator(35))
    found = results.to_inference_data(formulation, queries)["point_estimate"]
    assert found["attention"].dims == ("query", "unit") and "log_evidence" not in found
    assert formulation.expected_outputs(queries).shape[0] == 5
    refused = {
        "bayesian": lambda: models.bayesian(formulation, **{parameter: Normal(0.0, 1.0)}),
        "mixture": lambda: formulation.mixture,
        "log_evidence": lambda: formulation.log_evidence(queries),
        "model": lambda: formulation.model(queries),
        "collapsed": lambda: formulation.collapsed(queries),
    }
    for verb, call in refused.items():
        with pytest.raises((ValueError, NotImplementedError), match=repair) as error:
            call()
        assert "\n" not in str(error.value), verb


@pytest.mark.parametrize("made", [functools.partial(hopfield, values=True), hash_table], ids=["hopfield", "hash table"])
def test_a_prior_on_answers_without_a_density_is_refused(made):
    formulation, queries = made(generator(36))
    with pytest.raises(ValueError, match=r"nothing informs values, as answers have no density"):
        models.bayesian(formulation, values=Normal(0.0, 1.0))
    with pytest.raises(ValueError, match=r"outputs are given, but answers have no density"):
        formulation.attention(queries, torch.zeros(5, 2))


def test_a_number_for_each_problem_is_drawn_outside_of_all_plates():
    clusters, points = soft_kmeans(generator(38), batch=(2,))
    posterior = models.bayesian(clusters, collapsed=False, **priors_of(clusters))
    node = poutine.trace(posterior).get_trace(points).nodes["gamma"]
    assert node["fn"].batch_shape == () and node["fn"].event_shape == (2,) and not node["cond_indep_stack"]
    fit = inference.variational(posterior, points, num_steps=2, **DRAWS)  # Pyro checks the shapes of all sites
    assert fit.median["gamma"].shape == (2,)


def test_a_mask_tells_patterns_apart():
    memory, state = hopfield(generator(37), mask=True)
    posterior = models.bayesian(memory, patterns=Normal(0.0, 1.0))
    draws = inference.nuts(posterior, state, num_chains=1, num_warmup=2, max_tree_depth=2, start="formulation", **DRAWS)
    idata = results.to_inference_data(draws)
    assert idata["constant_data"]["exchangeable_units"].values.tolist() in ([0, 1, 0, 0], [1, 0, 1, 1])
    assert "relabelled" in idata.attrs["labels"]
    apart = models.bayesian(memory.replace(mask=torch.tensor([True, False, False, False])), patterns=Normal(0.0, 1.0))
    assert len(set(results.to_inference_data(draws._replace(program=apart))["constant_data"]["exchangeable_units"].values.tolist())) == 2  # fmt: skip


def test_a_prior_on_the_precision_of_labels_is_refused():
    mixture = models.GaussianMixture.categorical(torch.eye(2), torch.eye(2))
    with pytest.raises(ValueError, match="nothing informs value_precision"):
        models.bayesian(mixture, value_precision=Gamma(2.0, 1.0))
