"""Mode of the posterior of a tagger's parameters under Normal priors centred on trained ones.

Over the annotated words, and over the parameters θ that move, the log posterior is

    Σ log p(tag | words, θ) + Σ log Normal(θ; θ₀, s) + constant,    θ₀ trained, s the spread of the parameter

where p unrolls the mean field of the encoder. L-BFGS climbs it from θ₀ in coordinates z that are standard Normal under
the priors, θ = θ₀ + s z; where a gradient of z is below the tolerance, θ is about that many spreads from a mode.

A word that the tagger does not know gets a row of its own in the embedding (of a dependency CRF, unary scores of its
own), one level down: its prior is centred on the row of the unknown word, which moves, too. So words that are unknown
still, and do not occur in the annotated sentences, have what these say of unknown words.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from probtx_pyro.apps._batches import batches, channels_of
from probtx_pyro.nn import WordTagger
from probtx_pyro.nn.tasks import is_padding, own_numbers, with_numbers
from probtx_pyro.train._rows import NO_TARGET, WordRows

ROWS = "words.weight"  # of the parameters of a tagger, the embedding
TOLERANCE, MOST_STEPS = 1e-2, 100
Parameters = Mapping[str, Tensor]


class Mode(NamedTuple):
    """Mode of the log posterior.

    parameters: the tagger's that move, by name, and the embedding, which has rows for the new words.
    nats: -Σ log p(tag | words, θ) of the annotated words.
    distance: Σ z² / 2, by which the log density of the priors is below its largest.
    converged: every gradient of z is at most `TOLERANCE`.
    """

    parameters: dict[str, Tensor]
    nats: float
    distance: float
    converged: bool


def nats_of(tagger: WordTagger, parameters: Parameters, rows: WordRows) -> Tensor:
    """Return -Σ log p(tag | words) over the annotated words and the columns of tags, a scalar.

    Parameters
    ----------
    tagger, parameters
        A tagger, and those of its parameters, by name, that are to be replaced.
    rows
        Sentences; targets that are not known are `NO_TARGET`.
    """
    return sum((_nats(tagger, parameters, part) for part in _parts(tagger, rows)), start=torch.zeros(()))


def _parts(tagger: WordTagger, rows: WordRows) -> list[WordRows]:
    """Return rows of like length together, as many as there is room for at once."""
    index = batches([len(words) for words in rows.words], len(rows.words), channels_of(tagger))
    return [WordRows(*([of[i] for i in part] for of in rows)) for part in index]


def _nats(tagger: WordTagger, parameters: Parameters, rows: WordRows) -> Tensor:
    """Return what `nats_of` does, all rows at once."""
    words, targets = rows.pick(range(len(rows.words)))
    logits = functional_call(tagger, dict(parameters), (words.clamp(min=0), is_padding(words)))
    losses = (
        F.cross_entropy(x.flatten(0, 1), y.flatten(), ignore_index=NO_TARGET, reduction="sum")
        for x, y in zip(logits, targets.unbind(-1), strict=True)
    )
    return torch.stack(list(losses)).sum()


def find_mode(tagger: WordTagger, rows: WordRows, spreads: Mapping[str, float], new_words: int) -> Mode:
    """Return the mode for some annotated sentences.

    Parameters
    ----------
    tagger
        Trained tagger, in evaluation mode.
    rows
        The sentences; new words have the numbers behind those of the tagger's embedding, targets that are not known
        `NO_TARGET`.
    spreads
        Standard deviations of the priors of the parameters that move, by name. The spread of `ROWS` is that of new
        words, too; without one they have the row of the unknown word.
    new_words
        Number of new words; those that do not occur in ``rows`` have the row of the unknown word at the mode.
    """
    trained = {name: x.detach() for name, x in tagger.named_parameters()}
    numbers = [own_numbers(words, 1).contiguous() for words in rows.words]
    used = torch.cat([torch.zeros(1, dtype=torch.long), *numbers]).unique()  # 0, the unknown word, is the first of them
    new = (used >= len(trained[ROWS])).unsqueeze(-1)
    centres = {**trained, ROWS: trained[ROWS][used.masked_fill(new.squeeze(-1), 0)]}
    free = {name: torch.zeros_like(centres[name]).requires_grad_() for name in spreads}
    compact = WordRows(
        [with_numbers(words, torch.searchsorted(used, own)) for words, own in zip(rows.words, numbers, strict=True)],
        rows.targets,
    )

    def parameters() -> dict[str, Tensor]:
        moved = {name: centres[name] + spreads[name] * z for name, z in free.items()}
        if ROWS in moved:
            moved[ROWS] = moved[ROWS] + new * spreads[ROWS] * free[ROWS][:1]
        return {**centres, **moved}

    def distance() -> Tensor:
        return sum((z.square().sum() / 2 for z in free.values()), start=torch.zeros(()))

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = distance()
        value.backward()
        for part in parts:  # one graph at a time
            nats = _nats(tagger, parameters(), part)
            nats.backward()
            value = value.detach() + nats.detach()
        return value

    slope, parts = 0.0, _parts(tagger, compact)
    if free:
        optimizer = torch.optim.LBFGS(
            [*free.values()], max_iter=MOST_STEPS, tolerance_grad=TOLERANCE, tolerance_change=0.01 * TOLERANCE**2, history_size=20,
            line_search_fn="strong_wolfe",
        )  # fmt: skip
        with torch.enable_grad():
            optimizer.step(loss)  # type: ignore[arg-type]
            loss()
        slope = max(float(z.grad.abs().max()) for z in free.values() if z.grad is not None)
    with torch.no_grad():
        found = parameters()
        nats = float(nats_of(tagger, found, compact))
        table = torch.cat([trained[ROWS], found[ROWS][:1].expand(new_words, -1)]).index_copy(0, used, found[ROWS])
        return Mode(
            {**{name: found[name] for name in spreads}, ROWS: table}, nats, float(distance()), slope <= TOLERANCE
        )
