"""Beam search beside the enumeration of every sequence, beside a beam of Python lists, and beside greedy decoding."""

import itertools
import math
from typing import NamedTuple

import pytest
import torch
from strategies import generator
from tolerances import rounding

from probtx_pyro.apps._translation import beam_search

VOCABULARY, START, END = 4, 0, 1


class Prefixes(NamedTuple):
    """State of a model that looks its probabilities up by problem and whole prefix."""

    problems: torch.Tensor
    prefixes: torch.Tensor

    def rows(self, index):
        return Prefixes(self.problems[index], self.prefixes[index])


def tables(count, longest, ties=False):
    """Log probabilities of the next token after every prefix, for each problem; with ties all are multiples of a half."""
    draw, found = generator(7), []
    for _ in range(count):
        table = {}
        for length in range(longest):
            for prefix in itertools.product(range(VOCABULARY), repeat=length):
                logits = torch.randn(VOCABULARY, generator=draw) * 1.5
                table[prefix] = (logits.mul(2).round() / 2 if ties else logits.log_softmax(0)).tolist()
        found.append(table)
    return found


def searched(found, longest, **options):
    """Answers of the search for every problem."""
    seen = []

    def step(tokens, state):
        prefixes = torch.cat([state.prefixes, tokens[:, None]], 1)
        seen.append(len(tokens))
        rows = [found[i][tuple(row[1:])] for i, row in zip(state.problems.tolist(), prefixes.tolist(), strict=True)]
        return torch.tensor(rows, dtype=torch.float32), Prefixes(state.problems, prefixes)

    count = len(found)
    state = Prefixes(torch.arange(count), torch.zeros(count, 0, dtype=torch.long))
    longest = [longest] * count if isinstance(longest, int) else longest
    return beam_search(step, state, longest, start=START, end=END, never=(START,), **options), seen


def normalised(value, length, alpha):
    return value / ((5 + length) / 6) ** alpha


def value_of(table, tokens):
    """Log probability of a sequence with its end."""
    return sum(table[tokens[:i]][token] for i, token in enumerate((*tokens, END)))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_that_holds_everything_finds_the_best_of_all_sequences(alpha):
    found = tables(5, 4)
    best, _ = searched(found, 4, width=60, length_penalty=alpha)  # there are 1 + 2 + 4 + 8 sequences with an end
    for table, hypothesis in zip(found, best, strict=True):
        every = [tokens for n in range(4) for tokens in itertools.product((2, 3), repeat=n)]
        scores = {tokens: normalised(value_of(table, tokens), len(tokens) + 1, alpha) for tokens in every}
        assert hypothesis.tokens == max(scores, key=scores.get)
        # sums of four numbers in float32
        assert abs(hypothesis.score - max(scores.values())) <= rounding(torch.tensor(scores[hypothesis.tokens]).float())
        assert abs(hypothesis.log_probability - value_of(table, hypothesis.tokens)) <= 1e-5


def by_lists(table, width, longest, alpha):
    """The same search, sequence by sequence."""
    beam, done = [((), 0.0)], []
    for length in range(1, longest + 1):
        candidates = []
        for rank, (tokens, value) in enumerate(beam):
            for token in (END,) if length == longest else range(1, VOCABULARY):
                candidates.append((-(value + table[tokens][token]), rank, token))
        candidates.sort()
        follow = []
        for place, (negative, rank, token) in enumerate(candidates):
            if token == END and place < width:
                done.append((beam[rank][0], -negative, length))
            elif token != END and len(follow) < width:
                follow.append(((*beam[rank][0], token), -negative))
        beam = follow
        if len(done) >= width or not beam:
            break
    best = max(done, key=lambda each: normalised(each[1], each[2], alpha))
    return best[0]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_narrow_beam_is_the_beam_of_lists(width, ties):
    found, longest = tables(12, 5, ties), [1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5, 5]
    best, seen = searched(found, longest, width=width)
    assert [each.tokens for each in best] == [
        by_lists(table, width, n, 0.6) for table, n in zip(found, longest, strict=True)
    ]
    assert seen[0] == 12 * width and seen[-1] < seen[0]  # problems that are done cost nothing


def test_a_width_of_one_is_greedy():
    found = tables(20, 6)
    best, _ = searched(found, 6, width=1)
    for table, hypothesis in zip(found, best, strict=True):
        tokens = ()
        while len(tokens) < 5:
            allowed = table[tokens][1:]
            token = 1 + allowed.index(max(allowed))
            if token == END:
                break
            tokens = (*tokens, token)
        assert hypothesis.tokens == tokens


def test_a_wider_beam_helps_somewhere_and_a_problem_does_not_know_of_the_others():
    found = tables(40, 5)
    narrow, wide = (searched(found, 5, width=width, length_penalty=0.0)[0] for width in (1, 4))
    gains = [b.log_probability - a.log_probability for a, b in zip(narrow, wide, strict=True)]
    assert max(gains) > 0.1 and all(math.isfinite(gain) for gain in gains)
    assert [searched([table], 5, width=4, length_penalty=0.0)[0][0] for table in found] == wide


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "width must be 1 or more"),
        ({"length_penalty": -1.0}, "length_penalty must not be negative"),
    ],
)
def test_bad_arguments_are_one_clear_error(change, message):
    options = {"width": 2, "longest": [3], **change}
    with pytest.raises(ValueError, match=message):
        searched(tables(1, 3), options.pop("longest"), **options)
