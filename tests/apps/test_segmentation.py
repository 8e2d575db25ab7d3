"""Segmentation on pictures whose truth is known, and what must not change the answer."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pyro.distributions import Normal
from scipy import ndimage
from scipy.sparse.csgraph import floyd_warshall

from probtx_pyro import models
from probtx_pyro.apps.segmentation import (
    InteractiveSegmenter,
    Segmentation,
    SegmentationSettings,
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


def clicked(truth):
    return marks_from_clicks(truth.shape, first_clicks(truth))


@pytest.mark.parametrize(("num_classes", "noise"), [(2, 0.0), (2, 8.0), (2, 20.0), (3, 0.0), (3, 8.0)])
def test_one_click_a_class_finds_well_separated_regions(num_classes, noise):
    image, truth = scene(num_classes, noise)
    answer = InteractiveSegmenter.from_image(image).segment(clicked(truth))
    assert intersection_over_union(truth, answer.mask).min() > 0.93  # what is lost is a rim of about half a pixel


def test_clicks_are_needed_because_swapped_clicks_swap_the_answer():
    image, truth = scene()
    marks = clicked(truth)
    picture = InteractiveSegmenter.from_image(image)
    swapped = picture.segment(np.where(marks > 0, 3 - marks, 0))
    assert (swapped.mask == 3 - picture.segment(marks).mask).mean() > 0.999


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64])
def test_labels_are_names_only(dtype):
    image, truth = scene(3)
    marks = clicked(truth)
    picture = InteractiveSegmenter.from_image(image)
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
    image, truth = scene(3, noise=20.0)
    rng = np.random.default_rng(1)
    marks = np.where(
        rng.random(truth.shape) < 0.02, rng.integers(1, 4, truth.shape), 0
    )  # random labels: contradictions all over
    answer = InteractiveSegmenter.from_image(image).segment(marks)
    assert answer.probabilities.shape == (HEIGHT, WIDTH, 3)
    assert answer.probabilities.dtype == np.float32
    assert (answer.probabilities >= 0).all()
    np.testing.assert_allclose(answer.probabilities.sum(-1), 1, atol=1e-5)
    assert (marks > 0).sum() > 50
    assert (answer.mask[marks > 0] == marks[marks > 0]).all()


def test_a_click_that_repeats_what_is_sure_changes_next_to_nothing():
    image, truth = scene()
    picture, marks = InteractiveSegmenter.from_image(image), clicked(truth)
    before = picture.segment(marks)
    again = marks.copy()
    y, x = np.argwhere(marks == 2)[0]
    again[y + 1, x] = 2
    after = picture.segment(again)
    assert (after.mask != before.mask).mean() < 0.002


def test_a_correcting_click_turns_the_region_it_is_in():
    image, truth = scene(3)
    marks = clicked(truth)
    marks[marks == 3] = 1  # the stripe is marked as background at first
    picture = InteractiveSegmenter.from_image(image)
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
    answer = InteractiveSegmenter.from_image(image, settings=replace(SegmentationSettings(), num_units=190)).segment(
        marks
    )  # steps of 16 pixels
    row = answer.mask[y]
    assert (row[: x + 1] == 1).all()
    assert (row[x + 2 :] == 2).all()
    near = answer.probabilities[y, [x - 3, x - 2, x - 1, x + 3, x + 4, x + 5]].max(-1)
    assert near.min() > 0.85  # not the half and half of a unit that holds both


def test_scribbles_are_many_clicks():
    image, truth = scene()
    picture = InteractiveSegmenter.from_image(image)
    scribbles = np.zeros(truth.shape, np.uint8)
    scribbles[28, 20:34], scribbles[5, 5:60] = 2, 1
    clicks = [(28, x, 2) for x in range(20, 34)] + [(5, x, 1) for x in range(5, 60)]
    drawn, played = picture.segment(scribbles), picture.segment(marks_from_clicks(truth.shape, clicks))
    np.testing.assert_array_equal(drawn.probabilities, played.probabilities)


@pytest.mark.parametrize("least_count", [0.05, 1.5])  # no mark by itself asks a unit 1.5 times; together they do
def test_every_pixel_marked_is_answered_with_the_marks(least_count):
    picture = InteractiveSegmenter.from_image(scene()[0], settings=SegmentationSettings(least_count=least_count))
    marks = np.random.default_rng(0).integers(1, 3, picture.shape)
    assert (picture.segment(marks).mask == marks).all()


def test_marks_beyond_the_limits_are_thinned_and_still_right():
    """More marks of a class than are used, so that evenly chosen ones stand for them."""
    rng = np.random.default_rng(0)
    truth = np.ones((150, 200), int)
    truth[40:110, 60:150] = 2
    image = (COLOURS[truth - 1] + rng.normal(0, 8, (150, 200, 3))).clip(0, 255).astype(np.uint8)
    marks = np.where(rng.random(truth.shape) < 0.5, truth, 0)
    assert (marks == 1).sum() > 2 * 4096
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
    np.testing.assert_array_equal(given.mask, InteractiveSegmenter.from_image(image).segment(marks).mask)
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


def test_dtype_and_threads_of_the_session_do_not_matter():
    image, truth = scene()
    marks = clicked(truth)
    wide = InteractiveSegmenter.from_image(image).segment(marks).probabilities  # conftest: float64 by default
    torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(InteractiveSegmenter.from_image(image).segment(marks).probabilities, wide)


@pytest.mark.parametrize(("block", "slack"), [(20, 1e-4), (4, 0.03)])
def test_units_adapt_as_one_dense_mixture_would(block, slack, monkeypatch):
    """One block is the dense mixture but for rounding; small ones are off by a few hundredths of a key's width 1/√α."""
    monkeypatch.setattr(_units, "_BLOCK", block)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    image = np.stack([x * 2 + 40, y * 3 + 20, 200 - x], -1).astype(np.uint8)
    settings = SegmentationSettings(num_units=300)
    cells = _units.cut(lab_colours(image), settings.num_units, settings.colour_scale, settings.blur)
    assert cells.step <= 4  # every pixel takes part
    weights = cells.inside.to(torch.float32)
    initial = (cells.queries * weights.unsqueeze(-1)).sum(1) / weights.sum(1, keepdim=True)
    start = GaussianMixture(initial, key_precision=settings.key_precision)
    dense = adapt(models.bayesian(start, keys=Normal(initial, settings.key_strength**-0.5)), cells.queries.flatten(0, 1), num_steps=settings.num_steps, query_weights=weights.flatten()).formulation.keys  # fmt: skip
    moved = (dense - initial).norm(dim=-1).mean()
    assert moved > 0.02  # else the two would agree for nothing
    assert (_units.adapt_units(cells, settings) - dense).norm(dim=-1).max() < slack * settings.key_precision**-0.5


def test_path_energies_are_shortest_paths_and_the_frame_is_a_way():
    """Nine units of one pixel each; oracle: Floyd-Warshall on the energies written out by hand."""
    settings = SegmentationSettings()
    grey = torch.tensor([0.0, 40, 0, 0, 40, 0, 0, 40, 0])
    keys = torch.stack([grey / settings.colour_scale, torch.zeros(9), torch.zeros(9)], -1)
    home = np.arange(9).reshape(3, 3)
    squares = {(a, b): float(grey[a] - grey[b]) ** 2 for a in range(9) for b in range(9)
               if abs(a // 3 - b // 3) + abs(a % 3 - b % 3) == 1}  # fmt: skip
    mean = np.mean([min(x, settings.hop_cap**2) for x in squares.values()])
    precision = settings.hop_precision * (settings.hop_shape + 1) / (settings.hop_shape + mean / settings.hop_spread)
    graph = np.full((10, 10), np.inf)
    for (a, b), square in squares.items():
        graph[a, b] = precision / 2 * square + settings.hop_cost
    for a in range(9):
        if a != 4:
            graph[a, 9] = graph[9, a] = settings.frame_cost
    expected = floyd_warshall(graph)[:9, :9]
    links = _units.link_units(keys, home, settings)
    found = _units.path_energies(links, np.arange(9), settings).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found[0, 2] == pytest.approx(2 * settings.frame_cost)  # across the dark column: outside is cheaper


def test_further_energy_of_a_hop_is_paid_by_every_path_over_it():
    """Three units in a row, flat; from unit 0 the pair (0, 1) costs 2 more, (1, 2) costs 5 more."""
    settings = SegmentationSettings(frame_cost=100.0)
    keys = torch.zeros(3, 3)
    links = _units.link_units(keys, np.arange(3).reshape(1, 3), settings)
    found = _units.path_energies(links, np.array([0, 2]), settings, np.array([2.0, 5.0]))
    hop = settings.hop_cost
    expected = [[0, 7 + 2 * hop], [2 + hop, 5 + hop], [7 + 2 * hop, 0]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


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
    image, truth = scene(3, noise=20.0)
    picture, marks = InteractiveSegmenter.from_image(image), clicked(truth)
    first = picture.segment(marks)
    y, x = np.argwhere((truth == 3) & (first.mask == 3))[40]
    marks[y, x] = 1
    second = picture.segment(marks, previous=first)
    changed = second.mask != first.mask
    assert changed[y, x]
    assert (second.mask[changed] == 1).all()
    assert ndimage.label(changed)[1] == 1


def test_a_class_that_was_not_there_before_joins():
    image, truth = scene(3)
    picture, marks = InteractiveSegmenter.from_image(image), clicked(truth)
    two = np.where(marks == 3, 0, marks)
    answer = picture.segment(marks, previous=picture.segment(two))
    assert answer.classes.tolist() == [1, 2, 3]
    assert intersection_over_union(truth, answer.mask).min() > 0.9  # as above, with a rim of about half a pixel


def test_previous_of_the_same_marks_changes_no_class():
    image, truth = scene(3, noise=20.0)
    picture, marks = InteractiveSegmenter.from_image(image), clicked(truth)
    first = picture.segment(marks)
    np.testing.assert_array_equal(picture.segment(marks, previous=first).mask, first.mask)


def test_previous_of_another_picture_or_with_a_class_more_is_refused():
    image, truth = scene(3)
    picture, marks = InteractiveSegmenter.from_image(image), clicked(truth)
    answer = picture.segment(marks)
    with pytest.raises(ValueError, match="previous is of another shape or has other classes"):
        picture.segment(np.where(marks == 3, 0, marks), previous=answer)
    other = InteractiveSegmenter.from_image(image[:-1])
    with pytest.raises(ValueError, match="previous is of another shape or has other classes"):
        other.segment(marks[:-1], previous=answer)


def test_without_paths_a_unit_answers_by_the_marks_that_attend_to_it():
    """PT 37 by hand: far from all marks nothing is known, and the answer near a mark is the mark's."""
    image, truth = scene(noise=0.0)
    settings = SegmentationSettings(num_units=60, window=10, paths=False)
    answer = InteractiveSegmenter.from_image(image, settings=settings).segment(clicked(truth))
    (y, x), *_ = np.argwhere(clicked(truth) == 2)
    assert (answer.mask[y - 2 : y + 3, x - 2 : x + 3] == 2).all()


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
    picture = InteractiveSegmenter.from_image(scene()[0])
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
    with pytest.raises(ValueError, match="concentration"):
        SegmentationSettings(concentration=0.5)


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
