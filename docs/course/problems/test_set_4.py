"""Tests of problem set 4: every sum is written out over labels, heads and trees."""

import itertools
import math

import torch
from set_4 import elbo, equivalent, head_update, label_update, likeliest, log_partition, tree_log_partition

torch.set_default_dtype(torch.float64)


def random(*shape, seed=0):
    """Standard normal numbers, always the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sentence():
    """Three words, two labels, and distributions over labels and heads."""
    heads = random(3, 3, seed=3).masked_fill(torch.eye(3, dtype=torch.bool), -math.inf).softmax(-1)
    return random(3, 2), 1.5 * random(2, 2, seed=1), random(3, 2, seed=2).softmax(-1), heads


def everything(words, num_labels):
    """All labels and heads of a sentence without a root."""
    choices = [[j for j in range(words) if j != i] for i in range(words)]
    return itertools.product(itertools.product(range(num_labels), repeat=words), itertools.product(*choices))


def score(z, h, unary, ternary):
    """Log score of labels and heads, over numbers."""
    return sum(float(unary[i, z[i]]) + float(ternary[z[i], z[h[i]]]) for i in range(len(z)))


def bound_by_hand(labels, heads, unary, ternary):
    """The ELBO as an expectation over everything."""
    total = 0.0
    for z, h in everything(*unary.shape):
        q = math.prod(float(labels[i, z[i]] * heads[i, h[i]]) for i in range(len(z)))
        total += q * (score(z, h, unary, ternary) - math.log(q))
    return total


def test_head_update():
    """Problem 4.1."""
    unary, ternary, labels, _ = sentence()
    found = head_update(labels, ternary)
    assert (found.diagonal() == 0).all(), "a word is never its own head: the diagonal is 0"
    assert torch.allclose(found.sum(-1), torch.ones(3)), (
        "rows do not sum to 1: exclude the word itself BEFORE the softmax, not after it (erratum 24)"
    )
    for i in range(3):
        others = [j for j in range(3) if j != i]
        scores = [float(labels[i] @ ternary @ labels[j]) for j in others]
        total = sum(math.exp(s) for s in scores)
        assert all(abs(float(found[i, j]) - math.exp(s) / total) < 1e-9 for j, s in zip(others, scores, strict=True)), (
            "the score of head j for word i is Q(Z_i) T Q(Z_j)'; the labels are the rows of T for the word, its columns for the head"
        )
    best = bound_by_hand(labels, found, unary, ternary)
    assert best > bound_by_hand(labels, 0.9 * found + 0.1 * sentence()[3], unary, ternary), (
        "other heads have a higher ELBO"
    )


def test_label_update():
    """Problem 4.1: of a word at a time it is the best, so the ELBO of one row replaced can only rise."""
    unary, ternary, labels, heads = sentence()
    found = label_update(labels, heads, unary, ternary)
    assert torch.allclose(found.sum(-1), torch.ones(3)), "rows of Q(Z) sum to 1"
    children = [
        [
            sum(float(heads[j, i] * ternary[b, a] * labels[j, b]) for j in range(3) if j != i for b in range(2))
            for a in range(2)
        ]
        for i in range(3)
    ]
    parents = [
        [
            sum(float(heads[i, j] * ternary[a, b] * labels[j, b]) for j in range(3) if j != i for b in range(2))
            for a in range(2)
        ]
        for i in range(3)
    ]
    deaf = (unary + torch.tensor(parents)).softmax(-1)
    assert not torch.allclose(found, deaf), (
        "a word hears its head only; it also hears every word that may have IT as head"
    )
    assert torch.allclose(found, (unary + torch.tensor(parents) + torch.tensor(children)).softmax(-1)), (
        "not S plus both messages"
    )
    before = bound_by_hand(labels, heads, unary, ternary)
    for i in range(3):
        one = labels.clone()
        one[i] = found[i]
        assert bound_by_hand(one, heads, unary, ternary) > before - 1e-9


def test_log_partition():
    """Problem 4.2: against the sum over everything."""
    unary, ternary, *_ = sentence()
    right = math.log(sum(math.exp(score(z, h, unary, ternary)) for z, h in everything(3, 2)))
    found = float(log_partition(unary, ternary))
    assert abs(found - right) < 1e-9, (
        f"log Z is {right:.4f}, yours {found:.4f}: given the labels, each word sums over its own heads"
    )


def test_elbo():
    """Problem 4.2: the closed form is the expectation, and a bound."""
    unary, ternary, labels, heads = sentence()
    found = float(elbo(labels, heads, unary, ternary))
    assert not math.isnan(found), (
        "NaN: 0 log 0 is 0 in an entropy (the diagonal of the heads); torch.special.entr knows"
    )
    right = bound_by_hand(labels, heads, unary, ternary)
    assert abs(found - right) < 1e-9, f"the expectation over all labels and heads is {right:.4f}, yours {found:.4f}"
    assert found < float(log_partition(unary, ternary)), "an ELBO above log Z"


def test_elbo_without_arcs():
    """Problem 4.2: where all arc scores are 0, mean field is exact."""
    unary, nothing = sentence()[0], torch.zeros(2, 2)
    labels = label_update(unary.softmax(-1), head_update(unary.softmax(-1), nothing), unary, nothing)
    gap = float(log_partition(unary, nothing) - elbo(labels, head_update(labels, nothing), unary, nothing))
    assert abs(gap) < 1e-9, f"with T = 0 the gap should be 0, yours is {gap:.4f}"


def is_tree(heads):
    """Whether every word reaches the root, -1."""
    for word in range(len(heads)):
        for _ in heads:
            word = heads[word] if word >= 0 else -1
        if word != -1:
            return False
    return True


def test_tree_log_partition():
    """Problem 4.3: against a list of all trees of four words."""
    scores, root = random(4, 4, seed=6), random(4, seed=7)
    trees = [h for h in itertools.product(range(-1, 4), repeat=4) if all(h[i] != i for i in range(4)) and is_tree(h)]
    weights = [math.exp(sum(float(root[i]) if j < 0 else float(scores[i, j]) for i, j in enumerate(h))) for h in trees]
    found = float(tree_log_partition(scores, root))
    assert len(trees) == 125 and not math.isnan(found)
    assert abs(found - math.log(sum(weights))) < 1e-9, (
        f"the 125 trees sum to {math.log(sum(weights)):.4f}, yours {found:.4f}: on the diagonal of the matrix stands everything that a word may choose"
    )
    assert abs(float(tree_log_partition(scores + 3 * torch.eye(4), root)) - found) < 1e-9, (
        "the diagonal of the scores is to be ignored"
    )


def evidence_by_hand(queries, locations, log_weights, precision):
    """Log evidence of each query, over numbers."""
    found = []
    for q in queries.tolist():
        terms = [
            w
            + len(q) / 2 * math.log(precision / (2 * math.pi))
            - precision / 2 * sum((a - b) ** 2 for a, b in zip(q, x, strict=True))
            for x, w in zip(locations.tolist(), log_weights.tolist(), strict=True)
        ]
        found.append([*terms, max(terms) + math.log(sum(math.exp(t - max(terms)) for t in terms))])
    return torch.tensor(found)[:, :-1], torch.tensor(found)[:, -1]


def head():
    """Queries of a head, its slopes and a mask."""
    return 0.8 * random(60, 2, seed=8) + torch.tensor([1.0, -0.5]), random(4, 2, seed=9), random(4, seed=10)


def test_equivalent():
    """Problem 4.4: the same attention, whatever the shift and the precision."""
    queries, slopes, log_mask = head()
    attention = (log_mask + queries @ slopes.T).softmax(-1)
    for shift, precision in ((torch.zeros(2), 1.0), (torch.tensor([2.0, -1.0]), 0.4)):
        locations, log_weights = equivalent(slopes, log_mask, shift, precision)
        assert abs(float(log_weights.exp().sum()) - 1) < 1e-9, "the weights of the units sum to 1"
        assert torch.allclose(locations, (slopes + shift) / precision), "a location is (slope + shift) / precision"
        joint, _ = evidence_by_hand(queries, locations, log_weights, precision)
        assert torch.allclose(joint.softmax(-1), attention), (
            "the attention has changed: the weights must make up for precision / 2 |location|^2, which the Gaussian subtracts"
        )


def test_likeliest():
    """Problem 4.5: no nearby shift or precision is likelier, and the mixture has the mean of the queries."""
    queries, slopes, log_mask = head()
    shift, precision = likeliest(queries, slopes, log_mask)

    def evidence(shift, precision):
        locations = (slopes + shift) / precision
        log_weights = (log_mask + precision / 2 * locations.square().sum(-1)).log_softmax(-1)
        return float(evidence_by_hand(queries, locations, log_weights, precision)[1].sum())

    best = evidence(shift, precision)
    for step in (*0.05 * torch.eye(2), *-0.05 * torch.eye(2)):
        assert evidence(shift + step, precision) < best, "another shift is likelier: has the ascent converged?"
    assert max(evidence(shift, 0.97 * precision), evidence(shift, 1.03 * precision)) < best, (
        "another precision is likelier"
    )
    locations = (slopes + shift) / precision
    weights = (log_mask + precision / 2 * locations.square().sum(-1)).softmax(-1)
    assert torch.allclose(weights @ locations, queries.mean(0), atol=1e-3), (
        "at the maximum the mixture has the mean of the queries"
    )
