"""The click protocol."""

import numpy as np
import pytest

from probtx_pyro.apps.segmentation import first_clicks, marks_from_clicks, next_click, play_clicks
from probtx_pyro.metrics import intersection_over_union


def test_middle_is_the_deepest_pixel_and_the_frame_is_a_border():
    region = np.zeros((9, 12), bool)
    region[1:8, 2:9] = True
    assert first_clicks(region.astype(int)) == [(4, 5, 1)]
    region[:, :] = False
    region[0:3, 0:3] = True
    assert first_clicks(region.astype(int)) == [(1, 1, 1)]  # without the frame as a border it would be the corner


def test_next_click_goes_to_the_largest_wrong_piece_with_its_true_label():
    truth = np.ones((12, 20), int)
    truth[2:7, 2:7] = 2
    predicted = np.ones((12, 20), int)
    predicted[9, 15:17] = 2
    assert next_click(truth, predicted) == (4, 4, 2)
    assert next_click(truth, truth) is None


def test_what_is_not_scored_is_never_clicked_nor_counted():
    truth = np.array([[1, 1, 0, 2, 2]])
    predicted = np.array([[1, 1, 2, 2, 2]])
    assert next_click(truth, predicted) is None
    assert intersection_over_union(truth, predicted).tolist() == [1.0, 1.0]


def test_a_game_by_a_player_who_believes_each_click_for_its_row():
    truth = np.ones((5, 7), int)
    truth[2:, :] = 2
    seen = []

    def rows(clicks):
        seen.append(len(clicks))
        mask = np.ones(truth.shape, int)
        for y, _, label in clicks:
            mask[y] = label
        return mask

    played = play_clicks(rows, truth, num_clicks=5)
    assert played.counts == [2, 3, 4, 5]
    assert played.scores[0].tolist() == [2 / 4, 1 / 3]
    assert played.scores[-1].tolist() == [1.0, 1.0]
    assert seen == [2, 3, 4]  # nothing is wrong after four, so the last score stands
    assert [label for *_, label in played.clicks] == [1, 2, 2, 2]


@pytest.mark.parametrize("bad", [(5, 0, 1), (0, 7, 1), (-1, 0, 1), (0, 0, 0)])
def test_bad_clicks_are_refused(bad):
    with pytest.raises(ValueError, match="click"):
        marks_from_clicks((5, 7), [bad])


def test_later_clicks_overrule_earlier_ones():
    assert marks_from_clicks((1, 1), [(0, 0, 1), (0, 0, 2)]).tolist() == [[2]]


def test_a_game_needs_two_classes():
    with pytest.raises(ValueError, match="classes"):
        play_clicks(lambda clicks: None, np.ones((4, 4), int))
