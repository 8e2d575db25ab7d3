"""Labels and heads of a dependency CRF as latent choices that can be drawn:
what Gibbs sampling and annealing need of it.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models.dependency_crf import _exact
from probtx_pyro.ops import draw_trees, safe_softmax, tree_log_partition
from probtx_pyro.ops._label_sweeps import Seen, Sweeps, Tables, gumbel
from probtx_pyro.ops.dependency_crf import Potentials

State = Mapping[str, Tensor]


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
        logits = crf.unary.masked_fill(~crf.words.unsqueeze(-1), 0.0) + crf.label_choices().bias
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
            raise ValueError(
                f"label must be from 0 to {count - 1}, but one is {int(labels.max())}; draw it, or leave it out"
            )
        scores = self.potentials.slot_scores(labels, root)
        absent, found = scores == -torch.inf, []
        for beta in betas:
            own = (scores * beta).masked_fill_(absent, -torch.inf) if beta != 1 else scores
            found.append(_exact.log_density(self.potentials, labels, root, own))
        return torch.stack(found).reshape(len(betas), *labels.shape[:-2], *self.batch)

    def log_partition(self) -> Tensor:
        """``log Z`` at β = 0, (...): every allowed head counts alike."""
        crf = self.potentials
        unary = crf.unary.masked_fill(~crf.words.unsqueeze(-1), 0.0) + crf.label_choices().bias
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
            raise ValueError(
                "trees need a root and no heads but words: give root_ternary, and global nodes with memory_split=True"
            )
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
