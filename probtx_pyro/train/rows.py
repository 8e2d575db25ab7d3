"""Rows of words of unequal length: vocabulary, batches by epoch and length, padding, answers for a whole part."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from probtx_pyro.apps._batches import batches, channels_of
from probtx_pyro.data.text import UNKNOWN, Vocabulary
from probtx_pyro.nn.tasks import own_numbers, with_numbers
from probtx_pyro.train.loop import LoopSettings, Processes, summed

PADDING, NO_TARGET = -1, -100  # of words, and of targets (that of torch's cross entropy)


class WordRows(NamedTuple):
    """Rows of a part of the data.

    words: the numbers of the words of each row, (word,).
    targets: what is predicted of each row, (target, ...).
    """

    words: list[Tensor]
    targets: list[Tensor]

    def of(self, index: Iterable[int]) -> "WordRows":
        """Some rows, in that order."""
        index = list(index)
        return WordRows([self.words[i] for i in index], [self.targets[i] for i in index])

    def pick(self, index: Iterable[int]) -> tuple[Tensor, Tensor]:
        """Some rows, padded to the longest of them: words (row, word) with `PADDING`, targets with `NO_TARGET`."""
        words, targets = self.of(index)
        return (
            pad_sequence(words, batch_first=True, padding_value=PADDING),
            pad_sequence(targets, batch_first=True, padding_value=NO_TARGET),
        )


def known_words(sentences: Iterable[Sequence[str]], rarest: int, spellings: int = 0) -> tuple[Vocabulary, Tensor]:
    """Return the vocabulary of the words, and how often each occurs (0 for the unknown word).

    Parameters
    ----------
    sentences
        Words of each sentence.
    rarest
        How often a word must occur to be known.
    spellings
        As the vocabulary has it.
    """
    counts = Counter(word for words in sentences for word in words)
    known = sorted(word for word, count in counts.items() if count >= rarest)
    return Vocabulary("word", (UNKNOWN, *known), spellings), torch.tensor([0, *(counts[word] for word in known)])


def numbered(vocabulary: Vocabulary, sentences: Sequence[Sequence[str]], part: str) -> list[Tensor]:
    """Return the numbers of the words of each sentence.

    Parameters
    ----------
    vocabulary
        Words that are known.
    sentences
        Words of each sentence.
    part
        Name of the part of the data, for errors.

    Raises
    ------
    ValueError
        A sentence without words.
    """
    for i, words in enumerate(sentences):
        if not words:
            raise ValueError(f"sentence {i + 1} of the {part} part has no words; leave it out")
    return vocabulary.numbers(sentences)


def drawn_rows(rows: WordRows, settings: LoopSettings, pool: int = 50) -> Callable[[int], Tensor]:
    """Return a function from a step to the rows of its batch, which depend on the seed and the step alone.

    Every epoch is a permutation; ``pool`` batches of it are sorted by length together, so that the rows of a batch are
    of like length, and all batches then shuffled. What does not fill a batch is left out of that epoch.

    Parameters
    ----------
    rows
        Rows of the training part.
    settings
        Seed, and rows of a batch.
    pool
        Batches that are sorted together.

    Raises
    ------
    ValueError
        Fewer rows than a batch has.
    """
    size, lengths = settings.batch, torch.tensor([len(words) for words in rows.words])
    per_epoch = len(lengths) // size
    if not per_epoch:
        raise ValueError(f"the train part has {len(lengths)} rows, fewer than a batch of {size}; give a smaller batch")

    @lru_cache(maxsize=1)
    def batches(epoch: int) -> Tensor:
        draw = settings.draw(2**40 + epoch)  # far from the random numbers of any step
        order = torch.randperm(len(lengths), generator=draw)[: per_epoch * size]
        sorted_pools = [part[lengths[part].argsort(stable=True)] for part in order.split(pool * size)]
        return torch.cat(sorted_pools).view(per_epoch, size)[torch.randperm(per_epoch, generator=draw)]

    return lambda step: batches(step // per_epoch)[step % per_epoch]


def drop_words(words: Tensor, counts: Tensor, amount: float, draw: torch.Generator) -> Tensor:
    """Make a word that occurs c times unknown with probability amount / (amount + c), so that the unknown is learnt.

    Reference: Kiperwasser & Goldberg, 'Simple and Accurate Dependency Parsing Using Bidirectional LSTM Feature
    Representations' (TACL 2016), section 6, with amount 0.25.

    Parameters
    ----------
    words
        (row, word) numbers, `PADDING` behind the last of a row; with spellings (row, word, 1 + features), which stay.
    counts
        (vocabulary,) how often each word occurs in training.
    amount
        0 drops none.
    draw
        Random numbers of the step.
    """
    rates = amount / (amount + counts.double()).clamp(min=torch.finfo(torch.double).tiny)
    own = own_numbers(words)
    chance = torch.rand(own.shape, generator=draw, dtype=torch.double)
    dropped = own.masked_fill((chance < rates[own.clamp(min=0)]) & (own != PADDING), 0)
    return with_numbers(words, dropped)


@torch.no_grad()
def answers(
    model: nn.Module,
    rows: WordRows,
    fabric: Processes,
    answer: Callable[[nn.Module, Tensor, Tensor], Tensor],
    into: Tensor,
    batch: int = 64,
) -> Tensor:
    """Return ``answer(model, words, targets)`` of every row, known to every process.

    Parameters
    ----------
    model
        Model, set to evaluation while it answers.
    rows
        Rows that are asked.
    fabric
        Lightning Fabric of the run.
    answer
        From the model, words and targets of a batch to (row, ...).
    into
        Zeros (row, ...) that the answers are put into.
    batch
        Rows at once, at most; fewer where they are long.
    """
    training = model.training
    model.eval()
    parts = batches([len(words) for words in rows.words], batch, channels_of(getattr(model, "module", model)))
    for index in parts[fabric.global_rank :: fabric.world_size]:
        found = answer(model, *(fabric.to_device(x) for x in rows.pick(index))).to("cpu", into.dtype)
        place: tuple[Tensor | slice, ...] = (torch.tensor(index), *map(slice, found.shape[1:]))
        into[place] = found
    model.train(training)
    return summed(fabric, into)
