"""The contract that every formulation keeps. A new formulation is one more row of `ROWS`.

Program = closed form = enumeration; the ELBO gap is the KL to the exact attention; attention is the gradient of the log
normaliser; a batch is the stack of its singles; a masked unit is an absent unit; permuting units permutes attention;
translation changes nothing (where the row says so); float32 is close to float64; gradcheck; fused = explicit; the named
special case is scaled dot-product attention.
"""

import math
from typing import NamedTuple

import oracles
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from strategies import generator, keys_problem, lists, memory_mixture, problem
from tolerances import assert_equal
from torch.nn.functional import scaled_dot_product_attention

from probtx_pyro import models

pytestmark = pytest.mark.usefixtures("device")

PLATES = 3  # query and up to two leading axes


class Row(NamedTuple):
    """A formulation under test: how to draw a problem of it, which invariances it has, and how many data it takes.

    ``draw`` gives the model and its data; ``parts`` are the numbers of them that make a problem: queries, outputs, observed.
    ``components`` names the axis of keys whose order means nothing, too.
    """

    draw: object
    translation: bool = True
    parts: tuple = (1, 2, 3)
    components: int | None = None


ROWS = {
    "gaussian mixture": Row(problem),
    "gaussian mixture, shared precision": Row(lambda g, **k: problem(g, precision="shared", **k)),
    "gaussian mixture, prior for each query": Row(lambda g, **k: problem(g, rows=5, **k)),
    "gaussian mixture, masked": Row(lambda g, **k: problem(g, rows=5, masked=True, **k)),
    "gaussian mixture, labels": Row(lambda g, **k: problem(g, answer="categorical", **k)),
    "hopfield": Row(
        memory_mixture, parts=(1,)
    ),  # its mixture; the memory itself is tied to it in models/test_hopfield.py
    "gaussian keys": Row(keys_problem, parts=(1,), components=-2),
    "gaussian keys, shared precision and weights": Row(
        lambda g, **k: keys_problem(g, precision="shared", weights="shared", **k), parts=(1,), components=-2
    ),
    "gaussian keys, prior for each query": Row(
        lambda g, **k: keys_problem(g, precision="unit", weights=None, rows=5, **k), parts=(1,), components=-2
    ),
    "gaussian keys, masked": Row(lambda g, **k: keys_problem(g, rows=5, masked=True, **k), parts=(1,), components=-2),
}
PARTS = {1: "queries", 2: "answers", 3: "some answers"}
rows = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
rows_and_data = pytest.mark.parametrize(
    ("row", "parts"),
    [pytest.param(row, n, id=f"{PARTS[n]}-{name}") for name, row in ROWS.items() for n in row.parts],
)


def single(mixture, index):
    """One problem of a batch."""
    return mixture.with_parameters(
        {k: x[index] for k, x in vars(mixture).items() if isinstance(x, torch.Tensor) and x.dim() > 1}
    )


@rows_and_data
def test_closed_form_is_the_oracle(row, parts, device):
    mixture, *everything = row.draw(generator(1))
    args = everything[:parts]
    expected = lists(mixture, *args)
    assert_equal(
        mixture.to(device).log_evidence(*(x.to(device) for x in args)).cpu(), torch.tensor(oracles.evidence(expected))
    )
    assert_equal(
        mixture.to(device).attention(*(x.to(device) for x in args)).cpu(), torch.tensor(oracles.attention(expected))
    )
    mean = mixture.to(device).expected_outputs(args[0].to(device)).cpu()
    assert_equal(mean, torch.tensor(oracles.posterior_mean(expected)))


@rows_and_data
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_program_is_enumeration_is_closed_form(row, parts, batch):
    mixture, *everything = row.draw(generator(2), batch=batch)
    args = everything[:parts]
    evidence = mixture.log_evidence(*args).sum()
    elbo = -TraceEnum_ELBO(max_plate_nesting=PLATES).loss(mixture.model, mixture.guide, *args)
    assert_equal(torch.tensor(elbo), evidence)
    hidden = poutine.block(mixture.collapsed, hide=["outputs"]) if parts == 1 else mixture.collapsed
    assert_equal(poutine.trace(hidden).get_trace(*args).log_prob_sum(), evidence)
    if not batch:
        assert_equal(torch.tensor(oracles.evidence_by_enumeration(lists(mixture, *args))), evidence)


@rows_and_data
def test_elbo_gap_is_the_kl_to_the_attention(row, parts):
    mixture, *everything = row.draw(generator(3))
    args = everything[:parts]
    exact = mixture.attention(*args)
    other = torch.rand(exact.shape, generator=generator(4)) * (exact > 0)
    other = other / other.sum(-1, keepdim=True)
    elbo = -TraceEnum_ELBO(max_plate_nesting=PLATES).loss(
        mixture.model, lambda *a: mixture.guide(*a, attention=other), *args
    )
    gap = torch.xlogy(other, other / exact).nan_to_num(0.0).sum()
    assert gap > 0.05
    assert_equal(mixture.log_evidence(*args).sum() - elbo, gap, mixture.log_evidence(*args).sum())


@rows
def test_attention_is_the_gradient_of_the_log_normaliser(row):
    mixture, *args = row.draw(generator(5))
    logits = mixture.log_joint(*args).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(logits.flatten(1).logsumexp(-1).sum(), logits)
    attention = mixture.attention(*args)
    assert_equal(attention, gradient.reshape(*attention.shape, -1).sum(-1))  # of the components of a unit, their sum


@rows_and_data
def test_batch_is_the_stack_of_its_singles(row, parts, device):
    mixture, *everything = row.draw(generator(6), batch=(2, 3))
    mixture, args = mixture.to(device), [x.to(device) for x in everything[:parts]]
    for index in ((0, 0), (1, 2)):
        alone, own = single(mixture, index), [x[index] for x in args]
        assert_equal(mixture.attention(*args)[index], alone.attention(*own))
        assert_equal(mixture.log_evidence(*args)[index], alone.log_evidence(*own))
        assert_equal(mixture.expected_outputs(args[0])[index], alone.expected_outputs(own[0]))


@rows
def test_masked_unit_is_an_absent_unit(row, device):
    mixture, queries, *rest = row.draw(generator(7))
    log_prior = mixture.log_weights().clone()
    log_prior[..., 2] = -math.inf
    masked = mixture.replace(log_prior=log_prior.log_softmax(-1))
    keep = [0, 1, 3]
    fewer = {
        k: x[keep] if x.dim() and x.shape[0] == 4 else x
        for k, x in vars(mixture).items()
        if isinstance(x, torch.Tensor) and k != "log_prior"
    }
    absent = mixture.with_parameters({**fewer, "log_prior": log_prior[..., keep].log_softmax(-1)})
    args = [queries, *rest]
    assert_equal(masked.attention(*args)[..., keep], absent.attention(*args))
    assert (masked.attention(*args)[..., 2] == 0).all()
    assert_equal(masked.log_evidence(*args), absent.log_evidence(*args))
    assert_equal(masked.to(device).expected_outputs(queries.to(device)).cpu(), absent.expected_outputs(queries))


@rows
def test_permuting_units_permutes_attention(row):
    mixture, *args = row.draw(generator(8))
    order = torch.tensor([2, 0, 3, 1])
    moved = {
        k: x[order]
        for k, x in vars(mixture).items()
        if isinstance(x, torch.Tensor) and k != "log_prior" and x.dim() and x.shape[0] == 4
    }
    permuted = mixture.with_parameters({**moved, "log_prior": mixture.log_weights()[..., order]})
    assert_equal(permuted.attention(*args), mixture.attention(*args)[..., order])
    assert_equal(permuted.expected_outputs(args[0]), mixture.expected_outputs(args[0]))


@pytest.mark.parametrize(
    "row", [row for row in ROWS.values() if row.components], ids=[n for n, r in ROWS.items() if r.components]
)
def test_permuting_components_changes_nothing(row):
    mixture, *args = row.draw(generator(8), components=3)
    order = torch.tensor([2, 0, 1])
    weights = mixture.component_log_weights().exp()[..., order]
    precision = mixture.key_precision.expand(mixture.unit_shape)[..., order]
    permuted = mixture.replace(keys=mixture.keys[:, order], key_precision=precision, component_weights=weights)
    assert_equal(permuted.attention(*args), mixture.attention(*args))
    assert_equal(permuted.log_evidence(*args), mixture.log_evidence(*args))
    assert_equal(permuted.responsibilities(*args), mixture.responsibilities(*args)[..., order])


@rows
def test_translation_changes_nothing(row):
    if not row.translation:
        pytest.fail("name the invariance that this formulation has instead")
    mixture, queries, *rest = row.draw(generator(9))
    far = mixture.with_parameters({"keys": mixture.keys + 1000.0})
    # the inputs themselves lose digits at 1000: eps * 1000 each, squared distances of order 10 lose 20 times that
    assert_equal(far.attention(queries + 1000.0, *rest), mixture.attention(queries, *rest), torch.tensor(20_000.0))
    assert_equal(far.expected_outputs(queries + 1000.0), mixture.expected_outputs(queries), torch.tensor(20_000.0))


@rows
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_float32_is_close_to_float64(row, offset, device):
    mixture, queries, *_ = row.draw(generator(10), queries=5, units=4)
    low = mixture.with_parameters({"keys": mixture.keys + offset}).to(device, torch.float32)
    asked = (queries + offset).to(device, torch.float32)
    high = low.to(
        torch.float64
    )  # the same float32 inputs: what is measured is our arithmetic, not the inputs' rounding
    assert (low.expected_outputs(asked).double() - high.expected_outputs(asked.double())).abs().max() < 1e-4
    assert (low.attention(asked).double() - high.attention(asked.double())).abs().max() < 1e-4


@rows
def test_gradients_are_finite_differences(row):
    mixture, queries, *rest = row.draw(generator(11))
    labels = getattr(mixture, "answer_probs", None) is not None
    names = [
        k
        for k in ("keys", "values", "key_precision", "value_precision", "answer_probs")
        if isinstance(getattr(mixture, k, None), torch.Tensor)
    ]
    names = [k for k in names if k != "value_precision" or not labels]
    inputs = [queries.clone().requires_grad_(), *(getattr(mixture, k).clone().requires_grad_() for k in names)]

    def fused(q, *parameters):
        return mixture.with_parameters(dict(zip(names, parameters, strict=True))).expected_outputs(q)

    def log_evidence(q, *parameters):
        return mixture.with_parameters(dict(zip(names, parameters, strict=True))).log_evidence(q, *rest)

    def explicit(q, *parameters):
        return mixture.with_parameters(dict(zip(names, parameters, strict=True))).explicit_outputs(q)[0]

    check = {"check_undefined_grad": False}
    assert torch.autograd.gradcheck(fused, inputs, **check)
    assert torch.autograd.gradcheck(explicit, inputs, **check)
    assert torch.autograd.gradgradcheck(explicit, inputs)
    if not labels:  # a simplex cannot be perturbed one entry at a time
        assert torch.autograd.gradcheck(log_evidence, inputs, **check)


@rows
@pytest.mark.parametrize("train", [False, True])
def test_fused_is_explicit(row, train, device):
    mixture, queries, *_ = row.draw(generator(12), batch=(2, 3), features=4, answers=7)
    mixture, queries = mixture.to(device), queries.to(device).requires_grad_(train)
    output, weights, lse = mixture.explicit_outputs(queries)
    assert_equal(mixture.expected_outputs(queries), output)
    assert_equal(weights.sum(-1), torch.ones_like(lse))
    assert_equal(lse, mixture.log_evidence(queries))


@pytest.mark.parametrize("mask", [None, "causal", "padding", "both"])
@pytest.mark.parametrize(
    ("dtype", "size", "bound"),
    [(torch.float64, (64, 700), 1e-12), (torch.float32, (8, 50), 1e-6), (torch.float32, (64, 700), 4e-6)],
)
@pytest.mark.parametrize("train", [False, True])
def test_linked_limit_is_scaled_dot_product_attention(mask, dtype, size, bound, train, device):
    features, units = size
    g = generator(13)
    queries, keys, values = (torch.randn(2, 3, units, features, generator=g, dtype=dtype).to(device) for _ in range(3))
    allowed = torch.ones(units, units, dtype=torch.bool)
    if mask in ("causal", "both"):
        allowed = allowed.tril()
    if mask in ("padding", "both"):
        allowed = allowed & (torch.arange(units) < units - units // 3)
    weights = (
        None if mask is None else torch.zeros(units, units, dtype=dtype).masked_fill(~allowed, -math.inf).to(device)
    )
    mixture = models.GaussianMixture.linked(keys.requires_grad_(train), values, features**-0.5, 0.0, log_prior=weights)
    reference = scaled_dot_product_attention(
        queries, keys, values, attn_mask=None if mask is None else allowed.to(device)
    )
    assert (mixture.expected_outputs(queries) - reference).abs().max() <= bound
    assert (mixture.map_outputs(queries) - reference).abs().max() <= bound


@pytest.mark.parametrize("train", [False, True])
def test_one_key_of_unit_norm_is_scaled_dot_product_attention(train, device):
    """MGK eq. 2: R = 1, unit-norm queries and keys, one σ²: softmax attention with scale 1/σ²."""
    g = generator(14)
    queries, keys, values = (torch.randn(2, 3, 40, 16, generator=g).to(device) for _ in range(3))
    queries, keys = (torch.nn.functional.normalize(x, dim=-1) for x in (queries, keys))
    model = models.GaussianKeys(keys.unsqueeze(-2).requires_grad_(train), values, key_precision=1 / 0.3)
    reference = scaled_dot_product_attention(queries, keys, values, scale=1 / 0.3)
    assert_equal(model.expected_outputs(queries), reference)
    assert_equal(model.expected_outputs(queries, "hard"), reference)
    assert_equal(model.attention(queries), (queries @ keys.mT / 0.3).softmax(-1))


@pytest.mark.parametrize("causal", [False, True])
def test_linked_with_one_key_is_scaled_dot_product_attention(causal, device):
    queries, keys, values = (torch.randn(2, 3, 30, 8, generator=generator(15 + i)).to(device) for i in range(3))
    allowed = torch.ones(30, 30, dtype=torch.bool).tril()
    mask = torch.zeros(30, 30).masked_fill(~allowed, -math.inf).to(device) if causal else None
    model = models.GaussianKeys.linked(keys.unsqueeze(-2), values, 8**-0.5, log_prior=mask)
    assert_equal(model.expected_outputs(queries), scaled_dot_product_attention(queries, keys, values, is_causal=causal))
