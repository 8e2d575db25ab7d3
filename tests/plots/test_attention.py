import subprocess
import sys

import matplotlib
import numpy as np
import pytest
import xarray

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.colors import to_rgba

from probtx_pyro import plots

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _close():
    yield
    pyplot.close("all")


def _plane(units=3):
    keys = RNG.normal(size=(units, 2))
    grid = plots.query_grid(keys, num=30, margin=0.5)
    weights = np.exp(-((grid[:, :, None] - keys) ** 2).sum(-1))
    return grid, weights / weights.sum(-1, keepdims=True), keys


def test_attention_map_shows_the_matrix_and_its_labels():
    weights = RNG.dirichlet(np.ones(3), 2)
    ax = plots.attention_map(weights, ["cat", "sat"], ["the", "cat", "sat"])
    np.testing.assert_array_equal(ax.images[0].get_array(), weights)
    assert [x.get_text() for x in ax.get_yticklabels()] == ["cat", "sat"]
    assert [x.get_text() for x in ax.get_xticklabels()] == ["the", "cat", "sat"]
    assert [x.get_text() for x in ax.texts] == [f"{w:.2f}".lstrip("0") for w in weights.flat]


def test_attention_map_reads_labels_from_xarray():
    weights = xarray.DataArray(np.eye(2), dims=("word", "unit"), coords={"word": ["a", "b"]})
    ax = plots.attention_map(weights)
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("word", "unit")
    assert [x.get_text() for x in ax.get_yticklabels()] == ["a", "b"]


def test_given_axes_are_used_and_nothing_is_shown(monkeypatch):
    monkeypatch.setattr(pyplot, "show", lambda *_: pytest.fail("a plot called show"))
    grid, weights, keys = _plane()
    figure, panels = pyplot.subplots(1, 5)
    assert plots.attention_map(np.eye(2), ax=panels[0]) is panels[0]
    assert plots.responsibilities(grid, weights, keys, 1.0, ax=panels[1]) is panels[1]
    assert plots.em_paths(RNG.normal(size=(4, 3, 2)), ax=panels[2]) is panels[2]
    assert plots.objective_trace([1.0, 2.0], ax=panels[3]) is panels[3]
    assert plots.segmentation_overlay(np.zeros((4, 5, 3)), np.zeros((4, 5), bool), ax=panels[4]) is panels[4]
    figure.canvas.draw()


def test_units_are_circles_of_one_standard_deviation():
    grid, weights, keys = _plane()
    ax = plots.responsibilities(grid, weights, keys, [4.0, 1.0, 0.25], ["a", "b", "c"], queries=keys)
    assert [patch.width for patch in ax.patches] == [1.0, 2.0, 4.0] == [patch.height for patch in ax.patches]
    np.testing.assert_allclose([patch.center for patch in ax.patches], keys)
    assert [x.get_text() for x in ax.texts] == ["a", "b", "c"]
    assert ax.get_aspect() == 1.0
    edges = [patch.get_edgecolor() for patch in ax.patches]
    assert len({*edges}) == 3


def test_several_keys_of_a_unit_share_its_colour_and_name():
    grid, weights, keys = _plane(2)
    both = np.stack([keys, keys + 1.0], 1)  # (unit, component, 2)
    ax = plots.responsibilities(grid, weights, both, [[4.0, 1.0], [0.25, 16.0]], ["a", "b"])
    np.testing.assert_allclose([patch.center for patch in ax.patches], both.reshape(-1, 2))
    assert [patch.width for patch in ax.patches] == [1.0, 2.0, 4.0, 0.5]
    assert [x.get_text() for x in ax.texts] == ["a", "a", "b", "b"]
    edges = [patch.get_edgecolor() for patch in ax.patches]
    assert edges[0] == edges[1] != edges[2] == edges[3]


def test_responsibilities_colour_the_owner():
    grid, weights, keys = _plane(2)
    hard = np.zeros_like(weights)
    hard[..., 1] = 1.0
    ax = plots.responsibilities(grid, hard, keys, 1.0)
    pale = 1 - 0.6 * (1 - np.array(plots.unit_color(1)))
    np.testing.assert_allclose(ax.images[0].get_array()[0, 0], pale)


def test_em_paths_draw_each_start():
    paths = RNG.normal(size=(5, 4, 2))
    grid = plots.query_grid(paths.reshape(-1, 2), num=10)
    ax = plots.em_paths(paths, grid, np.ones((10, 10)), modes=paths[-1, :2], mean=paths[-1, 0])
    np.testing.assert_array_equal(ax.lines[2].get_xydata(), paths[:, 2])
    assert [x.get_text() for x in ax.get_legend().get_texts()] == ["start", "end of EM", "mode", "posterior mean"]


def test_objective_trace_labels_every_problem():
    trace = np.stack([[-3.0, -2.0, -1.9], [-3.0, -2.5, -1.9]], 1)
    ax = plots.objective_trace(trace, ["low", "high"])
    np.testing.assert_array_equal(np.stack([line.get_ydata() for line in ax.lines], 1), trace)
    assert [x.get_text() for x in ax.texts] == ["low", "high"]
    heights = [x.get_position()[1] for x in ax.texts]
    assert abs(heights[0] - heights[1]) > 0.05 * np.ptp(trace)


def test_segmentation_overlay_dims_the_background_and_numbers_clicks():
    image = np.full((4, 6, 3), 200, dtype=np.uint8)
    mask = np.zeros((4, 6), bool)
    mask[:, :3] = True
    ax = plots.segmentation_overlay(image, mask, [[1, 1, 1], [2, 5, 0]])
    shown = ax.images[0].get_array()
    np.testing.assert_allclose(shown[mask], 200 / 255)
    assert (shown[~mask] < 0.5).all()
    assert [x.get_text() for x in ax.texts] == ["1+", "2−"]
    assert [tuple(line.get_xydata()[0]) for line in ax.lines] == [(1.0, 1.0), (5.0, 2.0)]
    assert ax.lines[0].get_markerfacecolor()[:3] != to_rgba("black")[:3]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.attention_map(np.zeros(3)), r"attention must have shape \(query, unit\)"),
        (lambda: plots.attention_map(np.eye(2), ["a"]), "query_labels has 1 entries but there are 2 rows"),
        (lambda: plots.attention_map([[np.nan, 1.0]]), "attention contains NaN"),
        (lambda: plots.query_grid([1.0]), "points must have shape"),
        (lambda: plots.query_grid([[1.0, 2.0, 3.0]]), r"points must have shape \(N, 2\) .* choose two coordinates"),
        (lambda: plots.em_paths(np.zeros((2, 2, 2)), modes=np.zeros((1, 3))), r"modes must have shape \(N, 2\)"),
        (lambda: plots.responsibilities(np.zeros((2, 2)), np.zeros((2, 2, 1)), [[0, 0]], 1), "grid must have shape"),
        (lambda: plots.responsibilities(_plane()[0], np.zeros((2, 2, 3)), np.zeros((3, 2)), 1), "ask the model at grid"),
        (lambda: plots.responsibilities(*_plane(), 0.0), "key_precision must be positive"),
        (lambda: plots.responsibilities(*_plane(), 1.0, ["a"]), "unit_labels has 1 entries but there are 3 units"),
        (lambda: plots.em_paths(np.zeros((2, 2, 2)), density=np.zeros((2, 2))), "give both, or neither"),
        (lambda: plots.em_paths(np.zeros((2, 2))), "paths must have shape"),
        (lambda: plots.objective_trace(1.0), "give fit.objective"),
        (lambda: plots.objective_trace([1.0, 2.0], ["a", "b"]), "labels has 2 entries but there are 1 problems"),
        (lambda: plots.segmentation_overlay(np.zeros((4, 4, 4)), np.zeros((4, 4))), "image must have shape"),
        (lambda: plots.segmentation_overlay(np.full((4, 4), 9.0), np.zeros((4, 4))), "give bytes"),
        (lambda: plots.segmentation_overlay(np.zeros((4, 4)), np.zeros((3, 4))), "resize one of them"),
        (lambda: plots.segmentation_overlay(np.zeros((4, 4)), np.full((4, 4), 2.0)), "compare scores with a threshold"),
        (lambda: plots.segmentation_overlay(np.zeros((4, 4)), np.zeros((4, 4)), [[1, 2]]), "clicks must have shape"),
    ],
)  # fmt: skip
def test_errors_name_the_argument_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_plots_import_no_torch():
    code = (
        "import sys; from probtx_pyro import plots; print([m for m in ('torch', 'pyro', 'arviz') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
