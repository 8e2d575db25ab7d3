"""Posteriors of a dependency CRF's potentials: every verb serves them or refuses; against importance sampling and by calibration."""

import functools

import arviz
import numpy as np
import pyro
import pytest
import torch
from pyro.distributions import LogNormal, Normal
from samplers import Lanes, parameters, starts
from strategies import crf_problem, generator, labelled_sentences
from tolerances import assert_equal

from probtx_pyro import inference, models, results

KINDS = pytest.mark.parametrize("kind", ["exact", "pseudo"])
MOSTLY = pytest.mark.parametrize("kind", [pytest.param("exact", marks=pytest.mark.slow), "pseudo"])
QUIET = {"num_samples": 5, "seed": 0, "progress": False}
NUTS = functools.partial(inference.nuts, num_chains=2, num_warmup=2, max_tree_depth=2, start="formulation", **QUIET)
PRIOR = Normal(0.0, 1.0)


def posterior_of(kind, **options):
    """Priors on all potentials; the data."""
    crf, labels, heads = labelled_sentences(words=3, batch=(3,), **options)
    priors = {"ternary": PRIOR, "root_ternary": PRIOR, "memory": PRIOR, "unary": Normal(crf.unary, 0.5)}
    return models.bayesian(crf, **priors, likelihood=kind), labels, heads


@pytest.mark.slow
@KINDS
def test_adapt_climbs_the_density(kind):
    posterior, labels, heads = posterior_of(kind)
    with pytest.warns(UserWarning, match="gradient MAP"):
        fit = inference.adapt(posterior, labels, heads, num_steps=60, tol=1e-6, progress=False)
    assert bool(fit.converged) and (fit.objective[1:] >= fit.objective[:-1] - 1e-9).all()  # L-BFGS with a line search
    assert isinstance(fit.formulation, models.DependencyCRF) and fit.formulation.unary.shape == (3, 3, 2)
    at = {name: x.detach().requires_grad_() for name, x in fit.formulation.parameters().items()}
    value = fit.formulation.with_parameters(at).log_evidence(labels, heads).sum()
    for name, slope in zip(at, torch.autograd.grad(value, [*at.values()]), strict=True):
        prior = posterior.problem(labels, heads).sites[name].distribution.base_dist
        # at the mode the likelihood pulls as the prior does; the line search stops within the root of its tolerance
        assert torch.allclose(slope, (at[name] - prior.mean) / prior.variance, atol=1e-3), name


@KINDS
def test_chains_are_one_batch_with_the_density_of_the_program(kind):
    posterior, labels, heads = posterior_of(kind)
    found = parameters(posterior, (labels, heads, None))
    points = starts(found, 3, "formulation", 0)
    lanes = Lanes(found, points)
    assert lanes.how == "closed form"
    energies, slopes = lanes(lanes.start)
    program, transforms = found._replace(closed=None).unconstrained()
    for chain in range(3):
        free = {name: transforms[name](x[chain]).detach().requires_grad_() for name, x in points.items()}
        value = program(free)
        assert_equal(energies[chain], value, energies, operations=1024)
        for name, slope in lanes._values(slopes).items():
            (expected,) = torch.autograd.grad(value, free[name], retain_graph=True)
            assert_equal(slope[chain], expected, energies, operations=1024)


@MOSTLY
def test_draws_convert_with_dimensions_by_the_table_and_say_of_what_they_are(kind):
    posterior, labels, heads = posterior_of(kind)
    draws = NUTS(posterior, labels, heads)
    data = results.to_inference_data(draws, seed=1, prior=3)
    assert {name: x.dims[2:] for name, x in data["posterior"].data_vars.items()} == {
        "ternary": ("channel", "group", "label", "head_label"), "root_ternary": ("channel", "label", "root_label"),
        "memory": ("node_channel", "node", "label"), "unary": ("sentence", "word", "label"),
        "attention": ("sentence", "channel", "word", "slot"), "label_marginals": ("sentence", "word", "label"),
    }  # fmt: skip
    assert data["log_likelihood"]["joint"].dims == ("chain", "draw", "sentence")
    assert [*data["observed_data"].data_vars] == ["labels", "heads"]
    assert data["posterior_predictive"]["heads"].shape == (2, 5, 3, 2, 3)
    assert data["prior_predictive"]["labels"].shape == (1, 3, 3, 3)
    at = draws.formulation((1, 2))
    chosen = {"chain": 1, "draw": 2}
    assert_equal(torch.tensor(data["posterior"]["attention"].isel(chosen).values), at.attention(labels, heads))
    assert_equal(
        torch.tensor(data["log_likelihood"]["joint"].isel(chosen).values),
        at.log_evidence(labels, heads),
        operations=1024,
    )
    verdict, said = results.diagnose(data), results.predict(draws)
    assert {"attention", "label_marginals"}.isdisjoint(check.where.split("[")[0] for check in verdict.checks)
    assert_equal(
        said.log_evidence,
        torch.tensor(np.log(np.exp(data["log_likelihood"]["joint"].values).mean((0, 1)))),
        operations=1024,
    )
    assert_equal(
        said.expected_outputs, torch.tensor(data["posterior"]["label_marginals"].mean(("chain", "draw")).values)
    )
    with pytest.warns(UserWarning, match="gradient MAP"):
        fit = inference.adapt(posterior, labels, heads, num_steps=1, progress=False)
    guide = inference.variational(posterior, labels, heads, num_steps=2, **QUIET)
    gap = results.gap(guide, num_samples=3, seed=0)
    pseudo = kind == "pseudo"
    for text in (repr(posterior), repr(fit), repr(draws), repr(guide), repr(said), repr(gap), str(verdict)):
        assert ("pseudo-posterior" in text) == pseudo, text
    assert (data.attrs.get("evidence_kind") == "pseudo-posterior") == pseudo
    with pytest.raises(ValueError, match=r"a LabelledCRF answers no questions; take likelihood='joint'"):
        results.to_inference_data(draws, likelihood="answers")
    converted = results.to_inference_data(fit, labels, heads)["point_estimate"]
    assert converted["log_evidence"].dims == ("sentence",) and converted["attention"].dims[0] == "sentence"


def test_gibbs_refuses_and_names_what_draws():
    posterior, labels, _ = posterior_of("exact")
    with pytest.raises(
        NotImplementedError,
        match=r"LabelledCRF has no conditional; .*inference\.nuts.*inference\.variational.*inference\.adapt",
    ) as error:
        inference.gibbs(posterior, labels, **QUIET)
    assert "\n" not in str(error.value)
    alone = inference.gibbs(posterior.formulation, labels, observed=labels < 0, num_chains=2, num_warmup=1, **QUIET)
    assert alone.samples["head"].shape == (2, 5, 3, 2, 3)
    dims = results.to_inference_data(alone)["posterior"]["attention"].dims
    assert dims == ("chain", "draw", "sentence", "channel", "word", "slot")


@pytest.mark.slow
@KINDS
def test_sentences_without_labels_are_predicted(kind):
    """Of which nothing is known: they count nothing, and their labels are averaged over the posterior of the potentials."""
    posterior, labels, _ = posterior_of(kind)
    observed = torch.tensor([True, True, False]).unsqueeze(-1).expand(-1, 3)
    draws = NUTS(posterior, labels, None, observed)
    said = results.predict(draws)
    each = [draws.formulation((i, j)).marginals(labels, None, observed).labels for i in range(2) for j in range(5)]
    assert_equal(said.expected_outputs, torch.stack(each).mean(0))
    assert results.to_inference_data(draws)["log_likelihood"]["labels"].dims == ("chain", "draw", "observation")
    again = results.predict(draws, labels, None, torch.zeros(3, 3) > 0)
    assert 0 < float(again.expected_outputs[0, 0, 0]) < 1


@pytest.mark.parametrize(("kind", "batch_size"), [
    ("pseudo", 2), *(pytest.param(*x, marks=pytest.mark.slow) for x in (("exact", 2), ("exact", None), ("pseudo", None))),
])  # fmt: skip
def test_calibration_ranks_potentials(kind, batch_size):
    posterior, labels, heads = posterior_of(kind)
    sampler = functools.partial(inference.nuts, num_chains=1, num_samples=3, num_warmup=1, max_tree_depth=2, start="prior", progress=False)  # fmt: skip
    options = {"num_simulations": 2, "num_draws": 3, "seed": 0, "progress": False, "batch_size": batch_size}
    found = results.calibrate(posterior, labels, heads, sampler=sampler, **options)
    assert found.ranks.keys() == {*posterior.priors, "log_likelihood"} and found.ranks["ternary"].shape[0] == 2
    assert ("on a pseudo-posterior" in str(found)) == (kind == "pseudo")


def small(sentences):
    """Eight potentials: one channel, two groups, two labels; sentences of three words, which know little by themselves."""
    crf = crf_problem(generator(5), batch=(sentences,), words=3, labels=2, channels=1, scale=0.5)
    return crf.replace(ternary=torch.zeros_like(crf.ternary))


@pytest.mark.slow
def test_nuts_agrees_with_importance_sampling_from_the_prior():
    """Means and standard deviations of all eight potentials within four Monte Carlo errors of both."""
    crf = small(8)
    truth = crf.replace(ternary=1.5 * torch.randn(crf.ternary.shape, generator=generator(6)))
    torch.manual_seed(0)
    labels = pyro.poutine.trace(models.bayesian(truth, likelihood="exact")).get_trace(None).nodes["labels"]["value"]
    observed = (torch.arange(8) < 5).unsqueeze(-1) | (torch.arange(3) != 1)  # the word in the middle is unknown in some
    posterior = models.bayesian(crf, ternary=PRIOR, likelihood="exact")
    options = {"num_samples": 75, "num_chains": 64, "num_warmup": 100, "seed": 0, "progress": False}
    draws = inference.nuts(posterior, labels, None, observed, **options)
    x = draws.samples["ternary"].flatten(2)
    prior = torch.randn(100_000, *crf.ternary.shape, generator=generator(8))
    with torch.no_grad():
        evidence = (
            posterior.formulation.with_parameters({"ternary": prior}).log_evidence(labels, None, observed).sum(-1)
        )
    weights, points = evidence.softmax(0).unsqueeze(-1), prior.flatten(1)
    assert 1 / float(weights.square().sum()) > 10_000  # else it would be no truth
    mean = (weights * points).sum(0)
    off = points - mean
    variance = (weights * off.square()).sum(0)
    mean_error = (weights * off).square().sum(0).sqrt()
    sd_error = (weights * (off.square() - variance)).square().sum(0).sqrt() / (2 * variance.sqrt())
    for i in range(8):
        chains = x[..., i].numpy()
        for found, expected, error, method in (
            (chains.mean(), mean[i], mean_error[i], "mean"), (chains.std(), variance[i].sqrt(), sd_error[i], "sd"),
        ):  # fmt: skip
            bound = 4 * (float(arviz.mcse(chains, method=method)) ** 2 + float(error) ** 2) ** 0.5
            assert abs(found - float(expected)) < bound, (i, method)
    assert (mean.abs() > 4 * mean_error).sum() > 4  # the data have something to say


@pytest.mark.slow
def test_nuts_with_the_exact_likelihood_is_calibrated():
    """200 simulations inside the band of 99 %; labels known in part and some heads, holes and a root."""
    crf, labels, heads = labelled_sentences(
        batch=(4,), words=3, channels=1, distances=(), nodes=0, split=False, node_channels=None
    )
    observed = (torch.arange(4) < 2).unsqueeze(-1) | (torch.arange(3) != 1)
    posterior = models.bayesian(crf, ternary=PRIOR, root_ternary=PRIOR, likelihood="exact")
    sampler = functools.partial(
        inference.nuts, num_chains=1, num_samples=57, num_warmup=100, start="prior", progress=False
    )
    options = {"num_simulations": 200, "num_draws": 19, "batch_size": 200, "seed": 0, "progress": False}
    found = results.calibrate(posterior, labels, heads, observed, sampler=sampler, **options)
    assert found.ok(), str(found)


@pytest.mark.slow
def test_a_hierarchy_of_potentials_is_drawn_by_the_program():
    crf, labels, _ = labelled_sentences(batch=(3,), words=3)

    def prior():
        return Normal(0.0, pyro.sample("scale", LogNormal(0.0, 0.5)))

    draws = NUTS(models.bayesian(crf, ternary=prior, likelihood="exact"), labels)
    assert draws.samples.keys() == {"scale", "ternary"} and draws.record["evaluation"].startswith("program")
    guide = inference.variational(models.bayesian(crf, ternary=PRIOR, likelihood="pseudo"), labels, guide="laplace", num_steps=300, **QUIET)  # fmt: skip
    assert torch.isfinite(guide.draws.statistics["lp"]).all()
