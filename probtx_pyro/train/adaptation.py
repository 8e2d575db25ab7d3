"""Adaptation of a trained tagger with a few annotated sentences: the mode of the posterior of its parameters.

The priors are Normal and centred on the trained parameters; cross-validation chooses what moves, and how far.
Over the annotated words, and over the parameters θ that move, the log posterior is

    Σ log p(tag | words, θ) + Σ log Normal(θ; θ₀, s) + constant,    θ₀ trained, s the spread of the parameter

where p unrolls the mean field of the encoder. L-BFGS climbs it from θ₀ in coordinates z that are standard Normal under
the priors, θ = θ₀ + s z; where a gradient of z is below the tolerance, θ is about that many spreads from a mode.

A word that the tagger does not know gets a row of its own in the embedding (of a dependency CRF, unary scores of its
own), one level down: its prior is centred on the row of the unknown word, which moves, too. So words that are unknown
still, and do not occur in the annotated sentences, have what these say of unknown words.
"""

import copy
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from probtx_pyro.apps._batches import batches, channels_of, require_room
from probtx_pyro.data.files import write_bytes
from probtx_pyro.data.text import Vocabulary, checked_words
from probtx_pyro.nn import DependencyCRFEncoder, WordTagger
from probtx_pyro.nn.tasks import is_padding, own_numbers, with_numbers
from probtx_pyro.ops._numerics import enable_grad
from probtx_pyro.ops._progress import progress_bar
from probtx_pyro.train.labelling import Example
from probtx_pyro.train.loop import CHECKPOINT, RESULTS, Run, new_file, require, tokens_of
from probtx_pyro.train.rows import NO_TARGET, WordRows, numbered

Tagger = Run[WordTagger, Vocabulary]
SPREADS = (0.03, 0.1, 0.3)
NOT_ANNOTATED = "_"
ROWS = "words.weight"  # of the parameters of a tagger, the embedding
TOLERANCE, MOST_STEPS = 1e-2, 100
Parameters = Mapping[str, Tensor]


class Choice(NamedTuple):
    """Names of what moves, and the standard deviation of the priors; nothing moves where there are none."""

    move: tuple[str, ...] = ()
    spread: float = 0.0


class TagScores(NamedTuple):
    """Answers of a tagger on annotated words: one row a word, in the order of the sentences,
    one column for each of tags.

    right: True where the likeliest tag is the given one.
    nats: -log p of the given tag.
    unknown: (word,) True where the vocabulary does not have the word.
    """

    right: Tensor
    nats: Tensor
    unknown: Tensor


@torch.no_grad()
def score_tagger(run: Tagger, sentences: Sequence[Example], batch: int = 64) -> TagScores:
    """Return the answers of a tagger on annotated sentences; words whose tag is not known are left out.

    Parameters
    ----------
    run
        A tagger with its words and tags, trained, adapted or loaded.
    sentences
        Sentences with tags that the tagger has, ``"_"`` where one is not known.
    batch
        Sentences at once, at most; fewer where they are long.

    Raises
    ------
    ValueError
        A sentence without words, with tags that do not fit them or the tagger, or with more words than there is room
        for.
    """
    tagger = _tagger(run)
    rows = _rows(run.labels, run.vocabulary, sentences)
    training, device = tagger.training, tagger.words.weight.device
    found: dict[int, tuple[Tensor, ...]] = {}
    lengths = [len(words) for words in rows.words]
    require_room(tagger, lengths)
    tagger.eval()
    for index in batches(lengths, batch, channels_of(tagger)):
        words, targets = (x.to(device) for x in rows.pick(index))
        logits = tagger(words.clamp(min=0), is_padding(words))
        known = targets[..., 0] != NO_TARGET
        log_probs = [x[known].log_softmax(-1) for x in logits]
        given = targets[known]
        right = torch.stack([x.argmax(-1) for x in log_probs], -1) == given
        nats = [F.nll_loss(x, y, reduction="none") for x, y in zip(log_probs, given.unbind(-1), strict=True)]
        answers = right, torch.stack(nats, -1), own_numbers(words)[known] == 0
        of_rows = zip(*(x.cpu().split(known.sum(-1).tolist()) for x in answers), strict=True)
        found.update(zip(index, of_rows, strict=True))
    tagger.train(training)
    return TagScores(*(torch.cat(x) for x in zip(*(row for _, row in sorted(found.items())), strict=True)))


def adapt_tagger(
    run: Tagger,
    sentences: Sequence[Example],
    out: str | os.PathLike[str] | None = None,
    *,
    move: str | Sequence[str] | None = None,
    spread: float | None = None,
    folds: int = 5,
    seed: int = 0,
    progress: bool | None = None,
) -> Tagger:
    """Adapt a trained tagger with a few annotated sentences: the mode under Normal priors centred on its parameters.

    Where ``move`` or ``spread`` is not given, cross-validation on the sentences chooses it, by the nats of a word held
    out: the potentials alone or everything, and one of `SPREADS`; the tagger as it is always competes. If ``words``
    move, those that the tagger does not know get rows of their own.

    Parameters
    ----------
    run
        Trained tagger.
    sentences
        Annotated sentences; ``"_"`` is a tag that is not known, unless the tagger has it.
    out
        Folder for ``checkpoint.pt``, which `load_run` reads, and ``results.json``; None writes nothing.
    move
        Names of what moves, or one name: ``"words"`` (their unary scores), ``"tags"`` (the readout), and the potentials, by
        the names of the encoder's parameters.
    spread
        Standard deviation of the priors.
    folds
        Parts of the sentences in cross-validation.
    seed
        Seed of the parts; nothing else is random.
    progress
        True shows a bar and False none; None shows it on a terminal.

    Returns
    -------
    Run
        The adapted tagger, its words and its tags; results are ``move`` and ``spread``, ``validation`` (the nats of a
        word held out under each choice), the nats of a word of the sentences ``before`` and ``after``, ``converged``,
        ``new_words``, ``seconds``.

    Raises
    ------
    ValueError
        A run that is no tagger's; an encoder without potentials where ``move`` is not given; no such part or tag; a
        spread that is not positive; too few sentences; a sentence with more words than there is room for; a folder with
        a checkpoint.
    """
    tagger = _tagger(run)
    if out is not None and (Path(out) / CHECKPOINT).exists():
        raise ValueError(f"{Path(out) / CHECKPOINT} is the checkpoint of an earlier run; choose another folder")
    require_room(tagger, [len(words) for words in checked_words("sentences", [words for words, _ in sentences])])
    begin, tagger = time.perf_counter(), copy.deepcopy(tagger).cpu().eval()
    choices = _choices(tagger, move, spread)
    fresh = sorted({word for words, _ in sentences for word in words}.difference(run.vocabulary.tokens))
    extended = run.vocabulary._replace(tokens=run.vocabulary.tokens + tuple(fresh))
    rows = _rows(run.labels, extended, sentences)
    validation: list[float] = []
    if len(choices) > 1:
        parts = _parts(len(rows.words), folds, seed)
        validation = [
            _held_out(tagger, rows, choice, len(fresh), parts)
            for choice in progress_bar(choices, label="cross-validation", progress=progress)
        ]
    chosen = choices[validation.index(min(validation))] if validation else choices[0]
    parameters, converged = find_mode(tagger, rows, _spreads(tagger, chosen), len(fresh))
    if "words" in chosen.move:
        tagger.words = torch.nn.Embedding.from_pretrained(parameters[ROWS], freeze=False)
    names = [name for part in chosen.move for name in movable(tagger)[part]]
    tagger.load_state_dict({name: parameters[name] for name in names}, strict=False)
    known = extended if "words" in chosen.move else run.vocabulary
    adapted = Run(tagger, known, run.labels, run.settings, {})
    before, after = (float(score_tagger(of, sentences).nats.sum(-1).mean()) for of in (run, adapted))
    adapted.results.update(
        sentences=len(sentences),
        words=sum(map(len, rows.words)),
        new_words=len(fresh),
        move=list(chosen.move),
        spread=chosen.spread,
        folds=folds,
        seed=seed,
        validation=[
            {"move": list(of.move), "spread": of.spread, "nats": nats}
            for of, nats in zip(choices, validation, strict=False)
        ],
        before=before,
        after=after,
        converged=converged,
        seconds=round(time.perf_counter() - begin, 1),
    )
    if out is not None:
        _save(Path(out), adapted)
    return adapted


def movable(tagger: WordTagger) -> dict[str, tuple[str, ...]]:
    """Parameters of each part of a tagger that may move: the potentials of a dependency CRF, ``words`` and ``tags``."""
    encoder = tagger.encoder
    own = [name for name, _ in encoder.named_parameters()] if isinstance(encoder, DependencyCRFEncoder) else []
    return {**{name: (f"encoder.{name}",) for name in own}, "words": (ROWS,), "tags": ("tags.weight", "tags.bias")}


def _choices(tagger: WordTagger, move: str | Sequence[str] | None, spread: float | None) -> list[Choice]:
    """Choices that cross-validation compares; one alone is taken."""
    parts, move = movable(tagger), (move,) if isinstance(move, str) else move
    if spread is not None and not 0 < spread < float("inf"):
        raise ValueError(f"spread must be positive and finite, not {spread}")
    if move is not None and (not move or not set(move) <= set(parts)):
        raise ValueError(f"move must name some of {', '.join(parts)}, not {', '.join(move) or 'nothing'}")
    if move is None and not isinstance(tagger.encoder, DependencyCRFEncoder):
        raise ValueError(f"move must be given, some of {', '.join(parts)}: there are no potentials to put priors on")
    potentials = tuple(name for name in parts if name not in ("words", "tags"))
    moves = [potentials, tuple(parts)] if move is None else [tuple(move)]
    spreads = SPREADS if spread is None else (spread,)
    found = [Choice(names, s) for names in moves for s in spreads]
    return found if len(found) == 1 else [Choice(), *found]


def _spreads(tagger: WordTagger, choice: Choice) -> dict[str, float]:
    return {name: choice.spread for part in choice.move for name in movable(tagger)[part]}


def _parts(number: int, folds: int, seed: int) -> list[list[int]]:
    """Parts of the sentences, each to be held out once."""
    if not 2 <= folds <= number:
        raise ValueError(f"folds must be from 2 to {number} (sentences), not {folds}; or give both move and spread")
    order = torch.randperm(number, generator=torch.Generator().manual_seed(seed)).tolist()
    return [order[i::folds] for i in range(folds)]


def _held_out(tagger: WordTagger, rows: WordRows, choice: Choice, new_words: int, parts: list[list[int]]) -> float:
    """Nats of a word that is held out."""
    total = 0.0
    for part in parts:
        rest = [i for i in range(len(rows.words)) if i not in part]
        parameters, _ = find_mode(tagger, rows.of(rest), _spreads(tagger, choice), new_words)
        with torch.no_grad():
            total += float(nats_of(tagger, parameters, rows.of(part)))
    return total / sum(int((targets[..., 0] != NO_TARGET).sum()) for targets in rows.targets)


def _tagger(run: Tagger) -> WordTagger:
    require("run", run, Run, "what train_tagger, adapt_tagger or load_run returns")
    if not isinstance(run.model, WordTagger):
        raise ValueError(f"the run is of a {type(run.model).__name__}; give one of probtx train tagger")
    return run.model


def _rows(tags: Sequence[Sequence[str]], vocabulary: Vocabulary, sentences: Sequence[Example]) -> WordRows:
    """Numbers of the words and of their tags; `NO_TARGET` where a tag is not known."""
    number = [{NOT_ANNOTATED: NO_TARGET, **{tag: i for i, tag in enumerate(column)}} for column in tags]
    targets = []
    for i, (words, given) in enumerate(sentences, 1):
        if len(words) != len(given) or any(len(row) != len(tags) for row in given):
            raise ValueError(f"sentence {i} has not {len(tags)} tags for each of its {len(words)} words; mend it")
        for row in given:
            for tag, column in zip(row, number, strict=True):
                if tag not in column:
                    raise ValueError(f"sentence {i} has the tag {tag!r}; the tagger has {', '.join(list(column)[1:])}")
        targets.append(torch.tensor([[of[tag] for of, tag in zip(number, row, strict=True)] for row in given]))
    if not any((row != NO_TARGET).any() for row in targets):
        raise ValueError("the sentences have no tags; annotate some of their words, or choose another column")
    return WordRows(numbered(vocabulary, [words for words, _ in sentences], "annotated"), targets)


def _save(out: Path, run: Tagger) -> None:
    """Write what `load_run` reads, and the results."""
    out.mkdir(parents=True, exist_ok=True)
    state = {"model": run.model.state_dict(), "kept": None, "settings": asdict(run.settings), "labels": run.labels}
    with new_file(out / CHECKPOINT) as new:
        torch.save({**state, **tokens_of(run.vocabulary)}, new)
    new.replace(out / CHECKPOINT)
    write_bytes(out / RESULTS, (json.dumps(run.results, indent=1) + "\n").encode())


def nats_of(tagger: WordTagger, parameters: Parameters, rows: WordRows) -> Tensor:
    """Return -Σ log p(tag | words) over the annotated words and the columns of tags, a scalar.

    Parameters
    ----------
    tagger, parameters
        A tagger, and those of its parameters, by name, that are to be replaced.
    rows
        Sentences; targets that are not known are `NO_TARGET`.
    """
    return sum((_nats(tagger, parameters, part) for part in _together(tagger, rows)), start=torch.zeros(()))


def _together(tagger: WordTagger, rows: WordRows) -> list[WordRows]:
    """Return rows of like length together, as many as there is room for at once."""
    index = batches([len(words) for words in rows.words], len(rows.words), channels_of(tagger))
    return [rows.of(part) for part in index]


def _nats(tagger: WordTagger, parameters: Parameters, rows: WordRows) -> Tensor:
    """Return what `nats_of` does, all rows at once."""
    words, targets = rows.pick(range(len(rows.words)))
    logits = functional_call(tagger, dict(parameters), (words.clamp(min=0), is_padding(words)))
    losses = (
        F.cross_entropy(x.flatten(0, 1), y.flatten(), ignore_index=NO_TARGET, reduction="sum")
        for x, y in zip(logits, targets.unbind(-1), strict=True)
    )
    return torch.stack(list(losses)).sum()


def find_mode(
    tagger: WordTagger, rows: WordRows, spreads: Mapping[str, float], new_words: int
) -> tuple[dict[str, Tensor], bool]:
    """Return the parameters at the mode for some annotated sentences, and whether it was reached.

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

    Returns
    -------
    The parameters that move, by name, and the embedding, which has rows for the new words; True where every gradient of
    z is at most `TOLERANCE`.
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

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = sum((z.square().sum() / 2 for z in free.values()), start=torch.zeros(()))
        value.backward()
        for part in parts:  # one graph at a time
            nats = _nats(tagger, parameters(), part)
            nats.backward()
            value = value.detach() + nats.detach()
        return value

    slope, parts = 0.0, _together(tagger, compact)
    if free:
        optimizer = torch.optim.LBFGS(
            [*free.values()],
            max_iter=MOST_STEPS,
            tolerance_grad=TOLERANCE,
            tolerance_change=0.01 * TOLERANCE**2,
            history_size=20,
            line_search_fn="strong_wolfe",
        )
        with enable_grad():
            optimizer.step(loss)  # type: ignore[arg-type]
            loss()
        slope = max(float(z.grad.abs().max()) for z in free.values() if z.grad is not None)
    with torch.no_grad():
        found = parameters()
        table = torch.cat([trained[ROWS], found[ROWS][:1].expand(new_words, -1)]).index_copy(0, used, found[ROWS])
    return {**{name: found[name] for name in spreads}, ROWS: table}, slope <= TOLERANCE
