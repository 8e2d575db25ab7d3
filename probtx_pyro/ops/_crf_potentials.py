"""A dependency CRF as plain tensors, its potentials and the slots that heads may take, and the rules by which marginals
follow their scores: temperature, damping, step, normaliser and dropout.

The table of symbols and shapes is in `probtx_pyro.ops.dependency_crf`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

Labels = Float[Tensor, "sentence word label"]
ROW = 16  # a CPU takes the softmax of rows of 16 in a tenth to a quarter of the time of shorter ones


def softmax(logits: Tensor, axis: int = -1) -> Tensor:
    """Return the softmax as ``torch.softmax`` does,
    but on a CPU rows that are short are filled up to 16 numbers first.
    """
    length = logits.shape[-1]
    if axis != -1 or not 2 < length < ROW or logits.device.type != "cpu":
        return torch.softmax(logits, axis)
    return torch.softmax(F.pad(logits, (0, ROW - length), value=-torch.inf), -1)[..., :length]


class Choices(NamedTuple):
    """Which slots may be chosen, as `Rule` takes them.

    bias: (B, 1 or C, N, S), added to logits: 0 for a slot that is allowed, -inf for another; 0 throughout where none is
    allowed.
    some: (B, 1 or C, N, choices), 1 where any slot of a choice is allowed, else 0.
    largest: what marginals are multiplied by is at most this, a number or a scalar tensor.
    """

    bias: Tensor
    some: Tensor
    largest: float | Tensor = 1.0


class Rule(NamedTuple):
    """Rule by which marginals follow their scores: one for labels, one for heads.

    temperature: divides the scores, λ_Z or λ_H.
    step: share of the new marginals, the rest are those before; 1 is a full step.
    damping: share of the logits before in the new logits; 0 is none.
    normalizer: like `softmax`, called with logits and an axis; a logit of -inf is a choice that is not allowed.
    dropout: applied to label logits, or to the head marginals that send messages; None is none.
    """

    temperature: float | Tensor = 1.0
    step: float = 1.0
    damping: float = 0.0
    normalizer: Callable[[Tensor, int], Tensor] = softmax
    dropout: Callable[[Tensor], Tensor] | None = None

    def logits(self, scores: Tensor, before: Tensor) -> Tensor:
        """Scores over the temperature, damped by the logits before."""
        one = isinstance(self.temperature, float) and self.temperature == 1
        logits = scores if one else scores / self.temperature
        return torch.lerp(logits, before, self.damping) if self.damping else logits

    def marginals(
        self, logits: Tensor, before: Tensor, choices: Choices, parts: Sequence[int] = (), full: bool = False
    ) -> Tensor:
        """`normalized` logits mixed with the marginals before; ``full`` takes a full step whatever `step` is."""
        found = self.normalized(logits, choices, parts)
        return found if full or self.step == 1 else torch.lerp(before, found, self.step)

    def normalized(self, logits: Tensor, choices: Choices, parts: Sequence[int] = ()) -> Tensor:
        """Marginals over the allowed slots of each choice, whose sizes are ``parts``; zero where nothing is allowed.

        What is less than the square of the rounding error, even when it is multiplied by the largest potential, becomes
        zero: no sum can feel it, but the products of such numbers are subnormal, and a CPU multiplies those ten times
        slower.
        """
        bias, some, largest = choices
        if len(parts) > 1:
            pieces = zip(*(x.split(list(parts), -1) for x in (logits, bias)), some.split(1, -1), strict=True)
            return torch.cat([self.normalized(x, Choices(b, s, largest)) for x, b, s in pieces], -1)
        marginals = self.normalizer(logits + bias, -1)
        return marginals.masked_fill(marginals <= torch.finfo(marginals.dtype).eps ** 2 / largest, 0.0) * some

    def dropped(self, x: Tensor) -> Tensor:
        """``x`` after dropout."""
        return x if self.dropout is None else self.dropout(x)


PLAIN = Rule()
"""The rule of softmax at temperature 1 in full steps: the ELBO's own."""


def relu_normalized(logits: Tensor, axis: int) -> Tensor:
    """Positive parts over their sum: the published alternative to softmax. Where no logit is positive, all are zero.

    >>> relu_normalized(torch.tensor([1.0, 3.0, -2.0]), -1).tolist()
    [0.25, 0.75, 0.0]
    """
    parts = torch.relu(logits)
    largest = parts.amax(axis, keepdim=True).detach()
    parts = parts / torch.where(largest > 0, largest, 1.0)  # whose sum neither overflows nor underflows
    return parts / torch.where(largest > 0, parts.sum(axis, keepdim=True), 1.0)


class Potentials(NamedTuple):
    """A dependency CRF as plain tensors, with B sentences along one axis; sizes as in `probtx_pyro.ops.dependency_crf`.

    unary: S, (B, N, L).
    words: (B, N), False for padding, which sends and receives nothing.
    ternary: T, (C, G, L, L), or its factors U and V, (C, G, L, r) each, with ``T = U V'``.
    distances: rising integers of 2 or more that cut ``|i - j|`` into groups, see `group_of`.
    root, memory: R (C, L, K) and A (C', M, L), or None.
    split: True makes the global nodes a choice of their own, beside that of a head.
    labels, heads: what is known of them, (B, N) labels and (B, C, N) slots, -1 where nothing is; or None.
    """

    unary: Labels
    words: Bool[Tensor, "sentence word"]
    ternary: Tensor | tuple[Tensor, Tensor]
    distances: tuple[int, ...] = ()
    root: Tensor | None = None
    memory: Tensor | None = None
    split: bool = False
    labels: Tensor | None = None
    heads: Tensor | None = None

    @property
    def channels(self) -> int:
        """C."""
        return len(self.ternary if isinstance(self.ternary, Tensor) else self.ternary[0])

    @property
    def parts(self) -> list[int]:
        """Number of slots of each choice that a word makes in a channel: [S], or with ``split`` [S - M, M]."""
        heads = self.unary.shape[-2] + int(self.root is not None)
        nodes = 0 if self.memory is None else self.memory.shape[-2]
        return [heads, nodes] if self.split else [heads + nodes]

    @property
    def roots(self) -> int:
        """Number of labels of the root: K, or 1 without a root."""
        return 1 if self.root is None else self.root.shape[-1]

    def unary_scores(self) -> Labels:
        """S, with 0 for padding."""
        return self.unary.masked_fill(~self.words.unsqueeze(-1), 0.0)

    def sentences(self, rows: Tensor) -> "Potentials":
        """Some of the sentences, by their numbers (b,)."""
        labels, heads = (None if x is None else x[rows] for x in (self.labels, self.heads))
        return self._replace(unary=self.unary[rows], words=self.words[rows], labels=labels, heads=heads)

    def full_ternary(self) -> Tensor:
        """T, (C, G, L, L)."""
        return self.ternary if isinstance(self.ternary, Tensor) else self.ternary[0] @ self.ternary[1].mT

    def all_memory(self) -> Tensor | None:
        """A for all channels, (C, M, L); rows of zeros in the channels that have no global nodes."""
        return None if self.memory is None else F.pad(self.memory, (0, 0, 0, 0, 0, self.channels - len(self.memory)))

    def allowed(self) -> Tensor:
        """Which slot each word may choose, (B, 1 or C, N, S): no word is its own head,
        and padding neither has a head nor is one.

        A head that is known is the only one allowed.
        """
        length, channels = self.unary.shape[-2], self.channels
        other = ~torch.eye(length, dtype=torch.bool, device=self.words.device)
        slots = [(self.words.unsqueeze(-1) & self.words.unsqueeze(-2) & other).unsqueeze(-3)]
        if self.root is not None:
            slots.insert(0, self.words[:, None, :, None])
        if self.memory is not None:
            has = torch.arange(channels, device=self.words.device) < self.memory.shape[0]
            slots = [x.expand(-1, channels, -1, -1) for x in slots]
            slots.append((self.words[:, None, :, None] & has[:, None, None]).expand(-1, -1, -1, self.memory.shape[1]))
        allowed = torch.cat(slots, -1)
        if self.heads is None:
            return allowed
        slot, known = torch.arange(allowed.shape[-1], device=allowed.device), self.heads.unsqueeze(-1)
        return allowed & ((known < 0) | (slot == known) | (slot >= self.parts[0]))

    def allowed_labels(self) -> Tensor:
        """Which label each word may have, (B, N, 1 or L): none for padding, and only the one that is known."""
        if self.labels is None:
            return self.words.unsqueeze(-1)
        known, every = self.labels.unsqueeze(-1), torch.arange(self.unary.shape[-1], device=self.unary.device)
        return self.words.unsqueeze(-1) & ((known < 0) | (every == known))

    def label_choices(self) -> Choices:
        """`allowed_labels`, ready to be added to logits."""
        allowed, words = self.allowed_labels(), self.words.unsqueeze(-1)
        bias = self.unary.new_zeros(())
        return Choices(
            bias if self.labels is None else torch.where(words & ~allowed, -torch.inf, bias),
            words.to(self.unary.dtype),
            self.largest(),
        )

    def largest(self) -> Tensor:
        """The largest magnitude of a potential of arcs, at least 1; of factors a bound of it."""
        sizes = [x.detach().abs().amax() for x in (self.root, self.memory) if x is not None]
        if isinstance(self.ternary, Tensor):
            sizes.append(self.ternary.detach().abs().amax())
        else:
            left, right = (x.detach().abs().amax() for x in self.ternary)
            sizes.append(left * right * self.ternary[0].shape[-1])
        return torch.stack(sizes).amax().clamp_min(1.0)

    def slot_scores(self, labels: Tensor, root: Tensor | None = None, of: Tensor | None = None) -> Tensor:
        """The score of every slot as the head of every word, given all labels; -inf where it is not allowed.

        Shapes: labels (..., B, N), the root's label (..., B) -> (..., B, C, N, S). With other labels ``of`` the words
        that have the heads, ``labels`` are those of the heads alone.
        """
        ternary, length = self.full_ternary(), labels.shape[-1]
        channel = torch.arange(self.channels, device=labels.device)[:, None, None]
        above, group = labels.unsqueeze(-2), group_of(self.distances, length, labels.device)
        of = above if of is None else of.unsqueeze(-2)
        words = ternary[channel, group, of.unsqueeze(-1), above.unsqueeze(-2)]
        slots = [words]
        if self.root is not None and root is not None:
            slots.insert(0, self.root[channel[..., 0], of, root[..., None, None]].unsqueeze(-1))
        memory = self.all_memory()
        if memory is not None:
            slots.append(memory.mT[channel[..., 0], of])
        found = torch.cat([x.expand(*words.shape[:-1], -1) for x in slots], -1)
        return found.masked_fill(~self.allowed(), -torch.inf)

    def choices(self) -> Choices:
        """`allowed`, ready to be added to logits."""
        found = [(x, x.any(-1, keepdim=True)) for x in self.allowed().split(self.parts, -1)]
        bias = [self.unary.new_zeros(x.shape).masked_fill(~x & some, -torch.inf) for x, some in found]
        some = torch.cat([some for _, some in found], -1).to(self.unary.dtype)
        return Choices(torch.cat(bias, -1), some, self.largest())


def group_of(distances: Sequence[int], length: int, device: torch.device | None = None) -> Tensor:
    """Number of the distance group of every pair of words, ``g(i, j)``.

    Parameters
    ----------
    distances
        ``s_1 < s_2 < ... < s_n`` cut ``|i - j|`` into the groups [1, s_1), [s_1, s_2), ..., [s_n, ∞): n + 1 groups to
        the right (j > i), then as many to the left, G = 2 (n + 1) in all.
    length
        N, the number of words.
    device
        Where the answer is made; None is torch's default.

    Returns
    -------
    groups
        (N, N) of int64. The entry of a word and itself, which no arc joins, means nothing.

    Examples
    --------
    >>> group_of((2,), 3).fill_diagonal_(-1).tolist()
    [[-1, 0, 1], [2, -1, 0], [3, 2, -1]]
    """
    offset = torch.arange(length, device=device)[None, :] - torch.arange(length, device=device)[:, None]
    edges = torch.tensor(distances, dtype=torch.long, device=device)
    ring = torch.bucketize(offset.abs(), edges, right=True)
    return torch.where(offset < 0, ring + len(distances) + 1, ring)


def membership(potentials: Potentials) -> Tensor:
    """Return d, (G, N, N): 1 where the pair (i, j) is in group g, else 0, so that
    ``T^{(c,g(i,j))} = Σ_g d^g_ij T^{(c,g)}``.
    """
    length, unary = potentials.unary.shape[-2], potentials.unary
    group = group_of(potentials.distances, length, unary.device)
    member = F.one_hot(group, 2 * (len(potentials.distances) + 1)).movedim(-1, 0).to(unary.dtype)
    return member.triu(1) + member.tril(-1)
