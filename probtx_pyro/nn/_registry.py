"""Names of attention layers, encoders and summaries of texts, by which settings files,
`probtx_pyro.train` and the command line choose.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from probtx_pyro.nn._heads import Heads
from probtx_pyro.nn.attention import Attention, SoftmaxAttention
from probtx_pyro.nn.dependency_crf import DependencyCRFEncoder
from probtx_pyro.nn.gaussian_keys import GaussianKeysAttention
from probtx_pyro.nn.gaussian_mixture import GaussianMixtureAttention
from probtx_pyro.nn.hopfield import HopfieldAttention
from probtx_pyro.nn.linear import LinearKeysAttention
from probtx_pyro.nn.regression_memory import RegressionMemoryAttention
from probtx_pyro.nn.tasks import TransformerEncoder, mean_word, root_label

ATTENTIONS: Mapping[str, type[Attention]] = {
    "softmax": SoftmaxAttention,
    "gaussian": GaussianMixtureAttention,
    "gaussian-keys": GaussianKeysAttention,
    "linear-keys": LinearKeysAttention,
    "hopfield": HopfieldAttention,
    "regression-memory": RegressionMemoryAttention,
}
"""Attention layers by the name that ``probtx train`` takes: of language models,
and of the encoder ``"transformer"`` of words."""
Heads.registered = ATTENTIONS


class Encoder(NamedTuple):
    """Recipe of an encoder of words, as `TextClassifier` and the other word models use it.

    build: makes the module from its ``width``, ``context``, ``dropout``, ``root`` (True if its root will be read) and
        options.
    columns: of the module, the columns of the largest matrix that a layer or sweep multiplies the words with.
    start: standard deviation of the word embedding at the start. The unary scores of a dependency CRF must be large
        enough for its heads to learn from them; a transformer has norms, but its positions must not drown in the words.
    """

    build: Callable[..., nn.Module]
    columns: Callable[[Any], int]
    start: float


class Summary(NamedTuple):
    """Reading of a whole text, see `TextClassifier`.

    read: from the encoder, x (B, N, width) and key_padding_mask (B, N) to (B, width).
    root: True if the encoder must have a root.
    """

    read: Callable[..., Tensor]
    root: bool = False


def _crf(width: int, *, context: int, dropout: float, root: bool, **options: Any) -> nn.Module:
    return DependencyCRFEncoder(width, dropout=dropout, root_labels=width if root else 0, **options)


def _transformer(
    width: int, *, context: int, dropout: float, root: bool, attention: str = "softmax", **options: Any
) -> nn.Module:
    if root:
        raise ValueError("a transformer has no root; give the summary mean, or the encoder crf")
    if attention not in ATTENTIONS:
        raise ValueError(f"attention must be one of {', '.join(ATTENTIONS)}, not {attention!r}")
    return TransformerEncoder(width, context=context, dropout=dropout, attention=ATTENTIONS[attention], **options)


def _columns_of_crf(encoder: DependencyCRFEncoder) -> int:
    """Factors of all channels and groups are one matrix; full potentials are multiplied one by one."""
    return encoder.width if encoder.rank == "full" else 2 * encoder.num_channels * encoder.groups * encoder.rank


def _columns_of_transformer(encoder: Any) -> int:
    return encoder.layers[0].linear1.out_features


ENCODERS: dict[str, Encoder] = {
    "crf": Encoder(_crf, _columns_of_crf, 0.3),
    "transformer": Encoder(_transformer, _columns_of_transformer, 0.02),
}
"""Encoders of words by the name that ``probtx train`` takes. A transformer takes a name of `ATTENTIONS`,
``attention``, and its options."""

SUMMARIES: dict[str, Summary] = {"mean": Summary(mean_word), "root": Summary(root_label, root=True)}
"""Summaries of a text, an encoder's states to one vector, by name."""
