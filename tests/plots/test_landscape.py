"""Energy landscapes, ellipses and rows of pictures: what is drawn is what was given, and what does not fit is refused."""

import matplotlib
import numpy as np
import pytest
import xarray

matplotlib.use("Agg")
from matplotlib import colormaps, pyplot
from matplotlib.patches import FancyArrowPatch

from probtx_pyro import plots

RNG = np.random.default_rng(0)
GRID = plots.query_grid([[-1.0, -1.0], [1.0, 1.0]], num=21, margin=0.0)
BOWL = (GRID**2).sum(-1)
PATHS = np.array([[[0.8, 0.0], [0.0, 0.9]], [[0.4, 0.0], [0.0, 0.899]], [[0.0, 0.0], [0.0, 0.898]]])


@pytest.fixture(autouse=True)
def _close():
    yield
    pyplot.close("all")


def test_the_landscape_holds_the_paths_the_patterns_and_an_arrow_for_each_long_step():
    ax = plots.energy_landscape(GRID, BOWL, patterns=[[0.0, 0.0], [0.5, 0.5]], pattern_labels="ab", paths=PATHS)
    first, second, start, end, stars = ax.lines
    np.testing.assert_array_equal(first.get_xydata(), PATHS[:, 0])
    np.testing.assert_array_equal(second.get_xydata(), PATHS[:, 1])
    np.testing.assert_array_equal(start.get_xydata(), PATHS[0])
    np.testing.assert_array_equal(end.get_xydata(), PATHS[-1])
    np.testing.assert_array_equal(stars.get_xydata(), [[0.0, 0.0], [0.5, 0.5]])
    assert [text.get_text() for text in ax.texts] == ["a", "b"]
    heads = [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    np.testing.assert_allclose([head.get_path().vertices[0] for head in heads], [[0.6, 0.0], [0.2, 0.0]], atol=1e-9)
    assert all(head.get_path().vertices[1, 0] < head.get_path().vertices[0, 0] for head in heads)  # down the bowl
    assert ax.get_aspect() == 1.0


def test_low_energy_is_dark_and_its_contours_are_closer():
    ax = plots.energy_landscape(GRID, BOWL)
    bands, lines = ax.collections[:2]
    np.testing.assert_allclose([bands.levels[0], bands.levels[-1]], [0.0, 2.0])
    assert (np.diff(bands.levels, n=2) > 0).all()
    brightness = bands.get_facecolors()[:, :3].sum(-1)
    assert (np.diff(brightness) > 0).all()
    np.testing.assert_array_equal(lines.levels, bands.levels[1:-1])
    assert ax.figure.axes[-1].get_ylabel() == "energy"


def test_a_flat_landscape_and_names_from_xarray():
    patterns = xarray.DataArray([[0.0, 0.5]], dims=("unit", "axis"), coords={"unit": ["cat"]})
    _, ax = pyplot.subplots()
    assert plots.energy_landscape(GRID, 0 * BOWL, ax, patterns=patterns) is ax
    assert [text.get_text() for text in ax.texts] == ["cat"]
    ax.figure.canvas.draw()


def test_an_ellipse_holds_its_mass():
    """Of 20,000 draws of a Normal nine tenths lie inside, to four binomial standard errors."""
    mean, covariance = np.array([1.0, -2.0]), np.array([[2.0, 0.9], [0.9, 0.7]])
    ax = plots.credible_ellipses([mean, mean], [np.zeros((2, 2)), covariance], mass=0.9)
    wide, point = ax.patches  # the large one behind
    draws = RNG.multivariate_normal(mean, covariance, 20_000)
    inside = wide.get_path().contains_points(wide.get_patch_transform().inverted().transform(draws))
    assert abs(inside.mean() - 0.9) < 4 * np.sqrt(0.9 * 0.1 / 20_000)
    assert (point.width, point.height) == (0.0, 0.0)
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [mean])
    assert wide.get_edgecolor() != point.get_edgecolor()


def test_rows_of_pictures_share_a_scale_unless_they_have_their_own():
    original = RNG.uniform(-1, 1, (3, 8, 4))
    original[0, 0, 0], original[1, 0, 0] = -1.0, 1.0
    ax = plots.image_rows(
        {"stored": original, "half": original / 2, "doubt": np.abs(original) / 10}, "abc", own_scale=["doubt"]
    )
    canvas = ax.images[0].get_array()
    assert canvas.shape == (3 * 8 + 2, 3 * 4 + 2, 3)  # a gap of one pixel
    np.testing.assert_allclose(canvas[0, 0], colormaps["gray_r"](0.0)[:3])
    np.testing.assert_allclose(canvas[0, 5], colormaps["gray_r"](1.0)[:3])
    np.testing.assert_allclose(canvas[9, 5], colormaps["gray_r"](0.75)[:3])  # a half is not as dark as a one
    np.testing.assert_allclose(canvas[18, 5], colormaps["cividis"](1.0)[:3])
    np.testing.assert_allclose(canvas[:8, 4], 1.0)
    assert [x.get_text() for x in ax.get_yticklabels()] == ["stored", "half", "doubt\n(0 to 0.1)"]
    assert [x.get_text() for x in ax.get_xticklabels()] == ["a", "b", "c"]


def test_rows_of_one_grey_are_drawn():
    ax = plots.image_rows({"blank": np.zeros((2, 3, 3))})
    np.testing.assert_allclose(ax.images[0].get_array(), 1.0)
    assert ax.get_xticklabels() == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.energy_landscape(GRID[0], BOWL), "grid must have shape"),
        (lambda: plots.energy_landscape(GRID, BOWL[1:]), "ask the memory at grid"),
        (lambda: plots.energy_landscape(GRID, np.full_like(BOWL, np.inf)), "energy contains NaN or infinity"),
        (lambda: plots.energy_landscape(GRID, BOWL, patterns=[0.0, 1.0]), "patterns must have shape"),
        (
            lambda: plots.energy_landscape(GRID, BOWL, patterns=[[0, 1]], pattern_labels="ab"),
            "2 entries but there are 1",
        ),
        (lambda: plots.energy_landscape(GRID, BOWL, pattern_labels="a"), "1 entries but there are 0 patterns"),
        (lambda: plots.energy_landscape(GRID, BOWL, paths=PATHS[0]), "paths must have shape"),
        (lambda: plots.energy_landscape(GRID, BOWL, patterns=[[0, 1, 2]]), "choose two coordinates"),
        (lambda: plots.credible_ellipses([[0, 0]], np.eye(2)), "covariances must have shape"),
        (lambda: plots.credible_ellipses([[0, 0, 0]], [np.eye(3)]), "one plane"),
        (lambda: plots.credible_ellipses([[0, 0]], [-np.eye(2)]), "negative variance"),
        (lambda: plots.credible_ellipses([[0, 0]], [np.eye(2)], mass=1.0), "mass must be between 0 and 1"),
        (lambda: plots.image_rows({}), "rows is empty"),
        (lambda: plots.image_rows({"a": np.zeros((2, 2))}), r"rows\['a'\] must have shape \(N, H, W\)"),
        (lambda: plots.image_rows({"a": np.zeros((1, 2, 2)), "b": np.zeros((2, 2, 2))}), "pictures of one shape"),
        (lambda: plots.image_rows({"a": np.zeros((1, 2, 2))}, "xy"), "column_labels has 2 entries but there are 1"),
        (lambda: plots.image_rows({"a": np.zeros((1, 2, 2))}, own_scale=["b"]), "own_scale names"),
    ],
)
def test_errors_name_the_argument_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
