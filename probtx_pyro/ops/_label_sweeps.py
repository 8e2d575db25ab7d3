"""Gibbs sweeps over the labels of a dependency CRF, heads summed out: all chains and all sentences at once,
a word at a time.

Given all other labels, that of word i has the probabilities

    p(Z_i = a | Z_-i)  ∝  exp S_ia · Π_c Σ_s E^c_is(a) · Π_c Π_{k≠i} [ Σ_{s≠i} E^c_ks + exp β T^{(c,g(k,i))}_{Z_k a} ]

where ``E^c_ks`` is the exponential of β times the score of slot s as the head of word k, or 0 where it is not allowed.
The sums over the slots other than word i are kept as two, of words before it and of words after it, so that nothing is
subtracted: no digits are lost where one head has almost all the weight, and sums do not drift from sweep to sweep.

Sizes: X chains, B sentences, N words, C channels, G groups, L labels, K labels of the root, M global nodes.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from probtx_pyro.ops._crf_potentials import Potentials, group_of

# how far apart the scores of one row may lie, so that their exponentials and products of them are normal numbers
LARGEST = {torch.float32: 60.0, torch.float64: 600.0}


# from the logits of a word (X, B, L), or of the root where that is None, to those that are drawn from in their place
Seen = Callable[[Tensor, int | None], Tensor] | None


class Tables(NamedTuple):
    """Exponentials of scores at one β, each row (channel, label of the word) over its largest.

    of_head, of_word: (C G L + L, L), by label of the head, and by label of the word that has it; rows of zeros last,
    for no arc.
    own: (B, N, L), the logarithm of all that a label has by itself. other: (B, C, N, L), the sum over global nodes, and
    1 for a word without any head to choose. root: (K, C, L). some: how many factors may be multiplied before a
    logarithm.
    """

    of_head: Tensor
    of_word: Tensor
    own: Tensor
    other: Tensor
    root: Tensor | None
    some: int


class Sweeps:
    """Tables that the sweeps of one CRF share: which arcs are allowed, and where their scores stand."""

    def __init__(self, potentials: Potentials):
        self.potentials = crf = potentials
        ternary = crf.full_ternary()
        channels, groups, labels, _ = ternary.shape
        words = crf.words.shape[1]
        memory = None if crf.split or crf.memory is None else crf.all_memory()
        parts = [ternary.transpose(1, 2).flatten(2), crf.root, None if memory is None else memory.mT]
        rows = torch.cat([x for x in parts if x is not None], -1)
        self.top = rows.amax(-1)  # (C, L)
        self.spread = float((self.top - rows.amin(-1)).max())
        self.dtype = crf.unary.dtype if self.spread < LARGEST.get(crf.unary.dtype, 0.0) else torch.float64
        if self.spread > LARGEST[torch.float64]:
            raise ValueError(
                f"ternary, root_ternary or memory: scores of one label lie {self.spread:.3g} apart, "
                f"and sampling takes up to {LARGEST[torch.float64]:g}; scale them down"
            )
        first = int(crf.root is not None)
        allowed = crf.allowed().expand(-1, channels, -1, -1)
        heads, *nodes = allowed.split(crf.parts, -1)
        self.has_head = heads.any(-1)  # (B, C, N)
        self.to_root = heads[..., 0]  # where there is a root
        self.to_nodes = (nodes[0] if nodes else heads[..., first + words :]).to(self.dtype)
        channel = torch.arange(channels, device=ternary.device)[:, None, None]
        place = (channel * groups + group_of(crf.distances, words, ternary.device)) * labels
        place = torch.where(heads[..., first : first + words], place, channels * groups * labels)  # (B, C, N, N)
        self.outward, self.inward = (place.movedim(axis, 0).contiguous() for axis in (2, 3))  # of a word, and to it

    def tables(self, beta: float) -> Tables:
        """Exponentials at β, which multiplies all scores but the unary ones."""
        crf, top, labels = self.potentials, self.top.to(self.dtype), len(self.top.T)

        def exponential(x: Tensor, over: Tensor) -> Tensor:
            return (beta * (x.to(self.dtype) - over)).exp()

        arcs = exponential(crf.full_ternary(), top[:, None, :, None])
        own = crf.unary_scores().to(self.dtype)
        own = own + torch.einsum("bci,ca->bia", self.has_head.to(self.dtype), beta * top)
        other, memory = (~self.has_head).to(self.dtype).unsqueeze(-1).expand(-1, -1, -1, labels), crf.all_memory()
        if memory is not None and crf.split:
            each = (beta * memory.to(self.dtype)).logsumexp(1)
            own = own + torch.einsum("bci,ca->bia", self.to_nodes[..., 0], each)
        elif memory is not None:
            other = other + torch.einsum("bcim,cma->bcia", self.to_nodes, exponential(memory, top.unsqueeze(1)))
        root = None if crf.root is None else exponential(crf.root, top.unsqueeze(-1)).movedim(-1, 0)
        of_head, of_word = (F.pad(x.reshape(-1, labels), (0, 0, 0, labels)) for x in (arcs.mT, arcs))
        widest = max(beta * self.spread, math.log(sum(crf.parts) + 1))
        some = max(1, int(LARGEST[self.dtype] / max(widest, 1.0)))
        return Tables(of_head, of_word, own + crf.label_choices().bias, other, root, some)

    def conditional(self, labels: Tensor, root: Tensor | None, word: int, beta: float = 1.0) -> Tensor:
        """``log p(Z_i = a | Z_-i)`` of one word but for a constant, (X, B, L); labels (X, B, N),
        the root's label (X, B).
        """
        return _Walk(self, self.tables(beta), labels, root, word).logits(word)[0]

    def __call__(
        self, labels: Tensor, root: Tensor | None, tables: Tables, generator: torch.Generator | None, seen: Seen = None
    ) -> tuple[Tensor, Tensor | None]:
        """Draw the label of one word after the other, and then the root's; labels (X, B, N), the root's (X, B)."""
        crf, walk = self.potentials, _Walk(self, tables, labels.clone(), root)
        noise = gumbel((labels.shape[-1], *labels.shape[:2], crf.unary.shape[-1]), tables.own, generator)
        for word in crf.words.any(0).nonzero()[:, 0].tolist():
            logits, alone = walk.logits(word)
            logits = logits if seen is None else seen(logits, word)
            drawn = torch.where(crf.words[:, word], logits.add_(noise[word]).argmax(-1), labels[..., word])
            walk.move(word, drawn, alone)
        if root is not None and tables.root is not None:
            logits = walk.root_logits()
            logits = logits if seen is None else seen(logits, None)
            root = logits.add_(gumbel(logits.shape, logits, generator)).argmax(-1)
        return walk.labels, root


class _Walk:
    """One sweep, from ``word`` on. labels: (X, B, N).

    before: sums of E over the words up to the present one, (X, B, C, N). after: those from each word on, (N + 1, X, B,
    C, N).
    rest: what remains of a word's sum, root and global nodes, (X, B, C, N).
    """

    def __init__(self, shared: Sweeps, tables: Tables, labels: Tensor, root: Tensor | None, word: int = 0):
        self.shared, self.tables, self.labels, self.root = shared, tables, labels, root
        self.flat, self.count = tables.of_word.flatten(), tables.of_word.shape[1]
        of, words = labels.unsqueeze(-2), labels.shape[-1]
        self.after = self.flat.new_empty(words + 1, *labels.shape[:2], *shared.inward.shape[2:])
        self.before = torch.zeros_like(self.after[words].zero_())
        for j in range(words - 1, -1, -1):
            scores = self._scores(shared.inward[j], of, labels[..., j, None, None])
            torch.add(self.after[j + 1], scores, out=self.after[j])
            if j < word:
                self.before += scores
        self.later = torch.ones(words, words + 1, dtype=self.flat.dtype, device=labels.device).tril()
        self.rows = self.flat.new_empty(self.before.numel(), self.count)
        self.alone = None
        self.rest = self._other(labels)
        if root is not None and tables.root is not None:
            self.alone = tables.root[root]  # (X, B, C, L)
            self.rest = self.rest + shared.to_root * _at(self.alone, labels)

    def _scores(self, place: Tensor, of: Tensor, head: Tensor) -> Tensor:
        """E of words with labels ``of`` and heads with labels ``head``."""
        return self.flat.take((place + of).mul_(self.count).add_(head))

    def _other(self, labels: Tensor) -> Tensor:
        """The sum over global nodes at the labels, (X, B, C, N)."""
        other = self.tables.other.expand(len(labels), *self.tables.other.shape)
        return other.gather(-1, labels[:, :, None, :, None].expand(*other.shape[:-1], 1)).squeeze(-1)

    def logits(self, word: int) -> tuple[Tensor, Tensor]:
        """Logits of a word, (X, B, L), and the sums over root and global nodes as its head, (X, B, C, L)."""
        shared, tables, labels = self.shared, self.tables, self.labels.unsqueeze(-2)
        outward, inward = (x[word] + labels for x in (shared.outward, shared.inward))
        alone = tables.other[:, :, word].expand(len(labels), -1, -1, -1)
        if self.alone is not None:
            alone = alone + shared.to_root[:, :, word].unsqueeze(-1) * self.alone
        told = F.embedding_bag(outward.flatten(0, -2), tables.of_head, mode="sum").view(alone.shape) + alone
        base = self.before + self.after[word + 1] + self.rest
        rows = torch.index_select(tables.of_word, 0, inward.flatten(), out=self.rows).view(*inward.shape, -1)
        heard = self._log_product(rows.add_(base.unsqueeze(-1))).sum(-2)
        return heard.add_(tables.own[:, word]).add_(self._log_product(told)), alone

    def _log_product(self, x: Tensor) -> Tensor:
        """Log of the product over channels, as many of them at once as stay in range."""
        return sum(part.prod(2).log_() for part in x.split(self.tables.some, 2))  # type: ignore[return-value]

    def move(self, word: int, drawn: Tensor, alone: Tensor) -> None:
        """Give a word its new label, (X, B)."""
        labels, new = self.labels, drawn[..., None, None]
        labels[..., word] = drawn
        self.before += self._scores(self.shared.inward[word], labels.unsqueeze(-2), new)
        scores = self._scores(self.shared.outward[word], new, labels.unsqueeze(-2))
        self.after[..., word] = (scores @ self.later).movedim(-1, 0)
        self.before[..., word] = scores[..., :word].sum(-1)
        self.rest[..., word] = _at(alone, drawn.unsqueeze(-1)).squeeze(-1)

    def root_logits(self) -> Tensor:
        """Logits of the root's label after all words, (X, B, K)."""
        root = self.tables.root
        assert root is not None
        plain = self.before + self._other(self.labels)
        channel = torch.arange(root.shape[1], device=root.device).unsqueeze(-1)
        at = root[:, channel, self.labels.unsqueeze(-2)].movedim(0, -1)  # (X, B, C, N, K)
        return self._log_product(plain.unsqueeze(-1) + self.shared.to_root.unsqueeze(-1) * at).sum(-2)


def gumbel(shape: tuple[int, ...] | torch.Size, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Gumbel noise: the largest of logits with it added is a draw of their softmax."""
    noise = torch.rand(shape, generator=generator, dtype=torch.float64, device=like.device)  # tails need the digits
    return noise.clamp(min=1e-300).log_().neg_().log_().neg_().to(like.dtype)


def _at(x: Tensor, labels: Tensor) -> Tensor:
    """Numbers of labels (X, B, C, L) at those of words (X, B, N), (X, B, C, N)."""
    return x.gather(-1, labels.unsqueeze(-2).expand(*x.shape[:-1], -1))
