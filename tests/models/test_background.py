"""Background: one more unit, attention to nothing."""

import math

import pytest
import torch
from strategies import generator, problem
from tolerances import assert_equal

from probtx_pyro import models


@pytest.mark.parametrize("batch", [(), (2,)])
def test_in_a_linked_mixture_it_is_the_softmax_off_by_one(batch, device):
    g = generator(1)
    queries, keys, values = (torch.randn(*batch, n, m, generator=g).to(device) for n, m in ((5, 3), (4, 3), (4, 2)))
    scale = 3**-0.5
    linked = models.GaussianMixture.linked(keys, values, scale)
    # weight 1 beside unnormalised weights exp(scale |key|² / 2), which is a logit of 0 at key 0
    total = (0.5 * scale * keys.square().sum(-1)).exp().sum(-1)
    mixture = linked.with_background(1 / (1 + total))
    scores = (scale * queries @ keys.mT).exp()
    expected = scores / (1 + scores.sum(-1, keepdim=True))
    assert_equal(mixture.attention(queries)[..., :-1], expected)
    assert_equal(mixture.expected_outputs(queries), expected @ values)


MASKS = {
    "none": None,
    "causal": torch.full((5, 5), -torch.inf).triu(1),
    "position terms": -0.3 * (torch.arange(5) - torch.arange(5).unsqueeze(-1)).abs().double(),
}


@pytest.mark.pairs
@pytest.mark.parametrize("away", [0.0, 3.0])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_logit_is_the_same_in_every_row(batch, mask, away, device):
    g = generator(1)
    queries, keys, values = (torch.randn(*batch, 5, m, generator=g).to(device) for m in (3, 3, 2))
    keys, mask = keys + away, None if mask is None else mask.to(device)
    logit, value = torch.randn(batch, generator=g).to(device), torch.tensor([0.5, -2.0], device=queries.device)
    linked = models.GaussianMixture.linked(keys, values, 0.7, 0.0, mask)
    wide = linked.with_background(logit=logit, value=value)
    scores = (0.7 * queries @ keys.mT + (0.0 if mask is None else mask)).exp()
    own = logit.exp().view(*batch, 1, 1)
    total = own + scores.sum(-1, keepdim=True)
    assert_equal(wide.attention(queries), torch.cat([scores / total, own / total], -1))
    assert_equal(wide.expected_outputs(queries), (scores @ values + own * value) / total)


@pytest.mark.parametrize("metric", ["diagonal", "full"])
def test_a_logit_under_a_metric_and_a_shift(metric):
    mixture, queries, *_ = problem(generator(2), precision="shared", metric=metric)
    matrix = mixture.metric.diag() if metric == "diagonal" else mixture.metric
    at = mixture.keys + mixture.shift
    slopes = mixture.key_precision * at @ matrix
    terms = mixture.log_weights() - 0.5 * (slopes * at).sum(-1)
    logits = queries @ slopes.mT + terms - terms.amax(-1, keepdim=True)
    wide = mixture.with_background(logit=0.4)
    expected = torch.cat([logits, torch.full_like(logits[..., :1], 0.4)], -1).softmax(-1)
    assert_equal(wide.attention(queries), expected)


@pytest.mark.parametrize("answer", ["gaussian", "categorical"])
def test_it_is_one_more_unit(answer):
    mixture, queries, *_ = problem(generator(2), answer=answer, metric="full" if answer == "gaussian" else None)
    key, value = (
        torch.randn(3, generator=generator(3)),
        torch.tensor([0.2, 0.8] if answer == "gaussian" else [0.2, 0.5, 0.3]),
    )
    options = {"value_precision": 0.5} if answer == "gaussian" else {}
    wide = mixture.with_background(0.3, key_precision=0.1, key=key, value=value, **options)
    alone = mixture.replace(
        keys=key.unsqueeze(0), key_precision=torch.tensor(0.1), log_prior=None, **(
            {"values": value.unsqueeze(0), "value_precision": torch.tensor(0.5)} if answer == "gaussian" else {"answer_probs": value.unsqueeze(0)}
        ),
    )  # fmt: skip
    first, second = mixture.log_evidence(queries), alone.log_evidence(queries)
    assert_equal(wide.log_evidence(queries), torch.logaddexp(first + math.log(0.7), second + math.log(0.3)))
    away = wide.attention(queries)[..., -1:]
    assert_equal(wide.attention(queries)[..., :-1], (1 - away) * mixture.attention(queries))
    assert_equal(wide.expected_outputs(queries), (1 - away) * mixture.expected_outputs(queries) + away * value)


def test_what_is_not_given_is_zero_or_what_the_units_share():
    mixture = models.GaussianMixture(torch.ones(2, 3), torch.ones(2, 1), 2.0)
    wide = mixture.with_background(0.5)
    assert torch.equal(wide.keys[-1], torch.zeros(3)) and torch.equal(wide.values[-1], torch.zeros(1))
    assert wide.key_precision.dim() == 0 and float(wide.key_precision) == 2.0
    labels = models.GaussianMixture.categorical(torch.ones(2, 3), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 2.0)
    assert labels.with_background(0.5).answer_probs[-1].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": 0.0}, r"weight must lie strictly between 0 and 1"),
        ({"weight": 1.0}, r"weight must lie strictly between 0 and 1"),
        ({"weight": 0.5}, r"key_precision differs between units, .* give key_precision="),
        ({"logit": 0.5}, r"key_precision differs between units, where there are no logits; give weight"),
        ({"logit": math.inf}, r"logit must be finite"),
        ({"logit": 0.0, "key": torch.zeros(3)}, r"logit puts the unit at 0 .* leave out key and key_precision"),
        ({"logit": 0.0, "weight": 0.5}, r"give weight, .* or logit, .* not both"),
        ({}, r"give weight, .* or logit"),
        (
            {"weight": torch.full((5,), 0.5)},
            r"weight has shape \(5,\) but must broadcast to the leading axes \(\), as queries share",
        ),
        ({"logit": torch.zeros(5)}, r"logit has shape \(5,\) but must broadcast"),
    ],
)
def test_bad_input_is_one_clear_error(options, message):
    mixture = models.GaussianMixture(torch.randn(2, 3), key_precision=torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match=message):
        mixture.with_background(**options)
