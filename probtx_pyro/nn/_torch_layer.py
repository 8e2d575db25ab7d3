"""Checks and settings of a ``torch.nn.MultiheadAttention`` that another layer is to stand for."""

from typing import Any

from torch import nn


def check_forward(layer: nn.MultiheadAttention) -> None:
    """Refuse a layer that does something else than ``MultiheadAttention`` with its weights.

    Raises
    ------
    TypeError
        ``layer`` is not a ``MultiheadAttention``.
    ValueError
        Its ``forward`` is its own.
    """
    if not isinstance(layer, nn.MultiheadAttention):
        raise TypeError(f"layer must be a torch.nn.MultiheadAttention, not {type(layer).__name__}")
    if type(layer).forward is not nn.MultiheadAttention.forward or "forward" in vars(layer):
        raise ValueError(
            f"{type(layer).__name__} has a forward of its own, which another layer would not run; replace it by hand"
        )


def settings_of(layer: nn.MultiheadAttention) -> dict[str, Any]:
    """Return the arguments that the constructor of ``layer`` was given.

    Raises
    ------
    ValueError
        Parameters other than those that the constructor makes.
    """
    settings = {
        "embed_dim": layer.embed_dim,
        "num_heads": layer.num_heads,
        "dropout": layer.dropout,
        "bias": layer.in_proj_bias is not None,
        "add_bias_kv": layer.bias_k is not None,
        "add_zero_attn": layer.add_zero_attn,
        "kdim": layer.kdim,
        "vdim": layer.vdim,
        "batch_first": layer.batch_first,
        "device": layer.out_proj.weight.device,
        "dtype": layer.out_proj.weight.dtype,
    }
    usual, found = (_names(x) for x in (nn.MultiheadAttention(**settings | {"device": "meta"}), layer))
    if usual != found:
        raise ValueError(
            f"{type(layer).__name__} keeps its weights under other names than MultiheadAttention ({', '.join(sorted(usual ^ found))}); remove its parametrizations, pruning or adapters first"
        )
    return settings


def _names(layer: nn.Module) -> set[str]:
    return {
        name for named in (layer.named_parameters, layer.named_buffers) for name, _ in named(remove_duplicate=False)
    }


__all__ = ["check_forward", "settings_of"]
