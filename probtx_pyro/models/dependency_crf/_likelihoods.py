"""Log densities of what is known of labels and heads under a dependency CRF: exact, and Besag's pseudo-likelihood.

Both are functions of `Potentials` that hold what is known, with B sentences along one axis (docs/mathematics.md, section 5.5).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from probtx_pyro.models.dependency_crf import _exact
from probtx_pyro.ops._label_sweeps import gumbel
from probtx_pyro.ops._numerics import log_sum
from probtx_pyro.ops.dependency_crf import Potentials


class Evidence(NamedTuple):
    """Log densities, (B,) each. labels: of the labels that are known. heads: of the heads that are known, given those labels."""

    labels: Tensor
    heads: Tensor


class Known(NamedTuple):
    """Known labels and heads, and how sentences go together: by all their words, and by those words whose labels are not known.

    labels: (B, N), -1 where unknown. heads: (B, C, N), -1 where unknown, or None. every: buckets of all labellings. rest: buckets of
    those that agree with the known labels.
    """

    labels: Tensor
    heads: Tensor | None
    every: list[_exact.Bucket]
    rest: list[_exact.Bucket]

    @property
    def some(self) -> Tensor:
        """True for the sentences of which something is known, (B,)."""
        labels = (self.labels >= 0).any(-1)
        return labels if self.heads is None else labels | (self.heads >= 0).any((-2, -1))


Likelihood = Callable[[Potentials, Known], Evidence]


def exact(potentials: Potentials, known: Known) -> Evidence:
    """``log Z(labels) - log Z`` and ``log Z(labels, heads) - log Z(labels)``, by sums over all labellings."""
    total = _exact.log_partition(potentials, known.every)
    labelled = potentials._replace(labels=known.labels)
    some = _exact.log_partition(labelled, known.rest)
    if known.heads is None:
        return Evidence(some - total, torch.zeros_like(some))
    both = _exact.log_partition(labelled._replace(heads=known.heads), known.rest)
    return Evidence(some - total, both - some)


def pseudo(potentials: Potentials, known: Known) -> Evidence:
    """``Σ_i log p(Z_i | Z_-i)``, heads and the root's label summed out, and ``log p(H | Z)``; all labels of a sentence, or none.

    A sentence without a known label counts 0.
    """
    labels, count = known.labels.clamp(min=0), potentials.unary.shape[-1]
    rows, root = labels.unsqueeze(0), None
    if potentials.root is not None:  # one row for each label that the root may have
        root = torch.arange(potentials.root.shape[-1], device=labels.device).unsqueeze(-1).expand(-1, len(labels))
        rows = rows.expand(len(root), -1, -1)
    scores = potentials.slot_scores(rows, root)  # (K, B, C, N, S)
    each = torch.arange(count, device=labels.device)[:, None, None, None].expand(-1, *rows.shape)
    own = _exact.log_told(potentials, potentials.slot_scores(rows, root, of=each))  # (L, K, B, N)
    unary = potentials.unary.masked_fill(~potentials.words.unsqueeze(-1), 0.0)
    logits = unary.movedim(-1, 0).unsqueeze(1) + own + _heard(potentials, scores, rows, each)
    conditional = logits.logsumexp(1).log_softmax(0)  # (L, B, N)
    read = potentials.words & (known.labels >= 0)
    of_labels = conditional.gather(0, labels.unsqueeze(0)).squeeze(0).masked_fill(~read, 0.0).sum(-1)
    if known.heads is None:
        return Evidence(of_labels, torch.zeros_like(of_labels))
    chosen = known.heads.expand(*scores.shape[:-1])
    told, summed = (_exact.log_told(potentials, scores, x).sum(-1).logsumexp(0) for x in (chosen, None))
    return Evidence(of_labels, (told - summed).masked_fill(~read.any(-1), 0.0))


def _heard(potentials: Potentials, scores: Tensor, labels: Tensor, each: Tensor) -> Tensor:
    """Terms of ``log φ`` from the choices of all other words if word i has label a, (L, K, B, N)."""
    heads = scores.split(potentials.parts, -1)[0]
    first, places = int(potentials.root is not None), labels.shape[-1]
    place = torch.arange(first, first + places, device=labels.device)
    itself = torch.arange(heads.shape[-1], device=labels.device) == place.unsqueeze(-1)
    unread = torch.zeros_like(labels[..., 0])  # the root's label, whose slot is not among those of words
    told = potentials.slot_scores(each, unread, of=labels.expand_as(each))[
        ..., first : first + places
    ]  # (L, K, B, C, k, i)
    # the slots of word k but for word i, (K, B, C, k, i): summed anew, because a difference of sums loses its digits
    others = log_sum(heads.unsqueeze(-2).masked_fill(itself, -torch.inf)).expand_as(told)
    return log_sum(torch.stack([others, told], -1)).masked_fill(told == -torch.inf, 0.0).sum((-3, -2))


LIKELIHOODS: dict[str, Likelihood] = {"exact": exact, "pseudo": pseudo}


def largest(potentials: Potentials, known: Known, likelihood: str) -> int:
    """Numbers in the largest tensor that a problem needs."""
    if likelihood == "exact":
        sizes = [(*_exact.table_size(potentials, x.free), len(x.rows)) for x in known.every]
        return max(max(m * rows, n if known.heads is None else n * rows) for m, n, rows in sizes)
    sentences, places, count = potentials.unary.shape
    roots = 1 if potentials.root is None else potentials.root.shape[-1]
    return roots * sentences * potentials.channels * places * sum(potentials.parts) * max(places, count)


def marginals(potentials: Potentials, known: Known) -> _exact.Marginals:
    """Exact marginals given what is known: of any size where that is all labels."""
    return _exact.marginals(potentials._replace(labels=known.labels, heads=known.heads), known.rest)


def draw_labels(potentials: Potentials, known: Known) -> tuple[Tensor]:
    """Labels of all sentences, (B, N), an exact draw by the table of all labellings; -1 for padding."""
    return (_exact.draw_labels(potentials, known.every).masked_fill(~potentials.words, -1),)


def draw_heads(potentials: Potentials, known: Known) -> tuple[Tensor]:
    """Heads given all labels, (B, C, N) slots, an exact draw; -1 where there is none to choose."""
    labels, root = known.labels.clamp(min=0), None
    if potentials.root is not None:
        every = torch.arange(potentials.root.shape[-1], device=labels.device).unsqueeze(-1).expand(-1, len(labels))
        rows = labels.expand(len(every), -1, -1)
        log = _exact.log_density(potentials, rows, every, potentials.slot_scores(rows, every))
        root = (log + gumbel(log.shape, log, None)).argmax(0)
    heads = potentials.slot_scores(labels, root).split(potentials.parts, -1)[0]
    drawn = (heads + gumbel(heads.shape, heads, None)).argmax(-1)
    return (drawn.masked_fill((heads == -torch.inf).all(-1), -1),)
