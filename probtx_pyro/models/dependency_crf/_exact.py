"""Exact inference by summing over all labellings: the heads, given the labels, are independent and sum out in closed form."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from probtx_pyro.ops import safe_softmax
from probtx_pyro.ops._numerics import log_sum
from probtx_pyro.ops.dependency_crf import Potentials

LARGEST = 2**26  # numbers in the table of head marginals


class Marginals(NamedTuple):
    """Exact marginals: labels (..., N, L), heads (..., C, N, S), root (..., K) or None; slots as in `MeanField`."""

    labels: Tensor
    heads: Tensor
    root: Tensor | None


class _Table(NamedTuple):
    """All labellings of one sentence. labels: (M, N), padding 0. root: (M,). log: (M,), heads summed out. heads: (M, C, N, S)."""

    labels: Tensor
    root: Tensor
    log: Tensor
    heads: Tensor


def log_density(
    potentials: Potentials, labels: Tensor, root: Tensor | None, scores: Tensor, *chosen: Tensor | None
) -> Tensor:
    """``log φ`` of labels (..., B, N) and the root's label (..., B), with the `slot_scores` that they make, (..., B).

    chosen: heads (..., B, C, N), and nodes where they are a choice of their own, as numbers of slots; None or -1 is summed out. A word
    without any choice makes none, and labels and heads that are not the known ones have no density.
    """
    words = potentials.words
    unary = potentials.unary.masked_fill(~words.unsqueeze(-1), 0.0).expand(*labels.shape, -1)
    total = unary.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1).sum(-1)  # -1 is padding
    for x, slots in zip(scores.split(potentials.parts, -1), (*chosen, None, None), strict=False):
        told = log_sum(x)
        if slots is not None:
            told = torch.where(slots < 0, told, x.gather(-1, slots.clamp(min=0).unsqueeze(-1)).squeeze(-1))
        total = total + told.masked_fill((x == -torch.inf).all(-1), 0.0).sum((-2, -1))
    if potentials.labels is not None:
        other = words & (potentials.labels >= 0) & (potentials.labels != labels)
        total = total.masked_fill(other.any(-1), -torch.inf)
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


def log_partition(potentials: Potentials) -> Tensor:
    """``log Z = log Σ_Z Σ_H φ(Z, H)`` over what is not known, (B,)."""
    return torch.stack([table.log.logsumexp(0) for table in _tables(potentials)])


def marginals(potentials: Potentials) -> Marginals:
    """Exact marginals of labels, heads and root, of B sentences."""
    found, roots = [], 1 if potentials.root is None else potentials.root.shape[-1]
    for n, table in enumerate(_tables(potentials)):
        weights = table.log.softmax(0)
        one_hot = F.one_hot(table.labels, potentials.unary.shape[-1]).to(weights.dtype)
        labels = torch.einsum("m,mia->ia", weights, one_hot) * potentials.words[n].unsqueeze(-1)
        heads = torch.einsum("m,mcis->cis", weights, table.heads)
        found.append((labels, heads, weights @ F.one_hot(table.root, roots).to(weights.dtype)))
    labels, heads, root = (torch.stack(x) for x in zip(*found, strict=True))
    return Marginals(labels, heads, None if potentials.root is None else root)


def _tables(potentials: Potentials) -> list[_Table]:
    """One table a sentence; refused where it would be too large."""
    roots = 1 if potentials.root is None else potentials.root.shape[-1]
    length, count = potentials.unary.shape[-2:]
    free = potentials.words if potentials.labels is None else potentials.words & (potentials.labels < 0)
    labellings = count ** int(free.sum(-1).max()) * roots
    numbers = labellings * potentials.channels * length * sum(potentials.parts)
    if numbers > LARGEST:
        raise ValueError(
            f"exact inference over {labellings:.3g} labellings (labels ** words) needs a table of {numbers:.3g} numbers, more than {LARGEST}; give a shorter sentence, take inference.annealed_log_partition or inference.gibbs, or use mean_field"
        )
    return [_table(potentials.sentence(n), free[n], roots) for n in range(len(potentials.unary))]


def _table(potentials: Potentials, free: Tensor, roots: int) -> _Table:
    """Return the table of one sentence, the only one of ``potentials``."""
    every = torch.arange(potentials.unary.shape[-1], device=free.device)
    known = torch.zeros_like(free, dtype=torch.long)
    if potentials.labels is not None:
        known = torch.where(potentials.words[0], potentials.labels[0].clamp(min=0), 0)
    axes = [every if word else known[i : i + 1] for i, word in enumerate(free.tolist())]
    table = torch.cartesian_prod(*axes, torch.arange(roots, device=free.device)).reshape(-1, len(axes) + 1).unsqueeze(1)
    labels, root = table[..., :-1], table[..., -1]
    scores = potentials.slot_scores(labels, root)
    heads = torch.cat([safe_softmax(x)[0] for x in scores.split(potentials.parts, -1)], -1)
    log = log_density(potentials, labels, root, scores)
    return _Table(labels[:, 0], root[:, 0], log[:, 0], heads[:, 0])
