"""Parts of a task that the training loop needs, and the settings that the runs of all tasks have,
or of all tasks on words.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn

from probtx_pyro.nn import ENCODERS
from probtx_pyro.nn.tasks import own_numbers

# of a setting: when it holds, and what it must be in words; or the names that it chooses among
Rule = tuple[Callable[[Any], bool], str] | Mapping[str, Any]
Batch = tuple[tuple[Tensor, ...], int]
COUNT: Rule = (lambda value: value >= 1, "1 or more")


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """Settings that the runs of all tasks have; two runs with equal settings and data give equal numbers.

    num_steps, batch: AdamW steps, rows of a batch over all processes.
    width, dropout: channels of the model, dropout rate.
    lr, warmup, weight_decay, clip: peak learning rate, the share of the steps that it rises over (it then falls by a
    cosine to a
        tenth), AdamW's weight decay, largest norm of a gradient.
    validate_every: steps between validations; the last step validates in any case.
    seed: of weights, batches and dropout.

    ``RULES`` has what the settings of a class must be.
    """

    num_steps: int = 2000
    batch: int = 32
    width: int = 128
    dropout: float = 0.0
    lr: float = 2e-3
    warmup: float = 0.05
    weight_decay: float = 0.05
    clip: float = 1.0
    validate_every: int = 500
    seed: int = 0

    RULES: ClassVar[Mapping[str, Rule]] = {
        **dict.fromkeys(("num_steps", "batch", "width", "validate_every"), COUNT),
        "dropout": (lambda value: 0 <= value < 1, "at least 0 and less than 1"),
        **dict.fromkeys(("lr", "clip"), (lambda value: value > 0, "positive")),
    }

    def __post_init__(self) -> None:
        for name, rule in self.RULES.items():
            holds, words = rule if isinstance(rule, tuple) else (rule.__contains__, f"one of {', '.join(rule)}")
            if not holds(getattr(self, name)):
                raise ValueError(f"{name} must be {words}, not {getattr(self, name)!r}")

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        rise = max(1, round(self.warmup * self.num_steps))
        if step < rise:
            return self.lr * (step + 1) / rise
        return self.lr * (0.55 + 0.45 * math.cos(math.pi * (step - rise) / max(1, self.num_steps - rise)))

    def columns(self) -> int:
        """Columns of the largest matrix that a layer of the model multiplies the tokens of a batch with."""
        return 4 * self.width

    def draw(self, step: int) -> torch.Generator:
        """The random numbers of a step."""
        return torch.Generator().manual_seed(self.seed * 1_000_003 + step)


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

    RULES = {"encoder": ENCODERS, **LoopSettings.RULES, **dict.fromkeys(("context", "rarest"), COUNT)}

    def columns(self) -> int:
        """Columns of the largest matrix that a layer or sweep of the encoder multiplies the words of a batch with."""
        kind = ENCODERS[self.encoder]
        with torch.random.fork_rng(devices=[]):
            return kind.columns(kind.build(self.width, context=1, dropout=0.0, root=False, **self.options))

    def model(self, head: Callable[..., nn.Module], vocabulary: int, root: bool = False, **parts: Any) -> Any:
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
            kind = ENCODERS[self.encoder]
            encoder = kind.build(self.width, context=self.context, dropout=self.dropout, root=root, **self.options)
            return head(vocabulary, encoder, self.width, dropout=self.dropout, start=kind.start, **parts)


@dataclass(frozen=True)
class Task:
    """Parts of a task that the loop needs.

    label: on the progress bar.
    settings, model: the settings, and the untrained model.
    texts: what the run reads; a checkpoint has its digest.
    tokens, labels, tokenizer: the tokens that the model knows, the labels of each of its outputs, and the text of the
    tokenizer where
        there is one, kept in the checkpoint.
    batch: from a step to its batch, as drawn, whole: tensors, the first axis of each the rows, which the processes
    share; and how
        many predictions the loss is summed over. A function of the seed and the step.
    loss: from the model and a share of the tensors of a batch, the sum of the losses of its targets.
    evaluate: from the model, the name of a part of the data and Fabric, the metrics of the whole part.
    metric, validated: the names of the metric that is validated by, and of the part.
    keep_best: keeps the parameters of the validation with the largest metric, else the last.
    parts: the parts whose metrics under the kept parameters go to the results when the run is done.
    score: in the place of ``evaluate`` for these, where they have metrics that take too long to validate by.
    ready: called with the model when it is on its device.
    log_prior_density: of the parameters, divided by the number of targets in the training part; added to the objective.
    unknown: share of the words of each other part of the data that the training part does not have.
    """

    label: str
    settings: LoopSettings
    model: nn.Module
    texts: Iterable[str]
    tokens: tuple[str, ...]
    batch: Callable[[int], Batch]
    loss: Callable[..., Tensor]
    evaluate: Callable[[Any, str, Any], Mapping[str, float]]
    metric: str
    validated: str = "dev"
    keep_best: bool = False
    parts: tuple[str, ...] = ()
    labels: tuple[tuple[str, ...], ...] = ()
    tokenizer: str | None = None
    score: Callable[[Any, str, Any], Mapping[str, Any]] | None = None
    ready: Callable[[nn.Module], None] = lambda model: None
    log_prior_density: Callable[[nn.Module], Tensor | float] = lambda model: 0.0
    unknown: Mapping[str, float] = field(default_factory=dict)


class RunOptions(TypedDict, total=False):
    """Options of a run that every training function passes on to the loop; `train_language_model` explains them."""

    resume: bool
    device: str
    precision: str
    checkpoint_every: int
    stop_after: int | None
    progress: bool | None


def unknown_share(rows: Sequence[Tensor]) -> float:
    """Share of the words of all rows that are unknown, from their numbers."""
    return float(torch.cat([own_numbers(row, 1) for row in rows]).eq(0).double().mean())
