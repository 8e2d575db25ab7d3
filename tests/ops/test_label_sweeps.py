"""Gibbs sweeps of the dependency CRF: their conditionals against ``log φ(Z)`` itself, and what keeps their digits."""

import pytest
import torch
from strategies import crf_problem, generator
from tolerances import assert_equal

from probtx_pyro.ops._label_sweeps import Sweeps

PROBLEMS = {
    "plain": {"words": 5, "labels": 4, "channels": 3},
    "low rank and a root": {"words": 5, "distances": (2,), "rank": 2, "root": 3},
    "nodes of one channel": {"words": 4, "nodes": 2, "node_channels": 1},
    "nodes apart": {"words": 4, "nodes": 2, "root": 2, "split": True, "masked": True, "node_channels": 1},
    "one word": {"words": 1},
    "sharp": {"words": 5, "labels": 3, "channels": 3, "scale": 30.0},
}
problems = pytest.mark.parametrize("name", PROBLEMS)


def known(crf, g):
    """A head of some words, and nothing of others."""
    allowed = crf.potentials().allowed().expand(-1, crf.full_ternary().shape[0], -1, -1)
    words = allowed[..., : crf.potentials().parts[0]].to(crf.unary.dtype)
    drawn = torch.multinomial(words.flatten(0, -2) + 1e-9, 1, generator=g).reshape(words.shape[:-1])
    free = torch.rand(drawn.shape, generator=g) < 0.5
    return torch.where(free | (words.sum(-1) == 0), -1, drawn)


@pytest.mark.pairs
@problems
@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("heads", [False, True])
def test_conditional_of_a_label_is_the_density_of_every_label_renormalised(name, beta, heads):
    g = generator(1)
    crf = crf_problem(g, batch=(2,), **PROBLEMS[name])
    at, shape = crf.latents((None, known(crf, g) if heads else None, None)), (7, 2, crf.unary.shape[-2])
    labels = torch.randint(crf.unary.shape[-1], shape, generator=g)
    roots = 1 if crf.root_ternary is None else crf.root_ternary.shape[-1]
    root = None if roots == 1 else torch.randint(roots, shape[:2], generator=g)
    sweeps = Sweeps(at.potentials)
    for word in range(shape[-1]):
        found = sweeps.conditional(labels, root, word, beta).log_softmax(-1)
        every = [labels.index_fill(2, torch.tensor(word), a) for a in range(crf.unary.shape[-1])]
        states = [{"label": x} | ({} if root is None else {"root_label": root}) for x in every]
        logs = torch.stack([at.log_density(state, beta)[0] for state in states], -1)
        words = at.potentials.words[:, word]
        assert_equal(found[:, words], logs.log_softmax(-1)[:, words], logs, operations=1024)


def test_one_head_with_almost_all_the_weight_loses_no_digits_in_float32():
    """A running sum from which that head is subtracted would be left with rounding: here the others weigh e^-30 of it."""
    g = generator(2)
    crf = crf_problem(g, words=6, labels=2, channels=1, dtype=torch.float32, scale=0.5)
    ternary = crf.ternary.clone()
    ternary[..., 0] += 30.0  # words with label 0 are better heads
    low = crf.replace(ternary=ternary)
    labels = torch.tensor([[[0, 1, 1, 1, 1, 1]]])
    for word in range(6):
        rough = Sweeps(low.potentials()).conditional(labels, None, word).log_softmax(-1)
        fine = Sweeps(low.to(torch.float64).potentials()).conditional(labels, None, word).log_softmax(-1)
        assert_equal(rough, fine.float(), torch.tensor(60.0), operations=256)


def test_many_channels_are_multiplied_in_parts_that_stay_in_range():
    crf = crf_problem(generator(3), words=4, labels=3, channels=12, dtype=torch.float32, scale=4.0)
    sweeps, labels = Sweeps(crf.potentials()), torch.tensor([[[0, 1, 2, 0]]])
    assert 1 < sweeps.tables(1.0).some < 12 and sweeps.dtype == torch.float32
    for word in range(4):
        fine = Sweeps(crf.to(torch.float64).potentials()).conditional(labels, None, word).log_softmax(-1)
        rough = sweeps.conditional(labels, None, word).log_softmax(-1)
        assert_equal(rough, fine.float(), torch.tensor(100.0), operations=256)


def test_scores_too_far_apart_are_refused():
    crf = crf_problem(generator(4), words=3, scale=400.0)
    with pytest.raises(
        ValueError, match=r"scores of one label lie [\d.e+]+ apart, and sampling takes up to 600; scale"
    ):
        Sweeps(crf.potentials())
    assert (
        Sweeps(crf_problem(generator(4), words=3, scale=40.0, dtype=torch.float32).potentials()).dtype == torch.float64
    )
