"""The dependency CRF as a density of labels and heads: both likelihoods against loops, their gradients, and the Pyro program."""

import itertools

import oracles_crf
import pytest
import torch
from pyro import poutine
from pyro.distributions import Normal
from scipy.stats import chisquare
from strategies import crf_lists, crf_problem, crf_with_evidence, generator, known_heads, labelled_sentences
from tolerances import FALSE_ALARM_RATE, assert_equal

from probtx_pyro import models

KINDS = pytest.mark.parametrize("kind", ["exact", "pseudo"])
TERMS = {"operations": 20_000}  # the oracle adds up to so many terms one to the other, each time with rounding


def labelled(crf, kind="exact"):
    return models.bayesian(crf, likelihood=kind).formulation


def check(seeds):
    """Both likelihoods of one sentence; root, nodes, split nodes, masks, low rank, known heads, labels known in part."""
    for seed in seeds:
        crf, given = crf_with_evidence(seed)
        p, g = crf_lists(crf), generator(seed)
        heads = given.get("heads")
        labels = given.get("labels", torch.randint(crf.unary.shape[-1], crf.unary.shape[:1], generator=g))
        observed = given.get("observed")
        lists = [None if x is None else x.tolist() for x in (labels, observed, heads)]
        padded = torch.where(torch.tensor(p["words"]), labels, -1)  # labels of padding are not read
        found = labelled(crf).log_evidence(padded, heads, observed)
        assert found.shape == (1,)
        assert_equal(found[0], torch.tensor(oracles_crf.log_likelihood(p, *lists)), crf.log_partition(), **TERMS)
        truth = oracles_crf.pseudo_log_likelihood(p, lists[0], lists[2])
        assert_equal(
            labelled(crf, "pseudo").log_evidence(padded, heads)[0], torch.tensor(truth), crf.log_partition(), **TERMS
        )


def test_likelihoods_are_sums_over_loops():
    check([12, 25])


@pytest.mark.slow
def test_likelihoods_are_sums_over_loops_on_60_problems():
    check(range(60))


def test_the_oracle_of_summed_heads_is_enumeration():
    crf = crf_problem(generator(0), words=3, labels=2, channels=1, root=2, nodes=2, split=True)
    p, labels = crf_lists(crf), [0, 1, 1]
    heads = known_heads(crf, generator(1)).tolist()
    every = oracles_crf.enumerate_all(p)["log_partition"]
    for known in (None, heads):
        truth = oracles_crf.enumerate_all(p, labels, [True, False, True], known)["log_partition"] - every
        found = oracles_crf.log_likelihood(p, labels, [True, False, True], known)
        assert abs(found - truth) < 1e-9  # sums of some 1000 terms, twice


@KINDS
def test_a_batch_is_its_sentences_and_chains_of_potentials_are_one_batch(kind):
    crf, labels, heads = labelled_sentences()
    f = labelled(crf, kind)
    found = f.log_evidence(labels, heads)
    alone = [
        labelled(crf.replace(unary=crf.unary[i], mask=crf.mask[i]), kind).log_evidence(labels[i], heads[i])
        for i in range(6)
    ]
    assert_equal(found, torch.cat(alone), crf.log_partition(), operations=1024)
    many = {name: torch.randn(3, *x.shape, generator=generator(7)) for name, x in f.parameters().items()}
    wide = f.with_parameters(many)
    for data in ((labels,), (labels, heads)):
        each = [f.with_parameters({name: x[i] for name, x in many.items()}) for i in range(3)]
        assert_equal(wide.log_evidence(*data), torch.stack([x.log_evidence(*data) for x in each]), operations=1024)
        assert_equal(wide.attention(*data), torch.stack([x.attention(*data) for x in each]), operations=1024)
    # data with problems of their own, and potentials that chains have of each: as calibration lays them
    data = torch.stack([labels, (1 - labels).masked_fill(~crf.mask, -1)])
    shared = f.with_parameters({"ternary": many["ternary"].unsqueeze(1)})
    found = shared.log_evidence(data)
    assert found.shape == (3, 2, 6)
    one = f.with_parameters({"ternary": many["ternary"][2]})
    assert_equal(found[2, 1], one.log_evidence(data[1]), operations=1024)


def test_labels_known_in_part_where_problems_differ():
    crf, labels, heads = labelled_sentences()
    f, observed = labelled(crf), torch.rand(2, 6, 4, generator=generator(3)) < 0.5
    found = f.log_evidence(labels.expand(2, -1, -1), heads.expand(2, -1, -1, -1), observed)
    assert_equal(found, torch.stack([f.log_evidence(labels, heads, x) for x in observed]), operations=1024)
    assert_equal(found[0], (crf.log_partition(labels, heads, observed[0]) - crf.log_partition()), operations=1024)


@KINDS
def test_a_sentence_of_which_nothing_is_known_counts_nothing(kind):
    crf, labels, _ = labelled_sentences()
    observed = (torch.arange(6) != 2).unsqueeze(-1).expand(-1, 4)
    f = labelled(crf, kind)
    found = f.log_evidence(labels, None, observed)
    assert_equal(found[2], torch.tensor(0.0), crf.log_partition(), operations=1024)
    assert_equal(found[3:], f.log_evidence(labels)[3:], operations=1024)
    assert f.counted((labels, None, observed)).tolist() == [True, True, False, True, True, True]
    assert_equal(f.expected_outputs(labels, None, observed)[2], crf.marginals().labels[2], operations=1024)


@KINDS
def test_attention_of_all_labels_known_is_exact_at_any_length(kind):
    crf, labels, _ = labelled_sentences()
    assert_equal(labelled(crf, kind).attention(labels), crf.marginals(labels).heads, operations=1024)
    long = crf_problem(generator(0), words=40, labels=5, channels=1)
    given = torch.randint(5, (40,), generator=generator(1))
    assert_equal(labelled(long, "pseudo").attention(given)[0], long.attention(given), operations=1024)


@pytest.mark.parametrize(("kind", "partly"), [("exact", True), ("pseudo", False)])
def test_gradients(kind, partly):
    crf, labels, heads = labelled_sentences(batch=(2,), words=3)
    observed = torch.tensor([[True, False, True], [False, True, True]]) if partly else None
    f, data = labelled(crf, kind), (labels, heads, observed)
    names = list(f.parameters())

    def evidence(*tensors):
        return f.with_parameters(dict(zip(names, tensors, strict=True))).log_evidence(*data)

    tensors = [x.clone().requires_grad_() for x in f.parameters().values()]
    assert torch.autograd.gradcheck(evidence, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(evidence, tensors, fast_mode=True)  # as Laplace's approximation needs them


def test_padding_may_hold_anything_and_moves_nothing():
    crf, labels, heads = labelled_sentences()
    broken = crf.replace(unary=crf.unary.masked_fill(~crf.mask.unsqueeze(-1), torch.nan))
    for kind in ("exact", "pseudo"):
        f, clean = labelled(broken, kind), labelled(crf, kind)
        ternary = f.ternary.clone().requires_grad_()
        found = f.with_parameters({"ternary": ternary}).log_evidence(labels, heads)
        assert_equal(found, clean.log_evidence(labels, heads))
        assert torch.isfinite(torch.autograd.grad(found.sum(), ternary)[0]).all()


@KINDS
def test_the_program_has_the_log_likelihood_as_its_density(kind):
    crf, labels, heads = labelled_sentences()
    prior = Normal(0.0, 1.0)
    posterior = models.bayesian(crf, unary=prior, ternary=prior, root_ternary=prior, memory=prior, likelihood=kind)
    f = posterior.formulation
    for data in ((labels,), (labels, heads)):
        trace = poutine.trace(poutine.condition(posterior, f.parameters())).get_trace(*data)
        density = sum(Normal(0.0, 1.0).log_prob(x).sum() for x in f.parameters().values())
        assert_equal(trace.log_prob_sum(), density + f.log_evidence(*data).sum(), crf.log_partition(), operations=4096)
        assert ("heads" in trace.nodes) == (len(data) == 2)
        assert [x.name for x in trace.nodes["labels"]["cond_indep_stack"]] == ["sentence"]
    assert trace.nodes["ternary"]["fn"].batch_shape == (2,) and trace.nodes["unary"]["fn"].batch_shape == (6,)


@pytest.mark.slow
def test_draws_of_the_program_have_its_density():
    """10,000 draws of labels and heads of one sentence, with a root, against the density of each; chi-square."""
    crf = crf_problem(generator(0), words=2, labels=2, channels=1, root=2, nodes=1)
    many = labelled(crf.replace(unary=crf.unary.expand(10_000, -1, -1)))
    torch.manual_seed(0)
    nodes = poutine.trace(many.model).get_trace(None).nodes
    labels, heads = nodes["labels"]["value"], nodes["heads"]["value"]
    one, keys, expected = labelled(crf), [], []
    for z, h in itertools.product(itertools.product(range(2), repeat=2), itertools.product((0, 2, 3), (0, 1, 3))):
        keys.append((*z, *h))
        expected.append(float(one.log_evidence(torch.tensor([z]), torch.tensor([[h]])).exp()))
    # 36 exponentials of sums of some ten terms
    assert abs(sum(expected) - 1) < 1e-9
    drawn = [tuple(x) for x in torch.cat([labels, heads[:, 0]], -1).tolist()]
    counts = [drawn.count(key) for key in keys]
    assert sum(counts) == 10_000
    assert chisquare(counts, [10_000 * x for x in expected]).pvalue > FALSE_ALARM_RATE


def test_data_are_drawn_with_the_heads_that_were_known():
    crf, labels, heads = labelled_sentences()
    posterior = models.bayesian(crf, ternary=Normal(0.0, 1.0), likelihood="exact")
    nodes = poutine.trace(poutine.uncondition(posterior)).get_trace(labels, heads).nodes
    assert ((nodes["heads"]["value"] >= 0) == (heads >= 0)).all()
    assert ((nodes["labels"]["value"] >= 0) == crf.mask).all()
    assert torch.isfinite(labelled(crf).log_evidence(nodes["labels"]["value"], nodes["heads"]["value"])).all()


def test_the_formulation_is_still_a_dependency_crf():
    crf, labels, heads = labelled_sentences()
    f = labelled(crf, "pseudo")
    assert isinstance(f, models.DependencyCRF)
    assert_equal(f.mean_field(3).head_marginals, crf.mean_field(3).head_marginals)
    assert_equal(f.log_partition(labels), crf.log_partition(labels))
    assert labelled(f).likelihood == "exact"
    with pytest.raises(ValueError, match=r"leading axes \(3,\); take those of one problem"):
        f.with_parameters({"ternary": f.ternary.expand(3, *f.ternary.shape)}).mean_field(1)
    copy = f.to(torch.float32)
    assert copy.log_evidence(labels, heads).dtype == torch.float32 and copy.likelihood == "pseudo"


def crf(**changes):
    zeros = torch.zeros(2, 3, 2, dtype=torch.float64), torch.zeros(2, 2, 2, 2, dtype=torch.float64)
    return models.DependencyCRF(**{"unary": zeros[0], "ternary": zeros[1], **changes})


def evidence(*data, kind="exact", **changes):
    return labelled(crf(**changes), kind).log_evidence(*data)


Z = torch.zeros(2, 3, dtype=torch.long)
H = torch.full((2, 2, 3), -1)
CASES = {
    "label out of range": (lambda: evidence(Z + 2), r"labels must be from 0 to 1, but one that is observed is 2"),
    "a label that is missing": (lambda: evidence(Z - 1), r"labels must be from 0 to 1, but one that is observed is -1; mark unknown ones in observed"),
    "labels that are no integers": (lambda: evidence(Z.double()), r"labels must be a tensor of integers \(2, 3\), not torch.float64"),
    "labels of other sentences": (lambda: evidence(torch.zeros(3, 3, dtype=torch.long)), r"labels has shape \(3, 3\) but there are 2 sentences of 3 words; give a row for each sentence"),
    "labels of one sentence for two": (lambda: evidence(Z[0]), r"labels has shape \(1, 3\) but there are 2 sentences of 3 words"),
    "labels of other words": (lambda: evidence(Z[:, :2]), r"labels has shape \(2, 2\) but needs \(2, 3\)"),
    "observed of another shape": (lambda: evidence(Z, None, torch.ones(2, 4) > 0), r"observed has shape \(2, 4\) but needs \(2, 3\)"),
    "observed that is no boolean": (lambda: evidence(Z, None, Z), r"observed must be a boolean tensor"),
    "a head that is the word itself": (lambda: evidence(Z, H.index_fill(-1, torch.tensor([1]), 1)), r"heads gives word 1 of sentence 0 slot 1 in channel 0, but it may take the slots 0, 2: no padding, nor the word itself"),
    "a head that is padding": (lambda: evidence(Z, H.index_fill(-1, torch.tensor([1]), 2), mask=torch.tensor([True, True, False])), r"heads gives word 1 of sentence 0 slot 2 in channel 0, but it may take the slots 0: no padding"),
    "a head of a word alone": (lambda: evidence(Z, H.index_fill(-1, torch.tensor([0]), 1), mask=torch.tensor([True, False, False])), r"heads gives word 0 of sentence 0 slot 1 in channel 0, but it has no head to choose"),
    "labels known in part for the pseudo-likelihood": (lambda: evidence(Z, None, torch.tensor([[True] * 3, [True, False, True]]), kind="pseudo"), r"observed: sentence 1 is known in part, but the pseudo-likelihood conditions each label on all others; .* take likelihood='exact'"),
    "heads without labels for the pseudo-likelihood": (lambda: evidence(Z, H.index_fill(-1, torch.tensor([0]), 1), Z > 0, kind="pseudo"), r"observed: sentence 0 is known in part"),
    "an unknown likelihood": (lambda: models.bayesian(crf(), likelihood="psuedo"), r"likelihood: 'psuedo' is none that a DependencyCRF has; did you mean 'pseudo'\?"),
    "a likelihood that is no name": (lambda: models.bayesian(crf(), likelihood=1), r"likelihood: 1 is none that a DependencyCRF has; choose from exact, pseudo"),
    "a likelihood of another formulation": (lambda: models.bayesian(models.GaussianMixture(torch.eye(2)), likelihood="exact"), r"likelihood: a GaussianMixture has no likelihoods to choose from; leave likelihood out"),
    "a long sentence": (lambda: models.bayesian(crf(unary=torch.zeros(1, 24, 2, dtype=torch.float64)), likelihood="exact"), r"exact inference over 1\.68e\+07 labellings .* needs a table of 1\.93e\+10 numbers, more than 67108864; give shorter sentences, or likelihood='pseudo'"),
    "sentences along two axes": (lambda: models.bayesian(crf(unary=torch.zeros(2, 2, 3, 2, dtype=torch.float64)), likelihood="exact"), r"unary has shape \(2, 2, 3, 2\) but sentences that are observations lie along one axis.*; flatten"),
    "a prior of a wrong shape": (lambda: models.bayesian(crf(), ternary=Normal(torch.zeros(3, 3, dtype=torch.float64), 1.0), likelihood="exact")(Z), r"batch axes do not broadcast: ternary \(2, 2, 2, 2\), prior on ternary \(3, 3\)"),
    "a prior on factors": (lambda: models.bayesian(crf(ternary=models.LowRank(*torch.zeros(2, 2, 2, 2, 1, dtype=torch.float64))), ternary=Normal(0.0, 1.0), likelihood="exact"), r"priors: ternary is a LowRank, whose rank .* give crf\.replace\(ternary=crf\.full_ternary\(\)\)"),
    "a prior on a root that is not there": (lambda: models.bayesian(crf(), root_ternary=Normal(0.0, 1.0), likelihood="exact"), r"there is a prior on root_ternary, but the LabelledCRF has no root_ternary"),
    "a number of sentences": (lambda: models.bayesian(crf(), ternary=Normal(0.0, 1.0), likelihood="exact")(None, num_queries=3), r"num_queries: sentences are those of unary and no more can be drawn; leave it out"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_clear_error(name):
    call, message = CASES[name]
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_posterior_is_saved_and_read_back(tmp_path):
    sentences, labels, heads = labelled_sentences()
    posterior = models.bayesian(sentences, ternary=Normal(0.0, 1.0), likelihood="pseudo")
    torch.save(posterior, tmp_path / "posterior.pt")
    again = torch.load(tmp_path / "posterior.pt", weights_only=True)
    assert repr(again) == repr(posterior)
    assert_equal(again.formulation.log_evidence(labels, heads), posterior.formulation.log_evidence(labels, heads))
