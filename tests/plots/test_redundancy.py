import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
from matplotlib import pyplot

from probtx_pyro import plots

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _close():
    yield
    pyplot.close("all")


def spectra(*shape):
    return np.sort(RNG.uniform(0.01, 1, shape))[..., ::-1]


def test_spectra_show_the_median_and_the_deciles_of_each_set():
    sets = [spectra(3, 7, 5), spectra(11, 4)]
    ax = plots.rank_spectra(sets, ["softmax", "MGK"])
    for line, band, given in zip(ax.lines, ax.collections, sets, strict=True):
        matrices = given.reshape(-1, given.shape[-1])
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, given.shape[-1] + 1))
        np.testing.assert_allclose(line.get_ydata(), np.median(matrices, 0))
        heights = band.get_paths()[0].vertices[:, 1]
        assert np.isclose(heights.max(), np.quantile(matrices[:, 0], 0.9))
        assert np.isclose(heights.min(), np.quantile(matrices[:, -1], 0.1))
    assert [x.get_text() for x in ax.get_legend().get_texts()] == ["softmax", "MGK"]
    assert ax.get_yscale() == "log"
    assert ax.lines[0].get_linestyle() != ax.lines[1].get_linestyle()  # told apart in black and white


def test_spectra_that_fall_to_zero_can_be_drawn():
    ax = plots.rank_spectra([[1.0, 0.0]])
    ax.figure.canvas.draw()
    assert ax.get_legend() is None


@pytest.mark.parametrize("largest", [1, 8, 200])
def test_histograms_count_every_matrix(largest):
    sets = [RNG.integers(1, largest + 1, (4, 6)), np.array([largest])]
    ax = plots.rank_histogram(sets, ["a", "b"])
    for steps, marker, given in zip(ax.patches, ax.lines, sets, strict=True):
        shares, edges, _ = steps.get_data()
        assert np.isclose(shares.sum(), 1)
        assert edges[0] < given.min() and given.max() < edges[-1]
        np.testing.assert_allclose(marker.get_xdata(), given.mean())
    assert [x.get_text() for x in ax.get_legend().get_texts()] == ["a", "b"]


def test_distances_show_the_matrix_with_one_scale():
    distances = np.array([[0.0, 0.4], [0.4, 0.0]])
    ax = plots.head_distance_matrix(distances, ["x", "y"], largest=0.8)
    np.testing.assert_array_equal(ax.images[0].get_array(), distances)
    assert ax.images[0].get_clim() == (0.0, 0.8)
    assert [x.get_text() for x in ax.get_xticklabels()] == ["x", "y"]
    assert [x.get_text() for x in ax.texts] == [".40", ".40"]
    assert plots.head_distance_matrix(np.zeros((3, 3))).images[0].get_clim() == (0.0, 1.0)
    assert not plots.head_distance_matrix(np.ones((12, 12))).texts


def test_given_axes_are_used():
    figure, panels = pyplot.subplots(1, 3)
    assert plots.rank_spectra([[1.0, 0.5]], ax=panels[0]) is panels[0]
    assert plots.rank_histogram([[1, 2]], ax=panels[1]) is panels[1]
    assert plots.head_distance_matrix(np.eye(2), ax=panels[2]) is panels[2]
    figure.canvas.draw()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.rank_spectra([]), "spectra is empty"),
        (lambda: plots.rank_spectra([[1.0]], ["a", "b"]), "labels has 2 entries but there are 1"),
        (lambda: plots.rank_spectra([[1.0], [np.nan]]), r"spectra\[1\] contains NaN"),
        (lambda: plots.rank_spectra([np.zeros((0, 3))]), r"spectra\[0\] must have shape \(..., value\)"),
        (lambda: plots.rank_histogram([[1, 2]], []), "labels has 0 entries but there are 1"),
        (lambda: plots.head_distance_matrix(np.zeros((2, 3))), r"distances must have shape \(head, head\)"),
        (lambda: plots.head_distance_matrix(np.eye(2), ["a"]), "labels has 1 entries but there are 2"),
    ],
)  # fmt: skip
def test_errors_name_the_argument_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
