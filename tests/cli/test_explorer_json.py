"""The JSON of a model for the explorer: what it holds, and what is refused."""

import json

import pytest
import torch
from pyro.distributions import Gamma, Normal

from probtx_pyro import cli, models

KEYS = torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.5]])
VALUES = torch.tensor([[-1.0], [1.0], [0.25]])
QUERIES = torch.tensor([[0.5, 0.25], [0.0, -0.5]])
CRF = models.DependencyCRF(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.eye(2).expand(1, 4, 2, 2), distances=(2,))


def written(tmp_path, *arguments, **options):
    path = cli.write_explorer_json(tmp_path / "own.json", *arguments, **options)
    return json.loads(path.read_text())


def mixture(**changes):
    return models.GaussianMixture(KEYS.double(), VALUES.double(), 2.0, 9.0).replace(**changes)


def test_a_mixture_goes_to_the_first_view(tmp_path):
    log_prior = torch.tensor([[0.25, 0.75, 0.0]]).double().log()
    own = written(tmp_path, mixture(log_prior=log_prior), QUERIES[0].double())
    assert own["view"] == "posterior"
    assert own["state"] == {
        "query": [0.5, 0.25], "keys": [[0.0, 1.0], [1.0, 0.0]], "values": [-1.0, 1.0], "precision": 2.0, "valuePrecision": 9.0,
        "weights": pytest.approx([0.25, 0.75]),
    }  # fmt: skip
    assert written(tmp_path, mixture())["state"]["query"] == pytest.approx([0.0, 0.5])


@pytest.mark.parametrize("names", [("keys",), ("shift",), ("keys", "shift")])
def test_a_mixture_with_priors_goes_to_the_sixth_view(tmp_path, names):
    plain = models.GaussianMixture(
        KEYS.double(), key_precision=4.0, shift=torch.zeros(2).double() if "shift" in names else None
    )
    priors = {"keys": Normal(KEYS.double(), 0.5), "shift": Normal(torch.zeros(2).double(), 2.0)}
    own = written(tmp_path, models.bayesian(plain, **{name: priors[name] for name in names}), QUERIES.double())
    assert own["view"] == "keys-adapt"
    assert own["state"]["queries"] == QUERIES.tolist() and own["state"]["keys"] == KEYS.tolist()
    assert own["state"]["adapt"] == {("keys",): "own", ("shift",): "shift", ("keys", "shift"): "both"}[names]
    strengths = {"keyStrength": 4.0, "shiftStrength": 0.25}
    assert {name: own["state"][name] for name in strengths if name in own["state"]} == {
        key: strengths[key] for key, name in (("keyStrength", "keys"), ("shiftStrength", "shift")) if name in names
    }


def test_a_crf_goes_to_the_eighth_view(tmp_path):
    own = written(tmp_path, CRF, words=["time", "flies"], labels=["noun", "verb"])
    assert own["view"] == "mean-field"
    crf = own["state"]["crf"]
    assert crf["words"] == ["time", "flies"] and crf["labels"] == ["noun", "verb"]
    assert crf["unary"] == CRF.unary.tolist() and crf["ternary"] == CRF.ternary.tolist()
    assert crf["distances"] == [2] and crf["root_ternary"] is None
    assert written(tmp_path, CRF)["state"]["crf"]["words"] == ["1", "2"]


PAIRS = (KEYS.double(), VALUES.double())


def test_a_memory_goes_to_the_tenth_view(tmp_path):
    own = written(tmp_path, models.RegressionMemory(2.0, 9.0, models.Discount(0.5)), QUERIES[0].double(), pairs=PAIRS)
    assert own["view"] == "regression"
    assert own["state"] == {
        "keys": KEYS.tolist(), "values": [-1.0, 1.0, 0.25], "query": [0.5, 0.25], "truth": None, "unit": False, "prior": 2.0, "noise": 9.0,
        "drift": "discount", "forgetting": 0.5, "read": 3,
    }  # fmt: skip
    state = written(tmp_path, models.RegressionMemory(2.0, 9.0), pairs=PAIRS)["state"]
    assert (state["drift"], state["forgetting"], state["query"]) == ("static", 1.0, [0.0, 0.5])


def memory(*arguments, **options):
    return models.RegressionMemory(*(arguments or (2.0, 9.0)), **options)


def of_keys(**priors):
    return models.bayesian(models.GaussianMixture(KEYS.double(), key_precision=4.0), **priors)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: mixture(value_precision=torch.tensor(0.0).double()), {}, "value_precision is 0"),
        (lambda: mixture(values=None), {}, r"values of shape \(U, 1\)"),
        (lambda: mixture(key_precision=torch.tensor([1.0, 2.0, 3.0]).double()), {}, "key_precision differs"),
        (lambda: mixture(metric=torch.eye(2).double()), {}, "neither a metric"),
        (lambda: mixture(shift=torch.ones(2).double()), {}, "no shift"),
        (lambda: mixture(log_prior=torch.full((2, 3), 1 / 3).double().log()), {}, "one prior for all queries"),
        (lambda: models.GaussianMixture(torch.zeros(2, 3), torch.zeros(2, 1), 1.0, 1.0), {}, "2 features"),
        (lambda: models.GaussianMixture(torch.zeros(13, 2), torch.zeros(13, 1), 1.0, 1.0), {}, "up to 12 units"),
        (mixture, {"queries": QUERIES}, "one query"),
        (lambda: mixture(keys=2000 * KEYS.double()), {}, "within 1000 of 0"),
        (mixture, {"words": ["a"]}, "leave them out"),
        (lambda: of_keys(keys=Normal(KEYS.double(), 0.5)), {}, "needs the data"),
        (lambda: of_keys(keys=Normal(KEYS.double() + 1, 0.5)), {"queries": QUERIES.double()}, "around the present keys"),
        (lambda: of_keys(key_precision=Gamma(2.0, 1.0)), {"queries": QUERIES.double()}, "not on key_precision"),
        (lambda: CRF, {"queries": QUERIES}, "leave queries out"),
        (lambda: CRF, {"words": ["one"]}, "words has 1 names but the CRF has 2"),
        (lambda: CRF.replace(mask=torch.tensor([True, True])), {}, "neither padding"),
        (lambda: models.Hopfield(KEYS, 1.0), {}, "no view for a Hopfield"),
        (mixture, {"pairs": PAIRS}, "leave them out"),
        (memory, {}, "needs pairs"),
        (memory, {"pairs": (torch.ones(9, 2), torch.ones(9, 1))}, "1 to 8"),
        (memory, {"pairs": (torch.ones(2, 3), torch.ones(2, 1))}, r"2 features, \(T, 2\)"),
        (memory, {"pairs": (torch.ones(2, 2), torch.ones(2))}, r"values \(T, 1\)"),
        (memory, {"pairs": PAIRS, "queries": QUERIES}, "one query"),
        (lambda: memory(mean=torch.ones(1, 2)), {"pairs": PAIRS}, "mean 0"),
        (lambda: memory(None, 1.0, prior_matrix=torch.eye(2)), {"pairs": PAIRS}, "no prior_matrix"),
        (lambda: memory(2.0, 9.0, models.Walk(0.5)), {"pairs": PAIRS}, "no drift, Discount or PullBack"),
        (lambda: memory(torch.tensor([1.0, 2.0])), {"pairs": PAIRS}, "prior_precision differs"),
        (lambda: memory(1e-6), {"pairs": PAIRS}, "prior_precision of 0.001 to 1000"),
    ],
)  # fmt: skip
def test_what_a_view_cannot_draw_is_refused(tmp_path, make, options, message):
    with pytest.raises(ValueError, match=message):
        written(tmp_path, make(), **options)
    assert not (tmp_path / "own.json").exists()
