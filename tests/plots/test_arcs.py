import itertools

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
from matplotlib import colors, pyplot

from probtx_pyro import plots
from probtx_pyro.plots.arcs import ARC_STYLES

WORDS = ["The", "cat", "sat", "down"]
GOLD = [2, 3, 0, 3]


@pytest.fixture(autouse=True)
def _close():
    yield
    pyplot.close("all")


def arcs(ax):
    """(head, word, kind) of every arc drawn."""
    kinds = {colors.to_rgb(look["color"]): kind for kind, look in ARC_STYLES.items()}
    ends = [(*map(int, patch.get_gid().split("-")), patch) for patch in ax.patches]
    return [(head, word, kinds[colors.to_rgb(patch.get_edgecolor()[:3])]) for head, word, patch in ends]


def drawn(ax):
    """The start of each arc and the box around it and its arrow, by its (head, word)."""
    paths = [patch.get_path() for patch in ax.patches]
    return {
        (head, word): (path.vertices[0], path.get_extents())
        for path, (head, word, _) in zip(paths, arcs(ax), strict=True)
    }


def test_one_arc_a_word_from_head_to_dependent():
    ax = plots.dependency_arcs(WORDS, GOLD)
    assert arcs(ax) == [(2, 1, "as gold"), (3, 2, "as gold"), (0, 3, "as gold"), (3, 4, "as gold")]
    assert [x.get_text() for x in ax.get_xticklabels()] == WORDS
    assert ax.get_xticklabels()[0].get_rotation() == 0 and ax.get_legend() is None
    place = dict(enumerate(ax.get_xticks(), 1))
    ax.figure.canvas.draw()
    for (head, word), (start, box) in drawn(ax).items():
        sides = sorted([place[word], place[head or word]])
        # a tenth of an inch is for the arrow and the space between arcs of one head; words are 0.4 apart
        assert abs(start[0] - place[head or word]) < 0.1
        np.testing.assert_allclose([box.x0, box.x1], sides, atol=0.1)
        assert 0 <= box.y0 < 0.1 and box.y1 <= ax.get_ylim()[1]


def test_an_arc_goes_above_those_inside_it():
    ax = plots.dependency_arcs("a b c d e".split(), [2, 3, 0, 5, 1])
    tops = {arc: box.y1 for arc, (_, box) in drawn(ax).items()}
    assert tops[1, 5] > max(tops[2, 1], tops[3, 2], tops[5, 4]) and tops[0, 3] > tops[1, 5]


def test_arcs_say_whether_they_are_gold():
    ax = plots.dependency_arcs(WORDS, [3, 3, -1, 2], gold=[2, 3, 0, -1])
    assert arcs(ax) == [
        (3, 1, "not gold"), (3, 2, "as gold"), (2, 4, "as gold"), (2, 1, "gold, missed"), (0, 3, "gold, missed"),
    ]  # fmt: skip
    assert [x.get_text() for x in ax.get_legend().get_texts()] == list(ARC_STYLES)
    assert len({str(look["linestyle"]) for look in ARC_STYLES.values()}) == 3  # told apart in black and white
    assert ax.patches[0].get_linestyle() != ax.patches[1].get_linestyle()


def test_arcs_carry_their_labels_and_weights():
    ax = plots.dependency_arcs(WORDS, GOLD, labels=["det", "nsubj", "root", ""], weights=[0.0, 0.5, 1.0, 0.5])
    assert [x.get_text() for x in ax.texts] == ["det", "nsubj", "root"]
    for look in ("get_alpha", "get_linewidth"):
        thin, middle, thick, same = (getattr(patch, look)() for patch in ax.patches)
        assert 0 < thin < middle == same < thick


def test_long_sentences_turn_their_words():
    words = [f"incomprehensible{i}" for i in range(30)]
    ax = plots.dependency_arcs(words, range(30))
    ax.figure.canvas.draw()
    assert ax.get_xticklabels()[0].get_rotation() == 90
    assert ax.figure.get_size_inches()[0] < 12
    boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))  # no word over another


def test_given_axes_are_used():
    figure, ax = pyplot.subplots(figsize=(2, 2))
    assert plots.dependency_arcs(["a"], [0], ax=ax) is ax
    narrow = plots.dependency_arcs(["international"] * 4, GOLD, ax=pyplot.subplots(figsize=(2, 2))[1])
    assert narrow.get_xticklabels()[0].get_rotation() == 90
    figure.canvas.draw()


@pytest.mark.parametrize("root", [0, 1])
def test_each_channel_has_its_panel(root):
    marginals = np.random.default_rng(0).uniform(0, 1, (3, 4, 4 + root))
    marginals[2, 1] = 0
    axes = plots.channel_arcs(WORDS, marginals, gold=GOLD)
    assert axes.shape == (3,) and len(axes[0].figure.axes) == 3
    for channel, ax in enumerate(axes):
        assert ax.get_title("right") == f"channel {channel}"
        assert (ax.get_legend() is not None) == (channel == 0)
        expected = []
        for word, row in enumerate(marginals[channel], 1):
            probability, head = max((p, h) for h, p in enumerate(row, 1 - root) if h != word)
            if probability:
                kind = "as gold" if head == GOLD[word - 1] else "not gold"
                expected.append((head, word, kind))
        assert arcs(ax) == expected
    strength = [patch.get_alpha() for patch in axes[0].patches]
    largest = [max(p for h, p in enumerate(row, 1 - root) if h != word) for word, row in enumerate(marginals[0], 1)]
    assert np.argsort(strength).tolist() == np.argsort(largest).tolist()
    axes[0].figure.canvas.draw()


def test_one_channel_and_one_word():
    (ax,) = plots.channel_arcs(["a"], [[[0.0]]])
    assert arcs(ax) == []
    ax.figure.canvas.draw()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.dependency_arcs(WORDS, [0, 1]), r"heads must be 4 whole numbers, one a word"),
        (lambda: plots.dependency_arcs(WORDS, [0.0, 1, 2, 3]), "heads must be 4 whole numbers.*float64"),
        (lambda: plots.dependency_arcs(WORDS, [1, 1, 2, 3]), "heads has a head that is none of the other words; count words from 1"),
        (lambda: plots.dependency_arcs(WORDS, GOLD, [0, 1, 2, 5]), "gold has a head"),
        (lambda: plots.dependency_arcs(WORDS, GOLD, labels=["det"]), "labels has 1 entries but there are 4 words"),
        (lambda: plots.dependency_arcs(WORDS, GOLD, weights=[1.0]), "weights has 1 entries"),
        (lambda: plots.dependency_arcs(WORDS, GOLD, weights=[0.0, 1.0, 2.0, 0.0]), "weights must be from 0 to 1"),
        (lambda: plots.channel_arcs(WORDS, np.zeros((4, 4))), r"marginals must have shape \(channel, word, head\)"),
        (lambda: plots.channel_arcs(WORDS, np.zeros((2, 3, 3))), r"marginals must have shape \(C, N, N\).*N = 4"),
        (lambda: plots.channel_arcs(WORDS, np.full((2, 4, 4), -1.0)), "marginals must be from 0 to 1"),
    ],
)  # fmt: skip
def test_errors_name_the_argument_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
