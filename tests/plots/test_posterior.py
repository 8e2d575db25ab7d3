"""Pictures of posteriors show the numbers they were given."""

from typing import NamedTuple

import numpy as np
import pytest
from matplotlib import pyplot

from probtx_pyro import plots
from probtx_pyro.results import MartingaleCheck
from probtx_pyro.results.calibration import Calibration


@pytest.fixture(autouse=True)
def _close():
    yield
    pyplot.close("all")


def draws(*shape):
    weights = np.random.default_rng(0).gamma(1.0, size=(4, 50, *shape))
    return weights / weights.sum(-1, keepdims=True)


def test_the_band_is_the_interval_and_the_mean():
    attention = draws(3)
    ax = plots.attention_band(attention, ["cat", "sat", "mat"], prob=0.8, reference=[0.2, 0.3, 0.5])
    mean, reference = (line.get_ydata() for line in ax.get_lines())
    np.testing.assert_allclose(mean, attention.mean((0, 1)))
    np.testing.assert_allclose(reference, [0.2, 0.3, 0.5])
    spans = np.array([path.vertices[:, 1] for path in ax.collections[0].get_paths()])
    np.testing.assert_allclose(spans.T, np.quantile(attention.reshape(-1, 3), [0.1, 0.9], 0))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["cat", "sat", "mat"]


def test_mean_and_spread_stand_side_by_side():
    attention = draws(2, 3)
    left, right = plots.attention_uncertainty(attention, ["a", "b"], ["cat", "sat", "mat"])
    np.testing.assert_allclose(left.images[0].get_array(), attention.mean((0, 1)))
    np.testing.assert_allclose(right.images[0].get_array(), attention.reshape(-1, 2, 3).std(0))


def test_bands_of_answers_stand_in_the_order_of_the_queries():
    queries, answers = np.array([2.0, -1.0, 0.5]), np.array([0.2, 0.1, 0.3])
    ax = plots.answer_band(queries, answers, [answers - 0.1, answers + 0.2], ([0.0, 1.0], [0.4, 0.6]), label="89 %")
    plots.answer_band(queries, answers, [answers - 1, answers + 1], ax=ax, label="answers")
    mean, data = ax.get_lines()[:2]
    np.testing.assert_allclose(mean.get_xdata(), [-1.0, 0.5, 2.0])
    np.testing.assert_allclose(mean.get_ydata(), [0.1, 0.3, 0.2])
    np.testing.assert_allclose(data.get_ydata(), [0.4, 0.6])
    corners = ax.collections[0].get_paths()[0].vertices
    for x, low, high in ((-1.0, 0.0, 0.3), (0.5, 0.2, 0.5), (2.0, 0.1, 0.4)):
        at = corners[corners[:, 0] == x, 1]
        assert (at.min(), at.max()) == (pytest.approx(low), pytest.approx(high))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["89 %", "mean answer", "data", "answers"]


def test_prior_and_posterior_are_densities():
    ax = plots.prior_posterior(np.linspace(0, 1, 500), np.linspace(0.4, 0.6, 500), "key")
    assert ax.get_xlabel() == "key"
    areas = [sum(p.get_height() * p.get_width() for p in ax.patches if hasattr(p, "get_height"))]
    assert areas[0] == pytest.approx(1.0)


def test_a_line_outside_the_band_is_thick():
    rng = np.random.default_rng(0)
    ranks = {"keys": rng.integers(0, 20, (100, 2)), "weights": rng.integers(0, 8, (100, 1))}
    ax = plots.calibration(Calibration(ranks, 19, "Gibbs"))
    widths = [line.get_linewidth() for line in ax.get_lines()]
    assert widths[:3] == [0.9, 0.9, 2.4]
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"99% for all together", "keys", "weights"}


def test_parameters_can_be_told_apart_without_colour_and_thirty_two_of_them_at_all():
    ranks = {f"parameter {i}": np.arange(40).reshape(20, 2) % 20 for i in range(32)}
    lines = plots.calibration(Calibration(ranks, 19, "Gibbs")).get_lines()[:-1]  # the last is zero
    looks = [(line.get_color(), line.get_linestyle()) for line in lines]
    assert looks[::2] == looks[1::2] and len(set(looks)) == 32
    assert len({dashes for _, dashes in looks[:8]}) == 4


class Bad(NamedTuple):
    """A call that is refused."""

    call: object
    message: str


@pytest.mark.parametrize(
    "bad",
    [
        Bad(lambda: plots.attention_band(np.zeros((4, 3))), "attention must have shape"),
        Bad(lambda: plots.attention_band(draws(3), prob=1.0), "prob must be between"),
        Bad(
            lambda: plots.answer_band([0.0, 1.0], [0.0], [[0.0], [1.0]]),
            r"answers must have shape \(2,\).*one for each query",
        ),
        Bad(lambda: plots.answer_band([0.0], [0.0], [[1.0], [0.0]]), "lower end lies above the upper one"),
        Bad(
            lambda: plots.answer_band([0.0], [0.0], [[0.0], [1.0]], ([0.0], [])),
            "points has 0 entries but there are 1 queries",
        ),
        Bad(lambda: plots.attention_uncertainty(np.full((1, 1, 2, 2), np.nan)), "NaN"),
    ],
)
def test_bad_input_is_refused(bad):
    with pytest.raises(ValueError, match=bad.message):
        bad.call()


def test_drifts_stand_in_rows_by_check_and_series_by_function():
    drifts = {"confidence": np.array([0.3, 0.1]), "last": np.array([-0.1, -0.3])}
    check = MartingaleCheck(drifts, np.diag([0.01, 0.04]), 9, None, None)
    other = MartingaleCheck({"last": np.array([0.1])}, np.array([[0.01]]), 9, None, None)
    ax = plots.martingale_check({"one": check, "two": other})
    (confidence, rows), (last, _) = (line.get_data() for line in ax.get_lines())
    np.testing.assert_allclose(confidence, [2.0, np.nan])
    np.testing.assert_allclose(last, [-1.0, 1.0])
    np.testing.assert_array_equal(rows, [0, 1])
    assert [x.get_text().split("\n")[0] for x in ax.get_yticklabels()] == ["one", "two"]
    assert len(plots.martingale_check(check).get_lines()) == 2
