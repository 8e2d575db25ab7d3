"""The dependency CRF as Pyro programs: in plates with its mean-field guide, and site by site for exact enumeration.

The sites are Categorical choices whose own log probability is masked or divided away, so that the log density of a trace is log φ.
Plates: ``word`` at dim -1, ``channel`` (``node_channel`` for split global nodes) at -2, and left of them the sentences, ``batch``.
"""

from contextlib import ExitStack
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyro
import torch
from pyro import poutine
from pyro.distributions import Categorical
from pyro.ops.indexing import Vindex
from torch import Tensor

from probtx_pyro.models._plates import PARALLEL
from probtx_pyro.ops.dependency_crf import group_of

if TYPE_CHECKING:
    from probtx_pyro.models.dependency_crf.crf import DependencyCRF
    from probtx_pyro.models.dependency_crf.field import MeanField


def log_joint(
    crf: "DependencyCRF", labels: Tensor, heads: Tensor, root_label: Tensor | None = None, nodes: Tensor | None = None
) -> Tensor:
    """``log φ(Z, H)``, (...): of labels (..., N), heads (..., C, N) as slot numbers, and what the CRF has of these:

    root_label (...), and nodes (..., C', N), the global node chosen in each channel with ``memory_split``. A word that has no head
    to choose (alone, without a root) counts nothing in that channel, whatever its number.
    """
    for name, given, needed in (
        ("root_label", root_label, crf.root_ternary is not None),
        ("nodes", nodes, crf.memory_split),
    ):
        if (given is not None) != needed:
            raise ValueError(
                f"{name} must be given with a CRF that has one, and only then: {'give' if needed else 'leave out'} {name}"
            )
    potentials, length, batch = crf.potentials(), crf.unary.shape[-2], crf.batch_shape
    words = potentials.words.reshape(*batch, length)
    unary = crf.unary.masked_fill(~words.unsqueeze(-1), 0.0).expand(*labels.shape, -1)
    total = unary.gather(-1, labels.unsqueeze(-1)).squeeze(-1).sum(-1)
    of = labels.unsqueeze(-2).expand_as(heads)
    channel = torch.arange(potentials.channels, device=labels.device).unsqueeze(-1)
    first, (slots, *_) = int(crf.root_ternary is not None), potentials.parts
    word = (heads - first).clamp(0, length - 1)
    group = group_of(crf.distances, length, labels.device)[torch.arange(length, device=labels.device), word]
    score = crf.full_ternary()[channel, group, of, of.gather(-1, word)]
    if crf.root_ternary is not None:
        above = root_label.unsqueeze(-1).unsqueeze(-1)
        score = torch.where(heads == 0, crf.root_ternary[channel, of, above], score)
    if crf.memory is not None and not crf.memory_split:
        node = (heads - first - length).clamp(min=0)
        rows = channel.clamp(max=len(crf.memory) - 1)
        score = torch.where(heads >= first + length, crf.memory[rows, node, of], score)
    allowed = potentials.allowed()[..., :slots].reshape(*batch, -1, length, slots)
    chosen = allowed.expand(*heads.shape, -1).gather(-1, heads.unsqueeze(-1)).squeeze(-1)
    score = score.masked_fill(~chosen, -torch.inf).masked_fill(~allowed.any(-1), 0.0)
    total = total + score.sum((-2, -1))
    if crf.memory_split:
        own = torch.arange(len(crf.memory), device=labels.device).unsqueeze(-1)
        of = labels.unsqueeze(-2).expand_as(nodes)
        total = total + (crf.memory[own, nodes, of] * words.unsqueeze(-2)).sum((-2, -1))
    return total


class _Choices:
    """The independent choices of all sentences, in plates."""

    def __init__(self, crf: "DependencyCRF"):
        self.crf, batch = crf, crf.batch_shape
        names = [*(f"batch_{i + 1}" for i in range(len(batch) - 1)), "batch"]
        self.sentences = [pyro.plate(names[i], n, dim=i - len(batch) - 2) for i, n in enumerate(batch)]
        self.word = pyro.plate("word", crf.unary.shape[-2], dim=-1)

    def within(self, *plates: pyro.plate) -> ExitStack:
        """Inside the plates of the sentences and those given."""
        stack = ExitStack()
        for plate in (*self.sentences, *plates):
            stack.enter_context(plate)
        return stack

    def sample(self, labels: Tensor, heads: Tensor, root: Tensor | None, counted: bool) -> dict[str, Tensor]:
        """Choices from probabilities, rows of zeros where there is nothing to choose; ``counted`` ones have a log probability."""
        crf, parts = self.crf, self.crf.potentials().parts
        given = {"label": (labels.unsqueeze(-3), [self.word])}
        for name, probs in zip(("head", "node"), heads.split(parts, -1), strict=False):
            probs = probs if name == "head" else probs[..., : len(crf.memory), :, :]
            given[name] = (
                probs,
                [pyro.plate(f"{'' if name == 'head' else 'node_'}channel", probs.shape[-3], dim=-2), self.word],
            )
        if root is not None:
            given["root_label"] = root[..., None, None, :], []
        found = {}
        for name, (probs, plates) in given.items():
            some = probs.sum(-1, keepdim=True) > 0
            with self.within(*plates), poutine.mask(mask=cast(Any, some.squeeze(-1) & counted)):
                found[name] = pyro.sample(name, Categorical(torch.where(some, probs, 1.0)))
        return found


def model(crf: "DependencyCRF") -> None:
    """Labels, heads (the root's label, nodes) in plates, every choice allowed alike, and log φ as a `pyro.factor` a sentence."""
    potentials, choices = crf.potentials(), _Choices(crf)
    heads = potentials.allowed().expand(-1, potentials.channels, -1, -1).to(crf.unary.dtype)
    root = None if crf.root_ternary is None else crf.unary.new_ones(*crf.batch_shape, crf.root_ternary.shape[-1])
    found = choices.sample(torch.ones_like(crf.unary), heads.reshape(*crf.batch_shape, *heads.shape[1:]), root, False)
    labels, above = found["label"].squeeze(-2), found.get("root_label")
    value = log_joint(crf, labels, found["head"], None if above is None else above.squeeze((-2, -1)), found.get("node"))
    with choices.within():
        pyro.factor("potential", value[..., None, None])


def guide(crf: "DependencyCRF", field: "MeanField") -> None:
    """The factorised family: every label, head, root label and node by itself, with the marginals of ``field``."""
    _Choices(crf).sample(field.label_marginals, field.head_marginals, field.root_marginals, True)


class _Site(NamedTuple):
    """A choice of one sentence. slots: the numbers it may take, among which the site counts."""

    name: str
    kind: str
    channel: int
    word: int
    slots: Tensor


def _listed(crf: "DependencyCRF") -> list[_Site]:
    """The choices of one sentence that are there to make."""
    if crf.batch_shape:
        raise ValueError(
            f"the enumerated program takes one sentence, not batch axes {tuple(crf.batch_shape)}; index one of them"
        )
    potentials = crf.potentials()
    allowed = potentials.allowed()[0].expand(potentials.channels, -1, -1).split(potentials.parts, -1)
    words = potentials.words[0].nonzero()[:, 0].tolist()
    every = torch.arange(crf.unary.shape[-1], device=crf.unary.device)
    found = [_Site(f"label_{i}", "label", 0, i, every) for i in words]
    for kind, part in zip(("head", "node"), allowed, strict=False):
        for c, i in product(range(len(part)), words):
            if part[c, i].any():
                found.append(_Site(f"{kind}_{c}_{i}", kind, c, i, part[c, i].nonzero()[:, 0]))
    if crf.root_ternary is not None:
        every = torch.arange(crf.root_ternary.shape[-1], device=crf.unary.device)
        found.append(_Site("root_label", "root", 0, 0, every))
    return found


def enumerated(crf: "DependencyCRF") -> None:
    """The CRF of one sentence, a site for every choice and a factor for every pair of words in a channel.

    ``TraceEnum_ELBO`` sums it out exactly: with an empty guide its ELBO is `DependencyCRF.log_partition`. For tiny problems. The
    values of a head count the slots allowed to it, in order.
    """
    ternary, length, first = crf.full_ternary(), crf.unary.shape[-2], int(crf.root_ternary is not None)
    groups = group_of(crf.distances, length, crf.unary.device)
    sites, drawn = _listed(crf), dict[str, Tensor]()
    for name, _, _, _, slots in sites:
        chosen = pyro.sample(name, Categorical(torch.ones_like(slots, dtype=ternary.dtype)), infer=PARALLEL)
        drawn[name] = slots[chosen]
    # undoes the uniform probabilities; a mask would, too, but Pyro has no marginals of masked sites
    pyro.factor("uniform", ternary.new_tensor([len(site.slots) for site in sites]).log().sum())
    words = [i for i in range(length) if f"label_{i}" in drawn]
    for i in words:
        label = drawn[f"label_{i}"]
        pyro.factor(f"unary_{i}", crf.unary[i][label])
        for c in range(len(ternary)):
            if (head := drawn.get(f"head_{c}_{i}")) is not None:
                for j in (j for j in words if j != i):
                    arc = Vindex(ternary[c, groups[i, j]])[label, drawn[f"label_{j}"]]
                    pyro.factor(f"arc_{c}_{i}_{j}", torch.where(head == first + j, arc, 0.0))
                if first:
                    above = Vindex(crf.root_ternary[c])[label, drawn["root_label"]]
                    pyro.factor(f"root_{c}_{i}", torch.where(head == 0, above, 0.0))
            node = drawn.get(f"node_{c}_{i}") if crf.memory_split else head
            if crf.memory is not None and c < len(crf.memory) and node is not None:
                node = node if crf.memory_split else node - first - length
                score = Vindex(crf.memory[c])[node.clamp(min=0), label]
                pyro.factor(f"memory_{c}_{i}", torch.where(node >= 0, score, 0.0))


def enumerated_guide(crf: "DependencyCRF", field: "MeanField | None" = None) -> None:
    """The factorised family for `enumerated`: the marginals of ``field``, or free logits for SVI.

    Free logits are `pyro.param`, named by the site with ``_logits``; they start at the unary scores, and at 0 for heads.
    """
    parts = crf.potentials().parts
    for name, kind, c, i, slots in _listed(crf):
        if field is None:
            start = crf.unary[i].detach().clone() if kind == "label" else crf.unary.new_zeros(len(slots))
            choice = Categorical(logits=pyro.param(f"{name}_logits", start))
        elif kind in ("label", "root"):
            choice = Categorical(field.label_marginals[i] if kind == "label" else field.root_marginals)
        else:
            choice = Categorical(field.head_marginals.split(parts, -1)[kind == "node"][c, i][slots])
        pyro.sample(name, choice, infer=PARALLEL)


__all__ = ["enumerated", "enumerated_guide", "guide", "log_joint", "model"]
