import re
from base64 import b64decode
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path

import arviz
import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
from matplotlib import pyplot

pytest.importorskip("sklearn")

from probtx_pyro import cli
from probtx_pyro.results._arviz import group_names
from probtx_pyro.tour._chapter import Chapter, Context, Number, Picture
from probtx_pyro.tour._run import CHAPTERS, report


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The whole tour in small sizes, by the command."""
    out = tmp_path_factory.mktemp("tour") / "new" / "folder"
    shown = StringIO()
    pyplot.close("all")  # what other tests of this process left open is not the tour's
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(shown):
        patch.setenv("PROBTX_SMOKE", "1")
        assert cli.main(["tour", "--out", str(out), "--no-progress", "--seed", "5"]) == 0
    return out, shown.getvalue(), pyplot.get_fignums()


@pytest.mark.slow
def test_the_command_says_where_things_are(written):
    out, shown, open_figures = written
    figures = sorted((out / "figures").iterdir())
    assert shown.splitlines() == [
        f"Report: {out / 'report.html'}",
        f"Data:   {out / 'tour.nc'}, {out / 'posterior.nc'}",
        f"Figures: {len(figures)} in {out / 'figures'}",
        "Next:   open the report in a browser; then, on a picture of your own:  probtx segment --help",
    ]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in figures)
    assert not open_figures


@pytest.mark.slow
def test_report_is_self_contained(written):
    out, *_ = written
    page = (out / "report.html").read_text(encoding="utf-8")
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    files = [file.read_bytes() for file in sorted((out / "figures").iterdir())]
    assert sorted(b64decode(image) for image in images) == sorted(files)
    assert "<td>seed</td><td>5</td>" in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert page.count("<h2>") == len(CHAPTERS)
    assert "these numbers test the plumbing only" in page
    values = re.findall(r'class="value">([^<]+)<', page)
    assert values and not any("nan" in value or "inf" in value for value in values)


@pytest.mark.slow
def test_inference_data_holds_the_adaptation(written):
    out, *_ = written
    data = arviz.from_netcdf(str(out / "tour.nc"))
    assert data["point_estimate"]["attention"].dims == ("batch", "query", "unit")
    np.testing.assert_allclose(data["point_estimate"]["attention"].sum("unit"), 1.0)
    assert data["point_estimate"]["unit"].values[0] == "0a"
    assert (data["iterations"]["objective"].diff("iteration") > -1e-6).all()


@pytest.mark.slow
def test_inference_data_holds_the_draws(written):
    out, *_ = written
    data = arviz.from_netcdf(str(out / "posterior.nc"))
    assert data.attrs["method"] == "Gibbs"
    assert data["posterior"]["attention"].dims == ("chain", "draw", "query", "unit")
    assert list(data["posterior"]["unit"].values) == ["0", "1", "4", "6", "7"]
    np.testing.assert_allclose(data["posterior"]["attention"].sum("unit"), 1.0)
    assert {"log_likelihood", "sample_stats", "posterior_predictive"} <= set(group_names(data))


def test_every_chapter_file_is_told():
    folder = Path(import_module("probtx_pyro.tour._chapters").__file__).parent
    assert sorted(CHAPTERS) == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def _numbers(name, seed):
    chapter = import_module(f"probtx_pyro.tour._chapters.{name}").chapter(Context(seed, smoke=True))
    pyplot.close("all")
    return {number.quantity: number.value for picture in chapter.pictures for number in picture.numbers}


def test_attention_makes_the_elbo_tight():
    numbers = _numbers("attention_is_a_posterior", 1)
    assert numbers["ELBO with attention as guide, nats"] == pytest.approx(numbers["log evidence of the queries, nats"])
    assert numbers["largest |gap − KL|, nats"] < 1e-9 * numbers["largest KL among the guides, nats"]
    assert numbers["largest difference in float64"] < 1e-12


def test_soft_k_means_is_attention_and_its_centers_part_where_derived():
    numbers = _numbers("from_k_means_to_attention", 3)
    assert numbers["weights against attention"] < 1e-13
    assert numbers["answers against scaled_dot_product_attention"] < 1e-13
    assert numbers["free energy after EM"] < numbers["free energy at the centers of k-means"]
    derived = numbers["critical γ, derived"]
    assert numbers["critical γ, measured"] == pytest.approx(
        derived, rel=2e-3
    )  # what 60 steps leave of the other direction
    smallest, largest = (numbers[f"spread of the centers at the {end} γ"] for end in ("smallest", "largest"))
    assert smallest < 0.1 < 1 < largest


def test_every_click_is_scored():
    numbers = _numbers("one_click", 0)
    scores = [value for name, value in numbers.items() if name.startswith("IoU")]
    assert len(scores) >= 2 and all(0 <= score <= 1 for score in scores)
    assert numbers["pixels set right by the worst click"] <= numbers["pixels set right by the best click"]
    assert numbers["pixels of the photograph"] == 107 * 160


def test_several_keys_are_scored_and_a_trained_head_keeps_its_attention():
    numbers = _numbers("several_keys", 4)
    assert 0.3 < numbers["accuracy, 1 key a digit"] <= 1 and 0.3 < numbers["accuracy, 2 keys a digit"] <= 1
    assert 0 <= numbers["hard evidence below the soft one, nats"] <= np.log(2)
    assert max(numbers[f"largest difference, layer {layer}"] for layer in range(2)) < 1e-12
    assert 0 < numbers["smallest distance of two heads"] <= numbers["median distance of two heads"] < 1


def test_a_few_steps_learn_more_of_syntax_than_neighbours_know():
    numbers = _numbers("sentence_structure", 6)
    baselines = [numbers[f"attachment score, {name}"] for name in ("left arc", "right arc", "random heads")]
    assert numbers["attachment score, best projective tree"] > max(baselines) + 0.1
    assert 0 < numbers["probability that independent heads make a tree"] < 1
    assert 0 < numbers["smallest log Z − ELBO, nats"] <= numbers["median log Z − ELBO, nats"] < 0.1


def test_erased_digits_come_back_and_attention_is_the_slope():
    numbers = _numbers("what_is_remembered", 8)
    assert numbers["largest |attention − slope of log Z|"] < 1e-12
    assert numbers["largest rise of the energy in a step"] < 1e-12
    assert numbers["share retrieved, β = 1000"] > 0.7 > 0.3 > numbers["share retrieved, β = 15"]
    pixel = "mean standard deviation of a pixel, β = "
    assert 0 <= numbers[pixel + "1000"] < numbers[pixel + "15"]
    assert 1 <= numbers["resting places, smallest β"] < numbers["resting places, largest β"] <= 20 + 1e-9
    for name in ("random half", "lower half"):
        assert numbers[f"share retrieved, {name}, softmax"] <= numbers[f"largest dot product is right, {name}"] + 1e-9


@pytest.mark.slow
def test_both_samplers_and_their_calibration_are_reported():
    numbers = _numbers("diagnosing", 7)
    (low,), (high,) = (
        [numbers[x] for x in numbers if x.startswith("attention") and x.endswith(end)]
        for end in ("lower end", "upper end")
    )
    assert 0 <= low < high <= 1 and 0 < numbers["median width of an interval"] < 1
    assert numbers["bulk ESS, Gibbs"] > 0 and numbers["divergences, NUTS"] >= 0
    assert numbers["simulations"] == 20 and numbers["quantities"] == 16
    assert 0 < numbers["smallest p-value, Bonferroni"] <= 1


@pytest.mark.slow
def test_numbers_follow_the_seed_only():
    assert _numbers("map_transformer", 2) == _numbers("map_transformer", 2) != _numbers("map_transformer", 3)


def test_markup_in_text_is_escaped(tmp_path):
    figure = pyplot.figure()
    figure.savefig(tmp_path / "x.png")
    picture = Picture("x", figure, "a < b", [Number("<i>", 1.0, "how & why")])
    chapter = Chapter("<b>", "?", ["1 < 2"], [picture])
    page = report([(chapter, 0.1)], [tmp_path / "x.png"], Context(0))
    pyplot.close(figure)
    assert "&lt;b&gt;" in page and "<b>" not in page and "how &amp; why" in page and "a &lt; b" in page
