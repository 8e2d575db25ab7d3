"""Segmentation on pictures whose truth is known, and what must not change the answer."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from pyro.distributions import Normal, Wishart
from scipy import ndimage
from scipy.sparse.csgraph import floyd_warshall

from probtx_pyro import models
from probtx_pyro.apps.segmentation import (
    InteractiveSegmenter,
    Segmentation,
    SegmentationSettings,
    _segmenter,
    _units,
    first_clicks,
    lab_colours,
    marks_from_clicks,
    overlay,
)
from probtx_pyro.apps.segmentation._segmenter import after
from probtx_pyro.inference import adapt
from probtx_pyro.metrics import intersection_over_union
from probtx_pyro.models import GaussianMixture

HEIGHT, WIDTH = 60, 80
COLOURS = np.array([(200, 60, 50), (60, 140, 70), (50, 70, 190)])


def scene(num_classes=2, noise=8.0, seed=0):
    """A disc (class 2), for three classes a stripe as well (class 3), on a background (class 1); the truth beside it."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    truth = np.ones((HEIGHT, WIDTH), int)
    truth[(y - 28) ** 2 + (x - 26) ** 2 < 15**2] = 2
    if num_classes == 3:
        truth[:, 55:66] = 3
    image = COLOURS[truth - 1] + np.random.default_rng(seed).normal(0, noise, (HEIGHT, WIDTH, 3))
    return image.clip(0, 255).astype(np.uint8), truth


@functools.cache
def segmenter(num_classes=2, noise=8.0):
    """The segmenter of a `scene`, which answers leave as it is."""
    return InteractiveSegmenter.from_image(scene(num_classes, noise)[0])


def clicked(truth):
    return marks_from_clicks(truth.shape, first_clicks(truth))


@pytest.mark.parametrize(("num_classes", "noise"), [(2, 0.0), (2, 8.0), (2, 20.0), (3, 0.0), (3, 8.0)])
def test_one_click_a_class_finds_well_separated_regions(num_classes, noise):
    _, truth = scene(num_classes, noise)
    answer = segmenter(num_classes, noise).segment(clicked(truth), background=1)  # the stripe is at the frame, too
    assert intersection_over_union(truth, answer.mask).min() > 0.93  # what is lost is a rim of about half a pixel


def test_clicks_are_needed_because_swapped_clicks_swap_the_answer():
    _, truth = scene()
    marks = clicked(truth)
    picture = segmenter()
    swapped = picture.segment(np.where(marks > 0, 3 - marks, 0))
    assert (swapped.mask == 3 - picture.segment(marks).mask).mean() > 0.999


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64])
def test_labels_are_names_only(dtype):
    _, truth = scene(3)
    marks = clicked(truth)
    picture = segmenter(3)
    plain = picture.segment(marks)
    names = np.array([0, 90, 7, 255 if dtype == np.uint8 else 1000], dtype)
    renamed = picture.segment(names[marks])
    assert renamed.mask.dtype == dtype
    assert renamed.classes.tolist() == sorted(names[1:].tolist())
    back = np.argsort(np.argsort(names[1:]))  # class c of the plain answer is column back[c] of the renamed one
    np.testing.assert_allclose(
        renamed.probabilities[..., back], plain.probabilities, atol=1e-5
    )  # float32 sums in another order
    best_two = np.sort(plain.probabilities, -1)[..., -2:]
    clear = best_two[..., 1] - best_two[..., 0] > 1e-4
    assert clear.mean() > 0.99
    assert (renamed.mask == names[plain.mask])[clear].all()


def test_answer_is_a_distribution_and_marks_keep_their_label():
    _, truth = scene(3, noise=20.0)
    rng = np.random.default_rng(1)
    marks = np.where(
        rng.random(truth.shape) < 0.02, rng.integers(1, 4, truth.shape), 0
    )  # random labels: contradictions all over
    answer = segmenter(3, noise=20.0).segment(marks)
    assert answer.probabilities.shape == (HEIGHT, WIDTH, 3)
    assert answer.probabilities.dtype == np.float32
    assert (answer.probabilities >= 0).all()
    np.testing.assert_allclose(answer.probabilities.sum(-1), 1, atol=1e-5)
    assert (marks > 0).sum() > 50
    assert (answer.mask[marks > 0] == marks[marks > 0]).all()


def test_a_click_that_repeats_what_is_sure_changes_next_to_nothing():
    _, truth = scene()
    picture, marks = segmenter(), clicked(truth)
    before = picture.segment(marks)
    again = marks.copy()
    y, x = np.argwhere(marks == 2)[0]
    again[y + 1, x] = 2
    after = picture.segment(again)
    assert (after.mask != before.mask).mean() < 0.002


def test_a_correcting_click_turns_the_region_it_is_in():
    _, truth = scene(3)
    marks = clicked(truth)
    marks[marks == 3] = 1  # the stripe is marked as background at first
    picture = segmenter(3)
    stripe = truth == 3
    assert (picture.segment(marks).mask[stripe] == 1).mean() > 0.9
    marks[30, 60] = 2
    marks[marks == 1] = np.where(truth[marks == 1] == 3, 0, 1)
    assert (picture.segment(marks).mask[stripe] == 2).mean() > 0.9


@pytest.mark.parametrize(("y", "x"), [(100, 100), (104, 111), (112, 112), (111, 120)])
def test_marks_of_two_classes_two_pixels_apart_divide_a_flat_picture_between_them(y, x):
    """Wherever the pair lies on the grid of units: in one unit, in two, or between them."""
    image = np.full((200, 240, 3), 120, np.uint8)
    marks = np.zeros((200, 240), int)
    marks[y, x], marks[y, x + 2] = 1, 2
    settings = replace(SegmentationSettings(), num_units=190)  # steps of 16 pixels
    answer = InteractiveSegmenter.from_image(image, settings=settings).segment(marks, background=0)
    row = answer.mask[y, x - 5 : x + 8]
    assert (row[:6] == 1).all()
    assert (row[7:] == 2).all()
    near = answer.probabilities[y, [x - 3, x - 2, x - 1, x + 3, x + 4, x + 5]].max(-1)
    assert near.min() > 0.55  # units beside the one that holds both marks are as near to the one as to the other


def test_scribbles_are_many_clicks():
    _, truth = scene()
    picture = segmenter()
    scribbles = np.zeros(truth.shape, np.uint8)
    scribbles[28, 20:34], scribbles[5, 5:60] = 2, 1
    clicks = [(28, x, 2) for x in range(20, 34)] + [(5, x, 1) for x in range(5, 60)]
    drawn, played = picture.segment(scribbles), picture.segment(marks_from_clicks(truth.shape, clicks))
    np.testing.assert_array_equal(drawn.probabilities, played.probabilities)


def test_every_pixel_marked_is_answered_with_the_marks():
    picture = segmenter()
    marks = np.random.default_rng(0).integers(1, 3, picture.shape)
    assert (picture.segment(marks).mask == marks).all()


def test_half_of_all_pixels_marked():
    rng = np.random.default_rng(0)
    truth = np.ones((150, 200), int)
    truth[40:110, 60:150] = 2
    image = (COLOURS[truth - 1] + rng.normal(0, 8, (150, 200, 3))).clip(0, 255).astype(np.uint8)
    marks = np.where(rng.random(truth.shape) < 0.5, truth, 0)
    unseen = marks == 0
    assert (InteractiveSegmenter.from_image(image).segment(marks).mask == truth)[unseen].mean() > 0.98


@pytest.mark.parametrize("shape", [(1, 2), (1, 700), (300, 1), (3, 200), (8, 9), (31, 47)])
def test_small_and_thin_pictures(shape):
    image = np.zeros((*shape, 3), np.uint8)
    image.reshape(-1, 3)[image.shape[0] * image.shape[1] // 2 :] = 220
    marks = np.zeros(shape, int)
    marks.flat[0], marks.flat[-1] = 1, 2
    answer = InteractiveSegmenter.from_image(image).segment(marks)
    assert np.isfinite(answer.probabilities).all()
    assert answer.mask.flat[0] == 1
    assert answer.mask.flat[-1] == 2


def test_grey_float_and_integer_pictures_agree():
    image, truth = scene(noise=0.0)
    grey = image[..., 0]
    colour = np.repeat(grey[..., None], 3, -1)
    marks = clicked(truth)
    answers = [InteractiveSegmenter.from_image(x).segment(marks).probabilities for x in (colour, grey, grey / 255.0)]
    np.testing.assert_allclose(answers[1], answers[0], atol=1e-4)
    np.testing.assert_allclose(answers[2], answers[0], atol=1e-4)


def test_features_are_an_argument():
    image, truth = scene()
    marks = clicked(truth)
    given = InteractiveSegmenter.from_image(image, features=lambda image: lab_colours(image)).segment(marks)
    np.testing.assert_array_equal(given.mask, segmenter().segment(marks).mask)
    blind = InteractiveSegmenter.from_image(image, features=lambda image: np.zeros((*image.shape[:2], 1))).segment(
        marks
    )
    assert intersection_over_union(truth, blind.mask)[1] < 0.7  # position alone cannot know the disc


def test_a_memory_of_answers_leaves_no_trace():
    image, truth = scene()
    picture, marks = InteractiveSegmenter.from_image(image), clicked(truth)
    first = picture.segment(marks).probabilities
    picture.segment(np.where(marks > 0, 3 - marks, 0))
    np.testing.assert_array_equal(picture.segment(marks).probabilities, first)


def test_one_thread_computes_and_the_session_keeps_its_own():
    image, _ = scene()
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        InteractiveSegmenter.from_image(
            image, features=lambda x: seen.append(torch.get_num_threads()) or lab_colours(x)
        )
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def test_dtype_and_threads_of_the_session_do_not_matter():
    image, truth = scene()
    marks = clicked(truth)
    wide = InteractiveSegmenter.from_image(image).segment(marks).probabilities  # conftest: float64 by default
    torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(InteractiveSegmenter.from_image(image).segment(marks).probabilities, wide)


@pytest.mark.parametrize(("block", "slack"), [(20, 1e-4), (4, 0.07)])
def test_units_adapt_as_one_dense_mixture_would(block, slack, monkeypatch):
    """One block is the dense mixture but for rounding. Small ones leave out what lies beyond their ring, to which a pixel
    at the edge, 1.5 steps away, attends with exp(-α/2 1.5²) = 0.024 of the weight of its own: a few hundredths of a
    key's width 1/√α, several times over where steps go the same way.
    """
    monkeypatch.setattr(_units, "_BLOCK", block)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    image = np.stack([x * 2 + 40, y * 3 + 20, 200 - x], -1).astype(np.uint8)
    settings = SegmentationSettings(num_units=300)
    cells = _units.cut(lab_colours(image), settings.num_units, settings.colour_scale)
    assert cells.step <= 4  # every pixel takes part
    weights = cells.inside.to(torch.float32)
    initial = (cells.queries * weights.unsqueeze(-1)).sum(1) / weights.sum(1, keepdim=True)
    start = GaussianMixture(initial, key_precision=settings.key_precision)
    posterior = models.bayesian(start, keys=Normal(initial, 1.0))
    queries = cells.queries.flatten(0, 1)
    dense = adapt(posterior, queries, num_steps=3, query_weights=weights.flatten()).formulation.keys
    moved = (dense - initial).norm(dim=-1).mean()
    assert moved > 0.02  # else the two would agree for nothing
    assert (_units.adapt_units(cells, settings) - dense).norm(dim=-1).max() < slack * settings.key_precision**-0.5


def small_picture(coupling=2.0):
    """A picture of 3 x 3 units in noisy colours, one marked of each class."""
    image = np.random.default_rng(0).integers(0, 255, (3, 3, 3)).astype(np.uint8).repeat(8, 0).repeat(8, 1)
    marks = np.zeros((24, 24), int)
    marks[4, 4], marks[20, 20] = 1, 2
    settings = SegmentationSettings(num_units=9, num_colours=3, coupling=coupling)
    return InteractiveSegmenter.from_image(image, settings=settings), marks


def test_the_potentials_are_paths_and_colours_by_hand(monkeypatch):
    """Nine units; paths by Floyd and Warshall, the colours of classes by scalars, one round."""
    monkeypatch.setattr(_segmenter, "_ROUNDS", 1)
    monkeypatch.setattr(InteractiveSegmenter, "_strays", lambda self, told, belief, outside: torch.zeros(9, 2).bool())
    picture, marks = small_picture()
    units, settings = picture.units, picture.settings
    colours = units.keys[:, :3].double().numpy()
    home = units.home
    assert sorted(np.unique(home)) == list(range(9))
    graph, touch = np.full((10, 10), np.inf), {}
    for y in range(24):
        for x in range(24):
            for a, b in (((y, x), (y, x + 1)), ((y, x), (y + 1, x))):
                if b[0] < 24 and b[1] < 24 and home[a] != home[b]:
                    j, k = sorted((home[a], home[b]))
                    touch[j, k] = touch.get((j, k), 0) + 1
                    graph[j, k] = graph[k, j] = np.linalg.norm(colours[j] - colours[k]) + settings.hop_cost
    for j in {*home[0], *home[-1], *home[:, 0], *home[:, -1]}:
        graph[j, 9] = graph[9, j] = settings.frame_cost  # of class 2, the background
    inner = floyd_warshall(graph[:9, :9])
    first, second = home[4, 4], home[20, 20]
    frame = np.minimum.reduce([inner[:, j] for j in range(9) if np.isfinite(graph[j, 9])]) + settings.frame_cost
    lengths = np.stack([inner[:, first], np.minimum(inner[:, second], frame)], 1)
    paths = -settings.path_evidence * lengths / lengths.sum(1, keepdims=True)
    belief = np.exp(paths) / np.exp(paths).sum(1, keepdims=True)
    counts, shares, logs = (x.double().numpy() for x in (units.counts, units.shares, units.colours))
    expected = np.empty((9, 2))
    for c in (0, 1):
        mass = counts * settings.unmarked * abs(belief[:, 0] - belief[:, 1]) * belief[:, c]
        mass[first], mass[second] = counts[first] * (c == 0), counts[second] * (c == 1)
        weights = shares.copy()
        for _ in range(10):
            terms = weights * np.exp(logs)
            weights = mass @ (terms / terms.sum(1, keepdims=True)) + settings.colour_prior * shares
            weights /= weights.sum()
        expected[:, c] = paths[:, c] + settings.colour_evidence * np.sqrt(counts) * np.log(np.exp(logs) @ weights)
    found = picture.field(marks, background=2)
    free = [j for j in range(9) if j not in (first, second)]
    np.testing.assert_allclose(found.unary.double().numpy()[free], expected[free], rtol=1e-3, atol=1e-3)  # float32
    assert found.unary[first, 1] == found.unary[second, 0] == -np.inf
    squares = {pair: np.sum((colours[pair[0]] - colours[pair[1]]) ** 2) for pair in touch}
    spread = np.mean(list(squares.values()))
    for (j, k), coupling in zip(found.edges.pairs.tolist(), found.coupling.tolist(), strict=True):
        own = settings.coupling * touch[j, k] / picture.cells.step * np.exp(-squares[j, k] / spread / 2)
        assert coupling == pytest.approx(own, rel=1e-4)


def test_the_answer_of_the_units_is_the_mean_field_near_the_exact_marginals():
    picture, marks = small_picture(coupling=0.5)
    field = picture.field(marks)
    found, exact = field.mean_field().label_marginals, field.marginals()
    assert (found - exact).abs().max() < 0.1  # of couplings this weak
    independent = small_picture(coupling=0.0)[0].field(marks)
    torch.testing.assert_close(independent.mean_field().label_marginals, independent.unary.softmax(-1))


def test_colour_units_are_a_mixture_whose_likelihood_rises(monkeypatch):
    """Each ECM step raises the density of the colours and their prior, of which the second is bounded."""
    random = torch.Generator().manual_seed(0)
    colours = torch.cat(
        [torch.randn(100, 3, generator=random, dtype=torch.float64) * s + m for s, m in ((0.3, 0), (0.6, 1))]
    )
    counts, found = torch.rand(200, generator=random, dtype=torch.float64) + 0.5, []
    for steps in (1, 2, 4, 8, 30):
        monkeypatch.setattr(_units, "_COLOUR_STEPS", steps)
        logs, shares = _units.mix_colours(colours, counts, 2)
        found.append(float(counts @ (logs + shares.log()).logsumexp(-1)))
    assert (np.diff(found) > -1.0).all()  # the prior of metrics may rise at the cost of the likelihood, near the mode
    assert found[-1] > found[0]
    truth = torch.distributions.MultivariateNormal(torch.zeros(3).double(), torch.eye(3).double() * 0.09)
    first = logs[:, int(logs[:100].mean(0).argmax())]
    assert (first[:100] - truth.log_prob(colours[:100])).abs().mean() < 0.5


def test_a_step_of_the_colour_units_is_that_of_adapt(monkeypatch):
    """Attention to each colour unit as the weights of a mixture of one unit, a Wishart prior of its metric."""
    colours = torch.randn(80, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    counts, steps = torch.rand(80, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5, []
    for number in (0, 1):
        monkeypatch.setattr(_units, "_COLOUR_STEPS", number)
        steps.append(_units.mix_colours(colours, counts, 4)[0])
    attention = (steps[0] + math.log(1 / 4)).softmax(-1)
    floor, weight, identity = _units._COLOUR_FLOOR, _units._FLOOR_WEIGHT, torch.eye(3, dtype=torch.float64)
    start = GaussianMixture(torch.zeros(4, 1, 3).double(), metric=identity.expand(4, 3, 3))
    prior = Wishart(torch.tensor(weight + 4).double(), precision_matrix=weight * floor * identity)
    posterior = models.bayesian(start, keys=models.FLAT, metric=prior)
    weights = attention.mT * counts
    fit = adapt(posterior, colours.expand(4, 80, 3), query_weights=weights, num_steps=1, progress=False).formulation
    torch.testing.assert_close(steps[1], fit.log_evidence(colours).mT)


def test_the_class_outside_the_frame_is_told_by_colour_and_place():
    _, truth = scene()
    picture, marks = segmenter(), clicked(truth)
    assert picture.segment(marks).outside.argmax() == 0
    assert picture.segment(np.where(marks > 0, 3 - marks, 0)).outside.argmax() == 1
    assert picture.segment(marks, background=2).outside.tolist() == [0.0, 1.0]
    assert picture.segment(marks, background=0).outside.tolist() == [0.0, 0.0]
    first = picture.segment(marks, background=2)
    marks[2, 2] = 1
    assert picture.segment(marks, previous=first).outside.tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match="background is 7"):
        picture.segment(marks, background=7)


def test_a_class_does_not_live_where_no_mark_of_it_is():
    """Two discs in one colour, one of them marked."""
    image, truth = scene(noise=0.0)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    other = (y - 40) ** 2 + (x - 65) ** 2 < 8**2
    image[other] = COLOURS[1]
    answer = InteractiveSegmenter.from_image(image).segment(clicked(truth), background=1)
    assert (answer.mask[truth == 2] == 2).mean() > 0.95
    assert (answer.mask[other] == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("size", [pytest.param((1000, 2600), marks=pytest.mark.slow), (2001, 1001)])
def test_large_pictures_are_worked_on_smaller_and_answered_in_full(size):
    y, x = np.mgrid[: size[0], : size[1]]
    truth = np.where((y - size[0] / 2) ** 2 + (x - size[1] / 2) ** 2 < (min(size) / 4) ** 2, 2, 1)
    image = COLOURS[truth - 1].astype(np.uint8)
    picture = InteractiveSegmenter.from_image(image)
    assert picture.stride == 2
    marks = clicked(truth)
    first = picture.segment(marks)
    assert first.mask.shape == first.probabilities.shape[:2] == first.stood.shape == size
    assert (
        intersection_over_union(truth, first.mask).min() > 0.96
    )  # a rim: colours are smoothed over 4 of some 30 pixels
    assert (first.mask[marks > 0] == marks[marks > 0]).all()
    marks[5, 5] = 1
    again = picture.segment(marks, previous=first)
    assert (again.mask == first.mask).mean() > 0.999
    assert again.stood[size[0] // 2, size[1] // 2] == 1


def blurred_pieces():
    """Probabilities of two classes over 30 x 50 whose answer was 0 all over, and that two pieces of class 1 join by a neck."""
    found = np.full((30, 50), 0.1)
    found[10:17, 5:12] = 0.97  # 7 x 7, where the click falls
    found[5:25, 20:45] = 0.9  # far larger
    found[12:14, 12:20] = 0.8  # the neck
    before = np.stack([np.full(found.shape, 0.6), np.full(found.shape, 0.4)], -1).astype(np.float32)
    return before, np.stack([1 - found, found], -1).astype(np.float32)


def test_a_mark_turns_the_piece_it_is_in_the_middle_of():
    before, found = blurred_pieces()
    fresh = np.full(found.shape[:2], -1)
    fresh[13, 8] = 1
    turned = after(before, found, fresh, SegmentationSettings()).argmax(-1) == 1
    expected = np.zeros(turned.shape, bool)
    expected[10:17, 5:12] = True
    np.testing.assert_array_equal(turned, expected)
    fresh[:] = -1
    fresh[15, 32] = 1  # the middle of the large one: both pieces and the neck
    turned = after(before, found, fresh, SegmentationSettings()).argmax(-1) == 1
    np.testing.assert_array_equal(turned, found[..., 1] > 0.5)


def test_a_mark_that_is_nowhere_the_middle_turns_no_more_than_its_own_depth():
    before, found = blurred_pieces()
    found[..., 1] = 0.999
    found[..., 0] = 0.001
    fresh = np.full(found.shape[:2], -1)
    fresh[3, 5] = 1  # depth 4 in a picture of depth 15
    turned = after(before, found, fresh, SegmentationSettings()).argmax(-1) == 1
    y, x = np.nonzero(turned)
    assert turned[3, 5]
    assert np.hypot(y - 3, x - 5).max() <= 4


def test_a_new_mark_changes_the_mask_to_its_own_class_and_in_one_piece_with_it():
    _, truth = scene(3, noise=20.0)
    picture, marks = segmenter(3, noise=20.0), clicked(truth)
    first = picture.segment(marks)
    y, x = np.argwhere((truth == 3) & (first.mask == 3))[40]
    marks[y, x] = 1
    second = picture.segment(marks, previous=first)
    changed = second.mask != first.mask
    assert changed[y, x]
    assert (second.mask[changed] == 1).all()
    assert ndimage.label(changed)[1] == 1


def test_a_class_that_was_not_there_before_joins():
    _, truth = scene(3)
    picture, marks = segmenter(3), clicked(truth)
    two = np.where(marks == 3, 0, marks)
    answer = picture.segment(marks, previous=picture.segment(two, background=1))
    assert answer.classes.tolist() == [1, 2, 3]
    assert intersection_over_union(truth, answer.mask).min() > 0.9  # as above, with a rim of about half a pixel


def test_previous_of_the_same_marks_changes_no_class():
    _, truth = scene(3, noise=20.0)
    picture, marks = segmenter(3, noise=20.0), clicked(truth)
    first = picture.segment(marks)
    np.testing.assert_array_equal(picture.segment(marks, previous=first).mask, first.mask)


def test_previous_of_another_picture_or_with_a_class_more_is_refused():
    image, truth = scene(3)
    picture, marks = segmenter(3), clicked(truth)
    answer = picture.segment(marks)
    with pytest.raises(ValueError, match="previous is of another shape or has other classes"):
        picture.segment(np.where(marks == 3, 0, marks), previous=answer)
    other = InteractiveSegmenter.from_image(image[:-1])
    with pytest.raises(ValueError, match="previous is of another shape or has other classes"):
        other.segment(marks[:-1], previous=answer)


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        (np.zeros((HEIGHT, WIDTH), int), "two classes"),
        (np.ones((HEIGHT, WIDTH), int), "two classes"),
        (np.ones((HEIGHT, WIDTH - 1), int), r"\(60, 80\).*\(60, 79\)"),
        (np.ones((HEIGHT, WIDTH)), "float64"),
        (-np.ones((HEIGHT, WIDTH), int), "positive"),
    ],
)
def test_bad_marks_are_refused(marks, message):
    picture = segmenter()
    with pytest.raises(ValueError, match=message):
        picture.segment(marks)


@pytest.mark.parametrize("image", [np.zeros((0, 4, 3)), np.zeros((4, 4, 4)), np.zeros(5), np.zeros((2, 2, 2, 3))])
def test_bad_images_are_refused(image):
    with pytest.raises(ValueError, match="image must be"):
        InteractiveSegmenter.from_image(image)


def test_bad_features_and_settings_are_refused():
    image = scene()[0]
    with pytest.raises(ValueError, match="features must be"):
        InteractiveSegmenter.from_image(image, features=lambda image: np.zeros((3, 3, 1)))
    with pytest.raises(ValueError, match="NaN"):
        InteractiveSegmenter.from_image(image, features=lambda image: np.full((HEIGHT, WIDTH, 1), np.nan))
    with pytest.raises(ValueError, match="key_precision"):
        SegmentationSettings(key_precision=0.0)
    with pytest.raises(ValueError, match="region_error"):
        SegmentationSettings(region_error=1.0)


def test_overlay_tints_by_class_and_shows_marks():
    image = np.full((20, 30, 3), 100, np.uint8)
    mask = np.where(np.arange(30) < 15, 1, 2) * np.ones((20, 1), int)
    probabilities = np.eye(2, dtype=np.float32)[mask - 1]
    marks = np.zeros((20, 30), int)
    marks[10, 5] = 1
    palette = np.zeros((256, 3), np.uint8)
    palette[1], palette[2] = (255, 0, 0), (0, 0, 255)
    drawn = overlay(image, Segmentation(mask, probabilities, np.array([1, 2])), marks, palette)
    assert drawn.shape == image.shape
    assert drawn[2, 2, 0] > 150 > 100 > drawn[2, 2, 2]
    assert drawn[2, 25, 2] > 150 > 100 > drawn[2, 25, 0]
    assert drawn[10, 5].tolist() == [255, 0, 0]
    assert drawn[2, 15].tolist() == [255, 255, 255]
