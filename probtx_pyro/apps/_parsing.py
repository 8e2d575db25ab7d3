"""Unlabelled dependency parsing by reading the attention of a dependency CRF encoder that never saw a tree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from probtx_pyro.apps._batches import batches, channels_of, evaluating, require_room
from probtx_pyro.data import Vocabulary
from probtx_pyro.data.text import checked_words
from probtx_pyro.nn import DependencyCRFEncoder
from probtx_pyro.nn.tasks import WordModel, is_padding
from probtx_pyro.ops import arc_scores, argmax_heads, eisner, spanning_arborescence

DECODERS: dict[str, Callable[..., Tensor]] = {"tree": spanning_arborescence, "projective": eisner, "word": argmax_heads}
"""Functions from arc scores to heads, by name."""


Heads = Sequence[int | None]


@dataclass(frozen=True)
class AttentionParser:
    """Heads of words from head marginals Q(H).

    Parameters
    ----------
    model
        A trained `WordModel` whose encoder is a `DependencyCRFEncoder`, such as a masked language model.
    vocabulary
        Its words.
    decoder
        A key of `DECODERS`: ``"tree"`` (maximum spanning arborescence), ``"projective"`` (Eisner) or ``"word"`` (each
        by itself).
    channel
        Which channel to read, from 0; None averages them.

    Raises
    ------
    ValueError
        A model with another encoder, or a decoder or channel that is not there.
    """

    model: WordModel
    vocabulary: Vocabulary
    decoder: str = "tree"
    channel: int | None = None

    def __post_init__(self) -> None:
        encoder = getattr(self.model, "encoder", self.model)
        if not isinstance(encoder, DependencyCRFEncoder):
            raise ValueError(f"model is a {type(encoder).__name__}; only a DependencyCRFEncoder has heads of words")
        if self.decoder not in DECODERS:
            raise ValueError(f"decoder must be one of {', '.join(DECODERS)}, not {self.decoder!r}")
        if self.channel is not None and not 0 <= self.channel < encoder.num_channels:
            raise ValueError(f"channel must be from 0 to {encoder.num_channels - 1}, not {self.channel}")

    @torch.no_grad()
    def head_marginals(
        self, sentences: Sequence[Sequence[str]], batch: int = 32, heads: Sequence[Heads] | None = None
    ) -> list[np.ndarray]:
        """Return ``Q(H)`` of each sentence: (C, N, N), or (C, N, N + 1) with the root first if the CRF has one.

        Parameters
        ----------
        sentences
            Words of each sentence; one without words has marginals of size 0.
        batch
            Sentences that are computed at once, at most; fewer where they are long.
        heads
            Heads of each sentence that are known, numbered as CoNLL-U does, None where they are not. They are evidence
            in the channels that are read. A CRF without a root has no slot for a known 0, which is then no evidence.

        Raises
        ------
        ValueError
            A text in the place of words; heads that are not one a word, or that are no other word of the sentence; a
            sentence that is longer than the machine has room for.
        """
        sentences = checked_words("sentences", sentences)
        numbers = self.vocabulary.numbers(sentences)
        if heads is not None and len(heads) != len(sentences):
            raise ValueError(f"{len(heads)} rows of heads for {len(sentences)} sentences; give one a sentence")
        known = None if heads is None else [self._slots(i, heads[i], len(x)) for i, x in enumerate(numbers)]
        device = next(self.model.parameters()).device
        lengths, channels = [len(words) for words in sentences], channels_of(self.model)
        require_room(self.model, lengths)
        found: list[np.ndarray] = [np.zeros((channels, 0, int(self._root)), np.float32)] * len(sentences)
        with evaluating(self.model):
            for index in batches(lengths, batch, channels):
                rows = [numbers[i] for i in index]
                words = pad_sequence(rows, batch_first=True, padding_value=-1).to(device)
                x = self.model.embedded(words.clamp(min=0))
                clamped = None if known is None else pad_sequence([known[i] for i in index], True, -1).mT.to(device)
                marginals = self._encoder.field(x, is_padding(words), clamped).head_marginals.cpu().numpy()
                for i, row, own in zip(index, rows, marginals, strict=True):
                    found[i] = own[:, : len(row), : len(row) + self._root]
        return found

    def parse(self, sentences: Sequence[Sequence[str]], heads: Sequence[Heads] | None = None) -> list[list[int]]:
        """Return the heads of each sentence, numbered as CoNLL-U does: 0 is the root. Known ones stay as they are.

        Parameters
        ----------
        sentences
            Words of each sentence.
        heads
            Those that are known, as in `head_marginals`.

        Raises
        ------
        ValueError
            As `head_marginals`; known heads that no tree of the decoder has.
        """
        marginals = self.head_marginals(sentences, heads=heads)
        found = []
        for number, (x, known) in enumerate(zip(marginals, repeat(None) if heads is None else heads, strict=False), 1):
            try:
                found.append(self.heads(x, known).tolist())
            except ValueError:
                if known is None or np.isnan(x).any():  # it is not the known heads' fault
                    raise
                kind = "projective tree" if self.decoder == "projective" else "tree with a single root"
                raise ValueError(f"sentence {number}: no {kind} has the known heads; take another decoder") from None
        return found

    def heads(self, marginals: np.ndarray, known: Heads | None = None) -> np.ndarray:
        """Return heads (N,) from the head marginals of one sentence, by the channel and the decoder.

        Parameters
        ----------
        marginals
            (C, N, N) or (C, N, N + 1), of `head_marginals`.
        known
            Heads that stay as they are, None where there is none.

        Raises
        ------
        ValueError
            No tree has the known heads.
        """
        chosen = marginals.mean(0) if self.channel is None else marginals[self.channel]
        if not len(chosen):
            return np.zeros(0, int)
        p = torch.as_tensor(chosen, dtype=torch.float64)
        arcs = p.clamp_min(torch.finfo(torch.float32).eps ** 2).log()  # below it, marginals are zero
        if not self._root:  # trees choose one root by the other arcs; word by word there is none to choose
            none = None if self.decoder != "word" or len(p) == 1 else p.new_full((len(p),), -torch.inf)
            arcs = arc_scores(arcs, none)
        for word, head in enumerate(known or ()):
            if head is not None:
                arcs[word] = -torch.inf
                arcs[word, head] = 0.0
        return DECODERS[self.decoder](arcs).numpy()

    def _slots(self, number: int, given: Heads, length: int) -> Tensor:
        """Slots (N, C) of the known heads of a sentence in the channels that are read, -1 elsewhere."""
        if len(given) != length:
            raise ValueError(f"sentence {number + 1} has {length} words, {len(given)} heads; give one a word, or None")
        for word, head in enumerate(given, 1):
            if head is not None and (head == word or not 0 <= head <= length):
                raise ValueError(f"sentence {number + 1}: word {word} has head {head}; give another word, 0, or None")
        own = torch.tensor([-1 if head is None else head - (not self._root) for head in given])
        channel = torch.arange(self._encoder.num_channels)
        read = channel >= 0 if self.channel is None else channel == self.channel
        return torch.where(read, own.unsqueeze(-1), -1)

    @property
    def _encoder(self) -> DependencyCRFEncoder:
        assert isinstance(self.model.encoder, DependencyCRFEncoder)
        return self.model.encoder

    @property
    def _root(self) -> bool:
        return self._encoder.root_ternary is not None
