"""The Pyro programs of a dependency CRF: its choices in plates, labels, heads, nodes and the root's label, and log φ as a factor."""

from contextlib import ExitStack
from typing import Any, cast

import pyro
import torch
from pyro import poutine
from pyro.distributions import Categorical
from torch import Tensor

from probtx_pyro.models.dependency_crf import _exact
from probtx_pyro.ops.dependency_crf import Potentials


def sentence_axes(rank: int) -> list[str]:
    """Names of ``rank`` leading axes: ``sentence``, and further ones in front of it ``sentence_1``, ``sentence_2``, ..."""
    return [*(f"sentence_{i + 1}" for i in range(rank - 1)), *["sentence"][:rank]]


class Choices:
    """The independent choices of all sentences, in plates: ``word`` at dim -1, ``channel`` (``node_channel`` of split global nodes)
    at -2, and left of them the sentences. Their own log probability is masked where log φ counts in its place.
    """

    def __init__(self, potentials: Potentials, batch: torch.Size):
        self.potentials = potentials
        names = sentence_axes(len(batch))
        self.sentences = [pyro.plate(names[i], n, dim=i - len(batch) - 2) for i, n in enumerate(batch)]
        self.word = pyro.plate("word", potentials.unary.shape[-2], dim=-1)

    def within(self, *plates: pyro.plate) -> ExitStack:
        """Inside the plates of the sentences and those given."""
        stack = ExitStack()
        for plate in (*self.sentences, *plates):
            stack.enter_context(plate)
        return stack

    def sample(self, labels: Tensor, heads: Tensor | None, root: Tensor | None, counted: bool) -> dict[str, Tensor]:
        """Choices from probabilities, rows of zeros where there is nothing to choose; ``counted`` ones have a log probability.

        Without ``heads`` only labels are chosen.
        """
        memory, parts = self.potentials.memory, self.potentials.parts
        given = {"label": (labels.unsqueeze(-3) if self.sentences else labels, [self.word])}
        for name, probs in zip(("head", "node"), () if heads is None else heads.split(parts, -1), strict=False):
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


def model(potentials: Potentials, batch: torch.Size, collapsed: bool) -> None:
    """Every choice that is allowed alike, and log φ as a factor of each sentence; ``collapsed``: labels alone, heads summed out."""
    choices = Choices(potentials, batch)

    def sentences(x: Tensor, *sizes: int) -> Tensor:
        return x.to(potentials.unary.dtype).expand(-1, *sizes).reshape(*batch, *sizes)

    words, labels = potentials.unary.shape[1:]
    heads = None if collapsed else sentences(potentials.allowed(), potentials.channels, words, sum(potentials.parts))
    root = None if potentials.root is None else potentials.unary.new_ones(*batch, potentials.root.shape[-1])
    found = choices.sample(sentences(potentials.allowed_labels(), words, labels), heads, root, False)
    label, head, above = found["label"], found.get("head"), found.get("root_label")
    if label.shape[-1] != words or (head is not None and head.shape[-2:] != (potentials.channels, words)):
        raise NotImplementedError(
            "DependencyCRF.model cannot be enumerated, because all its choices depend on each other; give crf.enumerated, which sums out one short sentence, or take crf.log_partition or crf.mean_field"
        )
    label = label.squeeze(-2) if label.dim() > 1 else label
    above = None if above is None else above.squeeze((-2, -1)) if above.dim() else above
    value = _exact.log_joint(potentials, batch, label, head, above, found.get("node"))
    with choices.within():
        pyro.factor("potential", value[..., None, None])
