"""Models of words for the tasks of an encoder: tags of words, masked words, the category of a text;
and a transformer encoder.

An encoder is any module ``encoder(x, key_padding_mask) -> (B, N, width)`` of x (B, N, width) and a mask (B, N), True at
padding: `TransformerEncoder`, or `DependencyCRFEncoder`, to which the word embedding is the unary scores S and whose
output is the scores of the labels.

Reference: Wu & Tu, 'Probabilistic Transformer: A Probabilistic Dependency Model for Contextual Word Representation'
(Findings of ACL 2023), section 3 and appendix on tasks: a linear layer on the label scores, tied unary scores for
masked words, the root for the category of a text. The mean word, which is not theirs, learns faster on the texts that
were tried.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probtx_pyro.nn._module import Dropout, printed
from probtx_pyro.nn.attention import SoftmaxAttention


class TransformerEncoder(nn.Module):
    """Layers of ``torch.nn.TransformerEncoderLayer`` with any attention, norms before them, a last one behind,
    and learned positions.

    Shapes: x (B, N, width), key_padding_mask (B, N) with True at padding -> (B, N, width); N is at most ``context``.

    Parameters
    ----------
    width
        Channels of a word.
    context
        Most words of a sentence.
    num_heads, num_layers, dropout
        As for ``torch.nn.TransformerEncoderLayer`` and ``torch.nn.TransformerEncoder``.
    max_offset
        None: absolute positions. A number: relative ones; every head learns a bias for each offset between two words,
        to be added to its logits in all layers, and offsets beyond ``max_offset`` share those of the last.
    attention
        Class of the attention layers, as for `TransformerBlock`.
    options
        Further arguments of ``attention``, such as ``head_dim``.

    Raises
    ------
    ValueError
        A ``max_offset`` that is not positive, and what ``attention`` refuses, such as a width that the heads do not
        divide; in a call, more words than ``context``.

    Examples
    --------
    >>> from probtx_pyro.nn import GaussianKeysAttention
    >>> encoder = TransformerEncoder(8, context=10, num_heads=2, attention=GaussianKeysAttention, num_components=3)
    >>> encoder(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def __init__(
        self,
        width: int,
        *,
        context: int,
        num_heads: int = 8,
        num_layers: int = 4,
        dropout: float = 0.0,
        max_offset: int | None = None,
        attention: Callable[..., nn.Module] = SoftmaxAttention,
        **options: object,
    ):
        super().__init__()
        if max_offset is not None and max_offset < 1:
            raise ValueError(f"max_offset must be positive, not {max_offset}")
        self.context, self.num_heads, self.max_offset = context, num_heads, max_offset

        def layer() -> nn.Module:
            inner: Any = attention(width, num_heads, dropout=dropout, batch_first=True, **options)
            made = nn.TransformerEncoderLayer(width, 1, 4 * width, dropout, F.gelu, batch_first=True, norm_first=True)
            made.self_attn = inner  # and not torch's, which is why that is made with one head
            for linear in (inner.out_proj, made.linear1, made.linear2):
                nn.init.xavier_uniform_(linear.weight)
            return made

        self.layers, self.norm = nn.ModuleList(layer() for _ in range(num_layers)), nn.LayerNorm(width)
        if max_offset is None:
            self.positions = nn.Parameter(0.02 * torch.randn(context, width))
        else:
            self.offset_bias = nn.Parameter(torch.randn(num_heads, 2 * max_offset + 1))

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Return each word in its context, (B, N, width).

        Parameters
        ----------
        x
            (B, N, width).
        key_padding_mask
            (B, N), True at padding.

        Raises
        ------
        ValueError
            More words than ``context``.
        """
        batch, length, _ = x.shape
        if length > self.context:
            raise ValueError(f"there are {length} words in a sentence; give at most {self.context} (context)")
        bias, padding = None, None
        if self.max_offset is None:
            x = x + self.positions[:length]
        else:
            word = torch.arange(length, device=x.device)
            offset = (word - word.unsqueeze(-1)).clamp(-self.max_offset, self.max_offset) + self.max_offset
            bias = self.offset_bias[:, offset].to(x.dtype).repeat(batch, 1, 1)
        if key_padding_mask is not None:  # of the dtype of the biases, as torch wants it
            padding = x.new_zeros(key_padding_mask.shape).masked_fill(key_padding_mask, -torch.inf)
        for layer in self.layers:
            x = layer(x, bias, padding)
        return self.norm(x)

    def extra_repr(self) -> str:
        """Return the sizes, and the options that differ from their defaults, as modules print them."""
        return printed(self, {"context": self.context, "num_heads": self.num_heads}, {"max_offset": self.max_offset})


def own_numbers(words: Tensor, axes: int = 2) -> Tensor:
    """The number of each word without the features of its spelling, with ``axes`` axes: (B, N) of (B, N) or (B, N,
    1 + features).
    """
    return words if words.dim() == axes else words[..., 0]


def with_numbers(words: Tensor, own: Tensor) -> Tensor:
    """Words whose own numbers are ``own``, with the features of their spelling, if they have them, as they were."""
    return own if words.dim() == own.dim() else torch.cat([own.unsqueeze(-1), words[..., 1:]], -1)


def is_padding(words: Tensor) -> Tensor:
    """Padding mask, (B, N): True where the token is -1."""
    return own_numbers(words) < 0


class WordModel(nn.Module):
    """Base of the models below: an embedding of words with dropout, and an encoder.

    Parameters
    ----------
    vocabulary
        Number of words.
    encoder, width
        Encoder, and its channels.
    dropout, start
        Dropout rate of the embedding, and its standard deviation at the start.
    spellings
        Rows of a table of features of spellings, whose sum is added to the embedding of a word; 0 has none.
    """

    def __init__(
        self,
        vocabulary: int,
        encoder: nn.Module,
        width: int,
        dropout: float = 0.0,
        start: float = 0.02,
        spellings: int = 0,
    ):
        super().__init__()
        self.words, self.dropout, self.encoder = nn.Embedding(vocabulary, width), Dropout(dropout), encoder
        nn.init.normal_(self.words.weight, std=start)
        self.spellings = nn.Embedding(spellings, width) if spellings else None
        if self.spellings is not None:
            # a word has about ten, whose sum starts like its own row
            nn.init.normal_(self.spellings.weight, std=0.3 * start)

    def embedded(self, words: Tensor) -> Tensor:
        """Return the embedded words, (B, N, width), which the encoder reads.

        Parameters
        ----------
        words
            (B, N); with spellings (B, N, 1 + features), as `data.Vocabulary` numbers them.
        """
        if self.spellings is None:
            return self.dropout(self.words(words))
        return self.dropout(self.words(words[..., 0]) + self.spellings(words[..., 1:]).sum(-2))


class WordTagger(WordModel):
    """Logits of the tags of every word, one tensor (B, N, tags) for each column of tags.

    Parameters
    ----------
    vocabulary, encoder, width
        Number of words, encoder, its channels (of a dependency CRF, its labels).
    num_tags
        Number of tags in each column.
    dropout, start, spellings
        Dropout rate of the embedding, its standard deviation at the start, and rows of the table of spellings (0:
        none).

    Examples
    --------
    >>> tagger = WordTagger(20, TransformerEncoder(8, context=10, num_heads=2, num_layers=1), 8, num_tags=(3, 5))
    >>> [logits.shape for logits in tagger(torch.zeros(2, 4, dtype=torch.long))]
    [torch.Size([2, 4, 3]), torch.Size([2, 4, 5])]
    """

    def __init__(
        self,
        vocabulary: int,
        encoder: nn.Module,
        width: int,
        num_tags: tuple[int, ...],
        dropout: float = 0.0,
        start: float = 0.02,
        spellings: int = 0,
    ):
        super().__init__(vocabulary, encoder, width, dropout, start, spellings)
        self.num_tags = tuple(num_tags)
        self.tags = nn.Linear(width, sum(num_tags))

    def forward(self, words: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the logits of each column, (B, N, tags); words as for `WordModel.embedded`, key_padding_mask (B,
        N) with True at padding.
        """
        return self.tags(self.encoder(self.embedded(words), key_padding_mask)).split(self.num_tags, -1)


class MaskedLanguageModel(WordModel):
    """Logits of the words that were replaced by the number ``mask`` (= ``vocabulary``);
    the output weights are the embedding.

    Parameters
    ----------
    vocabulary, encoder, width, dropout, start
        As for `WordTagger`.
    """

    def __init__(self, vocabulary: int, encoder: nn.Module, width: int, dropout: float = 0.0, start: float = 0.02):
        super().__init__(vocabulary + 1, encoder, width, dropout, start)
        self.mask = vocabulary
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, words: Tensor, key_padding_mask: Tensor | None = None, at: Tensor | None = None) -> Tensor:
        """Return the logits of every word, or of those at ``at``.

        Parameters
        ----------
        words, key_padding_mask
            (B, N), and (B, N) with True at padding.
        at
            (B, N), True at the k words to predict; None predicts all.

        Returns
        -------
        (B, N, vocabulary), or (k, vocabulary).
        """
        h = self.encoder(self.embedded(words), key_padding_mask)
        return F.linear(h if at is None else h[at], self.words.weight[: self.mask], self.bias)


def mean_word(encoder: nn.Module, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """Return the mean of the encoder's words without padding, (B, width); x (B, N, width), key_padding_mask (B, N)."""
    h = encoder(x, key_padding_mask)
    if key_padding_mask is None:
        return h.mean(1)
    real = ~key_padding_mask[..., None]
    return (h * real).sum(1) / real.sum(1)


def root_label(encoder: Any, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """Return the scores of the label of the root, (B, root_labels), of a `DependencyCRFEncoder` that has one; x (B,
    N, width).
    """
    return encoder.field(x, key_padding_mask).root_logits


class TextClassifier(WordModel):
    """Logits of the categories of a text, (B, categories): a linear function of a summary of its words.

    Parameters
    ----------
    vocabulary, encoder, width, dropout, start, spellings
        As for `WordTagger`.
    num_categories
        Number of categories.
    summary
        `mean_word`, or `root_label` for a `DependencyCRFEncoder` with ``root_labels=width``; from the encoder, x (B, N,
        width) and key_padding_mask (B, N) to (B, width).
    """

    def __init__(
        self,
        vocabulary: int,
        encoder: nn.Module,
        width: int,
        num_categories: int,
        dropout: float = 0.0,
        summary: Callable[..., Tensor] = mean_word,
        start: float = 0.02,
        spellings: int = 0,
    ):
        super().__init__(vocabulary, encoder, width, dropout, start, spellings)
        self.summary, self.categories = summary, nn.Linear(width, num_categories)

    def forward(self, words: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Return the logits, (B, categories); words as for `WordModel.embedded`, key_padding_mask (B,
        N) with True at padding.
        """
        return self.categories(self.summary(self.encoder, self.embedded(words), key_padding_mask))
