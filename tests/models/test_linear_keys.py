"""Mixtures of linear keys: loops = closed form = enumeration of the Pyro program; masks, dtypes, bad input."""

import math

import hypothesis
import mpmath
import pyro
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import models

FEATURE_MAPS = {"elu + 1": None, "softplus": torch.nn.functional.softplus, "squares": lambda x: torch.cat([x * x, x.exp()], -1)}  # fmt: skip
maps = pytest.mark.parametrize("name", FEATURE_MAPS)
forms = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def draw(seed=0, *, batch=(), queries=5, units=5, components=2, features=3, answers=2, dtype=torch.float64):
    g = generator(seed)

    def normal(*shape):
        return torch.randn(*batch, *shape, generator=g, dtype=dtype)

    return (normal(queries, features), normal(units, components, features), normal(units, answers),
            normal(units, components).softmax(-1), normal(units).exp())  # fmt: skip


def loops(queries, keys, values, mixing, weights, phi, causal):
    """The equation, one scalar at a time: the sums over units, components and features are what they look like."""
    outputs, attention = [], []
    for i, q in enumerate(queries):
        row = []
        for j, components in enumerate(keys):
            score = 0.0
            for r, k in enumerate(components):
                score += mixing[j][r] * sum(a * b for a, b in zip(phi(q), phi(k), strict=True))
            row.append(0.0 if causal and j > i else weights[j] * score)
        attention.append([w / sum(row) for w in row])
        outputs.append(
            [sum(w * v[m] for w, v in zip(attention[-1], values, strict=True)) for m in range(len(values[0]))]
        )
    return torch.tensor(outputs), torch.tensor(attention)


SCALAR_MAPS = {
    "elu + 1": lambda x: [math.exp(a) if a < 0 else a + 1 for a in x],
    "softplus": lambda x: [math.log1p(math.exp(a)) for a in x],
    "squares": lambda x: [a * a for a in x] + [math.exp(a) for a in x],
}


@pytest.mark.pairs
@maps
@forms
@pytest.mark.parametrize("components", [1, 3])
def test_closed_form_is_the_loops(name, causal, components, device):
    tensors = draw(1, components=components)
    expected, weights = loops(*(x.tolist() for x in tensors), SCALAR_MAPS[name], causal)
    queries, keys, values, mixing, unit_weights = (x.to(device) for x in tensors)
    options = {"feature_map": FEATURE_MAPS[name], "causal": causal, "unit_weights": unit_weights}
    assert_equal(models.linear_key_attention(queries, keys, values, mixing, **options), expected)
    memory = models.LinearKeys(keys, values, mixing, FEATURE_MAPS[name], unit_weights)
    assert_equal(memory.attention(queries, causal=causal), weights)


@settings(max_examples=40, deadline=None)
@hypothesis.given(dtype=st.sampled_from([torch.float64, torch.float32]), data=st.data(), causal=st.booleans())
def test_attention_and_answers_at_any_scale(dtype, data, causal):
    """Features from exp(-345) to 1e150, or exp(-40) to 1e18 in single precision, beside each other, against mpmath.

    A share is a ratio of sums of products of positive numbers, each off by a few roundings and by what exp makes of that of its
    argument, at most 690 of them: nothing cancels. What overflows in ``φ'φ`` is not among them.
    """
    largest, lowest = {torch.float64: (150, -345.0), torch.float32: (18, -40.0)}[dtype]
    scale = [10.0 ** data.draw(st.integers(-largest, largest)) for _ in range(2)]
    queries, keys, values, mixing, weights = draw(data.draw(st.integers(0, 2**31)), queries=4, units=4)
    queries, keys = ((x * s).clamp_min(lowest).to(dtype) for x, s in zip((queries, keys), scale, strict=True))
    values, mixing, weights = (x.to(dtype) for x in (values, mixing, weights))

    def features(x):
        return [mpmath.exp(a) if a < 0 else mpmath.mpf(a) + 1 for a in x]

    memory = models.LinearKeys(keys, values, mixing, unit_weights=weights)
    attention, answers = memory.attention(queries, causal=causal), memory.expected_outputs(queries, causal=causal)
    asked, held = [features(q) for q in queries.tolist()], [[features(k) for k in unit] for unit in keys.tolist()]
    bound = (8 * 3 + 4 * abs(lowest)) * torch.finfo(dtype).eps
    for i, q in enumerate(asked):
        row = [
            w * sum(m * sum(a * b for a, b in zip(q, k, strict=True)) for m, k in zip(own, unit, strict=True))
            for w, own, unit in zip(weights.tolist(), mixing.tolist(), held, strict=True)
        ][: i + 1 if causal else None]
        shares = [w / sum(row) for w in row]
        for found, share in zip(attention[i].tolist(), shares, strict=False):
            assert abs(found - share) <= bound * max(share, torch.finfo(dtype).tiny)
        for m, found in enumerate(answers[i].tolist()):
            parts = [w * v[m] for w, v in zip(shares, values.tolist(), strict=False)]
            assert abs(found - sum(parts)) <= 2 * bound * sum(map(abs, parts))


def test_weights_left_out_are_uniform():
    queries, keys, values, *_ = draw(2, components=4, queries=3)
    uniform = models.linear_key_attention(queries, keys, values, torch.full((5, 4), 0.25), unit_weights=torch.full((5,), 3.0))  # fmt: skip
    assert_equal(models.linear_key_attention(queries, keys, values), uniform)


@maps
@pytest.mark.parametrize("masked", [False, True])
def test_weights_are_the_enumerated_posterior_of_the_unit(name, masked):
    queries, keys, _, mixing, unit_weights = draw(3, queries=4, units=3)
    if masked:
        unit_weights[1], keys[1] = 0.0, math.nan
    memory = models.LinearKeys(keys, None, mixing, FEATURE_MAPS[name], unit_weights)
    found = TraceEnum_ELBO(max_plate_nesting=1).compute_marginals(memory.model, lambda *a: None, queries)
    assert_equal(found["unit"].probs.expand(4, 3), memory.attention(queries))


@maps
def test_weights_are_the_gradient_of_the_log_normaliser(name):
    queries, keys, _, mixing, unit_weights = draw(4, queries=4, units=3)
    logits = unit_weights.log().requires_grad_()
    elbo = TraceEnum_ELBO(max_plate_nesting=1)
    memory = models.LinearKeys(keys, None, mixing, FEATURE_MAPS[name], logits.exp())
    loss = elbo.differentiable_loss(memory.unnormalized, lambda *a: None, queries)
    (gradient,) = torch.autograd.grad(-loss, logits)
    weights = memory.attention(queries).detach()
    prior = 4 * unit_weights / unit_weights.sum()  # the program's own weights are normalised, for each of the 4 queries
    assert_equal(gradient, weights.sum(0) - prior)


def test_the_program_is_drawn_from():
    queries, keys, *_ = draw(5, queries=4)
    trace = poutine.trace(models.LinearKeys(keys).model).get_trace(queries)
    assert trace.nodes["unit"]["value"].shape == (4,) and torch.isfinite(trace.log_prob_sum())


@forms
def test_masked_units_may_hold_nan(causal, device):
    queries, keys, values, mixing, unit_weights = (x.to(device) for x in draw(6, batch=(2,)))
    unit_weights[:, 3] = 0.0
    options = {"causal": causal, "unit_weights": unit_weights}
    clean = models.linear_key_attention(queries, keys, values, mixing, **options)
    keys[:, 3], values[:, 3] = math.nan, math.inf
    leaves = [x.requires_grad_() for x in (queries, keys, values, mixing)]
    output = models.linear_key_attention(*leaves, **options)
    assert torch.equal(output, clean)
    memory = models.LinearKeys(keys, None, mixing, unit_weights=unit_weights)
    assert (memory.attention(queries, causal=causal)[..., 3] == 0).all()
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(output.sum(), leaves))


@forms
def test_float32_is_close_to_float64(causal):
    *tensors, mixing, _ = draw(7, queries=50, units=50, features=16)
    low = models.linear_key_attention(*(x.float() for x in (*tensors, mixing)), causal=causal)
    high = models.linear_key_attention(*tensors, mixing, causal=causal)
    assert_equal(low.double(), high, operations=64 * 2**29)  # 64 roundings of float32


Q, K, V, PI, W = draw(8)
ATTEND = models.linear_key_attention
CASES = {
    "queries are integers": (lambda: ATTEND(Q.long(), K, V), r"queries must be a floating point"),
    "keys without components": (lambda: ATTEND(Q, K[:, 0], V), r"keys must have shape \(\.\.\., U, R, D\).*add the missing axis"),
    "queries of another width": (lambda: ATTEND(Q[:, :2], K, V), r"queries have 2 features but keys have 3"),
    "values of other units": (lambda: ATTEND(Q, K, V[:4]), r"keys have 5 units but values have 4"),
    "other components": (lambda: ATTEND(Q, K, V, torch.ones(5, 1)), r"keys have 2 components but component_weights have 1"),
    "components off the simplex": (lambda: ATTEND(Q, K, V, 2 * PI), r"component_weights must have.*sum to 1"),
    "weights of other units": (lambda: ATTEND(Q, K, V, unit_weights=W[:3]), r"keys have 5 units but unit_weights have 3"),
    "negative weights": (lambda: ATTEND(Q, K, V, unit_weights=-W), r"unit_weights must be non-negative; 0 masks"),
    "boolean weights": (lambda: ATTEND(Q, K, V, unit_weights=W > 0), r"unit_weights must be a floating point"),
    "weights with NaN": (lambda: ATTEND(Q, K, V, unit_weights=W * math.nan), r"unit_weights contains NaN"),
    "everything masked": (lambda: ATTEND(Q, K, V, unit_weights=0 * W), r"unit_weights mask every unit; allow"),
    "first unit masked, causal": (lambda: ATTEND(Q, K, V, causal=True, unit_weights=torch.cat([0 * W[:1], W[1:]])), r"mask the first unit.*drop"),
    "causal over other units": (lambda: ATTEND(Q[:3], K, V, causal=True), r"as many units as queries, not 5"),
    "dtypes differ": (lambda: ATTEND(Q, K.float(), V.float()), r"differ in dtype: queries torch.float64, keys torch.float32"),
    "batches do not broadcast": (lambda: ATTEND(Q.expand(2, 5, 3), K.expand(3, 5, 2, 3), V), r"do not broadcast: queries \(2,\), keys \(3,\)"),
    "NaN in keys": (lambda: ATTEND(Q, K * math.nan, V), r"keys contains NaN"),
    "infinity in a value that counts": (lambda: ATTEND(Q, K, V / 0, unit_weights=W), r"values contains"),
    "negative features": (lambda: ATTEND(Q, K, V, feature_map=torch.sin), r"feature_map gives negative features.*softplus"),
    "infinite features": (lambda: ATTEND(1000 * Q.abs(), K, V, feature_map=torch.exp), r"feature_map contains infinity"),
    "a feature map that drops axes": (lambda: ATTEND(Q, K, V, feature_map=lambda x: x.exp().sum(-2)), r"feature_map turned \(5, 3\) into \(3,\); only the last may"),
    "weights of bad keys": (lambda: models.LinearKeys(K * math.nan).attention(Q), r"keys contains NaN"),
    "memory of bad keys": (lambda: models.LinearKeys(K[:, 0]), r"keys must have shape"),
    "memory without units": (lambda: models.LinearKeys(K[:0]), r"keys \(0, 2, 3\) have no units"),
    "memory with values of other units": (lambda: models.LinearKeys(K, V[:4]), r"keys have 5 units but values have 4"),
    "memory without answers": (lambda: models.LinearKeys(K).expected_outputs(Q), r"values is None.*build it with values="),
    "program of queries of another width": (lambda: models.LinearKeys(K).model(Q[:, :2]), r"queries have 2 features but keys have 3"),
    "guide off the simplex": (lambda: models.LinearKeys(K).guide(Q, attention=torch.ones(5, 5)), r"attention must have.*sum to 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_clear_error(name):
    call, message = CASES[name]
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_validation_can_be_switched_off():
    pyro.enable_validation(False)
    assert ATTEND(Q, K * math.nan, V, unit_weights=W).isnan().any()
    assert torch.equal(ATTEND(Q, K, V, unit_weights=0 * W), torch.zeros_like(V))
    with pytest.raises(ValueError, match="queries have 2 features"):
        ATTEND(Q[:, :2], K, V)
