"""Pictures take what `inference`, `results` and `inspection` return, and show the numbers in it."""

import inspect

import matplotlib
import numpy as np
import pytest
import torch
import xarray

matplotlib.use("Agg")
from matplotlib import pyplot

from probtx_pyro import inspection, models, plots, results
from probtx_pyro.inference import Adaptation

pytestmark = pytest.mark.filterwarnings("ignore:best_equivalent. a head has")  # of few queries: pictures stay small
DTYPE = torch.float64
MANY = ("chain", "draw")


@pytest.fixture(autouse=True)
def _close():
    yield
    pyplot.close("all")


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DTYPE)


@pytest.fixture(scope="module")
def captured():
    """Two layers, two examples, three heads; five queries of four features over six units."""
    shape = (2, 2, 3)
    dims, names = ("layer", "batch", "head"), {"layer": ["first", "second"]}
    return inspection.captured(normal(1, *shape, 5, 4), normal(2, *shape, 6, 4), None, dims=dims, coords=names)


@pytest.fixture(scope="module")
def check(captured):
    return inspection.query_check(captured, num_draws=19, seed=0, progress=False)


@pytest.fixture(scope="module")
def posterior():
    """ArviZ data of a parameter that the data fix (keys) and of one of which they say nothing."""
    rng = np.random.default_rng(0)
    keys, free = rng.normal(1, 0.1, (4, 300, 2)), rng.normal(0, 1, (4, 300))
    own = {"chain": (("chain",), np.arange(1)), "draw": (("draw",), np.arange(500))}
    groups = {
        "posterior": {
            "keys": ((*MANY, "unit"), keys),
            "free": (MANY, free),
            "attention": ((*MANY, "query", "unit"), rng.dirichlet(np.ones(2), (4, 300, 3))),
        },
        "prior": {
            "keys": ((*MANY, "unit"), rng.normal(0, 1, (1, 500, 2))),
            "free": (MANY, rng.normal(0, 1, (1, 500))),
            **own,
        },
        "log_prior": {"keys": (MANY, -0.5 * (keys**2).sum(-1)), "free": (MANY, -0.5 * free**2)},
        "log_likelihood": {
            "queries": ((*MANY, "query"), np.repeat(-50 * ((keys - 1) ** 2).sum(-1)[..., None] / 3, 3, -1))
        },
    }
    return results.from_arrays(groups, {"unit": ["cat", "sat"], "query": ["a", "b", "c"]})


def test_a_query_check_draws_itself(check):
    figure = plots.query_check(check)
    panels = figure.axes[: len(check.statistics)]
    for panel, name, scores in zip(panels, check.statistics, check.z_scores, strict=True):
        assert panel.get_title() == name
        np.testing.assert_array_equal(panel.images[0].get_array(), scores)
    assert [x.get_text() for x in panels[0].get_yticklabels()] == ["first", "second"]
    framed = sum(len(panel.patches) for panel in panels)
    assert framed == (check.p_values >= 0.05).sum() > 0
    assert panels[0].get_ylabel() == "mixture\nlayer"
    for row, (name, control) in enumerate(check.controls.items(), 1):
        beside = figure.axes[row * len(panels) : (row + 1) * len(panels)]
        for panel, scores in zip(beside, control.z_scores, strict=True):
            np.testing.assert_array_equal(panel.images[0].get_array(), scores)
        assert beside[0].get_ylabel() == f"{name}\nlayer"
        assert sum(len(panel.patches) for panel in beside) == (control.p_values >= 0.05).sum()
    assert row == 3 and beside[0].get_xlabel() == "head"
    plain = plots.query_check(check._replace(controls={}))
    assert (plain.axes[0].get_ylabel(), plain.axes[0].get_xlabel()) == ("layer", "head")


def test_an_adaptation_draws_its_objective():
    objective = torch.tensor([[-3.0, -4.0], [-2.0, -3.5]], requires_grad=True)
    mixture = models.GaussianMixture(torch.zeros(2, 1, 1))
    fit = Adaptation(mixture, objective, torch.ones(2, dtype=torch.bool), torch.ones(2), "ECM")
    data = results.from_arrays({"iterations": {"objective": (("iteration", "batch"), objective.detach().numpy())}})
    for given in (fit, objective, data, data["iterations"]):
        lines = plots.objective_trace(given).lines
        np.testing.assert_array_equal(np.stack([line.get_ydata() for line in lines], 1), objective.detach().numpy())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_tensors_with_gradients_are_drawn(dtype):
    weights = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=dtype, requires_grad=True)
    np.testing.assert_array_equal(plots.attention_map(weights).images[0].get_array(), [[0.25, 0.75], [0.5, 0.5]])


def test_the_point_estimate_of_arviz_data_is_mapped():
    weights = np.array([[0.25, 0.75], [0.5, 0.5]])
    data = results.from_arrays(
        {"point_estimate": {"attention": (("query", "unit"), weights)}}, {"query": ["the", "cat"], "unit": ["x", "y"]}
    )
    ax = plots.attention_map(data)
    np.testing.assert_array_equal(ax.images[0].get_array(), weights)
    assert [x.get_text() for x in ax.get_yticklabels()] == ["the", "cat"]


def test_a_posterior_is_mapped_by_its_mean(posterior):
    ax = plots.attention_map(posterior)
    np.testing.assert_allclose(ax.images[0].get_array(), posterior["posterior"]["attention"].mean(MANY))
    assert [x.get_text() for x in ax.get_xticklabels()] == ["cat", "sat"]


def test_a_band_of_arviz_data_takes_the_query_by_name(posterior):
    ax = plots.attention_band(posterior, query="b")
    mean = posterior["posterior"]["attention"].sel(query="b").mean(MANY)
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), mean)
    assert [x.get_text() for x in ax.get_xticklabels()] == ["cat", "sat"]
    left, right = plots.attention_uncertainty(posterior)
    np.testing.assert_allclose(right.images[0].get_array(), posterior["posterior"]["attention"].std(MANY))
    assert [x.get_text() for x in left.get_yticklabels()] == ["a", "b", "c"]


def test_prior_and_posterior_of_arviz_data(posterior):
    ax = plots.prior_posterior(posterior, name="keys", coords={"unit": "sat"})
    draws = [posterior[group]["keys"].sel(unit="sat").values.ravel() for group in ("prior", "posterior")]
    same = plots.prior_posterior(*draws)
    for found, expected in zip(ax.patches, same.patches, strict=True):
        np.testing.assert_array_equal(found.get_path().vertices, expected.get_path().vertices)
    assert ax.get_xlabel() == "keys, unit sat"


def test_prior_against_posterior_draws_shrinkage_and_shift(posterior):
    draws = {name: posterior["posterior"][name].values for name in ("keys", "free")}
    learned = results.prior_against_posterior({name: posterior["prior"][name].values[0] for name in draws}, draws)
    for given in (learned, posterior):
        ax = plots.prior_against_posterior(given)
        points = {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}
        assert list(points) == ["keys", "free"]
        np.testing.assert_allclose(points["keys"].get_xdata(), learned.shrinkage["keys"])
        np.testing.assert_allclose(points["keys"].get_ydata(), learned.shift["keys"])
    assert points["keys"].get_xdata().min() > 0.9 > 0.5 > points["free"].get_xdata()


def test_sensitivity_to_the_prior(posterior):
    draws = {name: posterior["posterior"][name].values for name in ("keys", "free")}
    densities = [
        sum(x.sum([dim for dim in x.dims if dim not in MANY]) for x in posterior[group].data_vars.values()).values
        for group in ("log_prior", "log_likelihood")
    ]
    found = results.prior_sensitivity(draws, *densities)
    for given in (found, posterior):
        ax = plots.prior_sensitivity(given)
        points = {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}
        np.testing.assert_allclose(points["keys"].get_xdata(), found.mean["prior"]["keys"])
        np.testing.assert_allclose(points["keys"].get_ydata(), found.mean["likelihood"]["keys"])
    doubtful = found._replace(pareto_k={"prior": 0.9, "likelihood": 0.1})
    ax = plots.prior_sensitivity(doubtful)
    assert "0.90: do not believe" in ax.get_xlabel() and "believe" not in ax.get_ylabel()


def test_signatures_fit_on_a_screen():
    functions = [getattr(plots, name) for name in plots.__all__ if callable(getattr(plots, name))]
    assert len(functions) > 20
    for function in functions:
        text = str(inspect.signature(function))
        assert len(text) < 500 and "_SupportsArray" not in text, (function.__name__, text)


WORDS = ["the", "cat"]
MISTAKES = {
    "arcs with the arguments swapped": (
        lambda *_: plots.channel_arcs(np.zeros((1, 2, 2)), WORDS), "words must be strings, not ndarray of shape"
    ),
    "words in place of marginals": (lambda *_: plots.channel_arcs(WORDS, WORDS), r"marginals must be numbers.*not text \('the'"),
    "heads in place of words": (lambda *_: plots.dependency_arcs([0, 1], WORDS), "words must be strings"),
    "words in place of attention": (lambda *_: plots.attention_map(WORDS), r"attention must be numbers of shape \(query, unit\)"),
    "several heads in one map": (lambda captured, *_: plots.attention_map(captured), r"has shape \(2, 2, 3, 5, 6\) \('layer', 'batch'"),
    "an object without an objective": (lambda captured, *_: plots.objective_trace(captured), "objective must be numbers.*Captured"),
    "data without an objective": (lambda _, __, data: plots.objective_trace(data), "no variable 'objective' in iterations"),
    "z-scores without names": (lambda *_: plots.query_check(np.zeros((1, 1, 1))), "statistics is missing"),
    "a query of another name": (lambda _, __, data: plots.attention_band(data, query="dog"), "no query is called 'dog'; choose from a, b, c"),
    "a query beyond the last": (
        lambda *_: plots.attention_band(xarray.DataArray(np.ones((1, 2, 3, 1)), dims=(*MANY, "query", "unit")), query=3),
        "no query is called 3; choose from 0, 1, 2",
    ),
    "a query of an array": (lambda *_: plots.attention_band(np.ones((2, 2, 1)), query=0), "query chooses from labelled data"),
    "units miscounted": (lambda *_: plots.attention_band(np.ones((2, 2, 1)), ["a", "b"]), "units has 2 entries but there are 1"),
    "a parameter of another name": (lambda _, __, data: plots.prior_posterior(data, name="key"), "no variable 'key'; choose from"),
    "a parameter with several entries": (
        lambda _, __, data: plots.prior_posterior(data, name="keys"), r"coords: keys has several entries along unit \(2\)"
    ),
    "a dim that is not there": (
        lambda _, __, data: plots.prior_posterior(data, name="free", coords={"unit": "cat"}), "coords: there is no dim 'unit'"
    ),
    "a posterior twice": (lambda _, __, data: plots.prior_posterior(data, [1.0]), "posterior: the data have one already"),
    "a prior alone": (lambda *_: plots.prior_posterior([1.0]), "posterior is missing"),
    "draws in place of what they taught": (lambda *_: plots.prior_against_posterior({"a": 1}), "learned must be the result of"),
    "draws in place of their sensitivity": (lambda *_: plots.prior_sensitivity({"a": 1}), "found must be the result of"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line_that_names_it(name, captured, check, posterior):
    call, message = MISTAKES[name]
    with pytest.raises(ValueError, match=message) as caught:
        call(captured, check, posterior)
    assert "\n" not in str(caught.value)


def test_labels_of_arrays_are_kept_when_they_are_given():
    weights = xarray.DataArray(np.eye(2), dims=("query", "unit"), coords={"unit": ["a", "b"]})
    ax = plots.attention_map(weights, unit_labels=["x", "y"])
    assert [x.get_text() for x in ax.get_xticklabels()] == ["x", "y"]
