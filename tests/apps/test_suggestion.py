"""The next click."""

import numpy as np
import pytest

from probtx_pyro.apps.segmentation import Segmentation, suggest_click, uncertainty


def answered(doubt):
    """An answer of two classes whose pixels are wrong with the probabilities given."""
    probabilities = np.stack([1 - doubt, doubt], -1).astype(np.float32)
    return Segmentation(np.ones(doubt.shape, int), probabilities, np.array([1, 2]))


def test_uncertainty_is_the_probability_of_a_wrong_label():
    doubt = np.array([[0.0, 0.25, 0.5]])
    assert uncertainty(answered(doubt)).tolist() == doubt.tolist()


def test_the_larger_piece_is_asked_before_the_least_sure_pixel():
    doubt = np.full((20, 30), 0.05)
    doubt[4:9, 4:9] = 0.4  # 25 pixels, of which 10 are expected to be wrong
    doubt[15, 20:23] = 0.5  # three
    assert suggest_click(answered(doubt), np.zeros(doubt.shape, int)) == (6, 6)


def test_a_long_thin_piece_counts_by_its_sum():
    doubt = np.zeros((20, 30))
    doubt[4:7, 4:7] = 0.4
    doubt[15, 1:29] = 0.4
    assert suggest_click(answered(doubt), np.zeros(doubt.shape, int))[0] == 15


def test_a_band_along_the_border_of_two_classes_counts_for_each_side():
    doubt = np.zeros((20, 30))
    doubt[:, 13:15] = 0.4  # 20 pixels a side, of which 8 are expected to be wrong; of both sides 16
    doubt[8:13, 22:27] = 0.4  # 25 pixels, 10
    answer = answered(doubt)
    answer.mask[:, 14:] = 2
    assert suggest_click(answer, np.zeros(doubt.shape, int)) == (10, 24)
    answer.mask[:] = 2
    assert suggest_click(answer, np.zeros(doubt.shape, int))[1] in (13, 14)


def test_what_is_marked_is_not_asked_again():
    doubt, marks = np.full((5, 9), 0.5), np.zeros((5, 9), int)
    assert suggest_click(answered(doubt), marks) == (2, 2)
    marks[2, 2] = 1
    y, x = suggest_click(answered(doubt), marks)
    assert marks[y, x] == 0 and abs(x - 2) >= 2
    marks[:, :] = 1
    assert suggest_click(answered(doubt), marks) is None


def test_a_sure_answer_has_a_suggestion_too():
    assert suggest_click(answered(np.zeros((3, 3))), np.zeros((3, 3), int)) == (1, 1)


def test_marks_of_another_picture_are_refused():
    with pytest.raises(ValueError, match="the answer's shape"):
        suggest_click(answered(np.zeros((3, 3))), np.zeros((3, 4), int))
