"""A small trained transformer, whose queries and keys are real: character-level, causal, two layers of four heads.

The text is the help that comes with Python, ``pydoc_data.topics``; nothing else is read. The checkpoint beside this
file, ``text_transformer.npz``, holds the weights in half precision, the alphabet and how it was trained. It is made by
``python tests/make_text_transformer.py``, which took 4000 steps of AdamW from seed 0, 216 seconds on one CPU core under
Python 3.11.7, to a loss of 1.2168 nats a character on the last tenth of the text (0.9368 on the rest; nearly a tenth of
the last part occurs word for word in the rest). The same numbers are in ``load().training_record``. The help differs
between Python versions, so the alphabet belongs to the checkpoint, and characters outside it are read as `UNKNOWN`.
"""

import json
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probtx_pyro.data.text import UNKNOWN, Vocabulary

CONTEXT, WIDTH, HEADS, LAYERS = 128, 64, 4, 2
"""Characters that the small text transformer sees."""
CHECKPOINT = "text_transformer.npz"


class Heads(NamedTuple):
    """Queries, keys, values, attention and outputs of every head of every layer, for one text.

    queries, keys, values: (layer, head, position, channel).
    attention: softmax of ``queries @ keys' / sqrt(channel)`` over the positions up to the query's own, (layer, head,
    position, position).
    outputs: ``attention @ values``, (layer, head, position, channel).
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    attention: Tensor
    outputs: Tensor


class _Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each after a layer norm and added to its input."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH, dtype=dtype)
        self.projection = nn.Linear(WIDTH, 3 * WIDTH, dtype=dtype)
        self.merge = nn.Linear(WIDTH, WIDTH, dtype=dtype)
        self.feed_norm = nn.LayerNorm(WIDTH, dtype=dtype)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH, dtype=dtype)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH, dtype=dtype)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (..., head, position, channel)."""
        projected = self.projection(self.attention_norm(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        queries, keys, values = projected.movedim(-3, 0).transpose(-2, -3)
        return queries, keys, values

    def merged(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return the block's output.

        Parameters
        ----------
        x
            (..., position, width) input of the block.
        attended
            (..., head, position, channel) outputs of its heads.
        """
        x = x + self.merge(attended.transpose(-2, -3).flatten(-2))
        return x + self.narrow(F.gelu(self.widen(self.feed_norm(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self.merged(x, F.scaled_dot_product_attention(*self.heads(x), is_causal=True))


class TextTransformer(nn.Module):
    """Logits of the next character, ``(..., position, character)``, given characters ``(..., position)``.

    Parameters
    ----------
    alphabet
        The characters it knows; the first is `UNKNOWN`.
    dtype
        Of the weights.
    """

    def __init__(self, alphabet: Sequence[str], dtype: torch.dtype = torch.float32):
        super().__init__()
        if not alphabet or alphabet[0] != UNKNOWN:
            raise ValueError(f"alphabet must begin with the unknown character {UNKNOWN!r}")
        self.alphabet = tuple(alphabet)
        self.training_record: dict[str, float | int | str] = {}
        self.characters = nn.Embedding(len(self.alphabet), WIDTH, dtype=dtype)
        self.positions = nn.Embedding(CONTEXT, WIDTH, dtype=dtype)
        self.blocks = nn.ModuleList(_Block(dtype) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, dtype=dtype)
        nn.init.normal_(self.characters.weight, std=0.1)
        nn.init.normal_(self.positions.weight, std=0.1)

    def encode(self, text: str) -> Tensor:
        """Indices into the alphabet, (position,); 0 stands for every character outside it."""
        return Vocabulary("char", self.alphabet).encode(text)

    def _embedded(self, tokens: Tensor) -> Tensor:
        if not 0 < tokens.shape[-1] <= CONTEXT:
            raise ValueError(f"the text has {tokens.shape[-1]} characters; give between 1 and {CONTEXT}")
        return self.characters(tokens) + self.positions.weight[: tokens.shape[-1]]

    def forward(self, tokens: Tensor) -> Tensor:
        """Next-character logits; the output weights are the input embedding."""
        x = self._embedded(tokens)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.characters.weight)

    @torch.no_grad()
    def heads(self, text: str) -> Heads:
        """Queries, keys, values, attention and outputs of every layer and head while it reads ``text``.

        Examples
        --------
        >>> heads = load().heads("a class is")
        >>> tuple(heads.queries.shape), bool(heads.attention[..., 0, 1:].any())
        ((2, 4, 10, 16), False)
        """
        x, captured = self._embedded(self.encode(text)), []
        for block in cast("list[_Block]", self.blocks):
            queries, keys, values = block.heads(x)
            scores = queries @ keys.transpose(-1, -2) / queries.shape[-1] ** 0.5
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            attention = scores.masked_fill(future, -torch.inf).softmax(-1)
            captured.append((queries, keys, values, attention, attention @ values))
            x = block.merged(x, captured[-1][-1])
        return Heads(*(torch.stack(parts) for parts in zip(*captured, strict=True)))


def train(text: str, *, num_steps: int, seed: int, batch_size: int = 32, rare: int = 10) -> TextTransformer:
    """Train a transformer by AdamW on windows drawn from a text; the random state is restored afterwards.

    Parameters
    ----------
    text
        Text to train on.
    num_steps
        AdamW steps.
    seed
        Seed of the weights and the windows.
    batch_size
        Windows of a step.
    rare
        Characters seen fewer times are unknown.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TextTransformer(Vocabulary.of(text, rarest=rare).tokens)
        tokens = model.encode(text)
        optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=num_steps, pct_start=0.1)
        for _ in range(num_steps):
            windows = tokens[torch.randint(len(tokens) - CONTEXT, (batch_size, 1)) + torch.arange(CONTEXT + 1)]
            optimizer.zero_grad()
            F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return model.eval()


def load(path: str | os.PathLike[str] | None = None) -> TextTransformer:
    """The trained transformer, in single precision and without gradients; ``training_record`` says how it was trained.

    Parameters
    ----------
    path
        A checkpoint that ``tests/make_text_transformer.py`` wrote; None is the one that comes with the package.

    Examples
    --------
    >>> model = load()
    >>> model.training_record["validation_loss"] < 2
    True
    """
    source = files("probtx_pyro.data") / CHECKPOINT if path is None else Path(path)
    with source.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    model = TextTransformer([chr(code) for code in arrays.pop("alphabet")])
    model.training_record = json.loads(arrays.pop("training_record").tobytes())
    model.load_state_dict({name: torch.from_numpy(weight).float() for name, weight in arrays.items()})
    return model.eval().requires_grad_(False)


__all__ = ["CONTEXT", "UNKNOWN", "Heads", "TextTransformer", "load", "train"]
