"""Translation with any attention layer: an encoder-decoder on sentence pairs, scored by BLEU."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from probtx_pyro import nn
from probtx_pyro._lazy import install_advice
from probtx_pyro.apps._translation import translate_rows
from probtx_pyro.data import Splits, Tokenizer
from probtx_pyro.data.pairs import Pair
from probtx_pyro.data.tokenizer import END, LEVELS, START
from probtx_pyro.train import loop
from probtx_pyro.train.rows import NO_TARGET, PADDING, WordRows, answers, drawn_rows


@dataclass(frozen=True, kw_only=True)
class TranslationSettings(loop.TransformerSettings):
    """Settings of a translation model, beside those of every run and of every transformer, encoder and decoder alike.

    level, vocabulary: ``"subword"`` or ``"word"`` tokens, and most of them; both languages share them.
    smoothing: of the labels: the share of a target's probability that is spread over the vocabulary in training.
    beam, length_penalty: of the search for translations that BLEU scores, see `apps.translate`.
    """

    level: str = "subword"
    vocabulary: int = 4000
    context: int = 64
    layers: int = 3
    smoothing: float = 0.1
    beam: int = 4
    length_penalty: float = 0.6
    batch: int = 128
    lr: float = 1e-3
    dropout: float = 0.1

    KIND = nn.EncoderDecoder
    RULES = {
        **{"level": LEVELS, **loop.TransformerSettings.RULES, "vocabulary": loop.COUNT, "beam": loop.COUNT},
        "smoothing": (lambda value: 0 <= value < 1, "at least 0 and less than 1"),
        "length_penalty": (lambda value: value >= 0, "0 or more"),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocabulary < (least := LEVELS[self.level].least):
            raise ValueError(f"vocabulary must be {least} or more for the level {self.level}, not {self.vocabulary}")


def train_translation(
    settings: TranslationSettings,
    pairs: Splits[Pair],
    out: str | os.PathLike[str] | None = None,
    **run: Unpack[loop.RunOptions],
) -> loop.Run[nn.EncoderDecoder, Tokenizer]:
    """Train a translation model; under ``torchrun``, one share of every batch on each process.

    Parameters
    ----------
    settings, pairs
        Settings of the run, and its sentence pairs.
    out, run
        As in `train_language_model`.

    Returns
    -------
    The run; losses are with smoothed labels, and ``metrics`` of dev and, where there is one, test are ``BLEU`` of the
    distinct source sentences with all their translations as references, ``perplexity`` of a token, and ``signature`` of
    BLEU.

    Raises
    ------
    ValueError
        A sentence of more tokens than ``context``, a part without pairs, fewer pairs than a batch, and as in
        `train_language_model`.
    ModuleNotFoundError
        Lightning, tokenizers or sacreBLEU is not installed.
    """
    loop.require("settings", settings, TranslationSettings, "train.TranslationSettings(...)")
    loop.require(
        "pairs", pairs, Splits, "data.Splits(train, dev, test) of data.Pair(source, target), or data.load_pairs(path)"
    )
    _bleu()  # missing, it would be missed after training only
    for part in ("train", "dev"):
        if not getattr(pairs, part):
            raise ValueError(f"the {part} part has no pairs; give some")
    tokenizer = Tokenizer.of((text for pair in pairs.train for text in pair), settings.level, settings.vocabulary)
    rows = {part: _rows(tokenizer, items, part, settings.context) for part, items in pairs._asdict().items() if items}
    return loop.train_task(_task(settings, pairs, tokenizer, rows), out, **run)


def _rows(tokenizer: Tokenizer, pairs: Sequence[Pair], part: str, context: int) -> WordRows:
    """Return source tokens, and target tokens with the end behind them."""
    end = torch.tensor([END])
    rows = WordRows(
        [tokenizer.encode(pair.source) for pair in pairs],
        [torch.cat([tokenizer.encode(pair.target), end]) for pair in pairs],
    )
    lengths = [max(len(source), len(target)) for source, target in zip(*rows, strict=True)]
    if max(lengths) > context:
        i = lengths.index(max(lengths))
        raise ValueError(f"context must be {lengths[i]} or more for pair {i + 1} of the {part} part, or drop the pair")
    return rows


def _task(
    settings: TranslationSettings, pairs: Splits[Pair], tokenizer: Tokenizer, rows: Mapping[str, WordRows]
) -> loop.Task:
    """Return the task: every target token, the end among them,
    is predicted from the source and the target before it.
    """
    drawn = drawn_rows(rows["train"], settings)

    def batch(step: int) -> loop.Batch:
        source, target = rows["train"].pick(drawn(step).tolist())
        return (source, target), int((target != NO_TARGET).sum())

    def losses(model: torch.nn.Module, source: Tensor, target: Tensor, **how: Any) -> Tensor:
        before = F.pad(target[:, :-1], (1, 0), value=START).clamp(min=0)
        logits = model(source.clamp(min=0), before, source == PADDING).flatten(0, 1)
        return F.cross_entropy(logits.float(), target.flatten(), ignore_index=NO_TARGET, **how)

    def loss(model: torch.nn.Module, source: Tensor, target: Tensor) -> Tensor:
        return losses(model, source, target, reduction="sum", label_smoothing=settings.smoothing)

    def row_losses(model: torch.nn.Module, source: Tensor, target: Tensor) -> Tensor:
        return losses(model, source, target, reduction="none").view(target.shape).sum(-1)

    def evaluate(model: torch.nn.Module, part: str, fabric: loop.Processes) -> dict[str, float]:
        total = answers(
            model, rows[part], fabric, row_losses, torch.zeros(len(pairs._asdict()[part]), dtype=torch.double)
        )
        return {"perplexity": float((total.sum() / sum(map(len, rows[part].targets))).exp())}

    def score(model: Any, part: str, fabric: loop.Processes) -> dict[str, float | str]:
        references: dict[str, list[str]] = {}
        for source, target in getattr(pairs, part):
            references.setdefault(source, []).append(target)
        found = _translated(model.module, tokenizer, list(references), settings, fabric)
        bleu, signature = bleu_score(found, list(references.values()))
        return {"BLEU": bleu, "perplexity": evaluate(model, part, fabric)["perplexity"], "signature": signature}

    others = {part: of for part, of in rows.items() if part != "train"}
    return loop.Task(
        label=settings.attention,
        settings=settings,
        model=settings.model(len(tokenizer.tokens)),
        texts=(text for part in pairs for pair in part for text in pair),
        vocabulary=tokenizer,
        words=fmean(len(pair.target.split()) for pair in pairs.train),
        batch=batch,
        loss=loss,
        evaluate=evaluate,
        score=score,
        unknown={part: loop.unknown_share([*of.words, *of.targets]) for part, of in others.items()},
    )


def _translated(
    model: nn.EncoderDecoder,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    settings: TranslationSettings,
    fabric: loop.Processes,
) -> list[str]:
    """Return the translations of sentences, a share of them by each process."""
    own = range(fabric.global_rank, len(sentences), fabric.world_size)
    tokens = torch.zeros(len(sentences), settings.context, dtype=torch.long)  # 0, the unknown token, is never in one
    rows = [tokenizer.encode(sentences[i]) for i in own]
    best = translate_rows(model, rows, beam=settings.beam, length_penalty=settings.length_penalty)
    for i, hypothesis in zip(own, best, strict=True):
        tokens[i, : len(hypothesis.tokens)] = torch.tensor(hypothesis.tokens, dtype=torch.long)
    return [tokenizer.decode(row[row > 0]) for row in loop.summed(fabric, tokens)]


def bleu_score(translations: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """Return corpus BLEU, from 0 to 100, by sacreBLEU (Post 2018) with its defaults, and its signature.

    Parameters
    ----------
    translations
        One text for each sentence.
    references
        One or more for each sentence.
    """
    most = max(map(len, references))
    streams = [[each[i] if i < len(each) else None for each in references] for i in range(most)]
    metric = _bleu()
    score = metric.corpus_score(list(translations), streams).score
    return score, str(metric.get_signature())


def _bleu() -> Any:
    try:
        from sacrebleu.metrics import BLEU
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"BLEU needs sacrebleu: {install_advice('train')}") from None
    return BLEU()
