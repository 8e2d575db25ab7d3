"""One sentence of a dependency CRF as a Pyro program with a site for every choice, for exact enumeration."""

from itertools import product
from typing import NamedTuple

import pyro
import torch
from pyro.distributions import Categorical
from pyro.ops.indexing import Vindex
from torch import Tensor

from probtx_pyro.models._plates import PARALLEL
from probtx_pyro.ops.dependency_crf import Potentials, group_of


class _Site(NamedTuple):
    """A choice of one sentence. slots: the numbers it may take, among which the site counts."""

    name: str
    kind: str
    channel: int
    word: int
    slots: Tensor


def _listed(potentials: Potentials) -> list[_Site]:
    """The choices of one sentence that are there to make."""
    unary = potentials.unary[0]
    allowed = potentials.allowed()[0].expand(potentials.channels, -1, -1).split(potentials.parts, -1)
    words = potentials.words[0].nonzero()[:, 0].tolist()
    labels = potentials.allowed_labels()[0].expand_as(unary)
    found = [_Site(f"label_{i}", "label", 0, i, labels[i].nonzero()[:, 0]) for i in words]
    for kind, part in zip(("head", "node"), allowed, strict=False):
        for c, i in product(range(len(part)), words):
            if part[c, i].any():
                found.append(_Site(f"{kind}_{c}_{i}", kind, c, i, part[c, i].nonzero()[:, 0]))
    if potentials.root is not None:
        every = torch.arange(potentials.root.shape[-1], device=unary.device)
        found.append(_Site("root_label", "root", 0, 0, every))
    return found


def model(potentials: Potentials) -> None:
    """A site for every choice of one sentence, and a factor for every pair of words in a channel."""
    ternary, unary, root, memory = potentials.full_ternary(), potentials.unary[0], potentials.root, potentials.memory
    length, first = unary.shape[0], int(root is not None)
    groups = group_of(potentials.distances, length, unary.device)
    sites, drawn = _listed(potentials), dict[str, Tensor]()
    for name, _, _, _, slots in sites:
        chosen = pyro.sample(name, Categorical(torch.ones_like(slots, dtype=ternary.dtype)), infer=PARALLEL)
        drawn[name] = slots[chosen]
    # undoes the uniform probabilities; a mask would, too, but Pyro has no marginals of masked sites
    pyro.factor("uniform", ternary.new_tensor([len(site.slots) for site in sites]).log().sum())
    words = [i for i in range(length) if f"label_{i}" in drawn]
    for i in words:
        label = drawn[f"label_{i}"]
        pyro.factor(f"unary_{i}", unary[i][label])
        for c in range(len(ternary)):
            if (head := drawn.get(f"head_{c}_{i}")) is not None:
                for j in (j for j in words if j != i):
                    arc = Vindex(ternary[c, groups[i, j]])[label, drawn[f"label_{j}"]]
                    pyro.factor(f"arc_{c}_{i}_{j}", torch.where(head == first + j, arc, 0.0))
                if root is not None:
                    above = Vindex(root[c])[label, drawn["root_label"]]
                    pyro.factor(f"root_{c}_{i}", torch.where(head == 0, above, 0.0))
            node = drawn.get(f"node_{c}_{i}") if potentials.split else head
            if memory is not None and c < len(memory) and node is not None:
                node = node if potentials.split else node - first - length
                score = Vindex(memory[c])[node.clamp(min=0), label]
                pyro.factor(f"memory_{c}_{i}", torch.where(node >= 0, score, 0.0))


def guide(potentials: Potentials, labels: Tensor | None, heads: Tensor | None, root: Tensor | None) -> None:
    """The factorised family for `model`: marginals of labels (N, L), heads (C, N, S) and root (K,), or free logits if labels are None."""
    parts = potentials.parts
    for name, kind, c, i, slots in _listed(potentials):
        if labels is None or heads is None:
            unary = potentials.unary[0]
            start = unary[i][slots].detach().clone() if kind == "label" else unary.new_zeros(len(slots))
            choice = Categorical(logits=pyro.param(f"{name}_logits", start))
        elif kind in ("label", "root"):
            choice = Categorical(labels[i][slots] if kind == "label" else root)
        else:
            choice = Categorical(heads.split(parts, -1)[kind == "node"][c, i][slots])
        pyro.sample(name, choice, infer=PARALLEL)
