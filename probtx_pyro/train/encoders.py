"""The encoders that the tasks on words can have, and the settings that their runs share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probtx_pyro import nn
from probtx_pyro.nn.tasks import TransformerEncoder, mean_word, root_label
from probtx_pyro.train.task import LoopSettings


class Encoder(NamedTuple):
    """How an encoder is made and read.

    build: the module, from ``width``, ``context``, ``dropout``, ``root`` (whether `summary` will be asked for) and its options.
    summary: of a whole text, see `TextClassifier`.
    start: standard deviation of the word embedding at the start. Unary scores must say something for heads to learn from them;
        a transformer has norms, but positions to see beside the words.
    """

    build: Callable[..., torch.nn.Module]
    summary: Callable[..., Tensor]
    start: float


def _transformer(width: int, *, context: int, dropout: float, root: bool, **options: Any) -> torch.nn.Module:
    return TransformerEncoder(width, context=context, dropout=dropout, **options)


def _crf(width: int, *, context: int, dropout: float, root: bool, **options: Any) -> torch.nn.Module:
    return nn.DependencyCRFEncoder(width, dropout=dropout, root_labels=width if root else 0, **options)


ENCODERS = {"crf": Encoder(_crf, root_label, 0.3), "transformer": Encoder(_transformer, mean_word, 0.02)}


@dataclass(frozen=True, kw_only=True)
class EncoderSettings(LoopSettings):
    """What the runs of all tasks on words have.

    encoder, options: a name of `ENCODERS`, and further arguments of it; its width is ``width``.
    context: most words of a sentence, for an encoder with positions.
    rarest: how often a word must occur in training to be known.
    """

    encoder: str = "crf"
    options: Mapping[str, Any] = field(default_factory=dict)
    lr: float = 5e-3
    context: int = 256
    rarest: int = 1

    def __post_init__(self) -> None:
        if self.encoder not in ENCODERS:
            raise ValueError(f"encoder must be one of {', '.join(ENCODERS)}, not {self.encoder!r}")
        super().__post_init__()
        self.check_counts("context", "rarest")

    def model(self, head: Callable[..., torch.nn.Module], vocabulary: int, root: bool = False, **parts: Any) -> Any:
        """The untrained model with this head on it, the same for the same seed; the random state is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            kind = ENCODERS[self.encoder]
            encoder = kind.build(self.width, context=self.context, dropout=self.dropout, root=root, **self.options)
            return head(vocabulary, encoder, self.width, dropout=self.dropout, start=kind.start, **parts)


__all__ = ["ENCODERS", "Encoder", "EncoderSettings"]
