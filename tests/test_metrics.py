"""Scores of heads, entities and masks against counts by hand and by loops; baselines; channels with decoders."""

import random
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from probtx_pyro import metrics, ops
from probtx_pyro.metrics import intersection_over_union, span_f1

GOLD = [[2, 0, 2], [0, 1], [0]]
PREDICTED = [[2, 3, 0], [0, 1], [0]]


def marginals(seed, *shape):
    p = np.random.default_rng(seed).exponential(size=shape)
    p[..., np.arange(shape[-2]), np.arange(shape[-2]) + shape[-1] - shape[-2]] = 0
    return p / p.sum(-1, keepdims=True)


def test_words_count_not_sentences():
    assert metrics.attachment_score(PREDICTED, GOLD) == 4 / 6
    assert metrics.attachment_score(PREDICTED[1:], GOLD[1:]) == 1.0
    kept = [[True, False, True], [True, True], [False]]
    assert metrics.attachment_score(PREDICTED, GOLD, kept) == 3 / 4


def test_padded_words_do_not_count():
    gold = torch.tensor([[2, 0, 2, -1], [0, 1, -1, -1]])
    predicted = torch.tensor([[2, 0, 1, -1], [0, 1, -1, 3]])
    assert metrics.attachment_score(predicted, gold) == 4 / 5


def test_baseline_heads_and_scores_are_those_by_hand():
    assert metrics.left_arc(4).tolist() == [0, 1, 2, 3] and metrics.right_arc(4).tolist() == [2, 3, 4, 0]
    for length in (0, 1):
        assert metrics.left_arc(length).tolist() == metrics.right_arc(length).tolist() == [0] * length
        assert metrics.random_heads(length, 0).tolist() == [0] * length
    scores = metrics.baseline_scores(GOLD, [[True, True, True], [True, True], [False]], seed=3)
    assert scores["left arc"] == 3 / 5 and scores["right arc"] == 1 / 5
    assert list(scores) == list(metrics.BASELINES) and 0 <= scores["random heads"] <= 1


def test_random_heads_are_even_and_repeat():
    drawn = np.stack([metrics.random_heads(4, seed) for seed in range(4000)])
    for word in range(4):
        counts = np.bincount(drawn[:, word], minlength=5)
        assert counts[word + 1] == 0
        others = np.delete(counts, word + 1)
        assert (abs(others - 1000) < 5 * np.sqrt(4000 * 3 / 16)).all()  # five standard deviations of a binomial
    np.testing.assert_array_equal(metrics.random_heads(9, 5), metrics.random_heads(9, 5))
    rng = np.random.default_rng(5)
    assert not np.array_equal(metrics.random_heads(9, rng), metrics.random_heads(9, rng))


@pytest.mark.parametrize("root", [0, 1])
def test_scores_of_channels_are_those_of_loops(root):
    sentences = [marginals(i, 3, n, n + root) for i, n in enumerate((4, 7, 5, 2))]
    gold = [metrics.random_heads(x.shape[1], i) for i, x in enumerate(sentences)]
    kept = [np.random.default_rng(i).random(len(heads)) < 0.8 for i, heads in enumerate(gold)]

    def likeliest(row, word):
        return max((p, slot + 1 - root) for slot, p in enumerate(row) if slot + 1 - root != word + 1)[1]

    right = []
    for x, heads, keep in zip(sentences, gold, kept, strict=True):
        for word in np.flatnonzero(keep):
            rows = [x[0, word], x[1, word], x[2, word], (x[0, word] + x[1, word] + x[2, word]) / 3]
            right.append([likeliest(row, word) == heads[word] for row in rows])
    found = metrics.channel_scores(sentences, gold, counted=kept)
    share = np.mean(right, 0)
    np.testing.assert_array_equal(found.channels, share[:3])
    assert found.averaged == share[3] and found.best == share[:3].max()
    assert found.oracle == np.mean([any(row[:3]) for row in right])
    assert found.best < found.oracle < 1  # else the example would show nothing


def test_each_channel_has_what_the_others_lack():
    gold = [[2, 3, 0, 3]]
    channels = np.full((2, 4, 5), 0.1)
    for word, head in enumerate(gold[0]):
        channels[word % 2, word, head] = 1.0
    found = metrics.channel_scores([channels], gold)
    assert found.oracle == 1.0 and found.averaged == 1.0 and found.best < 1.0


def test_a_decoder_of_trees_finds_the_root():
    def trees(p):
        return ops.eisner(ops.arc_scores(torch.as_tensor(p).log())).numpy()

    gold = [[2, 0, 2, 3]]
    channels = np.full((1, 4, 4), 0.05)
    channels[0, [0, 2, 3], [1, 1, 2]] = 0.9
    channels[0, 1] = [0.34, 0.0, 0.33, 0.33]
    channels[0, range(4), range(4)] = 0
    assert metrics.channel_scores([channels], gold).best == 3 / 4
    assert metrics.channel_scores([channels], gold, trees).best == 1.0


def test_one_word_without_a_root_has_the_root():
    assert metrics.likeliest_heads(np.zeros((2, 1, 1))).tolist() == [[0], [0]]


def tags(*sentences):
    return [sentence.split() for sentence in sentences]


def test_f1_by_hand():
    gold = tags("B-per I-per O B-loc", "O B-org", "B-per B-per")
    assert span_f1(gold, gold) == 1.0
    # right: the location, the organisation, the first person of two. Wrong: a boundary, and one person left out.
    predicted = tags("B-per O O B-loc", "O B-org", "B-per O")
    assert span_f1(predicted, gold) == pytest.approx(2 * 3 / (4 + 5), rel=1e-12)
    assert span_f1(tags("B-loc I-loc O O"), gold[:1]) == 0.0  # the boundary alone does not count
    assert span_f1(tags("O O O O"), gold[:1]) == span_f1(tags("O"), tags("O")) == 0.0


def test_an_inside_tag_that_goes_on_with_nothing_begins_an_entity():
    assert span_f1(tags("I-per I-per O", "B-loc I-per"), tags("B-per I-per O", "B-loc B-per")) == 1.0


def spans(tags):
    """Entities by a pattern over the tags, one letter each: a type's number, small for I and capital for B."""
    types = sorted({tag[2:] for tag in tags if tag != "O"})
    letters = [chr(97 + types.index(tag[2:])) if tag != "O" else "." for tag in tags]
    text = "".join(c.upper() if tag[0] == "B" else c for c, tag in zip(letters, tags, strict=True))
    pattern = "|".join(f"{c}{c.lower()}*" for i in range(len(types)) for c in (chr(65 + i), chr(97 + i)))
    found = re.finditer(pattern, text) if types else ()
    return {(m.start(), m.end(), types[ord(m[0][0].lower()) - 97]) for m in found}


def test_f1_of_random_tags_against_a_second_way():
    draw = random.Random(3)
    seen = set()
    for _ in range(60):
        lengths = [draw.randint(1, 9) for _ in range(draw.randint(1, 6))]
        sides = [
            [draw.choices(("O", "B-a", "I-a", "B-b", "I-b"), weights=(4, 2, 2, 1, 1), k=n) for n in lengths]
            for _ in "pg"
        ]
        sides[0] = [p if draw.random() < 0.6 else g for p, g in zip(*sides, strict=True)]
        ours, theirs = ({(i, *span) for i, row in enumerate(side) for span in spans(row)} for side in sides)
        expected = 2 * len(ours & theirs) / max(len(ours) + len(theirs), 1)
        assert span_f1(*sides) == pytest.approx(expected, rel=1e-12)  # a few divisions apart
        seen.add(expected)
    assert len(seen) > 20


def test_scores_of_what_does_not_fit(monkeypatch):
    for predicted, gold, message in (
        (tags("O"), [], "1 predicted sentences for 0"),
        (tags("O", "O O"), tags("O", "O"), r"predicted\[1\] has 2 tags, gold\[1\] has 1"),
        (tags("O"), tags("X"), "'X' in sentence 0 is no BIO tag"),
        (tags("B"), tags("O"), "'B' in sentence 0 is no BIO tag"),
    ):
        with pytest.raises(ValueError, match=message):
            span_f1(predicted, gold)
    monkeypatch.setitem(sys.modules, "nervaluate", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install -e '\.\[train\]' in the folder"):
        span_f1(tags("O"), tags("O"))


def test_intersection_over_union_by_hand():
    truth = np.array([[1, 1, 1, 2], [3, 3, 2, 2]])
    predicted = np.array([[1, 1, 2, 2], [3, 1, 2, 2]])
    assert intersection_over_union(truth, predicted).tolist() == [2 / 4, 3 / 4, 1 / 2]


def test_masks_that_cannot_be_compared():
    with pytest.raises(ValueError, match=r"truth has shape \(1, 2\) but predicted has shape \(1, 1\)"):
        intersection_over_union(np.ones((1, 2), int), np.ones((1, 1), int))
    with pytest.raises(ValueError, match="truth has no labelled pixel"):
        intersection_over_union(np.zeros((1, 2), int), np.ones((1, 2), int))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.attachment_score(GOLD[:2], GOLD), "predicted has 2 sentences but gold has 3"),
        (lambda: metrics.attachment_score(GOLD, GOLD, [[True]]), "counted has 1 sentences but gold has 3"),
        (lambda: metrics.attachment_score([[0, 1]], [[0]]), r"predicted\[0\] has 2 words but gold\[0\] has 1"),
        (lambda: metrics.attachment_score([[0]], [[1]]), r"gold\[0\] has a head that is no other word; count words from 1"),
        (lambda: metrics.attachment_score([[0], [0, 3]], [[0], [0, 1]]), r"predicted\[1\] has a head"),
        (lambda: metrics.attachment_score([[0.0]], [[0]]), r"predicted\[0\] must be whole numbers of shape \(N,\).*float64"),
        (lambda: metrics.attachment_score([[0]], [[[0]]]), r"gold\[0\] must be whole numbers of shape \(N,\).*\(1, 1\)"),
        (lambda: metrics.attachment_score([[0]], [[0]], [[1]]), r"counted\[0\] must be 1 booleans, but is int64"),
        (lambda: metrics.attachment_score([[0]], [[0]], [[False]]), "gold has no word that counts"),
        (lambda: metrics.attachment_score([], []), "gold has no word that counts"),
        (lambda: metrics.channel_scores([np.zeros((3, 3))], [[0, 1, 2]]), r"head_marginals\[0\] must have shape \(C, N, N\)"),
        (lambda: metrics.channel_scores([np.full((1, 2, 2), np.nan)], [[0, 1]]), r"head_marginals\[0\] contains NaN"),
        (lambda: metrics.channel_scores([np.zeros((1, 2, 2)), np.zeros((2, 2, 2))], [[0, 1]] * 2), "differ in their number of channels"),
        (lambda: metrics.channel_scores([np.zeros((1, 2, 2))], [[0, 1, 2]]), r"predicted\[0\] has 2 words but gold\[0\] has 3"),
    ],
)  # fmt: skip
def test_errors_name_the_argument_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_scores_need_no_torch():
    code = "import sys; from probtx_pyro import metrics; metrics.left_arc(3); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
