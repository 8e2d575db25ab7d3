"""Attention layers for training, each in the place of ``torch.nn.MultiheadAttention``, and transformers that take any of them."""

from probtx_pyro.nn.attention import Attention, SoftmaxAttention, log_prior, swap_attention
from probtx_pyro.nn.gaussian import GaussianKeysAttention, GaussianMixtureAttention
from probtx_pyro.nn.linear import LinearKeysAttention
from probtx_pyro.nn.transformer import TransformerBlock, TransformerLM

__all__ = [
    "Attention", "SoftmaxAttention", "GaussianMixtureAttention", "GaussianKeysAttention", "LinearKeysAttention",
    "TransformerBlock", "TransformerLM",
    "log_prior", "swap_attention",
]  # fmt: skip
