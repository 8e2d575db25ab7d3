"""What the authors' encoders (whyNLP/Probabilistic-Transformer) compute for one sentence, written from their description in numpy.

Their conventions: potentials (G, L, L, C), global nodes (M, L, C'), root (L, K, C); head scores are multiplied by L and divided by
``regularize_h``; head logits start at 1; what is forbidden gets -1e9. Nothing of the package, and no line of theirs.
"""

from typing import NamedTuple

import numpy as np

NEVER = -1e9


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def relu(x):
    positive = np.maximum(x, 0)
    return positive / np.maximum(positive.sum(-1, keepdims=True), 1e-12)


class Options(NamedTuple):
    """The published names, but for ``_H`` and ``_Z``."""

    n_iter: int = 4
    async_update: bool = True
    damping_h: float = 0.0
    damping_z: float = 0.0
    stepsize_h: float = 1.0
    stepsize_z: float = 1.0
    regularize_h: float = 1.0
    regularize_z: float = 1.0
    norm: object = softmax
    mode: str = "all-attn"
    head_root: bool = True  # False: the first word, which stands for the root, sends nothing as a dependent
    block_msg: bool = False


class Encoded(NamedTuple):
    """logits, probabilities: of labels (N, L). heads: (C, N, S). root: logits (K,)."""

    logits: np.ndarray
    probabilities: np.ndarray
    heads: np.ndarray
    root: np.ndarray | None = None


def from_factors(u, v, w=None):
    """``use_td``: uv (G, L, r, C) twice, or uvw (G, L, r) twice and (G, C, r)."""
    if w is None:
        return np.einsum("kadc,kbdc->kabc", u, v)
    return np.einsum("kad,kbd,kcd->kabc", u, v, w)


def by_pairs(ternary, dists, length):
    """(C, N, N, L, L): the potential of every arc, zero between a word and itself."""
    pairs = np.zeros((ternary.shape[-1], length, length, *ternary.shape[1:3]))
    for i in range(length):
        for j in range(length):
            if i != j:
                ring = sum(abs(i - j) >= edge for edge in dists)
                pairs[:, i, j] = np.moveaxis(ternary[ring if j > i else ring + len(dists) + 1], -1, 0)
    return pairs


def scores(q, pairs):
    return np.einsum("ia,jb,cijab->cij", q, q, pairs)


def told(q, heads, pairs, block=False):
    up = np.einsum("jb,cij,cijab->ia", q, heads, pairs)
    return up if block else up + np.einsum("jb,cji,cjiba->ia", q, heads, pairs)


def mix(old, new, share):
    return (1 - share) * old + share * new


def head_norm(o, length, node_channels):
    """Attention over words and nodes together, or normalised apart with nodes in the first channels only."""
    if o.mode == "all-attn":
        return o.norm

    def apart(h):
        nodes = o.norm(h[..., length:])
        nodes[node_channels:] = 0
        return np.concatenate([o.norm(h[..., :length]), nodes], -1)

    return apart


def encode(x, words, ternary, dists=(), o=None, root=None, nodes=None):
    """The encoders with a root or with global nodes, in which forbidden heads are excluded before normalising."""
    o = o or Options()
    (length, labels), channels = x.shape, ternary.shape[-1]
    pairs, real = by_pairs(ternary, dists, length), words[:, None].astype(float)
    first, last = int(root is not None), 0 if nodes is None else nodes.shape[0]
    slots = np.concatenate([np.ones(first), words, np.ones(last)]).astype(bool)
    forbidden = ~(words[:, None] & slots)
    forbidden[:, first : first + length] |= np.eye(length, dtype=bool)
    own = slice(first, first + length)
    normalize = head_norm(o, length, 0 if nodes is None else nodes.shape[-1])
    z, r = x * real, np.zeros(0 if root is None else root.shape[1])
    h = np.where(forbidden, NEVER, np.ones((channels, length, len(slots))))
    full = np.zeros((last, labels, channels))
    if nodes is not None:
        full[..., : nodes.shape[-1]] = nodes
    qz, qh, qr = o.norm(z), normalize(h), softmax(r) if first else None

    def from_labels(q):
        parts = [scores(q, pairs), np.einsum("ia,mac->cim", q, full)]
        if first:
            parts.insert(0, np.einsum("ia,r,arc->ci", q, qr, root)[..., None])
        return np.concatenate(parts, -1) * labels / o.regularize_h

    def from_heads(q, heads):
        sent = heads.copy()
        if not o.head_root:
            sent[:, 0] = 0
        message = told(q, sent[..., own], pairs) + np.einsum("cim,mac->ia", sent[..., first + length :], full)
        if not first:
            return message, None
        message = message + np.einsum("ci,r,arc->ia", sent[..., 0], qr, root)
        return message, np.einsum("ci,ia,arc->r", sent[..., 0], q, root)

    for t in range(o.n_iter):
        qz = o.norm(z) if t == 0 else mix(qz, o.norm(z), o.stepsize_z)
        if first and t:
            qr = mix(qr, o.norm(r), o.stepsize_z)
        if o.async_update:
            h = o.damping_h * h + (1 - o.damping_h) * from_labels(qz * real)
            h[:, forbidden] = NEVER
            qh = normalize(h) if t == 0 else mix(qh, normalize(h), o.stepsize_h)
            message, to_root = from_heads(qz * real, qh)
        else:
            h[:, forbidden] = NEVER
            qh = mix(qh, normalize(h), o.stepsize_h)
            message, to_root = from_heads(qz * real, qh)
            h = o.damping_h * h + (1 - o.damping_h) * from_labels(qz * real)
        z = o.damping_z * z + (1 - o.damping_z) / o.regularize_z * (x + message)
        if first:
            r = o.damping_z * r + (1 - o.damping_z) / o.regularize_z * to_root
    return Encoded(z, mix(qz, o.norm(z), o.stepsize_z) * real, qh, r if first else None)


def encode_oldest(x, words, ternary, dists=(), o=None):
    """The first encoder: normalised over all N words, and only then are the diagonal and the padding set to zero."""
    o = o or Options()
    (length, labels), real = x.shape, words[:, None].astype(float)
    pairs = by_pairs(ternary, dists, length) * labels
    z, h = x, np.ones((ternary.shape[-1], length, length))
    qz, qh = o.norm(z), o.norm(h)

    def shown(heads):
        return heads * ~np.eye(length, dtype=bool) * (words[:, None] & words)

    for _ in range(o.n_iter):
        qz = mix(qz, o.norm(z), o.stepsize_z)
        if not o.async_update:
            qh = mix(qh, o.norm(h), o.stepsize_h)
        h = o.damping_h * h + (1 - o.damping_h) * scores(qz * real, pairs) / o.regularize_h
        if o.async_update:
            qh = mix(qh, o.norm(h), o.stepsize_h)
        message = told(qz * real, shown(qh), pairs, o.block_msg)
        z = o.damping_z * z + (1 - o.damping_z) * (x + message) / o.regularize_z / labels
    if not o.async_update:
        qh = mix(qh, o.norm(h), o.stepsize_h)
    return Encoded(z, mix(qz, o.norm(z), o.stepsize_z) * real, shown(qh))
