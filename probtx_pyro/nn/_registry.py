"""Names of the attention layers and of the encoders, by which settings files, `probtx_pyro.train` and the command line choose them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from probtx_pyro.nn.attention import Attention
from probtx_pyro.nn.dependency_crf import DependencyCRFEncoder
from probtx_pyro.nn.gaussian_keys import GaussianKeysAttention
from probtx_pyro.nn.gaussian_mixture import GaussianMixtureAttention
from probtx_pyro.nn.hopfield import HopfieldAttention
from probtx_pyro.nn.linear import LinearKeysAttention
from probtx_pyro.nn.softmax import SoftmaxAttention
from probtx_pyro.nn.tasks import TransformerEncoder, mean_word, root_label

ATTENTIONS: Mapping[str, type[Attention]] = {
    "softmax": SoftmaxAttention,
    "gaussian": GaussianMixtureAttention,
    "gaussian-keys": GaussianKeysAttention,
    "linear-keys": LinearKeysAttention,
    "hopfield": HopfieldAttention,
}


class Encoder(NamedTuple):
    """Recipe of an encoder of words, as `TextClassifier` and the other word models use it.

    build: makes the module from its ``width``, ``context``, ``dropout``, ``root`` (True if `summary` will be asked for) and options.
    columns: of the module, the columns of the largest matrix that a layer or sweep multiplies the words with.
    summary: reads the whole text, see `TextClassifier`.
    start: standard deviation of the word embedding at the start. The unary scores of a dependency CRF must be large enough for
        its heads to learn from them; a transformer has norms, but its positions must not drown in the words.
    """

    build: Callable[..., nn.Module]
    columns: Callable[[Any], int]
    summary: Callable[..., Tensor]
    start: float


def _crf(width: int, *, context: int, dropout: float, root: bool, **options: Any) -> nn.Module:
    return DependencyCRFEncoder(width, dropout=dropout, root_labels=width if root else 0, **options)


def _transformer(width: int, *, context: int, dropout: float, root: bool, **options: Any) -> nn.Module:
    return TransformerEncoder(width, context=context, dropout=dropout, **options)


def _columns_of_crf(encoder: DependencyCRFEncoder) -> int:
    """Factors of all channels and groups are one matrix; full potentials are multiplied one by one."""
    return encoder.width if encoder.rank == "full" else 2 * encoder.num_channels * encoder.groups * encoder.rank


def _columns_of_transformer(encoder: TransformerEncoder) -> int:
    return encoder.layers.layers[0].linear1.out_features


ENCODERS: Mapping[str, Encoder] = {
    "crf": Encoder(_crf, _columns_of_crf, root_label, 0.3),
    "transformer": Encoder(_transformer, _columns_of_transformer, mean_word, 0.02),
}
