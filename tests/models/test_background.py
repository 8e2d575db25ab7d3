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
    ],
)
def test_bad_input_is_one_clear_error(options, message):
    mixture = models.GaussianMixture(torch.randn(2, 3), key_precision=torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match=message):
        mixture.with_background(**options)
