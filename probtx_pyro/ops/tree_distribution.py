"""The distribution over dependency trees ``p(tree) ∝ exp(sum of the scores of its arcs)``: normaliser,
marginals, entropy.

Koo et al. 2007, *Structured prediction models via the matrix-tree theorem*, and Smith & Smith 2007 have the normaliser
as the determinant of a Laplacian. Two words whose best heads are each other make that matrix singular to rounding as
soon as the other arcs are 37 nats behind. Here the same determinant is found by elimination without subtraction
(Grassmann, Taksar & Heyman 1985), in logarithms: dependents of the eliminated word pass to its heads, in proportion.
The answer is right to rounding whatever the scale of the scores. It takes N steps on tables of (N, N + 2), and memory
O(N³) for gradients.

``arcs`` and ``mask`` are those of `probtx_pyro.ops.trees`. Computed in float64, returned in the dtype of ``arcs``.
"""

import math

import torch
from torch import Tensor

from probtx_pyro.ops._numerics import log_sum
from probtx_pyro.ops.trees import allowed_arcs


def tree_log_partition(arcs: Tensor, mask: Tensor | None = None, single_root: bool = True) -> Tensor:
    """``log Σ_trees exp(score)``; differentiable, also twice.

    Parameters
    ----------
    arcs
        (..., N, N + 1), the root first.
    mask
        (..., N), True for a word.
    single_root
        Whether exactly one word takes the root as its head; otherwise one or more.

    Returns
    -------
    log_partition
        (...); -inf, with zero gradients, where there is no tree, and 0 for a sentence without words.

    Raises
    ------
    ValueError
        NaN or +inf, or shapes that do not fit.

    Examples
    --------
    >>> tree_log_partition(torch.zeros(3, 4)).exp().round().item()  # N^(N-1) trees with a single root
    9.0
    >>> tree_log_partition(torch.zeros(3, 4), single_root=False).exp().round().item()  # (N+1)^(N-1) with any number
    16.0
    """
    return _log_partition(*allowed_arcs(arcs, mask), single_root).to(arcs.dtype)


def tree_marginals(arcs: Tensor, mask: Tensor | None = None, single_root: bool = True) -> Tensor:
    """Return the probability of each arc in a random tree:
    the gradient of `tree_log_partition`. Differentiable if ``arcs`` is.

    Parameters
    ----------
    arcs, mask, single_root
        As in `tree_log_partition`.

    Returns
    -------
    marginals
        (..., N, N + 1). The row of a word sums to 1; rows of absent words, and of sentences without a tree, are 0.

    Raises
    ------
    ValueError
        NaN or +inf, or shapes that do not fit.

    Examples
    --------
    >>> tree_marginals(torch.zeros(2, 3)).tolist()
    [[0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]
    """
    wanted = torch.is_grad_enabled() and arcs.requires_grad
    scores, present = allowed_arcs(arcs, mask)
    with torch.inference_mode(False), torch.enable_grad():
        scores = scores if wanted else scores.detach().clone().requires_grad_()
        total = _log_partition(scores, present, single_root).sum()
        (marginals,) = torch.autograd.grad(total, scores, create_graph=wanted)
        # Beyond 1e9 or so an ulp of the scores is a share that can be seen, and the shares of one word may be those of
        # several trees.
        clipped = marginals.clamp(min=0.0)
        total = clipped.sum(-1, keepdim=True)
        off = (marginals < -1e-6).any(-1, keepdim=True) | ((total - 1).abs() > 1e-6)
        marginals = torch.where(off, clipped / torch.where(total > 0, total, 1.0), marginals)
    return marginals.to(arcs.dtype)


def tree_entropy(arcs: Tensor, mask: Tensor | None = None, single_root: bool = True) -> Tensor:
    """Return the entropy in nats of the distribution over trees:
    its log-normaliser less the expected score; differentiable.

    Parameters
    ----------
    arcs, mask, single_root
        As in `tree_log_partition`.

    Returns
    -------
    entropy
        (...); -inf where there is no tree.

    Raises
    ------
    ValueError
        NaN or +inf, or shapes that do not fit.

    Examples
    --------
    >>> round(tree_entropy(torch.zeros(3, 4)).exp().item())
    9
    """
    marginals = tree_marginals(arcs.double(), mask, single_root)
    expected = (marginals * arcs.double().masked_fill(marginals == 0, 0.0)).sum((-2, -1))
    return (tree_log_partition(arcs.double(), mask, single_root) - expected).to(arcs.dtype)


@torch.no_grad()
def draw_trees(
    arcs: Tensor,
    num_draws: int,
    generator: torch.Generator | None = None,
    mask: Tensor | None = None,
    single_root: bool = True,
) -> Tensor:
    """Draw independent trees exactly: the head of one word after the other from its
    marginals given the heads drawn before.

    Parameters
    ----------
    arcs, mask, single_root
        As in `tree_log_partition`.
    num_draws
        Trees of each sentence. All are one batch; each costs N times what `tree_marginals` does.
    generator
        Of the numbers drawn, on the device of ``arcs``; None is torch's own.

    Returns
    -------
    heads
        (draw, ..., N), 0 for the root and j for the j-th word; -1 for absent words, and throughout where there is no
        tree.

    Raises
    ------
    ValueError
        NaN or +inf, shapes that do not fit, or no draws.

    Examples
    --------
    >>> draw_trees(torch.tensor([[0.0, 0.0, -torch.inf], [0.0, 0.0, 0.0]]), 2)  # word 2 must have word 1 as its head
    tensor([[0, 1],
            [0, 1]])
    """
    if num_draws < 1:
        raise ValueError(f"num_draws must be 1 or more, not {num_draws}")
    scores, present = allowed_arcs(arcs, mask)
    scores = scores.expand(num_draws, *scores.shape).clone()
    heads = torch.full(scores.shape[:-1], -1, device=arcs.device)
    slot = torch.arange(scores.shape[-1], device=arcs.device)
    for word in range(scores.shape[-2]):
        row = tree_marginals(scores, present, single_root)[..., word, :].clamp(min=0.0)
        some = row.sum(-1) > 0
        flat = torch.where(some.unsqueeze(-1), row, 1.0).reshape(-1, len(slot))
        drawn = torch.multinomial(flat, 1, generator=generator).reshape(some.shape)
        heads[..., word] = torch.where(some, drawn, -1)
        scores[..., word, :].masked_fill_(slot != drawn.unsqueeze(-1), -math.inf)
    return heads


def _log_partition(scores: Tensor, present: Tensor, single_root: bool) -> Tensor:
    """Return the normaliser of checked scores, (..., N, N + 1) in float64,
    by elimination from the last word to the first.
    """
    peak = scores.detach().amax(
        -1, keepdim=True
    )  # every tree takes one arc of each word: what its scores share costs no digits
    peak = peak.masked_fill(peak == -math.inf, 0.0)
    scores = scores - peak
    root, none = scores[..., :1], torch.full_like(scores[..., :1], -math.inf)
    first, reached = (root, none) if single_root else (none, root)
    reached = reached.masked_fill(~present.unsqueeze(-1), 0.0)  # an absent word is a factor of 1
    # Heads of the words not yet eliminated: the root as the only word that takes it, the root through a word that has
    # taken it already (any number may, without single_root), and those words.
    table = torch.cat((first, reached, scores[..., 1:]), -1)
    log_partition = scores.new_zeros(scores.shape[:-2])
    column = torch.arange(table.shape[-1], device=table.device)
    taken = torch.where(column == 1, 0.0, -math.inf).to(table)
    for word in range(scores.shape[-2] - 1, -1, -1):
        row, through, table = table[..., word, : word + 2], table[..., :word, word + 2], table[..., :word, : word + 2]
        total = log_sum(row[..., 1:])
        is_root = total == -math.inf  # no other head is left: this is the single root, and no other word may be
        total = torch.where(is_root, row[..., 0], total)
        log_partition = log_partition + total
        is_root = is_root.unsqueeze(-1)
        onward = torch.where(is_root, taken[: word + 2], row - total.unsqueeze(-1))
        table = table.masked_fill(is_root.unsqueeze(-1) & (column[: word + 2] == 0), -math.inf)
        table = log_sum(torch.stack((table, through.unsqueeze(-1) + onward.unsqueeze(-2))), 0)
    log_partition = log_partition + peak.sum((-2, -1))
    return log_partition.masked_fill(log_partition == -math.inf, -math.inf)
