"""Exact inference in the dependency CRF against enumeration of labels and heads, and the bound that mean field gives."""

import oracles_crf
import pytest
import torch
from strategies import crf_lists, crf_problem, generator
from tolerances import assert_equal, assert_never_falls, rounding

TINY = {  # enumeration of labels and heads takes at most some 20,000 terms
    "one word": {"words": 1},
    "one word, root": {"words": 1, "root": 3},
    "one word, node": {"words": 1, "nodes": 1, "node_channels": 1},
    "two words": {"words": 2, "distances": (2,), "channels": 3},
    "three words": {"words": 3, "labels": 2},
    "distances": {"words": 4, "labels": 2, "channels": 1, "distances": (2, 3), "rank": 2},
    "root": {"words": 3, "labels": 2, "channels": 1, "root": 2},
    "nodes": {"words": 3, "labels": 2, "channels": 1, "nodes": 2},
    "nodes of one channel": {"words": 3, "labels": 2, "nodes": 1, "node_channels": 1},
    "nodes apart": {"words": 3, "labels": 2, "channels": 1, "nodes": 2, "split": True, "root": 2},
    "holes": {"words": 4, "labels": 2, "masked": True, "root": 2, "nodes": 1, "node_channels": 1, "channels": 1},
}
tiny = pytest.mark.parametrize("name", TINY)


def clamped(crf, seed):
    """Some labels and some heads of a CRF, as it takes them, and the lists of the sentence that allows nothing else."""
    g, p = generator(seed), crf_lists(crf)
    words = torch.tensor(p["words"])
    labels = torch.randint(crf.unary.shape[-1], words.shape, generator=g)
    observed = torch.rand(words.shape, generator=g) < 0.5
    heads = torch.full((len(p["ternary"]), len(words)), -1)
    for c, i, slots in oracles_crf.choices(p):
        if torch.rand((), generator=g) < 0.5 and not (
            crf.memory_split and slots[0] >= oracles_crf.first(p) + len(words)
        ):
            heads[c, i] = slots[int(torch.randint(len(slots), (), generator=g))]
    return {"labels": labels, "heads": heads, "observed": observed}


@tiny
def test_what_is_known_is_evidence(name):
    """Against enumeration of all labels and heads, of which only those that agree with what is known count."""
    crf = crf_problem(generator(5), **TINY[name])
    known, p = clamped(crf, 6), crf_lists(crf)
    truth = oracles_crf.enumerate_all(p, known["labels"].tolist(), known["observed"].tolist(), known["heads"].tolist())
    terms = {"operations": 20_000}
    found = crf.marginals(**known)
    assert_equal(crf.log_partition(**known), torch.tensor(truth["log_partition"]), **terms)
    assert_equal(found.labels, torch.tensor(truth["labels"]), **terms)
    assert_equal(found.heads, torch.tensor(truth["heads"]), **terms)
    field = crf.mean_field(30, "sequential", **known, history=True)
    for schedule in ("asynchronous", "synchronous", "sequential"):
        at = crf.mean_field(2, schedule, **known)
        seen = known["observed"] & torch.tensor(p["words"])
        assert (at.label_marginals[seen].argmax(-1) == known["labels"][seen]).all()
        assert (at.label_marginals[seen].amax(-1) == 1).all()
        assert (
            at.head_marginals.gather(-1, known["heads"].clamp(min=0).unsqueeze(-1)).squeeze(-1)[known["heads"] >= 0]
            == 1
        ).all()
        assert at.elbo <= crf.log_partition(**known) + rounding(at.elbo)
    assert_never_falls(field.objective[1:])
    full = {"labels": known["labels"], "heads": None, "observed": None}
    if crf.root_ternary is None:  # given all labels heads are independent, so that mean field is exact
        assert_equal(crf.attention(**full), crf.marginals(**full).heads)
        assert_equal(crf.mean_field(2, **full).elbo, crf.log_partition(**full))


def probabilities(generator, allowed):
    x = torch.rand(allowed.shape, generator=generator, dtype=torch.float64) * allowed
    return x / x.sum(-1, keepdim=True).clamp(min=1e-300)


@tiny
def test_exact_inference_is_enumeration_of_labels_and_heads(name):
    for seed in range(2):
        crf = crf_problem(generator(seed), **TINY[name])
        truth, found = oracles_crf.enumerate_all(crf_lists(crf)), crf.marginals()
        terms = {"operations": 20_000}  # the oracle adds so many terms one to the other, each time with rounding
        assert_equal(crf.log_partition(), torch.tensor(truth["log_partition"]), **terms)
        assert_equal(found.labels, torch.tensor(truth["labels"]), **terms)
        assert_equal(found.heads, torch.tensor(truth["heads"]), **terms)
        if crf.root_ternary is not None:
            assert_equal(found.root, torch.tensor(truth["root"]), **terms)


@tiny
def test_gap_of_any_factorised_distribution_is_its_divergence(name):
    """Not only of fixed points: of any Q, so that neither term of the objective can hide behind the other."""
    crf = crf_problem(generator(3), **TINY[name])
    field, g = crf.mean_field(1), generator(4)
    other = {
        "label_marginals": probabilities(g, field.label_marginals > 0),
        "head_marginals": torch.cat([probabilities(g, x > 0) for x in field.head_marginals.split(crf.potentials().parts, -1)], -1),
        "root_marginals": None if field.root_marginals is None else probabilities(g, field.root_marginals > 0),
    }  # fmt: skip
    for q in ({name: getattr(field, name) for name in other}, other):
        lists = {name.removesuffix("_marginals") + "s" * (name[0] != "r"): None if x is None else x.tolist() for name, x in q.items()}  # fmt: skip
        gap = crf.log_partition() - type(field)(**{**vars(field), **q}).elbo
        assert_equal(gap, torch.tensor(oracles_crf.kl(crf_lists(crf), lists)), operations=20_000)
    assert gap > 1e-3 or name == "one word"


GAPS = [  # 20 problems of 25 sentences
    dict(zip(("words", "labels", "channels", "distances", "root", "nodes", "split", "masked", "scale"), x, strict=True))
    for x in [
        (1, 2, 1, (), 0, 0, False, False, 1.0), (1, 3, 2, (2,), 2, 0, False, False, 1.0), (2, 2, 1, (), 0, 0, False, False, 1.0),
        (2, 4, 3, (2,), 0, 1, True, False, 0.5), (3, 2, 1, (), 0, 0, False, False, 2.0), (3, 3, 2, (2,), 0, 0, False, False, 1.0),
        (3, 3, 2, (2, 3), 2, 0, False, False, 1.0), (3, 2, 2, (), 3, 2, False, False, 1.0), (3, 4, 1, (), 0, 2, True, True, 1.0),
        (4, 2, 1, (), 0, 0, False, True, 1.0), (4, 3, 2, (2,), 0, 0, False, True, 2.0), (4, 2, 3, (2, 3), 2, 0, False, False, 1.0),
        (4, 3, 1, (3,), 2, 1, True, True, 1.0), (4, 4, 2, (), 0, 2, False, False, 0.3), (5, 2, 1, (), 0, 0, False, False, 1.0),
        (5, 2, 2, (2, 4), 0, 0, False, True, 1.0), (5, 3, 1, (2,), 2, 0, False, True, 1.0), (5, 2, 3, (), 0, 3, True, False, 1.0),
        (6, 2, 2, (2, 3, 4), 2, 2, True, True, 1.0), (6, 2, 1, (), 0, 0, False, False, 3.0),
    ]
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule", ["asynchronous", "synchronous", pytest.param("sequential", marks=pytest.mark.slow)]
)
def test_the_bound_holds_on_500_problems(schedule):
    gaps = []
    for seed, options in enumerate(GAPS):
        crf = crf_problem(generator(seed), batch=(25,), **options)
        exact = crf.log_partition()
        for options in ({}, {"label_temperature": 0.5, "head_temperature": 0.5}):
            elbo = crf.mean_field(8, schedule, **options).elbo
            assert (elbo <= exact + rounding(exact)).all()  # equal where there is no arc
        gaps.append(exact - crf.mean_field(8, schedule).elbo)
    gaps = torch.cat(gaps)
    assert len(gaps) == 500
    assert (gaps > 0.1).sum() > 100  # and it is a bound, not the thing itself


def test_exact_inference_is_mapped_by_vmap():
    crf = crf_problem(generator(5), batch=(4,), words=3)

    def exact(unary):
        return crf.replace(unary=unary).log_partition()

    assert_equal(torch.func.vmap(exact)(crf.unary), crf.log_partition(), operations=256)
    mask = torch.tensor([True, True, False])
    swept = torch.func.vmap(lambda unary, mask: crf.replace(unary=unary, mask=mask).mean_field(3).head_marginals)
    expected = crf.replace(mask=mask.expand(4, 3)).mean_field(3).head_marginals
    assert_equal(swept(crf.unary, mask.expand(4, 3)), expected, operations=256)
