"""Problem set 4, solved."""

import itertools
import math

import torch
from torch import Tensor


def _without_self(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.eye(len(scores), dtype=torch.bool), -math.inf)


def head_update(labels: Tensor, ternary: Tensor) -> Tensor:
    """Attend with labels as queries and keys, the word itself left out before the softmax."""
    return _without_self(labels @ ternary @ labels.T).softmax(-1)


def label_update(labels: Tensor, heads: Tensor, unary: Tensor, ternary: Tensor) -> Tensor:
    """Add the message of the heads and that of the words that may have this one as their head."""
    return (unary + heads @ labels @ ternary.T + heads.T @ labels @ ternary).softmax(-1)


def log_partition(unary: Tensor, ternary: Tensor) -> Tensor:
    """Sum over labellings; given one, every word sums over its heads."""
    words, num_labels = unary.shape
    terms = []
    for labelling in itertools.product(range(num_labels), repeat=words):
        z = torch.tensor(labelling)
        terms.append(unary[range(words), z].sum() + _without_self(ternary[z][:, z]).logsumexp(-1).sum())
    return torch.stack(terms).logsumexp(0)


def elbo(labels: Tensor, heads: Tensor, unary: Tensor, ternary: Tensor) -> Tensor:
    """Expected score plus entropies."""
    score = (labels * unary).sum() + (heads * (labels @ ternary @ labels.T)).sum()
    return score + torch.special.entr(labels).sum() + torch.special.entr(heads).sum()


def tree_log_partition(scores: Tensor, root_scores: Tensor) -> Tensor:
    """Take the determinant of the Laplacian (the matrix-tree theorem)."""
    weights = _without_self(scores).exp()
    return torch.linalg.slogdet(torch.diag(root_scores.exp() + weights.sum(-1)) - weights).logabsdet


def equivalent(slopes: Tensor, log_mask: Tensor, shift: Tensor, precision: float) -> tuple[Tensor, Tensor]:
    """Displace, divide, and put the squares into the weights."""
    locations = (slopes + shift) / precision
    return locations, (log_mask + precision / 2 * locations.square().sum(-1)).log_softmax(-1)


def likeliest(queries: Tensor, slopes: Tensor, log_mask: Tensor) -> tuple[Tensor, float]:
    """Climb the evidence, which is concave in shift and precision, with L-BFGS."""
    shift = torch.zeros(queries.shape[-1], dtype=queries.dtype, requires_grad=True)
    log_precision = torch.zeros((), dtype=queries.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([shift, log_precision], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        precision = log_precision.exp()
        locations, log_weights = equivalent(slopes, log_mask, shift, precision)
        squares = (queries[:, None] - locations).square().sum(-1)
        log_joint = log_weights + queries.shape[-1] / 2 * log_precision - precision / 2 * squares
        value = -log_joint.logsumexp(-1).mean()
        optimizer.zero_grad()
        value.backward()
        return value

    optimizer.step(loss)
    return shift.detach(), float(log_precision.detach().exp())
