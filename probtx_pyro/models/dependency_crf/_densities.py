"""Densities of labels with the heads summed out, which given the labels are independent: sums over all labellings,
likelihoods of annotations, and labels and heads as Gibbs sampling and annealing draw them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from probtx_pyro.models import _validation as check
from probtx_pyro.ops import draw_trees, safe_softmax, tree_log_partition
from probtx_pyro.ops._label_sweeps import Seen, Sweeps, Tables, gumbel
from probtx_pyro.ops._numerics import common_shape, log_sum
from probtx_pyro.ops.dependency_crf import Potentials

State = Mapping[str, Tensor]
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
    unary = potentials.unary_scores().expand(*common_shape(labels.shape, words.shape), -1)
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
        root = F.one_hot(table.root, crf.roots).to(weights.dtype)
        labels, heads, root = (_mean(weights, x) for x in (one_hot, heads, root))
        return labels * crf.words.unsqueeze(-1), heads, root

    labels, heads, root = _over_buckets(potentials, buckets, of)
    return Marginals(labels, heads, None if potentials.root is None else root)


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
    labellings = potentials.unary.shape[-1] ** sum(free) * potentials.roots
    return labellings, labellings * potentials.channels * potentials.unary.shape[-2] * sum(potentials.parts)


def require_small(potentials: Potentials, buckets: list[Bucket], instead: str) -> None:
    """Refuse a table that would be too large, and name what to do ``instead``."""
    labellings, numbers = max(table_size(potentials, bucket.free) for bucket in buckets)
    if numbers > LARGEST:
        raise ValueError(
            f"exact inference over {labellings:.3g} labellings (labels ** words) needs a table of {numbers:.3g} "
            f"numbers, more than {LARGEST}; {instead}"
        )


def _over_buckets(
    potentials: Potentials, buckets: list[Bucket] | None, of: Callable[[Potentials, _Table], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Values of ``of`` for the table of each bucket, a few sentences at a time, in the order of the sentences."""
    if buckets is None:
        words = potentials.words
        buckets = alike(words, words if potentials.labels is None else words & (potentials.labels < 0))
    repair = "give a shorter sentence, take inference.annealed_log_partition or inference.gibbs, or use mean_field"
    require_small(potentials, buckets, repair)
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
    roots = torch.arange(potentials.roots, device=device)
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


class Evidence(NamedTuple):
    """Log densities, (B,) each. labels: of the labels that are known. heads: of the heads that are known,
    given those labels.
    """

    labels: Tensor
    heads: Tensor


class Known(NamedTuple):
    """Known labels and heads, and how sentences go together: by all their words,
    and by those words whose labels are not known.

    labels: (B, N), -1 where unknown. heads: (B, C, N), -1 where unknown, or None. every: buckets of all labellings.
    rest: buckets of those that agree with the known labels.
    """

    labels: Tensor
    heads: Tensor | None
    every: list[Bucket]
    rest: list[Bucket]

    @property
    def some(self) -> Tensor:
        """True for the sentences of which something is known, (B,)."""
        labels = (self.labels >= 0).any(-1)
        return labels if self.heads is None else labels | (self.heads >= 0).any((-2, -1))


Likelihood = Callable[[Potentials, Known], Evidence]


def exact(potentials: Potentials, known: Known) -> Evidence:
    """``log Z(labels) - log Z`` and ``log Z(labels, heads) - log Z(labels)``, by sums over all labellings."""
    total = log_partition(potentials, known.every)
    labelled = potentials._replace(labels=known.labels)
    some = log_partition(labelled, known.rest)
    if known.heads is None:
        return Evidence(some - total, torch.zeros_like(some))
    both = log_partition(labelled._replace(heads=known.heads), known.rest)
    return Evidence(some - total, both - some)


def pseudo(potentials: Potentials, known: Known) -> Evidence:
    """``Σ_i log p(Z_i | Z_-i)``, heads and the root's label summed out, and ``log p(H | Z)``;
    all labels of a sentence, or none.

    A sentence without a known label counts 0.
    """
    labels, count = known.labels.clamp(min=0), potentials.unary.shape[-1]
    rows, root = _by_root(potentials, labels)
    scores = potentials.slot_scores(rows, root)  # (K, B, C, N, S)
    each = torch.arange(count, device=labels.device)[:, None, None, None].expand(-1, *rows.shape)
    own = log_told(potentials, potentials.slot_scores(rows, root, of=each))  # (L, K, B, N)
    logits = potentials.unary_scores().movedim(-1, 0).unsqueeze(1) + own + _heard(potentials, scores, rows, each)
    conditional = logits.logsumexp(1).log_softmax(0)  # (L, B, N)
    read = potentials.words & (known.labels >= 0)
    of_labels = conditional.gather(0, labels.unsqueeze(0)).squeeze(0).masked_fill(~read, 0.0).sum(-1)
    if known.heads is None:
        return Evidence(of_labels, torch.zeros_like(of_labels))
    chosen = known.heads.expand(*scores.shape[:-1])
    told, summed = (log_told(potentials, scores, x).sum(-1).logsumexp(0) for x in (chosen, None))
    return Evidence(of_labels, (told - summed).masked_fill(~read.any(-1), 0.0))


def _by_root(potentials: Potentials, labels: Tensor) -> tuple[Tensor, Tensor | None]:
    """Labels (K, B, N), a row for each label that the root may have, and these labels (K, B); None without a root."""
    if potentials.root is None:
        return labels.unsqueeze(0), None
    every = torch.arange(potentials.roots, device=labels.device).unsqueeze(-1)
    return labels.expand(len(every), -1, -1), every.expand(-1, len(labels))


def _heard(potentials: Potentials, scores: Tensor, labels: Tensor, each: Tensor) -> Tensor:
    """Terms of ``log φ`` from the choices of all other words if word i has label a, (L, K, B, N)."""
    heads = scores.split(potentials.parts, -1)[0]
    first, places = int(potentials.root is not None), labels.shape[-1]
    place = torch.arange(first, first + places, device=labels.device)
    itself = torch.arange(heads.shape[-1], device=labels.device) == place.unsqueeze(-1)
    unread = torch.zeros_like(labels[..., 0])  # the root's label, whose slot is not among those of words
    every = potentials.slot_scores(each, unread, of=labels.expand_as(each))
    told = every[..., first : first + places]  # (L, K, B, C, k, i)
    # the slots of word k but for word i, (K, B, C, k, i): summed anew, because a difference of sums loses its digits
    others = log_sum(heads.unsqueeze(-2).masked_fill(itself, -torch.inf)).expand_as(told)
    return log_sum(torch.stack([others, told], -1)).masked_fill(told == -torch.inf, 0.0).sum((-3, -2))


EVIDENCE: dict[str, Likelihood] = {"exact": exact, "pseudo": pseudo}


def largest(potentials: Potentials, known: Known, likelihood: str) -> int:
    """Numbers in the largest tensor that a problem needs."""
    if likelihood == "exact":
        sizes = [(*table_size(potentials, x.free), len(x.rows)) for x in known.every]
        return max(max(m * rows, n if known.heads is None else n * rows) for m, n, rows in sizes)
    sentences, places, count = potentials.unary.shape
    return potentials.roots * sentences * potentials.channels * places * sum(potentials.parts) * max(places, count)


def draw_labels(potentials: Potentials, known: Known) -> tuple[Tensor]:
    """Labels of all sentences, (B, N), an exact draw by the table of all labellings; -1 for padding."""

    def of(crf: Potentials, table: _Table) -> tuple[Tensor, ...]:
        chosen = (table.log + gumbel(table.log.shape, table.log, None)).argmax(0)
        labels = table.labels.expand(-1, len(chosen), -1)
        return (labels.gather(0, chosen[None, :, None].expand(1, *labels.shape[1:])).squeeze(0),)

    return (_over_buckets(potentials, known.every, of)[0].masked_fill(~potentials.words, -1),)


def draw_heads(potentials: Potentials, known: Known) -> tuple[Tensor]:
    """Heads given all labels, (B, C, N) slots, an exact draw; -1 where there is none to choose."""
    labels = known.labels.clamp(min=0)
    rows, root = _by_root(potentials, labels)
    if root is not None:
        log = log_density(potentials, rows, root, potentials.slot_scores(rows, root))
        root = (log + gumbel(log.shape, log, None)).argmax(0)
    heads = potentials.slot_scores(labels, root).split(potentials.parts, -1)[0]
    drawn = (heads + gumbel(heads.shape, heads, None)).argmax(-1)
    return (drawn.masked_fill((heads == -torch.inf).all(-1), -1),)


class Latents:
    """Labels, heads, the root's label and nodes given what is known, as `probtx_pyro.models.formulation.Latents`.

    A state holds ``label`` (chain, ..., N) and with a root ``root_label`` (chain, ...): heads are summed out until
    `complete`. β multiplies all scores but the unary ones, so that labels are independent at 0.
    """

    def __init__(self, potentials: Potentials, batch: torch.Size):
        self.potentials, self.batch = potentials, batch
        self._tables: tuple[float, Tables] | None = None

    @cached_property
    def _sweeps(self) -> Sweeps:
        return Sweeps(self.potentials)

    def _flat(self, state: State) -> tuple[Tensor, Tensor | None]:
        """Labels (..., B, N), of padding any, and the root's label (..., B)."""
        labels, root = state["label"].clamp(min=0), state.get("root_label")
        lead = labels.shape[: labels.dim() - 1 - len(self.batch)]
        shape = (*lead, len(self.potentials.unary))
        return labels.reshape(*shape, -1), None if root is None else root.reshape(shape)

    def _state(self, labels: Tensor, root: Tensor | None) -> dict[str, Tensor]:
        shape = (*labels.shape[:-2], *self.batch)
        own = {"label": labels.reshape(*shape, labels.shape[-1])}
        return own if root is None else own | {"root_label": root.reshape(shape)}

    def start(self, num_chains: int, generator: torch.Generator) -> dict[str, Tensor]:
        """An exact draw at β = 0 for every chain: labels from ``softmax(S)``."""
        crf = self.potentials
        logits = crf.unary_scores() + crf.label_choices().bias
        labels = (logits + gumbel((num_chains, *logits.shape), logits, generator)).argmax(-1)
        if crf.root is None:
            return self._state(labels, None)
        shape, count = (num_chains, len(logits)), crf.root.shape[-1]
        return self._state(labels, torch.randint(count, shape, generator=generator, device=logits.device))

    def sweep(
        self, state: State, generator: torch.Generator, beta: float = 1.0, seen: Seen = None
    ) -> dict[str, Tensor]:
        """Draw every label given the others, and then the root's; ``seen`` as in `ops._label_sweeps`."""
        if self._tables is None or self._tables[0] != beta:
            self._tables = beta, self._sweeps.tables(beta)
        return self._state(*self._sweeps(*self._flat(state), self._tables[1], generator, seen))

    def log_density(self, state: State, *betas: float) -> Tensor:
        """``log φ_β(Z)``, heads summed out, (len(betas), chain, ...)."""
        labels, root = self._flat(state)
        count = self.potentials.unary.shape[-1]
        if check.violated(labels >= count):
            raise ValueError(f"label must be from 0 to {count - 1}, not {int(labels.max())}; draw it, or leave it out")
        scores = self.potentials.slot_scores(labels, root)
        absent, found = scores == -torch.inf, []
        for beta in betas:
            own = (scores * beta).masked_fill_(absent, -torch.inf) if beta != 1 else scores
            found.append(log_density(self.potentials, labels, root, own))
        return torch.stack(found).reshape(len(betas), *labels.shape[:-2], *self.batch)

    def log_partition(self) -> Tensor:
        """``log Z`` at β = 0, (...): every allowed head counts alike."""
        crf = self.potentials
        unary = crf.unary_scores() + crf.label_choices().bias
        total = unary.logsumexp(-1).masked_fill(~crf.words, 0.0).sum(-1)
        for slots in crf.allowed().expand(-1, crf.channels, -1, -1).split(crf.parts, -1):
            total = total + slots.sum(-1).clamp(min=1).to(total.dtype).log().sum((-2, -1))
        if crf.root is not None:
            total = total + torch.log(total.new_tensor(crf.root.shape[-1]))
        return total.reshape(self.batch)

    def complete(self, state: State, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw what sweeps sum out, exactly: ``head`` (chain, ..., C, N) and ``node`` (chain, ..., C', N).

        -1 is the label and the head of padding, and the head of a word that has none to choose.
        """
        labels, root = self._flat(state)
        scores = self.potentials.slot_scores(labels, root)
        found = self._state(labels.masked_fill(~self.potentials.words, -1), root)
        for name, x in zip(("head", "node"), scores.split(self.potentials.parts, -1), strict=False):
            drawn = (x + gumbel(x.shape, x, generator)).argmax(-1).masked_fill((x == -torch.inf).all(-1), -1)
            if name == "node" and self.potentials.memory is not None:
                drawn = drawn[..., : len(self.potentials.memory), :]
            found[name] = drawn.reshape(*labels.shape[:-2], *self.batch, *drawn.shape[-2:])
        return found

    def trees(
        self, state: State, generator: torch.Generator, channels: Sequence[int] | None, single_root: bool
    ) -> tuple[Tensor, Tensor]:
        """A tree in each of some channels given the labels, (chain, ..., channel, N),
        and log P(tree | labels) of all, (chain, ...).

        0 is the root, j the j-th word, -1 padding.
        """
        crf, count = self.potentials, self.potentials.channels
        if crf.root is None or (crf.memory is not None and not crf.split):
            raise ValueError("trees need a root and no heads but words: give root_ternary, and memory_split=True")
        chosen = [*range(count)] if channels is None else [*channels]
        if not chosen or len({*chosen}) < len(chosen) or not {*chosen} <= {*range(count)}:
            raise ValueError(f"channels must be different numbers from 0 to {count - 1}, not {chosen}")
        labels, root = self._flat(state)
        arcs = crf.slot_scores(labels, root)[..., chosen, :, : crf.parts[0]].log_softmax(-1)
        words = crf.words.unsqueeze(-2).expand(arcs.shape[:-1])  # of padding arcs are NaN, and masked
        drawn = draw_trees(arcs, 1, generator, words, single_root)[0]
        log_weights = tree_log_partition(arcs, words, single_root).sum(-1)
        shape = (*labels.shape[:-2], *self.batch)
        return drawn.reshape(*shape, *drawn.shape[-2:]), log_weights.reshape(shape)

    def attention(self, state: State) -> Tensor:
        """The posterior of the heads given the labels, (chain, ..., C, N, S)."""
        labels, root = self._flat(state)
        parts = self.potentials.slot_scores(labels, root).split(self.potentials.parts, -1)
        heads = torch.cat([safe_softmax(x)[0] for x in parts], -1)
        return heads.reshape(*labels.shape[:-2], *self.batch, *heads.shape[-3:])
