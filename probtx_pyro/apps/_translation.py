"""Translation of sentences by a trained encoder-decoder."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from probtx_pyro.apps._batches import BadRow, batches
from probtx_pyro.apps._beam_search import Hypothesis, beam_search
from probtx_pyro.data import Tokenizer
from probtx_pyro.data.tokenizer import END, START, UNKNOWN_NUMBER
from probtx_pyro.nn import DecoderCache, EncoderDecoder


class Translation(NamedTuple):
    """A translation.

    text: of the target language.
    log_probability: the natural logarithm of the probability that the model gives to it, its end included.
    """

    text: str
    log_probability: float


def translate(
    model: EncoderDecoder, tokenizer: Tokenizer, sentences: Sequence[str], *, beam: int = 4, length_penalty: float = 0.6,
    batch: int = 64,
) -> list[Translation]:  # fmt: skip
    """Translate sentences by beam search.

    Parameters
    ----------
    model, tokenizer
        A model and its tokens, such as those of a run.
    sentences
        Texts of the source language; an empty one has an empty translation of probability 1.
    beam
        Sequences that are followed at a time; 1 is greedy decoding.
    length_penalty
        α of ``log p / ((5 + n) / 6)^α``, by which sequences of n tokens compare; 0 compares probabilities.
    batch
        Sentences that are computed at once, at most; fewer where they are long.

    Raises
    ------
    ValueError
        A sentence of more tokens than the model takes; a beam or batch that is less than 1, a negative
        ``length_penalty``.

    Examples
    --------
    >>> from probtx_pyro import nn
    >>> tokenizer = Tokenizer.of(["go away", "geh weg"], "word", size=10)
    >>> model = nn.EncoderDecoder(len(tokenizer.tokens), 8, width=8, num_heads=2, num_layers=1)
    >>> [found] = translate(model, tokenizer, ["go"], beam=2)
    >>> found.log_probability < 0
    True
    """
    rows = [tokenizer.encode(sentence.strip()) for sentence in sentences]
    for number, row in enumerate(rows, 1):
        if len(row) > model.context:
            raise BadRow(
                "sentence", number, f"has {len(row):,} tokens, and there is room for {model.context:,} (context); divide it, or train with more"
            )  # fmt: skip
    found = translate_rows(model, rows, beam=beam, length_penalty=length_penalty, batch=batch)
    return [Translation(tokenizer.decode(each.tokens), each.log_probability) for each in found]


@torch.no_grad()
def translate_rows(
    model: EncoderDecoder, rows: Sequence[Tensor], *, beam: int, length_penalty: float, batch: int = 64
) -> list[Hypothesis]:
    """Return the best sequence for each row of source tokens (token,), sentences of like length together;
    see `translate`.

    A target has at most ten tokens more than twice those of its source, and no more than the model takes.
    """
    found = [Hypothesis((), 0.0, 0.0)] * len(rows)
    training, device = model.training, model.tokens.weight.device

    def step(tokens: Tensor, cache: DecoderCache) -> tuple[Tensor, DecoderCache]:
        logits, cache = model.step(tokens.to(device), cache)
        return logits.float().log_softmax(-1), cache

    model.eval()
    try:
        for part in batches([len(row) for row in rows], batch, beam):
            words = pad_sequence([rows[i] for i in part], batch_first=True, padding_value=-1).to(device)
            cache = model.remember(words.clamp(min=0), words < 0)
            longest = [min(model.context, 2 * len(rows[i]) + 10) for i in part]
            best = beam_search(
                step, cache, longest, width=beam, start=START, end=END, never=(UNKNOWN_NUMBER, START),
                length_penalty=length_penalty,
            )  # fmt: skip
            for i, hypothesis in zip(part, best, strict=True):
                found[i] = hypothesis
    finally:
        model.train(training)
    return found
