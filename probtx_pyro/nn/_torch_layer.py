"""Settings of a ``torch.nn.MultiheadAttention`` that another layer is to stand for."""

from typing import Any

from torch import nn

from probtx_pyro.nn._options import options


def settings_of(layer: nn.MultiheadAttention) -> dict[str, Any]:
    """Return the arguments that the constructor of ``layer`` was given.

    Raises
    ------
    TypeError
        ``layer`` is not a ``MultiheadAttention``.
    ValueError
        A ``forward`` of its own, which does something else with the weights, or other parameters than the constructor makes.
    """
    if not isinstance(layer, nn.MultiheadAttention):
        raise TypeError(f"layer must be a torch.nn.MultiheadAttention, not {type(layer).__name__}")
    calls = ("forward", "__call__", "_call_impl")
    if any(getattr(type(layer), name) is not getattr(nn.MultiheadAttention, name) for name in calls) or (
        "forward" in vars(layer)
    ):
        raise ValueError(
            f"{type(layer).__name__} has a forward of its own, which another layer would not run; replace it by hand"
        )
    settings = options(layer, nn.MultiheadAttention)
    settings |= {"bias": layer.in_proj_bias is not None, "add_bias_kv": layer.bias_k is not None}
    settings |= {name: getattr(layer.out_proj.weight, name) for name in ("device", "dtype")}
    usual, found = (_names(x) for x in (nn.MultiheadAttention(**settings | {"device": "meta"}), layer))
    if usual != found:
        raise ValueError(
            f"{type(layer).__name__} keeps its weights under other names than MultiheadAttention ({', '.join(sorted(usual ^ found))}); remove its parametrizations, pruning or adapters first"
        )
    return settings


def _names(layer: nn.Module) -> set[str]:
    kinds = layer.named_parameters, layer.named_buffers
    return {name for named in kinds for name, _ in named(remove_duplicate=False)}
