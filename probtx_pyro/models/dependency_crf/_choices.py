"""The choices of the Pyro programs of a dependency CRF: labels, heads, nodes and the root's label, in plates."""

from contextlib import ExitStack
from typing import Any, cast

import pyro
import torch
from pyro import poutine
from pyro.distributions import Categorical
from torch import Tensor

from probtx_pyro.ops.dependency_crf import Potentials


class Choices:
    """The independent choices of all sentences, in plates: ``word`` at dim -1, ``channel`` (``node_channel`` of split global nodes)
    at -2, and left of them the sentences. Their own log probability is masked where log φ counts in its place.
    """

    def __init__(self, potentials: Potentials, batch: torch.Size):
        self.potentials = potentials
        names = [*(f"batch_{i + 1}" for i in range(len(batch) - 1)), "batch"]
        self.sentences = [pyro.plate(names[i], n, dim=i - len(batch) - 2) for i, n in enumerate(batch)]
        self.word = pyro.plate("word", potentials.unary.shape[-2], dim=-1)

    def within(self, *plates: pyro.plate) -> ExitStack:
        """Inside the plates of the sentences and those given."""
        stack = ExitStack()
        for plate in (*self.sentences, *plates):
            stack.enter_context(plate)
        return stack

    def sample(self, labels: Tensor, heads: Tensor, root: Tensor | None, counted: bool) -> dict[str, Tensor]:
        """Choices from probabilities, rows of zeros where there is nothing to choose; ``counted`` ones have a log probability."""
        memory, parts = self.potentials.memory, self.potentials.parts
        given = {"label": (labels.unsqueeze(-3) if self.sentences else labels, [self.word])}
        for name, probs in zip(("head", "node"), heads.split(parts, -1), strict=False):
            if name == "node" and memory is not None:
                probs = probs[..., : len(memory), :, :]
            given[name] = (
                probs,
                [pyro.plate(f"{'' if name == 'head' else 'node_'}channel", probs.shape[-3], dim=-2), self.word],
            )
        if root is not None:
            given["root_label"] = root[..., None, None, :] if self.sentences else root, []
        found = {}
        for name, (probs, plates) in given.items():
            some = probs.sum(-1, keepdim=True) > 0
            with self.within(*plates), poutine.mask(mask=cast(Any, some.squeeze(-1) & counted)):
                found[name] = pyro.sample(name, Categorical(torch.where(some, probs, 1.0)))
        return found
