"""Scores of arcs and messages along them, against their definition as sums over pairs of words."""

import pytest
import torch
from strategies import generator
from tolerances import assert_equal

from probtx_pyro.ops import _arc_kernel as kernel
from probtx_pyro.ops.dependency_crf import group_of

DISTANCES = [(), (2,), (3,), (2, 3), (2, 4), (3, 5, 8), (2, 3, 4, 5, 6, 7, 8, 9)]
distances = pytest.mark.parametrize("distances", DISTANCES, ids=str)
low_rank = pytest.mark.parametrize("rank", [None, 2], ids=["full", "low rank"])


channels = pytest.mark.parametrize("channels", [1, 3], ids=["one channel", "three channels"])


def draw(seed, length, distances, rank, batch=2, labels=3, channels=1):
    g, groups = generator(seed), 2 * (len(distances) + 1)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_()

    left = None if rank is None else normal(groups, channels, labels, rank)
    right = normal(groups, channels, labels, rank or labels)
    return normal(batch, length, labels), left, right, normal(channels, batch, length, length)


def arcs_of(distances, q, left, right):
    """Arcs with potentials that are given as (G, c, L, r)."""
    groups, right = kernel.arcs.Groups.of(distances, q), right.transpose(0, 1)
    weights = (
        kernel.arcs.FullRank(right.mT.contiguous())
        if left is None
        else kernel.arcs.LowRank.of(groups, left.transpose(0, 1), right)
    )
    return kernel.arcs.Arcs.of(groups, q, weights)


def groups_by_definition(distances, length):
    """(G, N, N), 1 where word i and its head j are in the group: loops over pairs."""
    member = torch.zeros(2 * (len(distances) + 1), length, length, dtype=torch.float64)
    for i in range(length):
        for j in range(length):
            if i != j:
                ring = sum(abs(i - j) >= edge for edge in distances)
                member[ring if j > i else ring + len(distances) + 1, i, j] = 1
    return member


def by_definition(q, left, right, p, distances):
    member = groups_by_definition(distances, q.shape[1])
    ternary = right.mT if left is None else left @ right.mT
    scores = torch.einsum("bia,bjd,gcad,gij->cbij", q, q, ternary, member)
    above = torch.einsum("cbij,gij,gcad,bjd->bia", p, member, ternary, q)
    below = torch.einsum("cbji,gji,gcda,bjd->bia", p, member, ternary, q)
    return scores, above + below


@pytest.mark.pairs
@distances
@low_rank
@pytest.mark.parametrize(("channels", "length"), [(1 if length % 2 else 3, length) for length in range(1, 10)])
@pytest.mark.parametrize("compiling", [False, True], ids=["by hand", "for a compiler"])
def test_scores_messages_and_gradients_are_their_definitions(distances, rank, channels, length, compiling, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    q, left, right, p = draw(length, length, distances, rank, channels=channels)
    arcs = arcs_of(distances, q, left, right)
    ours, theirs = (arcs.scores, arcs.messages(p, torch.zeros_like(q))), by_definition(q, left, right, p, distances)
    inputs = [x for x in (q, left, right, p) if x is not None]
    weights = [torch.randn(x.shape, generator=generator(90), dtype=torch.float64) for x in theirs]
    for x, y in zip(ours, theirs, strict=True):
        assert_equal(x, y)
    if length > 1:
        pairs = [
            torch.autograd.grad(sum((w * x).sum() for w, x in zip(weights, found, strict=True)), inputs)
            for found in (ours, theirs)
        ]
        for x, y in zip(*pairs, strict=True):
            assert_equal(x, y)


@low_rank
@channels
def test_gradients_are_finite_differences(rank, channels):
    q, left, right, p = draw(1, 5, (2, 4), rank, labels=2, channels=channels)

    def both(q, p, *weights):
        arcs = arcs_of((2, 4), q, *(weights if rank else (None, *weights)))
        return arcs.scores, arcs.messages(p, torch.zeros_like(q))

    inputs = [x for x in (q, p, left, right) if x is not None]
    assert torch.autograd.gradcheck(both, inputs, check_undefined_grad=False)


@distances
@pytest.mark.parametrize("length", range(1, 10))
def test_every_pair_is_in_the_group_of_its_distance(distances, length):
    member = groups_by_definition(distances, length)
    group = group_of(distances, length)
    for g, i, j in member.nonzero().tolist():
        assert group[i, j] == g
    assert set(kernel.arcs.Groups.of(distances, torch.zeros(length, 1)).numbers) == set(member.nonzero()[:, 0].tolist())


@low_rank
def test_memory_layout_changes_nothing(rank):
    q, left, right, p = draw(2, 4, (2,), rank, batch=3)
    laid = [x.detach().transpose(-3, -2).contiguous().transpose(-3, -2) for x in (q, p)]
    assert not any(x.is_contiguous() for x in laid)
    plain, other = (arcs_of((2,), x, left, right) for x in (q, laid[0]))
    assert_equal(other.scores, plain.scores)
    assert_equal(other.messages(laid[1], torch.zeros_like(plain.q)), plain.messages(p, torch.zeros_like(plain.q)))


def test_head_marginals_of_a_word_and_itself_change_nothing():
    q, left, right, p = draw(3, 5, (2,), None)
    found = []
    for heads in (p, p + torch.eye(5)):
        arcs = arcs_of((2,), q, left, right)
        found.append(arcs.messages(heads, torch.zeros_like(q)))
        assert (arcs.scores.diagonal(dim1=-2, dim2=-1) == 0).all()
    assert_equal(found[1], found[0])


@pytest.mark.pairs
@low_rank
@channels
@pytest.mark.parametrize("used", [(True, False), (False, True)], ids=["scores alone", "messages alone"])
def test_gradients_of_one_without_the_other(rank, channels, used):
    q, left, right, p = draw(4, 5, (2, 4), rank, channels=channels)
    inputs = [x for x in (q, left, right, *((p,) if used[1] else ())) if x is not None]
    arcs = arcs_of((2, 4), q, left, right)
    ours = arcs.scores, arcs.messages(p, torch.zeros_like(q))
    found = [
        torch.autograd.grad(sum(x.square().sum() for x, use in zip(both, used, strict=True) if use), inputs)
        for both in (ours, by_definition(q, left, right, p, (2, 4)))
    ]
    for x, y in zip(*found, strict=True):
        assert_equal(x, y)


@low_rank
def test_a_backward_pass_leaves_nothing_to_the_next(rank):
    """Neither one through a part of the graph alone, which ends before the scores, nor a whole one."""
    q, left, right, p = draw(5, 6, (2,), rank)
    arcs = arcs_of((2,), q, left, right)
    total = arcs.scores.square().sum() + arcs.messages(p, torch.zeros_like(q)).square().sum()
    inputs = [x for x in (q, p, left, right) if x is not None]
    (alone,) = torch.autograd.grad(total, p, retain_graph=True)
    first, second = (torch.autograd.grad(total, inputs, retain_graph=True) for _ in range(2))
    assert torch.equal(alone, first[1])
    for x, y in zip(first, second, strict=True):
        assert torch.equal(x, y)


def test_messages_are_added_to_what_was_told_before():
    q, left, right, p = draw(6, 5, (2,), None)
    before = torch.randn(q.shape, generator=generator(7), dtype=torch.float64).requires_grad_()
    told = arcs_of((2,), q, left, right).messages(p, before.clone())
    assert_equal(told, before + by_definition(q, left, right, p, (2,))[1])
    (gradient,) = torch.autograd.grad((told * q).sum(), before)
    assert torch.equal(gradient, q)


@low_rank
@channels
def test_a_sentence_that_is_not_finite_stays_alone(rank, channels):
    """Scores, messages and gradients of those beside it in the batch are finite; runs and a band."""
    q, left, right, p = draw(9, 6, (2, 3), rank, batch=3, channels=channels)
    q = q.detach().clone()
    q[1] = torch.nan
    q.requires_grad_()
    arcs = arcs_of((2, 3), q, left, right)
    found = arcs.scores.transpose(0, 1), arcs.messages(p, torch.zeros_like(q))
    gradient = torch.autograd.grad(sum(x[::2].square().sum() for x in found), q)[0]
    for x in (*found, gradient):
        assert x[::2].isfinite().all()
    assert all(x[1].isnan().any() for x in found)


def test_messages_are_asked_for_once():
    q, left, right, p = draw(8, 4, (2,), None)
    arcs = arcs_of((2,), q, left, right)
    arcs.messages(p, torch.zeros_like(q))
    with pytest.raises(RuntimeError, match="once"):
        arcs.messages(p, torch.zeros_like(q))


@low_rank
@channels
def test_without_gradients_the_numbers_are_the_same(rank, channels):
    q, left, right, p = draw(10, 6, (2, 3), rank, channels=channels)

    def found():
        arcs = arcs_of((2, 3), q, left, right)
        return arcs, arcs.scores, arcs.messages(p, torch.zeros_like(q))

    with torch.no_grad():
        plain = found()
    for x, y in zip(plain[1:], found()[1:], strict=True):
        assert torch.equal(x, y) and not x.requires_grad
        assert y.requires_grad
    arcs = arcs_of((2, 3), q, left, right)
    with torch.no_grad():  # only the messages
        assert torch.equal(plain[2], arcs.messages(p, torch.zeros_like(q)))


def test_messages_with_gradients_need_arcs_made_with_gradients():
    q, left, right, p = draw(11, 4, (2,), None)
    with torch.no_grad():
        arcs = arcs_of((2,), q, left, right)
    with pytest.raises(RuntimeError, match="gradients are enabled"):
        arcs.messages(p, torch.zeros_like(q))
