"""The Pyro programs of a dependency CRF: choices in plates, a site for every choice of one sentence,
and annotations as one site.
"""

from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from typing import ClassVar, NamedTuple, cast

import pyro
import torch
from pyro import poutine
from pyro.distributions import Categorical, TorchDistribution
from pyro.ops.indexing import Vindex
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.models._plates import PARALLEL
from probtx_pyro.models.dependency_crf import _densities
from probtx_pyro.ops.dependency_crf import Potentials, group_of


def sentence_axes(rank: int) -> list[str]:
    """Names of ``rank`` leading axes: ``sentence``, and further ones in front of it ``sentence_1``,
    ``sentence_2``, ...
    """
    return [*(f"sentence_{i + 1}" for i in range(rank - 1)), *["sentence"][:rank]]


class Choices:
    """The independent choices of all sentences, in plates: ``word`` at dim -1, ``channel`` (``node_channel`` of split
    global nodes) at -2, and left of them the sentences. Their own log probability is masked where log φ counts in its
    place.
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
        """Choices from probabilities, rows of zeros where there is nothing to choose;
        ``counted`` ones have a log probability.

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
            with self.within(*plates), poutine.mask(mask=cast(torch.BoolTensor, some.squeeze(-1) & counted)):
                found[name] = pyro.sample(name, Categorical(torch.where(some, probs, 1.0)))
        return found


def sample_sentences(potentials: Potentials, batch: torch.Size, collapsed: bool) -> None:
    """Every choice that is allowed alike, and log φ as a factor of each sentence; ``collapsed``: labels alone,
    heads summed out.
    """
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
            "DependencyCRF.model cannot be enumerated, because all its choices depend on each other; "
            "give crf.enumerated of one short sentence, or take crf.log_partition or crf.mean_field"
        )
    label = label.squeeze(-2) if label.dim() > 1 else label
    above = None if above is None else above.squeeze((-2, -1)) if above.dim() else above
    value = _densities.log_joint(potentials, batch, label, head, above, found.get("node"))
    with choices.within():
        pyro.factor("potential", value[..., None, None])


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


def sample_words(potentials: Potentials) -> None:
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


def guide_words(potentials: Potentials, labels: Tensor | None, heads: Tensor | None, root: Tensor | None) -> None:
    """The factorised family for `model`: marginals of labels (N, L), heads (C, N, S) and root (K,),
    or free logits if labels are None.
    """
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


class Annotation(TorchDistribution):
    """Whole numbers of batch shape (..., B), the sentences, and event shape (N,) or (C, N).

    Parameters
    ----------
    log_density
        From values to their log densities (..., B); it says itself which of them it reads.
    draw
        One draw of all sentences.
    batch_shape, event_shape
        As above.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    has_rsample = False

    def __init__(
        self,
        log_density: Callable[[Tensor], Tensor],
        draw: Callable[[], Tensor],
        batch_shape: torch.Size,
        event_shape: torch.Size,
    ):
        self.log_density, self.draw = log_density, draw
        super().__init__(batch_shape, event_shape, validate_args=False)

    @constraints.dependent_property(is_discrete=True)
    def support(self) -> constraints.Constraint:
        """Whole numbers; -1 is padding, or a head that is not known."""
        return constraints.independent(constraints.integer_interval(-1, 2**31), len(self.event_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """``log p(value)``, (..., B)."""
        return self.log_density(value).expand(self.batch_shape)

    def sample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        """Draw all sentences anew, so often."""
        with torch.no_grad():
            drawn = [self.draw().expand(self.shape()) for _ in range(torch.Size(sample_shape).numel())]
        return torch.stack(drawn).reshape(torch.Size(sample_shape) + self.shape())
