"""Swap the attention layers of a whole model."""

import weakref

from torch import nn

from probtx_pyro.nn.attention import Attention

HOOKS = tuple(name for name in vars(nn.Module()) if "_hooks" in name)


def swap_attention(model: nn.Module, layer: type[Attention], **options: object) -> list[str]:
    """Replace every ``torch.nn.MultiheadAttention`` in a model, in place, by a layer with the same weights.

    A layer that stands in several places of the model stays one layer, in all of them. The new layers hold the very
    parameters of the old ones, frozen where they were frozen, so that an optimizer made before still trains them; they
    take over the hooks (handles still remove them), the mode, the device and the dtype. What a layer has beyond a
    ``MultiheadAttention``, such as ``log_key_precision``, is new: it is in no optimizer yet, and learns unless all of
    the old layer is frozen.

    Parameters
    ----------
    model
        The model that contains the layers.
    layer
        The class to use, such as `GaussianMixtureAttention`.
    options
        Arguments of that class beyond those of ``torch.nn.MultiheadAttention``, such as ``map_steps=3``.

    Returns
    -------
    The places that changed, by their qualified names. If an error is raised nothing has changed.

    Raises
    ------
    TypeError
        ``layer`` is not a class of attention layers (an instance is none), or does not take the options.
    ValueError
        There is nothing to swap; the model itself is a ``MultiheadAttention``, which cannot be replaced in place; a
        layer has a ``forward`` of its own, or keeps its weights under other names (parametrization, pruning, adapters);
        options out of range.

    Examples
    --------
    >>> import torch
    >>> from probtx_pyro.nn import SoftmaxAttention
    >>> encoder = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    >>> x = torch.randn(3, 5, 8)
    >>> before = encoder(x)
    >>> swap_attention(encoder, SoftmaxAttention)
    ['self_attn']
    >>> bool((before - encoder(x)).abs().max() < 1e-5)
    True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if isinstance(layer, Attention):
        call = f"swap_attention(model, {type(layer).__name__}, ...)"
        raise TypeError(f"layer must be a class, not an instance; call {call} with its options")
    if not (isinstance(layer, type) and issubclass(layer, Attention)) or layer.attend is Attention.attend:
        raise TypeError(f"layer must be a class of attention layers, such as SoftmaxAttention, not {layer!r}")
    if isinstance(model, nn.MultiheadAttention):
        repair = f"use {layer.__name__}.from_torch(model)"
        raise ValueError(f"model is itself a MultiheadAttention, which cannot be replaced in place; {repair}")
    places = {
        f"{path}.{name}".removeprefix("."): (parent, name, child)
        for path, parent in model.named_modules(remove_duplicate=False)
        for name, child in parent._modules.items()
        if isinstance(child, nn.MultiheadAttention)
    }
    if not places:
        repair = "inspection.capture and inspection.replaced may serve attention of another kind"
        raise ValueError(f"there is no torch.nn.MultiheadAttention in {type(model).__name__}; {repair}")
    new: dict[nn.MultiheadAttention, Attention] = {}
    for place, (_, _, old) in places.items():
        if old not in new:
            try:
                new[old] = layer.from_torch(old, **options)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
    for old, replacement in new.items():
        _take_over(old, replacement)
    for parent, name, old in places.values():
        setattr(parent, name, new[old])
    return list(places)


def _take_over(old: nn.MultiheadAttention, new: Attention) -> None:
    """Give ``new`` the parameters and the hooks of ``old``, themselves and not copies."""
    for path, module in old.named_modules():
        heir = new.get_submodule(path)
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            setattr(heir, name, parameter)
        for name in HOOKS:  # the dictionaries themselves: a handle removes its hook from the one that it knows
            hooks = getattr(module, name)
            hooks.update(getattr(heir, name))
            setattr(heir, name, hooks)
        heir._is_full_backward_hook = module._is_full_backward_hook
        for hook in heir._load_state_dict_pre_hooks.values():
            if getattr(hook, "with_module", False):  # such a hook remembers its module
                hook.module = weakref.ref(heir)  # type: ignore[attr-defined]
