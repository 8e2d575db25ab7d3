import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
from matplotlib import pyplot

from probtx_pyro import plots

RNG = np.random.default_rng(0)
P_VALUES = {"log evidence": 0.02, "squared norm": 0.6, "entropy": 1.0}


@pytest.fixture(autouse=True)
def _close():
    yield
    pyplot.close("all")


def attention(queries=4, units=5):
    weights = RNG.dirichlet(np.ones(units), queries)
    return weights, np.exp(-(weights * np.log(weights)).sum(-1))


def report(queries=4, **changes):
    weights, spread = attention(queries)
    given = {"attention": weights, "effective_units": spread, "observed_evidence": -3.0, "p_values": P_VALUES}
    given["replicated_evidence"] = RNG.normal(size=200)
    return plots.head_report(**(given | changes)), given | changes


def test_a_report_shows_attention_units_evidence_and_p_values():
    figure, given = report(query_labels=list("abcd"), unit_labels=list("uvwxy"), title="layer 0, head 1")
    figure.canvas.draw()
    head, spread, evidence, check = figure.axes[:4]
    np.testing.assert_array_equal(head.images[0].get_array(), given["attention"])
    for ax in (head, spread):
        assert [x.get_text() for x in ax.get_yticklabels()] == list("abcd")
        np.testing.assert_allclose(ax.get_ylim(), (3.5, -0.5))  # rows side by side
    values, edges, _ = spread.patches[0].get_data()
    np.testing.assert_array_equal(values, given["effective_units"])
    np.testing.assert_array_equal(edges, [-0.5, 0.5, 1.5, 2.5, 3.5])
    assert sum(bar.get_height() for bar in evidence.patches) == 200
    assert evidence.lines[0].get_xdata() == [-3.0, -3.0]
    filled, empty = check.lines[1:]
    assert filled.get_xdata().tolist() == [0.02] and filled.get_ydata().tolist() == [0]
    assert empty.get_xdata().tolist() == [0.6, 1.0] and empty.get_markerfacecolor() == "white"
    assert [x.get_text() for x in check.get_yticklabels()] == list(P_VALUES)
    assert figure.get_suptitle() == "layer 0, head 1"


def test_the_entropy_axis_reads_the_logarithm():
    figure, _ = report(effective_units=np.array([1.0, np.e**2, 4.0, 0.0]))
    figure.canvas.draw()
    spread = figure.axes[1]
    (entropy,) = spread.child_axes
    at = {x.get_text(): x.get_position()[0] for x in entropy.get_xticklabels()}
    assert list(at) == ["0", "1", "2"]
    scale = entropy.transData.transform([(2.0, 0.0)])[0, 0]
    assert np.isclose(scale, spread.transData.transform([(np.e**2, 0.0)])[0, 0])


def test_long_texts_are_drawn_without_their_tokens():
    figure, _ = report(60, query_labels=[f"token{i}" for i in range(60)])
    assert "token1" not in [x.get_text() for x in figure.axes[0].get_yticklabels()]


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
        (lambda: report(attention=np.zeros(4)), r"attention must have shape \(query, unit\)"),
        (lambda: report(effective_units=np.ones(3)), "effective_units has 3 entries but there are 4"),
        (lambda: report(replicated_evidence=[np.nan]), "replicated_evidence contains NaN"),
        (lambda: report(replicated_evidence=[]), "at least one draw"),
        (lambda: report(p_values={}), "p_values must be in .* and at least one,"),
        (lambda: report(p_values={"a": 0.0}), r"p_values must be in \(0, 1\]"),
        (lambda: report(query_labels=["a"]), "query_labels has 1 entries but there are 4 rows"),
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
