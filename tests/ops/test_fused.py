"""Several keys a unit on the fused kernels, against the explicit path over repeated values."""

import pytest
import torch
from strategies import generator
from tolerances import assert_equal
from torch.utils._python_dispatch import TorchDispatchMode

from probtx_pyro.ops import attend, explicit_attention, gaussian_attention, gaussian_factor
from probtx_pyro.ops.attention import dot_product_attention, key_factor

MASKS = ("none", "padding", "rows")


def draw(seed, components, queries=33, units=33, batch=(2, 3)):
    g = generator(seed)
    q, k, v = (torch.randn(*batch, n, d, generator=g) for n, d in ((queries, 6), (units * components, 6), (units, 5)))
    precision = (0.3 * torch.randn(*batch, units * components, generator=g)).exp()
    return [x.requires_grad_() for x in (q, k, v, precision)]


def prior(mask, queries, units):
    if mask == "none":
        return None
    rows = torch.randn(1 if mask == "padding" else queries, units, generator=generator(1))
    hidden = torch.rand(rows.shape, generator=generator(2)) < 0.3
    hidden[:, :2] = mask == "padding"  # causal: the first two queries see nobody
    hidden[..., 2] = False
    return rows.masked_fill(hidden, -torch.inf)


def visible(queries, units):
    return torch.ones(queries, units, dtype=torch.bool).tril()


def by_definition(q, k, v, precision, log_prior, components, causal):
    rows = torch.zeros(q.shape[-2], v.shape[-2]) if log_prior is None else log_prior.expand(q.shape[-2], -1)
    rows = rows.masked_fill(~visible(*rows.shape), -torch.inf) if causal else rows
    factor = gaussian_factor(q, k, precision)
    return explicit_attention(factor, v.repeat_interleave(components, -2), rows.repeat_interleave(components, -1))[0]


@pytest.mark.pairs
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("components", [1, 2, 3])
def test_output_and_gradients_are_those_of_the_definition(components, causal, mask):
    q, k, v, precision = draw(3, components)
    log_prior = prior(mask, 33, 33)
    expected = by_definition(q, k, v, precision, log_prior, components, causal)
    fused = attend(key_factor(q, k, precision), v, log_prior, components=components, causal=causal)
    assert_equal(fused, expected)
    weights = torch.randn(expected.shape, generator=generator(4))
    leaves = (q, k, v, precision)
    for mine, other in zip(
        torch.autograd.grad((fused * weights).sum(), leaves),
        torch.autograd.grad((expected * weights).sum(), leaves),
        strict=True,
    ):
        assert_equal(mine, other)
    if causal and mask == "padding":
        assert (fused[..., :2, :] == 0).all()


@pytest.mark.parametrize("causal", [False, True])
def test_the_path_over_repeated_values_is_the_same(causal, monkeypatch):
    """What a GPU, and dropout, take: causal masks some rows at a time."""
    monkeypatch.setattr("probtx_pyro.ops._fused.ROWS", 8)
    monkeypatch.setattr("probtx_pyro.ops._fused._flash", None)  # calling it would fail
    q, k, v, precision = draw(5, 2)
    torch.manual_seed(0)
    kept = attend(key_factor(q, k, precision), v, components=2, causal=causal, dropout=1e-300)  # nothing is dropped
    assert_equal(kept, by_definition(q, k, v, precision, None, 2, causal))


def test_dropout_drops_entries_and_keeps_the_mean():
    q, k, v, precision = (x.detach() for x in draw(6, 2, 4, 6, (1,)))
    calm = attend(key_factor(q, k, precision), v, components=2)
    many = key_factor(*(x.expand(4000, *x.shape[1:]) for x in (q, k, precision)))
    torch.manual_seed(1)
    draws = attend(many, v.expand(4000, -1, -1), components=2, dropout=0.4)
    error = draws.std(0) / 4000**0.5
    assert (error > 0).all() and ((draws.mean(0) - calm[0]).abs() <= 5 * error).all()  # 20 means, five standard errors


@pytest.mark.parametrize("causal", [False, True])
def test_dot_product_attention_is_the_softmax_written_out(causal):
    q, k, v, _ = draw(7, 1)
    output = dot_product_attention(q, k, v[..., :5], causal=causal)
    rows = torch.zeros(33, 33).masked_fill(~visible(33, 33) & torch.tensor(causal), -torch.inf)
    assert_equal(output, (q @ k.transpose(-1, -2) + rows).softmax(-1) @ v)


@pytest.mark.parametrize("grad", [False, True])
def test_gaussian_attention_with_key_weights(grad, monkeypatch):
    monkeypatch.setattr("probtx_pyro.ops.attention.ONE_AT_A_TIME", 40)  # sliced by problem and by rows
    q, k, v, precision = (x.detach().requires_grad_(grad) for x in draw(8, 2))
    log_weights = torch.randn(2, 3, 66, generator=generator(9))
    for log_prior in (None, prior("padding", 33, 33), prior("rows", 33, 33)):
        output = gaussian_attention(q, k, v, precision, log_prior, log_weights, 2)
        factor = gaussian_factor(q, k, precision)
        rows = log_weights.unsqueeze(-2) + (0.0 if log_prior is None else log_prior.repeat_interleave(2, -1))
        assert_equal(output, explicit_attention(factor, v.repeat_interleave(2, -2), rows)[0])


class Largest(TorchDispatchMode):
    """Numbers in the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.numel())
        return out


@pytest.mark.parametrize("causal", [False, True])
def test_no_matrix_of_queries_by_units(causal):
    leaves = draw(10, 2, 512, 512, (1,))
    if torch.get_default_device().type != "cpu":  # which fuses no double precision, and writes causal masks out
        causal, leaves = False, [x.detach().float().requires_grad_() for x in leaves]
    with Largest() as seen:
        output = attend(key_factor(*leaves[:2], leaves[3]), leaves[2], components=2, causal=causal)
        torch.autograd.grad(output.sum(), leaves)
    assert seen.numel <= 2 * 512 * (6 + 2)  # the keys, two columns wider; 512 x 512 is 32 times that


def test_float32_at_scale_20():
    q, k, v, precision = (x.detach() for x in draw(11, 2, 20, 20))
    low = [x.float().requires_grad_() for x in (20 * q, 20 * k, v, precision)]
    output = attend(key_factor(low[0], low[1], low[3]), low[2], components=2)
    high = [x.detach().double() for x in low]
    assert torch.isfinite(output).all()
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(output.sum(), low))
    expected = by_definition(*high, None, 2, False)
    # logits of order 20² · 6 carry errors of some 1e4 eps; outputs change by that much times values of order 3
    assert (output.double() - expected).abs().max() < 64 * 2400 * torch.finfo(torch.float32).eps


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch has no batching rule for the fused kernel
def test_transforms_of_torch_func():
    """Inside of them the split's own backward pass, which they do not take, gives way to repeated values."""
    q, k, v, precision = (x.detach() for x in draw(3, 2))

    def fused(q, k):
        return attend(key_factor(q, k, precision[0, 0]), v[0, 0], components=2)

    keys = k[0].clone().requires_grad_()
    expected = fused(q[0], keys)
    assert_equal(torch.func.vmap(fused)(q[0], k[0]), expected)
    (gradient,) = torch.autograd.grad(expected.square().sum(), keys)
    each = torch.func.vmap(torch.func.grad(lambda q, k: fused(q, k).square().sum(), argnums=1))
    assert_equal(each(q[0], k[0]), gradient, operations=1024)  # sums over 33 queries
