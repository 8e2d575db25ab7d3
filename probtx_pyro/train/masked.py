"""Masked language models of words: some words of a row are hidden and predicted from the others."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probtx_pyro.apps._batches import room_of
from probtx_pyro.data import Text, Vocabulary
from probtx_pyro.nn import MaskedLanguageModel
from probtx_pyro.train import loop
from probtx_pyro.train.loop import Batch, EncoderSettings, Processes, Run, RunOptions, Task, train_task, unknown_share
from probtx_pyro.train.rows import NO_TARGET, PADDING, WordRows, answers, drawn_rows

# from a text to the pieces that are cut into rows
ROWS: dict[str, Callable[[str], list[str]]] = {
    "fixed": lambda text: [text],
    "sentence": lambda text: [line for line in text.split("\n") if line.strip()],
}


@dataclass(frozen=True, kw_only=True)
class MaskedSettings(EncoderSettings):
    """Settings of a masked language model.

    rows: ``"fixed"``, ``context`` words side by side; or ``"sentence"``, the lines of the text (cut at ``context``
    words).
    mask: the share of the words of a row that are hidden, at least one.
    """

    rows: str = "fixed"
    mask: float = 0.15
    context: int = 64

    RULES = {
        **EncoderSettings.RULES,
        "rows": ROWS,
        "mask": (lambda value: 0 < value < 1, "more than 0 and less than 1"),
    }

    def model(self, words: int, labels: Sequence[int] = ()) -> MaskedLanguageModel:
        """The untrained model, from the number of words."""
        return self.with_head(MaskedLanguageModel, words)


def hidden(words: Tensor, share: float, draw: torch.Generator) -> Tensor:
    """Choose the words of each row that are hidden: True at ``share`` of them, rounded, at least one; at padding never.

    Parameters
    ----------
    words
        (row, word) numbers, `PADDING` behind the last of a row.
    share
        Share of the words of a row.
    draw
        Random numbers of the step.
    """
    real = words != PADDING
    chance = torch.rand(words.shape, generator=draw).masked_fill(~real, torch.inf)
    number = (share * real.sum(-1, keepdim=True)).round().clamp(min=1)
    return chance.argsort(-1).argsort(-1) < number


def train_masked_language_model(
    settings: MaskedSettings, text: Text, out: str | os.PathLike[str] | None = None, **run: Unpack[RunOptions]
) -> Run[MaskedLanguageModel, Vocabulary]:
    """Train a masked language model of the words between spaces.

    Parameters
    ----------
    settings, text
        Settings of the run, and its text.
    out, run
        As in `train_language_model`.

    Returns
    -------
    The run; losses are nats a hidden word, ``perplexity`` is of the hidden words of the validation part, which are
    chosen once for a seed, as are those of the test part.

    Raises
    ------
    ValueError
        A text without words or with fewer rows than a batch, rows of more words than there is room for, and as in
        `train_language_model`.
    """
    loop.require("settings", settings, MaskedSettings, "train.MaskedSettings(...)")
    loop.require("text", text, Text, "data.Text(training, validation), or data.load_text(path)")
    vocabulary = Vocabulary.of(text.training, "word", settings.rarest)
    rows_of = {
        name: [
            row for piece in vocabulary.encode_each(ROWS[settings.rows](part)) for row in piece.split(settings.context)
        ]
        for name, part in text._asdict().items()
        if part or name != "test"
    }
    for name, part in rows_of.items():
        if not sum(map(len, part)):
            raise ValueError(f"the {name} text has no words; give a longer text")
    training = rows_of.pop("training")
    rows = WordRows(training, training)
    drawn = drawn_rows(rows, settings)
    model = settings.model(len(vocabulary.tokens))
    longest = max(len(row) for part in (training, *rows_of.values()) for row in part)
    if longest > (most := room_of(model)):
        raise ValueError(f"context must be at most {most}, for which there is room: a row has {longest} words")

    def masked(words: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        where = hidden(words, settings.mask, draw)
        return words.masked_fill(where, model.mask), words.masked_fill(~where, NO_TARGET)

    def questions(rows: list[Tensor]) -> WordRows:
        draw = settings.draw(-1)
        pairs = [masked(words[None], draw) for words in rows]
        return WordRows([words[0] for words, _ in pairs], [targets[0] for _, targets in pairs])

    asked_of = {name: questions(part) for name, part in rows_of.items()}

    def batch(step: int) -> Batch:
        words, targets = masked(rows.pick(drawn(step).tolist())[0], settings.draw(step))
        return (words, targets), int((targets != NO_TARGET).sum())

    def loss(model: nn.Module, words: Tensor, targets: Tensor, reduction: str = "sum") -> Tensor:
        at = targets != NO_TARGET
        logits = model(words.clamp(min=0), words == PADDING, at)
        return F.cross_entropy(logits, targets[at], reduction=reduction)

    def row_losses(model: nn.Module, words: Tensor, targets: Tensor) -> Tensor:
        row = (targets != NO_TARGET).nonzero()[:, 0]
        losses = loss(model, words, targets, "none").float()
        return losses.new_zeros(len(words)).index_add(0, row, losses)

    def evaluate(model: nn.Module, part: str, fabric: Processes) -> dict[str, float]:
        asked = asked_of[part]
        total = answers(model, asked, fabric, row_losses, torch.zeros(len(asked.words), dtype=torch.float64)).sum()
        number = sum(int((targets != NO_TARGET).sum()) for targets in asked.targets)
        return {"perplexity": float((total / number).exp())}  # infinite, where math.exp would overflow

    task = Task(
        label=settings.encoder,
        settings=settings,
        model=model,
        texts=text,
        vocabulary=vocabulary,
        words=settings.context,
        batch=batch,
        loss=loss,
        evaluate=evaluate,
        validated="validation",
        unknown={name: unknown_share(part) for name, part in rows_of.items()},
    )
    return train_task(task, out, **run)
