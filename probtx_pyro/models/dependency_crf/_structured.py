"""Structured mean field: labels factorised, heads by their exact posterior given the labels, summed out of what is climbed.

The bound ``E_Q[log φ(Z)] + H(Q)`` of ``Q = Π Q(Z_i)`` rises to its largest over one word at

    Q(Z_i = a) ∝ exp E_{Q(Z_-i)}[log φ(a, Z_-i)]

whose expectation has no closed form, because a logarithm of a sum over heads does not factorise over their labels. It is that of a
Gibbs sweep's logits over draws from Q: a sweep draws every word from one distribution instead of one for each chain.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from probtx_pyro.models.dependency_crf._latents import Latents


class Structured(NamedTuple):
    """Marginals of labels (..., N, L), heads (..., C, N, S) and the root (..., K), and the logits of labels and root."""

    labels: Tensor
    heads: Tensor
    label_logits: Tensor
    root: Tensor | None
    root_logits: Tensor | None


def structured(latents: Latents, num_steps: int, num_draws: int, seed: int) -> Structured:
    """Sweep so often over all words, from labels that do not depend on each other."""
    crf, batch = latents.potentials, latents.batch
    generator = torch.Generator(crf.unary.device).manual_seed(seed)
    state = latents.start(num_draws, generator)
    found = torch.zeros_like(crf.unary)
    above: list[Tensor] = []

    def averaged(logits: Tensor, word: int | None) -> Tensor:
        mean = logits.log_softmax(-1).mean(0)
        if word is None:
            above[:] = [mean.to(found.dtype)]
        else:
            found[:, word] = mean.to(found.dtype)
        return mean.expand(logits.shape).clone()

    for _ in range(num_steps):
        state = latents.sweep(state, generator, seen=averaged)
    labels = found.softmax(-1) * crf.words.unsqueeze(-1)
    root = above[0].reshape(*batch, -1) if above else None
    return Structured(
        labels.reshape(*batch, *labels.shape[1:]), latents.attention(state).mean(0),
        found.reshape(*batch, *found.shape[1:]), None if root is None else root.softmax(-1), root,
    )  # fmt: skip
