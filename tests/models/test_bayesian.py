"""`models.bayesian`: priors of every kind by name, one program for all verbs, and one clear error for what cannot be."""

from functools import partial

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import (
    Categorical,
    Dirichlet,
    Gamma,
    HalfNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Poisson,
    StudentT,
    TransformedDistribution,
    Uniform,
)
from pyro.infer import MCMC, NUTS, Predictive
from pyro.infer.autoguide import AutoNormal
from strategies import generator, problem
from tolerances import assert_equal
from torch.distributions.transforms import ExpTransform

from probtx_pyro import inference, models, results

pytestmark = pytest.mark.usefixtures("device")


def simple(units=3, features=2):
    keys = torch.randn(units, features, generator=generator(1))
    return models.GaussianMixture(keys, key_precision=2.0), torch.randn(12, features, generator=generator(2))


def log_density(program, queries, **values):
    return poutine.trace(poutine.condition(program, values)).get_trace(queries).log_prob_sum()


def read(distribution):
    """A distribution that has computed, and keeps, another form of its parameter."""
    assert distribution.precision_matrix is not None
    return distribution


THEIRS = {  # made in the test, in its dtype
    "Normal": ("keys", lambda: torch.distributions.Normal(0.3, 2.0)),
    "Independent": (
        "keys",
        lambda: torch.distributions.Independent(torch.distributions.Normal(torch.zeros(2), 1.0), 1),
    ),
    "StudentT": ("keys", lambda: torch.distributions.StudentT(4.0, 0.0, 1.0)),
    "MultivariateNormal": ("keys", lambda: torch.distributions.MultivariateNormal(torch.zeros(2), 2 * torch.eye(2))),
    "MultivariateNormal whose precision was read": ("keys", lambda: read(torch.distributions.MultivariateNormal(torch.zeros(2), 2 * torch.eye(2)))),
    "MixtureSameFamily": ("keys", lambda: torch.distributions.MixtureSameFamily(torch.distributions.Categorical(torch.ones(2)), torch.distributions.Normal(torch.zeros(2), 1.0))),
    "Uniform with bounds for each unit": ("key_precision", lambda: torch.distributions.Uniform(torch.tensor([0.1, 0.2, 0.3]), 5.0)),
    "Gamma": ("key_precision", lambda: torch.distributions.Gamma(2.0, 3.0)),
    "LogNormal": ("key_precision", lambda: torch.distributions.LogNormal(0.1, 0.6)),
    "HalfNormal": ("key_precision", lambda: torch.distributions.HalfNormal(2.0)),
    "Dirichlet": ("weights", lambda: torch.distributions.Dirichlet(torch.tensor([1.0, 2.0, 3.0]))),
}  # fmt: skip


@pytest.mark.parametrize("family", THEIRS)
def test_a_distribution_of_torch_is_its_namesake(family):
    name, make = THEIRS[family]
    mixture, queries = simple()
    theirs = make()
    program = models.bayesian(mixture, **{name: theirs})
    value = poutine.trace(program).get_trace(queries).nodes[name]["value"]
    expected = theirs.log_prob(value).sum() + mixture.with_parameters({name: value}).log_evidence(queries).sum()
    assert_equal(log_density(program, queries, **{name: value}), expected, operations=256)


def test_the_family_that_torch_has_and_pyro_lacks_is_refused():
    class Odd(torch.distributions.Normal):
        pass

    with pytest.raises(ValueError, match=r"Pyro has no Odd; give a distribution of pyro\.distributions"):
        inference.adapt(models.bayesian(simple()[0], keys=Odd(0.0, 1.0)), simple()[1])


@pytest.mark.parametrize(
    ("priors", "message"),
    [
        ({"key_precison": Gamma(1.0, 1.0)}, r"no parameter 'key_precison'; did you mean 'key_precision'"),
        ({"temperature": Gamma(1.0, 1.0)}, r"no parameter 'temperature'; choose from keys, shift, key_precision"),
        ({"keys": 1.0}, r"keys=1\.0 is a float; give a Pyro distribution, models\.FLAT, or a function"),
        ({"keys": "normal"}, r"keys='normal' is a str; give"),
        ({"keys": Normal}, r"keys=<class .*Normal'> is a class; give"),
        ({"keys": {"loc": 0.0}}, r"is a dict; give"),
        ({"keys": None}, r"keys=None is a NoneType; give"),
        ({"values": Normal(0.0, 1.0)}, r"prior on values, but the GaussianMixture has no values"),
        ({"key_precision": models.FLAT}, r"likelihood is unbounded in key_precision, .*Gamma"),
    ],
)
def test_what_is_no_prior_is_refused_when_the_posterior_is_made(priors, message):
    with pytest.raises(ValueError, match=message):
        models.bayesian(simple()[0], **priors)


@pytest.mark.parametrize(
    ("name", "prior", "message"),
    [
        ("keys", Poisson(1.0), r"Poisson on keys has the wrong support; keys needs a distribution on real vectors"),
        ("key_precision", Poisson(1.0), r"Poisson on key_precision has the wrong support"),
        ("key_precision", MixtureSameFamily(Categorical(torch.ones(2)), Uniform(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 5.0]))), "components of the mixture on key_precision have bounds of their own"),
        ("keys", torch.distributions.LKJCholesky(2), r"LKJCholesky on keys has the wrong support"),
    ],
    ids=["counts", "counts for a precision", "bounds that differ", "another argument"],
)  # fmt: skip
def test_a_prior_without_gradients_or_namesake_is_refused(name, prior, message):
    mixture, queries = simple()
    for run in (inference.adapt, partial(inference.nuts, seed=0), partial(inference.variational, seed=0)):
        with pytest.raises(ValueError, match=message):
            run(models.bayesian(mixture, **{name: prior}), queries)


def test_what_is_no_formulation_is_refused():
    with pytest.raises(ValueError, match=r"formulation must be a value of probtx_pyro\.models, not a function"):
        models.bayesian(lambda x: x, keys=Normal(0.0, 1.0))
    for verb in (inference.adapt, partial(inference.gibbs, seed=0)):
        with pytest.raises(ValueError, match=r"takes models\.bayesian\(formulation, \.\.\.\), not a GaussianMixture"):
            verb(simple()[0], simple()[1])


def test_data_go_by_place_or_by_name():
    mixture, queries, outputs, observed = problem(generator(3))
    program = models.bayesian(mixture, keys=Normal(mixture.keys, 1.0))
    by_place = inference.adapt(program, queries, outputs, observed)
    by_name = inference.adapt(program, queries=queries, observed=observed, outputs=outputs)
    assert torch.equal(by_place.formulation.keys, by_name.formulation.keys)
    with pytest.raises(ValueError, match=r"quries is no option .* and no datum of a GaussianMixture; did you mean"):
        inference.adapt(program, quries=queries)
    with pytest.raises(ValueError, match=r"queries is given twice"):
        inference.adapt(program, queries, queries=queries)
    with pytest.raises(
        ValueError, match=r"5 are given, but a GaussianMixture takes queries, outputs, observed, query_weights"
    ):
        inference.adapt(program, queries, outputs, observed, None, queries)
    with pytest.raises(ValueError, match="queries are None, but a posterior is drawn from data; give them"):
        inference.nuts(program, num_samples=1, num_warmup=0, seed=0)


def test_without_data_the_program_draws_them():
    mixture, _, _, _ = problem(generator(4))
    program = models.bayesian(mixture, keys=Normal(mixture.keys, 1e-3))
    for collapsed in (True, False):
        own = models.bayesian(mixture, keys=Normal(mixture.keys, 1e-3), collapsed=collapsed)
        nodes = poutine.trace(own).get_trace(None, num_queries=7).nodes
        assert nodes["queries"]["value"].shape == (7, 3) and nodes["outputs"]["value"].shape == (7, 2)
        assert not nodes["queries"]["is_observed"]
    samples = {"keys": mixture.keys.expand(100, 4, 3)}
    drawn = Predictive(program, samples)(None, num_queries=5)
    assert drawn["queries"].shape == (100, 5, 3) and drawn["outputs"].shape == (100, 5, 2)
    expected = mixture.log_weights().exp() @ mixture.keys
    spread = (mixture.keys.var(0) + 1 / mixture.key_precision.min()).sqrt()
    # 500 independent draws of a mixture whose sd is at most `spread`
    assert ((drawn["queries"].mean((0, 1)) - expected).abs() < 5 * spread / 500**0.5).all()
    with pytest.raises(ValueError, match="say how many with num_queries="):
        program(None)
    with pytest.raises(ValueError, match="num_queries is 3 but there are 5 queries"):
        program(torch.zeros(5, 3), num_queries=3)
    for number in (0, -1, 2.5):
        with pytest.raises(ValueError, match=f"num_queries must be a whole number from 1, not {number}"):
            program(None, num_queries=number)


@pytest.mark.parametrize("verb", ["nuts", "variational"])
def test_priors_across_units_and_mixtures_of_priors_are_sampled(verb):
    mixture, queries = simple(features=1)
    smooth = torch.exp(-0.5 * (torch.arange(3.0)[:, None] - torch.arange(3.0)) ** 2) + 1e-6 * torch.eye(3)
    correlated = TransformedDistribution(MultivariateNormal(torch.zeros(3), smooth), [ExpTransform()])
    two = MixtureSameFamily(Categorical(torch.ones(2)), Normal(torch.tensor([-1.0, 1.0]), torch.tensor(0.3)))
    program = models.bayesian(mixture, keys=two, key_precision=correlated)
    value = torch.tensor([0.5, 1.0, 2.0])
    keys = torch.tensor([[-1.0], [0.2], [1.0]])
    expected = two.log_prob(keys).sum() + correlated.log_prob(value)
    expected = expected + mixture.replace(keys=keys, key_precision=value).log_evidence(queries).sum()
    assert_equal(log_density(program, queries, keys=keys, key_precision=value), expected, operations=256)
    options = {
        "nuts": {"num_samples": 5, "num_warmup": 5, "num_chains": 1},
        "variational": {"num_steps": 5, "num_samples": 5},
    }
    drawn = getattr(inference, verb)(program, queries, seed=0, **options[verb])
    draws = drawn.draws if verb == "variational" else drawn
    assert draws.samples["keys"].shape == (1, 5, 3, 1) and draws.samples["key_precision"].shape == (1, 5, 3)
    assert (draws.samples["key_precision"] > 0).all()


def test_a_prior_across_units_needs_the_shape_of_its_parameter():
    mixture, queries = simple()
    rows = MultivariateNormal(torch.zeros(2), torch.eye(2)).expand((4,)).to_event(1)
    rows = TransformedDistribution(rows, [])  # its four rows are one event
    with pytest.raises(ValueError, match=r"must have the shape of keys, \(3, 2\), as one event"):
        inference.nuts(models.bayesian(mixture, keys=rows), queries, num_samples=1, num_warmup=0, seed=0)


def test_a_prior_with_a_leading_axis_over_shared_queries_is_drawn_from_by_every_verb():
    mixture, queries = simple()
    program = models.bayesian(mixture, keys=Normal(torch.zeros(2, 3, 2), 1.0))
    assert inference.adapt(program, queries).formulation.keys.shape == (2, 3, 2)
    few = {"num_samples": 3, "seed": 0}
    drawn = [
        inference.gibbs(program, queries, num_chains=2, num_warmup=2, **few),
        inference.nuts(program, queries, num_chains=2, num_warmup=2, **few),
        inference.variational(program, queries, num_steps=3, **few).draws,
    ]
    for draws in drawn:
        assert draws.samples["keys"].shape[-3:] == (2, 3, 2)
        assert results.to_inference_data(draws)["posterior"]["attention"].dims[2:] == ("batch", "query", "unit")
    wide = models.bayesian(mixture, keys=Normal(torch.zeros(2, 3, 2), 1.0), collapsed=False)
    keys = torch.randn(2, 3, 2, generator=generator(9))
    assert_equal(
        log_density(program, queries, keys=keys),
        Normal(0.0, 1.0).log_prob(keys).sum() + mixture.replace(keys=keys).log_evidence(queries).sum(),
        operations=256,
    )
    assert wide.problem(queries).batch == (2,)


@pytest.mark.parametrize(
    "prior", [Uniform(2.0, 5.0), HalfNormal(1.0), StudentT(3.0, 0.0, 1.0)], ids=lambda x: type(x).__name__
)
def test_gradient_map_serves_bounded_and_heavy_priors(prior):
    mixture, queries = simple()
    name = "keys" if isinstance(prior, StudentT) else "key_precision"
    start = mixture.replace(key_precision=3.0)
    with pytest.warns(UserWarning, match="gradient MAP"):
        fit = inference.adapt(models.bayesian(start, **{name: prior}), queries, num_steps=40, tol=1e-8)
    assert torch.isfinite(fit.objective).all() and fit.objective[-1] > fit.objective[0]


def test_a_start_outside_a_bounded_prior_is_one_clear_error():
    mixture, queries = simple()
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=r"key_precision starts outside the support"):
        inference.adapt(models.bayesian(mixture.replace(key_precision=1.0), key_precision=Uniform(2.0, 5.0)), queries)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_adapts_in_single_and_comes_back(dtype):
    mixture, queries = simple()
    low, asked = mixture.to(dtype), queries.to(dtype)
    fit = inference.adapt(models.bayesian(low, keys=Normal(low.keys, 1.0)), asked, num_steps=5)
    assert fit.formulation.keys.dtype == dtype and torch.isfinite(fit.formulation.keys).all()
    high = low.to(torch.float32)
    same = inference.adapt(models.bayesian(high, keys=Normal(high.keys, 1.0)), asked.float(), num_steps=5)
    # the result is rounded once
    assert (fit.formulation.keys.float() - same.formulation.keys).abs().max() <= torch.finfo(dtype).eps * 4


@pytest.mark.parametrize("half", ["queries", "formulation"])
def test_half_and_single_precision_are_not_mixed(half):
    mixture, queries = simple()
    mixture, queries = mixture.to(torch.float32), queries.float()
    if half == "queries":
        queries = queries.half()
    else:
        mixture = mixture.to(torch.float16)
    with pytest.raises(ValueError, match=r"tensors differ in dtype: queries .*, keys "):
        inference.adapt(models.bayesian(mixture, keys=Normal(0.0, 1.0)), queries)


def test_query_weights_do_not_decide_the_precision_of_the_result():
    mixture, queries = simple()
    posterior = models.bayesian(mixture.to(torch.float32), keys=Normal(0.0, 1.0))
    fit = inference.adapt(posterior, queries.float(), query_weights=torch.ones(12, dtype=torch.float16))
    assert fit.formulation.keys.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch has no batching rule for the fused kernel
@pytest.mark.parametrize("method", ["attention", "log_evidence", "expected_outputs"])
def test_closed_forms_are_mapped_by_vmap(method):
    mixture, queries, *_ = problem(generator(6), batch=(5,))
    axes = {name: 0 for name, x in vars(mixture).items() if isinstance(x, torch.Tensor) and x.dim() > 1}

    def single(parameters, asked):
        alone = models.GaussianMixture(**{**{k: v for k, v in vars(mixture).items() if k not in axes}, **parameters})
        return getattr(alone, method)(asked)

    mapped = torch.func.vmap(single)({name: getattr(mixture, name) for name in axes}, queries)
    assert_equal(mapped, getattr(mixture, method)(queries))


@pytest.mark.slow
def test_converged_is_told_without_a_tolerance():
    mixture, queries = simple()
    program = models.bayesian(mixture, keys=Normal(mixture.keys, 1.0))
    assert not inference.adapt(program, queries, num_steps=1).converged.any()
    assert inference.adapt(program, queries, num_steps=3000).converged.all()
    assert not inference.adapt(program, queries, num_steps=0).converged.any()


@pytest.mark.slow
def test_pyros_own_results_are_converted():
    mixture, queries = simple()
    program = models.bayesian(mixture, keys=Normal(mixture.keys, 0.5), weights=Dirichlet(torch.ones(3)))
    chains = MCMC(NUTS(program), num_samples=30, warmup_steps=20, disable_progbar=True)
    chains.run(queries)
    data = results.to_inference_data(chains, queries)
    assert data["posterior"]["keys"].shape == (1, 30, 3, 2) and data["posterior"]["attention"].shape == (1, 30, 12, 3)
    assert data["sample_stats"]["diverging"].dtype == bool and data.attrs["method"] == "NUTS"
    keys, weights = (torch.as_tensor(data["posterior"][name].values[0, 4]) for name in ("keys", "weights"))
    lp = log_density(program, queries, keys=keys, weights=weights.reshape(1, 3))
    jacobian = torch.distributions.biject_to(torch.distributions.constraints.simplex)
    z = jacobian.inv(weights)
    assert_equal(
        torch.tensor(float(data["sample_stats"]["lp"][0, 4])),
        lp + jacobian.log_abs_det_jacobian(z, weights),
        operations=2**12,
    )
    with pytest.raises(ValueError, match="Pyro's results do not bring their data"):
        results.to_inference_data(chains)
    guide = AutoNormal(program)
    guide(queries)
    with pytest.raises(ValueError, match="draws of a guide need one; give seed"):
        results.to_inference_data(guide, queries)
    told = results.to_inference_data(guide, queries, seed=0)
    assert told["posterior"]["attention"].shape == (1, 1000, 12, 3) and told.attrs["approximation"] == "AutoNormal"
    with pytest.raises(ValueError, match=r"fit must be a result of inference"):
        results.to_inference_data("draws")


def test_chains_that_have_not_run_are_refused():
    mixture, queries = simple()
    chains = MCMC(NUTS(models.bayesian(mixture, keys=Normal(0.0, 1.0))), num_samples=3)
    with pytest.raises(ValueError, match="fit: the MCMC has not run; call its run"):
        results.to_inference_data(chains, queries)


def test_draws_are_diagnosed_as_they_are():
    mixture, queries = simple()
    draws = inference.gibbs(
        models.bayesian(mixture, keys=Normal(mixture.keys, 0.5)), queries, num_samples=150, num_chains=4, seed=0
    )
    assert str(results.diagnose(draws)) == str(results.diagnose(results.to_inference_data(draws)))


def test_results_and_models_are_printed_in_a_few_lines():
    mixture, queries = simple()
    program = models.bayesian(mixture, keys=Normal(mixture.keys, 0.5))
    fit = inference.adapt(program, queries, num_steps=2)
    draws = inference.gibbs(program, queries, num_samples=100, num_chains=2, seed=0)
    assert repr(program) == "Bayesian(GaussianMixture: keys ~ Normal)"
    assert repr(draws).startswith("Draws of keys (3, 2) by Gibbs: 2 chains of 100")
    assert "ECM of a GaussianMixture: 2 steps" in repr(fit)
    for value in (mixture, fit, draws, program):
        assert len(repr(value).splitlines()) <= 8 and len(repr(value)) < 400
    table = draws.summary().splitlines()
    assert len(table) == 8 and table[2].startswith("keys[0, 0]")
    row = [float(x) for x in table[2].split()[-4:]]
    x = draws.samples["keys"][..., 0, 0]
    for said, exact in zip(row, (x.mean(), x.std(), x.quantile(0.05), x.quantile(0.95)), strict=True):
        assert abs(said - float(exact)) < 1e-3 * max(1, abs(float(exact)))


def test_a_guide_may_be_a_plain_function(tmp_path):
    mixture, queries = simple()
    program = models.bayesian(mixture, keys=Normal(mixture.keys, 1.0))

    def guide(queries, *_):
        loc = pyro.param("loc", torch.zeros(3, 2))
        scale = pyro.param("scale", torch.ones(3, 2), constraint=torch.distributions.constraints.positive)
        with pyro.plate("units", 3, dim=-1):
            pyro.sample("keys", Normal(loc, scale).to_event(1))

    fit = inference.variational(program, queries, guide=guide, num_steps=30, num_samples=50, seed=0)
    assert set(fit.state) == {"loc", "scale"} and fit.draws.method == "guide"
    assert not list(pyro.get_param_store().keys())
    fit.save(tmp_path / "fit")
    again = inference.Approximation.load(tmp_path / "fit", program, queries, guide=guide)
    drawn = []
    for one in (fit, again):
        pyro.set_rng_seed(3)
        drawn.append(poutine.trace(one.guide).get_trace(queries).nodes["keys"]["value"])
    assert torch.equal(*drawn) and not torch.equal(drawn[0], torch.zeros(3, 2))
