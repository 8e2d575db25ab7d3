"""Adaptation of a trained tagger with a few annotated sentences: priors centred on its parameters,
chosen by cross-validation.
"""

import copy
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from probtx_pyro.apps._batches import batches, channels_of, require_room
from probtx_pyro.data.files import write_bytes
from probtx_pyro.data.text import Vocabulary
from probtx_pyro.nn import DependencyCRFEncoder, WordTagger
from probtx_pyro.nn.tasks import is_padding, own_numbers
from probtx_pyro.ops._progress import progress_bar
from probtx_pyro.train._labelling import Example, TaggerRun
from probtx_pyro.train._loading import LoadedRun
from probtx_pyro.train._loop import CHECKPOINT, RESULTS, new_file
from probtx_pyro.train._mode import ROWS, find_mode, nats_of
from probtx_pyro.train._rows import NO_TARGET, WordRows, numbered

SPREADS = (0.03, 0.1, 0.3)
NOT_ANNOTATED = "_"


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
def score_tagger(run: TaggerRun | LoadedRun, sentences: Sequence[Example], batch: int = 64) -> TagScores:
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
    tagger, tags = _tagger(run)
    rows = _rows(tags, run.vocabulary, sentences)
    training, device = tagger.training, tagger.words.weight.device
    found: list[Any] = [None] * len(sentences)
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
        for i, row in zip(index, of_rows, strict=True):
            found[i] = row
    tagger.train(training)
    return TagScores(*(torch.cat(x) for x in zip(*found, strict=True)))


def adapt_tagger(
    run: TaggerRun | LoadedRun,
    sentences: Sequence[Example],
    out: Path | None = None,
    *,
    move: Sequence[str] | None = None,
    spread: float | None = None,
    folds: int = 5,
    seed: int = 0,
    progress: bool | None = None,
) -> TaggerRun:
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
        Names of what moves: ``"words"`` (their unary scores), ``"tags"`` (the readout), and the potentials, by the
        names of the encoder's parameters.
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
    tuple
        The adapted tagger, its words, its tags, and results: ``move`` and ``spread``, ``validation`` (the nats of a
        word held out under each choice), the nats of a word of the sentences ``before`` and ``after``, ``converged``,
        ``new_words``, ``seconds``.

    Raises
    ------
    ValueError
        A run that is no tagger's, or one to be saved that was not loaded; an encoder without potentials where ``move``
        is not given; no such part or tag; a spread that is not positive; too few sentences; a sentence with more words
        than there is room for; a folder with a checkpoint.
    """
    tagger, tags = _tagger(run)
    if out is not None and (Path(out) / CHECKPOINT).exists():
        raise ValueError(f"{Path(out) / CHECKPOINT} is the checkpoint of an earlier run; choose another folder")
    if out is not None and not isinstance(run, LoadedRun):
        raise ValueError(
            "out is given with a run that was not loaded; give train.load_run(folder), which has the settings"
        )
    require_room(tagger, [len(words) for words, _ in sentences])
    begin, tagger = time.perf_counter(), copy.deepcopy(tagger).cpu().eval()
    choices = _choices(tagger, move, spread)
    fresh = sorted({word for words, _ in sentences for word in words}.difference(run.vocabulary.tokens))
    extended = run.vocabulary._replace(tokens=run.vocabulary.tokens + tuple(fresh))
    rows = _rows(tags, extended, sentences)
    validation: list[float] = []
    if len(choices) > 1:
        parts = _parts(len(rows.words), folds, seed)
        validation = [
            _held_out(tagger, rows, choice, len(fresh), parts)
            for choice in progress_bar(choices, label="cross-validation", progress=progress)
        ]
    chosen = choices[validation.index(min(validation))] if validation else choices[0]
    mode = find_mode(tagger, rows, _spreads(tagger, chosen), len(fresh))
    if "words" in chosen.move:
        tagger.words = torch.nn.Embedding.from_pretrained(mode.parameters[ROWS], freeze=False)
    names = [name for part in chosen.move for name in movable(tagger)[part]]
    tagger.load_state_dict({name: mode.parameters[name] for name in names}, strict=False)
    adapted = TaggerRun(tagger, extended if "words" in chosen.move else run.vocabulary, tags, {})
    before, after = (float(score_tagger(of, sentences).nats.sum(-1).mean()) for of in (run, adapted))
    adapted.results.update({
        "sentences": len(sentences), "words": sum(map(len, rows.words)), "new_words": len(fresh),
        "move": list(chosen.move), "spread": chosen.spread, "folds": folds, "seed": seed,
        "validation": [{"move": list(c.move), "spread": c.spread, "nats": nats} for c, nats in zip(choices, validation, strict=False)],
        "before": before, "after": after, "converged": mode.converged, "seconds": round(time.perf_counter() - begin, 1),
    })  # fmt: skip
    if out is not None:
        _save(Path(out), run, adapted)
    return adapted


def movable(tagger: WordTagger) -> dict[str, tuple[str, ...]]:
    """Parameters of each part of a tagger that may move: the potentials of a dependency CRF, ``words`` and ``tags``."""
    encoder = tagger.encoder
    own = [name for name, _ in encoder.named_parameters()] if isinstance(encoder, DependencyCRFEncoder) else []
    return {**{name: (f"encoder.{name}",) for name in own}, "words": (ROWS,), "tags": ("tags.weight", "tags.bias")}


def _choices(tagger: WordTagger, move: Sequence[str] | None, spread: float | None) -> list[Choice]:
    """Choices that cross-validation compares; one alone is taken."""
    parts = movable(tagger)
    if spread is not None and not 0 < spread < float("inf"):
        raise ValueError(f"spread must be positive and finite, not {spread}")
    if move is not None and (not move or not set(move) <= set(parts)):
        raise ValueError(f"move must name some of {', '.join(parts)}, not {', '.join(move) or 'nothing'}")
    if move is None and not isinstance(tagger.encoder, DependencyCRFEncoder):
        raise ValueError(
            f"move must be given, some of {', '.join(parts)}: a {type(tagger.encoder).__name__} has no potentials to put priors on"
        )
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
        raise ValueError(
            f"folds must be from 2 to the number of sentences, {number}, not {folds}; or give both move and spread"
        )
    order = torch.randperm(number, generator=torch.Generator().manual_seed(seed)).tolist()
    return [order[i::folds] for i in range(folds)]


def _held_out(tagger: WordTagger, rows: WordRows, choice: Choice, new_words: int, parts: list[list[int]]) -> float:
    """Nats of a word that is held out."""
    total = 0.0
    for part in parts:
        rest = [i for i in range(len(rows.words)) if i not in part]
        mode = find_mode(tagger, WordRows(*([of[i] for i in rest] for of in rows)), _spreads(tagger, choice), new_words)
        with torch.no_grad():
            total += float(nats_of(tagger, mode.parameters, WordRows(*([of[i] for i in part] for of in rows))))
    return total / sum(int((targets[..., 0] != NO_TARGET).sum()) for targets in rows.targets)


def _tagger(run: TaggerRun | LoadedRun) -> tuple[WordTagger, tuple[tuple[str, ...], ...]]:
    tagger: Any = run.model
    if not isinstance(tagger, WordTagger):
        raise ValueError(f"the run is of a {type(tagger).__name__}; give one of probtx train tagger")
    return tagger, run.labels if isinstance(run, LoadedRun) else run.tags


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


def _save(out: Path, run: Any, adapted: TaggerRun) -> None:
    """Write what `load_run` reads, and the results."""
    out.mkdir(parents=True, exist_ok=True)
    state = {
        "model": adapted.model.state_dict(), "kept": None, "settings": asdict(run.settings), "text": None,
        "tokens": adapted.vocabulary.tokens, "labels": adapted.tags,
    }  # fmt: skip
    with new_file(out / CHECKPOINT) as new:
        torch.save(state, new)
    new.replace(out / CHECKPOINT)
    write_bytes(out / RESULTS, (json.dumps(adapted.results, indent=1) + "\n").encode())
