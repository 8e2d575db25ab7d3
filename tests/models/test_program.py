"""The programs are ordinary Pyro: everything Pyro does to a model can be done to them."""

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Dirichlet, Gamma, Normal
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, TraceEnum_ELBO, infer_discrete
from pyro.infer.autoguide import AutoDelta, AutoNormal
from pyro.infer.autoguide.initialization import init_to_value
from pyro.optim import Adam, ClippedAdam
from strategies import generator, problem
from tolerances import assert_equal, assert_frequency

from probtx_pyro import inference, models


@pytest.fixture
def setting():
    return problem(generator(1), queries=6, units=3)


def test_marginals_of_pyro_are_the_attention(setting):
    mixture, queries, *_ = setting
    elbo = TraceEnum_ELBO(max_plate_nesting=1)
    hidden = poutine.block(mixture.model, hide=["outputs"])
    marginal = elbo.compute_marginals(hidden, lambda *a: None, queries)["unit"]
    assert_equal(marginal.probs, mixture.attention(queries))


@pytest.mark.slow
def test_infer_discrete_draws_from_the_attention(setting):
    mixture, queries, outputs, _ = setting
    pyro.set_rng_seed(2)
    sampler = infer_discrete(mixture.model, first_available_dim=-3)
    counts = torch.zeros(6, 3)
    for _ in range(300):
        counts += torch.nn.functional.one_hot(
            poutine.trace(sampler).get_trace(queries, outputs).nodes["unit"]["value"], 3
        )
    attention = mixture.attention(queries, outputs)
    for i in range(6):
        for j in range(3):
            assert_frequency(float(counts[i, j]), 300, float(attention[i, j]))


@pytest.mark.parametrize("rendering", ["model", "collapsed"])
@pytest.mark.parametrize("answer", ["gaussian", "categorical"])
@pytest.mark.slow
def test_predictive_draws_answers_and_unconditioned_queries(rendering, answer):
    mixture, queries, *_ = problem(generator(3), queries=4, units=3, answer=answer)
    pyro.set_rng_seed(4)
    draws = Predictive(getattr(mixture, rendering), {}, num_samples=1500, parallel=True, return_sites=["outputs"])(
        queries
    )["outputs"].squeeze()
    if rendering == "collapsed":  # the enumerated model draws its unit from the prior, not given the query
        values = torch.nn.functional.one_hot(draws, 3).to(queries) if answer == "categorical" else draws
        error = values.std(0) / len(values) ** 0.5
        assert ((values.mean(0) - mixture.expected_outputs(queries)).abs() < 5 * error + 1e-9).all()
    prior = Predictive(poutine.uncondition(getattr(mixture, rendering)), {}, num_samples=300)(queries)["queries"]
    weights = mixture.log_weights().exp()
    error = prior.std(0) / len(prior) ** 0.5
    assert ((prior.mean(0) - weights @ mixture.keys).abs() < 5 * error).all()


def test_condition_gives_the_evidence_and_do_fixes_the_unit(setting):
    mixture, queries, outputs, _ = setting
    conditioned = poutine.trace(poutine.condition(mixture.collapsed, {"outputs": outputs})).get_trace(queries)
    assert_equal(conditioned.log_prob_sum(), mixture.log_evidence(queries, outputs).sum())
    unit = torch.tensor([0, 1, 2, 0, 1, 2])
    done = poutine.trace(poutine.block(poutine.do(mixture.model, {"unit": unit}), hide=["unit"])).get_trace(
        queries, outputs
    )
    expected = mixture.log_joint(queries, outputs) - mixture.log_weights()
    assert_equal(done.log_prob_sum(), expected.gather(-1, unit[:, None]).sum())


def test_render_model_names_sites_and_plates(setting):
    mixture, queries, outputs, _ = setting
    source = pyro.render_model(mixture.model, (queries, outputs)).source
    assert all(name in source for name in ("unit", "queries", "outputs", "query"))


@pytest.mark.parametrize("collapsed", [True, False])
@pytest.mark.slow
def test_svi_with_autodelta_reaches_the_em_optimum(collapsed):
    mixture, queries, *_ = problem(generator(5), queries=40, units=2)
    mixture = models.GaussianMixture(2 * mixture.keys, key_precision=mixture.key_precision)
    priors = dict(keys=Normal(mixture.keys, 1.0))
    best = inference.adapt(models.bayesian(mixture, **priors), queries, num_steps=2000, tol=1e-12)
    program = models.bayesian(mixture, **priors, collapsed=collapsed)
    guide = AutoDelta(poutine.block(program, hide=["unit"]), init_loc_fn=lambda site: mixture.keys.clone())
    svi = SVI(
        program,
        guide,
        ClippedAdam({"lr": 0.05, "lrd": 0.99}),
        Trace_ELBO() if collapsed else TraceEnum_ELBO(max_plate_nesting=1),
    )
    for _ in range(400):
        loss = svi.step(queries)
    assert abs(-loss - float(best.objective[-1])) < 1e-6  # Adam with a falling rate: quadratic in a distance of 1e-4
    assert (guide.median()["keys"] - best.formulation.keys).abs().max() < 1e-3


@pytest.mark.slow
def test_autonormal_and_nuts_run_on_the_collapsed_program():
    mixture, queries, *_ = problem(generator(6), queries=30, units=2)
    mixture = models.GaussianMixture(torch.tensor([[-3.0, 0, 0], [3.0, 0, 0]]), key_precision=2.0)
    queries = mixture.keys[torch.arange(30) % 2] + 0.7 * torch.randn(30, 3, generator=generator(7))
    priors = dict(
        keys=Normal(mixture.keys, 2.0), key_precision=Gamma(2.0, 1.0), weights=Dirichlet(torch.full((1, 2), 5.0))
    )
    program = models.bayesian(mixture, **priors)
    svi = SVI(program, AutoNormal(program), Adam({"lr": 0.03}), Trace_ELBO())
    losses = [svi.step(queries) for _ in range(100)]
    assert sum(losses[-20:]) < sum(losses[:20])
    pyro.clear_param_store()
    known = models.bayesian(mixture, keys=Normal(mixture.keys, 2.0))
    mcmc = MCMC(
        NUTS(known, init_strategy=init_to_value(values={"keys": mixture.keys})),
        num_samples=100,
        warmup_steps=60,
        disable_progbar=True,
    )
    mcmc.run(queries)
    draws = mcmc.get_samples()["keys"]
    # well separated units: the posterior of a key is the conjugate one, N((θμ + αΣq)/(θ + αn), 1/(θ + αn))
    precision = 0.25 + 2.0 * 15
    mean = torch.stack([(0.25 * mixture.keys[k] + 2.0 * queries[k::2].sum(0)) / precision for k in range(2)])
    assert (
        draws.mean(0) - mean
    ).abs().max() < 5 * precision**-0.5 / 20**0.5  # five errors at an effective size of 20 of 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_programs_follow_the_dtype(dtype):
    mixture, *args = problem(generator(8), dtype=dtype)
    trace = poutine.trace(models.bayesian(mixture, keys=Normal(0.0, 1.0), key_precision=Gamma(2.0, 1.0))).get_trace(
        *args
    )
    assert trace.nodes["keys"]["value"].dtype == dtype
    trace.compute_log_prob()
    assert {trace.nodes[name]["log_prob"].dtype for name in ("keys", "key_precision", "queries", "outputs")} == {dtype}


def test_plates_and_sites_have_the_names_of_the_axes(setting):
    mixture, queries, outputs, _ = setting
    batch = mixture.with_parameters(
        {k: x.expand(2, 3, *x.shape) for k, x in vars(mixture).items() if isinstance(x, torch.Tensor)}
    )
    priors = dict(keys=Normal(batch.keys, 1.0), weights=Dirichlet(torch.ones(1, 3)))
    nodes = poutine.trace(models.bayesian(batch, **priors, collapsed=False)).get_trace(queries, outputs).nodes
    plates = {
        name: [f.name for f in sorted(nodes[name]["cond_indep_stack"], key=lambda f: f.dim)]
        for name in ("keys", "weights", "unit", "queries", "outputs")
    }
    assert plates == {
        "keys": ["batch", "head", "units"],
        "weights": ["batch", "head"],
        **{site: ["batch", "head", "query"] for site in ("unit", "queries", "outputs")},
    }


def test_a_shared_parameter_is_drawn_outside_the_plate(setting):
    mixture, queries, *_ = setting
    program = models.bayesian(mixture, keys=Normal(mixture.keys, 1.0))
    node = poutine.trace(program).get_trace(queries.expand(4, 6, 3)).nodes["keys"]
    assert [f.name for f in node["cond_indep_stack"]] == ["units"] and node["value"].shape == (3, 3)


@pytest.mark.parametrize(
    ("rows", "number", "message"),
    [
        (1, 0, "num_queries must be a whole number from 1, not 0"),
        (1, 2.5, "num_queries must be a whole number from 1, not 2.5"),
        (5, 4, "log_prior has rows for 5 queries but there are 4 queries; give one row"),
    ],
)
def test_a_sample_that_cannot_be_is_refused_in_one_line(rows, number, message):
    mixture = models.GaussianMixture(torch.zeros(2, 3), log_prior=torch.full((rows, 2), 0.5).log())
    with pytest.raises(ValueError) as found:
        mixture.sample(number, seed=0)
    assert str(found.value) == message
