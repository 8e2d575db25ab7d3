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


def test_given_axes_are_used():
    figure, panel = pyplot.subplots()
    assert plots.rank_spectra([[1.0, 0.5]], ax=panel) is panel
    figure.canvas.draw()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.rank_spectra([]), "spectra is empty"),
        (lambda: plots.rank_spectra([[1.0]], ["a", "b"]), "labels has 2 entries but there are 1"),
        (lambda: plots.rank_spectra([[1.0], [np.nan]]), r"spectra\[1\] contains NaN"),
        (lambda: plots.rank_spectra([np.zeros((0, 3))]), r"spectra\[0\] must have shape \(..., value\)"),
    ],
)  # fmt: skip
def test_errors_name_the_argument_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
