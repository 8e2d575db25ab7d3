"""Settings that the runs of all tasks on words share: an encoder of `nn.ENCODERS`, and what it reads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from probtx_pyro import nn
from probtx_pyro.train._task import COUNT, LoopSettings


@dataclass(frozen=True, kw_only=True)
class EncoderSettings(LoopSettings):
    """Settings of the tasks on words.

    encoder, options: a name of `nn.ENCODERS`, and further arguments of it; its width is ``width``.
    context: most words of a sentence, for an encoder with positions.
    rarest: how often a word must occur in training to be known.
    """

    encoder: str = "crf"
    options: Mapping[str, Any] = field(default_factory=dict)
    lr: float = 5e-3
    context: int = 256
    rarest: int = 1

    RULES = {"encoder": nn.ENCODERS, **LoopSettings.RULES, **dict.fromkeys(("context", "rarest"), COUNT)}

    def model(self, head: Callable[..., torch.nn.Module], vocabulary: int, root: bool = False, **parts: Any) -> Any:
        """Return the untrained model, the same for the same seed; the random state is left as it was.

        Parameters
        ----------
        head
            The model on the encoder: `nn.WordTagger`, `nn.MaskedLanguageModel` or `nn.TextClassifier`.
        vocabulary
            Number of words.
        root
            Whether the encoder needs a root, see `nn.Encoder`.
        parts
            Further arguments of ``head``.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            kind = nn.ENCODERS[self.encoder]
            encoder = kind.build(self.width, context=self.context, dropout=self.dropout, root=root, **self.options)
            return head(vocabulary, encoder, self.width, dropout=self.dropout, start=kind.start, **parts)
