"""Decoders against all trees of up to six words; what they promise of numbers, masks, batches and size."""

import functools
import itertools
import sys

import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import ops

roots = pytest.mark.parametrize("single_root", [True, False], ids=["single root", "several roots"])
decoders = pytest.mark.parametrize("decode", [ops.spanning_arborescence, ops.eisner])


@functools.cache
def projective_trees(words, single_root):
    return [heads for heads in oracles.dependency_trees(words, single_root) if oracles.is_projective(heads)]


TREES = {ops.spanning_arborescence: oracles.dependency_trees, ops.eisner: projective_trees}


def draw(words, seed=0, *, batch=(), scale=1.0, forbidden=0.0):
    g = generator(seed)
    arcs = scale * torch.randn(*batch, words, words + 1, generator=g, dtype=torch.float64)
    return arcs.masked_fill(torch.rand(arcs.shape, generator=g) < forbidden, -torch.inf)


def check(decode, arcs, single_root):
    """The tree found is a tree, as good as the best of all of them, and the same if that is the only one."""
    trees = TREES[decode](len(arcs), single_root)
    rows = arcs.tolist()
    scores = [oracles.tree_score(rows, heads) for heads in trees]
    best = max(scores)
    if best == -torch.inf:
        with pytest.raises(ValueError, match="arcs has no tree"):
            decode(arcs, single_root=single_root)
        return
    heads = tuple(decode(arcs, single_root=single_root).tolist())
    assert heads in trees
    assert_equal(torch.tensor(oracles.tree_score(rows, heads)), torch.tensor(best), arcs[arcs.isfinite()])
    if sum(score > best - 1e-9 * abs(best) for score in scores) == 1:
        assert heads == trees[scores.index(best)]


@pytest.mark.pairs
@decoders
@roots
@pytest.mark.parametrize("words", range(1, 6))
@pytest.mark.parametrize("forbidden", [0.0, 0.5])
def test_the_best_of_all_trees(decode, single_root, words, forbidden):
    for seed in range(12):
        check(decode, draw(words, seed, scale=10.0 ** (seed % 3), forbidden=forbidden), single_root)


@decoders
@roots
def test_the_best_of_all_trees_of_six_words(decode, single_root):
    for seed in range(5):
        check(decode, draw(6, seed), single_root)


@decoders
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_ties_and_forbidden_arcs_give_the_best_tree(decode, data):
    words = data.draw(st.integers(1, 5))
    score = st.sampled_from([-torch.inf, -1000.0, 0.0, 1.0, 1.0 + 1e-6, 1000.0])
    row = st.lists(score, min_size=words + 1, max_size=words + 1)
    arcs = torch.tensor(data.draw(st.lists(row, min_size=words, max_size=words)), dtype=torch.float64)
    check(decode, arcs, data.draw(st.booleans()))


@decoders
def test_a_millionth_among_thousands_decides(decode):
    for seed, best in enumerate(TREES[decode](5, True)[::7]):
        arcs = 1e3 * draw(5, seed).sign()  # many trees tie
        row = torch.arange(5)
        arcs[row, torch.tensor(best)] = 1e3 + 1e-6
        arcs[row, 0] += 1e5  # the more roots the better, if several were allowed
        assert decode(arcs).tolist() == list(best)


@roots
@pytest.mark.parametrize("words", [8, 25])
def test_eisner_is_the_arborescence_where_that_is_projective(words, single_root):
    agreed = 0
    for seed in range(60):
        near = (torch.arange(words)[:, None] - torch.arange(words + 1) + 1).abs()
        arcs = draw(words, seed) - 1.5 * near  # near heads are likely, so that many of the best trees are projective
        any_tree = ops.spanning_arborescence(arcs, single_root=single_root)
        projective = ops.eisner(arcs, single_root=single_root)
        scores = [float(arcs.gather(-1, heads[:, None]).sum()) for heads in (any_tree, projective)]
        assert oracles.is_projective(projective.tolist()) and scores[1] <= scores[0] + 1e-9  # 25 sums of order 10
        if oracles.is_projective(any_tree.tolist()):
            agreed += 1
            assert torch.equal(projective, any_tree)
    assert agreed > 10


@roots
def test_networkx_finds_the_same_arborescence(single_root):
    """Another implementation on longer sentences; it knows several roots only, so that a single one is paid for."""
    networkx = pytest.importorskip("networkx")
    for words in (12, 25):
        arcs = draw(words, words, scale=3.0)
        paid = arcs.clone()
        paid[:, 0] -= 1000.0 * single_root  # more than all scores together
        graph = networkx.DiGraph()
        graph.add_weighted_edges_from(
            (head, word, float(paid[word - 1, head]))
            for word, head in itertools.product(range(1, words + 1), range(words + 1))
            if word != head
        )
        edges = networkx.maximum_spanning_arborescence(graph, preserve_attrs=False).edges
        heads = {word: head for head, word in edges}
        assert ops.spanning_arborescence(arcs, single_root=single_root).tolist() == [heads[i + 1] for i in range(words)]


@decoders
def test_masked_words_are_absent(decode):
    arcs = draw(7, batch=(4,))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0], [0, 1, 0, 1, 1, 0, 1], [0] * 7]).bool()
    arcs[1, :, 5], arcs[1, 5], arcs[2, 2] = torch.nan, torch.inf, torch.nan
    heads = decode(arcs, mask)
    for i in range(4):
        kept = mask[i].nonzero()[:, 0]
        assert (heads[i, ~mask[i]] == -1).all()
        if len(kept):
            nodes = torch.cat([kept.new_zeros(1), kept + 1])
            assert heads[i, kept].tolist() == nodes[decode(arcs[i][kept][:, nodes])].tolist()
    assert ops.argmax_heads(arcs, mask)[3].tolist() == [-1] * 7


@pytest.mark.parametrize("decode", [ops.argmax_heads, ops.spanning_arborescence, ops.eisner])
def test_batch_is_the_stack_of_its_singles(decode):
    arcs = draw(6, batch=(2, 3))
    mask = torch.tensor([True] * 5 + [False])
    heads = decode(arcs, mask)
    assert heads.shape == (2, 3, 6) and heads.dtype == torch.int64 and heads.device == arcs.device
    for index in itertools.product(range(2), range(3)):
        assert torch.equal(heads[index], decode(arcs[index], mask))
    assert torch.equal(decode(arcs[0, 0], mask.expand(4, 6)), heads[0, 0].expand(4, 6))
    assert decode(arcs[:0]).shape == (0, 3, 6)


def test_argmax_takes_each_word_alone():
    arcs = draw(9, batch=(5,), forbidden=0.2)
    arcs[:, range(9), range(1, 10)] = 100.0
    heads = ops.argmax_heads(arcs).tolist()
    for rows, found in zip(arcs.tolist(), heads, strict=True):
        for i, row in enumerate(rows):
            others = [head for head in range(10) if head != i + 1]
            assert found[i] == max(others, key=row.__getitem__)


@pytest.mark.parametrize("decode", [ops.argmax_heads, ops.spanning_arborescence, ops.eisner])
def test_the_score_of_a_word_as_its_own_head_is_ignored(decode):
    arcs = draw(6)
    heads = decode(arcs)
    for anything in (torch.nan, torch.inf, -torch.inf, 1e9):
        arcs[range(6), range(1, 7)] = anything
        assert torch.equal(decode(arcs), heads)


def test_arc_scores_put_the_root_in_front():
    scores, root = draw(4, batch=(2,))[..., 1:], torch.tensor([0.0, 1.0, 2.0, 3.0])
    arcs = ops.arc_scores(scores, root)
    assert torch.equal(arcs[..., 1:], scores) and torch.equal(arcs[..., 0], root.expand(2, 4))
    plain = ops.arc_scores(scores)
    assert torch.equal(plain[..., 0], torch.zeros(2, 4))
    # With a single root every tree has that score once, so that any other would do; word by word 0 is above all log marginals.
    assert torch.equal(
        ops.spanning_arborescence(plain), ops.spanning_arborescence(ops.arc_scores(scores, 0 * root - 50))
    )
    log_marginals = scores.log_softmax(-1)
    assert (ops.argmax_heads(ops.arc_scores(log_marginals)) == 0).all()
    never = torch.full((4,), -torch.inf)
    assert (ops.argmax_heads(ops.arc_scores(log_marginals, never)) > 0).all()


def calls(run, *arguments, **options):
    """How many functions, of Python and of C, a call calls: what loops in Python cost, on any machine."""
    count = 0

    def seen(_, event, __):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        run(*arguments, **options)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("single_root", [True, False])
def test_long_sentences_are_solved_by_whole_rows(single_root):
    """Twice the words ask for at most 2.5 times the calls (linear, give or take), where a chart or a contraction by loops asks for 4 or 8."""

    def nested(words):  # a contraction a word
        return -torch.maximum(torch.arange(words)[:, None] + 1, torch.arange(words + 1)).double()

    for solve, made in ((ops.spanning_arborescence, draw), (ops.spanning_arborescence, nested), (ops.eisner, draw)):
        few, many = (calls(solve, made(words), single_root=single_root) for words in (60, 120))
        assert many <= 2.5 * few


ARCS = torch.zeros(2, 3, 4)
EMPTY = ARCS.clone()
EMPTY[1, 2] = -torch.inf
APART = ARCS.clone()
APART[1, :, 1:] = -torch.inf
CASES = {
    "square": (lambda: ops.argmax_heads(torch.zeros(3, 3)), r"arcs must be floating and have shape \(\.\.\., N, N \+ 1\).*shape \(3, 3\); build it with arc_scores"),
    "one axis": (lambda: ops.eisner(torch.zeros(3)), r"shape \(3,\)"),
    "no words": (lambda: ops.eisner(torch.zeros(0, 1)), r"shape \(0, 1\)"),
    "integers": (lambda: ops.spanning_arborescence(ARCS.long()), "torch.int64"),
    "NaN": (lambda: ops.spanning_arborescence(ARCS * torch.nan), "arcs contains NaN"),
    "mask of another length": (lambda: ops.eisner(ARCS, torch.ones(4, dtype=torch.bool)), r"mask must be boolean and have shape \(\.\.\., 3\)"),
    "mask of numbers": (lambda: ops.eisner(ARCS, torch.ones(3)), "mask must be boolean.*give True for each word"),
    "mask of another batch": (lambda: ops.eisner(ARCS, torch.ones(5, 3, dtype=torch.bool)), r"mask \(5, 3\) does not broadcast with arcs \(2, 3, 4\)"),
    "word without heads": (lambda: ops.argmax_heads(EMPTY), "word 3 of sentence 1 of arcs may take no head"),
    "sentence without trees": (lambda: ops.spanning_arborescence(EMPTY), "sentence 1 of arcs has no tree with a single root"),
    "sentence with several roots only": (lambda: ops.eisner(APART), "sentence 1 of arcs has no tree with a single root"),
    "the same, any tree": (lambda: ops.spanning_arborescence(APART[None]), "sentence 0, 1 of arcs has no tree with a single root"),
    "scores not square": (lambda: ops.arc_scores(torch.zeros(3, 4)), r"scores must have shape \(\.\.\., N, N\)"),
    "root of another length": (lambda: ops.arc_scores(torch.zeros(3, 3), torch.zeros(4)), r"root must have shape \(\.\.\., 3\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_clear_error(name, device):
    if device != "cpu":
        pytest.skip("the arguments were made on the CPU")
    call, message = CASES[name]
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
