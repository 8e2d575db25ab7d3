"""Attention layers for training, each in the place of ``torch.nn.MultiheadAttention``,
and transformers that take any of them.
"""

from probtx_pyro.nn._priors import log_prior_density
from probtx_pyro.nn._registry import ATTENTIONS, ENCODERS, SUMMARIES, Encoder, Summary
from probtx_pyro.nn.attention import Attention
from probtx_pyro.nn.decoder import DecoderCache, EncoderDecoder, TransformerDecoder, TransformerDecoderBlock
from probtx_pyro.nn.dependency_crf import DependencyCRFEncoder
from probtx_pyro.nn.gaussian_keys import GaussianKeysAttention
from probtx_pyro.nn.gaussian_mixture import GaussianMixtureAttention
from probtx_pyro.nn.hopfield import HopfieldAttention, HopfieldRetrieval
from probtx_pyro.nn.linear import LinearKeysAttention
from probtx_pyro.nn.softmax import SoftmaxAttention
from probtx_pyro.nn.swap import swap_attention
from probtx_pyro.nn.tasks import (
    MaskedLanguageModel,
    TextClassifier,
    TransformerEncoder,
    WordTagger,
    mean_word,
    root_label,
)
from probtx_pyro.nn.transformer import TransformerBlock, TransformerLM

__all__ = [
    "Attention", "SoftmaxAttention", "GaussianMixtureAttention", "GaussianKeysAttention", "LinearKeysAttention",
    "HopfieldAttention", "HopfieldRetrieval",
    "ATTENTIONS",
    "TransformerBlock", "TransformerLM", "TransformerDecoderBlock", "TransformerDecoder", "DecoderCache", "EncoderDecoder",
    "ENCODERS", "Encoder", "DependencyCRFEncoder", "TransformerEncoder", "WordTagger", "MaskedLanguageModel", "TextClassifier",
    "SUMMARIES", "Summary", "mean_word", "root_label",
    "log_prior_density", "swap_attention",
]  # fmt: skip
