"""Translation of sentences by a trained encoder-decoder, by beam search, many sentences at a time.

The beam of a problem holds the ``width`` most probable sequences that have not ended. In each step all their
continuations compete by log probability; of the best ``width``, those that end are finished, and the best ``width``
that do not end are the next beam. A problem is done with ``width`` finished sequences, or at its longest length, where
every sequence must end. Its answer is the finished sequence with the largest

    log p(y) / ((5 + n) / 6)^α,    n tokens, the end among them

(Wu et al. 2016, arXiv 1609.08144, eq. 14, without coverage).

Equal scores are ordered by place: the better origin in the beam first, then the smaller token. A width of 1 is greedy
decoding.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from probtx_pyro.apps._batches import BadRow, batches, evaluating
from probtx_pyro.data import Tokenizer
from probtx_pyro.data.text import checked_texts
from probtx_pyro.data.tokenizer import END, START, UNKNOWN_NUMBER
from probtx_pyro.nn import DecoderCache, EncoderDecoder


class Hypothesis(NamedTuple):
    """A finished sequence.

    tokens: without start and end.
    log_probability: of the tokens and the end.
    score: what it was chosen by.
    """

    tokens: tuple[int, ...]
    log_probability: float
    score: float


class State(Protocol):
    """State of a model, of a row for each sequence."""

    def rows(self, index: Tensor, /) -> Self:
        """Pick rows."""


S = TypeVar("S", bound=State)


def beam_search(
    step: Callable[[Tensor, S], tuple[Tensor, S]],
    state: S,
    longest: Sequence[int],
    *,
    width: int,
    start: int,
    end: int,
    never: Collection[int] = (),
    length_penalty: float = 0.6,
) -> list[Hypothesis]:
    """Return the best sequence that was found for each problem.

    Parameters
    ----------
    step
        From the last tokens (row,) and the state of as many rows to the log probabilities of the next tokens, (row,
        vocabulary), and the state after it.
    state
        State before the first token, of one row for each problem.
    longest
        Most tokens of each problem, the end among them.
    width
        Sequences of a beam.
    start, end
        Tokens that stand before the first and behind the last.
    never
        Tokens that no sequence has, whatever their probability.
    length_penalty
        α, not negative; 0 compares log probabilities.

    Raises
    ------
    ValueError
        A width that is less than 1, a negative α.
    """
    if width < 1:
        raise ValueError(f"width must be 1 or more, not {width}")
    if length_penalty < 0:
        raise ValueError(f"length_penalty must not be negative, not {length_penalty}")
    finished: list[list[Hypothesis]] = [[] for _ in longest]
    problems = torch.arange(len(longest))  # those that go on; a beam of each
    limits = torch.tensor(longest)
    scores = torch.full((len(longest), width), -torch.inf)
    scores[:, 0] = 0.0  # the others are copies of it, and must not win
    tokens = torch.full((len(longest) * width, 1), start)
    state = state.rows(problems.repeat_interleave(width))
    length = 0
    while len(problems):
        length += 1
        found, state = step(tokens[:, -1], state)
        added = found.float().cpu().view(len(problems), width, -1).clone()
        added[..., list(never)] = -torch.inf
        must_end = (limits[problems] == length)[:, None, None] & (torch.arange(added.shape[-1]) != end)
        following = (scores.unsqueeze(-1) + added.masked_fill(must_end, -torch.inf)).flatten(1)
        # a beam has one end for each of its sequences
        best, place = _largest(following, min(2 * width, following.shape[-1]))
        origin, token = place // added.shape[-1], place % added.shape[-1]
        ends, possible = token == end, best > -torch.inf
        for row, rank in (ends & possible)[:, :width].nonzero().tolist():
            value = float(best[row, rank])
            kept = tuple(tokens[row * width + int(origin[row, rank]), 1:].tolist())
            finished[problems[row]].append(Hypothesis(kept, value, value / ((5 + length) / 6) ** length_penalty))
        goes_on = possible & ~ends
        order = (~goes_on).int().argsort(dim=-1, stable=True)[:, :width]
        scores = best.masked_fill(~goes_on, -torch.inf).gather(-1, order)
        number = torch.tensor([len(finished[problem]) for problem in problems.tolist()])
        on = (number < width) & (scores > -torch.inf).any(-1)
        before = torch.arange(len(problems)).unsqueeze(-1) * width + origin.gather(-1, order)
        rows, problems, scores = before[on].flatten(), problems[on], scores[on]
        tokens = torch.cat([tokens[rows], token.gather(-1, order)[on].view(-1, 1)], -1)
        state = state.rows(rows)
    return [max(each, key=lambda hypothesis: hypothesis.score) for each in finished]


def _largest(scores: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return the largest scores of each row, falling, and their places: equal ones by place,
    which ``topk`` does not promise.
    """
    values, places = scores.topk(number, -1)
    least = values[:, -1:]
    # which of equal ones are in is open, too
    if (((scores >= least).sum(-1) > number) & (least[:, 0] > -torch.inf)).any():
        values, places = scores.sort(dim=-1, descending=True, stable=True)
        return values[:, :number], places[:, :number]
    places = places.sort(-1).values
    values, order = scores.gather(-1, places).sort(dim=-1, descending=True, stable=True)
    return values, places.gather(-1, order)


class Translation(NamedTuple):
    """A translation.

    text: of the target language.
    log_probability: the natural logarithm of the probability that the model gives to it, its end included.
    """

    text: str
    log_probability: float


def translate(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    *,
    beam: int = 4,
    length_penalty: float = 0.6,
    batch: int = 64,
) -> list[Translation]:
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
        One text in the place of several; a sentence of more tokens than the model takes; a beam or batch that is less
        than 1, a negative ``length_penalty``.

    Examples
    --------
    >>> from probtx_pyro import nn
    >>> tokenizer = Tokenizer.of(["go away", "geh weg"], "word", size=10)
    >>> model = nn.EncoderDecoder(len(tokenizer.tokens), 8, width=8, num_heads=2, num_layers=1)
    >>> [found] = translate(model, tokenizer, ["go"], beam=2)
    >>> found.log_probability < 0
    True
    """
    rows = [tokenizer.encode(sentence.strip()) for sentence in checked_texts("sentences", sentences)]
    for number, row in enumerate(rows, 1):
        if len(row) > model.context:
            room = f"there is room for {model.context:,} (context)"
            raise BadRow("sentence", number, f"has {len(row):,} tokens, and {room}; divide it, or train with more")
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
    never, device = (UNKNOWN_NUMBER, START), model.tokens.weight.device

    def step(tokens: Tensor, cache: DecoderCache) -> tuple[Tensor, DecoderCache]:
        logits, cache = model.step(tokens.to(device), cache)
        return logits.float().log_softmax(-1), cache

    with evaluating(model):
        for part in batches([len(row) for row in rows], batch, beam):
            words = pad_sequence([rows[i] for i in part], batch_first=True, padding_value=-1).to(device)
            cache = model.remember(words.clamp(min=0), words < 0)
            longest = [min(model.context, 2 * len(rows[i]) + 10) for i in part]
            best = beam_search(
                step, cache, longest, width=beam, start=START, end=END, never=never, length_penalty=length_penalty
            )
            for i, hypothesis in zip(part, best, strict=True):
                found[i] = hypothesis
    return found
