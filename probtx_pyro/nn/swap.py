"""What is asked of whole models: the log prior of all their layers, and another attention in place of the one they have."""

from torch import Tensor, nn

from probtx_pyro.nn.attention import Attention


def log_prior(model: nn.Module) -> Tensor | float:
    """Sum of `Attention.log_prior` over a model; MAP training minimises ``nats_per_token - log_prior(model) / num_tokens``."""
    return sum(layer.log_prior() for layer in model.modules() if isinstance(layer, Attention))


def swap_attention(model: nn.Module, layer: type[Attention], **options: object) -> nn.Module:
    """Every ``torch.nn.MultiheadAttention`` in ``model``, replaced in place by ``layer`` with the same weights.

    Examples
    --------
    >>> import torch
    >>> from probtx_pyro.nn import SoftmaxAttention
    >>> encoder = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    >>> x = torch.randn(3, 5, 8)
    >>> before = encoder(x)
    >>> after = swap_attention(encoder, SoftmaxAttention)(x)
    >>> bool((before - after).abs().max() < 1e-5)
    True
    """
    for name, child in model.named_children():
        if isinstance(child, nn.MultiheadAttention):
            setattr(model, name, layer.from_torch(child, **options))
        else:
            swap_attention(child, layer, **options)
    return model


__all__ = ["log_prior", "swap_attention"]
