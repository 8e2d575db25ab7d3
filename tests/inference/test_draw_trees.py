"""Trees and labels together against every labelling with every choice of heads that makes trees, by loops over scalars."""

import itertools
import math

import oracles_crf
import pytest
import torch
from strategies import crf_lists, crf_problem, generator
from tolerances import assert_equal, assert_frequency

from probtx_pyro import inference


def is_tree(heads, single_root=True):
    """Heads by word, slots with the root first: whether every word reaches the root, and how many take it."""
    for word in range(len(heads)):
        seen, at = set(), word + 1
        while at:
            if at in seen:
                return False
            seen.add(at)
            at = heads[at - 1]
    return not single_root or heads.count(0) == 1


def enumerated(p, channels, single_root=True, known=(None, None, None)):
    """Log mass of all states and of those with trees, by labelling and root label; and of those by the heads of a channel."""
    listed = oracles_crf.choices(p)
    every, trees, by_heads = {}, {}, {}
    for z in itertools.product(range(len(p["unary"][0])), repeat=len(p["unary"])):
        for root in range(oracles_crf.labels_of_root(p)):
            for chosen in itertools.product(*(slots for _, _, slots in listed)):
                if not oracles_crf.agrees(p, z, chosen, *known):
                    continue
                weight = math.exp(oracles_crf.log_joint(p, z, chosen, root))
                every[z, root] = every.get((z, root), 0.0) + weight
                heads = {c: [s for (d, _, _), s in zip(listed, chosen, strict=True) if d == c] for c in channels}
                if all(is_tree(x, single_root) for x in heads.values()):
                    trees[z, root] = trees.get((z, root), 0.0) + weight
                    for c, x in heads.items():
                        by_heads[c, tuple(x)] = by_heads.get((c, tuple(x)), 0.0) + weight
    return every, trees, by_heads


def of_states(crf, states, given=None):
    """Draws that are these labellings and root labels, one chain."""
    labels = torch.tensor([z for z, _ in states]).unsqueeze(0)
    root = torch.tensor([root for _, root in states]).unsqueeze(0)
    samples = {"label": labels, "root_label": root, "head": labels.unsqueeze(-2)}
    return inference.Draws(samples, {}, crf, crf.bind(**(given or {})), "Gibbs", {})


@pytest.mark.parametrize(
    ("single_root", "channels"),
    [
        (True, [1]),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((True, None), (False, None), (False, [1]))),
    ],
)
def test_weights_of_all_labellings_are_those_of_enumeration(single_root, channels):
    crf = crf_problem(generator(0), words=3, labels=2, root=2, distances=(2,))
    every, trees, _ = enumerated(crf_lists(crf), channels or range(2), single_root)
    found = inference.draw_trees(of_states(crf, [*every]), channels=channels, single_root=single_root, seed=0)
    expected = torch.tensor([math.log(trees[state] / every[state]) for state in every])
    assert_equal(found.log_weights[0].cpu(), expected)
    assert found.heads.shape == (1, len(every), len(channels or range(2)), 3)
    assert all(is_tree(heads, single_root) for heads in found.heads.flatten(0, 2).tolist())


def check(seed, words, labels, channels, draws=200, chains=50):
    """Marginals of labels, and trees, within Monte Carlo error of enumeration; weights among chains give the error."""
    crf = crf_problem(generator(seed), words=words, labels=labels, channels=channels, root=2, distances=(2,), scale=1.2)
    given = (
        {"labels": torch.zeros(words, dtype=torch.long), "observed": torch.arange(words) == seed % words}
        if seed % 2
        else {}
    )
    known = (given["labels"].tolist(), given["observed"].tolist(), None) if given else (None,) * 3
    every, trees, by_heads = enumerated(crf_lists(crf), range(channels), known=known)
    total = sum(trees.values())
    found = inference.gibbs(crf, **given, num_samples=draws, num_chains=chains, num_warmup=30, thin=2, seed=seed)
    drawn = inference.draw_trees(found, seed=seed)
    weights = drawn.log_weights.exp()

    def near(x, exact, what):
        """A ratio of means within five of its errors by the delta method, chains as batches."""
        share = float((weights * x).mean() / weights.mean())
        error = float((weights * (x - share)).mean(1).std() / weights.mean() / chains**0.5)
        assert abs(share - exact) < 5 * error + 1e-9, f"{what} of {seed}: {share}, not {exact}, error {error}"

    label = found.samples["label"]
    for i, a in itertools.product(range(words), range(labels)):
        exact = sum(mass for (z, _), mass in trees.items() if z[i] == a) / total
        near((label[..., i] == a).double(), exact, f"label {a} of word {i}")
    likeliest = sorted(by_heads, key=by_heads.get)[-5:]
    for c, heads in likeliest:
        same = (drawn.heads[..., c, :] == torch.tensor(heads)).all(-1).double()
        near(same, by_heads[c, heads] / total, f"tree {heads} of channel {c}")
    chance = weights.mean(1)
    error = float(chance.std() / chains**0.5)
    assert abs(float(chance.mean()) - total / sum(every.values())) < 5 * error
    # a mean of probabilities against one of logarithms: thousands of roundings of numbers up to 1
    assert abs(float(drawn.log_probability.exp() - chance.mean())) < 1e-9
    mean = (weights.unsqueeze(-1) * label).sum((0, 1)) / weights.sum()
    assert_equal(
        drawn.average(label.double()), mean, operations=2 * weights.numel()
    )  # a product and a sum for each draw
    return every, trees


@pytest.mark.slow
@pytest.mark.parametrize(("words", "labels", "channels"), [(2, 3, 2), (3, 3, 1), (3, 2, 2), (4, 2, 1), (4, 3, 1)])
@pytest.mark.parametrize("seed", range(2))
def test_labels_and_trees_are_those_of_enumeration(seed, words, labels, channels):
    check(seed, words, labels, channels)


@pytest.mark.slow
def test_weights_move_the_labels():
    """Words that want each other as heads are seldom a tree, so that the posterior over trees has other labels."""
    every, trees = check(2, 3, 2, 1, draws=100, chains=20)
    free, of_trees = (sum(m for (z, _), m in x.items() if z[0] == 0) / sum(x.values()) for x in (every, trees))
    assert abs(free - of_trees) > 0.005


def test_a_tree_given_labels_is_drawn_as_often_as_it_weighs():
    crf = crf_problem(generator(4), words=3, labels=2, channels=1, root=1)
    _, _, by_heads = enumerated(crf_lists(crf), [0], known=([0] * 3, [True] * 3, None))
    number, total = 2000, sum(by_heads.values())
    found = inference.draw_trees(of_states(crf, [((0, 0, 0), 0)] * number), seed=1)
    for (_, heads), mass in by_heads.items():
        count = int((found.heads[0, :, 0] == torch.tensor(heads)).all(-1).sum())
        assert_frequency(count, number, mass / total)


def test_padding_known_heads_and_batches_are_read():
    crf = crf_problem(generator(5), batch=(2,), words=4, root=2, nodes=2, split=True)
    crf = crf.replace(mask=torch.tensor([[True] * 4, [True, True, False, True]]))
    heads = torch.full((2, 2, 4), -1)
    heads[0, 1, 2], heads[1, 0, 3] = 4, 0
    draws = inference.gibbs(crf, heads=heads, num_samples=30, num_chains=2, num_warmup=5, seed=0)
    found = inference.draw_trees(draws, seed=0)
    assert found.log_weights.shape == (2, 30, 2) and found.heads.shape == (2, 30, 2, 2, 4)
    assert (found.heads[:, :, 0, 1, 2] == 4).all() and (found.heads[:, :, 1, 0, 3] == 0).all()
    assert ((found.heads == -1).cpu() == ~crf.mask.cpu()[:, None]).all()
    alone = crf.replace(unary=crf.unary[1], mask=crf.mask[1])
    one = draws._replace(
        samples={name: x[:, :, 1] for name, x in draws.samples.items()},
        program=alone,
        arguments=alone.bind(heads=heads[1]),
    )
    assert_equal(inference.draw_trees(one, seed=0).log_weights, found.log_weights[:, :, 1])


def test_what_has_no_trees_is_refused_in_a_line():
    rooted, bare, mixed = (
        crf_problem(generator(6), words=3, **options) for options in ({"root": 1}, {}, {"root": 1, "nodes": 2})
    )
    circle = torch.tensor([[2, 1, -1], [-1, -1, -1]])

    def drawn(crf, **known):
        return inference.gibbs(crf, **known, num_samples=2, num_chains=1, num_warmup=0, seed=0)

    for draws, options, said in (
        (drawn(bare), {}, "trees need a root and no heads but words: give root_ternary"),
        (drawn(mixed), {}, "give root_ternary, and memory_split=True"),
        (drawn(rooted), {"channels": [2]}, r"channels must be different numbers from 0 to 1, not \[2\]"),
        (drawn(rooted), {"channels": []}, "channels must be different numbers"),
        (drawn(rooted, heads=circle), {}, "no tree has the known heads of a sentence; mend them"),
        (rooted, {}, r"draws must be those of inference.gibbs\(crf, ...\), of labels and heads, not DependencyCRF"),
    ):
        with pytest.raises(ValueError, match=said):
            inference.draw_trees(draws, **options, seed=0)
    assert inference.draw_trees(drawn(rooted, heads=circle), channels=[1], seed=0).heads.shape == (1, 2, 1, 3)
    with pytest.raises(ValueError, match=r"^x must begin with the axes \(1, 2\) of the draws, not "):
        inference.draw_trees(drawn(rooted), seed=0).average(torch.zeros(3))
    with pytest.raises(ValueError, match="seed must be"):
        inference.draw_trees(drawn(rooted), seed=-1)
