import math
from collections import Counter

import pytest
import torch
from tolerances import assert_frequency

from probtx_pyro.train.loop import LoopSettings
from probtx_pyro.train.masked import hidden
from probtx_pyro.train.rows import NO_TARGET, PADDING, WordRows, drawn_rows, drop_words, known_words, numbered

SETTINGS = LoopSettings(batch=4)


def rows_of(lengths):
    return WordRows([torch.arange(n) for n in lengths], [torch.full((n, 2), n) for n in lengths])


def test_every_epoch_is_a_permutation_and_batches_have_like_lengths():
    lengths = [1 + i % 17 for i in range(83)]
    drawn = drawn_rows(rows_of(lengths), SETTINGS, pool=7)
    epochs = [[drawn(20 * epoch + i) for i in range(20)] for epoch in range(3)]  # 20 batches of 4 in 83 rows
    orders = [torch.cat(batches).tolist() for batches in epochs]
    assert all(len(set(order)) == 80 for order in orders)
    assert orders[0] != orders[1] and len({i for order in orders for i in order}) == 83
    spread = [max(lengths[i] for i in batch) - min(lengths[i] for i in batch) for batch in epochs[0]]
    assert sum(spread) / 20 < 6  # four lengths drawn from 1..17 without sorting spread by 17 * 3/5 = 10 on average
    assert [len(batch) for batch in epochs[0]] == [4] * 20


def test_a_batch_is_a_function_of_seed_and_step():
    rows = rows_of([3] * 40)
    one, two = drawn_rows(rows, SETTINGS), drawn_rows(rows, SETTINGS)
    ahead = [two(step).tolist() for step in (25, 3, 11, 0)]
    assert [one(step).tolist() for step in (25, 3, 11, 0)] == ahead
    other = drawn_rows(rows, LoopSettings(batch=4, seed=1))
    assert [other(step).tolist() for step in (25, 3, 11, 0)] != ahead


def test_rows_are_padded_to_the_longest():
    words, targets = rows_of([2, 3]).pick([1, 0])
    assert words.tolist() == [[0, 1, 2], [0, 1, PADDING]]
    assert targets[..., 1].tolist() == [[3, 3, 3], [2, 2, NO_TARGET]]


def test_frequent_words_are_known_in_order():
    vocabulary, counts = known_words([["to", "be"], ["or"], ["to", "be", "to"]], rarest=2)
    assert vocabulary.tokens[1:] == ("be", "to") and counts.tolist() == [0, 2, 3]
    assert [x.tolist() for x in numbered(vocabulary, [["be", "me"], ["to"]], "test")] == [[1, 0], [2]]
    with pytest.raises(ValueError, match="sentence 2 of the test part has no words; leave it out"):
        numbered(vocabulary, [["be"], []], "test")


def test_rare_words_are_dropped_more_often():
    counts, amount, trials = torch.tensor([0, 1, 3, 100]), 0.5, 20_000
    words = torch.tensor([[1, 2, 3, PADDING]]).repeat(trials, 1)
    found = drop_words(words, counts, amount, torch.Generator().manual_seed(0))
    assert_frequency(int((found[:, 0] == 0).sum()), trials, 0.5 / 1.5)
    assert_frequency(int((found[:, 1] == 0).sum()), trials, 0.5 / 3.5)
    assert_frequency(int((found[:, 2] == 0).sum()), trials, 0.5 / 100.5)
    assert bool((found[:, 3] == PADDING).all())
    kept = drop_words(words, counts, 0.0, torch.Generator().manual_seed(0))
    assert torch.equal(kept, words)


@pytest.mark.parametrize("share", [0.15, 0.3])
def test_the_share_of_hidden_words(share):
    lengths = torch.tensor([1, 2, 7, 20]).repeat(1000)
    words = torch.where(torch.arange(20) < lengths[:, None], 5, PADDING)
    where = hidden(words, share, torch.Generator().manual_seed(0))
    assert not (where & (words == PADDING)).any()
    expected = {n: max(1, math.floor(share * n + 0.5)) for n in (1, 2, 7, 20)}
    assert all(int(row.sum()) == expected[int(n)] for row, n in zip(where, lengths, strict=True))
    first = Counter(where[lengths == 20].nonzero()[:, 1].tolist())  # no place is preferred
    for place in range(20):
        assert_frequency(first[place], 1000, expected[20] / 20)


def test_a_dropped_word_keeps_its_spelling():
    words = torch.tensor([[[1, 7, 8], [2, 9, 9], [PADDING] * 3]]).repeat(50, 1, 1)
    found = drop_words(words, torch.tensor([0, 1, 10**9]), 1e6, torch.Generator().manual_seed(0))
    assert (found[:, 0, 0] == 0).all() and (found[:, 1, 0] == 2).all()  # all but certain, and one in a thousand at most
    assert torch.equal(found[..., 1:], words[..., 1:]) and (found[:, 2] == PADDING).all()
