"""Exact inference by summing over all labellings: the heads, given the labels,
are independent and sum out in closed form.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from probtx_pyro.ops import safe_softmax
from probtx_pyro.ops._label_sweeps import gumbel
from probtx_pyro.ops._numerics import common_shape, log_sum
from probtx_pyro.ops.dependency_crf import Potentials

LARGEST = 2**26  # numbers in the table of head marginals


class Marginals(NamedTuple):
    """Exact marginals: labels (..., N, L), heads (..., C, N, S), root (..., K) or None; slots as in `MeanField`."""

    labels: Tensor
    heads: Tensor
    root: Tensor | None


class Bucket(NamedTuple):
    """Sentences with the same unlabelled places, alike in whether these are all their words; evaluated as one batch.

    rows: their numbers, (b,). free: for every place whether its label is summed over.
    """

    rows: Tensor
    free: list[bool]


class _Table(NamedTuple):
    """All labellings of a bucket; R is b, or 1 where nothing tells the sentences apart but their unary scores.

    labels: (M, R, N), padding 0. root: (M, R). log: (M, b), heads summed out. scores: of every slot, (M, R, C, N, S).
    """

    labels: Tensor
    root: Tensor
    log: Tensor
    scores: Tensor


def log_density(
    potentials: Potentials, labels: Tensor, root: Tensor | None, scores: Tensor, *chosen: Tensor | None
) -> Tensor:
    """``log φ`` of labels (..., B, N) and the root's label (..., B), with the `slot_scores` that they make, (..., B).

    chosen: heads (..., B, C, N), and nodes where they are a choice of their own, as numbers of slots; None or -1 is
    summed out. A word without any choice makes none, and labels and heads that are not the known ones have no density.
    """
    words = potentials.words
    unary = potentials.unary.masked_fill(~words.unsqueeze(-1), 0.0)
    unary = unary.expand(*common_shape(labels.shape, words.shape), -1)
    slots = labels.clamp(min=0).expand(unary.shape[:-1])  # -1 is padding
    total = unary.gather(-1, slots.unsqueeze(-1)).squeeze(-1).sum(-1) + log_told(potentials, scores, *chosen).sum(-1)
    if potentials.labels is not None:
        other = words & (potentials.labels >= 0) & (potentials.labels != labels)
        total = total.masked_fill(other.any(-1), -torch.inf)
    return total


def log_told(potentials: Potentials, scores: Tensor, *chosen: Tensor | None) -> Tensor:
    """Terms of `log_density` from each word's choices, all channels together, (..., B, N),
    from the scores of its slots.
    """
    total = scores.new_zeros(())
    for x, slots in zip(scores.split(potentials.parts, -1), (*chosen, None, None), strict=False):
        told = log_sum(x)
        if slots is not None:
            told = torch.where(slots < 0, told, x.gather(-1, slots.clamp(min=0).unsqueeze(-1)).squeeze(-1))
        total = total + told.masked_fill((x == -torch.inf).all(-1), 0.0).sum(-2)
    return total


def log_joint(
    potentials: Potentials,
    batch: torch.Size,
    labels: Tensor,
    heads: Tensor | None,
    root: Tensor | None,
    nodes: Tensor | None,
) -> Tensor:
    """`log_density` of labels (..., *batch, N) with what is given of the rest, in the shapes of sentences ``batch``."""
    lead = labels.shape[: labels.dim() - 1 - len(batch)]

    def flat(x: Tensor | None, rank: int) -> Tensor | None:
        return None if x is None else x.reshape(*lead, len(potentials.unary), *x.shape[x.dim() - rank :])

    own, above = labels.reshape(*lead, len(potentials.unary), -1), flat(root, 0)
    if nodes is not None:
        nodes = F.pad(nodes, (0, 0, 0, potentials.channels - nodes.shape[-2]))
    found = log_density(potentials, own, above, potentials.slot_scores(own, above), flat(heads, 2), flat(nodes, 2))
    return found.reshape((*lead, *batch))


def log_partition(potentials: Potentials, buckets: list[Bucket] | None = None) -> Tensor:
    """``log Z = log Σ_Z Σ_H φ(Z, H)`` over what is not known, (B,)."""
    return _over_buckets(potentials, buckets, lambda crf, table: (table.log.logsumexp(0),))[0]


def marginals(potentials: Potentials, buckets: list[Bucket] | None = None) -> Marginals:
    """Exact marginals of labels, heads and root, of B sentences."""

    def of(crf: Potentials, table: _Table) -> tuple[Tensor, ...]:
        weights = table.log.softmax(0)  # (M, b)
        one_hot = F.one_hot(table.labels, crf.unary.shape[-1]).to(weights.dtype)
        heads = torch.cat([safe_softmax(x)[0] for x in table.scores.split(crf.parts, -1)], -1)
        root = F.one_hot(table.root, roots).to(weights.dtype)
        labels, heads, root = (_mean(weights, x) for x in (one_hot, heads, root))
        return labels * crf.words.unsqueeze(-1), heads, root

    roots = 1 if potentials.root is None else potentials.root.shape[-1]
    labels, heads, root = _over_buckets(potentials, buckets, of)
    return Marginals(labels, heads, None if potentials.root is None else root)


def draw_labels(potentials: Potentials, buckets: list[Bucket] | None = None) -> Tensor:
    """An exact draw of all labels, (B, N), by the global generator; 0 for padding."""

    def of(crf: Potentials, table: _Table) -> tuple[Tensor, ...]:
        chosen = (table.log + gumbel(table.log.shape, table.log, None)).argmax(0)
        labels = table.labels.expand(-1, len(chosen), -1)
        return (labels.gather(0, chosen[None, :, None].expand(1, *labels.shape[1:])).squeeze(0),)

    return _over_buckets(potentials, buckets, of)[0]


def _mean(weights: Tensor, x: Tensor) -> Tensor:
    """The sum over labellings of ``weights`` (M, b) times x (M, b or 1, ...), (b, ...)."""
    if x.shape[1] == 1:
        return torch.einsum("mb,mk->bk", weights, x.flatten(1)).unflatten(-1, x.shape[2:])
    return torch.einsum("mb,mbk->bk", weights, x.flatten(2)).unflatten(-1, x.shape[2:])


def alike(words: Tensor, free: Tensor) -> list[Bucket]:
    """Sort sentences by the places of their words whose labels are not known; ``words`` and ``free`` (B, N)."""
    kinds, number = torch.cat([free, (free == words).all(-1, keepdim=True)], -1).unique(dim=0, return_inverse=True)
    return [Bucket((number == k).nonzero()[:, 0], kind[:-1].tolist()) for k, kind in enumerate(kinds)]


def table_size(potentials: Potentials, free: list[bool]) -> tuple[int, int]:
    """Numbers of labellings of a sentence with so many free places, and of entries in their table."""
    roots = 1 if potentials.root is None else potentials.root.shape[-1]
    labellings = potentials.unary.shape[-1] ** sum(free) * roots
    return labellings, labellings * potentials.channels * potentials.unary.shape[-2] * sum(potentials.parts)


def require_small(potentials: Potentials, buckets: list[Bucket], instead: str) -> None:
    """Refuse a table that would be too large, and name what to do ``instead``."""
    labellings, numbers = max(table_size(potentials, bucket.free) for bucket in buckets)
    if numbers > LARGEST:
        raise ValueError(
            f"exact inference over {labellings:.3g} labellings (labels ** words) needs a table of {numbers:.3g} numbers, more than {LARGEST}; {instead}"
        )


def _over_buckets(
    potentials: Potentials, buckets: list[Bucket] | None, of: Callable[[Potentials, _Table], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Values of ``of`` for the table of each bucket, a few sentences at a time, in the order of the sentences."""
    if buckets is None:
        words = potentials.words
        buckets = alike(words, words if potentials.labels is None else words & (potentials.labels < 0))
    require_small(
        potentials, buckets,
        "give a shorter sentence, take inference.annealed_log_partition or inference.gibbs, or use mean_field",
    )  # fmt: skip
    found, order = [], []
    for bucket in buckets:
        several = max(1, LARGEST // table_size(potentials, bucket.free)[1])
        for rows in bucket.rows.split(several):
            own = potentials.sentences(rows)
            found.append(of(own, _table(own, bucket.free)))
            order.append(rows)
    place = torch.cat(order).argsort()
    return tuple(torch.cat(x)[place] for x in zip(*found, strict=True))


def _table(potentials: Potentials, free: list[bool]) -> _Table:
    """Return the table of a bucket, all of whose sentences are in ``potentials``."""
    device, places = potentials.unary.device, len(free)
    every = torch.arange(potentials.unary.shape[-1], device=device)
    roots = torch.arange(1 if potentials.root is None else potentials.root.shape[-1], device=device)
    axes = [every if word else every[:1] for word in free]
    rows = torch.cartesian_prod(*axes, roots).reshape(-1, places + 1).unsqueeze(1)
    labels, root, own = rows[..., :-1], rows[..., -1], potentials
    if potentials.labels is None and potentials.heads is None:
        own = potentials.sentences(rows.new_zeros(1))
    elif potentials.labels is not None:
        given = torch.where(potentials.words, potentials.labels.clamp(min=0), 0)
        labels = torch.where(torch.tensor(free, device=device), labels, given)
    scores = own.slot_scores(labels, root.expand(labels.shape[:-1]))
    return _Table(labels, root.expand(labels.shape[:-1]), log_density(potentials, labels, root, scores), scores)
