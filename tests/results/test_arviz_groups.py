"""`results.from_arrays` on the ArviZ that is installed: this file imports neither torch nor pyro."""

import arviz
import numpy as np
import pytest

from probtx_pyro import results

GROUPS = {
    "iterations": {"objective": (("iteration",), np.array([-3.0, -2.0, -1.5]))},
    "point_estimate": {
        "keys": (("unit", "feature"), np.arange(4.0).reshape(2, 2)),
        "attention": (("query", "unit"), np.array([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]])),
    },
    "constant_data": {"observed": (("query",), np.array([True, False, True]))},
    "observed_data": {},
}
COORDS = {"query": ["the", "cat", "the"], "unit": ["left", "right"]}


def test_arrays_become_groups_with_coords():
    data = results.from_arrays(GROUPS, COORDS, {"method": "ECM"})
    assert data["point_estimate"]["attention"].sel(query="cat", unit="left").item() == 1.0
    assert data["iterations"]["objective"].coords["iteration"].values.tolist() == [0, 1, 2]
    assert data.attrs["method"] == "ECM"
    groups = {str(group).strip("/") for group in (data.groups() if callable(data.groups) else data.groups)} - {""}
    assert groups == {"iterations", "point_estimate", "constant_data"}


def test_netcdf_gives_identical_data(tmp_path):
    data = results.from_arrays(GROUPS, COORDS, {"method": "ECM", "num_steps": 2})
    data.to_netcdf(str(tmp_path / "fit.nc"))
    loaded = arviz.from_netcdf(str(tmp_path / "fit.nc"))
    assert dict(loaded.attrs) == dict(data.attrs)
    for group in ("iterations", "point_estimate", "constant_data"):
        assert loaded[group].identical(data[group])
        for name in data[group].data_vars:
            assert loaded[group][name].dtype == data[group][name].dtype
    changed = {**GROUPS, "iterations": {"objective": (("iteration",), np.array([-3.0, -2.0, -1.0]))}}
    assert not loaded["iterations"].identical(results.from_arrays(changed)["iterations"])


@pytest.mark.parametrize(
    ("groups", "coords", "message"),
    [
        (GROUPS, {"head": ["a"]}, "no variable has a dimension 'head'"),
        (GROUPS, {"unit": ["a", "b", "c"]}, "3 labels for 'unit', which has 2 entries"),
        ({"g": {"x": (("unit",), np.zeros((2, 2)))}}, None, r"x has shape \(2, 2\) but dims unit"),
        ({"g": {"x": (("unit",), np.zeros(2)), "y": (("unit",), np.zeros(3))}}, None, "y has 3 entries along 'unit'"),
    ],
)
def test_errors_name_the_argument(groups, coords, message):
    with pytest.raises(ValueError, match=message):
        results.from_arrays(groups, coords)
