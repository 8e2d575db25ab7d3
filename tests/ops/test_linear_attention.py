"""Linear attention: fast = definition, full and causal; nothing leaks from masked or later units; sizes linear in N."""

import math

import pytest
import torch
from strategies import generator
from tolerances import assert_equal
from torch.utils._python_dispatch import TorchDispatchMode

from probtx_pyro import ops

C, BLOCK = 128, 2048  # positions between which the causal form keeps its running sums, and those made at a time
forms = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def draw(seed=0, *, batch=(2,), queries=7, units=7, components=2, features=4, answers=3, dtype=torch.float64, scale=1.0, device="cpu"):  # fmt: skip
    g = generator(seed)

    def normal(*shape):
        return torch.randn(*batch, *shape, generator=g, dtype=torch.float64).to(device)

    tensors = (scale * normal(queries, features), scale * normal(units, components, features), normal(units, answers),
               normal(units, components).softmax(-1), normal(units).exp())  # fmt: skip
    return tuple(x.to(dtype) for x in tensors)


def fast(queries, keys, values, mixing=None, weights=None, causal=False):
    return ops.linear_attention(ops.query_features(queries), ops.unit_features(keys, mixing, weights), values, causal)


def explicit(queries, keys, values, mixing=None, weights=None, causal=False):
    features = ops.query_features(queries), ops.unit_features(keys, mixing, weights)
    return ops.explicit_linear_attention(*features, values, causal)


@pytest.mark.pairs
@forms
@pytest.mark.parametrize("num", [1, 2, C - 1, C, C + 1, 3 * C + 5, BLOCK - 1, BLOCK, BLOCK + C + 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fast_is_the_definition(num, dtype, causal, device):
    arguments = draw(num, batch=(1,), queries=num, units=num, dtype=dtype, device=device)
    output, weights = explicit(*arguments, causal=causal)
    assert output.dtype == dtype
    assert_equal(weights.sum(-1), torch.ones_like(weights[..., 0]), operations=max(64, num))
    # sums of N positive products, each relative error at most N eps, less in practice; values of order 4
    assert_equal(fast(*arguments, causal=causal), output, arguments[2], operations=64 + num**0.5)


@pytest.mark.pairs
@pytest.mark.parametrize("queries", [1, 5, 300])
@pytest.mark.parametrize("units", [1, 4, 200])
@pytest.mark.parametrize("answers", [1, 9])
def test_any_numbers_of_queries_and_units(queries, units, answers, device):
    arguments = draw(1, queries=queries, units=units, components=3, answers=answers, device=device)
    assert_equal(fast(*arguments), explicit(*arguments)[0], operations=256)


@forms
def test_one_component_is_plain_linear_attention(causal, device):
    queries, keys, values, *_ = draw(2, components=1, device=device)
    products = (torch.nn.functional.elu(queries) + 1) @ (torch.nn.functional.elu(keys[..., 0, :]) + 1).transpose(-1, -2)
    products = products.tril() if causal else products
    assert_equal(fast(queries, keys, values, causal=causal), products / products.sum(-1, keepdim=True) @ values)


@forms
def test_batch_is_the_stack_of_its_singles(causal, device):
    arguments = draw(3, batch=(2, 3), device=device)
    for index in ((0, 0), (1, 2)):
        assert_equal(fast(*arguments, causal=causal)[index], fast(*(x[index] for x in arguments), causal=causal))


@forms
def test_leading_axes_broadcast(causal, device):
    queries, keys, values, mixing, weights = draw(4, batch=(2, 3), device=device)
    one = (queries, keys[0, 0], values[:, :1], mixing[0], weights[0, 0])
    whole = [x.expand(2, 3, *x.shape[-n:]) for x, n in zip(one, (2, 3, 2, 2, 1), strict=True)]
    assert_equal(fast(*one, causal=causal), fast(*whole, causal=causal))


@pytest.mark.parametrize("axis", ["units", "components"])
def test_order_does_not_matter(axis):
    queries, keys, values, mixing, weights = draw(5, components=7)
    order = torch.randperm(7, generator=generator(6)).to(keys.device)
    if axis == "units":
        moved = (queries, keys[:, order], values[:, order], mixing[:, order], weights[:, order])
    else:
        moved = (queries, keys[:, :, order], values, mixing[..., order], weights)
    assert_equal(fast(*moved), fast(queries, keys, values, mixing, weights))


@pytest.mark.slow
@forms
def test_gradients_are_finite_differences(causal, monkeypatch):
    monkeypatch.setattr("probtx_pyro.ops._linear_attention.CHUNK", 2)
    monkeypatch.setattr("probtx_pyro.ops._linear_attention.CHUNKS", 2)
    inputs = [x.requires_grad_() for x in draw(7, batch=(), features=2, answers=2)]
    assert torch.autograd.gradcheck(lambda *x: fast(*x, causal=causal), inputs)
    assert torch.autograd.gradcheck(lambda *x: explicit(*x, causal=causal)[0], inputs)
    assert torch.autograd.gradgradcheck(lambda *x: fast(*x, causal=causal), inputs)


def test_causal_needs_as_many_units_as_queries():
    queries, keys, values, *_ = draw(8, queries=5)
    with pytest.raises(ValueError, match=r"as many units as queries, not 7 for 5"):
        fast(queries, keys, values, causal=True)


@pytest.mark.parametrize("at", [0, 3, C - 1, C, 2 * C + 7, BLOCK - 1, BLOCK + 3])
def test_the_future_does_not_leak_by_one_bit(at, device):
    num = BLOCK + 2 * C
    arguments = draw(8, batch=(), queries=num, units=num, dtype=torch.float32, device=device)
    changed = [x.clone() for x in arguments]
    for x, y in zip(changed, draw(9, batch=(), queries=num, units=num, dtype=torch.float32, scale=10.0, device=device), strict=True):  # fmt: skip
        x[at + 1 :] = y[at + 1 :]
    before, after = fast(*arguments, causal=True), fast(*changed, causal=True)
    assert torch.equal(before[: at + 1], after[: at + 1]) and not torch.equal(before[at + 1 :], after[at + 1 :])


@forms
def test_masked_units_are_absent_and_may_hold_nan(causal, device):
    queries, keys, values, mixing, weights = draw(10, device=device)
    keep = [0, 1, 3, 4, 6]
    weights[:, [2, 5]] = 0.0
    expected = explicit(queries, keys, values, mixing, weights, causal)[1]
    assert (expected[..., [2, 5]] == 0).all()
    keys[:, [2, 5]] = math.nan
    leaves = [x.requires_grad_() for x in (queries, keys, mixing, weights)]
    output = fast(leaves[0], leaves[1], values, *leaves[2:], causal)
    assert_equal(output, expected @ values)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(output.sum(), leaves))
    if not causal:
        fewer = (queries, keys[:, keep], values[:, keep], mixing[:, keep], weights[:, keep])
        assert_equal(output, fast(*fewer))


@forms
def test_a_query_without_units_gives_zero(causal):
    queries, keys, values, mixing, weights = draw(11)
    weights = weights * (torch.arange(7, device=weights.device) >= (3 if causal else 7))
    leaves = [x.requires_grad_() for x in (queries, keys, values, mixing, weights)]
    for output in (fast(*leaves, causal), explicit(*leaves, causal)[0]):
        empty = output[:, :3] if causal else output
        assert (empty == 0).all() and (not causal or (output[:, 3:] != 0).any())
        assert all(
            torch.isfinite(g).all() for g in torch.autograd.grad(output.square().sum(), leaves, retain_graph=True)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("x", [20.0, -20.0, 100.0, -100.0, -1000.0, 0.0])
def test_the_feature_map_keeps_what_the_dtype_can_hold(x, dtype):
    leaf = torch.tensor(x, dtype=dtype, requires_grad=True)
    feature = ops.elu_plus_one(leaf)
    (slope,) = torch.autograd.grad(feature, leaf)
    exact = math.exp(x) if x < 0 else x + 1
    # exp of a rounded argument: relative error eps |x|
    error = abs(float(feature.detach()) - exact)
    assert error <= max(4, abs(x)) * torch.finfo(dtype).eps * exact + torch.finfo(dtype).tiny
    assert abs(float(slope) - min(exact, 1.0)) <= max(4, abs(x)) * torch.finfo(dtype).eps + torch.finfo(dtype).tiny
    assert (float(feature.detach()) > 0) == (exact > torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)
    if x == -20.0 and dtype == torch.float32:
        assert torch.nn.functional.elu(leaf) + 1 == 0  # what the usual form gives


@pytest.mark.pairs
@forms
@pytest.mark.parametrize("features", [2, 4, 64])
@pytest.mark.parametrize("scale", [5.0, 20.0])
def test_large_inputs_in_float32(scale, features, causal, device):
    arguments = draw(12, queries=300, units=300, features=features, dtype=torch.float32, scale=scale, device=device)
    leaves = [x.requires_grad_() for x in arguments]
    output = fast(*leaves, causal)
    high = explicit(*(x.detach().double() for x in arguments), causal)[0]
    # exp of -87 at the least, whose relative error is 87 eps, summed over 300 products with values of order 4
    assert_equal(output.detach().double(), high, operations=1000 * 2**29)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(output.sum(), leaves))


@forms
def test_queries_far_below_zero_still_attend(causal):
    """A factor of the query's features cancels: -1000 throughout is -1000 + 1000, where exp would give 0 / 0."""
    queries, keys, values, mixing, weights = draw(13, dtype=torch.float32)
    low = -1000.0 + queries.clamp_max(0) - queries.clamp_max(0).amax(-1, keepdim=True)
    expected = fast(low + 1000.0, keys, values, mixing, weights, causal)
    assert_equal(fast(low, keys, values, mixing, weights, causal), expected)


def test_keys_far_below_zero_trade_their_scale():
    queries, keys, values, mixing, weights = draw(14, dtype=torch.float32)
    keys = -keys.abs() - 80.0
    high = explicit(*(x.double() for x in (queries, keys, values, mixing, weights)))[0]
    assert_equal(fast(queries, keys, values, mixing, weights).double(), high, operations=1000 * 2**29)


@forms
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_single(dtype, causal, device):
    arguments = draw(15, batch=(), queries=2000, units=2000, dtype=dtype, device=device)
    output = fast(*arguments, causal=causal)
    high = explicit(*(x.double() for x in arguments), causal=causal)[0]
    assert output.dtype == dtype
    assert (output.double() - high).abs().max() <= torch.finfo(
        dtype
    ).eps * high.abs().max()  # the rounding of the result


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.untyped_storage().nbytes() // x.element_size())
        return out


@forms
def test_no_tensor_grows_faster_than_the_sequence(causal):
    found = []
    for num in (4096, 8192):
        leaves = [x.requires_grad_() for x in draw(16, batch=(), queries=num, units=num, components=2, features=8, answers=8)]  # fmt: skip
        with Largest() as seen:
            fast(*leaves, causal=causal).sum().backward()
        found.append(seen.numel)
    assert found[1] <= 2 * found[0] and found[0] <= max(2 * 8 * 4096, C * BLOCK)
    with Largest() as seen:
        explicit(*draw(17, batch=(), queries=1000, units=1000))
    assert seen.numel == 1000**2  # the recorder sees the matrix where there is one


@pytest.mark.parametrize("mixing", ["each unit", "shared", "uniform"])
def test_features_are_made_in_pieces_and_are_those_of_each_row(mixing, device):
    num = 2 * BLOCK + 3
    queries, keys, _, weights, units = draw(queries=num, units=num, device=device)
    weights = {"each unit": weights, "shared": weights[..., :1, :], "uniform": None}[mixing]
    rows = torch.tensor([0, BLOCK - 1, BLOCK, 2 * BLOCK, num - 1])
    own = weights[..., rows, :] if mixing == "each unit" else weights
    assert_equal(ops.query_features(queries)[..., rows, :], ops.query_features(queries[..., rows, :]))
    found = ops.unit_features(keys, weights, units)
    assert found.shape == (*keys.shape[:-2], keys.shape[-1])
    assert_equal(found[..., rows, :], ops.unit_features(keys[..., rows, :, :], own, units[..., rows]))
