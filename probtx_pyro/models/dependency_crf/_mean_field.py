"""The mean field of a dependency CRF: its marginals, the bound that it climbs, and draws of its labels; and the
structured one, whose heads are exact given all labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probtx_pyro._brief import in_brief
from probtx_pyro.models import _validation as check
from probtx_pyro.models.dependency_crf._densities import Latents
from probtx_pyro.models.formulation import Formulation
from probtx_pyro.ops import _arc_kernel as kernel
from probtx_pyro.ops.dependency_crf import Rule


@dataclass(frozen=True, eq=False, repr=False)
class MeanField:
    """``Q(Z, H) = Π Q(Z_i) Π Q(H^c_i)`` after some sweeps.

    Attributes
    ----------
    crf : DependencyCRF
        What it is of.
    label_marginals : Tensor
        Q(Z), (..., N, L): the contextual representation of every word; zero for padding.
    head_marginals : Tensor
        Q(H), (..., C, N, S): the self-attention matrices. Slots: the root (if there is one), the N words, the M global
        nodes, which with ``memory_split`` are a distribution of their own.
    label_logits : Tensor
        (S + G) / λ_Z, damped, (..., N, L).
    root_marginals, root_logits : Tensor or None
        Of the root's label, (..., K).
    objective : Tensor or None
        The objective at the start and after every sweep, (num_steps + 1, ...), with ``history=True``.
    converged, num_steps : Tensor
        Which sentences met ``tol``, and how many sweeps each took, (...).
    """

    crf: Any
    label_marginals: Tensor
    head_marginals: Tensor
    label_logits: Tensor
    root_marginals: Tensor | None
    root_logits: Tensor | None
    objective: Tensor | None
    converged: Tensor
    num_steps: Tensor
    label_temperature: float | Tensor = 1.0
    head_temperature: float | Tensor = 1.0

    def __repr__(self) -> str:
        return in_brief(self)

    @property
    def elbo(self) -> Tensor:
        """``E_Q[log φ] + λ_Z H(Q(Z)) + λ_H H(Q(H))``, (...):
        a lower bound of log Z where both temperatures are at most 1.
        """
        lead = self.crf.unary.dim() - 2
        state = {"labels": self.label_marginals, "heads": self.head_marginals, "root": self.root_marginals}
        flat = {name: x.reshape(-1, *x.shape[lead:]) for name, x in state.items() if x is not None}
        prepared = kernel.Prepared.of(self.crf.potentials())
        rules = Rule(self.label_temperature), Rule(self.head_temperature)
        return kernel.objective(prepared, *rules, flat).reshape(self.crf.sentences)

    @property
    def formulation(self) -> Formulation:
        """The CRF, as results call it."""
        return self.crf

    def marginals(self) -> dict[str, Tensor]:
        """``attention`` (the marginals of heads), ``label_marginals`` and with a root ``root_marginals``,
        as results name them.
        """
        found = {"attention": self.head_marginals, "label_marginals": self.label_marginals}
        return found if self.root_marginals is None else found | {"root_marginals": self.root_marginals}

    def draw(self, num_draws: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Independent draws of ``label`` (draw, ..., N), -1 for padding, and with a root of ``root_label`` (draw,
        ...), from Q.

        Heads are left out: their exact posterior given the labels takes their place, as in `DependencyCRF.collapsed`.
        """
        found = {}
        for name, (probs, some) in self._choices().items():
            flat = torch.where(some.unsqueeze(-1), probs, 1.0).reshape(-1, probs.shape[-1])
            drawn = torch.multinomial(flat, num_draws, replacement=True, generator=generator)
            found[name] = drawn.T.reshape(num_draws, *some.shape).masked_fill(~some, -1)
        return found

    def log_prob(self, state: Mapping[str, Tensor]) -> Tensor:
        """``log Q`` of such draws, (draw, ...)."""
        found = {}
        for name, (probs, some) in self._choices().items():
            logs = (probs / probs.sum(-1, keepdim=True)).log().expand(*state[name].shape, -1)
            at = logs.gather(-1, state[name].clamp(min=0).unsqueeze(-1)).squeeze(-1)
            found[name] = at.masked_fill(~some, 0.0)
        return found["label"].sum(-1) + found.get("root_label", 0.0)

    def _choices(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Marginals of labels and of the root's label, and which of them are of a choice, not of padding."""
        mask = self.crf.mask
        words = self.label_marginals.new_ones(self.label_marginals.shape[:-1], dtype=torch.bool)
        words = words if mask is None else words & mask
        if check.violated(words & (self.label_marginals.sum(-1) <= 0)):
            raise ValueError("label_marginals of a word are all zero, so it draws no label; take softmax as normalizer")
        found = {"label": (self.label_marginals, words)}
        if self.root_marginals is not None:
            found["root_label"] = self.root_marginals, words.any(-1)
        return found


def structured(crf: Any, latents: Latents, num_steps: int, num_draws: int, seed: int) -> MeanField:
    """Sweep over all words ``num_steps`` times, from independent labels, and average over the draws."""
    own, batch = latents.potentials, latents.batch
    generator = torch.Generator(own.unary.device).manual_seed(seed)
    state = latents.start(num_draws, generator)
    found = torch.zeros_like(own.unary)
    root: Tensor | None = None

    def averaged(logits: Tensor, word: int | None) -> Tensor:
        nonlocal root
        mean = logits.log_softmax(-1).mean(0)
        if word is None:
            root = mean.to(found.dtype)
        else:
            found[:, word] = mean.to(found.dtype)
        return mean.expand(logits.shape).clone()

    for _ in range(num_steps):
        state = latents.sweep(state, generator, seen=averaged)
    words = found.softmax(-1) * own.words.unsqueeze(-1)
    labels, logits = (x.reshape(*batch, *x.shape[1:]) for x in (words, found))
    above = None if root is None else root.reshape(*batch, -1)
    roots = None if above is None else above.softmax(-1)
    steps = torch.full(batch, num_steps, device=found.device)
    heads, never = latents.attention(state).mean(0), torch.zeros_like(steps, dtype=torch.bool)
    return MeanField(crf, labels, heads, logits, roots, above, None, never, steps)
