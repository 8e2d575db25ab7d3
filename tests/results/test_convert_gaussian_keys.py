"""A mixture of Gaussian keys as ArviZ data: one more dimension, component."""

import pytest
import torch
from pyro.distributions import Dirichlet, Gamma
from strategies import generator, keys_problem

from probtx_pyro import inference, models, results


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_parameters_have_a_component_dimension(batch):
    model, queries = keys_problem(generator(1), batch=batch)
    model = model.replace(key_precision=torch.tensor(1.2) if not batch else model.key_precision)
    priors = dict(key_precision=Gamma(2.0, 1.0), component_weights=Dirichlet(torch.full((2,), 2.0)))
    fit = inference.adapt(models.bayesian(model, **priors), queries, num_steps=2)
    data = results.to_inference_data(fit, queries, coords={"component": ["near", "far"]})["point_estimate"]
    leading = ("batch", "head") if batch else ()
    assert data["keys"].dims == (*leading, "unit", "component", "feature")
    assert data["component_weights"].dims == (*leading, "unit", "component")
    assert data["key_precision"].dims == ((*leading, "unit", "component") if batch else ())
    assert data["values"].dims == (*leading, "unit", "answer")
    assert data["attention"].dims == (*leading, "query", "unit")
    assert (data["attention"].values == fit.formulation.attention(queries).numpy()).all()
    assert (data["keys"].sel(component="far").values == fit.formulation.keys[..., 1, :].numpy()).all()


def test_answers_are_refused():
    model, queries = keys_problem(generator(2))
    with pytest.raises(ValueError, match="answers of this mixture have no density"):
        results.to_inference_data(model, queries, torch.zeros(5, 2))
