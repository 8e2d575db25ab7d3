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


def test_a_grid_for_each_statistic_with_one_scale():
    scores = RNG.normal(size=(3, 2, 4)) * 5
    p_values = np.where(np.arange(24).reshape(3, 2, 4) == 5, 0.3, 0.01)
    figure = plots.query_check(scores, ["a", "b", "c"], p_values=p_values, largest=6)
    figure.canvas.draw()
    panels = figure.axes[:3]
    for panel, name, grid in zip(panels, "abc", scores, strict=True):
        np.testing.assert_array_equal(panel.images[0].get_array(), grid)
        assert panel.images[0].get_clim() == (-6, 6)
        assert panel.get_title() == name
        assert len(panel.texts) == 8
        assert [x.get_text() for x in panel.get_xticklabels()] == ["0", "1", "2", "3"]
    assert [x.get_text() for x in panels[0].get_yticklabels()] == ["0", "1"]
    frames = [(frame.get_x(), frame.get_y()) for panel in panels for frame in panel.patches]
    assert frames == [(1 - 0.46, 1 - 0.46)] and panels[0].patches  # the sixth cell of the first statistic
    assert panels[0].texts[5].get_text() == (
        f"{scores[0, 1, 1]:.1f}" if abs(scores[0, 1, 1]) < 10 else f"{scores[0, 1, 1]:.0f}"
    )


def test_colours_are_told_apart_without_red_and_green():
    """Equal |z| of either sign differ in blue against red, which red-green colour-blind readers see."""
    image = plots.query_check([[-9.0, 9.0]], ["a"]).axes[0].images[0]
    low, high = image.cmap(image.norm(-9.0)), image.cmap(image.norm(9.0))
    assert low[2] > low[0] and high[0] > high[2]


def test_one_layer_and_many_heads():
    assert len(plots.query_check(np.zeros((2, 3)), ["a", "b"]).axes[0].get_yticks()) == 1
    assert not plots.query_check(np.zeros((1, 13, 12)), ["a"]).axes[0].texts


def test_sinks_by_layer_and_head():
    mass, other = RNG.uniform(size=(2, 5, 4))
    figure = plots.sinks(mass, other, other / 2)
    grid, lines = figure.axes[:2]
    np.testing.assert_array_equal(grid.images[0].get_array(), mass)
    assert [x.get_text() for x in lines.get_legend().get_texts()] == [
        "without the unit",
        "constant mass",
        "constant logit",
    ]
    for line, each in zip(lines.lines, (mass, other, other / 2), strict=True):
        np.testing.assert_allclose(line.get_ydata(), np.median(each, 1))
    assert len(plots.sinks(mass[0]).axes[1].lines) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.sinks(np.zeros((2, 2, 2))), r"mass must have shape \(layer, head\) or \(head\)"),
        (lambda: plots.sinks(np.zeros((2, 2)), np.zeros((2, 3))), r"constant_mass has shape \(2, 3\) but mass has \(2, 2\)"),
        (lambda: plots.sinks(np.zeros((2, 2)), labels=["a"]), "labels has 1 entries but there are 2 layers"),
        (lambda: plots.query_check(np.zeros(3), ["a"]), r"z_scores must have shape \(statistic, layer, head\)"),
        (lambda: plots.query_check(np.zeros((1, 1, 1)), ["a", "b"]), "statistics has 2 entries but there are 1"),
        (lambda: plots.query_check(np.zeros((1, 1, 2)), ["a"], p_values=[0.1]), r"p_values has shape \(1,\)"),
        (lambda: plots.query_check(np.zeros((1, 1, 2)), ["a"], largest=0), "largest must be positive"),
    ],
)  # fmt: skip
def test_errors_name_the_argument_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
