"""One encoder of words between the dependency CRF and a transformer: every difference of the two is a switch.

A state x (B, N, L) starts as the unary scores S. A layer reads ``h = read(x)``, attends, and writes. With ``q^g = h U^g`` and
``k^g = h V^g``, by channel c and offset g of two words,

    F_ij = q_i^{g(i,j)} . k_j^{g(i,j)},    A_i = softmax_j(scale F_ij),
    m_i = Σ_j A_ij k_j^{g(i,j)} U^{g(i,j)}' + Σ_j A_ji q_j^{g(j,i)} V^{g(j,i)}',    x' = S + m.

With `Edits` all off this is a sweep of `nn.DependencyCRFEncoder` with potentials ``U V'``: ``read`` is the softmax over labels, and
scale is ``1 / λ_H``. With all on it is a layer of `nn.TransformerEncoder` with relative positions.
"""

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import jvp
from torch.nn import functional as F


class Edits(NamedTuple):
    """What is edited; all off is the dependency CRF, all on the transformer. The first seven are those of the protocol.

    own_head: a word may be its own head, with potentials of that offset.
    heads_only: no message from the dependents, the second sum of m.
    untied_values: values ``h W`` and output weights O of their own in the place of k and U (q and V, from dependents).
    residual: ``x' = x + m``; dropout on m, not on the new state.
    layer_norm: reads by a layer norm in the place of the softmax, with one more at the end. What goes with the size of what is read
        goes with it: scale is ``1 / sqrt(columns)`` in the place of L, and factors start as the projections of a transformer do.
    feed_forward: ``x'' = x' + feed(read(x'))`` in the place of global nodes.
    unshared: layers with parameters of their own, as many as the transformer has, in the place of sweeps of one.
    plain_heads: one pair of projections a channel, ``L / C`` columns wide, with biases, and a bias of the logits for each offset, in
        the place of a pair of factors of low rank for each offset.
    """

    own_head: bool = False
    heads_only: bool = False
    untied_values: bool = False
    residual: bool = False
    layer_norm: bool = False
    feed_forward: bool = False
    unshared: bool = False
    plain_heads: bool = False

    @classmethod
    def of(cls, names: Iterable[str]) -> "Edits":
        """Return the edits with these on."""
        return cls(**dict.fromkeys(names, True))

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are on."""
        return tuple(name for name, on in self._asdict().items() if on)

    @property
    def objective(self) -> str:
        """What the heads maximise exactly and the labels climb, where the step of all labels at once does not overshoot.

        A message that is not a gradient climbs nothing: its Jacobian is not symmetric.
        """
        broken = [name for name in ("heads_only", "untied_values", "feed_forward") if getattr(self, name)]
        if broken:
            return "none: " + ", ".join(name.replace("_", " ") for name in broken)
        if self.residual or self.layer_norm:
            return "the energy of arcs, without the entropy of labels"
        own = ", a word and its head as two copies" if self.own_head else ""
        return ("the ELBO of each layer" if self.unshared else "the ELBO") + own


class Layer(nn.Module):
    """A layer, or a sweep; shapes: x, unary (B, N, L), words (B, N) with True at words, bias (C, N, N) -> (B, N, L)."""

    def __init__(self, width: int, heads: int, rank: int, offsets: list[int], nodes: int, dropout: float, edits: Edits):
        super().__init__()
        self.edits, self.dropout, self.offsets, self.last = edits, dropout, offsets, max(offsets)
        groups, columns = (1, width // heads) if edits.plain_heads else (len(offsets), rank)
        self.scale = columns**-0.5 if edits.layer_norm else float(width)

        def factor(fan: int) -> nn.Parameter:
            made = torch.empty(heads, groups, width, columns)
            if edits.layer_norm:
                return nn.Parameter(made.uniform_(-1, 1) * math.sqrt(6 / (fan * width)))  # Glorot, fan x width channels
            return nn.Parameter(made.normal_(std=(columns * width) ** -0.25))

        def zeros(*shape: int) -> nn.Parameter | None:
            return nn.Parameter(torch.zeros(shape)) if edits.plain_heads else None

        def memory() -> nn.Parameter:
            return nn.Parameter(torch.randn(heads, nodes, width) * width**-0.5)

        untied = edits.untied_values
        self.query, self.key = factor(4), factor(4)
        self.value, self.output = (factor(4), factor(2)) if untied else (None, None)
        self.query_bias, self.key_bias = zeros(heads, columns), zeros(heads, columns)
        self.value_bias, self.output_bias = (zeros(heads, columns), zeros(width)) if untied else (None, None)
        has_nodes = nodes > 0 and not edits.feed_forward
        self.memory = memory() if has_nodes else None
        self.memory_values = memory() if has_nodes and untied else self.memory
        self.norm, self.feed_norm = nn.Softmax(-1), nn.Softmax(-1)
        if edits.layer_norm:
            self.norm = nn.LayerNorm(width)
        if edits.feed_forward:
            self.feed_norm = nn.LayerNorm(width) if edits.layer_norm else self.feed_norm
            self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            nn.init.xavier_uniform_(self.widen.weight)
            nn.init.xavier_uniform_(self.narrow.weight)

    def projected(self, h: Tensor, factor: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return h of every channel and offset, (B, C, G, N, columns)."""
        made = torch.einsum("bnl,cglr->bcgnr", h, factor)
        return made if bias is None else made + bias[:, None, None]

    def arcs(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return F, (B, C, N, N), where the rows of near words are diagonals."""
        if queries.shape[2] == 1:
            return (queries @ keys.mT).squeeze(2)
        length, last = queries.shape[3], self.last
        by_offset = dict(zip(self.offsets, zip(queries.unbind(2), keys.unbind(2), strict=True), strict=True))
        left, right = (q @ k.mT for q, k in (by_offset[-last], by_offset[last]))
        scores = torch.where(queries.new_ones(length, length).triu(1) > 0, right, left)
        for offset, (q, k) in by_offset.items():
            if abs(offset) < min(last, length):
                above, below = max(-offset, 0), max(offset, 0)
                pairs = q[..., above : length - below, :] * k[..., below : length - above, :]
                scores.diagonal(offset, -2, -1).copy_(pairs.sum(-1))
        return scores

    def heard(self, weights: Tensor, values: Tensor, sign: int = 1) -> Tensor:
        """Return ``Σ_j weights_ij values_j`` by offset ``sign (j - i)``, (B, C, G, N, columns)."""
        if values.shape[2] == 1:
            return weights.unsqueeze(2) @ values
        length, found = weights.shape[-1], []
        for offset, x in zip((sign * offset for offset in self.offsets), values.unbind(2), strict=True):
            if abs(offset) == self.last:
                found.append((weights.triu(offset) if offset > 0 else weights.tril(offset)) @ x)
            elif abs(offset) >= length:
                found.append(torch.zeros_like(x))
            else:
                near = (
                    weights.diagonal(offset, -2, -1).unsqueeze(-1) * x[..., max(offset, 0) : length + min(offset, 0), :]
                )
                found.append(F.pad(near, (0, 0, max(-offset, 0), max(offset, 0))))
        return torch.stack(found, 2)

    def logits(self, h: Tensor, words: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return logits of slots, words and then nodes, (B, C, N, S), -inf where one is not allowed; the rows that have a slot,
        (B, 1, N, 1); queries and keys.
        """
        queries = self.projected(h, self.query, self.query_bias)
        keys = self.projected(h, self.key, self.key_bias)
        found = self.scale * self.arcs(queries, keys)
        found = found if bias is None else found + bias
        allowed = words[:, None, :, None] & words[:, None, None, :]
        if not self.edits.own_head:
            allowed = allowed & ~torch.eye(h.shape[1], dtype=torch.bool)
        if self.memory is not None:
            to_nodes = self.scale * torch.einsum("bnl,cml->bcnm", h, self.memory)
            found, allowed = torch.cat([found, to_nodes], -1), F.pad(allowed, (0, to_nodes.shape[-1]), value=True)
            allowed = allowed & words[:, None, :, None]
        some = allowed.any(-1, keepdim=True)
        return found.masked_fill(some & ~allowed, -torch.inf), some, queries, keys

    def message(self, h: Tensor, words: Tensor, bias: Tensor | None) -> Tensor:
        """Return m, (B, N, L)."""
        logits, some, queries, keys = self.logits(h, words, bias)
        weights = self.dropped(torch.softmax(logits, -1) * some)
        length = h.shape[1]
        arcs = weights[..., :length]
        if self.value is None:
            read, out, back, back_out = keys, self.query, queries, self.key
        else:
            read, out, back_out = self.projected(h, self.value, self.value_bias), self.output, self.value
            back = None if self.edits.heads_only else self.projected(h, self.output)
        m = torch.einsum("bcgnr,cglr->bnl", self.heard(arcs, read), out)
        if not self.edits.heads_only:
            m = m + torch.einsum("bcgnr,cglr->bnl", self.heard(arcs.mT, back, -1), back_out)
        if self.memory_values is not None:
            m = m + torch.einsum("bcnm,cml->bnl", weights[..., length:], self.memory_values)
        return m if self.output_bias is None else m + self.output_bias

    def forward(self, x: Tensor, unary: Tensor, words: Tensor, bias: Tensor | None) -> Tensor:
        """Return the next state."""
        m = self.message(self.norm(x), words, bias)
        x = x + self.dropped(m) if self.edits.residual else self.dropped(unary + m)
        if self.edits.feed_forward:
            x = x + self.dropped(self.narrow(self.dropped(F.gelu(self.widen(self.feed_norm(x))))))
        return x

    def dropped(self, x: Tensor) -> Tensor:
        """Return x after dropout."""
        return F.dropout(x, self.dropout, self.training)


class StaircaseEncoder(nn.Module):
    """Words in context, as `nn.DependencyCRFEncoder` and `nn.TransformerEncoder`: x (B, N, L), mask (B, N), True at padding -> (B, N, L).

    Parameters
    ----------
    width
        L.
    edits
        Names of the `Edits` that are on.
    num_heads
        C, channels or heads.
    max_offset
        Offsets of this many words and more are one, on either side.
    rank
        Columns of the factors, where heads are not plain.
    nodes
        Global nodes of a channel, where there is no feed-forward.
    num_sweeps, num_layers
        Sweeps of one layer, and layers where they are unshared.
    dropout
        Rate.
    """

    def __init__(self, width: int, edits: Iterable[str] = (), *, num_heads: int = 4, max_offset: int = 4, rank: int = 8, nodes: int = 0,
                 num_sweeps: int = 3, num_layers: int = 2, dropout: float = 0.0):  # fmt: skip
        super().__init__()
        self.edits = on = Edits.of(edits)
        self.num_heads, self.max_offset = num_heads, max_offset  # by which a batch is divided, see `train.train_task`
        offsets = [offset for offset in range(-max_offset, max_offset + 1) if offset or on.own_head]
        self.layers = nn.ModuleList(
            Layer(width, num_heads, rank, offsets, nodes, dropout, on) for _ in range(num_layers if on.unshared else 1)
        )
        self.depth = num_layers if on.unshared else num_sweeps
        self.last_norm = nn.LayerNorm(width) if on.layer_norm else nn.Identity()
        self.offset_bias = nn.Parameter(torch.randn(num_heads, 2 * max_offset + 1)) if on.plain_heads else None

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Return each word in its context."""
        return self.last_norm(self.states(x, key_padding_mask)[-1])

    def states(self, x: Tensor, key_padding_mask: Tensor | None = None) -> list[Tensor]:
        """Return the state before each layer, and the last."""
        found, (words, bias) = [x], self.pairs(x, key_padding_mask)
        for k in range(self.depth):
            found.append(self.layers[k % len(self.layers)](found[-1], x, words, bias))
        return found

    def pairs(self, x: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return which are words, and the bias of their offsets."""
        words = torch.ones(x.shape[:2], dtype=torch.bool) if key_padding_mask is None else ~key_padding_mask
        if self.offset_bias is None:
            return words, None
        word = torch.arange(x.shape[1])
        offset = (word - word.unsqueeze(-1)).clamp(-self.max_offset, self.max_offset) + self.max_offset
        return words, self.offset_bias[:, offset]


def plain(layer: Layer, x: Tensor) -> Tensor:
    """Return what a layer reads, before the gains of its norm."""
    return F.layer_norm(x, x.shape[-1:]) if layer.edits.layer_norm else torch.softmax(x, -1)


def energy(layer: Layer, z: Tensor, unary: Tensor, words: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``Σ_i h_i . S_i + Σ_c Σ_i λ_H log Σ_j exp(F_ij / λ_H)`` of each sentence, (B,), with ``λ_H = 1 / scale``.

    It is what the heads have at their best of ``E_Q[log φ] + λ_H H(Q(H))``, a function of what the layer reads, z (B, N, L).
    """
    h = z * layer.norm.weight + layer.norm.bias if layer.edits.layer_norm else z
    logits, some, _, _ = layer.logits(h, words, bias)
    heads = torch.where(some, torch.logsumexp(logits, -1, keepdim=True), 0.0) / layer.scale
    return (h * unary * words.unsqueeze(-1)).sum((-2, -1)) + heads.sum((-3, -2, -1))


def objective(layer: Layer, x: Tensor, unary: Tensor, words: Tensor, bias: Tensor | None) -> Tensor:
    """Return the ELBO at ``λ_Z = 1`` of the CRF that has the queries and keys of a layer, (B,), at the state x (B, N, L).

    Behind a layer norm there are no marginals of labels: then it is `energy`, without their entropy.
    """
    z = plain(layer, x)
    entropy = (
        -(z * torch.log_softmax(x, -1)).sum(-1)
        if not layer.edits.layer_norm
        else torch.zeros_like(words, dtype=x.dtype)
    )
    return energy(layer, z, unary, words, bias) + (entropy * words).sum(-1)


class Climb(NamedTuple):
    """How updates stand to the gradient of the objective, by sentence and layer, (B, layer).

    angle: in degrees. rose: by how much the objective rose.
    """

    angle: Tensor
    rose: Tensor


@torch.no_grad()
def climb(encoder: StaircaseEncoder, x: Tensor, key_padding_mask: Tensor | None = None) -> Climb:
    """Return the angle between each update ``u = x' - x`` and the gradient g of `objective`, and how much that rises.

    The angle is that of changes of what the layer reads: both are directions of the state, whose inner product is ``u' J g`` with the
    Jacobian J of `plain`: for marginals the Fisher metric, where g = S + (gradient of the arcs) - x is the natural gradient. Below 90
    degrees a short step along u raises the objective; in mean field u = g, and the angle is 0.
    """
    states, (words, bias) = encoder.states(x, key_padding_mask), encoder.pairs(x, key_padding_mask)
    found = []
    for k, (before, after) in enumerate(itertools.pairwise(states)):
        layer = encoder.layers[k % len(encoder.layers)]
        with torch.enable_grad():
            z = plain(layer, before).requires_grad_()
            (slope,) = torch.autograd.grad(energy(layer, z, x, words, bias).sum(), z)

        def length(v: Tensor, layer: Layer = layer, at: Tensor = before) -> Tensor:
            squares = v * jvp(lambda state: plain(layer, state), (at,), (v,))[1] * words.unsqueeze(-1)
            return squares.sum((-2, -1), keepdim=True).clamp(min=0.0).sqrt()

        u, g = (v / length(v) for v in (after - before, slope - before))
        angle = 2 * torch.atan2(
            length(u - g), length(u + g)
        )  # Kahan's, which keeps its digits where the angle is small
        rose = objective(layer, after, x, words, bias) - objective(layer, before, x, words, bias)
        found.append((torch.rad2deg(angle).flatten(), rose))
    return Climb(*(torch.stack(each, -1) for each in zip(*found, strict=True)))
