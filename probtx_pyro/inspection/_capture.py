"""Attention caught while its module runs: layers of torch and of `probtx_pyro.nn`, fused calls,
and layers that a function explains.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from probtx_pyro.inspection._captured import Captured, captured, seen
from probtx_pyro.nn import DependencyCRFEncoder, HopfieldRetrieval, SoftmaxAttention
from probtx_pyro.nn.attention import Attention

Explain = Callable[..., Mapping[str, Any]]
Ours: TypeAlias = nn.MultiheadAttention | Attention | HopfieldRetrieval


@torch.no_grad()
def capture(
    module: nn.Module, *inputs: object, attentions: Mapping[type[nn.Module], Explain] | None = None, **kwargs: object
) -> dict[str, Captured]:
    """Run ``module(*inputs, **kwargs)`` once and return what each of its attention layers computed.

    Caught is, wherever it sits,

    - every ``torch.nn.MultiheadAttention``, and every layer of `probtx_pyro.nn`, adapted where it adapts; of a Hopfield
      layer of several steps the last one, whose queries are its states;
    - every call of ``torch.nn.functional.scaled_dot_product_attention``, which is how most models attend, those of
      Hugging Face by
      default: queries, keys and mask as they come, positions included;
    - every module of a class in ``attentions``, explained by a function of yours.

    The fused path by which ``torch.nn.TransformerEncoder`` bypasses its layers in eval mode is switched off for the
    run. The module runs in the mode it is in: call ``.eval()`` first, or dropout will act before the later layers.

    Parameters
    ----------
    module, inputs, kwargs
        The module, and what it is called with.
    attentions
        By class of module, for attention written out as ``softmax(scale q k' + mask)``: a function that is called as
        the module is, ``explain(layer, *args, **kwargs)``, before it runs, and returns arguments of `captured` by name:
        ``queries`` (B, H, L, D) and ``keys`` (B, H, S, D), and where there are such ``values``, ``mask``, ``scale`` and
        ``padded``. A class includes those that derive from it.

    Returns
    -------
    dict
        By the name of the layer, in the order of the calls; a second call of one layer is ``"name (call 2)"``. Shapes
        have the leading axes (batch, head) whatever ``batch_first`` says. The units of ``add_bias_kv`` and
        ``add_zero_attn`` stand last.

    Raises
    ------
    ValueError
        No module, or one that computed no attention, as a model of Hugging Face that is told to attend ``"eager"``;
        weights that are parametrized; nested tensors.
    NotImplementedError
        A layer of your own that derives from those of `probtx_pyro.nn` and does not define ``formulation``.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> layers = capture(encoder, torch.randn(3, 5, 8))
    >>> list(layers), tuple(layers["layers.0.self_attn"].attention().shape)
    (['layers.0.self_attn', 'layers.1.self_attn'], (3, 2, 5, 5))
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module that attends, not a {type(module).__name__}")
    found: dict[str, Captured] = {}
    explained = dict(attentions or {})
    running: list[tuple[str, bool]] = []  # modules inside each other, and whether one of them is explained already

    def add(name: str, one: Captured) -> None:
        again = sum(known == name or known.startswith(f"{name} (call ") for known in found)
        found[f"{name} (call {again + 1})" if again else name] = one

    def enter(name: str, layer: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        read = next((function for kind, function in explained.items() if isinstance(layer, kind)), None)
        ours = isinstance(layer, Ours)
        within = bool(running) and running[-1][1]
        running.append((name, within or ours or read is not None))
        if not within and read is not None:
            add(name, _explained(name, read(layer, *args, **kwargs)))
        elif not within and isinstance(layer, Ours):
            add(name, _of_layer(name, layer, args, kwargs))

    def leave(*_: object) -> None:
        running.pop()

    def call(*args: Any, **kwargs: Any) -> None:
        if not running[-1][1]:
            add(running[-1][0], _of_call(*args, **kwargs))

    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        for name, layer in module.named_modules():
            before = partial(enter, name or type(layer).__name__)
            stack.enter_context(layer.register_forward_pre_hook(before, with_kwargs=True))
            stack.enter_context(layer.register_forward_hook(leave, always_call=True))
        stack.enter_context(_FusedCalls(call))
        module(*inputs, **kwargs)
    if not found and any(isinstance(layer, DependencyCRFEncoder) for layer in module.modules()):
        raise ValueError(
            "module: a DependencyCRFEncoder has no queries and keys to catch; "
            "take encoder.field(x).head_marginals, its attention, or encoder.crf(x), the formulation"
        )
    if not found and any(hasattr(layer, "set_attn_implementation") for layer in module.modules()):
        raise ValueError('module writes its attention out; call model.set_attn_implementation("sdpa") first')
    if not found:
        raise ValueError("module computed no attention that is known; explain its class by attentions= or use captured")
    return found


class _FusedCalls(TorchFunctionMode):
    """Tells of every call of ``scaled_dot_product_attention`` before it runs."""

    def __init__(self, tell: Callable[..., None]):
        super().__init__()
        self.tell = tell

    def __torch_function__(self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None):
        if function is F.scaled_dot_product_attention:
            self.tell(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _of_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Captured:
    """A call of ``scaled_dot_product_attention``, with its arguments: in a boolean mask True allows."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(groups, -3) for x in (key, value))
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros(attn_mask.shape, device=query.device).masked_fill(~attn_mask, -torch.inf)
    return captured(query, key, value, attn_mask, scale)


def _explained(name: str, given: Mapping[str, Any]) -> Captured:
    """The layer as a function of the user describes it."""
    allowed = inspect.signature(captured).parameters
    if not isinstance(given, Mapping) or not {"queries", "keys"} <= given.keys() <= allowed.keys():
        said = ", ".join(given) if isinstance(given, Mapping) else type(given).__name__
        raise ValueError(f"attentions: the function for {name} must return arguments of captured, not {said}")
    return captured(**given)


def _of_layer(name: str, layer: Ours, args: tuple[object, ...], kwargs: dict[str, object]) -> Captured:
    """A layer of torch or of `probtx_pyro.nn`, from the arguments of its call."""
    projecting = _own(name, layer) if isinstance(layer, nn.MultiheadAttention) else layer
    call = inspect.signature(layer.forward).bind(*args, **kwargs).arguments
    if any(isinstance(x, Tensor) and x.is_nested for x in call.values()):
        raise ValueError(f"{name} got nested tensors; pad them, and say where by a padding mask")
    taken = inspect.signature(projecting.heads).parameters
    queries, units, values, combined = projecting.heads(**{key: x for key, x in call.items() if key in taken})
    units = units._replace(**{field: x.double() for field, x in units._asdict().items() if x is not None})
    queries, values = queries.double(), values.double()
    if combined.log_prior is not None:
        combined = combined._replace(log_prior=combined.log_prior.double())
    padded = None if combined.padded is None else combined.padded.unsqueeze(1)
    present = padded is None or ~padded.unsqueeze(-1)
    finite = queries if padded is None else torch.where(present | queries.isfinite(), queries, 0.0)
    written, asked = projecting.attending(finite, units, values, combined)
    asked = asked.squeeze(-2) if asked.dim() > queries.dim() else asked
    mask = combined.explicit(queries.shape[-2], values.shape[-2], queries)
    return seen(asked, written, mask, padded, ("batch", "head"), options=projecting.attention_options)


def _own(name: str, layer: nn.MultiheadAttention) -> Attention:
    """Our reference layer with the weights of torch's: the two project alike."""
    cuda = [layer.out_proj.weight.device.index] if layer.out_proj.weight.is_cuda else []
    with torch.random.fork_rng(devices=cuda):  # the start that the weights replace is drawn
        twin = SoftmaxAttention.from_torch(layer)
    if twin.state_dict().keys() != layer.state_dict().keys():
        raise ValueError(f"{name} keeps its weights under other names; remove its parametrizations first")
    return twin
