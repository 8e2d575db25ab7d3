"""`results.predict` for every formulation, verb and kind of data, against loops over the draws; and what it refuses."""

import math

import numpy as np
import pyro
import pytest
import torch
from draws_by_hand import DTYPE, bayesian, data, make, normal, samples
from formulations import ROWS, priors_of
from pyro.distributions import Dirichlet, Gamma, LogNormal, Normal
from scipy import stats
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import inference, models, results

DENSITIES = {name: row for name, row in ROWS.items() if row.density}
NAMES = ("attention", "log_evidence", "expected_outputs")


def looped(draws, queries, outputs=None, observed=None, known=None, index=()):
    """The averages of one problem, draw by draw and query by query; ``known`` queries weigh all draws alike."""
    formulation, found = draws.program.formulation, []
    for chain in range(draws.num_chains):
        for draw in range(draws.num_draws):
            at = formulation.with_parameters(
                {
                    name: x[chain, draw]
                    if x[chain, draw].dim() <= len(formulation.axes(name))
                    else x[(chain, draw, *index)]
                    for name, x in draws.samples.items()
                }
            )
            given = tuple(x for x in (outputs, observed) if x is not None)
            answers = at.expected_outputs(queries) if offers_answers(at) else None
            evidence = at.log_evidence(queries, *given)
            alone = at.log_evidence(queries) if at.explains((queries,)) else torch.zeros_like(evidence)
            found.append((at.attention(queries, *given), evidence, alone, answers))
    attention, evidence, alone, answers = (None if x[0] is None else torch.stack(x) for x in zip(*found, strict=True))
    rows = []
    for i in range(len(queries)):
        seen = known is not None and bool(known[i])
        weights, asked = ((0 * x[:, i] if seen else x[:, i]).softmax(0) for x in (evidence, alone))
        total = math.log(np.exp((evidence[:, i] - evidence[:, i].max()).numpy()).mean()) + float(evidence[:, i].max())
        rows.append(
            (
                weights @ attention[:, i],
                torch.tensor(total, dtype=DTYPE),
                None if answers is None else asked @ answers[:, i],
            )
        )
    attention, evidence, answers = zip(*rows, strict=True)
    return {"attention": torch.stack(attention), "log_evidence": torch.stack(evidence)} | (
        {} if answers[0] is None else {"expected_outputs": torch.stack(answers)}
    )


def offers_answers(formulation):
    try:
        _ = not isinstance(formulation, models.Mixture) or formulation.unit_answers()
    except ValueError:
        return False
    return True


def check(said, expected, index=()):
    for name, x in expected.items():
        found = getattr(said, name)[index]
        assert_equal(found, x.to(found), operations=4096)  # sums over the draws of numbers that are sums themselves


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("held", [2**22, pytest.param(150, marks=pytest.mark.slow), 1])
def test_averages_are_those_of_a_loop_in_blocks_of_any_size(batch, held, monkeypatch):
    monkeypatch.setattr("probtx_pyro.results._predict.HELD", held)
    monkeypatch.setattr("probtx_pyro.results._evaluation.CHUNK", 4 * held)
    queries, outputs, observed, weights = data(batch)
    draws = make(bayesian(batch), samples(batch, chains=2, draws=6), (queries, outputs, observed, weights))
    own = results.predict(draws, relabel=False)
    new = results.predict(draws, queries, outputs, observed, relabel=False)
    shared = results.predict(draws, queries[:1] if batch else queries, relabel=False)  # one problem's for all
    for index in np.ndindex(*batch):
        problem = (queries[index], outputs[index], observed[index])
        check(own, looped(draws, *problem, known=weights[index] > 0, index=index), index)
        check(new, looped(draws, *problem, index=index), index)
        check(shared, looped(draws, queries[0] if batch else queries, index=index), index)
    for name in NAMES:  # while the blocks are small
        own.band(name), own.error(name)
    monkeypatch.setattr("probtx_pyro.results._predict.HELD", 2**22)
    whole = results.predict(draws, relabel=False)
    for name in NAMES:
        band = own.band(name)
        assert band.shape == (2, *getattr(own, name).shape) and (band[0] <= band[1]).all()
        assert_equal(band, whole.band(name), operations=4096)
        assert_equal(own.error(name), whole.error(name), operations=4096)


def test_no_more_is_held_than_said(monkeypatch):
    """The numbers that closed forms return at once, over draws, problems, queries and units."""
    largest, kept = [0], models.GaussianMixture.attention

    def attention(self, *given):
        found = kept(self, *given)
        largest[0] = max(largest[0], found.numel())
        return found

    monkeypatch.setattr(models.GaussianMixture, "attention", attention)
    monkeypatch.setattr("probtx_pyro.results._predict.HELD", 24 * 3 * 4)  # four queries of three units at 24 draws
    draws = make(bayesian(), samples(chains=2, draws=12), data())
    said = results.predict(draws, normal(3, 50, 2), relabel=False)
    said.attention  # noqa: B018
    assert largest[0] == 50 * 3  # one draw of fifty queries
    said.band("attention")
    assert largest[0] == 24 * 3 * 4


@pytest.mark.parametrize("row", [pytest.param(row, id=name, marks=() if row.often and not name.startswith("gaussian keys, ") else pytest.mark.slow)
                                 for name, row in DENSITIES.items()])  # fmt: skip
def test_every_formulation_is_averaged(row):
    formulation, *given = row.draw(generator(41))
    given = given[: max(row.parts)]
    posterior = models.bayesian(formulation, **priors_of(formulation))
    options = {"num_samples": 9, "num_warmup": 2, "num_chains": 2, "seed": 0, "progress": False}
    if row.conjugate:
        draws = inference.gibbs(posterior, *given, **options)
    else:
        draws = inference.nuts(posterior, *given, **options, max_tree_depth=2, start="formulation")
    queries = given[0] + 0.1
    asked = (queries, *given[1 : row.least])  # a density that is conditional on its queries needs their answers
    check(results.predict(draws, *asked, relabel=False), looped(draws, *asked))
    padded = (*given, *[None] * (3 - len(given)))
    known = torch.ones(len(queries), dtype=torch.bool)
    check(results.predict(draws, relabel=False), looped(draws, *padded, known=known))
    if getattr(formulation, "answer_density", row.least > 1):
        answers = results.predict(draws, queries).output_distribution
        assert answers.batch_shape == (len(queries),)
        assert torch.isfinite(answers.log_prob(answers.sample((3,)))).all()


@pytest.mark.parametrize("name", ROWS)
def test_a_formulation_is_a_posterior_of_one_point(name):
    row = ROWS[name]
    formulation, *given = row.draw(generator(42))
    given = given[: row.least if row.density else min(row.parts)]
    said = results.predict(formulation, *given)
    assert_equal(said.attention, formulation.attention(*given))
    assert_equal(said.expected_outputs, formulation.expected_outputs(*given[:1]))
    assert (said.error("attention") == 0).all() and (said.band("attention") == said.attention).all()
    if row.density:
        assert_equal(said.log_evidence, formulation.log_evidence(*given))
    else:
        with pytest.raises(NotImplementedError, match="has no log_evidence; "):
            said.log_evidence  # noqa: B018
    if not getattr(formulation, "answer_density", row.density and row.least > 1):
        with pytest.raises((NotImplementedError, ValueError), match="output_distribution"):
            said.output_distribution  # noqa: B018


def fitted():
    queries = torch.cat([normal(1, 15, 2) - 2, normal(2, 15, 2) + 2])
    outputs = queries[:, :1].sign()
    mixture = models.GaussianMixture(
        torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=DTYPE), torch.zeros(2, 1, dtype=DTYPE), 1.0, 4.0
    )
    scale = torch.tensor(2.0, dtype=DTYPE)
    return (
        models.bayesian(mixture, keys=Normal(mixture.keys, scale), values=Normal(mixture.values, scale)),
        queries,
        outputs,
    )


def test_what_adapt_and_variational_return_is_taken():
    posterior, *given = fitted()
    new = normal(5, 4, 2)
    fit = inference.adapt(posterior, *given, num_steps=20)
    said = results.predict(fit, new)
    for name in NAMES:
        assert_equal(getattr(said, name), getattr(fit.formulation, name)(new))
    answers = torch.zeros(4, 1, dtype=DTYPE)
    assert_equal(said.output_distribution.log_prob(answers), fit.formulation.output_distribution(new).log_prob(answers))
    guide = inference.variational(posterior, *given, num_steps=20, num_samples=50, seed=0)
    assert_equal(results.predict(guide, new).attention, results.predict(guide.draws, new).attention)
    assert "1 chains of 50 draws of a GaussianMixture, for new queries (4, 2)" in repr(results.predict(guide, new))
    assert "one point" in repr(said) and "the data's own queries (30, 2), outputs (30, 1)" in repr(
        results.predict(guide)
    )


def test_a_hierarchy_is_averaged():
    posterior, queries, _ = fitted()

    def keys():
        return Normal(
            torch.zeros(2, 2, dtype=DTYPE), pyro.sample("spread", LogNormal(torch.tensor(0.5, dtype=DTYPE), 0.3))
        )

    program = models.bayesian(posterior.formulation, keys=keys)
    draws = inference.nuts(program, queries, num_samples=4, num_warmup=4, num_chains=2, seed=0)
    check(results.predict(draws, queries[:3], relabel=False), looped(draws._replace(samples={"keys": draws.samples["keys"]}), queries[:3]))  # fmt: skip


# -- labels -----------------------------------------------------------------------------------------------------------------


def test_only_attention_depends_on_labels_and_it_is_relabelled():
    given = samples(chains=2, draws=40)
    order = torch.rand(2, 40, 3, generator=generator(1)).argsort(-1)

    def switched(x):
        places = order.unsqueeze(2).expand_as(x) if x.shape[2] == 1 else order.unsqueeze(-1).expand_as(x)
        return x.gather(3 if x.shape[2] == 1 else 2, places)

    queries = data()[0]
    straight = results.predict(make(bayesian(), given, (queries,)), queries, relabel=False)
    mixed = make(bayesian(), {name: switched(x) for name, x in given.items()}, (queries,))
    said, raw = results.predict(mixed, queries), results.predict(mixed, queries, relabel=False)
    for name in ("log_evidence", "expected_outputs"):
        assert_equal(getattr(said, name), getattr(straight, name), operations=4096)
        assert_equal(getattr(raw, name), getattr(straight, name), operations=4096)
    columns = [sorted(x.attention.T.tolist()) for x in (said, straight)]
    assert_equal(torch.tensor(columns[0], dtype=DTYPE), torch.tensor(columns[1], dtype=DTYPE), operations=4096)
    assert (raw.attention - 1 / 3).abs().max() < 0.25 < (straight.attention - 1 / 3).abs().max()


# -- the distribution of answers --------------------------------------------------------------------------------------------


def scalar_case():
    """Weighted draws of a mixture with answers of one coordinate."""
    queries = torch.tensor([[0.5, 0.2], [4.0, 0.5]], dtype=DTYPE)
    return make(bayesian(), samples(chains=2, draws=8), data()[:1]), queries


def test_log_prob_is_the_logarithm_of_the_weighted_densities():
    draws, queries = scalar_case()
    said, answers = results.predict(draws, queries, relabel=False), normal(6, 5, 2, 1)
    evidence, density = [], []
    for chain, draw in np.ndindex(2, 8):
        at = draws.program.formulation.with_parameters({name: x[chain, draw] for name, x in draws.samples.items()})
        evidence.append(at.log_evidence(queries))
        density.append(at.output_distribution(queries).log_prob(answers).exp())
    weights = torch.stack(evidence).softmax(0)
    expected = (weights.unsqueeze(1) * torch.stack(density)).sum(0).log()
    assert_equal(said.output_distribution.log_prob(answers), expected, operations=256)
    assert_equal(said.output_distribution.log_prob(answers[0]), expected[0], operations=256)
    assert said.output_distribution.log_prob(answers[0, 0]).shape == (2,)


def test_samples_have_the_distribution_of_log_prob():
    """Kolmogorov's test against the integral of the density over a grid, for weights that are and are not concentrated."""
    draws, queries = scalar_case()
    distribution = results.predict(draws, torch.cat([queries, queries[1:] + 4])).output_distribution
    grid = torch.linspace(-6, 14, 4001, dtype=DTYPE)
    cumulative = distribution.log_prob(grid[:, None, None].expand(-1, 3, 1)).exp().cumsum(0) * (grid[1] - grid[0])
    assert (cumulative[-1] - 1).abs().max() < 1e-6  # smooth, and 0 at the ends
    torch.manual_seed(0)
    drawn = distribution.sample((3000,))
    assert drawn.shape == (3000, 3, 1)
    for i in range(3):
        found = stats.kstest(
            drawn[:, i, 0].numpy(), lambda x, i=i: np.interp(x, grid.numpy(), cumulative[:, i].numpy())
        )
        assert found.pvalue > 1e-5, i
    shifted = [float(x) for x in (drawn[:-1, 0, 0] - drawn[:, 0, 0].mean()) * (drawn[1:, 0, 0] - drawn[:, 0, 0].mean())]
    assert abs(np.mean(shifted)) < 5 * np.std(shifted) / 3000**0.5  # one answer says nothing of the next


def test_samples_do_not_depend_on_the_blocks(monkeypatch):
    draws, queries = scalar_case()
    torch.manual_seed(1)
    whole = results.predict(draws, queries).output_distribution.sample((400,))
    monkeypatch.setattr("probtx_pyro.results._predict.HELD", 30)
    parts = results.predict(draws, queries).output_distribution.sample((400,))
    for i in range(2):
        assert stats.ks_2samp(whole[:, i, 0].numpy(), parts[:, i, 0].numpy()).pvalue > 1e-5
    distribution = results.predict(draws, queries).output_distribution
    assert distribution.sample((0,)).shape == (0, 2, 1) and distribution.sample((2, 3)).shape == (2, 3, 2, 1)


def test_labels_have_the_expected_probabilities():
    keys = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=DTYPE)
    mixture = models.GaussianMixture.categorical(
        keys, torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.2, 0.7]], dtype=DTYPE), 1.0
    )
    posterior = models.bayesian(
        mixture, keys=Normal(keys, 0.5), answer_probs=Dirichlet(torch.full((3,), 2.0, dtype=DTYPE))
    )
    queries = normal(8, 20, 2)
    labels = (queries[:, 0] > 0).long() * 2
    draws = inference.gibbs(posterior, queries, labels, num_samples=30, num_chains=4, num_warmup=50, seed=0)
    said = results.predict(draws, normal(9, 4, 2))
    probabilities = torch.stack([said.output_distribution.log_prob(torch.full((4,), k)).exp() for k in range(3)], -1)
    assert_equal(probabilities, said.expected_outputs, operations=1024)
    torch.manual_seed(0)
    drawn = said.output_distribution.sample((4000,))
    assert drawn.dtype == torch.long
    for k in range(3):
        share, p = (drawn == k).double().mean(0), said.expected_outputs[:, k]
        assert ((share - p).abs() < 5 * (p * (1 - p) / 4000).sqrt()).all()


def test_it_is_a_pyro_distribution():
    draws, queries = scalar_case()
    distribution = results.predict(draws, queries).output_distribution

    def program(answers=None):
        with pyro.plate("query", 2):
            return pyro.sample("answer", distribution, obs=answers)

    answers = pyro.poutine.trace(program).get_trace().nodes["answer"]["value"]
    trace = pyro.poutine.trace(program).get_trace(answers)
    assert_equal(trace.log_prob_sum(), distribution.log_prob(answers).sum())


# -- what is refused, and what is said ----------------------------------------------------------------------------------------


def test_few_draws_behind_an_average_are_told():
    draws = make(bayesian(), samples(), data()[:1])
    with pytest.warns(
        UserWarning, match=r"averages of 1 of 2 queries rest on fewer than 10 draws, in the worst case on \d"
    ):
        said = results.predict(draws, torch.tensor([[0.1, 0.0], [60.0, -60.0]], dtype=DTYPE))
        assert (said.effective_draws < 600).all() and said.effective_draws[1] < 10 < said.effective_draws[0]
    said.attention  # noqa: B018 - and told once
    results.predict(draws).attention  # noqa: B018 - the data's own have no weights


REFUSED = {
    "prob": (lambda d, q: results.predict(d, q, prob=1.0), "prob must be between 0 and 1, not 1.0"),
    "new weights": (lambda d, q: results.predict(d, q, query_weights=torch.ones(5)), "query_weights say how often.*drop them"),
    "answers alone": (lambda d, q: results.predict(d, outputs=q[:, :1]), "queries: there are other data .* give them, too"),
    "features": (lambda d, q: results.predict(d, q[:, :1]), "queries have 1 features but keys have 2"),
    "an unknown name": (lambda d, q: results.predict(d, query=q), "did you mean 'queries'"),
    "a name of no average": (lambda d, q: results.predict(d, q).band("attentions"), "name must be attention, log_evidence or"),
    "a program of one's own": (lambda d, q: results.predict(d._replace(program=print), q), "not of a program made by models.bayesian"),
    "ArviZ data": (lambda d, q: results.predict(results.to_inference_data(d), q), "ArviZ data and Pyro's own results do not keep"),
    "a point without data": (lambda d, q: results.predict(d.program.formulation), "queries: a GaussianMixture does not keep its data"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_argument(name):
    call, message = REFUSED[name]
    queries = data()[0]
    with pytest.raises(ValueError, match=message) as error:
        call(make(bayesian(), samples(draws=10), (queries,)), queries)
    assert "\n" not in str(error.value)


def test_weights_with_a_row_for_each_query_serve_as_many_new_ones():
    queries = data()[0]
    mixture = bayesian().formulation.replace(log_prior=None)
    posterior = models.bayesian(mixture, weights=Dirichlet(torch.ones(5, 3, dtype=DTYPE)))
    draws = inference.gibbs(posterior, queries, num_samples=12, num_chains=2, seed=0)
    check(results.predict(draws, queries + 0.1, relabel=False), looped(draws, queries + 0.1))
    with pytest.raises(
        ValueError, match=r"weights: the draws have a row for each query of their data, 5, but there are 3 new ones"
    ):
        results.predict(draws, queries[:3])


def test_a_query_of_density_zero_is_refused():
    from poisson import PoissonMixture

    mixture = PoissonMixture(torch.tensor([[1.0, 6.0], [6.0, 1.5]], dtype=DTYPE))
    counts = torch.tensor([[1.0, 7.0], [8.0, 1.0]], dtype=DTYPE)
    draws = inference.gibbs(
        models.bayesian(mixture, rate=Gamma(2.0, 0.5)), counts, num_samples=12, num_chains=2, seed=0
    )
    check(results.predict(draws, counts + 1), looped(draws, counts + 1))
    with pytest.raises(ValueError, match=r"queries: that at \[1\] has density 0 at every draw"):
        results.predict(draws, torch.tensor([[1.0, 2.0], [1e306, 0.0]], dtype=DTYPE)).attention  # noqa: B018
