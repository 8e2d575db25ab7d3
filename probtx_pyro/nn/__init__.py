"""Attention layers for training, each in the place of ``torch.nn.MultiheadAttention``,
and transformers that take any of them.
"""

from probtx_pyro.nn._gaussian import Adapt
from probtx_pyro.nn._module import log_prior_density
from probtx_pyro.nn._registry import ATTENTIONS, ENCODERS, SUMMARIES, Encoder, Summary
from probtx_pyro.nn.attention import Attention, SoftmaxAttention
from probtx_pyro.nn.dependency_crf import DependencyCRFEncoder, GlobalNodes, MeanFieldOptions
from probtx_pyro.nn.gaussian_keys import GaussianKeysAttention
from probtx_pyro.nn.gaussian_mixture import GaussianMixtureAttention
from probtx_pyro.nn.hopfield import HopfieldAttention, HopfieldRetrieval
from probtx_pyro.nn.linear import LinearKeysAttention
from probtx_pyro.nn.regression_memory import (
    MemoryAnswers,
    MemoryState,
    MemoryStream,
    RegressionMemoryAttention,
    memory_updates,
)
from probtx_pyro.nn.swap import swap_attention
from probtx_pyro.nn.tasks import (
    MaskedLanguageModel,
    TextClassifier,
    TransformerEncoder,
    WordTagger,
    mean_word,
    root_label,
)
from probtx_pyro.nn.transformer import (
    DecoderCache,
    EncoderDecoder,
    TransformerBlock,
    TransformerDecoder,
    TransformerDecoderBlock,
    TransformerLM,
)

__all__ = ["Attention", "SoftmaxAttention", "GaussianMixtureAttention", "GaussianKeysAttention", "LinearKeysAttention"]
__all__ += ["HopfieldAttention", "HopfieldRetrieval", "Adapt", "ATTENTIONS"]
__all__ += ["RegressionMemoryAttention", "memory_updates", "MemoryStream", "MemoryState", "MemoryAnswers"]
__all__ += ["TransformerBlock", "TransformerLM", "TransformerDecoderBlock", "TransformerDecoder", "DecoderCache"]
__all__ += ["EncoderDecoder", "ENCODERS", "Encoder", "DependencyCRFEncoder", "MeanFieldOptions", "GlobalNodes"]
__all__ += ["TransformerEncoder", "WordTagger", "MaskedLanguageModel", "TextClassifier"]
__all__ += ["SUMMARIES", "Summary", "mean_word", "root_label", "log_prior_density", "swap_attention"]
