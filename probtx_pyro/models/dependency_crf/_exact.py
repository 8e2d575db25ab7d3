"""Exact inference by summing over all labellings: the heads, given the labels, are independent and sum out in closed form."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from probtx_pyro.ops import safe_softmax
from probtx_pyro.ops.dependency_crf import Potentials, group_of

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


def log_partition(potentials: Potentials) -> Tensor:
    """``log Z = log Σ_Z Σ_H φ(Z, H)``, (B,)."""
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
    labellings = count ** int(potentials.words.sum(-1).max()) * roots
    numbers = labellings * potentials.channels * length * sum(potentials.parts)
    if numbers > LARGEST:
        raise ValueError(
            f"exact inference over {labellings:.3g} labellings (labels ** words) needs a table of {numbers:.3g} numbers, more than {LARGEST}; give a shorter sentence, or use mean_field"
        )
    groups = group_of(potentials.distances, length, potentials.unary.device)
    allowed = potentials.allowed()
    return [_table(potentials, n, groups, allowed[n], roots) for n in range(len(potentials.unary))]


def _table(potentials: Potentials, n: int, groups: Tensor, allowed: Tensor, roots: int) -> _Table:
    ternary = potentials.full_ternary()
    words, unary = potentials.words[n], potentials.unary[n]
    length, count = unary.shape
    axes = [torch.arange(count if word else 1, device=unary.device) for word in words.tolist()]
    every = torch.cartesian_prod(*axes, torch.arange(roots, device=unary.device)).reshape(-1, length + 1)
    labels, root = every[:, :-1], every[:, -1]
    own = unary[torch.arange(length, device=unary.device), labels].masked_fill(~words, 0.0).sum(-1)
    arcs = ternary[:, groups.expand(len(labels), -1, -1), labels.unsqueeze(-1), labels.unsqueeze(-2)]
    slots = [arcs.transpose(0, 1)]
    if potentials.root is not None:
        slots.insert(0, potentials.root[:, labels, root.unsqueeze(-1)].transpose(0, 1).unsqueeze(-1))
    if potentials.memory is not None:
        nodes = potentials.memory[:, :, labels].permute(2, 0, 3, 1)
        slots.append(F.pad(nodes, (0, 0, 0, 0, 0, ternary.shape[0] - nodes.shape[1])))
    scores = torch.cat(slots, -1).masked_fill(~allowed, -math.inf)
    heads, log = zip(*(safe_softmax(x) for x in scores.split(potentials.parts, -1)), strict=True)
    told = sum(x.masked_fill(x == -math.inf, 0.0).sum((-2, -1)) for x in log)  # a word without any choice makes none
    return _Table(labels, root, own + told, torch.cat(heads, -1))
