"""Attention layers of torch and of `probtx_pyro.nn`, caught while their module runs."""

import inspect
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from probtx_pyro.inspection._captured import Captured, captured
from probtx_pyro.nn import GaussianMixtureAttention, HopfieldAttention, SoftmaxAttention
from probtx_pyro.nn.attention import Attention, Units


@torch.no_grad()
def capture(module: nn.Module, *inputs: Any, **kwargs: Any) -> dict[str, Captured]:
    """Run ``module(*inputs, **kwargs)`` once and return what each of its attention layers computed.

    Caught is every ``torch.nn.MultiheadAttention``, wherever it sits, and every layer of `probtx_pyro.nn` that is a softmax of
    dot products: `SoftmaxAttention`, `GaussianMixtureAttention` with ``linked`` and without adaptation, and `HopfieldAttention` of
    one step of softmax. The fused path by
    which ``torch.nn.TransformerEncoder`` bypasses its layers in eval mode is switched off for the run. The module runs in the
    mode it is in: call ``.eval()`` first, or dropout will act before the later layers.

    Returns
    -------
    dict
        By the name of the layer, in the order of the calls; a second call of one layer is ``"name (call 2)"``. Shapes have the
        leading axes (batch, head) whatever ``batch_first`` says. The units of ``add_bias_kv`` and ``add_zero_attn`` stand last.

    Raises
    ------
    ValueError
        No attention layer was called; a layer that is no softmax of dot products, or whose weights are parametrized;
        nested tensors.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2, enable_nested_tensor=False).eval()
    >>> layers = capture(encoder, torch.randn(3, 5, 8))
    >>> list(layers), tuple(layers["layers.0.self_attn"].attention().shape)
    (['layers.0.self_attn', 'layers.1.self_attn'], (3, 2, 5, 5))
    """
    found: dict[str, Captured] = {}
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        for name, layer in module.named_modules():
            if isinstance(layer, nn.MultiheadAttention | Attention):
                stack.enter_context(_attach(name or type(layer).__name__, layer, found))
        module(*inputs, **kwargs)
    if not found:
        raise ValueError(
            "module called no torch.nn.MultiheadAttention; give the projected tensors of its own attention to inspection.captured"
        )
    return found


def _attach(name: str, layer: nn.Module, found: dict[str, Captured]) -> Any:
    """A hook on ``layer`` that adds each of its calls to ``found``."""
    projecting = layer if isinstance(layer, Attention) else _own(name, layer)
    signature = inspect.signature(layer.forward)

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = signature.bind(*args, **kwargs).arguments
        if call["query"].is_nested:
            raise ValueError(f"{name} got nested tensors; pad them, and say where by a padding mask")
        masks = {mask: call.get(mask) for mask in ("key_padding_mask", "attn_mask")}
        queries, units, values, combined = projecting.heads(
            call["query"], call["key"], call["value"], **masks, is_causal=call.get("is_causal", False)
        )
        scale, log_weights = _softmax(name, projecting, units)
        mask = combined.explicit(queries.shape[-2], values.shape[-2], queries)
        if log_weights is not None:
            mask = log_weights.unsqueeze(-2) if mask is None else mask + log_weights.unsqueeze(-2)
        padded = None if combined.padded is None else combined.padded.unsqueeze(1)
        again = sum(known == name or known.startswith(f"{name} (call ") for known in found)
        found[f"{name} (call {again + 1})" if again else name] = captured(
            queries, units.keys, values, mask, scale, padded=padded
        )

    return layer.register_forward_pre_hook(hook, with_kwargs=True)


def _own(name: str, layer: Any) -> Attention:
    """Our reference layer with the weights of torch's: the two project alike."""
    cuda = [layer.out_proj.weight.device.index] if layer.out_proj.weight.is_cuda else []
    with torch.random.fork_rng(devices=cuda):  # the start that the weights replace is drawn
        twin = SoftmaxAttention.from_torch(layer)
    if twin.state_dict().keys() != layer.state_dict().keys():
        raise ValueError(
            f"{name} keeps its weights under other names ({', '.join(layer.state_dict())}); remove its parametrizations first"
        )
    return twin


def _softmax(name: str, layer: Attention, units: Units) -> tuple[Tensor | float, Tensor | None]:
    """The scale of the dot products, and log weights of the units beyond it, (B, H, S)."""
    if isinstance(layer, SoftmaxAttention):
        return layer.head_dim**-0.5, None
    if isinstance(layer, GaussianMixtureAttention) and layer.linked and not layer.adapt_steps:
        return layer.precision(units), layer.log_weights(units)
    if isinstance(layer, HopfieldAttention) and layer.update.is_attention:
        return layer.update.inverse_temperature(layer.head_dim), None
    known = "layer.posterior_model(query, key, value)" if hasattr(layer, "posterior_model") else "its weights"
    raise ValueError(
        f"{name} is a {type(layer).__name__} whose attention is no softmax of dot products; ask it for {known}, or swap in SoftmaxAttention"
    )
