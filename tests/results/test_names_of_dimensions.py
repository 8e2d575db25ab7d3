"""Names of dimensions, variables and labels that lose data or break files: public reports of other trackers, tried on conversion.

xarray#1378, #3731: an axis named twice. xarray#7943, pymc#5657: a slash. xarray#8029: a space at the end. xarray#533, #1555: integers.
xarray#2368 and arviz#656: a dimension called like a variable, labels that do not count it.
"""

import numpy as np
import pyro
import pytest
import torch
from arviz_versions import dataset
from pyro.distributions import Normal

from probtx_pyro import inference, models
from probtx_pyro.results import diagnose, from_arrays, to_inference_data

QUERIES = torch.arange(8.0).reshape(4, 2)
MIXTURE = models.GaussianMixture(torch.arange(6.0).reshape(3, 2))


def drawn(posterior, **samples):
    """Draws of one chain that a program of one's own could have made."""
    return inference.Draws(samples, {"lp": torch.zeros(1, 5)}, posterior, (), "NUTS", {})


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        (["unit", "unit"], "two axes called 'unit'"),
        (["layer/unit", "feature"], "'layer/unit', which a file cannot hold"),
        (["unit ", "feature"], "'unit ', which a file cannot hold"),
        (["un\0it", "feature"], "which a file cannot hold"),
        (["", "feature"], "'', which a file cannot hold"),
        ([".", "feature"], "'.', which a file cannot hold"),
        ([0, 1], "called 0, which a file cannot hold"),
        ([None, "feature"], "called None, which a file cannot hold"),
        ("uf", "the text 'uf'; give a list"),
        (["keys", "feature"], "a variable 'keys' and an axis of that name"),
        (["attention", "feature"], "a variable 'attention' and an axis of that name"),
        (["key_precision", "feature"], "a variable 'key_precision' and an axis of that name"),
        (["unit"], "1 names for keys with axes unit, feature"),
    ],
)
def test_names_of_axes_that_lose_data_or_break_files_are_refused(dims, said):
    with pytest.raises(ValueError, match=r"^dims: ") as error:
        to_inference_data(MIXTURE, QUERIES, dims={"keys": dims})
    assert said in str(error.value) and "\n" not in str(error.value)


def test_attention_within_a_sequence_needs_two_names():
    attention = torch.eye(4)
    with pytest.raises(ValueError, match="attention has two axes called 'token'"):
        from_arrays({"point_estimate": {"attention": (("token", "token"), attention.numpy())}})


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["a"], "1 labels for 'unit', which has 3 entries"),
        ("abc", "the labels of 'unit' are a text"),
        (3, "the labels of 'unit' are of shape ()"),
        (np.zeros((3, 2)), r"the labels of 'unit' are of shape (3, 2)"),
        ((x for x in "abc"), "the labels of 'unit' are of shape ()"),
        ([], "0 labels for 'unit'"),
    ],
)
def test_labels_that_do_not_count_a_dimension_are_refused(labels, said):
    with pytest.raises(ValueError, match=r"^coords: ") as error:
        to_inference_data(MIXTURE, QUERIES, coords={"unit": labels})
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["chain", "draw"])
def test_a_parameter_called_like_an_axis_of_draws_is_not_lost(name):
    array = np.zeros((2, 5))
    with pytest.raises(ValueError, match=f"posterior has a variable '{name}' and an axis of that name"):
        from_arrays({"posterior": {name: (("chain", "draw"), array), "x": (("chain", "draw"), array)}})
    with pytest.raises(ValueError, match=f"'{name}'"):
        diagnose(drawn(None, **{name: torch.zeros(1, 5), "x": torch.zeros(1, 5)}))


def test_a_plate_called_like_an_axis_of_draws_is_named():
    def program():
        with pyro.plate("chain", 1):
            pyro.sample("mu", Normal(0.0, 1.0))

    with pytest.raises(ValueError, match="mu has two axes called 'chain'"):
        to_inference_data(drawn(program, mu=torch.zeros(1, 5, 1)))


@pytest.mark.parametrize("name", ["Schicht ü", "日本", "a.b", "un\nit", "2nd unit", "a|b"])
def test_odd_names_and_labels_and_empty_axes_come_back_from_a_file(name, tmp_path):
    import arviz

    labels = ["ü", "", "日本"]
    data = to_inference_data(MIXTURE, QUERIES, dims={"keys": [name, "feature"]}, coords={name: labels})
    data.to_netcdf(tmp_path / "odd.nc")
    found = arviz.from_netcdf(tmp_path / "odd.nc")
    assert dataset(found, "point_estimate")["keys"].sel({name: "日本"}).values.tolist() == [4.0, 5.0]
    empty = from_arrays({"point_estimate": {"a": ((name, "unit"), np.zeros((0, 2)))}})
    empty.to_netcdf(tmp_path / "empty.nc")
    assert dataset(arviz.from_netcdf(tmp_path / "empty.nc"), "point_estimate").sizes[name] == 0
