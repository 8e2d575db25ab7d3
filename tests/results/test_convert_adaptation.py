import subprocess
import sys

import arviz
import pytest
import torch
from pyro.distributions import Dirichlet, Gamma, Normal

from probtx_pyro import inference, models, results

DTYPE = torch.float64


def _fit(num_steps=4, **options):
    """Two batches of three heads; each head adapts keys and weights of its own, shared by the batches."""
    generator = torch.Generator().manual_seed(3)
    keys, values = (torch.randn(4, n, generator=generator, dtype=DTYPE) for n in (2, 3))
    queries = torch.randn(2, 3, 5, 2, generator=generator, dtype=DTYPE)
    outputs = torch.randn(2, 3, 5, 3, generator=generator, dtype=DTYPE)
    uniform = torch.full((3, 1, 4), 0.25, dtype=DTYPE).log()
    mixture = models.GaussianMixture(keys.expand(3, 4, 2), values, 2.0, 1.0, uniform)
    priors = dict(keys=Normal(keys, 1.0), weights=Dirichlet(torch.full((1, 4), 2.0, dtype=DTYPE)))
    return (
        inference.adapt(models.bayesian(mixture, **priors), queries, outputs, num_steps=num_steps, **options),
        queries,
        outputs,
    )


def test_dims_come_from_the_plates():
    fit, queries, outputs = _fit()
    data = results.to_inference_data(fit, queries, outputs, coords={"query": list("abcde")})
    expected = {
        "keys": ("head", "unit", "feature"),
        "values": ("unit", "answer"),
        "key_precision": (),
        "attention": ("batch", "head", "query", "unit"),
        "log_evidence": ("batch", "head", "query"),
    }
    for name, dims in expected.items():
        assert data["point_estimate"][name].dims == dims
    assert data["constant_data"]["queries"].dims == ("batch", "head", "query", "feature")
    assert data["observed_data"]["outputs"].dims == ("batch", "head", "query", "answer")


def test_values_are_those_of_the_fit():
    fit, queries, outputs = _fit()
    data = results.to_inference_data(fit, queries, outputs)
    torch.testing.assert_close(
        torch.as_tensor(data["point_estimate"]["attention"].values),
        fit.formulation.attention(queries, outputs),
        rtol=0,
        atol=0,
    )
    torch.testing.assert_close(
        torch.as_tensor(data["point_estimate"]["weights"].values),
        fit.formulation.log_weights().exp().reshape(data["point_estimate"]["weights"].shape),
        rtol=0,
        atol=0,
    )


def test_iterations_are_not_draws():
    fit, queries, outputs = _fit(num_steps=6)
    data = results.to_inference_data(fit, queries, outputs)
    objective = data["iterations"]["objective"]
    assert objective.dims[0] == "iteration" and objective.sizes["iteration"] == 7
    assert objective.values.reshape(-1).tolist() == fit.objective.reshape(-1).tolist()
    for group in ("iterations", "point_estimate"):
        assert not {"draw", "chain"} & set(data[group].dims)


def test_attributes_say_how_it_ended():
    fit, queries, outputs = _fit(num_steps=2000, tol=1e-6)
    attrs = results.to_inference_data(fit, queries, outputs).attrs
    assert (attrs["method"], attrs["converged"], attrs["inference_library"]) == ("ECM", 1, "probtx_pyro")
    assert attrs["num_steps"] == int(fit.num_steps.max()) < 2000
    assert results.to_inference_data(_fit(num_steps=1, tol=1e-6)[0]).attrs["converged"] == 0


def test_netcdf_round_trip(tmp_path):
    fit, queries, outputs = _fit()
    data = results.to_inference_data(fit, queries, outputs, coords={"unit": list("wxyz")})
    data.to_netcdf(str(tmp_path / "fit.nc"))
    loaded = arviz.from_netcdf(str(tmp_path / "fit.nc"))
    for group in ("iterations", "point_estimate", "constant_data", "observed_data"):
        assert loaded[group].identical(data[group])


def test_labels_and_what_is_observed_are_kept():
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=DTYPE)
    mixture = models.GaussianMixture.categorical(torch.tensor([[-1.0], [1.0]], dtype=DTYPE), probs)
    queries, labels = torch.zeros(3, 1, dtype=DTYPE), torch.tensor([0, 1, 0])
    data = results.to_inference_data(mixture, queries, labels, torch.tensor([True, False, True]))
    assert data["observed_data"]["outputs"].dims == ("query",)
    assert data["constant_data"]["observed"].values.tolist() == [True, False, True]
    assert data["point_estimate"]["answer_probs"].dims == ("unit", "label")
    assert data["point_estimate"]["attention"].values[1].tolist() == pytest.approx([0.5, 0.5])


def test_single_query_and_single_feature_keep_their_axes():
    mixture = models.GaussianMixture(torch.tensor([[-1.0], [1.0]], dtype=DTYPE))
    data = results.to_inference_data(mixture, torch.zeros(1, 1, dtype=DTYPE))
    assert data["point_estimate"]["attention"].dims == ("query", "unit")
    assert data["point_estimate"]["keys"].shape == (2, 1)


def test_axes_renamed_by_dims():
    mixture = models.GaussianMixture(torch.zeros(3, 2, 1, dtype=DTYPE))
    data = results.to_inference_data(mixture, dims={"keys": ["layer", "unit", "feature"]}, coords={"layer": [4, 5, 6]})
    assert data["point_estimate"]["keys"].sel(layer=5).shape == (2, 1)


def test_gradient_map_keeps_its_name():
    mixture = models.GaussianMixture(torch.tensor([[-1.0], [1.0]], dtype=DTYPE))
    priors = dict(key_precision=Gamma(torch.tensor(2.0, dtype=DTYPE), torch.tensor(1.0, dtype=DTYPE)))
    fit = inference.adapt(models.bayesian(mixture, **priors), torch.ones(4, 1, dtype=DTYPE))
    assert results.to_inference_data(fit._replace(method="gradient MAP")).attrs["method"] == "gradient MAP"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"outputs": torch.zeros(3, 1)}, "give queries as well"),
        ({"dims": {"keys": ["unit"]}}, r"1 names for keys with axes unit, feature"),
        ({"dims": {"kees": ["unit"]}}, "no variable 'kees'"),
        ({"coords": {"token": ["a"]}}, "no variable has a dimension 'token'"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    mixture = models.GaussianMixture(torch.tensor([[-1.0], [1.0]]))
    with pytest.raises(ValueError, match=message):
        results.to_inference_data(mixture, **arguments)


@pytest.mark.slow
def test_package_import_is_light():
    heavy = ("torch", "pyro", "matplotlib", "arviz")
    code = f"import sys, probtx_pyro, probtx_pyro.results; print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
    code = "import sys; from probtx_pyro import plots; from probtx_pyro.results import _arviz; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found == "False"
