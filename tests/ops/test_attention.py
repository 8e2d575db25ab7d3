"""The lowering: masks, NaN in absent units, far offsets, half precision, batch layouts, and which kernel ran."""

import math

import pytest
import torch
from strategies import generator
from tolerances import assert_equal
from torch.nn.attention import SDPBackend, sdpa_kernel

from probtx_pyro import models, ops


def draw(dtype=torch.float64, batch=(2, 3), queries=5, units=7, features=4, answers=3, device="cpu"):
    g = generator(1)

    def normal(*shape):
        return torch.randn(*batch, *shape, generator=g, dtype=torch.float64).to(device, dtype)

    return (
        normal(queries, features),
        normal(units, features),
        normal(units, answers),
        normal(units).exp(),
        normal(queries, units).log_softmax(-1),
    )


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_fully_masked_row_is_zero_with_finite_gradients(train, rows, device):
    queries, keys, values, precision, log_prior = draw(device=device)
    log_prior = log_prior[..., :rows, :].clone()
    log_prior[0, 0, 0] = -math.inf
    leaves = [x.requires_grad_(train) for x in (queries, keys, values, precision)]
    factor = ops.gaussian_factor(*leaves[:2], leaves[3])
    fused, (explicit, weights, lse) = (
        ops.attend(factor, values, log_prior),
        ops.explicit_attention(factor, values, log_prior),
    )
    assert (fused[0, 0, 0] == 0).all() and (weights[0, 0, 0] == 0).all() and lse[0, 0, 0] == -math.inf
    assert_equal(fused, explicit)
    assert_equal(ops.log_evidence(factor, log_prior).nan_to_num(neginf=-1.0), lse.nan_to_num(neginf=-1.0))
    statistics = ops.expected_statistics(factor, log_prior)
    assert_equal(statistics.counts, weights.sum(-2))
    assert_equal(statistics.sums, weights.transpose(-1, -2) @ factor.statistics)
    if train:
        for out in (fused, explicit, lse[1], statistics.sums, statistics.log_evidence[1]):
            assert all(
                torch.isfinite(x).all()
                for x in torch.autograd.grad(out.sum(), leaves, retain_graph=True, materialize_grads=True)
            )


@pytest.mark.parametrize("train", [False, True])
def test_absent_units_may_hold_nan(train, device):
    queries, keys, values, precision, log_prior = draw(device=device)
    log_prior = log_prior[..., :1, :].clone()
    log_prior[..., 4] = -math.inf
    clean = ops.attend(ops.gaussian_factor(queries, keys, precision), values, log_prior)
    values = values.clone()
    values[..., 4, :] = math.nan
    factor = ops.gaussian_factor(queries.requires_grad_(train), keys, precision)
    parameters = factor.parameters.clone()
    parameters[..., 4, :] = math.nan
    output = ops.attend(factor._replace(parameters=parameters), values, log_prior)
    assert_equal(output, clean)
    if train:
        (gradient,) = torch.autograd.grad(output.sum(), queries)
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("offset", [1000.0, -3000.0])
def test_far_from_the_origin_nothing_is_lost(offset, device):
    queries, keys, values, precision, _ = (x.float() for x in draw(device=device))
    low = models.GaussianMixture(keys + offset, values, precision)
    expected = low.to(torch.float64).expected_outputs((queries + offset).double())
    assert (low.expected_outputs(queries + offset) - expected).abs().max() < 1e-4
    far = queries + offset, keys + offset, precision
    assert (ops.attend(ops.gaussian_factor(*far), values) - expected).abs().max() < 1e-4
    assert (
        ops.attend(ops.gaussian_factor(*far, expanded=True), values) - expected
    ).abs().max() > 1e-2  # what is avoided


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("per_unit", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_half_precision_rounds_its_inputs_and_little_else(dtype, per_unit, masked, device):
    """Against float64 on the same half-precision inputs: the error is that of rounding α ξ and the weights, not of |q|²."""
    queries, keys, values, precision, log_prior = draw(dtype, units=40, features=16, device=device)
    log_prior = torch.zeros(1, 40, dtype=dtype, device=device)
    if masked:
        log_prior[..., 30:] = -math.inf
    queries, keys = 3 * queries, 3 * keys
    precision = (0.25 * precision if per_unit else precision[..., :1] * 0 + 0.25).clamp(0.05, 0.5)

    def run(kind):
        x = [t.to(kind) for t in (queries, keys, values, precision)]
        build = ops.gaussian_factor if per_unit else ops.isotropic_factor
        return ops.attend(build(x[0], x[1], x[3]), x[2], log_prior.to(kind))

    with torch.enable_grad():
        leaf = queries.requires_grad_()
        low, high = run(dtype), run(torch.float64)
    assert low.dtype == dtype and leaf.requires_grad
    # logits up to 60 whose factors are each rounded: 2 eps * 60 * values of 3 bounds the output
    assert (low.double() - high).abs().max() < 2 * torch.finfo(dtype).eps * 60 * 3


def test_split_bias_is_what_keeps_half_precision_right(monkeypatch):
    """One rounded column for -α|ξ|²/2 + log π + (D/2) log α would be off by hundreds of times the rounding of the rest."""
    queries, keys, values, precision, _ = draw(torch.bfloat16, units=300, features=64)
    precision = 0.125 * (1 + precision / 40)
    factor = ops.gaussian_factor(queries, keys, precision)
    exact = ops.attend(ops.gaussian_factor(queries.double(), keys.double(), precision.double()), values.double())
    leaf = values.requires_grad_()
    split = (ops.attend(factor, leaf).double() - exact).abs().mean()
    monkeypatch.setattr(ops.attention, "as_columns", lambda bias, dtype: bias.to(dtype).unsqueeze(-1))
    rounded = (ops.attend(factor, leaf).double() - exact).abs().mean()
    assert split < 0.2 * rounded


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 2, 3)])
@pytest.mark.parametrize("answers", [1, 4, 9])
def test_any_number_of_leading_axes_and_any_width(batch, answers, device):
    queries, keys, values, precision, log_prior = draw(batch=batch, answers=answers, device=device)
    for prior in (None, log_prior, log_prior[..., :1, :], log_prior.reshape(-1, 5, 7)[0]):
        factor = ops.gaussian_factor(queries, keys, precision)
        assert_equal(ops.attend(factor, values, prior), ops.explicit_attention(factor, values, prior)[0])


def test_leading_axes_broadcast(device):
    queries, keys, values, precision, log_prior = draw(device=device)
    factor = ops.gaussian_factor(queries, keys[0, 0], precision[0, 0])
    for prior in (log_prior, log_prior[:, :1], log_prior[0]):
        assert_equal(ops.attend(factor, values[0, 0], prior), ops.explicit_attention(factor, values[0, 0], prior)[0])
        shared = ops.gaussian_factor(queries[0, 0], keys[0, 0], precision[0, 0])
        assert_equal(ops.log_evidence(shared, prior), ops.explicit_attention(shared, values[0, 0], prior)[2])


@pytest.mark.slow
def test_no_queries_by_units_matrix_in_the_fused_path(device):
    """A million queries by a thousand units would need 4 GiB; the fused path and its gradient stay far below."""
    import tracemalloc

    queries, keys = (
        torch.randn(50_000, 4, dtype=torch.float32),
        torch.randn(2000, 4, dtype=torch.float32, requires_grad=True),
    )
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for x in out if isinstance(out, tuple | list) else (out,):
                if isinstance(x, torch.Tensor):
                    sizes.append(x.untyped_storage().nbytes())
            return out

    assert not tracemalloc.is_tracing()
    with Watch():
        mixture = models.GaussianMixture(keys, keys, torch.ones(2000, dtype=torch.float32))
        mixture.expected_outputs(queries).sum().backward()
        mixture.log_evidence(queries)
    assert max(sizes) < 50_000 * 2000 * 4 / (40 if device == "cpu" else 1)  # pieces for a GPU are larger


@pytest.mark.skipif(not torch.cuda.is_available(), reason="which GPU kernel runs can only be asserted on a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("per_unit", [False, True])
def test_gpu_runs_a_fused_kernel(dtype, per_unit):
    queries, keys, values, precision, _ = draw(dtype, queries=256, units=256, features=64, answers=64, device="cuda")
    factor = (ops.gaussian_factor if per_unit else ops.isotropic_factor)(
        queries, keys, precision if per_unit else precision[..., :1]
    )
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):  # raises if neither takes it
        assert torch.isfinite(ops.attend(factor, values)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_too_small_for_the_dtype_are_zero_and_the_rest_untouched(dtype):
    """Far units have weights below the smallest normal number: they are cut to 0, as a rounding of at most that number."""
    g = generator(3)
    queries, keys = 8 * torch.randn(6, 3, generator=g, dtype=dtype), 8 * torch.randn(9, 3, generator=g, dtype=dtype)
    factor = ops.gaussian_factor(queries, keys, torch.tensor(20.0, dtype=dtype))
    _, weights, lse = ops.explicit_attention(factor, keys)
    found = ops.expected_statistics(factor, None)
    assert (weights == 0).any() and (found.counts > 0).any()
    assert_equal(found.counts, weights.sum(0), lse)  # errors of weights are those of logits as large as the evidence
    assert_equal(found.log_evidence, lse)


@pytest.mark.parametrize("precision", ["scalar", "shared", "unit"])
@pytest.mark.parametrize("prior", [None, "row", "rows"])
def test_large_problems_in_pieces_are_the_whole(precision, prior, monkeypatch, device):
    queries, keys, values, alpha, log_prior = draw(device=device)
    alpha = {"scalar": alpha[0, 0, 0], "shared": alpha[..., :1], "unit": alpha[0]}[precision]
    log_prior = {None: None, "row": log_prior[0, :, :1], "rows": log_prior[0, 0]}[prior]
    arguments = (queries, keys[0], values[:, :1], alpha, log_prior)
    whole = ops.gaussian_attention(*arguments)
    monkeypatch.setattr(ops.attention, "ONE_AT_A_TIME", 8)  # two queries of four features at a time
    assert_equal(ops.gaussian_attention(*arguments), whole)
    assert_equal(ops.gaussian_attention(queries.requires_grad_(), *arguments[1:]), whole)


@pytest.mark.parametrize("labels", [[0, 3], [-1, 0], [0.5, 1.0]], ids=["too large", "negative", "fractions"])
def test_labels_that_no_column_has_are_refused(labels):
    with pytest.raises(ValueError, match="labels must be integers from 0 to 2, the columns of probs"):
        ops.categorical_factor(torch.tensor(labels), torch.full((4, 3), 1 / 3))
