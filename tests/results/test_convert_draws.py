"""Draws as ArviZ data: groups, dims and values, against loops over draws with the oracles."""

import sys
import warnings

import arviz
import numpy as np
import oracles
import pyro
import pytest
import torch
from arviz_versions import group_names
from draws_by_hand import DTYPE, bayesian, data, make, normal, samples
from pyro import poutine
from pyro.distributions import Dirichlet, Gamma, Normal
from pyro.infer import MCMC, NUTS, TraceEnum_ELBO
from strategies import generator, keys_problem, lists
from tolerances import FALSE_ALARM_RATE

from probtx_pyro import inference, models, results

CLOSE = {"rtol": 0, "atol": 1e-12}  # 64 operations on logarithms below 100 in double precision


def oracle(draws, chain, draw, index, arguments):
    """The problem ``index`` of one draw as nested lists."""
    program = draws.program
    drawn = {name: x[(chain, draw, *index)] for name, x in draws.samples.items()}
    mixture = models.GaussianMixture(
        drawn["keys"],
        drawn["values"],
        program.formulation.key_precision,
        program.formulation.value_precision,
        drawn["weights"].log(),
    )
    queries, outputs, observed, _ = arguments
    return lists(mixture, queries[index], outputs[index], observed[index])


@pytest.mark.parametrize("batch", [(), (2,), (2, 2)])
def test_groups_and_dims(batch):
    arguments = data(batch)
    found = results.to_inference_data(
        make(bayesian(batch), samples(batch, draws=10), arguments), seed=3, prior=6, coords={"unit": list("abc")}
    )
    leading = ("batch", "head")[: len(batch)]
    many = ("chain", "draw", *leading)
    expected = {
        "posterior": {
            "keys": (*many, "unit", "feature"),
            "values": (*many, "unit", "answer"),
            "weights": (*many, "unit"),
            "attention": (*many, "query", "unit"),
        },
        "posterior_predictive": {"queries": (*many, "query", "feature"), "outputs": (*many, "query", "answer")},
        "prior": {"keys": (*many, "unit", "feature"), "weights": (*many, "unit")},
        "prior_predictive": {"queries": (*many, "query", "feature")},
        "sample_stats": {"lp": ("chain", "draw")},
        "log_likelihood": {"joint": ("chain", "draw", "observation")},
        "observed_data": {"queries": (*leading, "query", "feature"), "outputs": (*leading, "query", "answer")},
        "constant_data": {
            "observed": (*leading, "query"),
            "query_weights": (*leading, "query"),
            "key_precision": (),
            "exchangeable_units": (*leading, "unit"),
        },
    }
    for group, variables in expected.items():
        for name, dims in variables.items():
            assert found[group][name].dims == dims, (group, name)
    assert found["prior"].sizes["draw"] == 6 and found["posterior"].sizes["draw"] == 10
    assert found["posterior"]["keys"].sel(unit="b").sizes["feature"] == 2
    attrs = found.attrs
    assert (attrs["method"], attrs["seed"], attrs["num_warmup"]) == ("NUTS", 7, 50)
    assert attrs["inference_library"] == "probtx_pyro" and "approximation" not in attrs


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("chunk", [2**26, 40])
def test_attention_and_log_likelihood_at_every_draw(batch, chunk, monkeypatch):
    monkeypatch.setattr("probtx_pyro.results._evaluation.CHUNK", chunk)
    arguments = data(batch)
    draws = make(bayesian(batch), samples(batch, chains=2, draws=7), arguments)
    found = results.to_inference_data(draws, relabel=False)
    attention, pointwise = found["posterior"]["attention"], found["log_likelihood"]["joint"]
    for chain, draw in ((0, 0), (1, 3), (1, 6)):
        for index in np.ndindex(*batch):
            problem = oracle(draws, chain, draw, index, arguments)
            np.testing.assert_allclose(attention.values[(chain, draw, *index)], oracles.attention(problem), **CLOSE)
            evidence = oracles.evidence(problem)
            for query, weight in enumerate(arguments[3][index].tolist()):
                label = ", ".join([*(f"batch={i}" for i in index), f"query={query}"])
                assert (label in pointwise["observation"].values) == (weight > 0)
                if weight:
                    one = pointwise.sel(chain=chain, draw=draw, observation=label).item()
                    assert one == pytest.approx(evidence[query], abs=1e-12)
    assert not np.isnan(pointwise).any()


def test_queries_that_all_count_keep_their_axes_and_weights_scale():
    queries, outputs, _, _ = data((2,))
    weights = torch.full((2, 5), 0.5, dtype=DTYPE)
    draws = make(bayesian((2,)), samples((2,), draws=5), (queries, outputs))
    whole = results.to_inference_data(draws)["log_likelihood"]["joint"]
    assert whole.dims == ("chain", "draw", "batch", "query")
    half = results.to_inference_data(draws._replace(arguments=(queries, outputs, None, weights)))["log_likelihood"]
    np.testing.assert_allclose(half["joint"], 0.5 * whole, **CLOSE)


def test_answers_given_their_queries():
    arguments = data()
    draws = make(bayesian(), samples(chains=2, draws=4), arguments)
    found = results.to_inference_data(draws, likelihood="answers", seed=1, relabel=False)
    pointwise = found["log_likelihood"]["outputs"]
    answered = ((arguments[3] > 0) & arguments[2]).nonzero().flatten().tolist()
    assert pointwise["observation"].values.tolist() == [f"query={i}" for i in answered]
    problem = oracle(draws, 1, 2, (), arguments)
    alone = oracles.evidence({**problem, "outputs": None})
    expected = [oracles.evidence(problem)[i] - alone[i] for i in answered]
    np.testing.assert_allclose(pointwise.values[1, 2], expected, **CLOSE)
    assert "queries" in found["constant_data"] and "queries" not in found["posterior_predictive"]
    assert found["posterior_predictive"]["outputs"].dims == ("chain", "draw", "query", "answer")


def test_likelihood_of_the_program_is_the_sum():
    """The pointwise terms are those of the Pyro program, so they sum to its log density of the data."""
    arguments = data((2,))
    draws = make(bayesian((2,)), samples((2,), chains=1, draws=3), arguments)
    found = results.to_inference_data(draws, relabel=False)["log_likelihood"]["joint"]
    for draw in range(3):
        values = {name: x[0, draw] for name, x in draws.samples.items()}
        trace = poutine.trace(poutine.condition(draws.program, values)).get_trace(*arguments)
        trace.compute_log_prob()
        total = sum(trace.nodes[name]["log_prob_sum"] for name in ("queries", "outputs"))
        assert found.values[0, draw].sum() == pytest.approx(float(total), abs=1e-10)


def test_attention_is_that_of_the_enumerated_program():
    """Assignments by `compute_marginals` of the conditioned program; a conditioned `infer_discrete` would be wrong."""
    arguments = data()[:2]
    draws = make(bayesian(collapsed=False), samples(chains=1, draws=5), arguments)
    attention = results.to_inference_data(draws, relabel=False)["posterior"]["attention"]
    for draw in range(5):
        conditioned = poutine.condition(draws.program, {name: x[0, draw] for name, x in draws.samples.items()})
        elbo = TraceEnum_ELBO(max_plate_nesting=1)
        marginal = elbo.compute_marginals(conditioned, lambda *_: None, *arguments)
        np.testing.assert_allclose(attention.values[0, draw], marginal["unit"].probs, **CLOSE)


def test_gaussian_keys_have_components():
    model, queries = keys_problem(generator(1), batch=(2,), rows=1)
    priors = dict(
        keys=Normal(torch.zeros((), dtype=DTYPE), torch.ones((), dtype=DTYPE)),
        component_weights=Dirichlet(torch.ones(2, dtype=DTYPE)),
    )
    given = {"keys": normal(1, 2, 3, 2, 4, 2, 3), "component_weights": normal(2, 2, 3, 2, 4, 2).softmax(-1)}
    draws = make(models.bayesian(model, **priors), given, (queries,))
    found = results.to_inference_data(draws, relabel=False, seed=2)
    assert found["posterior"]["keys"].dims == ("chain", "draw", "batch", "unit", "component", "feature")
    assert found["log_likelihood"]["queries"].dims == ("chain", "draw", "batch", "query")
    one = model.replace(keys=given["keys"][1, 2], component_weights=given["component_weights"][1, 2])
    np.testing.assert_allclose(found["posterior"]["attention"].values[1, 2], one.attention(queries), **CLOSE)
    np.testing.assert_allclose(found["log_likelihood"]["queries"].values[1, 2], one.log_evidence(queries), **CLOSE)
    assert found["posterior_predictive"]["queries"].shape == (2, 3, *queries.shape)


def test_scalar_and_shared_parameters():
    """A precision shared by the units and by the problems broadcasts over both."""
    queries = normal(5, 2, 3, 6, 2)
    mixture = models.GaussianMixture(normal(6, 3, 4, 2))
    gamma = Gamma(torch.tensor(2.0, dtype=DTYPE), torch.tensor(1.0, dtype=DTYPE))
    precision = normal(7, 2, 5).exp()
    draws = make(models.bayesian(mixture, key_precision=gamma), {"key_precision": precision}, (queries,))
    found = results.to_inference_data(draws, seed=1)
    assert found["posterior"]["key_precision"].dims == ("chain", "draw")
    assert found["posterior"]["attention"].dims == ("chain", "draw", "batch", "head", "query", "unit")
    expected = mixture.replace(key_precision=precision[1, 4]).attention(queries)
    np.testing.assert_allclose(found["posterior"]["attention"].values[1, 4], expected, **CLOSE)
    assert found.attrs["labels"] == "no parameter of the units is drawn"


def test_thinned_and_absent_attention():
    draws = make(bayesian(), samples(draws=9), data()[:2])
    whole = results.to_inference_data(draws)["posterior"]["attention"]
    thinned = results.to_inference_data(draws, attention=4)
    assert thinned["attention"]["attention"]["draw"].values.tolist() == [0, 4, 8]
    np.testing.assert_array_equal(thinned["attention"]["attention"], whole.sel(draw=[0, 4, 8]))
    assert "attention" not in thinned["posterior"]
    none = results.to_inference_data(draws, attention=False, likelihood=None)
    assert "attention" not in none["posterior"] and not hasattr(none, "log_likelihood")


def test_new_data_have_the_moments_of_the_mixture():
    """One draw repeated: 4,000 new answers and queries against the mean and variance known in closed form."""
    program, queries = bayesian(), data()[0]
    one = {name: x[:1, :1].expand(1, 4000, *x.shape[2:]) for name, x in samples().items()}
    found = results.to_inference_data(make(program, one, (queries,)), seed=5, relabel=False)["posterior_predictive"]
    mixture = program.formulation.with_parameters({name: x[0, 0] for name, x in one.items()})
    weights = one["weights"][0, 0, 0]
    for name, centers, precision in (
        ("queries", mixture.keys, mixture.key_precision),
        ("outputs", mixture.values, mixture.value_precision),
    ):
        mean = weights @ centers
        sd = (weights @ centers.square() + 1 / precision - mean.square()).sqrt()
        z = (found[name].values[0].mean(0) - mean.numpy()) / (sd.numpy() / 4000**0.5)
        assert np.abs(z).max() < 5.5  # 10 and 5 standard normal numbers: false alarm below FALSE_ALARM_RATE
    assert FALSE_ALARM_RATE >= 15 * 4e-8


def test_seeds_make_the_same_data_and_leave_the_generator_alone():
    draws = make(bayesian(), samples(draws=5), data())
    before = torch.get_rng_state()
    first, again, other = (results.to_inference_data(draws, seed=seed, prior=4) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    for group in ("posterior_predictive", "prior", "prior_predictive"):
        assert first[group].identical(again[group]) and not first[group].identical(other[group])


def test_log_prior_and_log_likelihood_add_up_to_the_log_density():
    """Of Gibbs draws, whose ``lp`` comes from elsewhere; and power-scaling finds all that it needs in the file."""
    queries = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    mixture = models.GaussianMixture(queries[:3], key_precision=torch.ones(3))
    priors = dict(keys=Normal(mixture.keys, 0.5), key_precision=Gamma(3.0, 1.0))
    found = results.to_inference_data(
        inference.gibbs(models.bayesian(mixture, **priors), queries, num_samples=50, num_chains=2, seed=0)
    )
    prior = sum(found["log_prior"][name] for name in ("keys", "key_precision"))
    likelihood = found["log_likelihood"]["queries"].sum("query")
    np.testing.assert_allclose(found["sample_stats"]["lp"], prior + likelihood, rtol=1e-12)
    draws = {name: found["posterior"][name].values for name in ("keys", "key_precision")}
    assert results.prior_sensitivity(draws, prior, likelihood, scaling=1.01).mean["prior"]["keys"].shape == (3, 2)


def test_what_variational_inference_returns_stands_for_its_draws():
    queries = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    mixture = models.GaussianMixture(queries[:3])
    program = models.bayesian(mixture, keys=Normal(mixture.keys, 0.5))
    fit = inference.variational(program, queries, num_steps=5, learning_rate=0.01, num_samples=7, seed=0)
    found = results.to_inference_data(fit, attention=False)
    assert found.attrs["approximation"] == "AutoNormal" and found["posterior"].sizes["draw"] == 7


@pytest.mark.slow
def test_netcdf_round_trip(tmp_path):
    draws = make(bayesian((2,)), samples((2,), draws=5), data((2,)), diverging=torch.zeros(4, 5, dtype=torch.bool))
    found = results.to_inference_data(draws, seed=1, prior=3, attention=2, coords={"batch": ["x", "y"]})
    found.to_netcdf(str(tmp_path / "draws.nc"))
    loaded = arviz.from_netcdf(str(tmp_path / "draws.nc"))
    assert dict(loaded.attrs) == dict(found.attrs)
    assert set(group_names(loaded)) == set(group_names(found)) and len(group_names(found)) == 10
    for group in group_names(found):
        assert loaded[group].identical(found[group])
        for name in found[group].data_vars:
            assert loaded[group][name].dtype == found[group][name].dtype


def test_chains_keep_their_order_when_there_are_more_than_ten():
    given = {"x": torch.arange(12, dtype=DTYPE).unsqueeze(-1).expand(12, 4)}
    diverging = torch.zeros(12, 4, dtype=torch.bool)
    diverging[11] = True
    draws = inference.Draws(given, {"lp": given["x"], "diverging": diverging}, None, (), "NUTS", {})
    found = results.to_inference_data(draws)
    assert found["posterior"]["x"].sel(chain=10).values.tolist() == [10.0] * 4
    assert found["sample_stats"]["diverging"].sum("draw").values.tolist() == [0] * 11 + [4]


def test_any_program_is_laid_out_by_its_plates():
    def program(n):
        with pyro.plate("school", n, dim=-1):
            pyro.sample("effect", Normal(torch.zeros(2, dtype=DTYPE), 1.0).to_event(1))
        pyro.sample("scale", Gamma(torch.tensor(1.0, dtype=DTYPE), 1.0))

    given = {"effect": normal(1, 2, 5, 8, 2), "scale": normal(2, 2, 5).exp(), "extra": normal(3, 2, 5, 4)}
    draws = inference.Draws(given, {"lp": normal(4, 2, 5)}, program, (8,), "NUTS", {})
    found = results.to_inference_data(draws, coords={"school": list("abcdefgh")})
    assert found["posterior"]["effect"].dims == ("chain", "draw", "school", "effect_dim_1")
    assert found["posterior"]["scale"].dims == ("chain", "draw")
    assert found["posterior"]["extra"].dims == ("chain", "draw", "extra_dim_0")
    renamed = results.to_inference_data(draws, dims={"effect": ["place", "axis"]})
    assert renamed["posterior"]["effect"].dims == ("chain", "draw", "place", "axis")


def test_draws_of_a_guide_are_flagged():
    draws = make(bayesian(), samples(chains=1, draws=9), data()[:1], method="AutoNormal")
    assert results.to_inference_data(draws).attrs["approximation"] == "AutoNormal"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(arviz, "from_pyro"), reason="ArviZ 1.x has no converter of its own")
def test_arviz_own_converter_is_wrong_or_silent_where_ours_is_right():
    """`arviz.from_pyro` on the enumerated program: no log likelihood, or one under assignments drawn from the prior."""
    queries = torch.cat([normal(1, 10, 2) - 4, normal(2, 10, 2) + 4])
    mixture = models.GaussianMixture(torch.tensor([[-4.0, -4.0], [4.0, 4.0]], dtype=DTYPE))
    scale = torch.tensor(0.5, dtype=DTYPE)
    program = models.bayesian(mixture, keys=Normal(mixture.keys, scale), collapsed=False)
    mcmc = MCMC(NUTS(program, max_plate_nesting=1), num_samples=20, warmup_steps=10, disable_progbar=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run(queries)
        theirs = arviz.from_pyro(mcmc, log_likelihood=True)
    drawn = mcmc.get_samples(group_by_chain=True)
    ours = results.to_inference_data(make(program, drawn, (queries,)))["log_likelihood"]["queries"]
    truth = np.array([oracles.evidence(lists_of(mixture.replace(keys=keys), queries)) for keys in drawn["keys"][0]])
    np.testing.assert_allclose(ours.values[0], truth, **CLOSE)
    wrong = theirs["log_likelihood"]["queries"].values[0] if "log_likelihood" in theirs.groups() else truth + np.inf
    assert wrong.shape != truth.shape or np.abs(wrong - truth).max() > 1


def lists_of(mixture, queries):
    return {**lists(mixture.replace(values=torch.zeros(2, 1, dtype=DTYPE)), queries), "values": None}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior": 3}, "prior: draws from the priors need a seed"),
        ({"likelihood": "query"}, "likelihood must be one of joint, answers or None, not 'query'"),
        ({"likelihood": "answers"}, "no answers in these draws' arguments"),
        ({"attention": -1}, r"attention must be True, False or n"),
        ({"queries": torch.zeros(5, 2)}, "draws bring the data they were made from"),
        ({"dims": {"key": ["unit"]}}, "dims: there is no variable 'key'"),
        ({"dims": {"keys": ["unit"]}}, r"1 names for keys with axes unit, feature"),
    ],
)
def test_errors_name_the_argument(options, message):
    draws = make(bayesian(), samples(draws=4), data()[:1])
    with pytest.raises(ValueError, match=message):
        results.to_inference_data(draws, **options)


def test_errors_of_what_has_no_draws():
    queries = data()[0]
    with pytest.raises(ValueError, match="seed: an option of draws, but this is a GaussianMixture"):
        results.to_inference_data(bayesian().formulation, queries, seed=1)
    flat = models.bayesian(bayesian().formulation, keys=models.FLAT)
    draws = make(flat, {"keys": samples(draws=4)["keys"]}, (queries,))
    with pytest.raises(ValueError, match="the prior on keys is flat"):
        results.to_inference_data(draws, seed=1, prior=3)
    with pytest.raises(ValueError, match=r"new data come from a program made by models.bayesian"):
        results.to_inference_data(draws._replace(program=None), seed=1)


def test_attention_that_takes_much_memory_is_told(monkeypatch):
    monkeypatch.setattr(sys.modules["probtx_pyro.results.convert"], "LARGE", 1000)
    draws = make(bayesian(), samples(), data())
    with pytest.warns(UserWarning, match=r"attention of every draw takes .* MiB; attention=n keeps"):
        results.to_inference_data(draws)
    results.to_inference_data(draws, attention=False)
    results.to_inference_data(draws, attention=7)
