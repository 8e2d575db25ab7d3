"""Dependency trees: from scores of arcs to the best heads, word by word, over all trees, or over projective trees.

``arcs`` is (..., N, N + 1): the log score of "word i takes head h", where head 0 is the root and head j the j-th word,
counted from 1 as CoNLL-U does; any finite number, or -inf for an arc that may not be. The entry of a word as its own
head is ignored. ``mask`` is (..., N), True for a word; an absent word neither takes nor gives a head, and its head in
every answer is -1. Trees are sought in float64, sentence after sentence, on the CPU.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probtx_pyro.ops._factor import beside
from probtx_pyro.ops._numerics import common_shape

Scores = NDArray[np.float64]
Heads = NDArray[np.int64]
Solver = Callable[[Scores, bool], Heads | None]
"""From the scores (N, N + 1) of a sentence without absent words, and whether there is a single root,
to its best tree; None if it has none."""


def arc_scores(scores: Tensor, root: Tensor | None = None) -> Tensor:
    """Scores of arcs from scores between words, such as logarithms of head marginals, and scores of being a root.

    Without ``root`` every word has the root score 0. Among trees with a single root that choice does not matter, since
    every tree has it once; then the other arcs choose the root. Where several roots are allowed, and word by word, it
    does matter: 0 is the largest log probability, so that every word prefers the root; give a ``root`` (-inf forbids
    it).

    Parameters
    ----------
    scores
        (..., N, N): of word i taking word j as its head.
    root
        (..., N), of word i being a root; leading axes broadcast.

    Returns
    -------
    arcs
        (..., N, N + 1), the root first.

    Raises
    ------
    ValueError
        ``scores`` not square, or ``root`` not one for each word.

    Examples
    --------
    >>> arc_scores(torch.tensor([[0.0, -1.0], [-2.0, 0.0]])).tolist()
    [[0.0, 0.0, -1.0], [0.0, -2.0, 0.0]]
    """
    if scores.dim() < 2 or scores.shape[-1] != scores.shape[-2]:
        raise ValueError(f"scores must have shape (..., N, N) but has shape {tuple(scores.shape)}; give the root apart")
    words = scores.shape[-1]
    root = scores.new_zeros(words) if root is None else root
    if root.shape[-1:] != (words,):
        raise ValueError(f"root must have shape (..., {words}) but has shape {tuple(root.shape)}; give one a word")
    return beside(root.unsqueeze(-1), scores)


def allowed_arcs(arcs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return ``arcs`` in float64 with -inf where no arc can be, and the mask.

    Parameters
    ----------
    arcs
        (..., N, N + 1), the root first.
    mask
        (..., N), True for a word; None is all words.

    Returns
    -------
    scores, present
        (..., N, N + 1) and (..., N).

    Raises
    ------
    ValueError
        NaN, +inf or scores whose sums may overflow, or shapes or dtypes that do not fit.
    """
    words = arcs.shape[-2] if arcs.dim() >= 2 else 0
    if words == 0 or arcs.shape[-1] != words + 1 or not arcs.is_floating_point():
        raise ValueError(
            f"arcs must be floating and have shape (..., N, N + 1), the root first, but is {arcs.dtype} of shape "
            f"{tuple(arcs.shape)}; build it with arc_scores"
        )
    present = torch.ones(words, dtype=torch.bool, device=arcs.device) if mask is None else mask
    if present.dtype != torch.bool or present.shape[-1:] != (words,):
        raise ValueError(
            f"mask must be boolean and have shape (..., {words}) but is {present.dtype} of shape "
            f"{tuple(present.shape)}; give True for each word"
        )
    try:
        present = present.expand(common_shape(arcs.shape[:-1], present.shape))
    except RuntimeError:
        raise ValueError(
            f"mask {tuple(present.shape)} does not broadcast with arcs {tuple(arcs.shape)}; give one for each sentence"
        ) from None
    heads = torch.nn.functional.pad(present, (1, 0), value=True)
    itself = torch.nn.functional.pad(torch.eye(words, dtype=torch.bool, device=arcs.device), (1, 0))
    scores = arcs.double().masked_fill(~(present.unsqueeze(-1) & heads.unsqueeze(-2)) | itself, -math.inf)
    if not (scores < math.inf).all():
        raise ValueError("arcs contains NaN or +inf; scores are finite, or -inf for an arc that may not be")
    if not (scores.masked_fill(scores == -math.inf, 0.0).abs() <= torch.finfo(scores.dtype).max / (4 * words)).all():
        raise ValueError(f"arcs are so large that the scores of trees of {words} words may overflow; scale them down")
    return scores, present


def argmax_heads(arcs: Tensor, mask: Tensor | None = None) -> Tensor:
    """The best head of each word for itself; together they need not make a tree.

    Parameters
    ----------
    arcs
        (..., N, N + 1), the root first.
    mask
        (..., N), True for a word.

    Returns
    -------
    heads
        (..., N) of int64: 0 for the root, j for the j-th word, -1 for an absent word.

    Raises
    ------
    ValueError
        A word without any head that may be, NaN or +inf, or shapes that do not fit.

    Examples
    --------
    >>> arcs = torch.tensor([[0.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
    >>> argmax_heads(arcs).tolist(), spanning_arborescence(arcs).tolist()
    ([2, 1], [0, 1])
    """
    scores, present = allowed_arcs(arcs, mask)
    best, heads = scores.max(-1)
    lost = (present & (best == -math.inf)).nonzero()
    if len(lost):
        *sentence, word = lost[0].tolist()
        raise ValueError(f"word {word + 1} of {_named(sentence)} may take no head; give it one whose score is finite")
    return heads.masked_fill(~present, -1)


def spanning_arborescence(arcs: Tensor, mask: Tensor | None = None, single_root: bool = True) -> Tensor:
    """The best tree of all: the maximum spanning arborescence, by the algorithm of Chu, Liu and Edmonds in O(N²).

    A single root is part of the search, not of a penalty: trees are compared by their number of roots first and by
    their score second. McDonald et al. 2005, *Non-projective dependency parsing using spanning tree algorithms*.

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
    heads
        (..., N) of int64: 0 for the root, j for the j-th word, -1 for an absent word. One of the best, if several are.

    Raises
    ------
    ValueError
        A sentence that has no tree, NaN or +inf, or shapes that do not fit.

    Examples
    --------
    >>> spanning_arborescence(torch.tensor([[5.0, 0.0, 1.0], [5.0, 2.0, 0.0]]), single_root=False).tolist()
    [0, 0]
    """
    return _decode(arcs, mask, single_root, best_tree)


def eisner(arcs: Tensor, mask: Tensor | None = None, single_root: bool = True) -> Tensor:
    """Return the best projective tree, whose arcs do not cross when drawn above the
    words and the root to their left, in O(N³).

    Eisner 1996, *Three new probabilistic models for dependency parsing*.

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
    heads
        (..., N) of int64: 0 for the root, j for the j-th word, -1 for an absent word. One of the best, if several are.

    Raises
    ------
    ValueError
        A sentence that has no projective tree, NaN or +inf, or shapes that do not fit.

    Examples
    --------
    >>> wished = torch.tensor([3, 0, 2, 2])  # the arc from 3 to 1 crosses the one from the root to 2
    >>> arcs = torch.nn.functional.one_hot(wished, 5).float()
    >>> spanning_arborescence(arcs).tolist(), eisner(arcs).tolist()
    ([3, 0, 2, 2], [2, 0, 2, 2])
    """
    return _decode(arcs, mask, single_root, best_projective_tree)


def _decode(arcs: Tensor, mask: Tensor | None, single_root: bool, solve: Solver) -> Tensor:
    """Return the heads that ``solve`` finds for the words that are there, one sentence after another."""
    scores, present = (x.detach().cpu().numpy() for x in allowed_arcs(arcs, mask))
    heads = np.full(present.shape, -1)
    for sentence in np.ndindex(present.shape[:-1]):
        words = np.flatnonzero(present[sentence])
        nodes = np.append(0, words + 1)
        found = solve(scores[sentence][np.ix_(words, nodes)], single_root)
        if found is None:
            kind = "tree with a single root" if single_root else "tree"
            raise ValueError(f"{_named(sentence)} has no {kind}, since too many scores are -inf; allow more arcs")
        heads[(*sentence, words)] = nodes[found]
    return torch.from_numpy(heads).to(arcs.device)


def _named(sentence: Sequence[int]) -> str:
    return f"sentence {', '.join(map(str, sentence))} of arcs" if len(sentence) else "arcs"


def best_tree(scores: Scores, single_root: bool) -> Heads | None:
    """Maximum spanning arborescence: follow best heads; where they close a cycle, contract it to one node and go on.

    A contracted node lives in the slot of one of its members. Entering a cycle at a member costs the head which that
    member gives up, so that its row is reduced by it. Tarjan 1977, *Finding optimum branchings*; Camerini et al. 1979
    for the order that visits each node once.

    With ``single_root`` the weights are complex: numpy orders complex numbers by their real part, then by their
    imaginary part (see `numpy.sort`). The first holds minus the number of roots, exactly, the second the score, so that
    one comparison decides by both.
    """
    size = len(scores) + 1
    weights = np.full((size, size), -np.inf, complex if single_root else float)  # (dependent, head)
    weights[1:] = scores
    if single_root:
        weights.imag = np.where(weights.real > -np.inf, weights.real, 0)
        weights.real[np.isfinite(weights.real)] = 0
        weights.real[:, 0] -= 1
    arcs = np.arange(size * size).reshape(size, size)  # the arc between words that stands for an arc between slots
    node = list(range(size))  # in each slot: a word, or a cycle, numbered from ``size``
    parent = [-1] * size  # the cycle that has swallowed a node
    taken = [0] * size  # the arc by which a node takes its head
    settled = np.arange(size) == 0
    for start in range(1, size):
        path = [] if settled[start] or parent[start] >= 0 else [start]  # a swallowed word is settled with its cycle
        while path:
            slot = path[-1]
            head = int(weights[slot].argmax())
            if weights[slot, head].real == -np.inf:
                return None
            taken[node[slot]] = int(arcs[slot, head])
            if settled[head]:
                settled[path] = True
                break
            if head not in path:
                path.append(head)
                continue
            cycle = path[path.index(head) :]
            path = [*path[: -len(cycle)], head]
            gains = weights[cycle] - weights[cycle].max(1, keepdims=True)
            entered = gains.argmax(0)
            weights[head] = np.take_along_axis(gains, entered[None], 0)[0]
            arcs[head] = np.take_along_axis(arcs[cycle], entered[None], 0)[0]
            left = weights[:, cycle].argmax(1)[:, None]
            weights[:, head] = np.take_along_axis(weights[:, cycle], left, 1)[:, 0]
            arcs[:, head] = np.take_along_axis(arcs[:, cycle], left, 1)[:, 0]
            weights[head, cycle] = -np.inf
            weights[:, [slot for slot in cycle if slot != head]] = -np.inf
            for member in cycle:
                parent[node[member]] = len(parent)
            node[head] = len(parent)
            parent.append(-1)
            taken.append(0)
    for outer in reversed(range(size, len(parent))):  # the member that the arc enters takes it, the others keep theirs
        member = taken[outer] // size
        while parent[member] != outer:
            member = parent[member]
        taken[member] = taken[outer]
    heads = np.array(taken[1:size], dtype=np.int64) % size
    return None if single_root and (heads == 0).sum() > 1 else heads


def best_projective_tree(scores: Scores, single_root: bool) -> Heads | None:
    """Eisner's chart over the root and the words, all spans of one width at a time.

    A span is headed by its left or its right end. It is *open* if its other end is a dependent that still lacks
    dependents further away, else *closed*: open = closed + closed + arc, closed = open + closed. Charts are stored by
    [start, width] or by [end, width], so that the two parts at every split lie in two slices.
    """
    size = len(scores) + 1
    chart = np.full((6, size, size), -np.inf)
    right_from, right_to, left_from, left_to, open_right, open_left = chart  # headed by the left end: "right"
    chart[:4, :, 0] = 0.0
    # by [start, width]: of open spans, closed right ones, closed left ones
    splits = np.zeros((3, size, size), np.int64)
    arcs = np.vstack([np.full(size, -np.inf), scores])  # (dependent, head)
    for width in range(1, size):
        spans = np.arange(size - width)
        ends = spans + width
        halves = right_from[:-width, :width] + left_to[width:, width - 1 :: -1]
        if single_root:
            halves[0, 1:] = -np.inf  # the root takes its dependent before it has any
        best = splits[0, :-width, width] = halves.argmax(1)
        joined = halves[spans, best]
        open_right[:-width, width] = joined + arcs[ends, spans]
        open_left[width:, width] = joined + arcs[spans, ends]
        halves = open_right[:-width, 1 : width + 1] + right_to[width:, width - 1 :: -1]
        best = splits[1, :-width, width] = halves.argmax(1)
        right_from[:-width, width] = right_to[width:, width] = halves[spans, best]
        halves = left_from[:-width, :width] + open_left[width:, width:0:-1]
        best = splits[2, :-width, width] = halves.argmax(1)
        left_from[:-width, width] = left_to[width:, width] = halves[spans, best]
    if right_from[0, -1] == -np.inf:
        return None
    heads = np.zeros(size, np.int64)
    todo = [(False, True, 0, size - 1)]
    while todo:
        is_open, right, start, end = todo.pop()
        if start == end:
            continue
        middle = start + int(splits[0 if is_open else 2 - right, start, end - start])
        if is_open:
            heads[end if right else start] = start if right else end
            todo += [(False, True, start, middle), (False, False, middle + 1, end)]
        else:
            middle += right  # its open part comes first, and is one word wide at least
            todo += [(right, right, start, middle), (not right, right, middle, end)]
    return heads[1:]
