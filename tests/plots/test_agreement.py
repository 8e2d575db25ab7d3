import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
from matplotlib import pyplot

from probtx_pyro import plots

EXACT = [np.array([[0.2, 0.8], [0.5, 0.5]]), np.array([0.1, 0.3, 0.6])]
FOUND = [np.array([[0.1, 0.9], [0.5, 0.5]]), np.array([0.0, 0.2, 0.8])]


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


def test_every_probability_is_a_point_beside_the_diagonal():
    ax = plots.marginal_agreement(EXACT, FOUND, ["heads", "labels"])
    diagonal, *points = ax.lines
    np.testing.assert_array_equal(diagonal.get_xydata(), [[0, 0], [1, 1]])
    for line, x, y in zip(points, EXACT, FOUND, strict=True):
        np.testing.assert_array_equal(line.get_xydata(), np.stack([x.ravel(), y.ravel()], -1))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["heads", "labels"]
    assert len({line.get_marker() for line in points}) == 2  # told apart in black and white


def test_agreement_is_drawn_on_given_axes_and_without_names():
    _, ax = pyplot.subplots()
    assert plots.marginal_agreement(EXACT[:1], FOUND[:1], ax=ax) is ax
    assert ax.get_legend() is None


@pytest.mark.parametrize(
    ("exact", "found", "labels", "message"),
    [
        ([], [], None, "exact has 0 arrays and approximate 0"),
        (EXACT, FOUND[:1], None, "exact has 2 arrays and approximate 1"),
        (EXACT, FOUND, ["heads"], "labels has 1 entries but there are 2"),
        (EXACT[:1], FOUND[1:], None, r"exact\[0\] has shape \(2, 2\) but approximate\[0\] \(3,\)"),
        (EXACT[:1], [FOUND[0] * 2], None, r"approximate\[0\] must be from 0 to 1"),
        ([EXACT[0] * np.nan], FOUND[:1], None, r"exact\[0\] contains NaN"),
    ],
)
def test_bad_arguments_are_refused(exact, found, labels, message):
    with pytest.raises(ValueError, match=message):
        plots.marginal_agreement(exact, found, labels)
