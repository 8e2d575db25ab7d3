"""The distribution over trees against all trees of up to six words, at any scale, with gradients, masks and batches."""

import math

import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from strategies import generator
from tolerances import FALSE_ALARM_RATE, assert_equal

from probtx_pyro import ops

roots = pytest.mark.parametrize("single_root", [True, False], ids=["single root", "several roots"])
functions = pytest.mark.parametrize("function", [ops.tree_log_partition, ops.tree_marginals, ops.tree_entropy])


def draw(words, seed=0, *, batch=(), scale=1.0, forbidden=0.0):
    g = generator(seed)
    arcs = scale * torch.randn(*batch, words, words + 1, generator=g, dtype=torch.float64)
    return arcs.masked_fill(torch.rand(arcs.shape, generator=g) < forbidden, -torch.inf)


def check(arcs, single_root):
    """Normaliser, marginals and entropy of all trees. Logarithms of probabilities err by eps times sums of scores, as much as
    the probabilities themselves then do; the entropy sums their products with scores.
    """
    trees = oracles.dependency_trees(len(arcs), single_root)
    rows, finite = arcs.tolist(), arcs[arcs.isfinite()].abs()
    found = ops.tree_log_partition(arcs, single_root=single_root)
    marginals = ops.tree_marginals(arcs, single_root=single_root)
    entropy = ops.tree_entropy(arcs, single_root=single_root)
    if max(oracles.tree_score(rows, heads) for heads in trees) == -math.inf:
        assert found == -math.inf and entropy == -math.inf and (marginals == 0).all()
        return
    total, expected = oracles.arc_probabilities(rows, trees)
    scale = len(arcs) * finite.sum()
    assert_equal(found, torch.tensor(total), scale)
    assert_equal(marginals, torch.tensor(expected), scale)
    surprise = [total - oracles.tree_score(rows, heads) for heads in trees]
    assert_equal(entropy, torch.tensor(sum(math.exp(-s) * s for s in surprise if s < math.inf)), scale * (1 + scale))


@pytest.mark.pairs
@roots
@pytest.mark.parametrize("words", range(1, 6))
@pytest.mark.parametrize("forbidden", [0.0, 0.5])
def test_the_sum_over_all_trees(words, single_root, forbidden):
    for seed in range(12):
        check(draw(words, seed, scale=10.0 ** (seed % 3), forbidden=forbidden), single_root)


@roots
def test_the_sum_over_all_trees_of_six_words(single_root):
    check(draw(6), single_root)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_forbidden_arcs_and_far_scores_give_the_sum_over_trees(data):
    words = data.draw(st.integers(1, 4))
    score = st.sampled_from([-torch.inf, -1000.0, -1.0, 0.0, 1000.0])
    row = st.lists(score, min_size=words + 1, max_size=words + 1)
    arcs = torch.tensor(data.draw(st.lists(row, min_size=words, max_size=words)), dtype=torch.float64)
    check(arcs, data.draw(st.booleans()))


@roots
@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
def test_the_determinant_where_it_can_be_computed(scale, single_root):
    """The matrix-tree theorem with 400 digits for the determinant, on sentences too long to enumerate."""
    mpmath = pytest.importorskip("mpmath")
    arcs = draw(12, scale=scale)
    with mpmath.workdps(400):
        weights = [[mpmath.exp(x) for x in row] for row in arcs.tolist()]
        laplacian = mpmath.matrix(12, 12)
        for i in range(12):
            for j in range(12):
                others = [weights[i][h] for h in range(single_root, 13) if h != i + 1]
                laplacian[i, j] = mpmath.fsum(others) if i == j else -weights[i][j + 1]
            if single_root:
                laplacian[i, 0] = weights[i][0]
        expected = float(mpmath.log(mpmath.det(laplacian)))
    assert_equal(ops.tree_log_partition(arcs, single_root=single_root), torch.tensor(expected), 12 * arcs)


@pytest.mark.slow
@roots
def test_gradients_are_finite_differences(single_root):
    for forbidden in (0.0, 0.2):
        arcs = draw(4, 3, batch=(2,), forbidden=forbidden).requires_grad_()
        assert ops.tree_log_partition(arcs, single_root=single_root).isfinite().all()
        finite = arcs.detach().isfinite()

        def inside(function, x, finite=finite):
            return function(torch.where(finite, x, -torch.inf), None, single_root)

        start = arcs.detach().masked_fill(~finite, 0.0).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: inside(ops.tree_log_partition, x), start)
        assert torch.autograd.gradgradcheck(lambda x: inside(ops.tree_log_partition, x), start)
        assert torch.autograd.gradcheck(lambda x: inside(ops.tree_marginals, x), start)
        assert torch.autograd.gradcheck(lambda x: inside(ops.tree_entropy, x), start)


def test_marginals_are_the_gradient_and_leave_no_trace():
    arcs = draw(5, batch=(3,)).requires_grad_()
    (gradient,) = torch.autograd.grad(ops.tree_log_partition(arcs).sum(), arcs)
    assert_equal(ops.tree_marginals(arcs), gradient)
    assert ops.tree_marginals(arcs).requires_grad
    with torch.no_grad():
        assert torch.equal(ops.tree_marginals(arcs), ops.tree_marginals(arcs.detach()))
    assert not ops.tree_marginals(arcs.detach()).requires_grad and arcs.grad is None


@roots
def test_best_heads_dominate_when_scores_are_sharp(single_root):
    arcs = draw(9, 4, batch=(20,), scale=1e5)
    sharp = ops.tree_marginals(arcs, single_root=single_root).argmax(-1)
    assert torch.equal(sharp, ops.spanning_arborescence(arcs, single_root=single_root))


@roots
@functions
def test_masked_words_are_absent(function, single_root):
    arcs = draw(6, batch=(4,))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 0, 1], [0] * 6]).bool()
    arcs[1, :, 5], arcs[1, 5], arcs[2, 2] = torch.nan, torch.inf, torch.nan
    found = function(arcs, mask, single_root)
    for i in range(3):
        kept = mask[i].nonzero()[:, 0]
        nodes = torch.cat([kept.new_zeros(1), kept + 1])
        alone = function(arcs[i][kept][:, nodes], None, single_root)
        part = found[i][kept][:, nodes] if alone.dim() else found[i]
        assert_equal(part, alone)
        assert_equal(found[i].sum(), alone.sum())  # and nothing anywhere else
    assert (found[3] == 0).all()


@functions
def test_batch_is_the_stack_of_its_singles(function):
    arcs = draw(5, batch=(2, 3), forbidden=0.2)
    found = function(arcs)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(found[i, j], function(arcs[i, j]), rtol=0, atol=0)
    masks = torch.tensor([[True] * 5, [True] * 4 + [False]])
    torch.testing.assert_close(function(arcs[0, 0], masks), function(arcs[0, 0].expand(2, 5, 6), masks), rtol=0, atol=0)
    assert function(arcs[:0]).shape == found[:0].shape


@functions
def test_the_score_of_a_word_as_its_own_head_is_ignored(function):
    arcs = draw(6)
    expected = function(arcs)
    for anything in (torch.nan, torch.inf, -torch.inf, 1e9):
        arcs[range(6), range(1, 7)] = anything
        assert torch.equal(function(arcs), expected)


@functions
def test_float32_is_answered_in_float32(function):
    arcs = draw(8, scale=100.0).float()
    found = function(arcs)
    assert found.dtype == torch.float32
    assert torch.equal(found, function(arcs.double()).float())


def test_rows_sum_to_one_in_long_sentences():
    marginals = ops.tree_marginals(draw(60, scale=30.0))
    assert_equal(marginals.sum(-1), torch.ones(60), torch.tensor(60 * 30.0))
    assert (marginals > -1e-12).all()  # each a sum of 60 terms of either sign, below 1, whose logarithms err by 100 eps


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="arcs must be floating"):
        ops.tree_log_partition(torch.zeros(3, 3))
    with pytest.raises(ValueError, match="arcs contains NaN"):
        ops.tree_entropy(torch.full((3, 4), torch.inf))


@pytest.mark.slow
@roots
@pytest.mark.parametrize("forbidden", [0.0, 0.3])
def test_trees_are_drawn_as_often_as_they_are_probable(single_root, forbidden):
    number, arcs = 20000, draw(4, 5, scale=0.5, forbidden=forbidden)
    trees = [tuple(heads) for heads in oracles.dependency_trees(4, single_root)]
    weights = torch.tensor([oracles.tree_score(arcs.tolist(), heads) for heads in trees], dtype=torch.float64).exp()
    expected = {tree: number * float(w / weights.sum()) for tree, w in zip(trees, weights, strict=True) if w > 0}
    assert len(expected) > 5 and min(expected.values()) > 5  # the approximation of the test needs so many
    drawn, counts = ops.draw_trees(arcs, number, generator(6), single_root=single_root).unique(
        dim=0, return_counts=True
    )
    found = dict(zip(map(tuple, drawn.tolist()), counts.tolist(), strict=True))
    assert found.keys() <= expected.keys()
    observed = [found.get(tree, 0) for tree in expected]
    assert stats.chisquare(observed, list(expected.values())).pvalue > FALSE_ALARM_RATE


def test_trees_are_drawn_over_words_that_are_there_and_none_where_there_is_none():
    arcs = draw(5, batch=(3,), scale=30.0)
    arcs[2, 1] = -torch.inf  # a word that may not have any head
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [1, 1, 1, 1, 1]]).bool()
    heads = ops.draw_trees(arcs, 50, generator(7), mask)
    assert heads.shape == (50, 3, 5) and (heads[:, 2] == -1).all()
    assert ((heads[:, :2] == -1) == ~mask[:2]).all() and ((heads[:, :2] == 0).sum(-1) == 1).all()
    whole = {tuple(heads) for heads in oracles.dependency_trees(5, True)}
    assert {tuple(row) for row in heads[:, 0].tolist()} <= whole
    with pytest.raises(ValueError, match="num_draws must be 1 or more, not 0"):
        ops.draw_trees(arcs, 0)
