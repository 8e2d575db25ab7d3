"""Fused attention, ``softmax(queries · keys' + mask) · values`` without a Q x U tensor,
with one key or several keys a unit.

One key is ``scaled_dot_product_attention``, or its kernel where a CPU trains. Softmax over several keys, each unit's keys sharing its value, splits by
component: with ``o_r`` and ``l_r`` the attention output and log-sum-exp over the r-th keys alone, the output is
``Σ_r exp(l_r - l) o_r`` and ``l = logsumexp_r l_r``. The flash kernel's backward pass rebuilds each block of the
attention as ``exp(logits - l)``: given the *joint* output and log-sum-exp it returns the gradients of the joint
attention, block by block, so that the components need nothing else from each other, no repeated values among it.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from probtx_pyro.ops._numerics import HALF, again, common_shape, drop, exporting, gradients, known, single, transformed

ROWS = 512  # queries at a time where a causal mask must be written out
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def fused_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, components: int, causal: bool, dropout: float
) -> Tensor:
    """Return ``softmax(queries · keys' + mask) · values``, unit j having keys jR to jR + R - 1. A second derivative writes
    the attention out.

    Leading axes are flattened, both widths made equal and columns laid next to each other: of other layouts torch's kernel
    reads other numbers, and its function falls to a slow path.

    Parameters
    ----------
    queries, keys, values
        (..., Q, T), (..., U·R, T) and (..., U, M).
    mask
        (..., Q or 1, U), added to the logits of all keys of a unit; None is 0.
    components
        R, the keys of a unit.
    causal
        Let query i see the units up to i only.
    dropout
        Probability that an entry of the attention is dropped.

    Returns
    -------
    outputs
        (..., Q, M).
    """
    given = [x for x in (queries, keys, values, mask) if x is not None]
    batch = common_shape(*(x.shape[:-2] for x in given))
    rows, answers = queries.shape[-2], values.shape[-1]
    width = max(queries.shape[-1], answers)
    width = -(-width // 8) * 8 if queries.is_cuda else width

    def flat(x: Tensor) -> Tensor:
        x = (x if x.stride(-1) == 1 else x.contiguous()).expand(*batch, -1, -1)
        if exporting() and len(batch) == 2:  # which cannot prove that axes of lengths like t + 1 are next to each other
            return x
        return x.reshape(1, math.prod(batch), *x.shape[-2:])

    q, k, v = (flat(x if x.shape[-1] == width else pad(x, (0, width - x.shape[-1]))) for x in (queries, keys, values))
    mask = None if mask is None else flat(mask.to(queries.dtype)).expand(-1, -1, rows, -1)
    if 0 in (*q.shape, *v.shape):  # at which kernels end the process; no units answer with 0, and no number is read
        output = q[..., :0] @ (k[..., ::components, :0].mT @ v)
    elif components == 1 and not (q.is_cpu and (dropout or _learns(q, k, v))):
        output = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=1.0)
    elif q.is_cpu and not dropout and not (mask is not None and mask.requires_grad) and not transformed():
        output = _Kernel.apply(q, k, v, mask, components, causal)
    else:
        output = _over_repeated_values(q, k, v, mask, components, causal, dropout)
    return _nan_where_lost(output, q, k)[..., :answers].reshape(*batch, rows, answers)


def _learns(*given: Tensor) -> bool:
    """True where a gradient may be asked for, in plain reverse mode."""
    if torch.compiler.is_compiling() or transformed() or not torch.is_grad_enabled():
        return False
    return any(x.requires_grad for x in given)


def _nan_where_lost(output: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Return the output with NaN in rows of NaN logits, where torch's kernel for processors with AVX-512 has 0."""
    if not queries.is_cpu or 0 in keys.shape:
        return output
    if not torch.compiler.is_compiling() and not known((queries.sum() + keys.sum()).isnan(), otherwise=True):
        return output
    lost = queries.isnan().any(-1, keepdim=True) | keys.isnan().any(-1).all(-1)[..., None, None]
    return torch.where(lost, math.nan, output)


def _over_repeated_values(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, components: int, causal: bool, dropout: float
) -> Tensor:
    """Return attention in which every key has a value of its own; causal masks are written out, some rows at a time."""
    values = values.unsqueeze(-2).expand(*values.shape[:-1], components, -1).flatten(-3, -2)
    if not causal:
        mask = None if mask is None else mask.repeat_interleave(components, -1)
        return _with_dropout(queries, keys, values, mask, dropout)
    assert mask is None, "a causal call has its other masks in the bias, or is written out"
    outputs = []
    for start in range(0, queries.shape[-2], ROWS):
        q = queries[..., start : start + ROWS, :]
        k, v = (x[..., : (start + q.shape[-2]) * components, :] for x in (keys, values))
        seen = visible(q.shape[-2], k.shape[-2] // components, start, q.device).repeat_interleave(components, -1)
        outputs.append(_with_dropout(q, k, v, seen, dropout))
    return torch.cat(outputs, -2)


def _with_dropout(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """Return attention by torch's function, or on a CPU, where that draws its random numbers slowly, by its definition."""
    if not dropout or not queries.is_cpu:
        return scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropout, scale=1.0)
    scores = single(queries) @ single(keys).mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return drop(scores.softmax(-1), dropout).to(values.dtype) @ values


def as_columns(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bias as a column of the product, or in half precision as three whose sum keeps 24 bits of it."""
    if dtype not in HALF:
        return bias.unsqueeze(-1)
    columns = []
    for _ in range(3):
        columns.append(bias.clamp_min(torch.finfo(dtype).min).to(dtype))
        bias = bias - columns[-1]
    return torch.stack(columns, -1)


def visible(num_queries: int, num_units: int, start: int = 0, device: torch.device | None = None) -> Tensor:
    """Return which units each query sees in causal attention.

    Parameters
    ----------
    num_queries, num_units
        Q and U.
    start
        Number of the first query.
    device
        Where the answer is made; None is torch's default.

    Returns
    -------
    visible
        (Q, U), boolean.

    Examples
    --------
    >>> visible(2, 3).tolist()
    [[True, False, False], [True, True, False]]
    """
    rows = torch.arange(start, start + num_queries, device=device)
    return torch.arange(num_units, device=device) <= rows.unsqueeze(-1)


def causal_prior(log_prior: Tensor | None, num_queries: int, num_units: int, like: Tensor) -> Tensor:
    """Return ``log_prior`` (..., Q or 1, U) with -inf where `visible` is False; None is 0, of the dtype of ``like``."""
    future = ~visible(num_queries, num_units, device=like.device)
    return (like.new_zeros(()) if log_prior is None else log_prior).masked_fill(future, -math.inf)


def reachable(log_prior: Tensor, num_queries: int, causal: bool) -> Tensor:
    """Return True at queries that may attend to some unit, (..., Q or 1, 1), given ``log_prior`` (..., Q or 1, U),
    one row if ``causal``.
    """
    allowed = log_prior != -math.inf  # NaN is no mask, and stays NaN
    if not causal:
        return allowed.any(-1, keepdim=True)
    seen = torch.arange(1, num_queries + 1, device=log_prior.device).clamp_max(log_prior.shape[-1])
    return (pad(allowed.squeeze(-2).cumsum(-1), (1, 0)) > 0)[..., seen].unsqueeze(-1)


def _components(keys: Tensor, components: int) -> list[Tensor]:
    """Return the first key of each unit, then the second and so on, without strides, on which the kernel is slower."""
    return [k.contiguous() for k in keys.unflatten(-2, (-1, components)).unbind(-2)]


class _Kernel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, components: int, causal: bool
    ) -> Tensor:
        each = _components(keys, components)
        parts = [_flash(queries, k, values, 0.0, causal, attn_mask=mask, scale=1.0) for k in each]
        output, lse = parts[0]
        if components > 1:
            lses = torch.stack([part[1] for part in parts])
            lse = lses.logsumexp(0)
            shares = (lses - lse).exp_().unsqueeze(-1)
            output = output.to(shares.dtype).mul_(shares[0])
            for part, share in zip(parts[1:], shares[1:], strict=True):
                output.addcmul_(part[0], share)
            output = output.to(queries.dtype)
        ctx.save_for_backward(queries, keys, values, mask, output, lse)
        ctx.components, ctx.causal = components, causal
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, mask, output, lse = ctx.saved_tensors
        if again():
            plain = partial(_over_repeated_values, mask=mask, components=ctx.components, causal=ctx.causal, dropout=0.0)
            with sdpa_kernel(SDPBackend.MATH):
                return *gradients(plain, (queries, keys, values), gradient), None, None, None
        given, how = (values, output, lse, 0.0, ctx.causal), {"attn_mask": mask, "scale": 1.0}
        found = (_flash_backward(gradient, queries, k, *given, **how) for k in _components(keys, ctx.components))
        of_queries, of_keys, of_values = zip(*found, strict=True)
        for more_queries, more_values in zip(of_queries[1:], of_values[1:], strict=True):
            of_queries[0].add_(more_queries)
            of_values[0].add_(more_values)
        return of_queries[0], torch.stack(of_keys, -2).flatten(-3, -2), of_values[0], None, None, None
