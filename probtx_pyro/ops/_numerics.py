"""Masked normalisation, safe division and centring: the numerical care of the whole library, in one place.

A mask is a log prior of -inf, added before the normaliser. A row that is masked everywhere is neutralised *before* the
softmax (so that no gradient is NaN) and defined after it: weights zero, log-sum-exp -inf.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import dropout

HALF = (torch.bfloat16, torch.float16)
# before torch 2.7 there is no telling them apart
exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


def single(x: Tensor) -> Tensor:
    """Half precision as float32, all else as it is."""
    return x.float() if x.dtype in HALF else x


def autocasts(device: torch.device) -> bool:
    """True where autocast is on; the meta device has none."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def unrounded(device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which autocast rounds nothing: of products whose large terms cancel."""
    return torch.autocast(device.type, enabled=False) if autocasts(device) else nullcontext()


def safe_softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax over the last axis and the log-sum-exp it divides by; a row of -inf gives zeros and -inf,
    with zero gradients.

    Shapes: ``scores`` (..., U) -> weights (..., U), log-sum-exp (...).

    >>> weights, lse = safe_softmax(torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]]))
    >>> weights.tolist(), lse.tolist()
    ([[1.0, 0.0], [0.0, 0.0]], [0.0, -inf])
    """
    empty = (scores == -math.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(empty, 0.0)
    lse = scores.logsumexp(-1, keepdim=True)
    weights = scores.softmax(-1).masked_fill(empty, 0.0)  # exp(scores - lse) is off the simplex where scores are large
    return weights, lse.masked_fill(empty, -math.inf).squeeze(-1)


def log_sum(scores: Tensor, axis: int = -1) -> Tensor:
    """Return ``log Σ exp`` over an axis; -inf, with zero gradients of every order, where all scores are -inf."""
    empty = (scores == -math.inf).all(axis)
    return scores.masked_fill(empty.unsqueeze(axis), 0.0).logsumexp(axis).masked_fill(empty, -math.inf)


def safe_log(probabilities: Tensor) -> Tensor:
    """Return the logarithm, with log 0 = -inf and a zero, not infinite, gradient there."""
    positive = probabilities > 0
    return torch.where(positive, probabilities, 1.0).log().masked_fill(~positive, -math.inf)


def safe_ratio(numerator: Tensor, denominator: Tensor, otherwise: Tensor) -> Tensor:
    """Return ``numerator / denominator``, and ``otherwise`` where the denominator
    is not positive (0/0 is "nobody attended").
    """
    positive = denominator > 0
    return torch.where(positive, numerator / torch.where(positive, denominator, 1.0), otherwise)


def center_of(keys: Tensor, unit_axes: int = 1) -> Tensor:
    """Mean key, shape (..., 1, D), held constant:
    Gaussian attention does not change when queries and keys shift together.

    Subtracting it first keeps the dot-product form accurate far from the origin; as the result does not depend on it,
    its gradient is exactly zero and is not computed. Keys with two unit axes (..., U, R, D) have one mean (..., 1, 1,
    D).
    """
    keys = keys.detach().flatten(-1 - unit_axes, -2)
    mean = keys.mean(-2) if keys.shape[-2] else keys.sum(-2)  # the mean of none would be NaN
    return mean[(..., *(None,) * unit_axes, slice(None))]


def common_shape(*shapes: torch.Size | tuple[int, ...]) -> torch.Size:
    """Return the shape that shapes broadcast to, remembered; RuntimeError, as torch's own, where there is none.

    ``torch.broadcast_shapes`` takes 10 microseconds a call, and imports sympy, half a second, at its first.
    """
    return torch.broadcast_shapes(*shapes) if torch.compiler.is_compiling() else _common_shape(*shapes)


@lru_cache(4096)
def _common_shape(*shapes: tuple[int, ...]) -> torch.Size:
    try:
        return torch.Size(np.broadcast_shapes(*shapes))
    except ValueError as error:
        raise RuntimeError(f"shapes do not broadcast: {', '.join(str(tuple(shape)) for shape in shapes)}") from error


def sum_to(x: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Sum over the axes along which ``shape`` was broadcast: the gradient of broadcasting,
    used for shared parameters.
    """
    return x.sum_to_size(shape) if x.shape != torch.Size(shape) else x


def known(condition: Tensor, otherwise: bool) -> bool:
    """The boolean that a tensor of one element holds;
    ``otherwise`` inside ``torch.func.vmap``, ``torch.export`` and ``make_fx``, which hide values, and without any, on
    the meta device and of fake tensors.
    """
    if exporting():
        return otherwise
    try:
        return bool(condition)
    except RuntimeError as error:
        if not values_hidden(error):
            raise
        return otherwise


def values_hidden(error: RuntimeError) -> bool:
    """True of the error that is raised where a number is read from a tensor which hides it, or has none."""
    return any(word in str(error) for word in ("vmap", "tracing tensor", "meta tensor", "_local_scalar_dense"))


def transformed() -> bool:
    """True inside ``torch.func.vmap``, ``grad`` and the like, in forward mode and ``torch.jit.trace``: they need plain
    operations of torch.
    """
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0 or torch.jit.is_tracing()


def enable_grad() -> torch.enable_grad:
    """Return ``torch.enable_grad()``; inside ``torch.inference_mode``, where that does nothing, raise a RuntimeError."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError("gradients are needed, which torch.inference_mode has turned off; use torch.no_grad instead")
    return torch.enable_grad()


def again() -> bool:
    """True in a backward pass whose gradients will be differentiated in their turn, outside of compilers."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor | None], gradient: Tensor
) -> list[Tensor | None]:
    """Return the gradients of a function of plain operations, for the backward pass of a kernel where `again` is true.

    torch's ``once_differentiable`` does not serve there: of derivatives with respect to *inputs* torch leaves out what
    passes through it, without an error.
    """
    # derivatives are partial, though one input may have been made of another
    own = [x if x is None else x.view_as(x) for x in inputs]
    wanted = [x for x in own if x is not None and x.requires_grad]
    found = iter(torch.autograd.grad(function(*own), wanted, gradient, create_graph=True, allow_unused=True))
    return [next(found) if x is not None and x.requires_grad else None for x in inputs]


_STEPS = 2**16


def drop(x: Tensor, rate: float) -> Tensor:
    """Return x with each entry zero with probability ``rate``, and the others divided by the share that stays.

    On a CPU an entry takes 16 random bits, four in a word, in a quarter of the time of torch's: the rate is rounded to a
    multiple of 2^-16, and the share is that of the rounded rate.
    """
    dropped = round(rate * _STEPS)
    if not dropped:
        return x
    if not x.is_cpu or not 0 <= dropped < _STEPS or transformed() or torch.compiler.is_compiling():
        return dropout(x, rate)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = words.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - _STEPS // 2
    return x * kept.to(x.dtype).mul_(_STEPS / (_STEPS - dropped))


_VECTORIZED = (
    "acos asin atan cos cosh erf erfc erfinv exp expm1 lgamma log log10 log1p log2 sin sinh sqrt tan tanh".split()
)


def settle_kernels() -> None:
    """Call each of torch's elementary functions on one number; `probtx_pyro.ops` does it when it is imported.

    oneMKL picks the kernel of a function at its first call. Where the threads of torch make that call together, one of
    them may do its share of it with a kernel of low accuracy, silently: relative errors of 1e-4 in float32 and 1e-10 in
    float64 were seen here, in the first call only (pytorch issue 188792, oneMKL 2024.2). A call by one thread, before
    any other, prevents it.
    """
    for dtype in (torch.float32, torch.float64):
        half = torch.full((1,), 0.5, dtype=dtype)
        for name in _VECTORIZED:
            getattr(torch, name)(half)
