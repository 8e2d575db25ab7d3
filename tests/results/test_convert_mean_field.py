"""A mean field as ArviZ data: one point with its iterations, no draws; and what else refuses it, or draws of latents, in a line."""

import numpy as np
import pytest
import torch
from strategies import crf_problem, generator

from probtx_pyro import inference, inspection, nn, results


def test_a_mean_field_is_a_point_with_its_iterations():
    crf = crf_problem(generator(0), batch=(2,), words=3, root=2, nodes=1)
    known = {"labels": torch.tensor([[0, 1, 2], [2, 2, 1]]), "observed": torch.tensor([True, False, False])}
    field = crf.mean_field(4, history=True, **known)
    data = results.to_inference_data(field, **known, coords={"word": ["a", "cat", "sat"]})
    found = data["point_estimate"]
    heads = ("sentence", "channel", "word", "slot")
    for name, x, dims in (
        ("attention", field.head_marginals, heads),
        ("label_marginals", field.label_marginals, ("sentence", "word", "label")),
        ("root_marginals", field.root_marginals, ("sentence", "root_label")),
    ):
        assert found[name].dims == dims and (found[name].values == x.cpu().numpy()).all()
    assert found["unary"].dims == ("sentence", "word", "label")
    assert data["iterations"]["objective"].dims == ("iteration", "sentence")
    assert (data["iterations"]["objective"].values == field.objective.cpu().numpy()).all()
    assert (data.attrs["method"], data.attrs["converged"], data.attrs["num_steps"]) == ("mean field", 0, 4)
    assert not {"chain", "draw"} & {dim for group in ("point_estimate", "iterations") for dim in data[group].dims}
    assert list(data["observed_data"]) == ["labels"] and list(data["constant_data"]) == ["observed"]
    assert np.isclose(found["attention"].sum("slot"), 1).all()


def test_one_sentence_without_history_has_no_trace():
    data = results.to_inference_data(crf_problem(generator(1)).mean_field(2))
    assert data["point_estimate"]["attention"].dims == ("channel", "word", "slot")
    assert set(data["iterations"]) == {"converged", "num_steps"}


def test_what_has_no_meaning_names_what_has():
    crf = crf_problem(generator(2), words=3)
    field, draws = crf.mean_field(2), inference.gibbs(crf, num_samples=4, num_chains=2, num_warmup=1, seed=0)
    data = results.to_inference_data(field)
    encoder = nn.DependencyCRFEncoder(4, 1)
    for call, said in (
        (lambda: results.to_inference_data(field, seed=0), "seed: an option of draws, but this is a MeanField"),
        (lambda: results.to_inference_data(field, torch.full((3,), 9)), "labels must be from 0 to 2"),
        (lambda: results.diagnose(data), "one value has no posterior, so convert draws"),
        (lambda: results.diagnose(field), "convert a result of inference with results.to_inference_data first"),
        (lambda: results.predict(draws), r"average those of results.to_inference_data\(draws\)"),
        (lambda: results.predict(field), r"take attention, label_marginals of results.to_inference_data\(fit\)"),
        (lambda: results.gap(draws, seed=0), "fit must be what inference.variational returned, not Draws"),
        (lambda: inspection.capture(crf), "module must be a torch.nn.Module that attends, not a DependencyCRF"),
        (lambda: inspection.capture(encoder, torch.zeros(1, 3, 4)), r"take encoder.field\(x\).head_marginals, its attention"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said) as found:
            call()
        assert "\n" not in str(found.value)
