"""Use of trained models of words: text that goes on, words that are missing, tags of words, categories of texts."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from probtx_pyro.apps._batches import BadRow, batches, channels_of, evaluating, require_room
from probtx_pyro.data import Vocabulary, tokenize
from probtx_pyro.data.text import checked_texts, checked_words
from probtx_pyro.nn import MaskedLanguageModel, TextClassifier, TransformerLM, WordTagger
from probtx_pyro.nn.tasks import WordModel, is_padding

HIDDEN = "[MASK]"
"""Stands for a word that `fill_masked` guesses."""

Rows: TypeAlias = Sequence[Sequence[str]]
Best: TypeAlias = torch.return_types.max | torch.return_types.sort | torch.return_types.topk
BREAKS = {"char": "\n", "word": "<eos>"}  # the end of a line


class Guess(NamedTuple):
    """A label or word, and its probability.

    label: its name.
    probability: between 0 and 1.
    """

    label: str
    probability: float


def generate(
    model: TransformerLM,
    vocabulary: Vocabulary,
    prompt: str = "",
    *,
    num_tokens: int = 200,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> Iterator[str]:
    """Yield the tokens with which a language model goes on, one after another, drawn from ``p(token | those before)``.

    The model sees the last ``context`` tokens. The token that stands for all unknown ones is never drawn. Joined by
    nothing (characters) or by spaces (words) the tokens are the text; ``<eos>`` is the end of a line of words.

    Parameters
    ----------
    model, vocabulary
        A language model and its tokens, such as those of a run.
    prompt
        Text to go on from; an empty one stands for the end of a line.
    num_tokens
        How many tokens.
    temperature
        The logits are divided by it; 0 takes the most probable token.
    top_p
        Tokens are drawn from the fewest most probable ones that together have this probability.
    seed
        Seed of the draws, which do not depend on the global random state.

    Raises
    ------
    ValueError
        A temperature below 0, ``top_p`` outside (0, 1], no prompt where the model has no end of a line.

    Examples
    --------
    >>> from probtx_pyro import nn
    >>> model = nn.TransformerLM(3, 8, width=8, num_heads=2, num_layers=1)
    >>> len("".join(generate(model, Vocabulary("char", ("?", "a", "b")), "ab", num_tokens=20)))
    20
    """
    if temperature < 0:
        raise ValueError(f"temperature must not be negative, not {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be more than 0 and at most 1, not {top_p}")
    known = vocabulary.encode(prompt or BREAKS[vocabulary.level])
    if not prompt and not known.any():
        raise ValueError("the model knows no end of a line to start from; give a prompt")
    tokens, draw = known.tolist(), torch.Generator().manual_seed(seed)

    def drawn() -> Iterator[str]:
        for _ in range(num_tokens):
            logits = _called(model, torch.tensor([tokens[-model.context :]]))[0][0, -1]
            logits[0] = -torch.inf  # unknown
            if temperature == 0:
                token = int(logits.argmax())
            else:
                token = int(torch.multinomial(_nucleus((logits / temperature).softmax(-1), top_p), 1, generator=draw))
            tokens.append(token)
            yield vocabulary.tokens[token]

    return drawn()


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Return (token,) probabilities, zero but for the fewest most probable that have ``top_p`` together;
    not normalised.
    """
    ordered, index = probabilities.sort(descending=True, stable=True)
    ordered[ordered.cumsum(-1) - ordered >= top_p] = 0.0  # those before it have enough
    return torch.zeros_like(probabilities).scatter(-1, index, ordered)


def tag_words(
    model: WordTagger, vocabulary: Vocabulary, labels: Rows, sentences: Rows, batch: int = 32
) -> list[list[tuple[Guess, ...]]]:
    """Return the most probable tag of every word of every sentence, one `Guess` for each column of tags.

    Parameters
    ----------
    model, vocabulary, labels
        A tagger, its words, and the tags of each column, such as those of a run.
    sentences
        Words of each sentence; one without words has no tags.
    batch
        Sentences that are computed at once, at most; fewer where they are long.

    Raises
    ------
    ValueError
        A text in the place of words; more words in a sentence than the model takes, or than the machine has room for.
    """
    sentences = checked_words("sentences", sentences)
    labels = checked_words("labels", labels, "give those of each column, as in [['NOUN', 'VERB']]")
    found: list[list[tuple[Guess, ...]]] = [[] for _ in sentences]
    for index, words in _batches(model, vocabulary, sentences, batch):
        columns = [_guesses(x.softmax(-1).max(-1), tags) for x, tags in zip(_asked(model, words), labels, strict=True)]
        for row, i in enumerate(index):
            found[i] = list(zip(*(column[row][: len(sentences[i])] for column in columns), strict=True))
    return found


def classify_texts(
    model: TextClassifier, vocabulary: Vocabulary, labels: Sequence[str], texts: Sequence[str], batch: int = 32
) -> list[list[Guess]]:
    """Return all categories of each text, the most probable first.

    Parameters
    ----------
    model, vocabulary, labels
        A classifier, its words, and its categories, such as those of a run.
    texts
        Read as `data.tokenize` does, which knows the words of the vocabulary; one without words has no categories.
    batch
        Texts that are computed at once, at most; fewer where they are long.

    Raises
    ------
    ValueError
        One text in the place of several; more words in a text than the model takes, or than the machine has room for.
    """
    known = frozenset(vocabulary.tokens)
    rows = [tokenize(text, known) for text in checked_texts("texts", texts)]
    found: list[list[Guess]] = [[] for _ in rows]
    for index, words in _batches(model, vocabulary, rows, batch, "text"):
        ordered = _asked(model, words)[0].softmax(-1).sort(dim=-1, descending=True, stable=True)
        for i, guesses in zip(index, _guesses(ordered, labels), strict=True):
            found[i] = guesses
    return found


def fill_masked(
    model: MaskedLanguageModel, vocabulary: Vocabulary, sentences: Rows, top: int = 5, batch: int = 32
) -> list[list[list[Guess]]]:
    """Return the most probable words at each ``[MASK]`` of each sentence, the most probable first.

    Several hidden words of a sentence are guessed each by itself, all of them hidden. The token of unknown words is no
    guess.

    Parameters
    ----------
    model, vocabulary
        A masked language model and its words, such as those of a run.
    sentences
        Words of each sentence; one without words has no guesses.
    top
        How many guesses.
    batch
        Sentences that are computed at once, at most; fewer where they are long.

    Raises
    ------
    ValueError
        A text in the place of words; a sentence without a hidden word, or with more words than the model takes or the
        machine has room for.
    """
    sentences = checked_words("sentences", sentences)
    for number, sentence in enumerate(sentences, 1):
        if sentence and HIDDEN not in sentence:
            raise BadRow("sentence", number, f"has no {HIDDEN}; write it in the place of the words to guess")
    found: list[list[list[Guess]]] = [[] for _ in sentences]
    for index, words in _batches(model, vocabulary, sentences, batch):
        for row, i in enumerate(index):
            hidden = [word == HIDDEN for word in sentences[i]]
            words[row, : len(hidden)].masked_fill_(torch.tensor(hidden), model.mask)
        at = words == model.mask
        (logits,) = _asked(model, words, at)
        logits[:, 0] = -torch.inf
        best = logits.softmax(-1).topk(min(top, logits.shape[-1] - 1))
        guesses = iter(_guesses(best, vocabulary.tokens))
        for row, i in enumerate(index):
            found[i] = [next(guesses) for _ in range(int(at[row].sum()))]
    return found


def _batches(
    model: WordModel, vocabulary: Vocabulary, sentences: Rows, batch: int, kind: str = "sentence"
) -> Iterator[tuple[list[int], Tensor]]:
    """Yield numbers of sentences of like length and their words (sentence, word), -1 behind the last."""
    lengths = [len(words) for words in sentences]
    require_room(model, lengths, kind)
    for index in batches(lengths, batch, channels_of(model)):
        yield index, pad_sequence(vocabulary.numbers(sentences[i] for i in index), batch_first=True, padding_value=-1)


def _asked(model: nn.Module, words: Tensor, *at: Tensor) -> list[Tensor]:
    """Call a model of words on (sentence, word) with -1 at padding, and on the places ``at``."""
    return _called(model, words.clamp(min=0), is_padding(words), *at)


@torch.no_grad()
def _called(model: nn.Module, *given: Tensor) -> list[Tensor]:
    """Return what a model says in evaluation mode, on the CPU, in float64."""
    device = next(model.parameters()).device
    with evaluating(model):
        said = model(*(x.to(device) for x in given))
    return [x.double().cpu() for x in (said if isinstance(said, tuple) else (said,))]


def _guesses(best: Best, names: Sequence[str]) -> list[list[Guess]]:
    """Name the labels of probabilities (row, rank)."""
    pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
    return [[Guess(names[label], chance) for chance, label in zip(*pair, strict=True)] for pair in pairs]
