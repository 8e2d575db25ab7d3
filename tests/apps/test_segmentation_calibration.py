"""Calibrated probabilities: against loops over scalars, and the mask that they must not change."""

import math

import numpy as np
import pytest

from probtx_pyro.apps.segmentation import (
    InteractiveSegmenter,
    Segmentation,
    SegmentationSettings,
    first_clicks,
    marks_from_clicks,
    suggest_click,
    uncertainty,
)
from probtx_pyro.apps.segmentation._segmenter import calibrated


def random_answers(classes, seed=0):
    rng = np.random.default_rng(seed)
    belief, found = rng.dirichlet(np.full(classes, 0.5), (2, 9, 11)).astype(np.float32)
    return belief, found, rng.integers(0, 4, belief.shape[:2])


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_calibration_is_a_mixture_and_a_factor_for_each_review(classes):
    settings = SegmentationSettings(region_error=0.2, review_gain=0.7)
    belief, found, stood = random_answers(classes)
    got = calibrated(belief, found, stood, settings)
    for y, x in np.ndindex(stood.shape):
        best = max(range(classes), key=lambda c: belief[y, x, c])
        contradicted = stood[y, x] > 0 and max(range(classes), key=lambda c: found[y, x, c]) != best
        q = [1 / classes if contradicted else 0.8 * float(b) + 0.2 / classes for b in belief[y, x]]
        q[best] *= math.exp(0.7 * stood[y, x])
        np.testing.assert_allclose(got[y, x], np.array(q) / sum(q), rtol=1e-5)  # some roundings of float32


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_calibration_keeps_the_most_probable_class(classes):
    belief, found, stood = random_answers(classes, seed=1)
    got = calibrated(belief, found, stood, SegmentationSettings())
    np.testing.assert_array_equal(got.argmax(-1), belief.argmax(-1))
    assert np.isfinite(calibrated(belief, found, stood + 1000, SegmentationSettings())).all()


CLICKS = [(5, 70, 1), (50, 10, 1), (20, 30, 2), (40, 60, 1)]


def game(settings=None):
    """Answers to clicks one after another on a noisy disc."""
    y, x = np.mgrid[:60, :80]
    truth = np.where((y - 28) ** 2 + (x - 26) ** 2 < 15**2, 2, 1)
    colours = np.array([(120, 110, 90), (150, 100, 90)])
    noise = np.random.default_rng(0).normal(0, 20, (60, 80, 3))
    picture = InteractiveSegmenter.from_image(
        (colours[truth - 1] + noise).clip(0, 255).astype(np.uint8), settings=settings
    )
    clicks, answers = first_clicks(truth), []
    for further in [None, *CLICKS]:
        clicks += [] if further is None else [further]
        marks = marks_from_clicks(truth.shape, clicks)
        answers.append(picture.segment(marks, previous=answers[-1] if answers else None))
    return answers, marks, picture


def test_no_constant_of_the_calibration_changes_a_mask_or_a_suggestion():
    answers, marks, _ = game()
    others, *_ = game(SegmentationSettings(region_error=0.6, review_gain=2.0))
    for one, other in zip(answers, others, strict=True):
        np.testing.assert_array_equal(one.mask, other.mask)
        np.testing.assert_array_equal(one.belief, other.belief)
        assert suggest_click(one, marks) == suggest_click(other, marks)
    assert np.abs(answers[-1].probabilities - others[-1].probabilities).max() > 0.05


def test_reviews_are_counted_where_a_label_stands():
    answers, marks, picture = game()
    assert (answers[0].stood == 0).all()
    counted = 0
    for before, now, (y, x, label) in zip(answers[:-1], answers[1:], CLICKS, strict=True):
        told = int(before.belief[y, x, label - 1] < 1)  # a mark where nothing is in doubt is no review
        counted += told
        np.testing.assert_array_equal(now.stood, np.where(now.mask == before.mask, before.stood + told, 0))
    assert counted > 0
    again = picture.segment(marks, previous=answers[-1])  # no new mark, no review
    assert (again.stood <= answers[-1].stood).all()


def test_a_region_may_be_wrong_and_a_mark_may_not():
    answers, marks, _ = game()
    first, marked = answers[0], marks > 0
    least = SegmentationSettings().region_error / 2
    doubt = uncertainty(first)
    assert doubt[~marked].min() > least - 1e-6
    assert (uncertainty(answers[-1])[marked] == 0).all()


def test_a_previous_answer_without_a_belief_is_its_own():
    answers, marks, picture = game()
    last = answers[-1]
    plain = Segmentation(last.mask, last.belief, last.classes, outside=last.outside)
    np.testing.assert_array_equal(
        picture.segment(marks, previous=plain).belief, picture.segment(marks, previous=answers[-1]).belief
    )


def test_a_region_error_of_one_is_refused():
    with pytest.raises(ValueError, match="region_error must be less than 1"):
        SegmentationSettings(region_error=1.0)
