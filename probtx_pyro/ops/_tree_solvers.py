"""The best tree of one sentence, on numpy arrays of scores (N, N + 1) without absent words;
None if there is no tree.
"""

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Heads = NDArray[np.int64]


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
