"""Guides that learn: the E-step by a free matrix, networks for queries and for sets, and modules as guides."""

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Dirichlet, Gamma, LogNormal, Normal
from pyro.infer import Predictive
from strategies import generator, keys_problem, problem
from tolerances import assert_equal

from probtx_pyro import inference, models, results
from probtx_pyro.inference import Approximation, AttentionGuide, ParameterGuide


def fit(posterior, *data, guide, steps=2, rate=0.05, samples=2, **options):
    return inference.variational(
        posterior, *data, guide=guide, num_steps=steps, learning_rate=rate, num_samples=samples, seed=0, **options
    )


def mild(queries=8):
    """A mixture whose units overlap, so that no attention weight is so small that its logit would never settle."""
    mixture, asked, *_ = problem(generator(5), queries=queries, precision="shared")
    mixture = mixture.replace(key_precision=torch.tensor(0.3))
    return mixture, models.bayesian(mixture, collapsed=False), asked


def network(features, out, seed=0, hidden=8):
    torch.manual_seed(seed)
    layers = torch.nn.Linear(features, hidden), torch.nn.SiLU(), torch.nn.Linear(hidden, out)
    return torch.nn.Sequential(*layers)


# -- from a query to its unit --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_free_matrix_reaches_the_e_step():
    """Adam's last steps are rate / 100 = 2e-3 = e long, and a logit may swing about the optimum by that much. The divergence is
    then at most e²/2 (half the variance of errors that lie within ±e), a weight A is off by at most 2 e A (1 - A) <= e/2."""
    mixture, posterior, queries = mild()
    found = fit(posterior, queries, guide=AttentionGuide(posterior, torch.zeros(8, 4)), steps=300, rate=0.2)
    exact = mixture.attention(queries)
    assert exact.min() > 1e-3  # logits of smaller weights settle more slowly than the rate falls
    assert (found.guide.attention(queries) - exact).abs().max() < 1e-3
    gap = results.gap(found, seed=0).assignments
    assert gap.max() < 2e-6 and (exact - 0.25).abs().max() > 0.1
    evidence = mixture.log_evidence(queries).sum()
    assert_equal(-found.losses[-1] - evidence.double(), -gap.double().sum(), evidence, torch.tensor(1e9))


def test_the_gap_of_a_network_shrinks_with_training_and_is_never_negative():
    mixture, posterior, queries = mild(60)
    train, held_out = queries[:40], queries[40:]
    early = fit(posterior, train, guide=AttentionGuide(posterior, network(3, 4)), steps=2)
    late = fit(posterior, train, guide=early.guide, steps=30)
    for data in (train, held_out):
        before, after = (
            results.gap(one.applied(data, num_samples=2, seed=0), seed=0).assignments for one in (early, late)
        )
        for gap in (before, after):
            assert (gap >= -64 * torch.finfo(gap.dtype).eps * mixture.log_evidence(data).abs()).all()
        assert after.mean() < 0.2 * before.mean()


def test_masked_units_get_no_attention_and_encoders_see_the_answers():
    mixture, *data = problem(generator(6), queries=6, masked=True)
    posterior = models.bayesian(mixture, collapsed=False)
    guide = AttentionGuide(
        posterior, lambda queries, outputs, observed: queries[:, :1] * outputs[:, :1] * torch.ones(4)
    )
    allowed = mixture.log_prior > -torch.inf
    found = fit(posterior, *data, guide=guide)
    assert torch.equal(found.guide.attention(*data) > 0, allowed.expand(6, 4)) and not allowed.all()
    assert torch.isfinite(found.losses).all()


def test_draws_of_assignments_follow_the_attention():
    mixture, posterior, queries = mild(3)
    found = fit(posterior, queries, guide=AttentionGuide(posterior, mixture.log_joint), samples=300)
    drawn = found.draws.samples["unit"]
    assert drawn.shape == (1, 300, 3)
    frequency, exact = torch.nn.functional.one_hot(drawn[0], 4).double().mean(0), mixture.attention(queries).double()
    assert ((frequency - exact).abs() < 5 * (exact * (1 - exact) / 300).sqrt() + 1 / 300).all()
    with pytest.raises(ValueError, match="draws are of the assignments alone"):
        results.to_inference_data(found)


# -- from a set of queries to parameters ---------------------------------------------------------------------------------------


def one_unit(count=4):
    """Problems whose posterior is normal, with a mean that is linear in the mean query."""
    mixture = models.GaussianMixture(torch.zeros(1, 2), key_precision=1.5)
    posterior = models.bayesian(mixture, keys=Normal(torch.zeros(1, 2), 1.0))
    many = posterior.copies(count, torch.zeros(5, 2))
    torch.manual_seed(1)
    return posterior, many, Predictive(many, num_samples=1)(None, num_queries=5)["queries"][0]


def normal_of(guide, *data):
    """The normal that a guide draws the keys from."""
    found = poutine.trace(guide).get_trace(*data).nodes["keys"]["fn"]
    while not isinstance(found, Normal):
        found = found.base_dist
    return found


def test_a_guide_of_sets_knows_no_order_and_no_absent_queries():
    posterior, _, queries = one_unit()
    guide = ParameterGuide(posterior, queries[0], encoder=network(2, 6))
    torch.nn.init.normal_(guide.head[-1].weight)
    whole = normal_of(guide, queries[0])
    for same in ((queries[0].flip(0),), (torch.cat([queries[0], queries[1]]), None, None, torch.arange(10) < 5)):
        found = normal_of(guide, *same[:3], *(x.to(queries) for x in same[3:]))
        assert_equal(found.mean, whole.mean, torch.tensor(10.0))
        assert_equal(found.stddev, whole.stddev, torch.tensor(10.0))
    fewer, together = normal_of(guide, queries[0, :3]), normal_of(guide, queries)
    assert fewer.mean.shape == (1, 2) and not torch.equal(fewer.mean, whole.mean)
    assert together.mean.shape == (4, 1, 2)
    assert_equal(together.mean[0], whole.mean, torch.tensor(10.0))


def test_a_guide_of_sets_begins_at_the_formulation():
    mixture, queries, *_ = problem(generator(7), queries=6, masked=True)
    priors = dict(keys=Normal(0.0, 1.0), key_precision=Gamma(3.0, 2.0), weights=Dirichlet(torch.full((1, 4), 2.0)))
    posterior = models.bayesian(mixture, **priors)
    guide = ParameterGuide(posterior, queries, encoder=network(3, 6))
    found = fit(posterior.copies(2, queries), queries.expand(2, -1, -1), guide=guide, steps=1, rate=1e-9, samples=40)
    assert torch.isfinite(found.draws.statistics["lp"]).all()
    assert results.to_inference_data(found)["posterior"]["keys"].dims == ("chain", "draw", "batch", "unit", "feature")
    for name, x in found.median.items():
        present = mixture.parameters()[name]
        if name == "weights":  # stick-breaking: medians of products are near, not at, products of medians
            assert ((x > 0) == (present > 0)).all() and (x - present).abs().max() < 0.1
        else:  # monotone coordinates keep the median, whose standard error is 1.25 * 0.1 / sqrt(40)
            scale = present if name == "key_precision" else 1.0
            assert ((x - present).abs() / scale).max() < 5 * 0.0198, name


@pytest.mark.slow
def test_a_guide_of_sets_learns_from_problems_drawn_from_the_prior():
    posterior, many, queries = one_unit(100)
    held_out = one_unit(200)[2][100:]
    guide = ParameterGuide(posterior, queries[0], encoder=torch.nn.Linear(2, 6, dtype=torch.float64))
    early = fit(many, queries, guide=guide, steps=1, rate=1e-6)
    late = fit(many, queries, guide=early.guide, steps=400, rate=0.02)
    before, after = (
        results.gap(one.applied(held_out, num_samples=2, seed=0), num_samples=200, seed=0) for one in (early, late)
    )
    assert before.parameters.mean() > 1.0 and after.parameters.mean() < 0.05
    other = late.applied(held_out[0], posterior=posterior, num_samples=7, seed=0)
    assert other.draws.samples["keys"].shape == (1, 7, 1, 2)
    assert results.gap(other, num_samples=200, seed=0).parameters < 0.3


def test_copies_are_problems_of_their_own():
    mixture, queries, *_ = problem(generator(8), queries=6)
    mixture = mixture.replace(value_precision=0.0)  # answers are no site then
    posterior = models.bayesian(mixture, keys=Normal(0.0, 1.0), key_precision=Gamma(3.0, 2.0))
    many, data = posterior.copies(3, queries), queries + torch.randn(3, 1, 1, generator=generator(9))
    keys = torch.randn(3, 4, 3, generator=generator(10))
    precision = keys.square().sum(-1) + 0.1

    def density(program, keys, precision, queries):
        values = {"keys": keys, "key_precision": precision}
        return poutine.trace(poutine.condition(program, values)).get_trace(queries).log_prob_sum()

    singles = [density(posterior, keys[i], precision[i], data[i]) for i in range(3)]
    assert_equal(density(many, keys, precision, data), torch.stack(singles).sum(), torch.stack(singles).abs().sum())


# -- modules and functions as guides -------------------------------------------------------------------------------------------


def test_a_module_is_copied_and_a_seed_fixes_its_training():
    _, posterior, queries = mild()
    guide = AttentionGuide(posterior, network(3, 4))
    before = {name: x.clone() for name, x in guide.state_dict().items()}
    one, same = (fit(posterior, queries, guide=guide) for _ in range(2))
    assert all(torch.equal(x, before[name]) for name, x in guide.state_dict().items())
    assert torch.equal(one.losses, same.losses) and torch.equal(one.draws.samples["unit"], same.draws.samples["unit"])
    assert not torch.equal(one.state["encoder.0.weight"], before["encoder.0.weight"])
    assert not list(pyro.get_param_store().keys()) and not one.guide.training


def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path, monkeypatch):
    posterior, many, queries = one_unit()
    monkeypatch.setattr("probtx_pyro.inference._variational.SAVED_EVERY", -1.0)

    class Killed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls, self.last = torch.nn.Linear(2, 3, dtype=queries.dtype), 0, 6

        def forward(self, x):
            self.calls += 1
            if self.calls == self.last:
                raise KeyboardInterrupt
            return self.layer(x)

    torch.manual_seed(0)
    guide = ParameterGuide(posterior, queries[0], encoder=Killed())
    with pytest.raises(KeyboardInterrupt):
        fit(many, queries, guide=guide, steps=6, checkpoint=tmp_path / "run")
    guide.encoder.last = None
    resumed = fit(many, queries, guide=guide, steps=6, checkpoint=tmp_path / "run")
    whole = fit(many, queries, guide=guide, steps=6)
    assert torch.equal(resumed.losses, whole.losses)
    assert resumed.guide.encoder.calls < whole.guide.encoder.calls
    assert torch.equal(resumed.draws.samples["keys"], whole.draws.samples["keys"])
    with pytest.raises(ValueError, match="of another run"):
        fit(many, queries, guide=guide, steps=7, checkpoint=tmp_path / "run")


def test_a_module_is_saved_and_loaded(tmp_path):
    _, posterior, queries = mild()
    found = fit(posterior, queries, guide=AttentionGuide(posterior, network(3, 4)))
    found.save(tmp_path / "fit")
    with pytest.raises(ValueError, match=r"a guide of your own \(AttentionGuide\); give it again"):
        Approximation.load(tmp_path / "fit", posterior, queries)
    other = AttentionGuide(posterior, network(3, 4, seed=1))
    again = Approximation.load(tmp_path / "fit", posterior, queries, guide=other)
    assert torch.equal(again.guide.attention(queries), found.guide.attention(queries))
    assert not torch.equal(other.attention(queries), found.guide.attention(queries))


def test_a_function_goes_on_where_its_fit_ended():
    posterior, _, queries = one_unit()

    def guide(*_):
        with pyro.plate("units", 1):
            pyro.sample("keys", Normal(pyro.param("center", torch.zeros(1, 2)), 0.3).to_event(1))

    first = fit(posterior, queries[0], guide=guide, steps=40)
    second = fit(posterior, queries[0], guide=first.guide, steps=1, rate=1e-9)
    # one step of Adam moves a number by about its rate, 1e-9
    assert (second.state["center"] - first.state["center"]).abs().max() < 1e-8 < first.state["center"].abs().max()


def test_what_cannot_guide_is_refused():
    mixture, posterior, queries = mild()
    layers = network(3, 4)
    with pytest.raises(ValueError, match="a collapsed program has no assignments"):
        AttentionGuide(models.bayesian(mixture), layers)
    with pytest.raises(ValueError, match="logits must be floating point"):
        AttentionGuide(posterior, torch.zeros(8, 4, dtype=torch.long))
    with pytest.raises(ValueError, match="encoder must be a module, a function or a tensor, not str"):
        AttentionGuide(posterior, "linear")
    with pytest.raises(ValueError, match=r"shape \(8, 3\) but must end in \(8, 4\)"):
        fit(posterior, queries, guide=AttentionGuide(posterior, network(3, 3)))
    free = fit(posterior, queries, guide=AttentionGuide(posterior, torch.zeros(8, 4)))
    with pytest.raises(ValueError, match="a free matrix belongs to its own queries"):
        free.applied(queries[:5], seed=0)
    with pytest.raises(ValueError, match=r"encoder is torch.float32 .* encoder.to\(torch.float64\)"):
        fit(posterior, queries, guide=AttentionGuide(posterior, network(3, 4).float()))
    with pytest.raises(ValueError, match="guide has no site 'unit'; there is nothing else to draw"):
        fit(posterior, queries, guide=lambda *_: None)
    with pytest.raises(ValueError, match=r"make the guide a torch\.nn\.Module"):
        fit(
            posterior,
            queries,
            guide=lambda *data: (pyro.module("net", layers), AttentionGuide(posterior, layers)(*data)),
        )
    many = models.bayesian(mixture, keys=Normal(mixture.keys, 1.0))
    with pytest.raises(ValueError, match="an AutoNormal does not read the data"):
        fit(many, queries, guide="normal").applied(queries, seed=0)
    with pytest.raises(ValueError, match="has no continuous latent site"):
        fit(posterior, queries, guide="normal")


def test_what_no_set_can_guide_is_refused():
    mixture, posterior, queries = mild()
    encoder = network(3, 4)
    with pytest.raises(ValueError, match="posterior has no priors"):
        ParameterGuide(posterior, queries, encoder=encoder)
    known = models.bayesian(mixture, keys=Normal(mixture.keys, 1.0))
    with pytest.raises(ValueError, match=r"of one problem, not of \(2,\); train the guide on posterior.copies"):
        ParameterGuide(known.copies(2, queries), queries.expand(2, -1, -1), encoder=encoder)
    rows = models.bayesian(
        mixture.replace(log_prior=mixture.log_prior.expand(8, 4)), weights=Dirichlet(torch.ones(8, 4))
    )
    with pytest.raises(ValueError, match="weights have a row for each query"):
        ParameterGuide(rows, queries, encoder=encoder)
    with pytest.raises(ValueError, match="for 8 queries; return"):
        ParameterGuide(known, queries, encoder=lambda x: x.mean(-2, keepdim=True))
    own = models.bayesian(mixture, keys=lambda: Normal(0.0, pyro.sample("spread", LogNormal(0.0, 1.0))))
    with pytest.raises(NotImplementedError, match="there is no amortised guide"):
        ParameterGuide(own, queries, encoder=encoder)


def test_other_formulations_are_guided_too():
    mixture, queries = keys_problem(generator(11))[:2]
    posterior = models.bayesian(mixture, collapsed=False)
    found = fit(posterior, queries, guide=AttentionGuide(posterior, lambda x: mixture.attention(x).log()))
    evidence = mixture.log_evidence(queries)
    assert_equal(results.gap(found, seed=0).assignments, torch.zeros_like(evidence), evidence)
